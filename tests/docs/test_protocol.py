"""docs/protocol.md is a specification: everything in it that a program can compare is compared with the code."""

import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from stentor import error_root, errors, request_errors, work_errors
from stentor.broker.queues import desk as queue_desk
from stentor.broker.sessions import requests
from stentor.broker.sessions.client_session import ClientSession
from stentor.core.chain_messages import PartitionMessage
from stentor.testing import broker
from stentor.wire import (
    arrow_body,
    arrow_message,
    asks,
    batch,
    frames,
    group_messages,
    header,
    messages,
    peer,
    queue_messages,
    rows,
    schemas,
    service_messages,
    topic_settings,
)

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
WAIT_S = 30

REQUESTS = [kind.__name__ for kind in messages.Request.__args__]
RESPONSES = [kind.__name__ for kind in messages.Response.__args__]
BODIES = ["Hello", "Welcome", "Prove", "Failure", "RouteChange", "OpenStream", "StreamEnded", "CommitTransaction"]
VALUES = [
    "BrokerInfo",
    "BrokerState",
    "TopicSettings",
    "TopicInfo",
    "PartitionInfo",
    "TopicRoute",
    "PartitionRoute",
    "ClientInfo",
    "CursorState",
    "AssignedPartition",
    "GroupPosition",
    "GroupShare",
    "GroupState",
    "MemberState",
    "BurialTask",
    "DeadJob",
    "JobReturn",
    "JobState",
]


def section(heading):
    """The text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, f"there is no section {heading}"
    return found[1]


def table(text, first):
    """The rows of the table whose first column is called `first`."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)
            found = []
            for row in lines:
                if not row.startswith("|"):
                    break
                found.append([cell.strip() for cell in row.strip("|").split("|")])
            return found
    pytest.fail(f"there is no table of {first}")


def layout(text):
    """(offset, size, name) of a table of fixed fields."""
    return [(int(row[0]), int(row[1]), row[3]) for row in table(text, "offset")]


def check_layout(fields, packed):
    position = 0
    for offset, size, name in fields:
        assert offset == position, f"{name} is not where the field before it ends"
        position += size
    assert position == packed.size


# --- frames -------------------------------------------------------------------------------------


def test_the_frame_header_is_as_the_table_says():
    fields = layout(section("Frames"))
    check_layout(fields, frames.HEADER)
    packed = frames.HEADER.pack(1, 2, 3, 4, 5)
    read = [int.from_bytes(packed[offset : offset + size], "little") for offset, size, _ in fields]
    assert read == [1, 2, 3, 4, 5]


def test_the_table_of_kinds_is_complete():
    rows_found = {row[1]: int(row[0]) for row in table(section("Frames"), "kind")}
    assert rows_found == {kind.name: kind.value for kind in frames.Kind}


@pytest.mark.parametrize(
    ("heading", "packed"),
    [
        ("PUBLISHED", frames.PUBLISHED),
        ("DELIVER", frames.DELIVERY),
        ("CREDIT", frames.CREDIT),
        ("STREAM_STATE", frames.STREAM_STATE),
        ("REPLICATE", peer.REPLICATE),
        ("ASK", asks.ASK),
        ("REPLY", asks.REPLY),
        ("ASK_CREDIT", asks.ASK_CREDIT),
    ],
)
def test_a_fixed_body_is_as_its_table_says(heading, packed):
    fields = layout(section(heading))
    check_layout(fields, packed)
    named = [(offset, size) for offset, size, name in fields if name != "zero"]
    numbers = list(range(1, len(named) + 1))
    body = packed.pack(*numbers)
    assert [int.from_bytes(body[offset : offset + size], "little") for offset, size in named] == numbers


def test_the_ack_levels_are_as_the_table_says():
    rows_found = {row[1]: int(row[0]) for row in table(section("Publishing"), "flags")}
    assert rows_found == {ack.name.lower(): ack.value for ack in frames.Ack}


# --- control messages ---------------------------------------------------------------------------


def message_type(name):
    return next(
        kind
        for module in (messages, group_messages, service_messages, queue_messages, schemas)
        if (kind := getattr(module, name, None))
    )


