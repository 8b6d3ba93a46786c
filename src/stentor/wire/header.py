"""The fixed header of a batch: the same 96 bytes on the wire, on disk and in every replica.

     0       4       8       12      16              24      28      32
     ├───────┼───────┼───────┼───────┼───────────────┼───────┼───────┤
     │ magic │hdr crc│length │bodycrc│   topic id    │ part. │ count │
     ├───────┴───────┼───────┼───────┼───────────────┼───────┴───────┤
  32 │  base offset  │ epoch │ attrs │  first time   │   last time   │ 64
     ├───────────────┼───────┴───────┼───────┬───────┼───────────────┤
  64 │  appended at  │  producer id  │ gener.│ span  │   sequence    │ 96
     └───────────────┴───────────────┴───────┴───────┴───────────────┘

All integers are little-endian. `length` counts header and body. The body's CRC32C is computed by
the producer and checked by the consumer, end to end. The header's CRC32C covers bytes 8..96, so
it covers the length, the body's checksum, the partition and the offset: a misdirected write is
caught (K1), and a header that checks out can be trusted alone.
The producer leaves base offset, epoch and appended-at zero; the head of the chain fills them in and
seals the header. `span` is the number of offsets the batch covers: equal to `count` until a
compaction removes messages and keeps the covered range (C23, `wire.deltas`).

Attributes: bits 0..3 body encoding (0 packed rows, 1 Arrow), bits 4..7 compression of the Arrow
buffers (0 none, 1 lz4, 2 zstd), bit 8 some message has headers, bits 16..31 schema id (0: the values are no
rows of a schema); all others are zero. Reserved, and refused until something needs them: encoding 2, for batches that
another protocol encoded and its clients decode; bit 9, for sequences that count messages and wrap at 2^31, as that
protocol's producers number them. Batches of tables have three more: bit 10, some row comes with a condition; bit 11,
the head found that the conditions do not hold, and readers pass the batch over; bit 14, some row sets a key that goes
by itself after some time. Two are for brokers to say: bit 12, the batch is sparse: it has fewer messages than it covers
offsets; bit 13, it is a control batch: it covers one offset, has no messages, and its body is for brokers. Readers pass
it over, too.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from stentor import limits
from stentor.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Iterator

    Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"STB\x01"
_KINDS: Final = ("4s", "I", "I", "I", "Q", "I", "I", "Q", "I", "I", "q", "q", "q", "Q", "I", "I", "Q")  # for struct
LAYOUT: Final = struct.Struct("<" + "".join(_KINDS))
HEADER_BYTES: Final = LAYOUT.size
assert HEADER_BYTES == 96

OFFSET_MAX: Final = 2**62
"""Offsets stay far inside the signed half: sums of them fit an Arrow int64 and MessagePack."""

CHECKED_FROM: Final = 8
_UNCHECKED = struct.Struct("<4sI")
_CHECKED = struct.Struct("<IIQIIQIIqqqQIIQ")
_LENGTHS = struct.Struct("<4sIII")
_HEADER_CHECKSUM = struct.Struct("<I")
_HEADER_CHECKSUM_AT: Final = 4
_STAMP_OFFSET_EPOCH = struct.Struct("<QI")
_STAMP_OFFSET_AT: Final = 32
_STAMP_TIME = struct.Struct("<q")
_STAMP_TIME_AT: Final = 64
_ATTRIBUTES = struct.Struct("<I")
_ATTRIBUTES_AT: Final = 44
_EXTENT = struct.Struct("<4s4xI20xQ44xI")

ENCODING_ROWS: Final = 0
ENCODING_ARROW: Final = 1
ENCODING_MASK: Final = 0x0F
COMPRESSION_SHIFT: Final = 4
COMPRESSION_MASK: Final = 0xF0
HAS_HEADERS: Final = 0x100
CONDITIONAL: Final = 0x400
REFUSED: Final = 0x800
SPARSE: Final = 0x1000
CONTROL: Final = 0x2000
TIMED: Final = 0x4000
SCHEMA_SHIFT: Final = 16
SCHEMA_MASK: Final = 0xFFFF0000
KNOWN_ATTRIBUTES: Final = ENCODING_MASK | COMPRESSION_MASK | HAS_HEADERS | CONDITIONAL | TIMED | SCHEMA_MASK
"""What clients may say; the rest is reserved, or for the head to say."""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """A decoded batch header; field by field as drawn above."""

    header_checksum: int
    length: int
    body_checksum: int
    topic_id: int
    partition: int
    count: int
    base_offset: int
    epoch: int
    attributes: int
    first_timestamp_us: int
    last_timestamp_us: int
    appended_at_us: int
    producer_id: int
    generation: int
    span: int
    sequence: int

    @property
    def end_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.span

    @property
    def encoding(self) -> int:
        return self.attributes & ENCODING_MASK

    @property
    def compression(self) -> int:
        return (self.attributes & COMPRESSION_MASK) >> COMPRESSION_SHIFT

    @property
    def conditional(self) -> bool:
        """Whether some row comes with a condition."""
        return bool(self.attributes & CONDITIONAL)

    @property
    def timed(self) -> bool:
        """Whether some row sets a key that goes by itself after some time."""
        return bool(self.attributes & TIMED)

    @property
    def refused(self) -> bool:
        """Whether it is an outcome without effect: its conditions did not hold."""
        return bool(self.attributes & REFUSED)

    @property
    def passed_over(self) -> bool:
        """Whether it has nothing for readers: refused, for brokers alone, or emptied by a compaction."""
        passed = self.attributes & (REFUSED | CONTROL)
        return bool(passed) or (not self.count and bool(self.attributes & SPARSE))

    @property
    def control(self) -> bool:
        """Whether its body is for brokers."""
        return bool(self.attributes & CONTROL)

    @property
    def schema_id(self) -> int:
        """The version of its topic's schema that its rows are of; 0 without one."""
        return self.attributes >> SCHEMA_SHIFT


