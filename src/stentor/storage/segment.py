"""A segment: one file of the log, `{base_offset:020d}.log`.

     0       4   6   8               16      20      24              32
     ├───────┼───┼───┼───────────────┼───────┼───────┼───────────────┤
     │ magic │ver│ 0 │   topic id    │ part. │   0   │    log id     │
     ├───────┴───┴───┼───────────────┼───────┴───────┼───────┼───────┤
  32 │  base offset  │  created at   │  covered to   │   0   │  crc  │ 64
     ├───────────────┴───────────────┴───────────────┴───────┴───────┤
  64 │ batch, batch, batch … exactly as they were received           │
     └───────────────────────────────────────────────────────────────┘

All integers are little-endian. The CRC32C covers bytes 0..60. Magic, version and checksum stay where
they are in every version to come: a header whose checksum holds and whose version is newer is refused
(`FormatTooNew`), never guessed. Zeros may follow the last batch of the segment that is being written: room
that was taken ahead (writer.py).
A segment that a compaction wrote names in `covered to` the offset where it ends: what begins below that is what it
replaced, and a crash left it behind (compaction.py). It is 0 in all others.

Beside a segment there may be
  `{base}.index`     its sparse index, written when it was sealed: the segment is on disk, whole and final
  `{base}.snapshot`  the state derived from the log as of `base`, checksummed
  `{base}.damaged`   the offset ranges of this segment that are refused

A segment is *active* (the last one, appended to), then *unsealed* (a newer one was begun; its content may
not be on disk yet), then *sealed*.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from stentor.errors import CorruptData, FormatTooNew
from stentor.storage.files import TEMPORARY_SUFFIX, FileHandle, read_at, write_at
from stentor.storage.index import IndexSummary, SparseIndex
from stentor.storage.model import SEGMENT_HEADER_BYTES, DamagedRange, Identity

SEGMENT_MAGIC: Final = b"STSG"
SEGMENT_VERSION: Final = 1
_LAYOUT = struct.Struct("<4sH2xQI4xQQqQ4xI")
assert _LAYOUT.size == SEGMENT_HEADER_BYTES
_CHECKED_TO: Final = 60

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DAMAGED_SUFFIX: Final = ".damaged"
SUFFIXES: Final = (SNAPSHOT_SUFFIX, INDEX_SUFFIX, DAMAGED_SUFFIX, LOG_SUFFIX)
"""All files of a segment, in the order of removal: the log is the last to go."""

NAME_DIGITS: Final = 20
QUARANTINE: Final = "quarantine"
"""The folder for damaged segments that retention would have removed."""

_serials = itertools.count(1)


class SegmentHeader(msgspec.Struct, frozen=True):
    """The decoded header of a segment, as drawn above."""

    topic_id: int
    partition: int
    log_id: int
    base_offset: int
    created_at_us: int
    covered_to: int = 0


def pack_segment_header(identity: Identity, base_offset: int, created_at_us: int, covered_to: int = 0) -> bytes:
    """Encode and seal the header of a new segment."""
    packed = bytearray(
        _LAYOUT.pack(
            SEGMENT_MAGIC,
            SEGMENT_VERSION,
            identity.topic_id,
            identity.partition,
            identity.log_id,
            base_offset,
            created_at_us,
            covered_to,
            0,
        )
    )
    packed[_CHECKED_TO:] = crc32c(packed[:_CHECKED_TO]).to_bytes(4, "little")
    return bytes(packed)


def unpack_segment_header(data: bytes, *, what: str) -> SegmentHeader:
    """Decode and check the header of a segment file."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise CorruptData(f"{what} is shorter than a segment header.", object=what)
    magic, version, topic_id, partition, log_id, base, created, covered_to, checksum = _LAYOUT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise CorruptData(f"{what} does not begin as a segment does.", object=what)
    if crc32c(data[:_CHECKED_TO]) != checksum:
        raise CorruptData(f"The header of {what} fails its checksum.", object=what)
    if version > SEGMENT_VERSION:
        raise FormatTooNew(
            f"{what} has format {version}; this Stentor knows formats up to {SEGMENT_VERSION}.",
            hint="Start the newer Stentor that wrote it.",
            object=what,
        )
    return SegmentHeader(topic_id, partition, log_id, base, created, covered_to)


