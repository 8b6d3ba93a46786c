"""Runs of packed-row batches as Arrow columns: many small batches become one record batch.

A quiet topic is made of one-message batches, and a record batch for each of them costs 20 µs. Here Python walks from
batch to batch and checks their checksums (`wire.singles` those of many one-message batches at once); Arrow does the
rest, without an object per value:

    chunk   ├ header ┼ row ├ header ┼ row ┼ row ├ header ┼ row ┤ …
    starts           ▲              ▲     ▲              ▲        where each row begins
    ends                   ▲              ▲     ▲              ▲  where it ends

A field at the same place of every row is a `binary_slice` of the array whose elements begin at `starts`. What has a
length of its own comes from an array whose elements are, in turn, what is wanted and what lies between.

A run holds only batches whose header and body pass their checksums, and whose offsets follow each other. Rows that are
not what they claim to be are CorruptData for the run as a whole: decode its batches one by one to learn which.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stentor import limits
from stentor.errors import CorruptData
from stentor.wire import arrow_body, rows, singles
from stentor.wire.header import CHECKED_FROM, HAS_HEADERS, HEADER_BYTES, MAGIC, OFFSET_MAX
from stentor.wire.rows import ROW
from stentor.wire.singles import SINGLES_MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.wire.rows import Headers
    from stentor.wire.singles import Fields

# What the walk needs of a header: magic, header checksum, length, body checksum, count, offset, attributes.
_WALK: Final = struct.Struct("<4sIII12xIQ4xI")
_ROW_BATCH_BYTES_MIN: Final = HEADER_BYTES + ROW.size
_LENGTHS_AT: Final = 8  # in a row: of key, value and headers, behind the timestamp
_COUNT_BYTES: Final = 4  # in front of a row's headers
_PAIR_BYTES: Final = 8  # in front of each header: the lengths of its key and value

_NOTHING: Final = pa.scalar(0, pa.int32())
_TIME: Final = arrow_body.SCHEMA.field(0).type
_STEP: Final = SINGLES_MIN  # batches that are walked one by one before it is looked whether singles follow
_STEP_ROWS_MAX: Final = _STEP * limits.ROWS_ENCODING_MESSAGES_MAX
# Below this number of rows the calls of Arrow do not pay.
_BULK_ROWS_MIN: Final = 256
_BULK_HEADERS_MAX: Final = 16  # of one message: each costs ten calls more, for all messages together


class Run(msgspec.Struct, frozen=True, gc=False):
    """Whole batches of packed rows, next to each other, that passed their checksums."""

    base_offset: int  # of the first row; the others follow one by one
    starts: array[int]  # where each row begins in the chunk
    ends: array[int]  # where each row ends
    position: int  # behind the last batch
    fields: Fields | None = None  # the fixed part of each row, if it was taken out already


def find(chunk: bytes, position: int) -> Run | None:
    """The run that begins at `position`; None where no sound batch of packed rows does."""
    stop = min(len(chunk), position + limits.RUN_BYTES_MAX)
    if stop - position < _ROW_BATCH_BYTES_MIN:
        return None
    _, _, length, _, count, base, attributes = _WALK.unpack_from(chunk, position)
    if attributes & ~HAS_HEADERS or base > OFFSET_MAX - limits.RUN_MESSAGES_MAX:
        return None
    if count == 1 and stop - position >= length * SINGLES_MIN:
        found = singles.find(chunk, position, stop, base)
        if found is not None:
            return Run(base, found.starts, found.ends, found.ends[-1], found.fields)
    starts: list[int] = []
    ends: list[int] = []
    while len(starts) <= limits.RUN_MESSAGES_MAX - _STEP_ROWS_MAX:
        before = len(starts)
        end = _walk(chunk, position, stop, base + before, starts, ends)
        if end == position:
            break
        position = end
        if len(starts) == before + _STEP:  # batches of one message: perhaps many more of them follow
            break
    return Run(base, array("i", starts), array("i", ends), position) if starts else None


def _walk(chunk: bytes, position: int, stop: int, expected: int, starts: list[int], ends: list[int]) -> int:
    """Add the rows of the next sound batches, a few of them; returns the position behind."""
    unpack, checksum, add_start, add_end = _WALK.unpack_from, crc32c, starts.append, ends.append
    for _ in range(_STEP):
        if stop - position < _ROW_BATCH_BYTES_MIN:
            break
        magic, header_sum, length, body_sum, count, offset, attributes = unpack(chunk, position)
        body, end = position + HEADER_BYTES, position + length
        if (
            attributes & ~HAS_HEADERS
            or offset != expected
            or magic != MAGIC
            or length < _ROW_BATCH_BYTES_MIN
            or end > stop
            or checksum(chunk[position + CHECKED_FROM : body]) != header_sum
            or checksum(chunk[body:end]) != body_sum
        ):
            break
        if count == 1:
            add_start(body)
            add_end(end)
        elif not _walk_rows(chunk, body, end, count, starts, ends):
            break
        expected += count
        position = end
    return position


def _walk_rows(chunk: bytes, position: int, end: int, count: int, starts: list[int], ends: list[int]) -> bool:
    """Add the rows of one body; False, and nothing is added, unless they fill it exactly."""
    if not 0 < count <= limits.ROWS_ENCODING_MESSAGES_MAX:
        return False
    found = [position]
    unpack = ROW.unpack_from
    for _ in range(count):
        if end - position < ROW.size:
            return False
        _, key, value, headers = unpack(chunk, position)
        position += ROW.size
        if key > 0:
            position += key
        if value > 0:
            position += value
        if headers > 0:
            position += headers
        found.append(position)
    if position != end:
        return False
    starts += found[:-1]
    ends += found[1:]
    return True


def record_batch(chunk: bytes, run: Run) -> Any:
    """The rows of a run as one Arrow record batch."""
    return (few if len(run.starts) < _BULK_ROWS_MIN else many)(chunk, run)


def many(chunk: bytes, run: Run) -> Any:
    """The same by Arrow alone."""
    data = pa.py_buffer(chunk)
    starts, ends = _int32(run.starts), _int32(run.ends)
    times, *lengths_by_column = _fixed_part(data, starts) if run.fields is None else _taken_out(run.fields)
    places = _add(starts, ROW.size)
    columns = []
    for lengths in lengths_by_column:
        columns.append((places, lengths))
        places = _behind(places, lengths, len(chunk))
    if not places.equals(ends):
        raise CorruptData("The lengths of packed rows do not fit their batches.")
    (key_places, keys), (value_places, values), (header_places, headers) = columns
    return pa.RecordBatch.from_arrays(
        [
            times,
            _pieces(data, key_places, keys),
            _pieces(data, value_places, values),
            _headers(chunk, data, header_places, headers, ends),
        ],
        schema=arrow_body.SCHEMA,
    )


def _fixed_part(data: Any, starts: Any) -> tuple[Any, ...]:
    """Of each row: time, and the lengths of key, value and headers."""
    lengths = (_field(data, starts, _LENGTHS_AT + 4 * index, pa.int32()) for index in range(3))
    return _field(data, starts, 0, _TIME), *lengths


def _taken_out(fields: Fields) -> tuple[Any, ...]:
    """The same, of what was copied out of the chunk before."""
    count = len(fields.keys)
    times = pa.Array.from_buffers(_TIME, count, [None, pa.py_buffer(fields.times)])
    lengths = (fields.keys, fields.values, fields.headers)
    return times, *(pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(each)]) for each in lengths)


def few(chunk: bytes, run: Run) -> Any:
    """The same by way of Python values."""
    times: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Headers | None] = []
    has_headers = False
    for start, end in zip(run.starts, run.ends, strict=True):
        time, key, value, packed = ROW.unpack_from(chunk, start)
        key_at = start + ROW.size
        value_at = key_at + max(0, key)
        headers_at = value_at + max(0, value)
        if min(key, value, packed) < -1 or headers_at + max(packed, 0) != end:
            raise CorruptData("The lengths of packed rows do not fit their batches.")
        times.append(time)
        keys.append(chunk[key_at:value_at] if key >= 0 else None)
        values.append(chunk[value_at:headers_at] if value >= 0 else None)
        headers.append(rows.decode_headers(chunk[headers_at:end]) if packed >= 0 else None)
        has_headers = has_headers or packed >= 0
    return arrow_body.record_batch(times, keys, values, headers if has_headers else None)


# --- columns of numbers and bytes at given places ------------------------------------------------------


def _int32(numbers: Iterable[int]) -> Any:
    packed = numbers if isinstance(numbers, array) else array("i", numbers)
    return pa.Array.from_buffers(pa.int32(), len(packed), [None, pa.py_buffer(packed)])


def _raw(numbers: Any) -> array[int]:
    """The same as Python's array, which assigns to every second or third place in one step."""
    return array("i", bytes(memoryview(numbers.buffers()[1])[: 4 * len(numbers)]))


