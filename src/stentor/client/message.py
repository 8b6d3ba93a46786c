"""Messages as applications see them, and how a delivery becomes a list of them.

A Message holds what nearly everyone reads (key, value, offset) and points to its block for the rest,
so that a million of them cost little. Two decoders feed it: columns of a batch for ordinary
batches, and one tight loop for runs of one-message batches, which quiet topics are made of.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
from crc32c import crc32c

from stentor.wire import batch as wire_batch
from stentor.wire.header import CHECKED_FROM, HEADER_BYTES, MAGIC, check_header
from stentor.wire.rows import ROW, Headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stentor.wire.header import BatchHeader

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Block(msgspec.Struct, frozen=True, gc=False):
    """What the messages of one batch share."""

    topic: str
    partition: int
    base_offset: int
    timestamps: Sequence[int] | int
    headers: list[Headers | None] | None


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


# One header and one packed row, only the fields that a one-message batch needs.
_SINGLE: Final = struct.Struct("<4sIII12xIQ4xI48xqiii")
_SINGLE_BYTES: Final = HEADER_BYTES + ROW.size
_RUN_BYTES: Final = 64 * 1024  # runs are decoded in pieces that fit a cache
assert _SINGLE.size == _SINGLE_BYTES


def decode_messages(
    chunk: bytes, topic: str, partition: int, floor: int, ceiling: int | None
) -> Iterator[Iterator[Message]]:
    """The messages of a delivery with floor <= offset < ceiling, one iterator per batch or run.

    Messages are made one by one as they are asked for, so that they live and die in the cache.
    CorruptData where a checksum fails.
    """
    position, end = 0, len(chunk)
    while position < end:
        found: list[Message] = []
        position = _decode_singles(chunk, position, topic, partition, found)
        if found:
            yield iter(_trim(found, floor, ceiling))
        if position < end:
            header = check_header(chunk, position)
            yield _decode_one(chunk, position, header, topic, partition, floor, ceiling)
            position += header.length


def _trim(found: list[Message], floor: int, ceiling: int | None) -> list[Message]:
    if found[0].offset >= floor and (ceiling is None or found[-1].offset < ceiling):
        return found
    return [m for m in found if m.offset >= floor and (ceiling is None or m.offset < ceiling)]


def _decode_singles(chunk: bytes, position: int, topic: str, partition: int, found: list[Message]) -> int:
    """Decode a run of one-message batches without headers; return where it ends."""
    view = memoryview(chunk)
    unpack, append, block_of, message_of = _SINGLE.unpack_from, found.append, Block, Message
    end = min(len(chunk) - _SINGLE_BYTES, position + _RUN_BYTES)
    while position <= end:
        magic, length, header_sum, body_sum, count, offset, attributes, timestamp, key, value, extra = unpack(
            chunk, position
        )
        if count != 1 or attributes or extra != -1 or magic != MAGIC:
            break
        body = position + HEADER_BYTES
        key_at = position + _SINGLE_BYTES
        position_next = position + length
        value_at = key_at + (max(0, key))
        if (
            value_at + (max(0, value)) != position_next
            or crc32c(view[body:position_next]) != body_sum
            or crc32c(view[position + CHECKED_FROM : body]) != header_sum
        ):
            break  # the careful decoder will say what is wrong
        append(
            message_of(
                chunk[key_at:value_at] if key >= 0 else None,
                chunk[value_at:position_next] if value >= 0 else None,
                offset,
                block_of(topic, partition, offset, timestamp, None),
            )
        )
        position = position_next
    return position


def _decode_one(
    chunk: bytes, position: int, header: BatchHeader, topic: str, partition: int, floor: int, ceiling: int | None
) -> Iterator[Message]:
    timestamps, keys, values, headers = wire_batch.columns(chunk, position, header)
    base, count = header.base_offset, header.count
    block = Block(topic, partition, base, timestamps, headers)
    messages = map(Message, keys, values, range(base, base + count), repeat(block))
    skip = max(0, floor - base)
    stop = count if ceiling is None else max(0, min(count, ceiling - base))
    return messages if not skip and stop == count else islice(messages, skip, max(skip, stop))


def record_batches(chunk: bytes, topic: str, partition: int, floor: int, ceiling: int | None) -> Iterator[Any]:
    """The same as Arrow record batches with topic, partition and offset columns in front."""
    from stentor.client.tables import with_position

    position = 0
    while position < len(chunk):
        header = check_header(chunk, position)
        found = wire_batch.record_batch(chunk, position, header)
        position += header.length
        skip = max(0, floor - header.base_offset)
        stop = header.count if ceiling is None else min(header.count, ceiling - header.base_offset)
        if stop > skip:
            yield with_position(found.slice(skip, stop - skip), topic, partition, header.base_offset + skip)
