"""The Arrow body of a batch: one IPC record batch message of a fixed schema, without the schema.

The schema is the one Spark accepts without a cast, so a batch that a producer encodes is a table
slice everywhere else.

A hostile body must not hurt anyone who reads it. pyarrow verifies the flatbuffer and `validate`
checks the offsets; what neither bounds is how many columns and buffers there are, how many headers
they claim to hold, and what a compressed buffer claims to expand to, so `guard` walks the message's
metadata first:

    ├ 0xFFFFFFFF ┼ metadata length i32 ┼ flatbuffer Message{RecordBatch{length, nodes, buffers,
      compression}} ┼ padding ┼ buffers … ┤      a compressed buffer starts with its real size, i64
"""

from __future__ import annotations

import array
import functools
import operator
import struct
from operator import add, gt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from stentor import limits
from stentor.errors import CorruptData, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stentor.wire.rows import Columns, Headers

HEADER_TYPE: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)
SCHEMA: Final = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADER_TYPE),
    ]
)
COMPRESSIONS: Final = ("", "lz4", "zstd")

_METADATA_BYTES_MAX: Final = 4096  # it takes about 500 bytes; more is not ours
_METADATA_V5: Final = 4
_RECORD_BATCH: Final = 3

# Arrow lays nested columns out depth first: timestamp, key, value, headers, then the headers' struct, key
# and value. Buffers are validity and data for timestamp; validity, offsets and data for each binary or
# string; validity and offsets for the list; validity for the struct.
_COLUMNS: Final = 4
_NODE_COUNT: Final = 7
_BUFFER_COUNT: Final = 2 + 3 + 3 + 2 + 1 + 3 + 3
_NODES: Final = struct.Struct(f"<{2 * _NODE_COUNT}q")  # (length, null count) of each
_BUFFERS: Final = struct.Struct(f"<{2 * _BUFFER_COUNT}q")  # (offset, length) of each

_END_OF_STREAM_BYTES: Final = 8
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")

_no_headers = pa.nulls(1024, HEADER_TYPE)


def timestamps_array(timestamps: Sequence[int]) -> Any:
    """Microseconds as an Arrow column, without a loop."""
    packed = timestamps if isinstance(timestamps, array.array) else array.array("q", timestamps)
    return pa.Array.from_buffers(SCHEMA.field(0).type, len(packed), [None, pa.py_buffer(packed)])


def headers_array(headers: Sequence[Headers | None] | None, count: int) -> Any:
    """Headers as an Arrow column; nulls come from a shared array."""
    global _no_headers  # noqa: PLW0603 - a cache of nulls, shared by every producer of the process
    if headers is not None:
        return pa.array(headers, HEADER_TYPE)
    if count > len(_no_headers):
        _no_headers = pa.nulls(count, HEADER_TYPE)
    return _no_headers.slice(0, count)


def record_batch(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None,
) -> Any:
    """Columns of Python values as one Arrow record batch of the schema."""
    return pa.RecordBatch.from_arrays(
        [
            timestamps_array(timestamps),
            _binary(keys, "key"),
            _binary(values, "value"),
            headers_array(headers, len(values)),
        ],
        schema=SCHEMA,
    )


def _binary(values: Sequence[bytes | None], what: str) -> Any:
    try:
        return pa.array(values, pa.binary())
    except (pa.ArrowException, TypeError) as error:
        raise InvalidArgument(f"Every {what} must be bytes, str or None: {_first_line(error)}.") from error


def encode(batch: Any, compression: str = "") -> memoryview:
    """Serialise a record batch of the schema."""
    if not compression:
        return memoryview(batch.serialize())
    stream = _stream([batch], compression)
    return stream[len(_stream([], compression)) - _END_OF_STREAM_BYTES : -_END_OF_STREAM_BYTES]


def _stream(batches: list[Any], compression: str) -> memoryview:
    """Pyarrow compresses only in streams: schema message, record batch messages, end marker."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode(body: memoryview, count: int, compression: int | None = None) -> Any:
    """Read a body of any origin as a record batch; damage and hostility are CorruptData.

    A head also says which of COMPRESSIONS the batch's header names, and the body must be compressed so.
    """
    found = guard(body, count)
    if compression is not None and found != compression:
        raise CorruptData(
            f"A batch's body is {_compressed(found)}; its header says that it is {_compressed(compression)}."
        )
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, MemoryError, ValueError) as error:
        raise CorruptData(f"A batch body is not a valid Arrow record batch: {_first_line(error)}.") from error
    if batch.num_rows != count:
        raise CorruptData(f"A batch claims {count} messages and holds {batch.num_rows}.")
    if batch.column(0).null_count:
        raise CorruptData("A batch holds a message without a timestamp.")
    return batch


def columns(batch: Any) -> Columns:
    """A record batch as lists of Python values."""
    headers = batch.column(3)
    return (
        times(batch),
        batch.column(1).to_pylist(),
        batch.column(2).to_pylist(),
        None if headers.null_count == len(headers) else header_lists(headers),
    )


def times(batch: Any) -> Sequence[int]:
    """Timestamps as a view on Arrow's own memory: most applications never look at them."""
    return _raw_times(batch.column(0)).cast("q")