@pytest.mark.parametrize("name", [*REQUESTS, *RESPONSES, *BODIES, *VALUES, "SchemaColumn"])
def test_the_fields_of_a_message_are_as_its_table_says(name):
    fields = msgspec.structs.fields(message_type(name))
    if not fields:
        assert "It has no fields" in section(name)
        return
    documented = {row[0].strip("`"): row[2].strip("`") for row in table(section(name), "field")}
    assert documented == {field.name: shown_default(field) for field in fields}


def shown_default(field):
    if field.required:
        return "required"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(default, bytes):
        default = default.decode()
    return "none" if default is None else json.dumps(msgspec.to_builtins(default))


def test_every_message_of_the_code_is_documented():
    of_messages = messages.__name__, topic_settings.__name__, group_messages.__name__
    of_messages += (queue_messages.__name__,)
    structs = {
        name
        for module in (messages, group_messages, queue_messages)
        for name, kind in vars(module).items()
        if not name.startswith("_")
        and isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ in of_messages
    }
    some_settings = "TopicChanges"  # has no table of its own: it is some of the fields of TopicSettings
    of_services = {
        kind.__name__ for kind in (*service_messages.ServiceRequest.__args__, service_messages.ServiceResponse)
    }
    assert (structs - {"Struct", "Tagged", some_settings}) | of_services == {*REQUESTS, *RESPONSES, *BODIES, *VALUES}


def test_the_table_of_requests_names_each_with_its_answer():
    rows_found = {re.match(r"\[(\w+)\]", row[0])[1]: re.match(r"\[(\w+)\]", row[1])[1] for row in request_rows()}
    assert list(rows_found) == REQUESTS
    for name, answer in rows_found.items():
        if (asked := getattr(queue_messages, name, None)) is not None:
            handler = queue_desk._HANDLERS.get(asked, queue_desk.QueueDesk._describe)
            assert handler.__annotations__["return"].removeprefix("m.") == answer
            continue
        at_once = (None, ClientSession._use)
        _, handler = requests._HANDLERS.get(message_type(name), at_once)
        assert handler.__annotations__["return"].endswith(f"messages.{answer}")


def request_rows():
    return table(section("Requests"), "request")


def test_every_message_between_brokers_is_named():
    said = {row[0].strip("`") for row in table(section("PEER"), "type")}
    assert said == {kind.__name__ for kind in peer.PeerMessage.__args__}
    about = {name for row in table(section("PEER"), "about a partition") for name in re.findall(r"`(\w+)`", row[0])}
    assert about == {kind.__name__ for kind in PartitionMessage.__args__} - {"ReplicaReport"}  # inside Reports
    down = {row[0].strip("`") for row in table(section("PEER"), "about a partition") if row[1] == "down"}
    assert down == {kind.__name__ for kind in peer.DOWNWARDS}


# --- batches ------------------------------------------------------------------------------------


def test_the_batch_header_is_as_the_table_says():
    fields = layout(section("Batch header"))
    check_layout(fields, header.LAYOUT)
    names = ["magic", *(field.name for field in msgspec.structs.fields(header.BatchHeader))]
    assert [name for _, _, name in fields] == names
    numbers = dict(zip(names[1:], range(100, 200), strict=False))
    packed = header.LAYOUT.pack(header.MAGIC, *numbers.values())
    for offset, size, name in fields[1:]:
        assert int.from_bytes(packed[offset : offset + size], "little") == numbers[name]
    assert header.MAGIC.hex(" ") in section("Batch header")


def test_the_head_fills_what_the_table_says_and_nothing_else():
    encoded = batch.encode([1], [b"k"], [b"v"])
    before = batch.address(encoded, topic_id=1, partition=2, producer_id=3, generation=4, sequence=5)
    after = bytearray(before)
    header.stamp(memoryview(after), 0, base_offset=2**40 - 1, epoch=2**31 - 1, appended_at_us=2**50 - 1)
    for (offset, size, name), row in zip(
        layout(section("Batch header")), table(section("Batch header"), "offset"), strict=True
    ):
        changed = before[offset : offset + size] != after[offset : offset + size]
        assert changed == ("head" in row[4]), name


