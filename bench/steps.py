"""Where the time of a message goes: the cost of each step, alone, in one thread.

`python -m bench.steps` prints nanoseconds per message for batches of 1,000 messages of 100 bytes and, where it
differs, for one-message batches. The best of several repetitions is shown: the steps' own cost, without
waiting, thread switches or the kernel's share. It explains the end-to-end figures; it does not replace them.
"""

from __future__ import annotations

import os
import tempfile
import timeit
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from stentor.client.decode import decode_messages, offset_batches
from stentor.storage import LogSettings, PartitionLog
from stentor.storage.scan import verify_batches
from stentor.wire import arrow_body, batch, header

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 1_000
SIZE = 100
REPETITIONS = 7
TOPIC_ID = 1


def main() -> None:
    table = Table("step", "batch", "ns per message", title=f"{SIZE}-byte messages with 8-byte keys")
    values = [os.urandom(SIZE) for _ in range(COUNT)]
    keys = [b"%08d" % number for number in range(COUNT)]
    large, small = _chunk([keys], [values]), _chunk([[key] for key in keys], [[value] for value in values])
    with tempfile.TemporaryDirectory(dir=".") as directory:
        for step, size, work in _steps(keys, values, large, small, Path(directory)):
            table.add_row(step, str(size), f"{_cost_ns(work):,.0f}")
    Console().print(table)


def _chunk(keys: list[list[bytes]], values: list[list[bytes]]) -> bytes:
    """Stamped batches, one after the other."""
    parts, offset = [], 0
    for sequence, (some_keys, some_values) in enumerate(zip(keys, values, strict=True)):
        encoded = batch.encode_at(1_700_000_000_000_000, some_keys, some_values)
        head = batch.address(encoded, topic_id=TOPIC_ID, partition=0, producer_id=1, generation=0, sequence=sequence)
        header.stamp(memoryview(head), 0, base_offset=offset, epoch=1, appended_at_us=1)
        parts.append(bytes(head) + bytes(encoded.body))
        offset += encoded.count
    return b"".join(parts)


def _steps(
    keys: list[bytes], values: list[bytes], large: bytes, small: bytes, directory: Path
) -> list[tuple[str, int, Callable[[], Any]]]:
    head = header.check_header(large)
    body = memoryview(large)[header.HEADER_BYTES :]
    arrow = arrow_body.decode(body, COUNT)
    marks = TOPIC_ID.to_bytes(8, "little") + bytes(4)
    return [
        ("producer: values and keys to Arrow", COUNT, lambda: [pa.array(x, pa.binary()) for x in (values, keys)]),
        ("producer: whole encoding, with checksum", COUNT, lambda: batch.encode_at(1, keys, values)),
        ("broker: validate", COUNT, lambda: batch.validate(large, head)),
        ("broker: append, in the page cache", COUNT, _appender(large, directory)),
        ("broker: verify history", 1, lambda: verify_batches(memoryview(small), 0, COUNT, marks)),
        ("consumer: check and read Arrow", COUNT, lambda: arrow_body.decode(body, COUNT)),
        (
            "consumer: keys and values to Python",
            COUNT,
            lambda: [arrow.column(1).to_pylist(), arrow.column(2).to_pylist()],
        ),
        ("consumer: whole decoding to messages", COUNT, lambda: _decode(large)),
        ("consumer: whole decoding to messages", 1, lambda: _decode(small)),
        ("consumer: whole decoding to Arrow", COUNT, lambda: deque(offset_batches(large, "t", 0, 0, None), maxlen=0)),
        ("consumer: whole decoding to Arrow", 1, lambda: deque(offset_batches(small, "t", 0, 0, None), maxlen=0)),
    ]


def _decode(chunk: bytes) -> None:
    for run in decode_messages(chunk, "t", 0, 0, None):
        deque(run.messages, maxlen=0)


def _appender(chunk: bytes, directory: Path) -> Callable[[], None]:
    log = PartitionLog.open(directory / "log", topic_id=TOPIC_ID, partition=0, log_id=1, settings=LogSettings())
    buffer = bytearray(chunk)

    def append() -> None:
        header.stamp(memoryview(buffer), 0, base_offset=log.end, epoch=1, appended_at_us=1)
        data = bytes(buffer)
        log.append(data, (header.unpack(data),))

    return append


def _cost_ns(work: Callable[[], Any]) -> float:
    number = 20
    return min(timeit.repeat(work, number=number, repeat=REPETITIONS)) / number / COUNT * 1e9


if __name__ == "__main__":
    main()
