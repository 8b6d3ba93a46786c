"""Record a short conversation with a real broker, byte by byte, for docs/protocol.md.

Everything that would differ from run to run is fixed: the broker's name, the ids, its clock. The rest is what a
broker on a real socket says.
"""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.broker.broker import Broker
from stentor.broker.catalogue import TopicRecord, chain_key, encode, topic_key
from stentor.broker.config import load_config
from stentor.coordination import EmbeddedStore
from stentor.core.records import ChainRecord, Member
from stentor.storage.directory import DataDirectory
from stentor.storage.files import atomic_write
from stentor.wire import batch, frames, messages
from stentor.wire.frames import Ack, Kind
from stentor.wire.header import HEADER_BYTES
from stentor.wire.messages import TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "orders.eu"
TOPIC_ID = 0x0123456789ABCDEF
PRODUCER_ID = 0x0A0B0C0D0E0F
CLUSTER_ID = "5f2c9a52d1c94f7e8f6b0f0a4b7c1d2e"
PUBLISHED_AT_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
APPENDED_AT_US = PUBLISHED_AT_US + 321
ANSWER_S = 10.0
LINE_BYTES = 16

FRAME_FIELDS = (("length", 4), ("kind", 1), ("flags", 1), ("reserved", 2), ("correlation id", 8))
BATCH_FIELDS = (
    ("magic", 4), ("header checksum", 4), ("length", 4), ("body checksum", 4), ("topic id", 8), ("partition", 4),
    ("count", 4), ("base offset", 8), ("epoch", 4), ("attributes", 4), ("first timestamp", 8), ("last timestamp", 8),
    ("appended at", 8), ("producer id", 8), ("generation", 4), ("span", 4), ("sequence", 8),
)  # fmt: skip
ROW_FIELDS = (("timestamp", 8), ("key length", 4), ("value length", 4), ("headers length", 4))
PUBLISHED_FIELDS = (("base offset", 8), ("epoch", 4), ("appended at", 8))
DELIVER_FIELDS = (("commit point", 8), ("epoch", 4), ("zero", 4), ("next offset", 8))
IN_HEX = frozenset({"header checksum", "body checksum", "topic id", "producer id"})


class FixedClock:
    """A clock whose wall stands still."""

    def now_us(self) -> int:
        """The same moment, always."""
        return APPENDED_AT_US

    def monotonic(self) -> float:
        """This one moves: the broker's timers need it."""
        return time.monotonic()


def record() -> str:
    """The whole conversation as text."""
    with tempfile.TemporaryDirectory(prefix="stentor-") as folder:
        spoken = asyncio.run(_converse(Path(folder) / "data"))
    return "\n".join(line for who, frame in spoken for line in _describe(who, frame)).rstrip() + "\n"


async def _converse(path: Path) -> list[tuple[str, bytes]]:
    await _prepare(path)
    config = load_config(
        {"data_directory": str(path), "port": 0, "broker_id": "broker-1", "advertised_address": "localhost:7440"}
    )
    broker = Broker(config, clock=FixedClock())
    await broker.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    spoken: list[tuple[str, bytes]] = []
    try:
        for frame, answered in _requests():
            writer.write(frame)
            spoken.append(("client to broker", frame))
            if answered:
                spoken.append(("broker to client", await asyncio.wait_for(_read_frame(reader), ANSWER_S)))
    finally:
        writer.close()
        await broker.stop()
    return spoken


async def _prepare(path: Path) -> None:
    """A data directory that knows one topic, whose ids are ours and whose next epoch is 7."""
    DataDirectory(path).close()
    store = EmbeddedStore(None, partial(atomic_write, path / "coordination"))
    topic = TopicRecord(TOPIC, TOPIC_ID, TopicSettings(replicas=1), PUBLISHED_AT_US)
    chain = ChainRecord(6, (Member("broker-1", log_id=1, incarnation=0),))
    await store.swap(
        expect={},
        put={
            "identity/broker": b"broker-1",
            "identity/cluster": CLUSTER_ID.encode(),
            topic_key(TOPIC): encode(topic),
            chain_key((TOPIC_ID, 0)): encode(chain),
        },
    )


