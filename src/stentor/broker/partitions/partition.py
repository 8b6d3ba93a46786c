"""One partition on this broker: performs what its replica machine says, on a real log.

    ClientSession ─► Replica.step ─► log.append ─► sync thread ─► Replica.step ─► answers, streams
    predecessor's batches ─► Replica.step ─► log.append ─┘   └─► feed ─► successor

Everything here runs in the broker's loop. The disk is `LogSync`'s; reads of history run in threads of their own.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from stentor.broker.partitions.compaction import PartitionCompaction
from stentor.broker.partitions.followers import Followers
from stentor.broker.partitions.interfaces import Request
from stentor.broker.partitions.lag import PartitionLag
from stentor.broker.partitions.log_sync import LogSync
from stentor.broker.partitions.read_end import Ends
from stentor.broker.partitions.replication import check_run, split_bodies
from stentor.broker.partitions.resends import Resends
from stentor.broker.partitions.retention_wait import RetentionWait
from stentor.broker.partitions.successor import Successor
from stentor.broker.partitions.tail_cache import TailCache
from stentor.core import refusals
from stentor.core import replica_events as r
from stentor.core.queue import QueueState
from stentor.core.reservation import runs_low
from stentor.errors import CorruptData, DiskFull, InternalError, NotReady, OffsetOutOfRange, StentorError
from stentor.storage.memory_log import MemoryLog
from stentor.wire import header as batch_header
from stentor.wire.messages import PartitionInfo
from stentor.wire.statistics import ChainStatistics, DedupeStatistics, PartitionStatistics

if TYPE_CHECKING:
    from stentor.broker.disk_threads import DiskThreads
    from stentor.broker.partitions.chain_work import ChainWork
    from stentor.broker.partitions.interfaces import Publisher, Sender
    from stentor.broker.partitions.tail_cache import TailBudget
    from stentor.broker.slices import Slices
    from stentor.core.memory_budget import MemoryBudget
    from stentor.core.records import Key
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEffect, ReplicaEvent
    from stentor.ports import Clock
    from stentor.storage.memory_log import AnyLog
    from stentor.wire.header import BatchHeader
    from stentor.wire.messages import TopicSettings

logger = logging.getLogger(__name__)


class Traffic:
    """What has come in and gone out."""

    __slots__ = ("batches_in", "bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.batches_in = self.bytes_in = 0
        self.messages_out = self.bytes_out = 0

    def came_in(self, messages: int, batches: int, size: int) -> None:
        self.messages_in += messages
        self.batches_in += batches
        self.bytes_in += size

    def went_out(self, messages: int, size: int) -> None:
        self.messages_out += messages
        self.bytes_out += size


class OpenRequests:
    """Who waits for an answer, by ticket."""

    def __init__(self) -> None:
        self.sender: Sender | None = None  # whose batches are being taken right now
        self._waiting: dict[int, Request] = {}
        self._tickets = 0

    def add(self, request: Request) -> int:
        self._tickets += 1
        self._waiting[self._tickets] = request
        return self._tickets

    def take(self, ticket: int) -> Request:
        return self._waiting.pop(ticket)

    def publisher(self, ticket: int) -> Publisher:
        return self._waiting[ticket].publisher


class PartitionMemory:
    """What one partition holds in memory, against its broker's budget (`core.memory_budget`)."""

    def __init__(self, partition: Partition, budget: MemoryBudget | None) -> None:
        self._partition = partition
        self._budget = budget
        self._queues = [state for state in partition.replica.states if isinstance(state, QueueState)]
        self.counts = budget is not None and (partition.log.in_memory or bool(self._queues))

    def check(self) -> None:
        """MemoryFull if nothing more is taken here."""
        if self._budget is not None and self._budget.is_used_up and self._grows():
            self._budget.check(self._partition.name)

    def follows(self) -> bool:
        """Whether what the head took is taken."""
        return self._budget is None or self._budget.follows() or not self._grows()

    def note(self) -> None:
        if self._budget is not None:
            gone = self._partition.deleted
            self._budget.hold(self._partition.replica.me.log_id, 0 if gone else self._size())

    def _size(self) -> int:
        log = self._partition.log
        return sum(queue.memory for queue in self._queues) + (log.bytes if log.in_memory else 0)

    def _grows(self) -> bool:
        log = self._partition.log
        return not isinstance(log, MemoryLog) or log.grows


