"""What partitions need to be members of chains (`ChainWork`), done by whom it concerns.

Logs are cut by `copies`, epochs stored by `epoch_store`, words to other brokers go through the cluster (`ClusterPort`).
Partitions that have something to look at are woken with every beat of the cluster.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from stentor import limits
from stentor.broker.partitions.epoch_store import EpochStore
from stentor.broker.partitions.flusher import Flusher
from stentor.core.replica_events import Started, Tick, Truncate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from stentor.broker.environment import Environment
    from stentor.broker.partitions.chain_work import ChainMember
    from stentor.broker.partitions.copies import Copies
    from stentor.broker.partitions.interfaces import DataLink
    from stentor.broker.partitions.partition import Partition
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import Key
    from stentor.core.standing import Standing
    from stentor.errors import StentorError
    from stentor.storage.journal import ReplicaJournal
    from stentor.storage.memory_log import AnyLog


class ClusterPort(Protocol):
    """What replicas ask of the cluster."""

    @property
    def tell(self) -> Callable[[str, Key, PartitionMessage], None]: ...
    @property
    def look_again(self) -> Callable[[], Awaitable[None]]: ...

    def report(self, key: Key, message: PartitionMessage) -> None: ...
    def report_soon(self, key: Key | None = None) -> None: ...
    def data_link(self, to: str) -> DataLink | None: ...
    def when_confirmed(self, copy: ChainMember, work: Callable[[], None]) -> None: ...
    def disk_is_full(self) -> None: ...


class ChainDesk:
    """Works for all partitions of this broker."""

    def __init__(
        self,
        environment: Environment,
        standing: Standing,
        *,
        partitions: Mapping[Key, Partition],
        copies: Copies,
        journal: ReplicaJournal,
        port: ClusterPort,
    ) -> None:
        self._reads = environment.reads
        self._failures = environment.failures
        self._standing = standing
        self._partitions = partitions
        self._copies = copies
        self._port = port
        self._epochs = EpochStore(environment, journal, partitions)
        self._flusher = Flusher(environment.loop, environment.failures)
        self._awake: set[Key] = set()  # those that have something to look at
        self.tell = port.tell

    # --- words to others ------------------------------------------------------------------------

    def report(self, key: Key, message: PartitionMessage) -> None:
        self._port.report(key, message)

    def disk_is_full(self) -> None:
        self._port.disk_is_full()

    def copy_changed(self) -> None:
        """The controller should know soon."""
        self._port.report_soon()

    def data_link(self, to: str) -> DataLink | None:
        return self._port.data_link(to)

    def when_confirmed(self, partition: ChainMember, work: Callable[[], None]) -> None:
        """C28: what cannot be undone waits for the store's word on this member's predecessor."""
        self._port.when_confirmed(partition, work)

    # --- the disk -------------------------------------------------------------------------------

    def store_epoch(self, partition: ChainMember, epoch: int) -> None:
        self._epochs.store(partition, epoch)

    def cut_log(self, partition: ChainMember, effect: Truncate) -> AnyLog:
        """In a thread."""
        return self._copies.cut(partition, effect)

    def retire(self, partition: ChainMember, start: int) -> None:
        """The head let go of what is below; so does this member (C23)."""
        self.when_confirmed(partition, partial(self._retire, partition, start))

    def _retire(self, partition: ChainMember, start: int) -> None:
        def retired(found: Any, error: StentorError | None) -> None:
            if error is None and self._partitions.get(partition.key) is partition:
                partition.step(Started(found))  # those after this member hear of it, also while nothing is published

        work = partial(partition.log.retire_below, start, committed=partition.committed)
        self._reads.submit(work, retired)

    def flush_later(self, key: Key) -> None:
        """A topic with flush=interval was written to."""
        if (partition := self._partitions.get(key)) is not None:
            self._flusher.add(partition)

    def stop_flushing(self) -> None:
        """The broker stops, and brings everything to disk itself."""
        self._flusher.close()

    # --- time -----------------------------------------------------------------------------------

    def stay_awake(self, key: Key) -> None:
        """Something happened to it: it is looked at with every beat of the cluster, until nothing is left to do."""
        self._awake.add(key)

    def wake_before(self, names: frozenset[str]) -> None:
        """These brokers are not heard any more: whose successors they are has something to look at."""
        for key, partition in self._partitions.items():
            successor = partition.replica.position.successor
            if successor is not None and successor.broker in names:
                self._awake.add(key)

    def tick(self) -> None:
        """Let replicas look at their neighbours, those that have something to look at; so many, and then others."""
        tick = Tick(self._standing.unheard, self._standing.awake_since_us)
        awake = list(self._awake)
        if len(awake) > limits.TICKED_PARTITIONS_MAX:
            awake = random.sample(awake, limits.TICKED_PARTITIONS_MAX)  # all have their turn soon
        for key in awake:
            partition = self._partitions.get(key)
            if partition is not None:
                self._failures.run(f"{partition.name}: its beat", partition.tick, tick)
            if partition is None or partition.replica.complaints.are_over(tick.unheard):
                self._awake.discard(key)