def _requests() -> Iterator[tuple[bytes, bool]]:
    """What the client says, and whether it waits for an answer."""
    hello = messages.Hello(version_min=1, version_max=1, name="example")
    yield frames.frame(Kind.HELLO, 0, messages.encode(hello)), True
    yield frames.frame(Kind.REQUEST, 1, messages.encode(messages.DescribeTopic(name=TOPIC))), True
    encoded = batch.encode([PUBLISHED_AT_US], [b"42"], [b"hello"])
    header = batch.address(encoded, topic_id=TOPIC_ID, partition=0, producer_id=PRODUCER_ID, generation=0, sequence=0)
    yield frames.frame(Kind.PUBLISH, 2, bytes(header) + bytes(encoded.body), flags=Ack.ALL), True
    stream = messages.OpenStream(topic_id=TOPIC_ID, partition=0, start=0, credit=1_000_000)
    yield frames.frame(Kind.OPEN_STREAM, 3, messages.encode(stream)), True
    yield frames.frame(Kind.GOODBYE, 0), False


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(frames.HEADER_BYTES)
    return header + await reader.readexactly(frames.HEADER.unpack(header)[0])


# --- text ---------------------------------------------------------------------------------------


def _describe(who: str, frame: bytes) -> Iterator[str]:
    kind = Kind(frame[4])
    yield f"{kind.name}, {who}, {frames.HEADER_BYTES} + {len(frame) - frames.HEADER_BYTES} bytes"
    names = {"kind": kind.name, "flags": f"ack {Ack(frame[5]).name.lower()}" if kind == Kind.PUBLISH else ""}
    yield from _fields(frame, 0, FRAME_FIELDS, names)
    yield from _body(kind, frame)
    yield ""


def _body(kind: Kind, frame: bytes) -> Iterator[str]:
    start = frames.HEADER_BYTES
    if kind == Kind.PUBLISH:
        yield from _batch(frame, start)
    elif kind == Kind.PUBLISHED:
        yield from _fields(frame, start, PUBLISHED_FIELDS)
    elif kind == Kind.DELIVER:
        yield from _fields(frame, start, DELIVER_FIELDS)
        yield from _batch(frame, start + frames.DELIVERY.size)
    elif len(frame) > start:
        yield f"        {json.dumps(msgspec.msgpack.decode(frame[start:]))}"
        yield from _line(frame, start, len(frame) - start, "the same in MessagePack")


def _batch(frame: bytes, start: int) -> Iterator[str]:
    yield from _fields(frame, start, BATCH_FIELDS, {"magic": '"STB" 1', "attributes": "0: packed rows"})
    row = start + HEADER_BYTES
    yield from _fields(frame, row, ROW_FIELDS)
    _, key_bytes, value_bytes, _ = struct.unpack_from("<qiii", frame, row)
    key = row + struct.calcsize("<qiii")
    yield from _line(frame, key, key_bytes, f"key {frame[key : key + key_bytes].decode()!r}")
    value = key + key_bytes
    yield from _line(frame, value, value_bytes, f"value {frame[value : value + value_bytes].decode()!r}")


def _fields(
    frame: bytes, position: int, fields: tuple[tuple[str, int], ...], names: dict[str, str] | None = None
) -> Iterator[str]:
    for name, size in fields:
        number = int.from_bytes(frame[position : position + size], "little", signed=name.endswith("length"))
        shown: Any = (names or {}).get(name) or (f"{number:#x}" if name in IN_HEX else number)
        yield from _line(frame, position, size, f"{name} {shown}")
        position += size


def _line(frame: bytes, position: int, size: int, meaning: str) -> Iterator[str]:
    """Lines of sixteen bytes; what they mean stands beside the first."""
    for start in range(position, position + size, LINE_BYTES):
        part = frame[start : min(start + LINE_BYTES, position + size)]
        text = meaning if start == position else ""
        yield f"  {start:04x}  {part.hex(' '):<{3 * LINE_BYTES - 1}}  {text}".rstrip()


if __name__ == "__main__":
    print(record(), end="")
