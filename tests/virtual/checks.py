"""What must hold after every step, whatever has failed: over the brokers' machines, logs and journals, and the store.

What a log holds is what its machine was told that it holds, and what is read from its files when it is opened, and at
the end. What is safe is what the virtual disk was asked to sync. What was promised is what the machines tell clients.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from tests.virtual.copies import (
    Batch,
    Copy,
    committed_cursors,
    derive,
    of_header,
    pending_end,
    read_log,
    remembered,
    versions,
)
from tests.virtual.starts import Starts
from tests.virtual.world import SECOND

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, chain_key
from stentor.broker.partitions.partition import Partition
from stentor.core import replica_events as r
from stentor.core.acks import ALL, QUORUM
from stentor.core.chain_messages import Adopt, Down, Held, Linked, Up
from stentor.core.membership import ControllerKey
from stentor.core.records import ChainRecord, Key, Member
from stentor.core.replica import Replica
from stentor.errors import UnknownOutcome
from stentor.storage.journal import ReplicaJournal
from stentor.storage.log import PartitionLog
from stentor.storage.memory_log import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.virtual.cluster import Cluster
    from tests.virtual.world import Process

    from stentor.ports import Entry

REPLACED_US = int(5 * limits.PEER_SILENCE_S * SECOND)  # by then a head has heard that it was replaced, or hears nobody
OF_EPOCH = (Up, Down, Held, Linked)  # what neighbours say, each of an epoch


class Checker:
    """Watches all brokers of a cluster, and the store."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.copies: dict[Replica, Copy] = {}
        self._by_directory: dict[str, Copy] = {}
        self.newest: dict[tuple[Key, str, int], Copy] = {}  # by broker and log id, also after a death
        self.excused: set[tuple[Key, str, int]] = set()  # copies that a fault took something from
        self.topics: dict[int, str] = {}  # their names
        self.torn: set[tuple[Key, str, int]] = set()  # copies that a loss of power cut, until they are at work again
        self.failed_syncs: set[tuple[Key, str, int]] = set()  # copies whose sync failed
        self.failed_in_recovery: set[tuple[Key, str, int]] = set()  # those of them that were being opened
        self.recovering: set[Key] = set()  # where an operator lets a copy lead, at this moment
        self.values: dict[Key, dict[int, Batch]] = defaultdict(dict)  # by offset: what was committed somewhere
        self.producers: dict[Key, dict[tuple[int, int, int], int]] = defaultdict(dict)  # where each batch is
        self.committed: dict[Key, int] = defaultdict(int)  # the highest commit point that anybody knew
        self.horizons: dict[Key, int] = {}  # the highest horizon that anybody knew to be committed
        self.archive: dict[Key, dict[tuple[int, int], tuple[Any, bytes]]] = defaultdict(dict)  # by epoch and offset
        self.begins: dict[Key, list[int]] = defaultdict(list)  # where memory topics began anew, in order
        self._starts = Starts(self.require)
        self.acked: dict[Key, dict[int, int]] = defaultdict(dict)  # up to where at `all`, by the epoch it was said in
        self.acknowledgements = 0
        self.halts_allowed = False
        self.dies_between = 0.0  # how often a broker dies between two effects
        self._acknowledgers: dict[tuple[Key, int], Member] = {}
        self._synced_by: dict[tuple[Key, Batch], set[str]] = defaultdict(set)  # who ever had a batch on disk
        self._publishes: dict[tuple[Replica, int], r.Publish] = {}
        self._taken: set[tuple[Replica, int]] = set()
        self._asked: dict[tuple[Replica, int], int] = {}  # what was acknowledged when a reader asked for the end
        self._on_disk: dict[tuple[str, Key], tuple[int, int, int]] = {}  # log id, epoch, floor in the journal
        self._damaged_on_disk: set[tuple[str, Key]] = set()  # copies that a journal calls damaged: so would a start
        self._replaced: dict[Key, tuple[int, int]] = {}  # the epoch of the newest head, and since when
        self._views: dict[tuple[Key, int], Any] = {}  # the cursors that are committed at a commit point
        self._records: dict[Key, ChainRecord] = {}
        self._stored: dict[Key, dict[int, ChainRecord]] = defaultdict(dict)  # everything that was ever so, by revision
        cluster.store.on_change = self.stored
        self.world.check = self

    # --- what the product is seen to do ---------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every event and every effect of every machine, and every journal that was stored."""
        opened, performed, stepped, stored = Partition.__init__, Partition._perform, Replica.step, ReplicaJournal.store
        retained = PartitionLog.retain

        def init(partition: Partition, **settings: Any) -> None:
            opened(partition, **settings)
            self.opened(partition)

        def perform(partition: Partition, effects: list[Any]) -> None:
            self.performing(partition, effects)
            if self.dies_between and len(effects) > 1 and self.world.rng.random() < self.dies_between:
                performed(partition, effects[: self.world.between(0, len(effects) - 1)])
                self.cluster.die(partition.replica.me.broker)
            performed(partition, effects)

        def step(replica: Replica, event: Any, now_us: int) -> list[Any]:
            if (watch := _EVENTS.get(type(event))) is not None:
                watch(self, replica, event)
            if not _is_of_another_epoch(replica, event):
                return stepped(replica, event, now_us)
            before = _heard(replica)
            effects = stepped(replica, event, now_us)
            ignored = before == _heard(replica) and not any(isinstance(effect, r.Take) for effect in effects)
            self.require(ignored, "what another epoch says was believed", self.copies[replica].place, event)
            return effects

        def store(journal: ReplicaJournal) -> bool:
            done = stored(journal)
            self.journal_stored(journal)
            return done

        def retain(log: PartitionLog, now_us: int, *, committed: int) -> int:
            before = log.start
            try:
                return retained(log, now_us, committed=committed)
            finally:  # also when it dies in the middle of it
                self._starts.retained(self._by_directory[str(log.directory)], before, log.start)

        replaced = [(Partition, "__init__", init), (Partition, "_perform", perform), (Replica, "step", step)]
        with ExitStack() as stack:
            for where, what, instead in [
                *replaced,
                (ReplicaJournal, "store", store),
                (PartitionLog, "retain", retain),
                (MemoryLog, "retain", self._watched_retain()),
            ]:
                stack.enter_context(patch.object(where, what, instead))
            yield

    def _watched_retain(self) -> Any:
        """The same of a log in memory."""
        retained = MemoryLog.retain

        def retain(log: MemoryLog, now_us: int, *, committed: int) -> int:
            before, start = log.start, retained(log, now_us, committed=committed)
            if start != before:
                (copy,) = (copy for copy in self.copies.values() if copy.partition.log is log)
                self._starts.retained(copy, before, start)
            return start

        return retain

    def opened(self, partition: Partition) -> None:
        """C2: an epoch that was acted on is on disk, whatever happened since."""
        me, key = partition.replica.me, partition.key
        self.topics[key[0]] = partition.topic
        readable = (key, me.broker, me.log_id) not in self.excused
        copy = self.copies[partition.replica] = Copy(partition, self.world.current, readable=readable)
        copy.horizons = self.horizons
        self._note_horizon(copy)
        if copy.in_memory:
            self._memory_opened(copy)
        else:
            self._by_directory[str(partition.log.directory)] = copy
        self.newest[key, me.broker, me.log_id] = copy
        log_id, epoch, floor = self._on_disk.get((me.broker, key), (0, 0, 0))
        if log_id == me.log_id:
            now = partition.replica.epoch, partition.replica.committed
            self.require(now[0] >= epoch, "an epoch was forgotten", copy.place, epoch, now)
            if copy.readable:
                self.require(now[1] >= floor or partition.log.end < floor, "a floor was forgotten", copy.place, floor)
        self._on_disk[me.broker, key] = me.log_id, partition.replica.epoch, partition.replica.committed
        self.world.touched[partition.replica] = None

    def _memory_opened(self, copy: Copy) -> None:
        """A copy in memory begins empty, under a name that no copy had before (C3), where its record says."""
        place = copy.key, copy.me.broker, copy.me.log_id
        before, start = self.newest.get(place), copy.partition.log.start
        self.require(before is None, "a copy in memory passes for one that was lost", copy.place)
        self.require(
            not start or start in self.begins[copy.key], "a log begins where no record says", copy.place, start
        )
        self._starts.begun(copy, start)

    def file_synced(self, path: str) -> int | None:
        """A file of a log is safe: how many bytes of it are used, if the log is open."""
        copy = self._by_directory.get(path.rpartition("/")[0])
        if copy is None or copy.process is not self.world.current:
            return None
        return copy.file_synced(path)

    def file_torn(self, path: str) -> None:
        """A loss of power took something of a file; of a log, or of the journal, which knows how to go on without."""
        copy = self._by_directory.get(path.rpartition("/")[0])
        if copy is not None:
            self.torn.add((copy.key, copy.me.broker, copy.me.log_id))

    def file_failed(self, path: str, broker: str) -> None:
        """A sync failed: of a log, or of the journal, with which all logs of a broker fail."""
        copy = self._by_directory.get(path.rpartition("/")[0])
        if copy is not None:
            place = copy.key, copy.me.broker, copy.me.log_id
            self.failed_syncs.add(place)
            if copy.process is not self.world.current:  # of an earlier life: in this one it is being opened
                self.failed_in_recovery.add(place)
        else:
            self.failed_syncs |= {place for place in self.newest if place[1] == broker}

    def journal_stored(self, journal: ReplicaJournal) -> None:
        """Nothing in it goes back, while it is the same log."""
        name = self.world.current.name if self.world.current is not None else ""
        for key, state in journal.replicas().items():
            log_id, epoch, floor = self._on_disk.get((name, key), (0, 0, 0))
            if log_id == state.log_id:
                self.require(state.epoch >= epoch, "a stored epoch went back", name, key, epoch, state)
                kept = state.committed >= floor or self._begins_anew(key, name, log_id)
                self.require(kept, "a stored commit floor went back", name, key, floor, state)
            self._on_disk[name, key] = state.log_id, state.epoch, state.committed
            (self._damaged_on_disk.add if state.damaged else self._damaged_on_disk.discard)((name, key))

    def _begins_anew(self, key: Key, name: str, log_id: int) -> bool:
        """A joiner's log is begun anew at this very moment, where the others begin."""
        copy = self.newest.get((key, name, log_id))
        cutting = None if copy is None else copy.partition.sync._cut
        return cutting is not None and cutting[0].reset

    def require(self, holds: bool, what: str, *details: Any) -> None:
        self.world.require(holds, what, *details)

    # --- events ---------------------------------------------------------------------------------

    def _published(self, replica: Replica, event: r.Publish) -> None:
        if event.ack:
            self._publishes[replica, event.ticket] = event

    def _configured(self, replica: Replica, event: r.Configure) -> None:
        """C1, C17: only records that were swapped into the store are followed."""
        copy = self.copies[replica]
        stored = self._stored[copy.key].get(event.revision)
        self.require(stored == event.record, "a chain that the store never had", copy.place, event, stored)

    def _appended(self, replica: Replica, event: r.Appended) -> None:
        publish, append = event.publish, event.append
        self._taken.add((replica, publish.ticket))
        name = publish.producer_id, publish.generation, publish.sequence
        end = append.base_offset + publish.count
        if event.body:
            self.archive[self.copies[replica].key][append.epoch, append.base_offset] = event.batch, bytes(event.body)
        self.copies[replica].batches.append(
            Batch(append.base_offset, end, append.epoch, *name, publish.checksum, append.refused)
        )

    def _batches_taken(self, replica: Replica, event: r.Taken) -> None:
        self.copies[replica].batches.extend(map(of_header, event.batches))

    def _log_cut(self, replica: Replica, event: r.Cut) -> None:
        """C19: what is derived from a log follows it."""
        copy = self.copies[replica]
        copy.cut(event.end)
        undone = all(pending_end(state) <= event.end for state in replica.states)
        self.require(undone, "a log was cut, and a table has what it lost", copy.place, event)
        if copy.batches and copy.batches[0].base_offset == 0 and not copy.horizon:
            derived = derive(copy.batches)
            self.require(
                remembered(replica.dedupe) == derived, "a log was cut, and not what is derived from it", copy.place
            )

    def _started(self, replica: Replica, event: r.Started) -> None:
        """C23: retention stops at the commit point."""
        copy = self.copies[replica]
        committed = max(self.committed[copy.key], replica.committed)
        self.require(event.start <= committed, "retention passed the commit point", copy.place, event.start, committed)

    def _received(self, replica: Replica, event: r.Received) -> None:
        self._starts.received(self.copies[replica], event)

    def _end_asked(self, replica: Replica, event: r.AskEnd) -> None:
        self._asked[replica, event.ticket] = self.acknowledged_end(self.copies[replica].key)

    def acknowledged_end(self, key: Key) -> int:
        """Up to where was acknowledged at `all`, by whichever head."""
        return max(self.acked[key].values(), default=0)

    # --- effects --------------------------------------------------------------------------------

    def performing(self, partition: Partition, effects: list[Any]) -> None:
        copy = self.copies[partition.replica]
        self.world.touched[partition.replica] = None
        for effect in effects:
            if (watch := _EFFECTS.get(type(effect))) is not None:
                watch(self, copy, effect)

    def _fed(self, copy: Copy, effect: r.StartFeed) -> None:
        """C4: nobody is fed from a log that may still be cut."""
        self.require(copy.partition.replica.linked, "a log that is not reconciled is sent on", copy.place, effect)

    def _committed(self, copy: Copy, effect: r.Committed) -> None:
        """C8: a chain that is too short commits nothing."""
        record = copy.partition.replica.record
        enough = record is not None and len(record.chain) >= record.min_replicas
        self.require(enough, "a short chain commits", copy.place, effect, record)

    def _sent(self, copy: Copy, effect: r.Send) -> None:
        """C2: nothing is said of an epoch that is not on disk yet."""
        message: Any = effect.message
        if isinstance(message, Linked):
            self._linked(copy, effect.to, message)
        epoch = message.record.epoch if isinstance(message, Adopt) else message.epoch
        stored = self._on_disk.get((copy.me.broker, copy.key), (0, 0, 0))[1]
        self.require(epoch <= stored, "an epoch is used before it is on disk", copy.place, message, stored)

    def _linked(self, copy: Copy, to: str, linked: Linked) -> None:
        """C4, C9: who is linked keeps of its log what it has in common with its predecessor, which is reconciled."""
        replica = copy.partition.replica
        self.require(replica.linked, "a log that is not reconciled is a measure", copy.place)
        successor = replica.position.successor
        other = None if successor is None else self.newest.get((copy.key, to, successor.log_id))
        if other is None or linked.reset or not (copy.readable and other.readable):
            return
        asked = other.partition.replica
        if (asked.epoch, asked.links.attempt) == (linked.epoch, linked.attempt) and asked.end >= linked.cut:
            start = max(copy.partition.log.start, other.partition.log.start)
            kept = copy.between(start, linked.cut) == other.between(start, linked.cut)
            self.require(kept, "a successor keeps what its predecessor does not have", copy.place, to, linked)

    def _answered(self, copy: Copy, answer: r.Answer) -> None:
        """An answer promises as many copies on disk as its level says (C5, C7, C18)."""
        replica, key = copy.partition.replica, copy.key
        publish = self._publishes.pop((replica, answer.ticket), None)
        self._taken.discard((replica, answer.ticket))
        if publish is None or publish.producer_id == 0 or not copy.readable:
            return
        gone = answer.base_offset < max(copy.partition.log.start, copy.horizon)
        held = None if gone else copy.at(answer.base_offset)
        name = (publish.producer_id, publish.generation, publish.sequence)
        self.require(
            gone or (held is not None and held.base_offset == answer.base_offset and held.name == name),
            "answered with a wrong offset", copy.place, publish, answer, held,
        )  # fmt: skip
        if held is None:
            return
        self.require(held.body_checksum == publish.checksum, "answered for another batch", copy.place, publish, held)
        self.require(held.refused == answer.refused, "answered with another outcome", copy.place, held, answer)  # C20
        self._check_replaced(copy, answer)
        if publish.ack == ALL:
            self._acknowledged(copy, answer, held)
        else:
            self._note_safe(copy)
            assert replica.record is not None
            members = {(key, member.broker, member.log_id): member.broker for member in replica.record.chain}
            # A member whose disk a fault has changed somewhere holds the rest, and nobody can tell before it is read.
            copies = self._synced_by[key, held] | {members[place] for place in self.excused & members.keys()}
            needed = replica.record.quorum if publish.ack == QUORUM else 1
            self.require(len(copies) >= needed, "answered with too few copies", copy.place, held, copies, needed)

    def _check_replaced(self, copy: Copy, answer: r.Answer) -> None:
        """C6: a head that was replaced does not go on for long, at any level."""
        epoch, since = self._replaced.get(copy.key, (0, 0))
        process = self.cluster.processes[copy.me.broker]
        quiet = self.world.now - max(since, process.paused_until, process.born)
        self.require(
            answer.epoch >= epoch or quiet < REPLACED_US, "a head that was replaced goes on", copy.place, answer, epoch
        )

    def _acknowledged(self, copy: Copy, answer: r.Answer, held: Batch) -> None:
        """One head per epoch acknowledges, and what it does is at every member."""
        key, epoch = copy.key, copy.partition.replica.epoch
        self.acknowledgements += 1
        first = self._acknowledgers.setdefault((key, answer.epoch), copy.me)
        self.require(first == copy.me, "two heads acknowledged in one epoch", key, answer.epoch, first, copy.me)
        self.acked[key][epoch] = max(self.acked[key].get(epoch, 0), held.end_offset)
        for member in self.record(key).chain:
            other = self.newest.get((key, member.broker, member.log_id))
            if other is None or not self.is_whole(other) or held.base_offset < other.partition.log.start:
                continue
            there = other.at(held.base_offset) if held.end_offset <= other.safe else None
            self.require(there == held, "acknowledged at `all`, but not at every member", copy.place, member, held)

    def _refused(self, copy: Copy, effect: r.Refuse) -> None:
        """C6: of a batch that is in a log nobody can say that it failed."""
        replica = copy.partition.replica
        taken = (replica, effect.ticket) in self._taken
        self._publishes.pop((replica, effect.ticket), None)
        unknown = isinstance(effect.error, UnknownOutcome)
        self.require(
            unknown or not taken, "a batch that was taken is said to have failed", copy.place, effect.ticket,
            repr(effect.error),
        )  # fmt: skip

    def _truncating(self, copy: Copy, effect: r.Truncate) -> None:
        """C9: nothing committed is cut off; only a joiner begins anew, where the others begin."""
        kept = effect.reset or effect.end >= copy.partition.replica.committed
        self.require(kept, "what is committed is cut off", copy.place, effect)
        if effect.reset:
            self._starts.reset(copy, effect.end)

    def _halted(self, copy: Copy, effect: r.Halt) -> None:
        """While every rule is kept, nobody meets the reason for a halt."""
        self.require(self.halts_allowed, "a replica halted", copy.place, effect.reason)

    def _ended(self, copy: Copy, effect: r.End) -> None:
        """C30: no reader is told less than was acknowledged before it asked."""
        replica = copy.partition.replica
        before = self._asked.pop((replica, effect.ticket), 0)
        newest = self.record(copy.key) == replica.record
        if effect.certainty == "sure" or (effect.certainty == "if_newest" and newest):
            self.require(effect.end >= before, "a reader was told an end too early", copy.place, effect, before)

    # --- after every step -----------------------------------------------------------------------

    def __call__(self) -> None:
        touched, self.world.touched = self.world.touched, {}
        keys: dict[Key, None] = {}
        for replica in touched:
            copy = self.copies[replica]
            keys[copy.key] = None
            self._check_copy(copy, replica)
        for key in keys:
            if key in self._records:  # else its logs are made, and the store does not know of it yet
                self._check_members(key)

    def _check_copy(self, copy: Copy, replica: Replica) -> None:
        try:
            replica.check_invariants()
        except AssertionError as error:
            self.require(False, "an invariant of a machine", copy.place, replica.statistics(), error)  # noqa: FBT003
        log, key = copy.partition.log, copy.key
        self.require(replica.epoch >= copy.epoch, "an epoch went back", copy.place, copy.epoch, replica.epoch)  # C2
        copy.epoch = replica.epoch
        place = replica.position.index
        if place is not None and replica.record is not None:  # C3
            named = replica.record.chain[place]
            self.require(named == replica.me, "a member that is not named takes part", copy.place, named, replica.me)
        self._note_safe(copy)
        self._note_horizon(copy)
        self.require(log.synced_end <= copy.safe, "said to be on disk, and is not", copy.place, log.synced_end)
        if not copy.partition.sync.is_cutting:
            self.require(replica.durable <= copy.safe, "said to be on disk, and is not", copy.place, replica.durable)
        if replica.serves and replica.record is not None and not replica.record.is_short:
            before = max((end for epoch, end in self.acked[key].items() if epoch < replica.epoch), default=0)
            self.require(  # C24
                replica.committed >= before, "a member shows less than was acknowledged", copy.place,
                replica.committed, before,
            )  # fmt: skip
        if self.is_whole(copy):
            self._starts.check(copy, max(self.committed[key], replica.committed))
        if replica.committed <= copy.compared:
            return
        self.committed[key] = max(self.committed[key], replica.committed)
        if not replica.failed:
            self.require(
                log.end >= replica.committed, "a commit point beyond the log", copy.place, log.end, replica.committed
            )
        for batch in copy.between(copy.compared, replica.committed) if copy.readable else ():
            self._compare(copy, batch)
        copy.compared = replica.committed
        self._compare_cursors(copy, replica)

    def _compare_cursors(self, copy: Copy, replica: Replica) -> None:
        """C19: the cursors that are committed are a function of the log up to the commit point, at every member."""
        view = committed_cursors(replica.states)
        if view is None or not copy.readable or replica.failed or replica.committed < copy.partition.log.start:
            return
        known = self._views.setdefault((copy.key, replica.committed), view)
        self.require(known == view, "cursors differ at one commit point", copy.place, replica.committed, known, view)
        try:
            replica.states.check_invariants()
        except AssertionError as error:
            self.require(False, "an invariant of derived state", copy.place, error)  # noqa: FBT003

    def _note_horizon(self, copy: Copy) -> None:
        horizon = copy.partition.compaction.horizon
        if horizon.offset > self.horizons.get(copy.key, 0):
            self.horizons[copy.key] = horizon.offset
            known = max(self.committed[copy.key], copy.partition.replica.committed)
            self.require(horizon.offset < known, "a horizon beyond the commit point", copy.place, horizon, known)  # C23

    def _note_safe(self, copy: Copy) -> None:
        if copy.safe != copy.noted:
            for batch in copy.between(copy.noted, copy.safe):
                self._synced_by[copy.key, batch].add(copy.me.broker)
            copy.noted = copy.safe

    def _compare(self, copy: Copy, batch: Batch) -> None:
        """One value per committed offset, and one offset per value."""
        known = self.values[copy.key].setdefault(batch.base_offset, batch)
        self.require(known == batch, "two values at one committed offset", copy.place, known, batch)
        if batch.producer_id:
            offset = self.producers[copy.key].setdefault(batch.name, batch.base_offset)
            self.require(offset == batch.base_offset, "one batch at two offsets", copy.place, offset, batch)

    def _check_members(self, key: Key) -> None:
        """Every member of the newest record holds everything committed, on disk."""
        committed = self.committed[key]
        for member in self.record(key).chain:
            place = key, member.broker, member.log_id
            copy = self.newest.get(place)
            if copy is None:
                # A memory topic has begun anew a moment ago, and holds nothing yet.
                new = committed in (0, *self.begins[key][-1:])
                self.require(new or place in self.excused, "a member without its log", key, member)
                continue
            if copy.safe < committed:
                self.require(
                    not self.is_whole(copy), "a member without all that is committed", copy.place, copy.safe, committed
                )
            elif copy.readable and not copy.partition.replica.damaged:
                self.excused.discard(place)
                known = (member.broker, key) not in self._damaged_on_disk
                if known and copy.process is not None and not copy.process.dead:
                    self.torn.discard(place)

    def is_whole(self, copy: Copy) -> bool:
        """Whether no fault took anything of it."""
        replica = copy.partition.replica
        if copy.is_lost:
            return False
        return copy.readable and not replica.failed and (copy.key, copy.me.broker, copy.me.log_id) not in self.excused

    # --- the store ------------------------------------------------------------------------------

    def record(self, key: Key) -> ChainRecord:
        return self._records[key]

    def committed_of(self, partition: int, topic: str) -> int:
        """The highest commit point that anybody knows of a partition."""
        found = (end for key, end in self.committed.items() if key[1] == partition and self.topics[key[0]] == topic)
        return max(found, default=0)

    def keys(self) -> list[Key]:
        return list(self._records)

    def stored(self, name: str, before: Entry | None, after: bytes, by: Process | None) -> None:
        """C1 and C16: which record may follow which, and who may say so."""
        kind, _, rest = name.partition("/")
        if kind != "chains":
            return
        topic, _, index = rest.partition("/")
        key, record = (int(topic, 16), int(index)), msgspec.msgpack.decode(after, type=ChainRecord)
        assert chain_key(key) == name
        self._records[key] = self._stored[key][self.cluster.store.revision + 1] = record
        if before is not None and by is not None:
            self._check_change(key, msgspec.msgpack.decode(before.value, type=ChainRecord), record, by)

    def _check_change(self, key: Key, before: ChainRecord, after: ChainRecord, by: Process) -> None:
        if key in self.recovering and after.epoch > before.epoch + 1:
            self._check_recovery(key, before, after, by)
            return
        held = self.cluster.store.entries.get(CONTROLLER)
        who = None if held is None else msgspec.msgpack.decode(held.value, type=ControllerKey).broker
        self.require(by.name == who, "changed by one who is not the controller", key, by.name, who)
        self.require(bool(after.chain), "an empty chain", key, after)
        short = len(after.chain) < after.min_replicas  # C8
        self.require(short or not after.eligible, "eligible beside a chain that commits without them", key, after)
        if after.epoch == before.epoch:
            same = (before.chain, before.eligible, before.factor) == (after.chain, after.eligible, after.factor)
            self.require(same and before.joining is None, "a change without a new epoch", key, before, after)
            return
        if after.chain[:1] != before.chain[:1]:
            self._replaced[key] = after.epoch, self.world.now
        self.require(after.epoch == before.epoch + 1, "an epoch was left out", key, before, after)
        self.require(after.committed >= before.committed, "the recorded commit point went back", key, before, after)
        if before.reserved is not None and self._check_reserved(key, before, after):
            return
        was, logs = _logs(before.chain), _logs(after.chain)
        joined = [*was, *_logs((before.joining,) if before.joining is not None else ())]
        smaller = len(logs) == len(set(logs)) and set(logs) <= set(was)
        revived = len(logs) == 1 and logs[0] in _logs(before.eligible)
        self.require(smaller or logs == joined or revived, "a chain that may not follow", key, before, after)

    def _check_reserved(self, key: Key, before: ChainRecord, after: ChainRecord) -> bool:
        """A memory topic begins anew only when every copy is gone with its process, above all that was given out."""
        was, now = before.reserved, after.reserved
        assert was is not None
        assert now is not None
        self.require(now.end >= was.end, "a reservation went back", key, before, after)
        if now.begins == was.begins:
            return False
        for member in (*before.chain, *before.eligible):
            copy = self.newest.get((key, member.broker, member.log_id))
            self.require(copy is None or copy.is_lost, "begun anew beside a copy that is left", key, before, member)
        (leader,) = _logs(after.chain)
        self.require(all(leader[1] != name[2] for name in self.newest), "a copy that was there before", key, after)
        given_out = max(self.committed[key], self.acknowledged_end(key))
        self.require(
            now.begins >= max(was.end, given_out), "begun anew below what was given out", key, after, given_out
        )
        self.begins[key].append(now.begins)
        self.committed[key] = now.begins
        return True

    def began(self, partition: int, topic: str) -> list[int]:
        """Where a memory topic began anew."""
        return [
            at
            for key, found in self.begins.items()
            if (key[1], self.topics[key[0]]) == (partition, topic)
            for at in found
        ]

    def _check_recovery(self, key: Key, before: ChainRecord, after: ChainRecord, by: Process) -> None:
        """C13: by an operator's word a copy that may lead leads alone, in an epoch above all that were."""
        logs, known = _logs(after.chain), _logs((*before.chain, *before.eligible))
        alone = len(logs) == 1 and logs[0] in known and logs[0][0] == by.name
        nobody = after.joining is None and not after.eligible
        self.require(alone and nobody, "not what an operator says", key, before, after)
        self._replaced[key] = after.epoch, self.world.now

    def may_lose(self, broker: str) -> bool:
        """Whether a broker's disk may be lost: only while all other members of its chains have whole copies, enough."""
        for key, record in self._records.items():
            members = [member for member in record.chain if member.broker != broker]
            copies = [self.newest.get((key, member.broker, member.log_id)) for member in members]
            whole = sum(copy is not None and self.is_whole(copy) for copy in copies)
            wanted = 1 if len(record.chain) == 2 else 2
            if any(member.broker == broker for member in (*record.chain, *record.eligible)) and (
                whole < len(copies) or whole < wanted
            ):
                return False
        return True

    def excuse(self, broker: str, key: Key | None = None) -> None:
        """A fault takes something from the copies of a broker, or from one of them."""
        self.excused |= {place for place in self.newest if place[1] == broker and key in (None, place[0])}
        for place in self.excused:
            self.newest[place].readable = False  # until it is opened again

    def forget_journal(self, broker: str) -> None:
        """Another one is in its place, or none."""
        self._on_disk = {place: held for place, held in self._on_disk.items() if place[0] != broker}

    def forget_floors(self, broker: str) -> None:
        """A journal knows its logs and their epochs, and not how far they were."""
        for (name, key), (log_id, epoch, _) in self._on_disk.items():
            if name == broker:
                self._on_disk[name, key] = log_id, epoch, 0

    # --- at the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """All members are at rest: their files are what their machines think, and derived state is the same (C19)."""
        for key, record in self._records.items():
            derived: dict[int, set[Any]] = defaultdict(set)  # by commit point: one may have joined in this moment
            for member in record.chain:
                copy = self.newest[key, member.broker, member.log_id]
                log = copy.partition.log
                if not copy.readable:
                    continue  # a bit flipped, and nobody has read it yet
                found = [batch for batch in read_log(log) if batch.base_offset >= copy.horizon]
                self.require(
                    found == copy.between(log.start, log.end), "a file that is not what its machine thinks", copy.place
                )
                for batch in found:
                    if batch.end_offset <= self.committed[key]:
                        self._compare(copy, batch)
                copy.partition.replica.states.check_invariants()
                states = copy.partition.replica.states
                derived[copy.partition.replica.committed].add((states.snapshot(), *map(versions, states)))
            same = all(len(found) == 1 for found in derived.values())
            self.require(same, "state derived from the same log differs", key, record)