def _raw_times(column: Any) -> memoryview:
    # The buffer may be longer than its column, by any number of bytes.
    return memoryview(column.buffers()[1])[8 * column.offset : 8 * (column.offset + len(column))]


def time_range(batch: Any) -> tuple[int, int]:
    """The smallest and the largest timestamp."""
    column = batch.column(0)
    raw = bytes(_raw_times(column))
    if raw == raw[:8] * len(column):  # most producers stamp a batch once: comparing is far cheaper
        only = _I64.unpack_from(raw)[0]
        return only, only
    import pyarrow.compute as pc  # heavy, and rarely needed

    ends = pc.min_max(column)
    return ends["min"].value, ends["max"].value


def header_lists(headers: Any) -> list[Headers | None]:
    """The headers column as lists of pairs."""
    return [
        None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs] for pairs in headers.to_pylist()
    ]


def guard(body: memoryview, count: int) -> int:
    """Compare a body's shape with the schema's and bound what reading it can allocate, before Arrow reads it.

    Returns which of COMPRESSIONS it has.
    """
    try:
        return 0 if _guard_usual(body, count) else _guard(body, count)
    except (struct.error, IndexError) as error:
        raise CorruptData("A batch body's Arrow metadata is cut off.") from error


def _guard_usual(body: memoryview, count: int) -> bool:
    """The same in a third of the time, for metadata laid out as this process' own Arrow does; whether it was."""
    usual = _usual_layout()
    if len(body) < usual.numbers.size:
        return False
    found = usual.numbers.unpack_from(body)
    if found[:: len(found) - 1] + usual.between(found) != usual.constant:
        return False
    body_bytes, rows = found[usual.body_bytes], found[usual.rows]
    if body_bytes != len(body) - usual.numbers.size:
        raise CorruptData("A batch body's Arrow message is not as long as it claims.")
    if rows != count:
        raise CorruptData(f"A batch body does not hold the {count} messages its header claims.")
    _check_nodes(found[usual.nodes], count)
    _check_buffers(found[usual.buffers], body_bytes)
    return True


class _Layout(NamedTuple):
    """Where the numbers are in an uncompressed message's metadata, between bytes that are always the same."""

    numbers: struct.Struct
    between: Callable[[tuple[Any, ...]], tuple[bytes, ...]]  # the constant bytes but for the first and the last
    constant: tuple[bytes, ...]
    body_bytes: int
    rows: int
    nodes: slice
    buffers: slice


@functools.cache
def _usual_layout() -> _Layout:
    """Learnt from a message made here and never from one received: a forged one could mislead about the next."""
    body = encode(record_batch([0], [b"key"], [b"value"], None))
    size = 8 + int(_I32.unpack_from(body, 4)[0])
    metadata = body[8:size]
    message = _I32.unpack_from(metadata, 0)[0]
    batch = _follow(metadata, _field(metadata, message, 2))
    fields = sorted(
        (
            (8 + _field(metadata, message, 3), 1, "body_bytes"),
            (8 + _field(metadata, batch, 0), 1, "rows"),
            (8 + _vector(metadata, batch, 1, _NODE_COUNT), 2 * _NODE_COUNT, "nodes"),
            (8 + _vector(metadata, batch, 2, _BUFFER_COUNT), 2 * _BUFFER_COUNT, "buffers"),
        )
    )
    form, at, index, places, gaps = "<", 0, 0, {}, []
    for position, count, name in fields:
        form += f"{position - at}s{count}q"
        gaps.append(index)
        places[name] = index + 1
        at, index = position + 8 * count, index + 1 + count
    numbers = struct.Struct(f"{form}{size - at}s")
    found = numbers.unpack_from(body)
    between = operator.itemgetter(*gaps[1:])
    return _Layout(
        numbers,
        between,
        found[:: len(found) - 1] + between(found),
        places["body_bytes"],
        places["rows"],
        slice(places["nodes"], places["nodes"] + 2 * _NODE_COUNT),
        slice(places["buffers"], places["buffers"] + 2 * _BUFFER_COUNT),
    )


def _compressed(index: int) -> str:
    return f"compressed with {COMPRESSIONS[index]}" if index else "not compressed"


