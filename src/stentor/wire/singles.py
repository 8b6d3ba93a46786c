"""Batches of one message each, many of them next to each other, checked in bulk.

A call of Python costs as much as the checksum of a kilobyte, and each batch has two checksums: of its header and of its
body. But a body and the header of the batch behind it lie next to each other, so one call covers both, and what it
must return follows from the two checksums that are stored:

    chunk     ├ header 0 ┼ body 0 ┼ header 1 ┼ body 1 ┼ header 2 ┼ body 2 ┤
    stored          h0 b0               h1 b1               h2 b2
    computed    alone    ├── follows(b0, h1) ┼── follows(b1, h2) ┼─ alone ┤

A CRC is linear: CRC(x ‖ y) is CRC(x) carried on over as many zeros as y has bytes, exclusive-or CRC(y). A header has 96
bytes, always, so `follows` is one and the same function of 64 bits, and it is the exclusive-or of what each of their
eight bytes contributes: eight tables of 256 numbers, which Arrow looks up for all batches at once.

No damage slips through that would not otherwise: a body or a header that fails its own checksum changes the sum. Only
if a body and the very next header are both damaged may the two changes cancel out, with a chance of 2^-32, which is
the chance that a single checksum misses damage, too.
"""

from __future__ import annotations

import struct
from array import array
from functools import cache
from typing import Any, Final

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stentor import limits
from stentor.wire.header import CHECKED_FROM, HAS_HEADERS, HEADER_BYTES, MAGIC
from stentor.wire.rows import ROW

SINGLES_MIN: Final = 256
"""Some fifty calls of Arrow cost 200 µs, however few batches they are for. Below this number they do not pay."""

_STEP: Final = 512
"""Batches whose bytes are copied before they are summed: what fits the processor's cache."""
assert limits.RUN_MESSAGES_MAX % _STEP == 0

# What the walk needs of a header: length, the lower half of the offset, attributes.
_WALK: Final = struct.Struct("<I20xI8xI")
_WALK_AT: Final = 8
_COUNT: Final = struct.Struct("<I")
_COUNT_AT: Final = 28
_U32: Final = 0xFFFFFFFF
_UNWANTED: Final = _U32 & ~HAS_HEADERS  # attributes of other encodings and of rows of a schema

# A header and the fixed part of the one row behind it, in words of four bytes; and which word is what.
_HEAD_BYTES: Final = HEADER_BYTES + ROW.size
_HEAD_WORDS: Final = _HEAD_BYTES // 4
assert _HEAD_WORDS * 4 == _HEAD_BYTES
_HEADER_SUM: Final = 1
_BODY_SUM: Final = 3
_COUNT_WORD: Final = _COUNT_AT // 4
_OFFSET_UPPER: Final = 9
_TIME_LOWER: Final = 24
_TIME_UPPER: Final = 25
_KEY: Final = 26
_VALUE: Final = 27
_HEADERS: Final = 28


class Fields(msgspec.Struct, frozen=True, gc=False):
    """The fixed part of rows, by column."""

    times: array[int]  # in halves: the lower ones and the upper ones in turn
    keys: array[int]  # lengths, -1 for null
    values: array[int]
    headers: array[int]


class Singles(msgspec.Struct, frozen=True, gc=False):
    """Batches of one message, next to each other, that passed their checksums, and whose offsets follow each other."""

    starts: array[int]  # where each row begins in the chunk
    ends: array[int]  # where each batch ends
    fields: Fields


def find(chunk: bytes, position: int, stop: int, base: int) -> Singles | None:
    """Those from `position` on, the first with offset `base`; None if they are few, or if one of them is damaged."""
    starts, sums, end = _walk(chunk, position, stop, base)
    count = len(starts)
    if count < SINGLES_MIN:
        return None
    edges = _begins(starts)
    edges.append(end)
    words = _heads(chunk, edges)
    if words is None:
        return None
    header_sums, body_sums = words[_HEADER_SUM::_HEAD_WORDS], words[_BODY_SUM::_HEAD_WORDS]
    sound = (
        words[_COUNT_WORD::_HEAD_WORDS] == array("I", [1]) * count
        and words[_OFFSET_UPPER::_HEAD_WORDS] == array("I", [base >> 32]) * count
        and chunk.startswith(MAGIC, position)
        and crc32c(chunk[position + CHECKED_FROM : position + HEADER_BYTES]) == header_sums[0]
        and crc32c(chunk[starts[-1] : end]) == body_sums[-1]
        and sums.tobytes() == _followed(body_sums[:-1], header_sums[1:])
    )
    return Singles(starts, edges[1:], _fields(words)) if sound else None