_EVENTS: dict[type, Any] = {
    r.Publish: Checker._published,
    r.Received: Checker._received,
    r.Configure: Checker._configured,
    r.Appended: Checker._appended,
    r.Taken: Checker._batches_taken,
    r.Cut: Checker._log_cut,
    r.Started: Checker._started,
    r.AskEnd: Checker._end_asked,
}
_EFFECTS: dict[type, Any] = {
    r.Send: Checker._sent,
    r.StartFeed: Checker._fed,
    r.Committed: Checker._committed,
    r.Answer: Checker._answered,
    r.Refuse: Checker._refused,
    r.Truncate: Checker._truncating,
    r.Halt: Checker._halted,
    r.End: Checker._ended,
}


def _is_of_another_epoch(replica: Replica, event: Any) -> bool:
    if type(event) is r.Offered:
        return event.epoch != replica.epoch  # type: ignore[no-any-return]
    return type(event) is r.Received and isinstance(event.message, OF_EPOCH) and event.message.epoch != replica.epoch


def _heard(replica: Replica) -> tuple[Any, ...]:
    """What a member believes of its neighbours (C2)."""
    below = replica.downstream
    return replica._above, replica.linked, replica.links.cutting, list(below.durable), below.committed, below.held


def _logs(members: tuple[Member, ...]) -> list[tuple[str, int]]:
    return [(member.broker, member.log_id) for member in members]