def excerpt(*names: str) -> str:
    """A format for `struct` that takes these fields of a header, named as in BatchHeader or "magic", in the order in
    which they stand there, and skips the others: for who reads many headers and needs little of each.
    """
    kinds = zip(("magic", *BatchHeader.__struct_fields__), _KINDS, strict=True)
    parts = [kind if name in names else f"{struct.calcsize(kind)}x" for name, kind in kinds]
    return "<" + "".join(parts)


def topic_id_of(buffer: Buffer, position: int = 0) -> int:
    """The topic of a batch, of its header alone."""
    found: int = _TOPIC_ID.unpack_from(buffer, position)[0]
    return found


def pack_sealed(*fields: int) -> bytearray:
    """Encode and seal a header, its fields from the length on in order: a producer's hot path."""
    checked = _CHECKED.pack(*fields)
    return bytearray(_UNCHECKED.pack(MAGIC, crc32c(checked)) + checked)


def pack(header: BatchHeader) -> bytearray:
    """Encode and seal a header."""
    return pack_sealed(
        header.length,
        header.body_checksum,
        header.topic_id,
        header.partition,
        header.count,
        header.base_offset,
        header.epoch,
        header.attributes,
        header.first_timestamp_us,
        header.last_timestamp_us,
        header.appended_at_us,
        header.producer_id,
        header.generation,
        header.span,
        header.sequence,
    )


_TOPIC_ID = struct.Struct(excerpt("topic_id"))