def _walk(chunk: bytes, position: int, stop: int, base: int) -> tuple[array[int], array[int], int]:
    """Where the rows of one-message batches seem to begin, the checksums of what is between those, and the end."""
    starts: list[int] = []
    sums = array("I")
    body, pieces = position + HEADER_BYTES, _STEP
    while pieces == _STEP and len(starts) < limits.RUN_MESSAGES_MAX:
        found, body = _step(chunk, body, stop + HEADER_BYTES, base + len(starts), starts)
        sums.extend(map(crc32c, found))
        pieces = len(found)
    if starts and _COUNT.unpack_from(chunk, starts[-1] - HEADER_BYTES + _COUNT_AT)[0] != 1:
        # Offsets tell of every batch but the last that it has one message.
        body = starts.pop()
        sums.pop()
    if sums:
        sums.pop()  # of the last body and of what follows it, which is none of ours
    return array("i", starts), sums, body - HEADER_BYTES


def _step(chunk: bytes, body: int, stop: int, base: int, starts: list[int]) -> tuple[list[bytes], int]:
    """Add where the next bodies begin; returns each of them with the header behind it, and where the next one is."""
    pieces: list[bytes] = []
    unpack, add_start, add_piece = _WALK.unpack_from, starts.append, pieces.append
    first, back = base & _U32, HEADER_BYTES - _WALK_AT
    try:
        for expected in range(first, first + _STEP):
            length, offset, attributes = unpack(chunk, body - back)
            following = body + length
            if offset != expected or attributes & _UNWANTED or following > stop:
                break
            add_start(body)
            add_piece(chunk[body:following])
            body = following
    except struct.error:  # the chunk ends here
        pass
    return pieces, body


def _begins(starts: array[int]) -> array[int]:
    """Where the batches begin whose rows begin there."""
    import pyarrow.compute as pc  # heavy, and not needed by every command

    numbers = pa.Array.from_buffers(pa.int32(), len(starts), [None, pa.py_buffer(starts)])
    found = array("i")
    found.frombytes(memoryview(pc.subtract(numbers, pa.scalar(HEADER_BYTES, pa.int32())).buffers()[1]))
    return found[: len(starts)]


def _heads(chunk: bytes, edges: array[int]) -> array[int] | None:
    """The header and the fixed part of the row of every batch, as one array of words; None if one is too short."""
    import pyarrow.compute as pc

    count = len(edges) - 1
    batches = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(chunk)])
    _, ends, data = pc.binary_slice(batches, 0, _HEAD_BYTES).buffers()
    if memoryview(ends).cast("i")[count] != count * _HEAD_BYTES:
        return None
    words = array("I")
    words.frombytes(memoryview(data)[: count * _HEAD_BYTES])
    return words


def _fields(words: array[int]) -> Fields:
    lower = words[_TIME_LOWER::_HEAD_WORDS]
    times = array("I", bytes(8 * len(lower)))
    times[::2], times[1::2] = lower, words[_TIME_UPPER::_HEAD_WORDS]
    return Fields(times, words[_KEY::_HEAD_WORDS], words[_VALUE::_HEAD_WORDS], words[_HEADERS::_HEAD_WORDS])


# --- what a body's checksum and the next header's must make together -----------------------------------


def follows(body_sum: int, header_sum: int) -> int:
    """The checksum of a body and a header behind it, of the checksum of the body and that which the header names."""
    # The zeros stand for what the header names its checksum of.
    unknown = bytes(HEADER_BYTES - CHECKED_FROM)
    head = MAGIC + header_sum.to_bytes(4, "little") + unknown
    return crc32c(head, body_sum) ^ crc32c(unknown) ^ header_sum


@cache
def _tables() -> tuple[list[Any], list[Any]]:
    """What each byte of a body's checksum contributes, and each of a header's."""
    nothing = follows(0, 0)
    of_bodies = [[follows(byte << shift, 0) ^ nothing for byte in range(256)] for shift in (0, 8, 16, 24)]
    of_headers = [[follows(0, byte << shift) ^ nothing for byte in range(256)] for shift in (0, 8, 16, 24)]
    of_bodies[0] = [each ^ nothing for each in of_bodies[0]]  # once, for all of them
    return [pa.array(table, pa.uint32()) for table in of_bodies], [pa.array(table, pa.uint32()) for table in of_headers]


def _followed(body_sums: array[int], header_sums: array[int]) -> bytes:
    """The same as `follows` for many."""
    import pyarrow.compute as pc

    count = len(body_sums)
    found: Any = None
    for sums, tables in zip((body_sums, header_sums), _tables(), strict=True):
        packed = sums.tobytes()
        for index, table in enumerate(tables):
            byte = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(packed[index::4])])
            part = table.take(byte)
            found = part if found is None else pc.bit_wise_xor(found, part)
    return bytes(memoryview(found.buffers()[1])[: 4 * count])