def _guard(body: memoryview, count: int) -> int:
    metadata_bytes = _I32.unpack_from(body, 4)[0]
    if bytes(body[:4]) != _CONTINUATION or not 8 <= metadata_bytes <= min(len(body) - 8, _METADATA_BYTES_MAX):
        raise CorruptData("A batch body is not an Arrow message.")
    metadata, data = body[8 : 8 + metadata_bytes], body[8 + metadata_bytes :]
    message = _I32.unpack_from(metadata, 0)[0]
    if metadata[_field(metadata, message, 1)] != _RECORD_BATCH:
        raise CorruptData("A batch body is an Arrow message, but not a record batch.")
    if _U16.unpack_from(metadata, _field(metadata, message, 0))[0] != _METADATA_V5:
        raise CorruptData("A batch body is an Arrow message of another version.")
    if _I64.unpack_from(metadata, _field(metadata, message, 3))[0] != len(data):
        raise CorruptData("A batch body's Arrow message is not as long as it claims.")
    batch = _follow(metadata, _field(metadata, message, 2))
    if _I64.unpack_from(metadata, _field(metadata, batch, 0))[0] != count:
        raise CorruptData(f"A batch body does not hold the {count} messages its header claims.")
    _guard_nodes(metadata, batch, count)
    return _guard_buffers(data, metadata, batch)


def _guard_nodes(metadata: memoryview, batch: int, count: int) -> None:
    _check_nodes(_NODES.unpack_from(metadata, _vector(metadata, batch, 1, _NODE_COUNT)), count)
    if _field(metadata, batch, 4, optional=True):
        _vector(metadata, batch, 4, 0)


def _check_nodes(nodes: tuple[int, ...], count: int) -> None:
    """Columns are as long as the batch; the headers' keys and values as long as the headers."""
    lengths, nulls = nodes[::2], nodes[1::2]
    headers = lengths[_COLUMNS]
    if lengths != (count,) * _COLUMNS + (headers,) * (_NODE_COUNT - _COLUMNS):
        raise CorruptData(f"A batch body's columns do not all hold {count} messages.")
    if not 0 <= headers <= limits.BATCH_HEADERS_MAX:
        raise CorruptData(f"A batch claims {headers} headers; the limit is {limits.BATCH_HEADERS_MAX}.")
    if min(nulls) < 0 or any(map(gt, nulls, lengths)):
        raise CorruptData("A batch body claims an impossible number of nulls.")


def _guard_buffers(data: memoryview, metadata: memoryview, batch: int) -> int:
    buffers = _BUFFERS.unpack_from(metadata, _vector(metadata, batch, 2, _BUFFER_COUNT))
    _check_buffers(buffers, len(data))
    compression = _field(metadata, batch, 3, optional=True)
    if not compression:
        return 0
    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    sizes = [_I64.unpack_from(data, offset)[0] for offset, length in pairs if length]
    expanded = sum(size for size in sizes if size > 0)
    if expanded > limits.BATCH_EXPANDED_BYTES_MAX:
        raise CorruptData(
            f"A compressed batch would expand to {expanded} bytes; the limit is {limits.BATCH_EXPANDED_BYTES_MAX}."
        )
    codec = _field(metadata, _follow(metadata, compression), 0, optional=True)
    found = 1 + (metadata[codec] if codec else 0)  # Arrow counts from lz4 on, and leaves it out
    if found >= len(COMPRESSIONS):
        raise CorruptData("A batch body has an unknown compression.")
    return found


def _check_buffers(buffers: tuple[int, ...], data_bytes: int) -> None:
    if min(buffers) < 0 or max(map(add, buffers[::2], buffers[1::2])) > data_bytes:
        raise CorruptData("A batch body's Arrow buffers reach past its end.")


def _vector(metadata: memoryview, table: int, index: int, count: int) -> int:
    """The position of the first element of a table's vector, which must have `count` of them."""
    vector = _follow(metadata, _field(metadata, table, index))
    if _I32.unpack_from(metadata, vector)[0] != count:
        raise CorruptData("A batch body does not have the columns of a batch.")
    return vector + 4


def _follow(metadata: memoryview, position: int) -> int:
    target = position + int(_I32.unpack_from(metadata, position)[0])
    if not 0 <= target < len(metadata):
        raise CorruptData("A batch body's Arrow metadata points outside itself.")
    return target


def _field(metadata: memoryview, table: int, index: int, *, optional: bool = False) -> int:
    """The position of a flatbuffer table's field, by its vtable; 0 when absent and optional."""
    if not 0 <= table <= len(metadata) - 4:
        raise CorruptData("A batch body's Arrow metadata points outside itself.")
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if not 0 <= vtable <= len(metadata) - 4:
        raise CorruptData("A batch body's Arrow metadata points outside itself.")
    slot = 4 + 2 * index
    relative = _U16.unpack_from(metadata, vtable + slot)[0] if slot < _U16.unpack_from(metadata, vtable)[0] else 0
    if not relative and not optional:
        raise CorruptData("A batch body's Arrow metadata lacks a field.")
    return table + relative if relative else 0


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unreadable"])[0].rstrip(".")
