"""Batches with some of their rows: what a filter sends of a batch, and what a compaction leaves of several.

    keep    one batch, fewer rows; whose batch it is and which offsets it covers stay as they were
    merge   the rows that are left of batches next to each other, as one batch that covers all their offsets

What comes out has an offset for every row (`wire.deltas`) and checksums of its own. It is stamped: nothing is left for
the head to fill in.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from crc32c import crc32c

from stentor import limits
from stentor.errors import CorruptData, LimitExceeded
from stentor.wire import arrow_message, batch, bodies, deltas
from stentor.wire.arrow_message import COMPRESSIONS
from stentor.wire.header import (
    COMPRESSION_MASK,
    CONDITIONAL,
    CONTROL,
    ENCODING_ARROW,
    ENCODING_MASK,
    HAS_HEADERS,
    HEADER_BYTES,
    REFUSED,
    SCHEMA_MASK,
    SPARSE,
    TIMED,
    BatchHeader,
    excerpt,
    pack,
    pack_sealed,
    unpack,
)
from stentor.wire.pieces import chosen, listed
from stentor.wire.table_rows import TTL

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from stentor.wire.rows import Headers

_EXTENT = Struct(excerpt("length", "count", "attributes", "span"))
_CODED = ENCODING_MASK | COMPRESSION_MASK | HAS_HEADERS
_KEPT_BY_MERGE = COMPRESSION_MASK | SCHEMA_MASK
_ROW_BYTES = 24  # what a row or a header takes beside its key and value: `Rows.size` need not be exact
_TAKEN_FROM = 1_000  # rows: with fewer, one way is as good as the other


class Rows(NamedTuple):
    """Rows of a batch, or of several."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None]

    def extend(self, other: Rows) -> None:
        """Put the rows of a later batch behind these."""
        self.offsets.extend(other.offsets)
        self.timestamps.extend(other.timestamps)
        self.keys.extend(other.keys)
        self.values.extend(other.values)
        self.headers.extend(other.headers)

    def chosen(self, wanted: Sequence[bool]) -> Rows:
        """Those rows alone."""
        return Rows(
            chosen(self.offsets, wanted),
            chosen(self.timestamps, wanted),
            chosen(self.keys, wanted),
            chosen(self.values, wanted),
            chosen(self.headers, wanted),
        )

    def size(self) -> int:
        """Return about how many bytes these rows take, encoded and not compressed."""
        size = sum(len(key or b"") + len(value or b"") for key, value in zip(self.keys, self.values, strict=True))
        named = sum(_ROW_BYTES + len(name) + len(value or b"") for pairs in self.headers for name, value in pairs or ())
        return size + named + _ROW_BYTES * len(self.offsets)


def nothing() -> Rows:
    """No rows yet."""
    return Rows([], [], [], [], [])


def rows_of(header: BatchHeader, body: bytes | memoryview) -> Rows:
    """The rows of a batch whose checksums hold. One that readers pass over has none for them."""
    if header.passed_over:
        return nothing()
    offsets = listed(deltas.offsets(header, body))
    timestamps, keys, values, headers = batch.body_columns(header, body)
    return Rows(offsets, listed(timestamps), keys, values, headers if headers is not None else [None] * len(offsets))


def keep(header: BatchHeader, body: bytes | memoryview, wanted: Container[int]) -> bytes:
    """A batch with those of its rows alone whose indexes are wanted. LimitExceeded if the smaller batch is too large:
    a compressed one whose rows are nearly all wanted may be.
    """
    flags = [index in wanted for index in range(header.count)]
    if all(flags) or header.attributes & CONTROL:
        return bytes(pack(header)) + bytes(body)
    if header.count >= _TAKEN_FROM and header.encoding == ENCODING_ARROW and not header.attributes & HAS_HEADERS:
        return _taken(header, body, flags)
    rows = rows_of(msgspec.structs.replace(header, attributes=header.attributes & ~REFUSED), body).chosen(flags)
    return _encoded(header, rows)


def _taken(header: BatchHeader, body: bytes | memoryview, flags: list[bool]) -> bytes:
    """The same for a large batch without headers: its rows never become Python's. Making them takes a tenth of a
    second in which no other thread runs.
    """
    arrow = bodies.arrow()
    decoded = arrow.decode(deltas.rows(header, memoryview(body)), header.count)
    kept = arrow.taken(decoded, chosen(range(header.count), flags))
    if not kept.num_rows:
        return _encoded(header, nothing())
    return _of_arrow(header, chosen(deltas.of(header, body), flags), kept)


def _of_arrow(like: BatchHeader, deltas_kept: list[int], kept: Any) -> bytes:
    """A batch that covers what `like` covers, with these rows of Arrow's."""
    arrow = bodies.arrow()
    attributes = like.attributes & ~(_CODED | TIMED) | like.attributes & COMPRESSION_MASK | ENCODING_ARROW
    if kept.column(3).null_count != kept.num_rows:
        attributes |= HAS_HEADERS | like.attributes & TIMED  # maybe of a row that is gone: readers look at each
    packed = arrow.encode(kept, COMPRESSIONS[like.compression])
    return _packed(like, attributes, deltas_kept, bytes(packed), arrow.time_range(kept))


def merged_alone(header: BatchHeader, offsets: list[int], kept: Any) -> bytes:
    """Some rows of one batch, which are Arrow's, as `merge` would have them. Python's rows of a large batch would stop
    all other threads for as long as they take to make. LimitExceeded if no batch can hold them.
    """
    like = _nobodys(header, header.base_offset, header.end_offset, header.appended_at_us)
    like = msgspec.structs.replace(like, attributes=like.attributes | header.attributes & TIMED)
    return _of_arrow(like, [offset - header.base_offset for offset in offsets], kept)


