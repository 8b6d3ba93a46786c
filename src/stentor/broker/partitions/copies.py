"""The copies of partitions on this broker's disk: opened, begun, cut, set aside. What touches logs runs in threads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stentor.broker.partitions.partition import Partition
from stentor.broker.partitions.states import states_of
from stentor.core.names import is_reserved
from stentor.core.records import Key, Member
from stentor.core.replica import Replica
from stentor.errors import CorruptData, InternalError
from stentor.storage.log import PartitionLog
from stentor.storage.memory_log import AnyLog, MemoryLog
from stentor.storage.model import Identity, LogSettings
from stentor.storage.recovery import ForeignSegment

if TYPE_CHECKING:
    from stentor.broker.catalogue import HeldTopic, TopicRecord
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.broker.partitions.chain_work import ChainMember, ChainWork
    from stentor.broker.partitions.tail_cache import TailBudget
    from stentor.core.memory_budget import MemoryBudget
    from stentor.core.replica_events import Truncate
    from stentor.core.standing import Standing
    from stentor.storage.directory import DataDirectory
    from stentor.storage.journal import ReplicaJournal

logger = logging.getLogger(__name__)


class Copies:
    """Logs and what the journal knows of them."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        standing: Standing,
        *,
        directory: DataDirectory,
        journal: ReplicaJournal,
        memory: MemoryBudget,
        tails: TailBudget,
    ) -> None:
        self._environment = environment
        self._identity = identity
        self._standing = standing
        self._directory = directory
        self._journal = journal
        self._memory = memory
        self._tails = tails
        self.unopened: dict[Key, str] = {}  # topics by name: copies that are on this disk, and cannot be opened

    # --- opening --------------------------------------------------------------------------------

    def reopen(self, topic: HeldTopic, key: Key, log_id: int, chain: ChainWork) -> Partition | None:
        """Open a copy at the start; return None if that is not possible: it fails alone, and the broker starts (C33).

        A damaged one is put aside if others have the partition. Any other stays as it is: for the operator, or for a
        Stentor that can open it; if the chain goes on without it, a new copy takes its place. What is no fault of the
        copy is raised: a machine without descriptors or memory, a newer format (C27).
        """
        try:
            return self._open(topic, key, log_id, chain)
        except (CorruptData, ForeignSegment) as error:
            if topic.plan.factor > 1:
                aside = self._directory.put_aside(*key)
                self._journal.remove(*key)
                logger.error(  # noqa: TRY400
                    "%s/%d cannot be opened and was set aside (%s): %s", topic.record.name, key[1], aside, error
                )
                return None
            logger.error("%s/%d cannot be opened: %s", topic.record.name, key[1], error)  # noqa: TRY400
        except InternalError:
            logger.exception("%s/%d cannot be opened", topic.record.name, key[1])
        self.unopened[key] = f"{topic.record.name}/{key[1]}"
        return None

    def begin(self, topic: HeldTopic, key: Key, log_id: int, chain: ChainWork, start: int = 0) -> Partition:
        """A new log; what was in its place is put aside. One in memory begins at `start`: it may have been lost."""
        known = self._journal.get(*key)
        if known is not None and known.log_id != log_id and not topic.in_memory:
            aside = self._directory.put_aside(*key)
            logger.warning("%s/%d: the old copy of the log was set aside: %s", topic.record.name, key[1], aside)
        if known is None or known.log_id != log_id:
            self.note({key: log_id})
        partition = self._open(topic, key, log_id, chain, start)
        self.unopened.pop(key, None)
        return partition

    def note(self, log_ids: dict[Key, int]) -> None:
        """The journal knows of copies before they exist: a crash in between finds an empty one, not a stranger's."""
        for key, log_id in log_ids.items():
            self._journal.update(*key, log_id=log_id)
        self._journal.store()

    def _open(self, topic: HeldTopic, key: Key, log_id: int, chain: ChainWork, start: int = 0) -> Partition:
        record, environment = topic.record, self._environment
        known = self._journal.get(*key)
        current = known if known is not None and known.log_id == log_id else None
        states = states_of(topic)
        states.begin(0 if current is None else current.committed)
        log: AnyLog
        if topic.in_memory:
            log = MemoryLog(Identity(*key, log_id), self.log_settings(record), start=start)
            log.derive(states)
        else:
            log = PartitionLog.open(
                self._directory.partition_directory(*key),
                topic_id=key[0],
                partition=key[1],
                log_id=log_id,
                settings=self.log_settings(record),
                floor=None if current is None else current.floor,
                derived=states,
                unclean=environment.config.unclean,
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
            me=Member(self._identity.broker_id, log_id, self._identity.incarnation),
            epoch=0 if known is None else known.epoch,
            start=log.start,
            end=log.end,
            committed=0 if current is None else min(current.committed, log.end),
            states=states,
            table=log.epochs(),
            failed=_unusable(log, replicated=replicated),
            damaged=damaged,
            standing=self._standing,
        )
        return Partition(
            topic=record.name,
            topic_id=key[0],
            index=key[1],
            settings=record.settings,
            schemas=len(record.schemas),
            log=log,
            replica=replica,
            clock=environment.clock,
            syncs=environment.syncs,
            reads=environment.reads,
            chain=chain,
            memory=self._memory,
            tails=self._tails,
            slices=environment.slices,
        )

    def log_settings(self, topic: TopicRecord) -> LogSettings:
        """What the log needs to know of a topic's settings. Brokers' own topics may use half of the disk's reserve: a
        full disk has room again when a cursor moves that retention waits for.
        """
        settings, reserve = topic.settings, self._environment.config.disk_reserve_bytes
        return LogSettings(
            segment_bytes=settings.segment_bytes,
            retention_age_s=settings.retention_age_s,
            retention_bytes=settings.retention_bytes,
            disk_reserve_bytes=reserve // 2 if is_reserved(topic.name) else reserve,
        )

    # --- cutting --------------------------------------------------------------------------------

    def cut(self, partition: ChainMember, effect: Truncate) -> AnyLog:
        """The log ends here, or begins anew here; the state derived from it follows (C9, C19)."""
        partition.noted = None  # what the journal says changes here too
        return self._begin_anew(partition, effect) if effect.reset else self._cut_back(partition, effect.end)

    def _cut_back(self, partition: ChainMember, end: int) -> AnyLog:
        log, states = partition.log, partition.replica.states
        floor = self._journal.get(*partition.key)
        if floor is not None and floor.synced_end > end:
            self._journal.rewind(*partition.key, synced_end=end)
            self._journal.store()
        log.truncate(end, committed=min(partition.committed, end))
        if not states.cut(end):
            log.derive(states)
            states.commit(partition.committed)
        return log

    def _begin_anew(self, partition: ChainMember, effect: Truncate) -> AnyLog:
        log, identity = partition.log, partition.log.identity
        log.delete()
        # The epoch that the machine asked for last may be in the journal already, before the machine hears of it.
        self._journal.begin_anew(*partition.key, log_id=identity.log_id, epoch=partition.replica.epoch)
        self._journal.store()
        fresh: AnyLog
        if isinstance(log, MemoryLog):
            fresh = MemoryLog(identity, log.settings, start=effect.end)
        else:
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
        states = partition.replica.states
        states.begin(effect.end)
        if effect.snapshot is None or not states.restore(effect.snapshot, effect.end):
            states.restore(None, effect.end)
        return fresh

    # --- removing -------------------------------------------------------------------------------

    def forget(self, key: Key) -> None:
        """The journal has no more to say about it."""
        self._journal.remove(*key)
        self.unopened.pop(key, None)

    def remove_directories(self, keys: list[Key]) -> None:
        """What a topic that was not made left on disk."""
        for key in keys:
            self._directory.remove_partition(*key)

    def remove_deleted(self, topic_ids: set[int]) -> None:
        """A crash may have come between deleting topics and removing their files."""
        for found in self._directory.partitions():
            if found.topic_id in topic_ids:
                self._directory.remove(found)
                self._journal.remove(found.topic_id, found.partition)

    def topics_on_disk(self) -> set[int]:
        """Return the topics that this disk has something of; copies that are kept aside for ever do not count."""
        found = {each.topic_id for each in self._directory.partitions()} | {key[0] for key in self._journal.replicas()}
        if self._environment.config.aside_age_s:
            found |= {each.topic_id for each in self._directory.aside()}
        return found

    def put_all_aside(self) -> None:
        """This data directory is an old copy: nothing of it counts."""
        for key in self._journal.replicas():
            self._directory.put_aside(*key)
            self._journal.remove(*key)


def _unusable(log: AnyLog, *, replicated: bool) -> str:
    """Why this copy may not take part; a single broker serves what is left of a damaged one (K2)."""
    if log.failed:
        return log.failed
    if replicated and log.damaged:
        return f"offsets {log.damaged[0][0]} to {log.damaged[0][1]} are damaged on this disk"
    return ""


def _report_recovery(topic: str, index: int, log: AnyLog) -> None:
    report = log.recovery
    for truncation in report.truncated:
        logger.warning("%s/%d: a torn write at the end was cut off: %s", topic, index, truncation)
    for damage in log.damaged:
        logger.error("%s/%d: offsets %d to %d are damaged and refused", topic, index, *damage)
