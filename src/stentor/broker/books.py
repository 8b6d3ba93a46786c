"""What a broker writes down now and then, for its next start: floors of its logs, and what the store was known to hold.

The journal bounds how far a torn write may reach (K3a); a book that is behind costs a longer look at the next start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.cluster.store_rollback import StoreRollback
    from stentor.broker.cluster.storeless_start import StorelessStart
    from stentor.broker.disk_threads import DiskThreads
    from stentor.broker.environment import BrokerIdentity
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.storage.journal import ReplicaJournal

logger = logging.getLogger(__name__)


class Books:
    """The journal, and the memory of the store."""

    def __init__(
        self,
        identity: BrokerIdentity,
        journal: ReplicaJournal,
        partitions: Mapping[Key, Partition],
        rollback: StoreRollback,
        memory: StorelessStart,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._partitions = partitions
        self._rollback = rollback
        self._memory = memory
        self._storing = False

    def store_soon(self, threads: DiskThreads) -> None:
        """Record synced ends and commit floors (K3a), without holding up the loop."""
        if not self._storing:
            self._note()  # first: if it fails, the next round tries again
            self._storing = True
            threads.submit(self._store, self._stored)

    def _stored(self, _: Any, error: StentorError | None) -> None:
        self._storing = False
        if error is not None:
            logger.error("could not write the journal or the memory of the store: %s", error)

    def store_now(self) -> None:
        """The same, at once."""
        self._note()
        self._store()

    def store_last(self) -> None:
        """A disk that fails at the end has lost nothing that was promised: the next start looks more closely."""
        try:
            self.store_now()
        except StentorError as error:
            logger.error("could not write the journal: %s", error)  # noqa: TRY400 - the sentence says it all

    def _note(self) -> None:
        self._note_floors()
        if not self._identity.alone:
            self._journal.note_revision(self._rollback.revision)
            self._memory.note()

    def _store(self) -> None:
        self._journal.store()
        self._memory.store()

    def _note_floors(self) -> None:
        """What moved since the last time goes into the journal."""
        for key, partition in self._partitions.items():
            log, replica = partition.log, partition.replica
            if log.in_memory:
                continue  # a start finds nothing of it
            synced_end = log.synced_end
            floors = (log, synced_end, replica.committed, replica.damaged)
            cutting = partition.sync.is_cutting
            if floors == partition.noted or cutting or self._ends_below_floor(partition, synced_end):
                continue
            self._journal.update(
                *key,
                log_id=log.identity.log_id,
                synced_end=synced_end,
                committed=min(replica.committed, synced_end),
                damaged=replica.damaged,
            )
            partition.noted = floors

    def _ends_below_floor(self, partition: Partition, synced_end: int) -> bool:
        """A log that failed is left as it was found, and may have lost what was known to be on disk."""
        known = self._journal.get(*partition.key)
        return bool(partition.replica.failed) and known is not None and synced_end < known.synced_end
