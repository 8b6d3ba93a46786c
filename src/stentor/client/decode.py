"""How a delivery becomes messages or Arrow.

Ordinary batches are decoded column by column. Quiet topics are made of one-message batches, where
the fixed costs of a batch are paid for every message; those are decoded in *runs*:

    a run of equal lengths      one `iter_unpack` over all of them, checksums by `map`: all in C
    any other one-message batch one tight loop; another for those with headers
    everything else             the general decoder, which also says exactly what is wrong

For Arrow, small batches of any number of messages are decoded in runs by `wire.runs`.
Every path checks the body's and the header's checksum of every batch. Messages of a batch are made
one by one as they are asked for, so that they live and die in the processor's cache.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from functools import lru_cache
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from stentor.client.handed import HandedRun
from stentor.client.message import Block, Message
from stentor.errors import CorruptData
from stentor.wire import arrow_message, bodies, deltas, plain_body
from stentor.wire import batch as wire_batch
from stentor.wire.header import (
    CHECKED_FROM,
    ENCODING_ARROW,
    ENCODING_ROWS,
    HAS_HEADERS,
    HEADER_BYTES,
    MAGIC,
    SPARSE,
    check_body,
    check_header,
    excerpt,
    topic_id_of,
)
from stentor.wire.rows import ROW, decode_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stentor.wire.header import BatchHeader
    from stentor.wire.rows import Headers

# One header and one packed row, only the fields that a one-message batch needs. Of the row: timestamp, length of key,
# value and headers.
_SINGLE_FORMAT: Final = (
    excerpt("magic", "header_checksum", "length", "body_checksum", "count", "base_offset", "attributes") + "qiii"
)
_SINGLE: Final = struct.Struct(_SINGLE_FORMAT)
_SINGLE_BYTES: Final = HEADER_BYTES + ROW.size
assert _SINGLE.size == _SINGLE_BYTES

_RUN_MAX: Final = 256  # messages decoded at once: what fits the processor's cache
_RUN_MIN: Final = 8  # below this a run costs more than it saves


def position_of(chunk: bytes, position: int, floor: int) -> int:
    """Where the batch begins that holds an offset, or is the last before it; looked for from a batch before it on."""
    header = check_header(chunk, position)
    while header.base_offset < floor and position + header.length < len(chunk):
        following = check_header(chunk, position + header.length)
        if following.base_offset > floor:
            break
        position, header = position + header.length, following
    return position


def decode_messages(
    chunk: bytes, topic: str, partition: int, floor: int, ceiling: int | None, position: int = 0
) -> Iterator[HandedRun]:
    """The messages of a delivery with floor <= offset < ceiling, in one run per batch or for several.

    CorruptData where a checksum fails.
    """
    end = len(chunk)
    while position < end:
        found, position = _decode_singles(chunk, position, topic, partition)
        if found:
            wanted = _trim(found, floor, ceiling)
            if wanted:
                messages = iter(wanted)
                yield HandedRun(messages, wanted, messages)
        elif position < end:
            header = check_header(chunk, position)
            if header.attributes & SPARSE:
                yield from _decode_sparse(chunk, position, header, topic, partition, floor, ceiling)
            elif not header.passed_over:
                yield _decode_one(chunk, position, header, topic, partition, floor, ceiling)
            position += header.length


class PlainRows(NamedTuple):
    """Rows of a table that set keys, and nothing else: no deletions, no headers."""

    keys: list[bytes]
    values: list[bytes]
    offsets: Sequence[int]


def decode_rows(chunk: bytes, topic: str, partition: int, floor: int) -> Iterator[PlainRows | list[Message]]:
    """The rows of a table from an offset on: plain ones by columns, all others as messages.

    A copy keeps keys and values, and nothing else of a message. Where it can, it takes them as they are decoded.
    """
    position, end = 0, len(chunk)
    while position < end:
        found, position = _decode_singles(chunk, position, topic, partition)
        if found:
            yield _trim(found, floor, None)
        elif position < end:
            header = check_header(chunk, position)
            plain = _plain_rows(chunk, position, header) if header.base_offset >= floor else None
            if plain is not None:
                yield plain
            elif header.attributes & SPARSE:
                for run in _decode_sparse(chunk, position, header, topic, partition, floor, None):
                    yield list(run.messages)
            elif not header.passed_over:
                yield list(_decode_one(chunk, position, header, topic, partition, floor, None).messages)
            position += header.length


def _plain_rows(chunk: bytes, position: int, header: BatchHeader) -> PlainRows | None:
    if header.attributes & ~SPARSE != ENCODING_ARROW:
        return None
    check_body(chunk, position, header)
    body = memoryview(chunk)[position + HEADER_BYTES : position + header.length]
    rows = deltas.rows(header, body)
    found = plain_body.plain_columns(rows, arrow_message.read(rows, header.count))
    return None if found is None else PlainRows(*found, deltas.offsets(header, body))


def _trim(found: list[Message], floor: int, ceiling: int | None) -> list[Message]:
    if found[0].offset >= floor and (ceiling is None or found[-1].offset < ceiling):
        return found
    return [m for m in found if m.offset >= floor and (ceiling is None or m.offset < ceiling)]


def _decode_singles(chunk: bytes, position: int, topic: str, partition: int) -> tuple[list[Message], int]:
    """Decode one-message batches, as many as one block takes: (messages, position)."""
    if len(chunk) - position < _SINGLE_BYTES:
        return [], position
    _, _, length, _, count, _, attributes, _, key, value, extra = _SINGLE.unpack_from(chunk, position)
    if count != 1 or attributes or extra != -1 or length != _SINGLE_BYTES + max(key, 0) + max(value, 0):
        if count == 1 and attributes == HAS_HEADERS:
            return _decode_loop_with_headers(chunk, position, topic, partition)
        return [], position
    alike = min(_RUN_MAX, (len(chunk) - position) // length)
    if key >= 0 and value >= 0 and alike >= _RUN_MIN and _continues(chunk, position, length):
        found = _decode_run(chunk[position : position + alike * length], length, key, value, topic, partition)
        if found:
            return found, position + len(found) * length
    return _decode_loop(chunk, position, topic, partition)


def _continues(chunk: bytes, position: int, length: int) -> bool:
    """Whether the next two records have this length and the next offsets: then more may have, too."""
    first = _SINGLE.unpack_from(chunk, position)[5]
    for step in (1, 2):
        found = _SINGLE.unpack_from(chunk, position + step * length)
        if found[2] != length or found[5] != first + step:
            return False
    return True


@lru_cache(maxsize=256)
def _run_layouts(key: int, value: int) -> tuple[struct.Struct, struct.Struct]:
    """Two views of one record: its fields, and the two ranges that checksums cover."""
    body = ROW.size + key + value
    return (
        struct.Struct(f"{_SINGLE_FORMAT}{key}s{value}s"),
        struct.Struct(f"<{CHECKED_FROM}x{HEADER_BYTES - CHECKED_FROM}s{body}s"),
    )


def _decode_run(run: bytes, length: int, key: int, value: int, topic: str, partition: int) -> list[Message]:
    """Decode records of one length; as many from the front as are what they seem, possibly none."""
    fields, checked = _run_layouts(key, value)
    columns = list(zip(*fields.iter_unpack(run), strict=True))
    magics, header_sums, lengths, body_sums, counts, offsets, attributes, times, keys, values, extras = columns[:11]
    size = len(magics)
    expected = (
        (magics, MAGIC),
        (lengths, length),
        (counts, 1),
        (attributes, 0),
        (keys, key),
        (values, value),
        (extras, -1),
    )
    heads, bodies = zip(*checked.iter_unpack(run), strict=True)
    alike = (
        all(column.count(wanted) == size for column, wanted in expected)
        and offsets == tuple(range(offsets[0], offsets[0] + size))
        and tuple(map(crc32c, bodies)) == body_sums
        and tuple(map(crc32c, heads)) == header_sums
    )
    if not alike:
        return []
    block = Block(topic, partition, offsets[0], times, None, topic_id_of(run, 0))
    return list(map(Message, columns[11], columns[12], offsets, repeat(block)))


def _decode_loop(chunk: bytes, position: int, topic: str, partition: int) -> tuple[list[Message], int]:
    """The same for records of different lengths, a block's worth of them."""
    found: list[Message] = []
    times: list[int] = []
    unpack, checksum, message_of = _SINGLE.unpack_from, crc32c, Message
    topic_id = topic_id_of(chunk, position)
    block = Block(topic, partition, _SINGLE.unpack_from(chunk, position)[5], times, None, topic_id)
    expected, end = block.base_offset, len(chunk) - _SINGLE_BYTES
    while position <= end and len(found) < _RUN_MAX:
        magic, header_sum, length, body_sum, count, offset, flags, time, key, value, extra = unpack(chunk, position)
        if count != 1 or flags or extra != -1 or magic != MAGIC:
            break
        if offset != expected:  # a compaction left a gap: another block
            times = []
            block = Block(topic, partition, offset, times, None, topic_id)
            expected = offset
        body = chunk[position + HEADER_BYTES : position + length]
        value_at = ROW.size + (max(0, key))
        if (
            value_at + (max(0, value)) != len(body)
            or checksum(body) != body_sum
            or checksum(chunk[position + CHECKED_FROM : position + HEADER_BYTES]) != header_sum
        ):
            break  # the general decoder will say what is wrong
        times.append(time)
        found.append(
            message_of(
                body[ROW.size : value_at] if key >= 0 else None,
                body[value_at:] if value >= 0 else None,
                offset,
                block,
            )
        )
        expected += 1
        position += length
    return found, position