def unpack(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode a header without judging it; `check_header` judges."""
    return BatchHeader(*LAYOUT.unpack_from(buffer, position)[1:])


def seal(buffer: memoryview, position: int) -> None:
    """Write the checksum of the header at `position`."""
    checksum = crc32c(buffer[position + CHECKED_FROM : position + HEADER_BYTES])
    _HEADER_CHECKSUM.pack_into(buffer, position + _HEADER_CHECKSUM_AT, checksum)


def appended_at_us(buffer: Buffer, position: int = 0) -> int:
    """When a batch was appended, of its header alone."""
    at: int = _STAMP_TIME.unpack_from(buffer, position + _STAMP_TIME_AT)[0]
    return at


def stamp(buffer: memoryview, position: int, *, base_offset: int, epoch: int, appended_at_us: int) -> None:
    """Fill in, in place, what only the head of the chain knows; then seal."""
    _STAMP_OFFSET_EPOCH.pack_into(buffer, position + _STAMP_OFFSET_AT, base_offset, epoch)
    _STAMP_TIME.pack_into(buffer, position + _STAMP_TIME_AT, appended_at_us)
    seal(buffer, position)


def in_epoch(header: bytearray, epoch: int) -> bytearray:
    """A producer's header with the epoch since which the batch may be in the log."""
    said = bytearray(header)
    (base_offset, _) = _STAMP_OFFSET_EPOCH.unpack_from(said, _STAMP_OFFSET_AT)
    _STAMP_OFFSET_EPOCH.pack_into(said, _STAMP_OFFSET_AT, base_offset, epoch)
    seal(memoryview(said), 0)
    return said


def mark_refused(buffer: memoryview, position: int) -> None:
    """Say, in place, that a batch has no effect; `stamp` seals."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_AT, attributes | REFUSED)


def check_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at `position` of bytes from a disk or a peer, or say why it is not one."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptData(f"A batch header needs {HEADER_BYTES} bytes; {len(buffer) - position} are left.")
    fields = LAYOUT.unpack_from(buffer, position)
    if fields[0] != MAGIC:
        raise CorruptData("These bytes are not a batch: the magic number is wrong.")
    header = BatchHeader(*fields[1:])
    if not HEADER_BYTES <= header.length <= limits.BATCH_BYTES_MAX:
        raise CorruptData(f"A batch claims {header.length} bytes; the limit is {limits.BATCH_BYTES_MAX}.")
    if crc32c(memoryview(buffer)[position + CHECKED_FROM : position + HEADER_BYTES]) != header.header_checksum:
        raise CorruptData("A batch header fails its checksum.")
    if header.base_offset > OFFSET_MAX:
        raise CorruptData(f"A batch claims the impossible offset {header.base_offset}.")
    return header


def check_body(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Compare the body with the checksum its producer computed."""
    if len(buffer) - position < header.length:
        raise CorruptData(f"A batch of {header.length} bytes is cut off after {len(buffer) - position}.")
    body = memoryview(buffer)[position + HEADER_BYTES : position + header.length]
    if crc32c(body) != header.body_checksum:
        raise CorruptData(
            f"The batch at offset {header.base_offset} fails its checksum.",
            object=f"offset {header.base_offset}",
        )


def extents(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, int, int, int]]:
    """Walk whole batches: (position, length, base offset, end offset). Trusts a checked buffer."""
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        _, length, base_offset, span = _EXTENT.unpack_from(buffer, position)
        if length < HEADER_BYTES or position + length > end:
            return
        yield position, length, base_offset, base_offset + span
        position += length


def verify_run(buffer: Buffer, position: int, end: int) -> int:
    """Check header and body of every whole batch in [position, end); return where they stop.

    This is the hot loop of history reads, so it unpacks only what the checks need.
    """
    view = memoryview(buffer)
    while end - position >= HEADER_BYTES:
        magic, header_checksum, length, body_checksum = _LENGTHS.unpack_from(view, position)
        if position + length > end:
            break
        body = position + HEADER_BYTES
        if (
            magic != MAGIC
            or length < HEADER_BYTES
            or crc32c(view[position + CHECKED_FROM : body]) != header_checksum
            or crc32c(view[body : position + length]) != body_checksum
        ):
            header = check_header(view, position)
            check_body(view, position, header)
        position += length
    return position
