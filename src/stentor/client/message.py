"""Messages as applications see them.

A Message holds what nearly everyone reads (key, value, offset) and points to its block for the rest,
so that a million of them cost little.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.client.position import Position
from stentor.wire.rows import Headers

if TYPE_CHECKING:
    from collections.abc import Sequence


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Block(msgspec.Struct, frozen=True, gc=False):
    """What the messages of one batch share. Times and headers are by offset, counted from the first; a batch that lost
    messages has them in a dictionary.
    """

    topic: str
    partition: int
    base_offset: int
    timestamps: Sequence[int] | dict[int, int] | int
    headers: list[Headers | None] | dict[int, Headers | None] | None
    topic_id: int = 0


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a topic."""

    key: bytes | None
    value: bytes | None
    offset: int
    _block: Block

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self._block.topic

    @property
    def partition(self) -> int:
        """The partition of the topic that it is in."""
        return self._block.partition

    @property
    def timestamp_us(self) -> int:
        """When it was published, in microseconds since 1970, UTC."""
        timestamps = self._block.timestamps
        return timestamps if isinstance(timestamps, int) else timestamps[self.offset - self._block.base_offset]

    @property
    def timestamp(self) -> datetime:
        """When it was published."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    @property
    def headers(self) -> Headers:
        """Its headers, in order; a key may repeat."""
        headers = self._block.headers
        return [] if headers is None else headers[self.offset - self._block.base_offset] or []

    @property
    def position(self) -> Position:
        """The place behind it, from which to read on: `str()` of it can be stored, `start=` takes either."""
        block = self._block
        return Position(block.topic, block.partition, self.offset + 1, block.topic_id or None)

    def __repr__(self) -> str:
        return f"Message({self.topic}/{self.partition}@{self.offset} key={_short(self.key)} value={_short(self.value)})"


def _short(value: bytes | None) -> str:
    if value is None:
        return "None"
    return repr(value) if len(value) <= 40 else f"{value[:40]!r}…({len(value)} bytes)"


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a published message is."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int

    @property
    def timestamp(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.timestamp_us)
