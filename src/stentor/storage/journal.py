"""The journal of a broker's replicas: what must survive a restart besides the logs themselves.

One journal for all partitions: the incarnation of this broker, up to where it has seen the coordination store
(C27), and for each partition which copy of the log it holds, the highest epoch it adopted (C2), and the offsets
that it knew to be on disk and to be committed (K3a).

    replicas            everything, sealed, replaced whole and atomically
    replicas.changes    what changed since, appended: one change and one sync for all that waits

A store writes what changed and no more, whatever the number of partitions. When the changes are as long as the
whole, the whole is written anew. Each whole has a generation, one higher than the last, and each change names the
one that it follows: changes of an older generation are in the whole already, changes of a newer one mean that an old
copy of the whole was put in its place, and are refused.

Formats: 1 is a whole without changes; the file of changes beside it does not count. 2 is a whole with its file of
changes, which must be there. A Stentor that knows only 1 refuses 2, and does not miss the changes. A broker that was
stopped leaves 1 behind.

Nothing here goes back: not the incarnation, not an epoch, not a committed floor; the store's revision only
by an operator's word (`accept_revision`). The synced end does only when the log itself is cut back
(`rewind`), and never below the committed floor. A journal that cannot be read is an error with a hint, never
an empty journal: an empty one would let an old copy of a log pass for a current one.

Threads: any thread may update and store; `store` writes what was there when it began.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

import msgspec

from stentor import limits
from stentor.errors import CorruptData, InternalError, StorageError
from stentor.storage.changes import ChangesFile, read_changes
from stentor.storage.files import FileKind, atomic_write, seal, sealed_version, storage_error, unseal
from stentor.storage.model import LogFloor

logger = logging.getLogger(__name__)

_WHOLE: Final = 1
_WITH_CHANGES: Final = 2
_CHANGES_SUFFIX: Final = ".changes"


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """What is recorded of one partition."""

    log_id: int
    """Which copy of the log: a new one begins again at the bottom (C3)."""
    epoch: int = 0
    """The highest epoch that was adopted (C2)."""
    synced_end: int = 0
    """Every offset below was on disk here."""
    committed: int = 0
    """Every offset below was on disk at every member of the chain."""
    damaged: bool = False
    """Something was missing at a start, and the copy was not reconciled with another since (C13)."""

    @property
    def floor(self) -> LogFloor:
        """What recovery must find."""
        return LogFloor(self.synced_end, self.committed)


class JournalContent(msgspec.Struct, frozen=True, array_like=True):
    """Everything that the journal holds."""

    incarnation: int
    replicas: list[tuple[int, int, ReplicaState]]
    store_revision: int = 0
    generation: int = 0


class _Change(msgspec.Struct, frozen=True, array_like=True):
    """What is different from then on."""

    generation: int
    """Of the whole that it follows."""
    incarnation: int
    store_revision: int
    replicas: list[tuple[int, int, ReplicaState]]
    removed: list[tuple[int, int]]


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(JournalContent)
_change_decoder = msgspec.msgpack.Decoder(_Change)


class ReplicaJournal:
    """The journal in memory, and the way to its files."""

    def __init__(self, path: Path, content: JournalContent) -> None:
        self._path = path
        self._incarnation = content.incarnation
        self._store_revision = content.store_revision
        self._generation = content.generation
        self._replicas = {(topic_id, partition): state for topic_id, partition, state in content.replicas}
        self._lock = threading.Lock()
        self._store_lock = threading.Lock()
        self._file = ChangesFile(changes_path(path))
        self._whole_bytes = 0
        self._changed: set[tuple[int, int]] = set()  # partitions of which the disk knows something else
        self._head_changed = True  # the same of incarnation and revision
        self.bytes_written = 0

    @classmethod
    def open(cls, path: Path, *, expected: bool = False) -> ReplicaJournal:
        """Load the journal, and store it.

        With `expected`, a journal that is not there is an error: logs exist that it should know.
        """
        content = load_journal(path)
        if content is None and expected:
            raise CorruptData(
                f"The journal {path} is missing, but there are logs.",
                hint="Restore it from a backup. Without it the broker does not know how far the logs must reach.",
                object=str(path),
            )
        journal = cls(path, content or JournalContent(0, []))
        if not _has_changes(path):
            # Before a whole that counts on it: what lies there follows something else, or nothing does.
            journal._file.clear()
        journal._store_whole(_WITH_CHANGES)
        return journal

    @property
    def incarnation(self) -> int:
        """Which life of this broker this is, or was the last on this disk, before one begins (C3)."""
        return self._incarnation

    def begin_life(self, remembered: int) -> None:
        """After the last on this disk, and after the one that others remember (C3).

        Not before these were asked: a start that did not get so far would make an old copy of a data directory look
        younger, and a few of them as young as what others remember.
        """
        with self._lock:
            self._incarnation = max(self._incarnation, remembered) + 1
            self._head_changed = True

    @property
    def store_revision(self) -> int:
        """The highest revision at which this broker has seen the coordination store; 0 before the first."""
        return self._store_revision

    def note_revision(self, revision: int) -> None:
        """The store was seen at this revision."""
        if revision > self._store_revision:
            self.accept_revision(revision)

    def accept_revision(self, revision: int) -> None:
        """The same, also if it goes back: the operator says that this is the store now."""
        with self._lock:
            self._store_revision = revision
            self._head_changed = True

    def get(self, topic_id: int, partition: int) -> ReplicaState | None:
        """What is recorded of a partition."""
        return self._replicas.get((topic_id, partition))

    def replicas(self) -> dict[tuple[int, int], ReplicaState]:
        """Everything that is recorded, by (topic id, partition)."""
        with self._lock:
            return dict(self._replicas)

    def update(
        self,
        topic_id: int,
        partition: int,
        *,
        log_id: int,
        epoch: int | None = None,
        synced_end: int | None = None,
        committed: int | None = None,
        damaged: bool | None = None,
    ) -> None:
        """Note progress in memory; `store` makes it durable. A new log id begins with empty floors."""
        with self._lock:
            before = self._replicas.get((topic_id, partition))
            if before is None:
                before = ReplicaState(log_id)
            elif before.log_id != log_id:
                before = ReplicaState(log_id, before.epoch)
            after = ReplicaState(
                log_id,
                before.epoch if epoch is None else epoch,
                before.synced_end if synced_end is None else synced_end,
                before.committed if committed is None else committed,
                before.damaged if damaged is None else damaged,
            )
            if after.epoch < before.epoch or after.committed < before.committed or after.synced_end < before.synced_end:
                raise _going_back(topic_id, partition, before, after)
            self._put(topic_id, partition, after)

    def rewind(self, topic_id: int, partition: int, *, synced_end: int) -> None:
        """Note that the log was cut back; never below what is committed."""
        with self._lock:
            before = self._replicas[topic_id, partition]
            after = msgspec.structs.replace(before, synced_end=synced_end)
            if synced_end < before.committed:
                raise _going_back(topic_id, partition, before, after)
            self._put(topic_id, partition, after)

    def begin_anew(self, topic_id: int, partition: int, *, log_id: int, epoch: int) -> None:
        """Note that the log begins anew: its floors are gone, the epoch stays the highest that was ever noted (C2)."""
        with self._lock:
            before = self._replicas.get((topic_id, partition))
            known = 0 if before is None else before.epoch
            self._put(topic_id, partition, ReplicaState(log_id, max(epoch, known)))

    def remove(self, topic_id: int, partition: int) -> None:
        """Forget a partition that was deleted."""
        with self._lock:
            if self._replicas.pop((topic_id, partition), None) is not None:
                self._changed.add((topic_id, partition))

    def _put(self, topic_id: int, partition: int, after: ReplicaState) -> None:
        if self._replicas.get((topic_id, partition)) != after:
            self._replicas[topic_id, partition] = after
            self._changed.add((topic_id, partition))

    # --- the disk -------------------------------------------------------------------------------

    def store(self) -> bool:
        """Write what changed, if anything did; on return it is on disk. Call it in a thread."""
        with self._store_lock:
            if not self._changed and not self._head_changed:
                return False
            if self._file.usable and self._file.size <= max(limits.JOURNAL_CHANGES_BYTES_MIN, self._whole_bytes):
                self._store_changes()
            else:
                self._store_whole(_WITH_CHANGES)
            return True

    def close(self) -> None:
        """Leave one file behind, which an older Stentor reads too; nothing is stored after that."""
        with self._store_lock:
            self._store_whole(_WHOLE)

    def _store_changes(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
            head_changed, self._head_changed = self._head_changed, False
            change = _Change(
                self._generation,
                self._incarnation,
                self._store_revision,
                [(*key, state) for key in changed if (state := self._replicas.get(key)) is not None],
                [key for key in changed if key not in self._replicas],
            )
        payload = msgspec.msgpack.encode(change)
        try:
            self._file.append(payload)
        except StorageError:
            self._still_to_store(changed, head_changed=head_changed)
            raise
        self.bytes_written += len(payload)

    def _store_whole(self, version: int) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
            head_changed, self._head_changed = self._head_changed, False
            self._generation += 1
            replicas = [(*key, state) for key, state in self._replicas.items()]
            content = JournalContent(self._incarnation, replicas, self._store_revision, self._generation)
        # Whatever becomes of this write, no change may follow the whole before it: that one may be gone.
        self._file.close()
        sealed = seal(FileKind.JOURNAL, msgspec.msgpack.encode(content), version=version)
        try:
            atomic_write(self._path, sealed)
        except StorageError:
            self._still_to_store(changed, head_changed=head_changed)
            raise
        self._whole_bytes = len(sealed)
        self.bytes_written += len(sealed)
        if version == _WITH_CHANGES:
            try:
                self._file.clear()
            except StorageError as error:  # everything is on disk; the next store writes the whole again
                logger.warning("changes of the journal could not be cleared: %s", error)

    def _still_to_store(self, changed: set[tuple[int, int]], *, head_changed: bool) -> None:
        with self._lock:
            self._changed |= changed
            self._head_changed = self._head_changed or head_changed


def changes_path(path: Path) -> Path:
    """Where the changes of a journal are."""
    return path.with_name(path.name + _CHANGES_SUFFIX)


def load_journal(path: Path) -> JournalContent | None:
    """What is on disk, which stays as it is; None if there is no journal; CorruptData if it cannot be read."""
    try:
        return _load(path)
    except (CorruptData, msgspec.MsgspecError) as error:
        reason = error.message if isinstance(error, StorageError) else str(error)
        raise CorruptData(
            f"The journal {path} is damaged: {reason}",
            hint=f"Restore it from a backup, together with {changes_path(path).name}. Only if there is no backup, move"
            " it away and start with --unclean: the broker then uses its logs as they are, and may not notice that"
            " their ends are missing.",
            object=str(path),
        ) from error


def _load(path: Path) -> JournalContent | None:
    # The changes first: a broker that writes meanwhile replaces the whole, and clears them after that.
    changes = read_changes(changes_path(path))
    data = _read(path)
    if data is None:
        return None
    content = _decoder.decode(unseal(FileKind.JOURNAL, data, what=str(path), version_max=_WITH_CHANGES))
    if sealed_version(data) == _WHOLE:
        return content
    if changes is None:
        raise CorruptData(f"{changes_path(path)} is missing.")
    return _follow(content, [_change_decoder.decode(payload) for payload in changes.payloads])


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, operation="read", path=path) from error


def _has_changes(path: Path) -> bool:
    """Whether there is a whole whose file of changes counts."""
    data = _read(path)
    return data is not None and sealed_version(data) == _WITH_CHANGES


def _follow(content: JournalContent, changes: list[_Change]) -> JournalContent:
    """The whole, and everything that changed since it was written."""
    incarnation, store_revision = content.incarnation, content.store_revision
    replicas = {(topic_id, partition): state for topic_id, partition, state in content.replicas}
    for change in changes:
        if change.generation > content.generation:
            raise CorruptData(
                f"its changes follow generation {change.generation}, and it is generation {content.generation}."
            )
        if change.generation == content.generation:
            incarnation, store_revision = change.incarnation, change.store_revision
            replicas.update(((topic_id, partition), state) for topic_id, partition, state in change.replicas)
            for key in change.removed:
                replicas.pop(key, None)
    found = [(*key, state) for key, state in replicas.items()]
    return JournalContent(incarnation, found, store_revision, content.generation)


def _going_back(topic_id: int, partition: int, before: ReplicaState, after: ReplicaState) -> InternalError:
    return InternalError(
        f"The journal of topic {topic_id:016x} partition {partition} may not go back from {before} to {after}.",
        hint="Nothing was changed. Please report this.",
        operation="journal",
        object=f"topic {topic_id:016x} partition {partition}",
    )