def _add(numbers: Any, other: Any) -> Any:
    import pyarrow.compute as pc  # heavy, and not needed by every command

    return pc.add(numbers, pa.scalar(other, pa.int32()) if isinstance(other, int) else other)


def _field(data: Any, places: Any, at: int, kind: Any) -> Any:
    """The numbers `at` bytes behind each place; the places ascend, and the last has that many bytes, too."""
    import pyarrow.compute as pc

    width = kind.bit_width // 8
    edges = _raw(places)
    edges.append(data.size)
    elements = pa.Array.from_buffers(pa.binary(), len(places), [None, pa.py_buffer(edges), data])
    found = pc.binary_slice(elements, at, at + width)
    return pa.Array.from_buffers(kind, len(places), [None, found.buffers()[2]])


def _behind(places: Any, lengths: Any, most: int, least: int = -1) -> Any:
    """The places behind what has these lengths; -1 stands for null, which takes no room."""
    import pyarrow.compute as pc

    bounds = pc.min_max(lengths)
    if bounds["min"].as_py() < least or bounds["max"].as_py() > most:
        raise CorruptData("A packed row names an impossible length.")
    return _add(places, lengths if bounds["min"].as_py() >= 0 else pc.max_element_wise(lengths, _NOTHING))


def _pieces(data: Any, places: Any, lengths: Any) -> Any:
    """What is at each place, in these lengths, as binary values; those of length -1 are null."""
    import pyarrow.compute as pc

    count = len(places)
    edges = array("i", bytes(8 * count + 4))
    edges[:-1:2] = _raw(places)
    behind = _add(places, pc.max_element_wise(lengths, _NOTHING))
    edges[1::2] = _raw(behind)
    edges[-1] = edges[-2]
    elements = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), data])
    wanted = _every_second(1 << (count - 1).bit_length()).slice(0, count)
    if pc.min(lengths).as_py() < 0:
        wanted = pc.if_else(pc.equal(lengths, -1), None, wanted)
    return elements.take(wanted)