def segment_path(directory: Path, base: int, suffix: str) -> Path:
    """The file of the segment that begins at `base`."""
    return directory / f"{base:0{NAME_DIGITS}d}{suffix}"


def base_of(name: str, suffix: str) -> int | None:
    """The base offset in a file name of ours, or None for any other name."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != NAME_DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def list_segments(directory: Path) -> tuple[list[int], list[str]]:
    """The bases of the segments in a directory, in order, and the names that are not ours."""
    names = sorted(entry.name for entry in directory.iterdir())
    bases = [base for name in names if (base := base_of(name, LOG_SUFFIX)) is not None]
    known = set(bases)
    foreign = []
    for name in names:
        plain = name.removesuffix(TEMPORARY_SUFFIX)
        owners = {base_of(plain, suffix) for suffix in SUFFIXES} - {None}
        if name != QUARANTINE and not owners & known:
            foreign.append(name)
    return bases, foreign


class Segment:
    """One segment file and what is known about it. `state.py` says who writes which field, and when."""

    __slots__ = (
        "allocated",
        "base",
        "damaged",
        "directory",
        "end",
        "file",
        "file_bytes",
        "index",
        "replaced",
        "sealed",
        "serial",
        "size",
        "snapshot",
        "summary",
        "synced_size",
    )

    def __init__(self, directory: Path, base: int) -> None:
        self.directory = directory
        self.base = base
        self.serial = next(_serials)
        """Names this object in caches; a file name could come back with other content."""
        self.file: FileHandle | None = None
        """Open until the segment is sealed; sealed ones are opened by each read."""
        self.size = SEGMENT_HEADER_BYTES
        """Where the last whole batch ends. Readers never look beyond."""
        self.file_bytes = SEGMENT_HEADER_BYTES
        """The size of the file: larger than `size` only in a segment that recovery found damaged."""
        self.allocated = SEGMENT_HEADER_BYTES
        """While the segment is active: the disk has given it room up to here, filled with zeros."""
        self.synced_size = 0
        """Up to here the content is on disk."""
        self.end = base
        """The first offset after this segment."""
        self.damaged: tuple[DamagedRange, ...] = ()
        """Ranges that are refused, in order. The tuple is replaced, never changed."""
        self.index: SparseIndex | None = SparseIndex()
        """In memory until the segment is sealed."""
        self.summary: IndexSummary | None = None
        """Set when the segment is sealed."""
        self.snapshot: bytes | None = None
        """Derived state as of `base`, waiting to be written by the next sync."""
        self.sealed = False
        self.replaced = False
        """A compaction has put another file in its place: what is at its path is not what this describes."""

    def path(self, suffix: str = LOG_SUFFIX) -> Path:
        """One of the segment's files."""
        return segment_path(self.directory, self.base, suffix)

    def handle(self) -> FileHandle:
        """The open file, or a newly opened one that closes when the caller drops it."""
        return self.file or FileHandle(self.path())

    @property
    def appended_at_us_max(self) -> int:
        """When the newest batch was appended."""
        index, summary = self.index, self.summary
        if summary is not None:
            return summary.appended_at_us_max
        assert index is not None
        return index.appended_at_us_max

    @property
    def timestamp_us_max(self) -> int:
        """The largest message timestamp."""
        index, summary = self.index, self.summary
        if summary is not None:
            return summary.timestamp_us_max
        assert index is not None
        return index.timestamp_us_max

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, first offset) for each change of epoch inside the segment."""
        index, summary = self.index, self.summary
        if summary is not None:
            return list(summary.epochs)
        assert index is not None
        return list(index.epochs)

    def damage_at(self, offset: int) -> DamagedRange | None:
        """The damaged range that `offset` lies in."""
        for damage in self.damaged:
            if damage.first_offset <= offset < damage.next_offset:
                return damage
        return None


def create_segment(directory: Path, identity: Identity, base: int, created_at_us: int) -> Segment:
    """Begin a new file. Nothing is synced here: the next sync does that before it reports any end."""
    segment = Segment(directory, base)
    path = segment.path()
    file = FileHandle(path, write=True, create=True)
    try:
        write_at(file, [pack_segment_header(identity, base, created_at_us)], 0)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    segment.file = file
    return segment


def read_segment_header(file: FileHandle, *, what: str) -> SegmentHeader:
    """Read and check the header of an open segment file."""
    return unpack_segment_header(read_at(file, SEGMENT_HEADER_BYTES, 0), what=what)
