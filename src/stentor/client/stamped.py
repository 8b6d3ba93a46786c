"""Arrow batches with the time at which each message was appended to its log: by the clock of the partition's head.

Unlike a message's own time it never depends on producers' clocks. It stands in the header of a batch and is the same
for all messages of the batch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stentor.client.decode import offset_batches
from stentor.wire.header import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

APPENDED_AT: Final = "appended_at"
_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADER: Final = struct.Struct(excerpt("length", "base_offset", "appended_at_us", "span"))


def stamped_batches(
    chunk: bytes, topic: str, partition: int, floor: int, ceiling: int | None, position: int = 0
) -> Iterator[tuple[Any, Any]]:
    """What `offset_batches` finds, with the column `appended_at` behind the others."""
    times = _Times(chunk, position)
    for first, found in offset_batches(chunk, topic, partition, floor, ceiling, position):
        yield first, found.append_column(APPENDED_AT, times.of(first, found.num_rows))


class _Times:
    """Walks the headers along with the decoder, which has checked them; it may join several batches."""

    def __init__(self, chunk: bytes, position: int) -> None:
        self._chunk = chunk
        self._position = position
        self._end = 0  # the offset behind the batch at hand
        self._at_us = 0

    def of(self, first: Any, count: int) -> Any:
        """One column for consecutive offsets, or for those of one batch."""
        parts = []
        if not isinstance(first, int):
            self.of(first[0].as_py(), 1)
            return pa.repeat(pa.scalar(self._at_us, _TIME), count)
        offset, end = first, first + count
        while offset < end:
            while self._end <= offset:
                self._next()
            rows = min(end, self._end) - offset
            parts.append((self._at_us, rows))
            offset += rows
        if len(parts) == 1:
            return pa.repeat(pa.scalar(self._at_us, _TIME), count)
        return pa.array([at_us for at_us, rows in parts for _ in range(rows)], pa.int64()).cast(_TIME)

    def _next(self) -> None:
        length, base, self._at_us, span = _HEADER.unpack_from(self._chunk, self._position)
        self._position += length
        self._end = base + span
