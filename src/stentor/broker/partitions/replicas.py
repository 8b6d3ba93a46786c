"""The replicas that this broker holds: opened, created, adopted, cut, put aside.

What a partition cannot do alone is here: logs are opened in threads, epochs are stored in one journal for all
partitions (one write for all that wait), and messages to other brokers go through the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.broker.partitions.flusher import Flusher
from stentor.broker.partitions.partition import Partition
from stentor.core.dedupe import Dedupe
from stentor.core.records import Key, Member
from stentor.core.replica import Replica
from stentor.core.replica_events import Configure, EpochStored, Fail, PeerConnected, Started, Tick, Truncate
from stentor.errors import CorruptData, DiskFull, NotReady, OutOfDescriptors, StentorError
from stentor.memory import keep_long_lived_objects
from stentor.storage.log import PartitionLog
from stentor.storage.model import LogSettings
from stentor.storage.recovery import ForeignSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from stentor.broker.broker import Broker
    from stentor.broker.catalogue import HeldTopic
    from stentor.broker.cluster.peer_links import PeerLink
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.controller import HeldRecord
    from stentor.storage.directory import DataDirectory
    from stentor.storage.journal import ReplicaJournal
    from stentor.wire.messages import TopicSettings

logger = logging.getLogger(__name__)

_RECOVERY_THREADS = 4
_SETTLED_PARTITIONS = 500  # so many new ones are worth setting apart from what is collected
_ASK_AGAIN_S = 1.0  # when the disk was full


class Replicas:
    """All partitions of this broker."""

    def __init__(self, broker: Broker, directory: DataDirectory, journal: ReplicaJournal) -> None:
        self.partitions: dict[Key, Partition] = {}
        self._broker = broker
        self._directory = directory
        self._journal = journal
        self._epochs_waiting: dict[Partition, int] = {}  # the highest of each
        self._storing = False
        self._creating: dict[Key, HeldRecord] = {}  # being made; with the newest record heard meanwhile
        self._superseded_since: dict[Key, float] = {}
        self._dropping: dict[Key, HeldRecord | None] = {}  # being removed; with the newest record heard meanwhile
        self._dropped: set[int] = set()  # ids of logs that were removed in this life
        self._tasks: set[asyncio.Task[None]] = set()
        self._added = 0  # since long-lived objects were last set apart
        self._flusher = Flusher(broker.loop)
        self._awake: set[Partition] = set()  # those that have something to look at
        self.single = False  # a broker on its own takes its logs as they are

    # --- opening --------------------------------------------------------------------------------

    async def open_all(self, topics: Iterable[HeldTopic], named: dict[Key, Member]) -> None:
        """Recover every log on this disk, several at a time: what a restart waits for."""
        wanted = []
        for topic in topics:
            for key in topic.keys:
                known = self._journal.get(*key)
                log_id = known.log_id if known is not None else None
                if log_id is None and self.single and key in named:
                    log_id = named[key].log_id
                if log_id is not None:
                    wanted.append((topic, key, log_id))
        loop = self._broker.loop
        with ThreadPoolExecutor(_RECOVERY_THREADS, "stentor-recovery") as pool:
            opening = [loop.run_in_executor(pool, self._reopen, topic, key, log_id) for topic, key, log_id in wanted]
            for partition in await asyncio.gather(*opening):
                if partition is not None:
                    self._add(partition)

    def _reopen(self, topic: HeldTopic, key: Key, log_id: int) -> Partition | None:
        """A copy that cannot be opened is put aside if others have the partition; alone, it is for the operator."""
        try:
            return self._open(topic, key, log_id)
        except (CorruptData, ForeignSegment) as error:  # all else is no fault of the copy: descriptors, a newer format
            if topic.plan.factor == 1:
                raise
            aside = self._directory.put_aside(*key)
            self._journal.remove(*key)
            logger.error("%s/%d cannot be opened and was put aside (%s): %s", topic.record.name, key[1], aside, error)  # noqa: TRY400
            return None

    async def create(self, topic: HeldTopic, key: Key, log_id: int) -> Partition:
        """Begin a new log; what was in its place is put aside."""
        partition = await self._broker.loop.run_in_executor(None, self._create, topic, key, log_id)
        self._add(partition)
        return partition

    async def create_many(self, topic: HeldTopic, log_ids: dict[Key, int]) -> None:
        """Begin the logs of a new topic, a few at a time."""
        await asyncio.to_thread(self._note_copies, log_ids)
        with ThreadPoolExecutor(_RECOVERY_THREADS, "stentor-create") as pool:
            making = [
                self._broker.loop.run_in_executor(pool, self._create, topic, key, log_id)
                for key, log_id in log_ids.items()
            ]
            outcomes = await asyncio.gather(*making, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Partition):
                self._add(outcome)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _create(self, topic: HeldTopic, key: Key, log_id: int) -> Partition:
        known = self._journal.get(*key)
        if known is not None and known.log_id != log_id:
            aside = self._directory.put_aside(*key)
            logger.warning("%s/%d: the old copy of the log was put aside: %s", topic.record.name, key[1], aside)
        if known is None or known.log_id != log_id:
            self._note_copies({key: log_id})
        return self._open(topic, key, log_id)

    def _note_copies(self, log_ids: dict[Key, int]) -> None:
        """The journal knows of copies before they exist: a crash in between finds an empty one, not a stranger's."""
        for key, log_id in log_ids.items():
            self._journal.update(*key, log_id=log_id)
        self._journal.store()

    def _add(self, partition: Partition) -> None:
        self.partitions[partition.key] = partition
        self._added += 1
        if self._added >= _SETTLED_PARTITIONS:
            self._added = 0
            keep_long_lived_objects()

    def _open(self, topic: HeldTopic, key: Key, log_id: int) -> Partition:
        record = topic.record
        known = self._journal.get(*key)
        current = known if known is not None and known.log_id == log_id else None
        dedupe = Dedupe()
        log = PartitionLog.open(
            self._directory.partition_directory(*key),
            topic_id=key[0],
            partition=key[1],
            log_id=log_id,
            settings=self.log_settings(record.settings),
            floor=None if current is None else current.floor,
            restore=dedupe.restore,
            replay=dedupe.record_batch,
            unclean=self._broker.config.unclean,
        )
        _report_recovery(record.name, key[1], log)
        replicated = topic.plan.factor > 1
        damaged = replicated and bool(
            log.damaged or log.recovery.truncated or (current is not None and current.damaged)
        )
        if damaged:  # at once: the next start finds nothing torn any more
            self._journal.update(*key, log_id=log_id, damaged=True)
            self._journal.store()
        replica = Replica(
            me=Member(self._broker.broker_id, log_id, self._journal.incarnation),
            epoch=0 if known is None else known.epoch,
            start=log.start,
            end=log.end,
            committed=0 if current is None else min(current.committed, log.end),
            dedupe=dedupe,
            table=log.epochs(),
            failed=self._unusable(log, replicated=replicated),
            damaged=damaged,
        )
        broker = self._broker
        return Partition(
            topic=record.name,
            topic_id=key[0],
            index=key[1],
            settings=record.settings,
            schemas=len(record.schemas),
            log=log,
            replica=replica,
            clock=broker.clock,
            syncs=broker.syncs,
            reads=broker.reads,
            chain=self,
        )

    def _unusable(self, log: PartitionLog, *, replicated: bool) -> str:
        """Why this copy may not take part; a single broker serves what is left of a damaged one (K2)."""
        if log.failed:
            return log.failed
        if replicated and log.damaged:
            return f"offsets {log.damaged[0][0]} to {log.damaged[0][1]} are damaged on this disk"
        return ""

    def log_settings(self, settings: TopicSettings) -> LogSettings:
        return LogSettings(
            segment_bytes=settings.segment_bytes,
            retention_age_s=settings.retention_age_s,
            retention_bytes=settings.retention_bytes,
            disk_reserve_bytes=self._broker.config.disk_reserve_bytes,
        )

    def flush_later(self, partition: Partition) -> None:
        """A topic with flush=interval was written to."""
        self._flusher.add(partition)

    def stop_flushing(self) -> None:
        """The broker stops, and brings everything to disk itself."""
        self._flusher.close()

    # --- records --------------------------------------------------------------------------------

    def configure(self, topic: HeldTopic, key: Key, held: HeldRecord) -> None:
        """The store has this record of a partition; it may name this broker."""
        named = self._named(held)
        partition = self.partitions.get(key)
        if key in self._dropping:
            self._dropping[key] = held
        elif key in self._creating:
            self._creating[key] = held
        elif named is not None and (partition is None or partition.replica.me.log_id != named.log_id):
            if named.log_id in self._dropped:
                # C3: empty, it would pass for the copy that it was. The controller hears that there is none.
                if named in held.record.chain:
                    logger.critical("%s/%d: this copy was removed, and cannot be a member", topic.record.name, key[1])
                self._broker.cluster.reporting.soon(key)
                return
            self._creating[key] = held
            self._spawn(self._create_named(topic, key, named))
        elif partition is not None:
            partition.step(Configure(held.record, held.revision))

    def _named(self, held: HeldRecord) -> Member | None:
        """This broker's member in the record, if it is of this life."""
        me, life = self._broker.broker_id, self._journal.incarnation
        return next((m for m in held.record.members if m.broker == me and m.incarnation == life), None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._broker.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create_named(self, topic: HeldTopic, key: Key, named: Member) -> None:
        held: HeldRecord | None = None
        try:
            await self._close_replaced(key)
            await self.create(topic, key, named.log_id)
            held = self._creating[key]
        except (StentorError, OSError) as error:  # the next record of the partition tries again
            logger.warning("partition %s/%d cannot be opened: %s", topic.record.name, key[1], error)
        finally:
            self._creating.pop(key, None)
        if held is not None:
            self.configure(topic, key, held)
            self._broker.cluster.reporting.soon(key)

    async def _close_replaced(self, key: Key) -> None:
        old = self.partitions.pop(key, None)
        if old is None:
            return
        self._dropped.add(old.replica.me.log_id)
        old.end_streams(NotReady("This copy of the partition is being replaced.", hint="Another broker has one."))
        await self.settle(old)
        with suppress(StentorError):  # its disk may be why it is replaced
            old.log.close()

    async def settle(self, partition: Partition) -> None:
        """Bring what it has to disk."""
        settled = asyncio.Event()
        partition.stop(settled.set)
        await settled.wait()

    def peer_connected(self, broker: str) -> None:
        for partition in list(self.partitions.values()):
            if broker in partition.replica.position.brokers or partition.replica.position.successor is not None:
                partition.step(PeerConnected(broker))

    def predecessor_lost(self, name: str) -> None:
        """C25: without its predecessor a member does not hear of commits; nobody shall stay "live" on it."""
        for partition in self.partitions.values():
            if partition.streams:
                predecessor = partition.replica.position.predecessor
                if predecessor is not None and predecessor.broker == name:
                    partition.end_streams_for_now()

    def stay_awake(self, partition: Partition) -> None:
        """Something happened to it: it is looked at with every beat of the cluster, until nothing is left to do."""
        self._awake.add(partition)

    def wake_before(self, names: frozenset[str]) -> None:
        """These brokers are not heard any more: whose successors they are has something to look at."""
        for partition in self.partitions.values():
            successor = partition.replica.position.successor
            if successor is not None and successor.broker in names:
                self._awake.add(partition)

    def tick(self) -> None:
        """Let replicas look at their neighbours, those that have something to look at; so many, and then others."""
        tick = Tick(self._broker.cluster.unheard, self._broker.cluster.awake_since_us)
        awake = list(self._awake)
        if len(awake) > limits.TICKED_PARTITIONS_MAX:
            awake = random.sample(awake, limits.TICKED_PARTITIONS_MAX)  # all have their turn soon
        for partition in awake:
            if self._holds(partition):
                partition.tick(tick)
            if not self._holds(partition) or partition.replica.complaints.are_over(tick.unheard):
                self._awake.discard(partition)

    def forget_superseded(self) -> None:
        """Copies that full chains no longer name go, a while after they were last needed."""
        now = self._broker.clock.monotonic()
        for key, partition in list(self.partitions.items()):
            if partition.replica.position.index is not None:
                if self._superseded_since:
                    self._superseded_since.pop(key, None)
                continue
            record = partition.replica.record
            held = self._broker.catalogue.chains.get(key)
            if record is None or held is None or not self._is_superseded(held, partition):
                self._superseded_since.pop(key, None)
            elif now - self._superseded_since.setdefault(key, now) > limits.SUPERSEDED_S:
                del self._superseded_since[key]
                self._spawn(self._drop_superseded(key, partition))

    async def _drop_superseded(self, key: Key, partition: Partition) -> None:
        """C28: the store is asked once more before a copy is removed."""
        try:
            await self._broker.cluster.look_again()
        except StentorError as error:
            logger.warning("%s: whether this copy is still needed could not be asked: %s", partition.name, error)
            return
        held = self._broker.catalogue.confirmed.get(key)
        if held is not None and self._is_superseded(held, partition) and self._holds(partition):
            logger.warning("%s: this copy is not needed any more and is removed", partition.name)
            await self.drop(key, NotReady("This copy of the partition was removed.", hint="Other brokers have it."))

    def _is_superseded(self, held: HeldRecord, partition: Partition) -> bool:
        record = held.record
        members = (*record.members, *record.eligible)
        named = any(member.broker == self._broker.broker_id for member in members)
        return not named and len(record.chain) >= record.factor and partition.replica.position.index is None

    async def drop(self, key: Key, error: StentorError) -> None:
        """The topic was deleted: its log goes."""
        partition = self.partitions.pop(key, None)
        if partition is None:
            self._journal.remove(*key)
            return
        self._dropping[key] = None
        self._dropped.add(partition.replica.me.log_id)
        if self._broker.cluster.member is not None:
            self._broker.cluster.reporting.soon(key)  # nobody shall count on it any more
        try:
            partition.end_streams(error)
            await self.settle(partition)
            self._journal.remove(*key)
            await asyncio.to_thread(partition.log.delete)
        finally:
            held = self._dropping.pop(key)
        topic = self._broker.catalogue.by_id.get(key[0])
        if held is not None and topic is not None:
            self.configure(topic, key, held)

    # --- what a partition needs (ChainWork) -----------------------------------------------------

    def tell(self, to: str, key: Key, message: PartitionMessage) -> None:
        self._broker.cluster.tell(to, key, message)

    def report(self, key: Key, message: PartitionMessage) -> None:
        self._broker.cluster.report(key, message)

    def unheard(self) -> frozenset[str]:
        return self._broker.cluster.unheard

    def disk_is_full(self) -> None:
        self._broker.cluster.disk_is_full()

    def copy_failed(self) -> None:
        """The controller should know soon."""
        self._broker.cluster.reporting.soon()

    def data_link(self, to: str) -> PeerLink | None:
        return self._broker.cluster.peers.data_link(to)

    def store_epoch(self, partition: Partition, epoch: int) -> None:
        """C2: on disk before anything is done in it; one write for all that wait."""
        self._await_epoch(partition, epoch)
        if not self._storing:
            self._storing = True
            self._broker.loop.call_soon(self._store_epochs)

    def _await_epoch(self, partition: Partition, epoch: int) -> None:
        self._epochs_waiting[partition] = max(epoch, self._epochs_waiting.get(partition, 0))

    def _holds(self, partition: Partition) -> bool:
        """Whether it was neither removed nor replaced."""
        return self.partitions.get(partition.key) is partition

    def _store_epochs(self) -> None:
        asked, self._epochs_waiting = self._epochs_waiting, {}
        waiting = {partition: epoch for partition, epoch in asked.items() if self._holds(partition)}
        for partition, epoch in waiting.items():
            self._journal.update(*partition.key, log_id=partition.replica.me.log_id, epoch=epoch)
        self._broker.epochs.submit(self._journal.store, partial(self._epochs_stored, waiting))

    def _epochs_stored(self, waiting: dict[Partition, int], _: Any, error: StentorError | None) -> None:
        self._storing = False
        for partition, epoch in waiting.items():
            if not self._holds(partition):
                continue
            if error is None:
                partition.step(EpochStored(epoch))
            elif isinstance(error, DiskFull | OutOfDescriptors):
                self._await_epoch(partition, epoch)  # it stays wedged until there is room (K5)
            else:
                logger.error("the journal could not be written: %s", error)
                partition.step(Fail(f"the journal could not be written: {error.message}"))
        if self._epochs_waiting:
            self._storing = True
            self._broker.loop.call_later(_ASK_AGAIN_S if error is not None else 0, self._store_epochs)

    def cut_log(self, partition: Partition, effect: Truncate) -> PartitionLog:
        """In a thread: the log ends here, or begins anew here; the state derived from it follows (C9, C19)."""
        log, dedupe = partition.log, partition.replica.dedupe
        partition.noted = None  # what the journal says changes here too
        if not effect.reset:
            floor = self._journal.get(*partition.key)
            if floor is not None and floor.synced_end > effect.end:
                self._journal.rewind(*partition.key, synced_end=effect.end)
                self._journal.store()
            log.truncate(effect.end, committed=min(partition.committed, effect.end))
            log.replay(dedupe.restore, dedupe.record_batch)
            return log
        identity = log.identity
        log.delete()
        self._journal.remove(*partition.key)
        self._journal.update(*partition.key, log_id=identity.log_id, epoch=partition.replica.epoch)
        self._journal.store()
        fresh = PartitionLog.open(
            log.directory,
            topic_id=identity.topic_id,
            partition=identity.partition,
            log_id=identity.log_id,
            settings=log.settings,
            start=effect.end,
        )
        if effect.snapshot is not None:
            fresh.keep_start_snapshot(effect.snapshot)
        dedupe.restore(effect.snapshot)
        return fresh

    def when_confirmed(self, partition: Partition, work: Callable[[], None]) -> None:
        """C28: what cannot be undone waits for the store's word on this member's predecessor."""
        self._broker.cluster.hearsay.when_confirmed(partition, work)

    def retire(self, partition: Partition, start: int) -> None:
        """The head let go of what is below; so does this member (C23)."""
        self.when_confirmed(partition, partial(self._retire, partition, start))

    def _retire(self, partition: Partition, start: int) -> None:

        def retired(found: Any, error: StentorError | None) -> None:
            if error is None and self._holds(partition):
                partition.step(Started(found))  # those after this member hear of it, also while nothing is published

        work = partial(partition.log.retire_below, start, committed=partition.committed)
        self._broker.reads.submit(work, retired)

    # --- books ----------------------------------------------------------------------------------

    def note_floors(self) -> None:
        """What moved since the last time goes into the journal."""
        for key, partition in self.partitions.items():
            log, replica = partition.log, partition.replica
            synced_end = log.synced_end
            floors = (log, synced_end, replica.committed, replica.damaged)
            if floors == partition.noted or partition.is_cutting or self._ends_below_floor(partition, synced_end):
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

    def retain(self) -> None:
        """In a thread: the head of each chain lets old segments go; its members follow."""
        broker = self._broker
        for partition in list(self.partitions.values()):
            settings = partition.settings
            limited = settings.retention_age_s or settings.retention_bytes is not None
            if partition.deleted or not limited or not partition.replica.position.is_head:
                continue
            before = partition.log.start
            start = self._retain_one(partition)
            if start != before:
                broker.loop.call_soon_threadsafe(partition.step, Started(start))

    def _retain_one(self, partition: Partition) -> int:
        now_us, committed = self._broker.clock.now_us(), partition.committed
        if not partition.settings.keep_unrecorded:
            partition.kept_unrecorded = 0
            return partition.log.retain(now_us, committed=committed)
        recorded = min(self._broker.recorded.end(partition.key), committed)
        start = partition.log.retain(now_us, committed=recorded)
        due = partition.log.retention_end(now_us, committed=committed)
        partition.kept_unrecorded = max(0, due - max(start, recorded))
        return start

    def clear_aside(self) -> None:
        """In a thread: copies that were replaced long ago go, where the chain is full without them."""
        age_s, now_s = self._broker.config.aside_age_s, self._broker.clock.now_us() / 1_000_000
        for copy in self._directory.aside() if age_s else ():
            if now_s - copy.since_s >= age_s and self._is_replaced((copy.topic_id, copy.partition)):
                logger.info("%s was put aside %.0f s ago and is removed", copy.path.name, now_s - copy.since_s)
                self._directory.remove_aside(copy)

    def _is_replaced(self, key: Key) -> bool:
        """Whether others hold all of it; of a topic that nobody knows and nobody deleted, nothing is removed."""
        held = self._broker.catalogue.chains.get(key)
        if held is None:
            return key[0] in self._broker.catalogue.deleted
        return len(held.record.chain) >= held.record.factor


def _report_recovery(topic: str, index: int, log: PartitionLog) -> None:
    report = log.recovery
    for truncation in report.truncated:
        logger.warning("%s/%d: a torn write at the end was cut off: %s", topic, index, truncation)
    for damage in log.damaged:
        logger.error("%s/%d: offsets %d to %d are damaged and refused", topic, index, *damage)
