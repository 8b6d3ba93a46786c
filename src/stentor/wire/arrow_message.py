"""The metadata of an Arrow body: what it says, and whether that can be true. Read and written without pyarrow.

A hostile body must not hurt anyone who reads it. pyarrow verifies the flatbuffer and `validate`
checks the offsets; what neither bounds is how many columns and buffers there are, how many headers
they claim to hold, and what a compressed buffer claims to expand to, so `guard` walks the message's
metadata first:

    ├ 0xFFFFFFFF ┼ metadata length i32 ┼ flatbuffer Message{RecordBatch{length, nodes, buffers,
      compression}} ┼ padding ┼ buffers … ┤      a compressed buffer starts with its real size, i64
"""

from __future__ import annotations

import operator
import struct
from operator import add, gt
from typing import Final, NamedTuple

from stentor import limits
from stentor.errors import CorruptData

COMPRESSIONS: Final = ("", "lz4", "zstd")

METADATA_BYTES_MAX: Final = 4096  # it takes about 500 bytes; more is not ours
_METADATA_V5: Final = 4
_RECORD_BATCH: Final = 3

# Arrow lays nested columns out depth first: timestamp, key, value, headers, then the headers' struct, key
# and value. Buffers are validity and data for timestamp; validity, offsets and data for each binary or
# string; validity and offsets for the list; validity for the struct.
_COLUMNS: Final = 4
NODE_COUNT: Final = 7
BUFFER_COUNT: Final = 2 + 3 + 3 + 2 + 1 + 3 + 3
_PAIRS: Final = 2 * 4  # where the nodes of a message say how many headers there are
_NODES: Final = struct.Struct(f"<{2 * NODE_COUNT}q")  # (length, null count) of each
_BUFFERS: Final = struct.Struct(f"<{2 * BUFFER_COUNT}q")  # (offset, length) of each

_CONTINUATION: Final = b"\xff\xff\xff\xff"
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")


# The metadata of an uncompressed message as Arrow's own writer lays it out: numbers between bytes that are always the
# same. They are: continuation, length, root, vtable and table of the message; vtable and table of the record batch;
# the length of each vector.
_USUAL: Final = struct.Struct(f"<40sq24sq8s{2 * BUFFER_COUNT}q8s{2 * NODE_COUNT}q")
_CONSTANT: Final = (
    bytes.fromhex("ffffffff d8010000 14000000 00000000 0c001600 06000500 08000c00 0c000000 00030400 18000000"),
    bytes.fromhex("00000a00 18000c00 04000800 0a000000 2c010000 10000000"),
    bytes.fromhex("00000000 11000000"),
    bytes.fromhex("00000000 07000000"),
)
_constant_of: Final = operator.itemgetter(0, 2, 4, 5 + 2 * BUFFER_COUNT)
_BODY_BYTES: Final = 1
_ROWS: Final = 3
_USUAL_BUFFERS: Final = slice(5, 5 + 2 * BUFFER_COUNT)
_USUAL_NODES: Final = slice(6 + 2 * BUFFER_COUNT, None)


class Contents(NamedTuple):
    """What a body's metadata says, once it is known to be possible."""

    compression: int  # which of COMPRESSIONS
    begin: int  # where in the body the buffers begin
    nodes: tuple[int, ...]  # length and number of nulls of each column, depth first
    buffers: tuple[int, ...]  # offset, from there on, and length of each
    expanded: int = 0  # bytes that the compressed ones among them have once they are expanded

    @property
    def headers(self) -> int:
        """How many headers all messages have together."""
        return self.nodes[2 * _COLUMNS]


def guard(body: memoryview, count: int) -> int:
    """Compare a body's shape with the schema's and bound what reading it can allocate, before Arrow reads it.

    Returns which of COMPRESSIONS it has.
    """
    return read(body, count).compression


def read(body: memoryview, count: int) -> Contents:
    """The same; returns what the metadata says."""
    try:
        return _read_usual(body, count) or _read(body, count)
    except (struct.error, IndexError) as error:
        raise CorruptData("A batch body's Arrow metadata is cut off.") from error


def header_count(body: memoryview, count: int) -> int:
    """How many headers all messages of a body have together."""
    return read(body, count).nodes[_PAIRS]


