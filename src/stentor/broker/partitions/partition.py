"""One partition on this broker: performs what its replica machine says, on a real log.

    Session.publish ─► Replica.step ─► log.append ─► sync thread ─► Replica.step ─► answers, streams
    predecessor's batches ─► Replica.step ─► log.append ─┘   └─► feed ─► successor

Everything here runs in the broker's loop except `log.sync`, `log.read` and `log.truncate`, which run in disk threads.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor.broker.health import chain_statistics
from stentor.broker.partitions.chain_feed import ChainFeed
from stentor.broker.partitions.lag import lag_statistics
from stentor.broker.partitions.read_end import Ends
from stentor.broker.partitions.resends import Resends
from stentor.broker.partitions.tail_cache import TailCache
from stentor.core import refusals
from stentor.core import replica_events as r
from stentor.core.chain_messages import Down, Linked
from stentor.errors import (
    CorruptData,
    DiskFull,
    InternalError,
    NotReady,
    OutOfDescriptors,
    ProtocolError,
    StentorError,
)
from stentor.wire import header as batch_header
from stentor.wire.messages import PartitionInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.disk_threads import DiskThreads
    from stentor.broker.partitions.chain_work import ChainWork
    from stentor.broker.sessions.reader_stream import ReaderStream
    from stentor.broker.sessions.session import Session
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import Key
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEffect, ReplicaEvent
    from stentor.ports import Clock
    from stentor.storage.log import PartitionLog
    from stentor.wire.header import BatchHeader
    from stentor.wire.messages import TopicSettings

logger = logging.getLogger(__name__)

_DESCRIPTOR_S = 1.0  # then a sync that found no descriptor is tried again


class Request(msgspec.Struct, frozen=True):
    """Who waits for an answer to a publish."""

    session: Session
    correlation: int


def _unconfirmed(successor: str) -> NotReady:
    """C6: a head that its successor does not confirm may have been replaced."""
    return NotReady(f"The head does not hear the next member of the chain, {successor}.", hint="Try again in a moment.")


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
        log: PartitionLog,
        replica: Replica,
        clock: Clock,
        syncs: DiskThreads,
        reads: DiskThreads,
        chain: ChainWork | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.settings = settings
        self.schemas = schemas  # versions of the topic's schema; 0: its messages are any bytes
        self.log = log
        self.halted = ""
        self.replica = replica
        self.tail = TailCache()
        self.reads = reads
        self.loop = syncs.loop
        self.deleted = False
        self.streams: set[ReaderStream] = set()
        self.idle: set[ReaderStream] = set()  # those that have all there is
        self.feed: ChainFeed | None = None
        self._chain = chain
        self._truncating: r.Truncate | None = None
        self._clock = clock
        self._syncs = syncs
        self._sync_under_way = False
        self._sync_began_us: int | None = None  # when a disk thread took it up
        self._publisher: Session | None = None  # whose batch is being taken right now
        self._tickets = 0
        self._requests: dict[int, Request] = {}
        self.ends = Ends(self)  # readers that want to know where the messages end
        self._resends = Resends(self)
        self._unsynced_bytes = 0
        self._held: set[Session] = set()  # publishers told to wait for the disk
        self._stopped: Callable[[], None] | None = None
        self.noted: Any = None  # the floors that the journal knows
        self.dirty = False  # flush=interval: written since the last sync
        self.messages_in = 0
        self.batches_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.kept_unrecorded = 0  # messages that retention would let go, had they been recorded
        log.snapshot = replica.dedupe.snapshot

    @property
    def is_cutting(self) -> bool:
        """Whether the log is being cut back right now."""
        return self._truncating is not None

    @property
    def key(self) -> Key:
        return self.topic_id, self.index

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.index}"

    @property
    def committed(self) -> int:
        return self.replica.committed

    def check_seen(self, seen: int, epoch: int) -> None:
        """C24: no reader is shown less than it has seen; a member that is behind says "not yet".

        Unless it is gone: every member of a chain holds what is committed, so where the head of a later epoch
        lacks it, an operator let a shorter copy lead (C13), or a power cut took what was never brought to disk.
        """
        if seen <= self.committed:
            return
        if self.replica.position.is_head and self.replica.epoch > epoch and seen > self.log.end:
            return
        raise NotReady(
            f"{self.name} is committed up to {self.committed} as far as this broker knows; {seen} was seen elsewhere.",
            hint="Another member knows more; try again in a moment.",
        )

    # --- publishing -----------------------------------------------------------------------------

    def publish(self, view: memoryview, header: BatchHeader, request: Request, ack: int) -> None:
        """Take a validated batch from a client. `view` is valid only during this call."""
        self._tickets += 1
        event = r.Publish(
            self._tickets,
            ack,
            header.count,
            header.producer_id,
            header.generation,
            header.sequence,
            header.body_checksum,
        )
        self._requests[self._tickets] = request
        position = self.replica.position
        if self._chain is not None and not position.is_tail and position.successor is not None:
            successor = position.successor.broker
            if successor in self._chain.unheard():
                self._perform([r.Refuse(self._tickets, _unconfirmed(successor))])
                return
        now_us = self._clock.now_us()
        (effect,) = self.replica.step(event, now_us)
        if not isinstance(effect, r.Append):
            self._perform([effect])
            return
        try:
            self._append(view, effect)
        except StentorError as error:
            self._no_room(error)
            self._perform([r.Refuse(self._tickets, self._explained(error))])
            return
        self.messages_in += header.count
        self.batches_in += 1
        self.bytes_in += len(view)
        if not ack:
            del self._requests[self._tickets]
        self._publisher = request.session
        self._perform(self.replica.step(r.Appended(event, effect), now_us))
        self._publisher = None
        if self.feed is not None:
            self.feed.wake()
        self._hold_if_far_ahead(request.session, len(view))

    def _no_room(self, error: StentorError) -> None:
        if isinstance(error, DiskFull) and self._chain is not None:
            self._chain.disk_is_full()

    def _explained(self, error: StentorError) -> StentorError:
        """A full disk that holds what retention may not delete yet: say so, or nobody would look there."""
        if isinstance(error, DiskFull) and self.kept_unrecorded:
            error.hint += (
                f" {self.kept_unrecorded} messages of {self.name} are past its retention and kept because they are not"
                f" recorded (keep_unrecorded): see that the recorder runs, or alter the topic."
            )
        return error

    def _append(self, view: memoryview, append: r.Append) -> None:
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

    # --- replication ----------------------------------------------------------------------------

    def step(self, event: ReplicaEvent) -> None:
        """Tell the machine, do what it says. Its timers run on a clock that never jumps."""
        self._perform(self.replica.step(event, int(self._clock.monotonic() * 1_000_000)))
        if (
            self.streams
            and self.replica.record is not None
            and self.replica.me.broker not in self.replica.position.brokers
        ):
            self.end_streams_for_now()  # no longer a member (C25)

    def offered(self, offered: r.Offered, view: memoryview, session: Session) -> None:
        """Batches from the predecessor. `view` is valid only during this call."""
        effects = self.replica.step(offered, int(self._clock.monotonic() * 1_000_000))
        if not effects or not isinstance(effects[0], r.Take):
            self._perform(effects)
            return
        chunk = bytes(view)
        if batch_header.verify_run(chunk, 0, len(chunk)) != len(chunk):
            raise ProtocolError("A broker sent batches that are not whole.")
        headers = [batch_header.unpack(chunk, place) for place, _, _, _ in batch_header.extents(chunk)]
        self._check_run(headers, offered)
        try:
            self.log.append(chunk, headers)
        except StentorError as error:
            logger.warning("partition %s cannot take batches: %s", self.name, error)
            self._no_room(error)
            self.step(r.NotTaken())
            return
        self.tail.add(headers[0].base_offset, headers[-1].end_offset, chunk)
        self.bytes_in += len(chunk)
        self.batches_in += len(headers)
        self.messages_in += headers[-1].end_offset - headers[0].base_offset
        self._publisher = session
        self.step(r.Taken(headers))
        self._publisher = None
        if self.feed is not None:
            self.feed.wake()
        self._hold_if_far_ahead(session, len(chunk))

    def _check_run(self, headers: list[batch_header.BatchHeader], offered: r.Offered) -> None:
        """Batches must be what their frame says: of this partition, one after the other, of no later epoch than it."""
        end, epoch = offered.base, offered.previous
        for header in headers:
            if (
                (header.topic_id, header.partition) != (self.topic_id, self.index)
                or header.base_offset != end
                or not header.span
                or not epoch <= header.epoch <= offered.epoch
            ):
                raise ProtocolError(f"A broker sent a batch that does not continue {self.name} at {end}.")
            end, epoch = header.end_offset, header.epoch
        if end == offered.base or end > batch_header.OFFSET_MAX:
            raise ProtocolError(f"A broker sent no batches that {self.name} could hold.")

    def _start_feed(self, effect: r.StartFeed) -> None:
        self._stop_feed()
        link = self._chain.data_link(effect.to) if self._chain is not None else None
        if link is not None:
            self.feed = ChainFeed(self, link, effect)
            self.feed.wake()

    def _stop_feed(self) -> None:
        if self.feed is not None:
            self.feed.close()
            self.feed = None

    def let_lead(self) -> None:
        """An operator says that this copy leads, as it is: what it lacks or refused counts no more (C13)."""
        self.replica.damaged = False
        if self.replica.halted:
            self.halted, self.replica.failed, self.replica.halted = "", "", False

    def feed_failed(self, error: StentorError) -> None:
        """The successor needs what this disk cannot give."""
        logger.error("partition %s cannot feed its successor: %s", self.name, error)
        self._stop_feed()
        self.read_failed(error)

    def read_failed(self, error: StentorError) -> StentorError:
        """What a reader is told. A damaged copy leaves its chain if there are others, and begins anew (K2)."""
        record, chain = self.replica.record, self._chain
        if chain is None or record is None or len(record.chain) == 1 or not isinstance(error, CorruptData):
            return error
        if not self.replica.failed:
            logger.error("partition %s: this copy is damaged and leaves the chain: %s", self.name, error)
            self.step(r.Fail(error.message))
            for stream in list(self.streams):
                stream.fail(refusals.damaged())
            chain.copy_failed()
        return refusals.damaged()

    def _truncate(self, effect: r.Truncate) -> None:
        """Once no sync runs: cut the log and derive everything again, in a disk thread."""
        assert self._chain is not None
        self._chain.when_confirmed(self, partial(self._truncate_now, effect))

    def _truncate_now(self, effect: r.Truncate) -> None:
        self._truncating = effect
        if not self._sync_under_way:
            self._cut_log()

    def _cut_log(self) -> None:
        effect = self._truncating
        assert effect is not None
        assert self._chain is not None
        if effect.end < self.log.end:  # C7
            cut = (self.name, effect.end, self.log.end)
            logger.warning("partition %s: offsets %d to %d were not committed and are cut off", *cut)
        self._sync_under_way = True
        self._unsynced_bytes = 0
        self.tail.clear()
        for stream in list(self.streams):
            if stream.cursor.position > effect.end:
                stream.fail(NotReady("The partition's log was cut back.", hint="Subscribe again."))
        self._syncs.submit(partial(self._chain.cut_log, self, effect), self._log_cut)

    def _log_cut(self, log: PartitionLog | None, error: StentorError | None) -> None:
        effect, self._truncating = self._truncating, None
        self._sync_under_way = False
        if error is not None or log is None or effect is None:
            reason = "" if error is None else error.message
            logger.error("partition %s could not cut its log: %s", self.name, reason)
            self.step(r.Fail(f"the log could not be cut back: {reason}"))
        else:
            self.log = log
            log.snapshot = self.replica.dedupe.snapshot
            self.step(r.Cut(effect.end))
        self._disk_is_free()

    def _hold_if_far_ahead(self, session: Session, size: int) -> None:
        """Back-pressure: memory and the unsynced part of the log stay bounded."""
        self._unsynced_bytes += size
        if self._unsynced_bytes > limits.UNSYNCED_BYTES_MAX and session not in self._held:
            self._held.add(session)
            session.hold()
            if not self._sync_under_way and not self.replica.failed:
                self._start_sync()  # flush=interval: the timer may be an hour away

    # --- effects --------------------------------------------------------------------------------

    def _perform(self, effects: list[ReplicaEffect]) -> None:
        if self._chain is not None:
            self._chain.stay_awake(self)
        answered: dict[Session, None] = {}
        for effect in effects:
            match effect:
                case r.Answer():
                    request = self._requests.pop(effect.ticket)
                    request.session.published(
                        request.correlation, effect.base_offset, effect.epoch, effect.appended_at_us
                    )
                    answered[request.session] = None
                case r.Sync():
                    self._request_sync()
                case r.Committed():
                    self._wake_streams()
                case r.Refuse():
                    request = self._requests.pop(effect.ticket)
                    request.session.fail(request.correlation, effect.error, "publish", self.name)
                case r.End():
                    self.ends.found(effect)
                case r.Find():
                    self._resends.find(effect, self._requests[effect.publish.ticket].session)
                case _:
                    self._perform_chain(effect)
        for session in answered:
            session.flush()

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
                self._tell(chain, to, message)
            case r.Report(message):
                chain.report(self.key, message)
            case r.StoreEpoch(epoch):
                chain.store_epoch(self, epoch)
            case r.StartFeed():
                self._start_feed(effect)
            case r.StopFeed():
                self._stop_feed()
            case r.Truncate():
                self._truncate(effect)
            case r.Retire(start):
                chain.retire(self, start)
            case r.Halt(reason):
                self.halted = reason
                # A topic that is told before any disk has it accepts that a power cut takes some of it.
                self.replica.halted = self.settings.flush == "always"
                logger.critical("partition %s halts: %s", self.name, reason)
            case _:
                raise InternalError(f"Unexpected effect {effect!r}.")

    def _tell(self, chain: ChainWork, to: str, message: PartitionMessage) -> None:
        if isinstance(message, Down) and self.feed is not None and self.feed.link.name == to:
            self.feed.tell(message)
            return
        if isinstance(message, Linked) and message.reset:
            message = msgspec.structs.replace(message, snapshot=self.log.start_snapshot())
        chain.tell(to, self.key, message)

    def _wake_streams(self) -> None:
        idle, self.idle = self.idle, set()
        for stream in idle:
            stream.pump()

    def _request_sync(self) -> None:
        if self.settings.flush == "interval":
            # The topic chose to be told before the disk has it; a timer brings it there.
            if not self.dirty:
                self.dirty = True
                self.flush_later()
            self._perform(self.replica.step(r.Durable(self.log.end), self._clock.now_us()))
        elif not self._sync_under_way and not (self._publisher and self._publisher.defer_sync(self)):
            self._start_sync()

    def _start_sync(self) -> None:
        self._sync_under_way = True
        self._unsynced_bytes = 0
        self._syncs.submit(self._sync_log, self._synced)

    def _sync_log(self) -> int:
        """In a disk thread."""
        self._sync_began_us = int(self._clock.monotonic() * 1_000_000)
        return self.log.sync()

    def tick(self, tick: r.Tick) -> None:
        """Time passes; the disk may be at work for this log."""
        if self._sync_under_way and self._sync_began_us is not None:
            tick = msgspec.structs.replace(tick, sync_began_us=self._sync_began_us)
        self.step(tick)

    def sync_deferred(self, *, in_loop: bool) -> None:
        """The read that published is over: start the sync that was put off until then."""
        if self._sync_under_way or self.replica.failed:
            return
        if not in_loop:
            self._start_sync()
            return
        self._sync_under_way = True
        self._unsynced_bytes = 0
        try:
            end = self.log.sync()
        except StentorError as error:
            self._synced(None, error)
        else:
            self._synced(end, None)

    def _synced(self, end: int | None, error: StentorError | None) -> None:
        if isinstance(error, OutOfDescriptors):  # nothing was synced, so it may be tried again (unlike K3)
            logger.warning("partition %s waits for a descriptor: %s", self.name, error.message)
            self.loop.call_later(_DESCRIPTOR_S, self._syncs.submit, self.log.sync, self._synced)
            return
        self._sync_under_way, self._sync_began_us = False, None
        if self._truncating is not None and error is None:
            self._cut_log()
            return
        if error is not None:
            logger.error("partition %s takes no more writes: %s", self.name, error)
            self._perform(self.replica.step(r.Fail(error.message), self._clock.now_us()))
        elif end is not None:
            self._perform(self.replica.step(r.Durable(end), self._clock.now_us()))
        self._disk_is_free()

    def _disk_is_free(self) -> None:
        """A sync or a cut is over: who waited for it goes on."""
        if self._stopped is not None and not self._sync_under_way:
            self._stopped()
        held, self._held = self._held, set()
        for session in held:
            session.release()

    def flush_later(self) -> None:
        """Have what only memory holds brought to disk an interval from now."""
        if self._chain is not None and self.dirty:
            self._chain.flush_later(self)

    def flush_interval(self) -> None:
        """Called by the broker's timer for topics with flush=interval."""
        if self.dirty and not self._sync_under_way and not self.replica.failed:
            self.dirty = False
            self._start_sync()

    def catch_up_with_disk(self) -> None:
        """A topic that changed to flush=always leaves nothing behind that only memory holds."""
        behind = self.log.synced_end < self.log.end
        if self.settings.flush == "always" and behind and not self._sync_under_way and not self.replica.failed:
            self._start_sync()

    def roll_if_due(self) -> None:
        """Close a segment that holds only what has expired, so that retention can take it."""
        if self.replica.failed or self._sync_under_way or not self.log.roll_due(self._clock.now_us()):
            return
        try:
            self.log.roll()
        except StentorError as error:
            logger.warning("partition %s: %s", self.name, error)
            return
        self._start_sync()

    # --- life -----------------------------------------------------------------------------------

    def stop(self, done: Callable[[], None]) -> None:
        """Bring everything to disk and answer it, then call `done`."""
        self._stopped = done
        self._stop_feed()
        if self._sync_under_way:
            return
        if self.replica.failed or self.log.synced_end >= self.log.end:
            done()
        else:
            self._start_sync()

    def end_streams(self, error: StentorError) -> None:
        """The partition goes away: everyone who follows it is told."""
        self.deleted = True
        for stream in list(self.streams):
            stream.fail(error)

    def end_streams_for_now(self) -> None:
        """This broker is cut off: nobody shall stay "live" on it (C25)."""
        for stream in list(self.streams):
            stream.fail(refusals.cut_off())

    def info(self) -> PartitionInfo:
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
            kept_unrecorded=self.kept_unrecorded,
        )

    def statistics(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.index,
            "messages_in": self.messages_in,
            "batches_in": self.batches_in,
            "bytes_in": self.bytes_in,
            "messages_out": self.messages_out,
            "bytes_out": self.bytes_out,
            "streams": len(self.streams),
            **lag_statistics(self.streams),
            "tail_cache_bytes": self.tail.bytes,
            "chain": chain_statistics(self),
            "replica": self.replica.statistics(),
            "dedupe": self.replica.dedupe.statistics() | {"searches": self._resends.searches},
            "log": msgspec.to_builtins(self.log.statistics()),
        }