def _decode_loop_with_headers(chunk: bytes, position: int, topic: str, partition: int) -> tuple[list[Message], int]:
    """The same for records of which some have headers, up to the first whose offset does not follow."""
    found: list[Message] = []
    times: list[int] = []
    headers: list[Headers | None] = []
    unpack, checksum, message_of = _SINGLE.unpack_from, crc32c, Message
    block = Block(topic, partition, unpack(chunk, position)[5], times, headers, topic_id_of(chunk, position))
    expected, end = block.base_offset, len(chunk) - _SINGLE_BYTES
    while position <= end and len(found) < _RUN_MAX:
        magic, header_sum, length, body_sum, count, offset, flags, time, key, value, extra = unpack(chunk, position)
        if count != 1 or flags & ~HAS_HEADERS or magic != MAGIC or offset != expected or min(key, value, extra) < -1:
            break
        body = chunk[position + HEADER_BYTES : position + length]
        value_at = ROW.size + (max(0, key))
        headers_at = value_at + (max(0, value))
        if (
            headers_at + (max(0, extra)) != len(body)
            or checksum(body) != body_sum
            or checksum(chunk[position + CHECKED_FROM : position + HEADER_BYTES]) != header_sum
        ):
            break  # the general decoder will say what is wrong
        try:
            packed = decode_headers(body[headers_at:]) if extra >= 0 else None
        except CorruptData:
            break
        headers.append(packed)
        times.append(time)
        found.append(
            message_of(
                body[ROW.size : value_at] if key >= 0 else None,
                body[value_at:headers_at] if value >= 0 else None,
                offset,
                block,
            )
        )
        expected += 1
        position += length
    return found, position


