"""The journal of a broker's replicas: what must survive a restart besides the logs themselves.

One file for all partitions, sealed MessagePack, replaced whole and atomically: the incarnation of this
broker, up to where it has seen the coordination store (C27), and for each partition which copy of the log it
holds, the highest epoch it adopted (C2), and the offsets that it knew to be on disk and to be committed
(K3a). A store costs one small write and two syncs, whatever the number of partitions.

Nothing here goes back: not the incarnation, not an epoch, not a committed floor; the store's revision only
by an operator's word (`accept_revision`). The synced end does only when the log itself is cut back
(`rewind`), and never below the committed floor. A journal that cannot be read is an error with a hint, never
an empty journal: an empty one would let an old copy of a log pass for a current one.

Threads: any thread may update and store; `store` writes what was there when it began.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from stentor.errors import CorruptData, InternalError, StorageError
from stentor.storage.files import Kind, atomic_write, seal, storage_error, unseal
from stentor.storage.model import LogFloor


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


class _Content(msgspec.Struct, frozen=True, array_like=True):
    incarnation: int
    replicas: list[tuple[int, int, ReplicaState]]
    store_revision: int = 0


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(_Content)


class ReplicaJournal:
    """The journal in memory, and the way to its file."""

    def __init__(self, path: Path, content: _Content) -> None:
        self._path = path
        self._incarnation = content.incarnation
        self._store_revision = content.store_revision
        self._replicas = {(topic_id, partition): state for topic_id, partition, state in content.replicas}
        self._lock = threading.Lock()
        self._store_lock = threading.Lock()
        self._changes = 0
        self._stored_changes = 0

    @classmethod
    def open(cls, path: Path, *, expected: bool = False) -> ReplicaJournal:
        """Load the journal, raise its incarnation, and store it.

        With `expected`, a journal that is not there is an error: logs exist that it should know.
        """
        content = load_journal(path)
        if content is None and expected:
            raise CorruptData(
                f"The journal {path} is missing, although there are logs.",
                hint="Restore it from a copy. Without it nobody knows up to where the logs must reach.",
                object=str(path),
            )
        journal = cls(path, content or _Content(0, []))
        journal._incarnation += 1
        journal._changes += 1
        journal.store()
        return journal

    @property
    def incarnation(self) -> int:
        """Which start of this broker this is; grows at every one (C3)."""
        return self._incarnation

    def pass_incarnation(self, registered: int) -> None:
        """Begin a life after one that others remember and this disk does not (C3)."""
        with self._lock:
            self._incarnation = max(self._incarnation, registered + 1)
            self._changes += 1

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
            self._changes += 1

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

    def remove(self, topic_id: int, partition: int) -> None:
        """Forget a partition that was deleted."""
        with self._lock:
            if self._replicas.pop((topic_id, partition), None) is not None:
                self._changes += 1

    def store(self) -> bool:
        """Write the journal if it changed; on return it is on disk. Call it in a thread."""
        with self._store_lock:
            with self._lock:
                changes = self._changes
                if changes == self._stored_changes:
                    return False
                replicas = [(*key, state) for key, state in self._replicas.items()]
                content = _Content(self._incarnation, replicas, self._store_revision)
            atomic_write(self._path, seal(Kind.JOURNAL, msgspec.msgpack.encode(content)))
            self._stored_changes = changes
            return True

    def _put(self, topic_id: int, partition: int, after: ReplicaState) -> None:
        if self._replicas.get((topic_id, partition)) != after:
            self._replicas[topic_id, partition] = after
            self._changes += 1


def load_journal(path: Path) -> _Content | None:
    """What the file holds; None if there is none; CorruptData if it cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, operation="read", path=path) from error
    try:
        return _decoder.decode(unseal(Kind.JOURNAL, data, what=str(path)))
    except (CorruptData, msgspec.MsgspecError) as error:
        reason = error.message if isinstance(error, StorageError) else str(error)
        raise CorruptData(
            f"The journal {path} is damaged: {reason}",
            hint="Restore it from a copy. Only if there is none, move it away and start with --unclean: "
            "the broker then takes its logs as they are, and may miss that their ends are gone.",
            object=str(path),
        ) from error


def _going_back(topic_id: int, partition: int, before: ReplicaState, after: ReplicaState) -> InternalError:
    return InternalError(
        f"The journal of topic {topic_id:016x} partition {partition} may not go back from {before} to {after}.",
        hint="Nothing was changed. Please report this.",
        operation="journal",
        object=f"topic {topic_id:016x} partition {partition}",
    )