def merge(like: BatchHeader, base: int, end: int, rows: Rows, appended_at_us: int) -> bytes:
    """One batch instead of all from `base` to `end`, of one epoch, and those with rows of one compression and schema:
    those of `like`. Nobody's resend is recognised by it, so what is known of producers must have been written down.
    """
    return _encoded(_nobodys(like, base, end, appended_at_us), rows)


def _nobodys(like: BatchHeader, base: int, end: int, appended_at_us: int) -> BatchHeader:
    """The header of a batch of no producer, which covers these offsets; its rows are still to be counted."""
    return msgspec.structs.replace(
        like,
        base_offset=base,
        span=end - base,
        attributes=like.attributes & _KEPT_BY_MERGE,
        first_timestamp_us=0,
        last_timestamp_us=0,
        appended_at_us=appended_at_us,
        producer_id=0,
        generation=0,
        sequence=0,
    )


def control(kind: int, body: bytes, *, topic_id: int, partition: int, value: int = 0) -> bytearray:
    """A batch for brokers, of a kind, with a number and a body; its head stamps it."""
    return pack_sealed(
        HEADER_BYTES + len(body), crc32c(body), topic_id, partition, 0, 0, 0, CONTROL, 0, 0, 0, 0, kind, 1, value
    ) + bytearray(body)


def behind(header: BatchHeader, body: bytes | memoryview, offset: int) -> bytes:
    """What a batch holds from an offset inside of it on, as a batch that begins there."""
    rows = rows_of(header, body)
    wanted = rows.chosen([each >= offset for each in rows.offsets])
    return merge(header, offset, header.end_offset, wanted, header.appended_at_us)


def are_alike(one: BatchHeader, other: BatchHeader) -> bool:
    """Whether rows of both may be in one batch."""
    return one.epoch == other.epoch and not (one.attributes ^ other.attributes) & _KEPT_BY_MERGE


def removed(chunks: Iterable[bytes], floor: int, ceiling: int | None = None) -> int:
    """How many offsets from `floor` on, and before `ceiling`, stored batches cover without a message: what a compaction
    has removed, and what nobody is shown beside it (refused changes, control batches) where it was merged with that.
    """
    found = 0
    for chunk in chunks:
        position, end = 0, len(chunk)
        while position < end:
            length, count, attributes, span = _EXTENT.unpack_from(chunk, position)
            if attributes & SPARSE and span > count:
                found += lacking(unpack(chunk, position), chunk, position, floor, ceiling)
            position += length
    return found


def lacking(header: BatchHeader, chunk: bytes, position: int, floor: int, ceiling: int | None = None) -> int:
    """How many offsets of one batch in that range have no message."""
    first = max(header.base_offset, floor)
    end = header.end_offset if ceiling is None else min(header.end_offset, ceiling)
    if first >= end:
        return 0
    if end - first == header.span:
        return header.span - header.count
    try:
        offsets = deltas.offsets(header, memoryview(chunk)[position + HEADER_BYTES : position + header.length])
    except CorruptData:  # whoever reads the batch finds the damage
        return end - first
    return end - first - (bisect_left(offsets, end) - bisect_left(offsets, first))


def _encoded(like: BatchHeader, rows: Rows) -> bytes:
    """A batch that covers what `like` covers, with these rows."""
    count = len(rows.offsets)
    attributes = like.attributes & ~(_CODED | SPARSE | TIMED)
    body, first_us, last_us = b"", like.first_timestamp_us, like.last_timestamp_us
    if count:
        headers = rows.headers if any(named is not None for named in rows.headers) else None
        encoded = batch.encode(
            rows.timestamps, rows.keys, rows.values, headers, compression=COMPRESSIONS[like.compression]
        )
        body, attributes = bytes(encoded.body), attributes | encoded.attributes
        if any(name == TTL for named in headers or () for name, _ in named or ()):
            attributes |= TIMED  # what is left of several batches may have it from any of them
        first_us, last_us = encoded.first_timestamp_us, encoded.last_timestamp_us
    else:
        attributes &= ~CONDITIONAL
    return _packed(like, attributes, [offset - like.base_offset for offset in rows.offsets], body, (first_us, last_us))


def _packed(like: BatchHeader, attributes: int, offsets: list[int], body: bytes, times: tuple[int, int]) -> bytes:
    """A batch that covers what `like` covers, with rows that are encoded; their offsets are relative to its first."""
    count = len(offsets)
    if attributes & COMPRESSION_MASK:
        _check_readable(body, count)
    if count != like.span:
        attributes |= SPARSE
        body = deltas.pack(offsets) + body
    if HEADER_BYTES + len(body) > limits.BATCH_BYTES_MAX:
        raise LimitExceeded(f"A batch of {count} rows takes {HEADER_BYTES + len(body)} bytes.")
    header = msgspec.structs.replace(
        like,
        length=HEADER_BYTES + len(body),
        body_checksum=crc32c(body),
        count=count,
        attributes=attributes,
        first_timestamp_us=times[0],
        last_timestamp_us=times[1],
    )
    return bytes(pack(header)) + body


def _check_readable(body: bytes, count: int) -> None:
    """Raise LimitExceeded if readers would refuse a compressed body: it is small, and what it expands to is not."""
    try:
        arrow_message.guard(memoryview(body), count)
    except CorruptData as error:
        raise LimitExceeded(f"A batch of {count} rows takes too much room. {error.message}") from error