@lru_cache(maxsize=16)
def _every_second(count: int) -> Any:
    return _int32(range(0, 2 * count, 2))


# --- headers ---------------------------------------------------------------------------------------------


def _headers(chunk: bytes, data: Any, places: Any, lengths: Any, ends: Any) -> Any:
    """The headers column, of what lies between `places` and `ends` where a length is not -1."""
    import pyarrow.compute as pc

    present = pc.not_equal(lengths, -1)
    rows_with = present.true_count
    if not rows_with:
        return pa.nulls(len(lengths), arrow_body.HEADER_TYPE)
    if rows_with < len(lengths):
        places, lengths, ends = places.filter(present), lengths.filter(present), ends.filter(present)
    if pc.min(lengths).as_py() < _COUNT_BYTES:
        raise CorruptData("A packed row's headers are cut off.")
    counts = _field(data, places, 0, pa.int32())
    least, most = pc.min_max(counts).as_py().values()
    if least == most and 0 < most <= _BULK_HEADERS_MAX:
        elements = _same_number(data, _add(places, _COUNT_BYTES), ends, most)
    else:
        elements, counts = _any_number(chunk, places, ends)
    steps = counts if rows_with == len(present) else pc.replace_with_mask(present.cast(pa.int32()), present, counts)
    heads = array("i", [0]) + _raw(pc.cumulative_sum(steps))
    buffers = [present.buffers()[1], pa.py_buffer(heads)]
    return pa.Array.from_buffers(arrow_body.HEADER_TYPE, len(present), buffers, children=[elements])


def _same_number(data: Any, places: Any, ends: Any, count: int) -> Any:
    """The headers of messages that all have `count` of them, first header by first, then second by second."""
    import pyarrow.compute as pc

    found: list[tuple[Any, Any, Any, Any]] = []  # places and lengths of the keys and of the values
    for _ in range(count):
        if not pc.all(pc.less_equal(_add(places, _PAIR_BYTES), ends)).as_py():
            raise CorruptData("A packed row's headers are cut off.")
        names, values = _field(data, places, 0, pa.int32()), _field(data, places, 4, pa.int32())
        name_places = _add(places, _PAIR_BYTES)
        value_places = _behind(name_places, names, data.size, least=0)
        found.append((name_places, names, value_places, values))
        places = _behind(value_places, values, data.size)
    if not places.equals(ends):
        raise CorruptData("A packed row's headers do not have the length that it names.")
    name_places, names, value_places, values = (_in_turn(list(part)) for part in zip(*found, strict=True))
    return _header_structs(_pieces(data, name_places, names), _pieces(data, value_places, values))


def _in_turn(parts: list[Any]) -> Any:
    """The first of each, then the second of each, and so on."""
    count = len(parts)
    if count == 1:
        return parts[0]
    joined = array("i", bytes(4 * count * len(parts[0])))
    for index, part in enumerate(parts):
        joined[index::count] = _raw(part)
    return pa.Array.from_buffers(pa.int32(), len(joined), [None, pa.py_buffer(joined)])


def _any_number(chunk: bytes, places: Any, ends: Any) -> tuple[Any, Any]:
    """The headers of messages, and how many each has: one by one, because their numbers differ."""
    decoded = rows.decode_headers
    found = [decoded(chunk[start:end]) for start, end in zip(places.to_pylist(), ends.to_pylist(), strict=True)]
    pairs = list(chain.from_iterable(found))
    names, values = (
        pa.array([pair[0] for pair in pairs], pa.string()),
        pa.array([pair[1] for pair in pairs], pa.binary()),
    )
    return _header_structs(names, values), _int32([len(headers) for headers in found])


def _header_structs(names: Any, values: Any) -> Any:
    kind = arrow_body.HEADER_TYPE.value_type
    try:
        return pa.StructArray.from_arrays([names.cast(pa.string()), values], fields=list(kind))
    except pa.ArrowInvalid as error:
        raise CorruptData("A header's key is not UTF-8.") from error