def _decode_one(
    chunk: bytes, position: int, header: BatchHeader, topic: str, partition: int, floor: int, ceiling: int | None
) -> HandedRun:
    timestamps, keys, values, headers = wire_batch.columns(chunk, position, header)
    base, count = header.base_offset, header.count
    block = Block(topic, partition, base, timestamps, headers, header.topic_id)
    offsets = range(base, base + count)
    left = iter(offsets)
    messages: Iterator[Message] = map(Message, keys, values, left, repeat(block))
    skip = max(0, floor - base)
    stop = count if ceiling is None else max(0, min(count, ceiling - base))
    if skip or stop != count:
        messages = islice(messages, skip, max(skip, stop))
    return HandedRun(messages, offsets, left)


def _decode_sparse(
    chunk: bytes, position: int, header: BatchHeader, topic: str, partition: int, floor: int, ceiling: int | None
) -> Iterator[HandedRun]:
    """The messages of a batch that lost some: their offsets do not follow each other."""
    if header.passed_over:
        return
    timestamps, keys, values, headers = wire_batch.columns(chunk, position, header)
    found = deltas.of(header, memoryview(chunk)[position + HEADER_BYTES : position + header.length])
    times, named = dict(zip(found, timestamps, strict=True)), dict(zip(found, headers or (), strict=False))
    block = Block(topic, partition, header.base_offset, times, named if headers else None, header.topic_id)
    offsets = [header.base_offset + delta for delta in found]
    messages = list(map(Message, keys, values, offsets, repeat(block)))
    wanted = _trim(messages, floor, ceiling)
    if wanted:
        left = iter(wanted)
        yield HandedRun(left, wanted, left)


def offset_batches(
    chunk: bytes,
    topic: str,  # noqa: ARG001 - as its siblings
    partition: int,  # noqa: ARG001 - the same
    floor: int,
    ceiling: int | None,
    position: int = 0,
) -> Iterator[tuple[Any, Any]]:
    """The same as Arrow record batches, each with the offset of its first message; the others follow one by one. Those
    of a batch that lost messages need not: then there is an Arrow array of them instead.

    Batches come as they were stored, but runs of packed rows are joined.
    """
    bodies.arrow("Arrow")
    from stentor.wire import runs

    end, alone_before = len(chunk), 0
    while position < end:
        header = check_header(chunk, position)
        if header.passed_over or header.attributes & SPARSE:
            if not header.passed_over:
                yield from _sparse_rows(chunk, position, header, floor, ceiling)
            position += header.length
            continue
        first, run = header.base_offset, None
        if header.encoding == ENCODING_ROWS and alone_before <= position < end - header.length:
            run = runs.find(chunk, position)
        if run is None:
            found = wire_batch.record_batch(chunk, position, header)
            position += header.length
        else:
            try:
                found = runs.record_batch(chunk, run)
            except CorruptData:  # batch by batch then: those before the damage are sound, and the error names one
                alone_before = run.position
                continue
            position = run.position
        rows = found.num_rows
        skip = max(0, floor - first)
        stop = rows if ceiling is None else min(rows, ceiling - first)
        if not skip and stop == rows:
            yield first, found
        elif stop > skip:
            yield first + skip, found.slice(skip, stop - skip)


def _sparse_rows(
    chunk: bytes, position: int, header: BatchHeader, floor: int, ceiling: int | None
) -> Iterator[tuple[Any, Any]]:
    """The rows of a batch that lost some, with their offsets."""
    found = wire_batch.record_batch(chunk, position, header)
    offsets = deltas.offsets(header, memoryview(chunk)[position + HEADER_BYTES : position + header.length])
    skip = bisect_left(offsets, floor)
    stop = len(offsets) if ceiling is None else bisect_left(offsets, ceiling)
    if stop > skip:
        rows = found.slice(skip, stop - skip)
        offsets = offsets[skip:stop]
        follow = offsets[-1] - offsets[0] == len(offsets) - 1
        yield (offsets[0] if follow else bodies.arrow().offset_array(offsets)), rows
