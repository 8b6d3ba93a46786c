"""Sparse batches: the offsets of rows that do not follow each other one by one.

A batch covers `span` offsets and holds `count` rows. While the two are equal, row `i` has offset `base + i`. A batch
that lost rows, to a compaction (C23) or to a filter, covers the same offsets as before and says which its rows have:

    body   ├ delta u32 ┼ delta u32 ┼ … `count` of them ┼ rows, in the encoding that the attributes name … ┤

A row's offset is the batch's base offset plus its delta. Deltas are little-endian, ascend strictly and are below
`span`. A batch has the attribute SPARSE exactly if `span` and `count` differ; with a `count` of 0 its body is empty.
(Control batches hold no rows at all.)
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from stentor.errors import CorruptData
from stentor.wire.header import SPARSE, BatchHeader

if TYPE_CHECKING:
    from collections.abc import Sequence

DELTA_BYTES: Final = 4


def of(header: BatchHeader, body: bytes | memoryview) -> Sequence[int]:
    """The offsets of a batch's rows relative to its first one, checked."""
    count, span = header.count, header.span
    if not header.attributes & SPARSE:
        if count != span:
            raise CorruptData(f"The batch at offset {header.base_offset} claims {count} messages over {span} offsets.")
        return range(count)
    size = count * DELTA_BYTES
    if count >= span or size > len(body):
        raise CorruptData(f"The sparse batch at offset {header.base_offset} does not hold the {count} rows it claims.")
    deltas = struct.unpack_from(f"<{count}I", body)
    if count and (deltas[-1] >= span or not all(before < after for before, after in pairwise(deltas))):
        raise CorruptData(f"The rows of the sparse batch at offset {header.base_offset} are not in order.")
    return deltas


def offsets(header: BatchHeader, body: bytes | memoryview) -> Sequence[int]:
    """The offsets of a batch's rows, checked."""
    base = header.base_offset
    if not header.attributes & SPARSE:
        return range(base, base + len(of(header, body)))
    return [base + delta for delta in of(header, body)]


def rows(header: BatchHeader, body: memoryview) -> memoryview:
    """A body without the deltas in front of it."""
    return body[header.count * DELTA_BYTES :] if header.attributes & SPARSE else body


def pack(deltas: Sequence[int]) -> bytes:
    """What stands in front of the rows."""
    return struct.pack(f"<{len(deltas)}I", *deltas)
