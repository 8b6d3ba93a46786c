"""Epochs on their way to the journal (C2): on disk before anything is done in them, one write for all that wait."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.core.replica_events import EpochStored, Fail
from stentor.errors import DiskFull, OutOfDescriptors, StentorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.environment import Environment
    from stentor.broker.partitions.chain_work import ChainMember
    from stentor.core.records import Key
    from stentor.storage.journal import ReplicaJournal

logger = logging.getLogger(__name__)


class EpochStore:
    """Stores the epochs of all partitions of this broker."""

    def __init__(
        self, environment: Environment, journal: ReplicaJournal, partitions: Mapping[Key, ChainMember]
    ) -> None:
        self._loop = environment.loop
        self._threads = environment.epochs
        self._journal = journal
        self._partitions = partitions
        self._waiting: dict[ChainMember, int] = {}  # the highest of each
        self._storing = False

    def store(self, partition: ChainMember, epoch: int) -> None:
        """Report EpochStored once it is on disk."""
        self._wait(partition, epoch)
        if not self._storing:
            self._storing = True
            self._loop.call_soon(self._store)

    def _wait(self, partition: ChainMember, epoch: int) -> None:
        self._waiting[partition] = max(epoch, self._waiting.get(partition, 0))

    def _holds(self, partition: ChainMember) -> bool:
        """Whether it was neither removed nor replaced."""
        return self._partitions.get(partition.key) is partition

    def _store(self) -> None:
        asked, self._waiting = self._waiting, {}
        waiting = {partition: epoch for partition, epoch in asked.items() if self._holds(partition)}
        for partition, epoch in waiting.items():
            self._journal.update(*partition.key, log_id=partition.replica.me.log_id, epoch=epoch)
        self._threads.submit(self._journal.store, partial(self._stored, waiting))

    def _stored(self, waiting: dict[ChainMember, int], _: Any, error: StentorError | None) -> None:
        self._storing = False
        for partition, epoch in waiting.items():
            if not self._holds(partition):
                continue
            if error is None:
                partition.step(EpochStored(epoch))
            elif isinstance(error, DiskFull | OutOfDescriptors):
                self._wait(partition, epoch)  # it stays wedged until there is room (K5)
            else:
                logger.error("could not write the journal: %s", error)
                partition.step(Fail(f"the journal could not be written: {error.message}"))
        if self._waiting:
            self._storing = True
            self._loop.call_later(limits.DISK_AGAIN_S if error is not None else 0, self._store)