class Partition:
    """A replica machine, its log, its tail cache, and the streams that follow it."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: int,
        index: int,
        settings: TopicSettings,
        schemas: int = 0,
        log: AnyLog,
        replica: Replica,
        clock: Clock,
        syncs: DiskThreads,
        reads: DiskThreads,
        chain: ChainWork | None = None,
        memory: MemoryBudget | None = None,
        tails: TailBudget | None = None,
        slices: Slices | None = None,
    ) -> None:
        self.topic = topic
        self.key: Key = (topic_id, index)
        self.settings = settings
        self.schemas = schemas  # versions of the topic's schema; 0: its messages are any bytes
        self.log = log
        self.replica = replica
        self.tail = TailCache(budget=tails)
        self.reads = reads
        self.loop = syncs.loop
        self.sync = LogSync(self, syncs, clock)
        self.followers = Followers(slices)
        self.successor = Successor(self)
        self.ends = Ends(self)  # readers that want to know where the messages end
        self.traffic = Traffic()
        self.noted: object = None  # the floors that the journal knows
        self.waiting = RetentionWait()
        self.compaction = PartitionCompaction(self)
        self._chain = chain
        self._memory = PartitionMemory(self, memory)
        self._requests = OpenRequests()
        self._resends = Resends(self)
        log.snapshot = replica.states.snapshot

    @property
    def index(self) -> int:
        """Its number in the topic."""
        return self.key[1]

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.index}"

    @property
    def committed(self) -> int:
        return self.replica.committed

    @property
    def is_fed(self) -> bool:
        """Whether a successor gets the same batches."""
        return self.successor.is_fed

    # --- memory ---------------------------------------------------------------------------------

    def check_memory(self) -> None:
        """Raise MemoryFull if this broker has no memory left for more of these messages (S7)."""
        if self._memory.counts:
            self._memory.check()

    def note_memory(self) -> None:
        """Have the broker's budget know what this copy holds now."""
        if self._memory.counts:
            self._memory.note()

    def give_back_memory(self) -> None:
        """Keep nothing of a copy that has gone away."""
        self.tail.clear()
        self.note_memory()

    # --- publishing -----------------------------------------------------------------------------

    def publish(self, view: memoryview, header: BatchHeader, request: Request, ack: int) -> None:
        """Take a validated batch from a client. `view` is valid only during this call."""
        ticket = self._requests.add(request)
        event = r.Publish(
            ticket,
            ack,
            header.span,
            header.producer_id,
            header.generation,
            header.sequence,
            header.body_checksum,
            stamp_us=self.sync.clock.now_us(),
            conditional=self._conditional(header),
            body=view[batch_header.HEADER_BYTES :] if header.conditional else b"",
            sent_in=header.epoch,
        )
        now_us = int(self.sync.clock.monotonic() * 1_000_000)
        (effect,) = self.replica.step(event, now_us)
        if not isinstance(effect, r.Append):
            self._perform([effect])
            return
        try:
            appended = self._append(view, event, effect)
        except StentorError as error:
            self._no_room(error)
            self._perform([r.Refuse(ticket, self._explained(error))])
            return
        self.traffic.came_in(header.count, 1, len(view))
        if not ack:
            self._requests.take(ticket)
        self._took(request.publisher, self._tell(appended, now_us), len(view))

    def _conditional(self, header: BatchHeader) -> BatchHeader | None:
        """A batch that comes with conditions, with the time at which they are looked at."""
        if not header.conditional:
            return None
        return msgspec.structs.replace(header, appended_at_us=self.sync.clock.now_us())

    def _took(self, sender: Sender, effects: list[ReplicaEffect], size: int) -> None:
        """Batches are in the log: do what follows, while it is known whose they are."""
        self._requests.sender = sender
        self._perform(effects)
        self._requests.sender = None
        self.note_memory()
        self.successor.wake()
        self.sync.wait_if_far_ahead(sender, size)

    def _no_room(self, error: StentorError) -> None:
        if isinstance(error, DiskFull) and self._chain is not None:
            self._chain.disk_is_full()

    def _explained(self, error: StentorError) -> StentorError:
        """A full disk that holds what retention may not delete yet: say so, or nobody would look there."""
        if isinstance(error, DiskFull) and self.waiting.kept:
            error.hint += (
                f" {self.waiting.kept} messages of {self.name} are past its retention and wait for the cursor"
                f" {' and '.join(self.settings.waits_for)}: see that it is moved, or alter the topic."
            )
        return error

    def _append(self, view: memoryview, publish: r.Publish, append: r.Append) -> r.Appended:
        if append.refused:
            batch_header.mark_refused(view, 0)
        batch_header.stamp(
            view,
            0,
            base_offset=append.base_offset,
            epoch=append.epoch,
            appended_at_us=append.appended_at_us,
        )
        chunk = bytes(view)
        stamped = batch_header.unpack(chunk)
        self.log.append(chunk, (stamped,))
        self.tail.add(stamped.base_offset, stamped.end_offset, chunk)
        body = memoryview(chunk)[batch_header.HEADER_BYTES :] if self.replica.states.wants_bodies else b""
        return r.Appended(publish, append, stamped, body)

    # --- replication ----------------------------------------------------------------------------

    def step(self, event: ReplicaEvent) -> None:
        """Tell the machine, do what it says. Its timers run on a clock that never jumps."""
        replica = self.replica
        self._perform(replica.step(event, int(self.sync.clock.monotonic() * 1_000_000)))
        if self.followers.streams and replica.position.index is None and replica.position.leaves_out(replica.me.broker):
            self.followers.fail_all(refusals.cut_off())  # no longer a member (C25)
        if isinstance(event, r.Started):
            self.note_memory()

    def offered(self, offered: r.Offered, view: memoryview, sender: Sender) -> None:
        """Batches from the predecessor. `view` is valid only during this call."""
        now_us = int(self.sync.clock.monotonic() * 1_000_000)
        effects = self.replica.step(offered, now_us)
        if not effects or not isinstance(effects[0], r.Take):
            self._perform(effects)
            return
        if self._memory.counts and not self._memory.follows():
            self.step(r.NotTaken())
            return
        chunk = bytes(view)
        headers = check_run(self.key, self.name, offered, chunk)
        try:
            self.log.append(chunk, headers)
        except StentorError as error:
            logger.warning("partition %s cannot take batches: %s", self.name, error)
            self._no_room(error)
            self.step(r.NotTaken())
            return
        first, last = headers[0].base_offset, headers[-1].end_offset
        self.tail.add(first, last, chunk)
        self.traffic.came_in(last - first, len(headers), len(chunk))
        bodies = split_bodies(chunk, headers) if self.replica.states.wants_bodies else ()
        self._took(sender, self._tell(r.Taken(headers, bodies), now_us), len(chunk))

    def _tell(self, event: r.Appended | r.Taken, now_us: int) -> list[ReplicaEffect]:
        """Tell the machine what is in the log now. A copy that cannot derive its states from that stops (C33)."""
        try:
            return self.replica.step(event, now_us)
        except InternalError as error:
            logger.critical("partition %s: this copy stops: %s", self.name, error)
            self.followers.fail_all(refusals.damaged())
            if self._chain is not None:
                self._chain.copy_changed()
            return self.replica.step(r.Fail(error.message), now_us)

    def let_lead(self) -> None:
        """An operator says that this copy leads, as it is: what it lacks or refused counts no more (C13)."""
        self.step(r.LetLead())

    def feed_failed(self, error: StentorError) -> None:
        """The successor needs what this log cannot give. A joiner that retention has overtaken asks again, and begins
        where this log begins now.
        """
        if isinstance(error, OffsetOutOfRange):
            self.step(r.LinkAgain())
            return
        logger.error("partition %s cannot feed its successor: %s", self.name, error)
        self.successor.stop()
        self.read_failed(error)

    def read_failed(self, error: StentorError) -> StentorError:
        """What a reader is told. A damaged copy leaves its chain if there are others, and begins anew (K2)."""
        record, chain = self.replica.record, self._chain
        if chain is None or record is None or len(record.chain) == 1 or not isinstance(error, CorruptData):
            return error
        if not self.replica.failed:
            logger.error("partition %s: this copy is damaged and leaves the chain: %s", self.name, error)
            self.step(r.Fail(error.message))
            self.followers.fail_all(refusals.damaged())
            chain.copy_changed()
        return refusals.damaged()

    def _truncate(self, effect: r.Truncate) -> None:
        """What cannot be undone waits until the store has named this member's predecessor (C28)."""
        chain = self._chain
        assert chain is not None
        chain.when_confirmed(self, lambda: self.sync.cut(effect, partial(chain.cut_log, self, effect)))

    def before_cut(self, end: int) -> None:
        """The log is about to be cut back: nobody shall see what goes."""
        self.tail.clear()
        self.followers.fail_beyond(end, NotReady("The partition's log was cut back.", hint="Subscribe again."))

    def log_replaced(self, log: AnyLog) -> None:
        """The log was cut back, or begun anew."""
        self.log = log
        log.snapshot = self.replica.states.snapshot
        self.note_memory()

    # --- effects --------------------------------------------------------------------------------

    def _perform(self, effects: list[ReplicaEffect]) -> None:
        if self._chain is not None:
            self._chain.stay_awake(self.key)
        answered: dict[Publisher, None] = {}
        for effect in effects:
            match effect:
                case r.Answer():
                    request = self._requests.take(effect.ticket)
                    request.publisher.published(request.correlation, effect)
                    answered[request.publisher] = None
                case r.Sync():
                    self.sync.request(self._requests.sender)
                case r.Committed():
                    self._committed()
                case r.Refuse():
                    request = self._requests.take(effect.ticket)
                    request.publisher.fail(request.correlation, effect.error, "publish", self.name)
                case r.End():
                    self.ends.found(effect)
                case r.Find():
                    self._resends.find(effect, self._requests.publisher(effect.publish.ticket))
                case _:
                    self._perform_chain(effect)
        for publisher in answered:
            publisher.flush()

    def _committed(self) -> None:
        """Readers get more. A log in memory does not wait for the timer of retention; members follow their head."""
        self.followers.wake()
        self.compaction.committed()
        if self.log.is_over_limit and self.replica.position.is_head:
            start = self.log.retain(self.sync.clock.now_us(), committed=self.committed)
            if start > self.replica.start:
                self.step(r.Started(start))

    def perform_one(self, effect: ReplicaEffect) -> None:
        """Do what was decided beside the machine."""
        self._perform([effect])

    def _perform_chain(self, effect: ReplicaEffect) -> None:
        """What concerns other brokers, epochs and the shape of the log."""
        chain = self._chain
        if chain is None:
            raise InternalError(f"Unexpected effect {effect!r}.")
        match effect:
            case r.Send(to, message):
                self.successor.tell(chain, to, message)
            case r.Report(message):
                chain.report(self.key, message)
            case r.StoreEpoch(epoch):
                self.successor.epoch_ends()
                chain.store_epoch(self, epoch)
            case r.StartFeed() | r.StopFeed() | r.GiveState():
                self.successor.perform(chain, effect)
            case r.Truncate():
                self._truncate(effect)
            case r.Retire(start):
                chain.retire(self, start)
            case r.Halt(reason):
                # A topic that is told before any disk has it accepts that a power cut takes some of it.
                self.step(r.Halted(for_operator=self.settings.flush == "always"))
                logger.critical("partition %s stops: %s", self.name, reason)
            case _:
                raise InternalError(f"Unexpected effect {effect!r}.")

    def tick(self, tick: r.Tick) -> None:
        """Time passes; the disk may be at work for this log."""
        if self.sync.under_way and self.sync.began_us is not None:
            tick = msgspec.structs.replace(tick, sync_began_us=self.sync.began_us)
        self.step(tick)
        if self._chain is not None and runs_low(self.replica.record, self.replica.end):
            self._chain.copy_changed()

    def flush_later(self) -> None:
        """Have what only memory holds brought to disk an interval from now."""
        if self._chain is not None and self.sync.dirty:
            self._chain.flush_later(self.key)

    def apply(self, settings: TopicSettings, schemas: int) -> bool:
        """The topic was altered; whether that is news."""
        self.schemas = schemas
        if settings == self.settings:
            return False
        self.settings = settings
        return True

    # --- life -----------------------------------------------------------------------------------

    @property
    def deleted(self) -> bool:
        """Whether it goes away."""
        return self.followers.ended

    def info(self) -> PartitionInfo:
        compacted = self.compaction.statistics()
        return PartitionInfo(
            partition=self.index,
            epoch=self.replica.epoch,
            chain=list(self.replica.position.brokers),
            start=self.log.start,
            committed=self.committed,
            end=self.log.end,
            bytes=self.log.bytes,
            segments=self.log.statistics().segments,
            damaged=list(self.log.damaged),
            failed=self.replica.failed,
            kept_unrecorded=self.waiting.kept,
            compacted_to=compacted.compacted_to,
            messages_removed=compacted.messages_removed,
            bytes_saved=compacted.bytes_before - compacted.bytes_after,
        )

    def statistics(self) -> PartitionStatistics:
        return self.statistics_with(PartitionLag(stream.lag() for stream in self.followers.streams))

    def statistics_with(self, lag: PartitionLag) -> PartitionStatistics:
        """The same, with what was found out about its readers, of whom there may be many."""
        replica, traffic = self.replica, self.traffic
        wanted = 0 if replica.record is None else replica.record.factor
        return PartitionStatistics(
            topic=self.topic,
            partition=self.index,
            batches_in=traffic.batches_in,
            bytes_in=traffic.bytes_in,
            bytes_out=traffic.bytes_out,
            messages_in=traffic.messages_in,
            messages_out=traffic.messages_out,
            streams=len(self.followers.streams),
            lag_max=lag.messages_max,
            lag_sum=lag.messages_sum,
            lag_max_s=lag.seconds_max,
            tail_cache_bytes=self.tail.bytes,
            chain=ChainStatistics(replicas=len(replica.position.brokers), replicas_wanted=wanted),
            replica=replica.statistics(),
            dedupe=DedupeStatistics(producers=replica.dedupe.producer_count, searches=self._resends.searches),
            log=self.log.statistics(),
            compaction=self.compaction.statistics(),
        )
