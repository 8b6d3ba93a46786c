"""The values that storage takes and gives: settings, floors, slices, reports, statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from stentor import limits

if TYPE_CHECKING:
    from stentor.wire.header import BatchHeader

SEGMENT_HEADER_BYTES: Final = 64


class Identity(msgspec.Struct, frozen=True):
    """Whose log this is."""

    topic_id: int
    partition: int
    log_id: int
    """Tells this copy from any other copy of the partition (C3)."""

    @property
    def marks(self) -> bytes:
        """Topic id and partition as they stand in each batch header."""
        return self.topic_id.to_bytes(8, "little") + self.partition.to_bytes(4, "little")

    def __str__(self) -> str:
        return f"topic {self.topic_id:016x} partition {self.partition}"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose, and change while the log runs."""

    segment_bytes: int = limits.SEGMENT_BYTES
    """A segment that would grow beyond this is closed and a new one begun."""
    retention_age_s: float | None = None
    """Segments whose newest batch was appended longer ago may go; None keeps them."""
    retention_bytes: int | None = None
    """At least this much of the newest data is kept, older segments may go; None keeps them."""
    disk_reserve_bytes: int = limits.DISK_RESERVE_BYTES
    """Appends are refused while less than this would be left on the disk (K5)."""


class LogFloor(msgspec.Struct, frozen=True):
    """What the journal knows of a log: recovery must find at least this."""

    synced_end: int
    """Every offset below this was on disk."""
    committed: int
    """Every offset below this was on disk at every member of the chain."""


class Deriving(Protocol):
    """States that are derived from a log (C19)."""

    def restore(self, snapshot: bytes | None, offset: int) -> bool:
        """A snapshot as of `offset`, the newest first. Whether no older one is needed.

        None: there is no older one, and the log begins at `offset`.
        """
        ...

    def replay(self, batch: BatchHeader, body: memoryview) -> None:
        """Each batch from the oldest snapshot that was taken on, in order. `body` is valid only during the call."""
        ...


class LogSlice(msgspec.Struct, frozen=True):
    """Whole batches, verified, as they stand in the log."""

    data: bytes
    first_offset: int
    """The base offset of the first batch: at or below the offset that was asked for."""
    next_offset: int
    """Where to read on. Equal to the offset asked for if there was nothing to read."""


class DamagedRange(msgspec.Struct, frozen=True):
    """Offsets that the log once held and cannot give any more."""

    first_offset: int
    next_offset: int
    """The first offset after the range: where reading can go on."""
    from_position: int
    to_position: int
    """The bytes of the segment that are skipped; none, if the bytes are missing."""
    reason: str


class Truncation(msgspec.Struct, frozen=True):
    """A torn tail that recovery cut off."""

    file: str
    from_bytes: int
    to_bytes: int
    first_offset: int
    """The offset that the torn batch would have had, and that the next batch will have."""
    next_offset: int | None
    """The end of the torn batch, if its header could still be read."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What opening a log found and did."""

    segments: int
    scanned_bytes: int
    """Read and checked; sealed segments are not."""
    replayed_batches: int
    """Batches that were replayed into derived states."""
    snapshot_offset: int | None
    """The newest snapshot of derived states that was used; None: they were replayed from the start."""
    truncated: tuple[Truncation, ...]
    damaged: tuple[tuple[int, int], ...]
    """Offset ranges that are refused, old and new findings."""
    rebuilt_indexes: tuple[str, ...]
    foreign_files: tuple[str, ...]
    """Files that are not ours; they were left alone."""
    notes: tuple[str, ...]
    """Anything else an operator should know, one sentence each."""
    seconds: float


Severity = Literal["ok", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """One line of a check: how bad, about what, what was found, what to do."""

    severity: Severity
    object: str
    message: str
    hint: str = ""