def test_the_checksums_are_the_ones_the_page_names():
    assert crc32c(b"123456789") == 0xE3069283
    assert zlib.crc32(b"123456789") == 0xCBF43926
    conventions = section("Conventions")
    for number in ("0xE3069283", "0xCBF43926", "0x82F63B78", "0x1EDC6F41"):
        assert number in conventions
    packed = batch.address(
        batch.encode([1], [None], [b"v"]), topic_id=1, partition=0, producer_id=0, generation=0, sequence=0
    )
    (covered,) = [row for row in table(section("Batch header"), "offset") if row[3] == "header_checksum"]
    first = int(re.search(r"bytes (\d+) to 95", covered[5])[1])
    assert struct.unpack_from("<I", packed, int(covered[0]))[0] == crc32c(packed[first:96])


def test_the_examples_of_partitioning_are_right():
    text = section("Which partition")
    names = re.search(r"For keys (.*?) that is", text, re.DOTALL)[1]
    keys = re.findall(r"`(\w+)`", names)
    hashes = [int(number, 16) for number in re.findall(r"`(0x[0-9A-F]{8})`", text)]
    partitions = [int(number) for number in re.findall(r"\d", re.search(r"partitions: (.*?)\.", text)[1])]
    assert len(keys) == 3
    assert hashes == [zlib.crc32(key.encode()) for key in keys]
    assert partitions == [number % 4 for number in hashes]


def test_packed_rows_are_as_the_tables_say():
    body = rows.encode([7], [b"key"], [None], [[("a", b"bc"), ("d", None)]])
    fixed = struct.pack("<qiii", 7, 3, -1, 4 + 8 + 3 + 8 + 1)
    headers = struct.pack("<I", 2) + struct.pack("<Ii", 1, 2) + b"abc" + struct.pack("<Ii", 1, -1) + b"d"
    assert body == fixed + b"key" + headers
    sizes = [row[0] for row in table(section("Packed rows"), "size")]
    assert sizes == ["8", "4", "4", "4", "key length", "value length", "headers length"]


def test_the_arrow_schema_is_as_the_table_says():
    documented = [
        (row[0].strip("`"), row[1].strip("`"), row[2] == "yes") for row in table(section("Arrow body"), "column")
    ]
    assert documented == [(field.name, str(field.type), field.nullable) for field in arrow_body.SCHEMA]
    assert arrow_message.COMPRESSIONS == ("", "lz4", "zstd")
    assert f"{arrow_message.NODE_COUNT} field nodes and {arrow_message.BUFFER_COUNT} buffers" in section("Arrow body")
    assert f"at most {arrow_message.METADATA_BYTES_MAX} bytes" in section("Arrow body")


# --- errors -------------------------------------------------------------------------------------


def test_the_table_of_codes_is_complete_and_right():
    branches = {module.__name__ for module in (error_root, errors, request_errors, work_errors)}
    documented = {row[0].strip("`"): row[1] == "yes" for row in table(section("Failure"), "code")}
    of_the_tree = {code: kind.retriable for code, kind in errors.BY_CODE.items() if kind.__module__ in branches}
    assert documented == of_the_tree


def test_the_reasons_of_sequence_errors_are_those_of_the_code():
    source = (ROOT / "src" / "stentor" / "core" / "dedupe.py").read_text(encoding="utf-8")
    in_code = set(re.findall(r'reason="(\w+)"', source))
    assert in_code == set(re.findall(r"`reason` `(\w+)`", section("Sequences and resends")))


# --- the client in sixty lines ------------------------------------------------------------------


def test_the_client_written_from_this_page_publishes_and_reads(monkeypatch, capsys):
    text = section("A client in sixty lines")
    code, prints = (
        re.search(r"```python\n(.*?)```", text, re.DOTALL)[1],
        re.search(r"```text\n(.*?)```", text, re.DOTALL)[1],
    )
    imported = set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE))
    assert imported == {"os", "socket", "struct", "time", "typing", "zlib", "msgspec"}, "it must not lean on Stentor"
    with broker(default_partitions=4) as local:
        monkeypatch.setenv("STENTOR_URL", local.url)
        namespace = {"__name__": "__main__"}
        exec(compile(code, "client", "exec"), namespace)
        namespace["client"].file.close()
        assert capsys.readouterr().out == prints
        with local.client() as client:
            (message,) = client.read("minimal.orders")
    assert (message.key, message.value) == (b"42", b"hello")
    assert message.partition == zlib.crc32(b"42") % 4


def test_the_made_parts_of_the_documents_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_docs.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