def expanded_bytes(body: memoryview, count: int) -> int:
    """Return how many bytes a compressed body expands to; its own size if it cannot be read, as reading then ends."""
    try:
        return max(len(body), read(body, count).expanded)
    except CorruptData:
        return len(body)


def write(nodes: list[int], buffers: list[int], body_bytes: int) -> bytes:
    """The metadata of an uncompressed message whose buffers take that many bytes."""
    first, second, third, fourth = _CONSTANT
    return _USUAL.pack(first, body_bytes, second, nodes[0], third, *buffers, fourth, *nodes)


def _read_usual(body: memoryview, count: int) -> Contents | None:
    """In a third of the time, for metadata in the usual layout; None for any other."""
    if len(body) < _USUAL.size:
        return None
    found = _USUAL.unpack_from(body)
    if _constant_of(found) != _CONSTANT:
        return None
    body_bytes = found[_BODY_BYTES]
    if body_bytes != len(body) - _USUAL.size:
        raise CorruptData("A batch body's Arrow message is not as long as it claims.")
    if found[_ROWS] != count:
        raise CorruptData(f"A batch body does not hold the {count} messages its header claims.")
    nodes, buffers = found[_USUAL_NODES], found[_USUAL_BUFFERS]
    _check_nodes(nodes, count)
    _check_buffers(buffers, body_bytes)
    return Contents(0, _USUAL.size, nodes, buffers)


def compressed(index: int) -> str:
    """Which of COMPRESSIONS that is, in words."""
    return f"compressed with {COMPRESSIONS[index]}" if index else "not compressed"


def _read(body: memoryview, count: int) -> Contents:
    metadata_bytes = _I32.unpack_from(body, 4)[0]
    if bytes(body[:4]) != _CONTINUATION or not 8 <= metadata_bytes <= min(len(body) - 8, METADATA_BYTES_MAX):
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
    nodes = _NODES.unpack_from(metadata, _vector(metadata, batch, 1, NODE_COUNT))
    _check_nodes(nodes, count)
    if _field(metadata, batch, 4, optional=True):
        _vector(metadata, batch, 4, 0)
    buffers = _BUFFERS.unpack_from(metadata, _vector(metadata, batch, 2, BUFFER_COUNT))
    _check_buffers(buffers, len(data))
    compression, expanded = _compression(data, metadata, batch, buffers)
    return Contents(compression, 8 + metadata_bytes, nodes, buffers, expanded)


def _check_nodes(nodes: tuple[int, ...], count: int) -> None:
    """Columns are as long as the batch; the headers' keys and values as long as the headers."""
    lengths, nulls = nodes[::2], nodes[1::2]
    headers = lengths[_COLUMNS]
    if lengths != (count,) * _COLUMNS + (headers,) * (NODE_COUNT - _COLUMNS):
        raise CorruptData(f"A batch body's columns do not all hold {count} messages.")
    if not 0 <= headers <= limits.BATCH_HEADERS_MAX:
        raise CorruptData(f"A batch claims {headers} headers; the limit is {limits.BATCH_HEADERS_MAX}.")
    if min(nulls) < 0 or any(map(gt, nulls, lengths)):
        raise CorruptData("A batch body claims an impossible number of nulls.")


def _compression(data: memoryview, metadata: memoryview, batch: int, buffers: tuple[int, ...]) -> tuple[int, int]:
    """Return which of COMPRESSIONS a body has, and to how many bytes it expands."""
    compression = _field(metadata, batch, 3, optional=True)
    if not compression:
        return 0, 0
    expanded = _expanded(data, buffers)
    if expanded > limits.BATCH_EXPANDED_BYTES_MAX:
        raise CorruptData(
            f"A compressed batch would expand to {expanded} bytes; the limit is {limits.BATCH_EXPANDED_BYTES_MAX}."
        )
    codec = _field(metadata, _follow(metadata, compression), 0, optional=True)
    found = 1 + (metadata[codec] if codec else 0)  # Arrow counts from lz4 on, and leaves it out
    if found >= len(COMPRESSIONS):
        raise CorruptData("A batch body has an unknown compression.")
    return found, expanded


def _expanded(data: memoryview, buffers: tuple[int, ...]) -> int:
    """How many bytes compressed buffers say that they expand to: each begins with its own size."""
    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    sizes = [_I64.unpack_from(data, offset)[0] for offset, length in pairs if length]
    return sum(size for size in sizes if size > 0)


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
