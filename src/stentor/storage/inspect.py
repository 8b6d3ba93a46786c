"""A read-only check of a data directory, for `stentor doctor`.

Every batch of every segment is read and verified, whatever indexes and records say; what they say is then
compared with what was found. Nothing is written, created, locked or repaired, so the check may run beside a
broker: then the tail of a log beyond its recorded synced end is left out, because it is being written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from stentor.errors import CorruptData, StentorError, StorageError
from stentor.limits import DISK_RESERVE_BYTES, MIB
from stentor.storage.damage import load_damage
from stentor.storage.directory import (
    ASIDE_FOLDER,
    BROKER_FILE,
    CATALOGUE_FILE,
    CHANGES_FILE,
    CHECKSUM_FILE,
    COORDINATION_FILE,
    FORMAT_FILE,
    JOURNAL_CHANGES_FILE,
    JOURNAL_FILE,
    LOCK_FILE,
    PARTITIONS_FOLDER,
    PROBE_FILE,
    SECRET_FILE,
    PartitionDirectory,
    check_format,
    list_partitions,
)
from stentor.storage.files import TEMPORARY_SUFFIX, FileHandle, storage_error
from stentor.storage.journal import ReplicaState, load_journal
from stentor.storage.model import Finding, Identity, Severity
from stentor.storage.recovery import covered_end, load_snapshot, load_summary
from stentor.storage.scan import Extent, Scan, scan_segment
from stentor.storage.segment import (
    DAMAGED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    QUARANTINE,
    SNAPSHOT_SUFFIX,
    list_segments,
    read_segment_header,
    segment_path,
)
from stentor.storage.state import read_mark

_FILES: Final = frozenset(
    {
        FORMAT_FILE,
        LOCK_FILE,
        JOURNAL_FILE,
        JOURNAL_CHANGES_FILE,
        COORDINATION_FILE,
        CHANGES_FILE,
        BROKER_FILE,
        CATALOGUE_FILE,
        SECRET_FILE,
        CHECKSUM_FILE,
        PROBE_FILE,
    }
)
_OURS: Final = _FILES | {PARTITIONS_FOLDER, ASIDE_FOLDER, "lost+found"}
_LOCKS: Final = Path("/proc/locks")


def inspect_directory(path: Path | str) -> list[Finding]:
    """Check the data directory at `path`; the findings in the order in which a reader wants them."""
    path = Path(path).absolute()
    try:
        if not path.is_dir():
            return [Finding("error", str(path), "The directory does not exist.", "Check the path.")]
        if not check_format(path):
            return [Finding("warning", str(path), "The directory is empty: no broker has used it yet.")]
        return _Inspection(path).run()
    except StentorError as error:
        return [Finding("error", str(path), error.message, error.hint)]
    except OSError as error:
        refused = storage_error(error, operation="read", path=path)
        return [Finding("error", str(path), refused.message, refused.hint)]


def lock_holder(path: Path) -> int | None:
    """The process that holds the lock of a data directory, 0 if it is not known who; None if it is free.

    Asked of the kernel's list, so that asking does not itself hold the lock for a moment.
    """
    try:
        inode = (path / LOCK_FILE).stat().st_ino
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if "FLOCK" in fields and any(
            field.rpartition(":")[2] == str(inode) for field in fields if field.count(":") == 2
        ):
            holder = (path / LOCK_FILE).read_text(encoding="ascii", errors="replace").strip()
            return int(holder) if holder.isdigit() else 0
    return None


class _Inspection:
    """One check of one directory that is known to be ours."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._running = False
        self._findings: list[Finding] = []

    def _say(self, severity: Severity, what: Path | str, message: str, hint: str = "") -> None:
        name = str(what.relative_to(self._path)) if isinstance(what, Path) else what
        self._findings.append(Finding(severity, name, message, hint))

    def run(self) -> list[Finding]:
        path = self._path
        self._say("ok", FORMAT_FILE, "This Stentor knows the format of the directory.")
        self._check_lock()
        self._check_space()
        replicas = self._check_journal()
        partitions, strangers = list_partitions(path)
        strangers += [entry for entry in path.iterdir() if entry.name.removesuffix(TEMPORARY_SUFFIX) not in _OURS]
        for stranger in strangers:
            self._say("warning", stranger, "This is not a file of Stentor. Doctor does not check it.")
        for partition in partitions:
            self._check_partition(partition, replicas)
        return self._findings

    def _check_lock(self) -> None:
        holder = lock_holder(self._path)
        self._running = holder is not None
        if holder is None:
            self._say("ok", LOCK_FILE, "No broker is using the directory.")
        else:
            who = f" (process {holder})" if holder else ""
            self._say(
                "ok", LOCK_FILE, f"A broker is using the directory{who}. Doctor does not check what it is writing now."
            )

    def _check_space(self) -> None:
        found = os.statvfs(self._path)
        free = found.f_bavail * found.f_frsize
        text = f"{free // MIB} MiB are free on the disk."
        if free < DISK_RESERVE_BYTES:
            hint = f"Free some space: the broker refuses writes below {DISK_RESERVE_BYTES // MIB} MiB."
            self._say("error", "disk", text, hint)
        elif free < 10 * DISK_RESERVE_BYTES:
            self._say("warning", "disk", text, "Free some space, or shorten the retention of large topics.")
        else:
            self._say("ok", "disk", text)

    def _check_journal(self) -> dict[tuple[int, int], ReplicaState]:
        try:
            content = load_journal(self._path / JOURNAL_FILE)
        except StorageError as error:
            self._say("error", JOURNAL_FILE, error.message, error.hint)
            return {}
        if content is None:
            self._say("warning", JOURNAL_FILE, "There is no journal.", "A broker writes one when it starts.")
            return {}
        self._say("ok", JOURNAL_FILE, f"Incarnation {content.incarnation}, {len(content.replicas)} partitions.")
        return {(topic_id, partition): state for topic_id, partition, state in content.replicas}

    # --- one partition --------------------------------------------------------------------------

    def _without_leftovers(self, path: Path, bases: list[int]) -> list[int]:
        """Without segments that a compaction replaced, and a crash kept it from removing."""
        kept: list[int] = []
        covered_to = 0
        for base in bases:
            if base < covered_to:
                left = segment_path(path, base, LOG_SUFFIX)
                self._say("ok", left, "A compaction has replaced this segment. The broker removes it when it starts.")
                continue
            kept.append(base)
            covered_to = max(covered_to, covered_end(path, base))
        return kept

    def _check_partition(self, partition: PartitionDirectory, replicas: dict[tuple[int, int], ReplicaState]) -> None:
        path = partition.path
        recorded = replicas.get((partition.topic_id, partition.partition))
        if recorded is None:
            self._say("warning", path, "The journal does not know this partition.")
        mark = read_mark(path)
        if mark is not None:
            self._say(
                "error",
                path,
                f"The log has failed: {mark.reason}",
                "Check the disk. A start with --unclean cuts the log back to its last successful sync.",
            )
        bases, foreign = list_segments(path)
        for name in foreign:
            self._say("warning", path / name, "This file does not belong to this log. Doctor does not check it.")
        if (path / QUARANTINE).is_dir():
            self._say(
                "warning",
                path / QUARANTINE,
                "This holds damaged segments that a broker put aside.",
                "Keep or delete them.",
            )
        if not bases:
            self._say("warning", path, "There are no segments.")
            return
        bases = self._without_leftovers(path, bases)
        check = _LogCheck(partition, recorded, bases)
        before = len(self._findings)
        for place in range(len(bases)):
            self._check_segment(check, place)
        if len(self._findings) == before:
            text = f"{len(bases)} segments, offsets {bases[0]} to {check.end - 1}, every batch verified."
            self._say("ok", path, text if check.end > bases[0] else f"{len(bases)} segments, no messages.")

    def _check_segment(self, check: _LogCheck, place: int) -> None:
        base = check.bases[place]
        path = segment_path(check.path, base, LOG_SUFFIX)
        following = check.bases[place + 1] if place + 1 < len(check.bases) else None
        try:
            file = FileHandle(path)
            size = file.bytes()
            self._check_header(check, file, path, base)
        except FileNotFoundError:
            return  # retired by the broker that runs beside us
        except StorageError as error:
            self._say("error", path, error.message, error.hint or "Move the file elsewhere, or restore the right one.")
            return
        scan = scan_segment(Extent(file, check.identity, size, following), base)
        for damage in scan.damaged:
            self._say_damage(path, damage.first_offset, damage.next_offset, damage.reason)
        if following is None:
            self._check_tail(check, scan, path)
        else:
            self._check_sealed(check, scan, path, following)
        self._check_sidecars(check, base)
        check.end = max(scan.end, following or 0)

    def _check_header(self, check: _LogCheck, file: FileHandle, path: Path, base: int) -> None:
        header = read_segment_header(file, what=path.name)
        if (header.topic_id, header.partition) != (check.identity.topic_id, check.identity.partition):
            raise CorruptData(f"{path.name} is a segment of topic {header.topic_id:016x} partition {header.partition}.")
        if check.recorded is not None and header.log_id != check.recorded.log_id:
            raise CorruptData(f"{path.name} belongs to another copy of the log ({header.log_id:x}).")
        if header.base_offset != base:
            raise CorruptData(f"The header of {path.name} says that it begins at offset {header.base_offset}.")

    def _check_tail(self, check: _LogCheck, scan: Scan, path: Path) -> None:
        floor = check.recorded.synced_end if check.recorded is not None else 0
        if scan.end < floor:
            self._say_damage(path, scan.end, floor, "they were on disk, and are now missing or damaged")
        elif not scan.tail_is_blank and not self._running:
            self._say(
                "warning",
                path,
                f"The tail is torn: {scan.tail_bytes} bytes after offset {scan.end - 1} are not a batch.",
                "A crash leaves this. The next start of the broker cuts it off.",
            )

    def _check_sealed(self, check: _LogCheck, scan: Scan, path: Path, following: int) -> None:
        if scan.end < following:
            self._say_damage(path, scan.end, following, "bytes fail their checksum or are missing")
        if load_summary(check.path, int(path.stem)) is None and not self._running:
            index = path.with_suffix(INDEX_SUFFIX)
            self._say("warning", index, "The index is missing or damaged.", "The next start of the broker rebuilds it.")

    def _check_sidecars(self, check: _LogCheck, base: int) -> None:
        if load_damage(check.path, base) is None:
            self._say(
                "warning", segment_path(check.path, base, DAMAGED_SUFFIX), "This record of damage cannot be read."
            )
        try:
            load_snapshot(check.path, base)
        except StorageError as error:
            self._say(
                "warning",
                segment_path(check.path, base, SNAPSHOT_SUFFIX),
                error.message,
                "The broker uses an older one.",
            )

    def _say_damage(self, path: Path, first_offset: int, next_offset: int, reason: str) -> None:
        self._say(
            "error",
            path,
            f"Offsets {first_offset} to {next_offset - 1} are damaged: {reason}.",
            "Readers get an error for these offsets only. Restore the file from a replica or a backup.",
        )


class _LogCheck(msgspec.Struct):
    """What is known of one log while it is checked."""

    partition: PartitionDirectory
    recorded: ReplicaState | None
    bases: list[int]
    end: int = 0

    @property
    def path(self) -> Path:
        return self.partition.path

    @property
    def identity(self) -> Identity:
        return Identity(self.partition.topic_id, self.partition.partition, 0)
