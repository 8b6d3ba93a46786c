"""The streams of a subscription: found, opened, opened again, granted credit.

`SubscriptionCore` lives in the client's loop: it finds the partitions, opens a stream for each, takes
deliveries as bytes and hands them to an inbox, from which a subscription takes them.

After a lost link every stream is opened again at the offset after the last one received: no gap, no
repeat. What to do when the application is too slow is its choice (D7):

    catch_up    read on from the log at its own pace (the default)
    raise       past max_lag raise SlowSubscriber and stop, after telling the alerts topic
    skip        past max_lag jump to now, and report exactly which offsets were skipped
    disconnect  past max_lag end the subscription quietly
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor import limits
from stentor.client.convert import allows_stale
from stentor.client.position import Position
from stentor.client.positions import check_position, find_request
from stentor.client.routes import existing
from stentor.client.starts import Starts, out_of_range, wanted_partitions
from stentor.core.names import check_pattern, is_pattern, matches
from stentor.errors import (
    Closed,
    CorruptData,
    InvalidArgument,
    NotReady,
    OffsetOutOfRange,
    PartitionNotFound,
    StentorError,
)
from stentor.wire import frames, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.handed import Handed
    from stentor.client.link import BrokerLink
    from stentor.client.options import OnSlow
    from stentor.client.positions import Place, Stale
    from stentor.client.starts import Start

ALERTS_TOPIC: Final = "_alerts"
_ON_SLOW: Final = ("catch_up", "raise", "skip", "disconnect")
_EVENTS_KEPT_MAX: Final = 1_000


class Event(msgspec.Struct, frozen=True):
    """Something a subscriber should know besides messages."""

    kind: str  # "skipped", "topic_found", "topic_gone"
    topic: str
    partition: int
    first_offset: int = 0  # skipped: the first offset not delivered
    next_offset: int = 0  # skipped: the first offset delivered after it


class Delivery(msgspec.Struct, frozen=True):
    """Whole batches of one partition, as they came."""

    reader: Reader
    body: bytes
    next_offset: int


class Reader:
    """One partition of a subscription."""

    def __init__(self, owner: SubscriptionCore, topic: str, topic_id: int, partition: int) -> None:
        self.owner = owner
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.start = 0  # the first offset the application wants
        self.end: int | None = None
        self.sure = True  # nothing was committed beyond the end when it was found
        self.received = 0  # the offset after the last one received
        self.taken = 0  # the offset after the last one the application took
        self.committed = 0  # the partition's commit point, as last heard
        self.link: BrokerLink | None = None  # where the stream comes from
        self.stream_id: int | None = None
        self.finished = False
        self.owed = 0  # bytes taken but not granted again yet
        self.waiting = 0  # bytes received that the application has not taken
        self.refused: set[str] = set()  # members that could not serve it: others are asked first

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"

    # --- what the link reports ------------------------------------------------------------------

    def delivered(self, body: memoryview) -> None:
        committed, epoch, next_offset = frames.DELIVERY.unpack_from(body)
        self.state(committed, epoch)
        self.received = next_offset
        self.waiting += len(body) - frames.DELIVERY.size
        self.owner.put(Delivery(self, bytes(body[frames.DELIVERY.size :]), next_offset))

    def state(self, committed: int, epoch: int) -> None:
        if self.refused:
            self.refused.clear()  # it is served; whoever refused before may be able to when it must move again
        if committed > self.committed:
            self.committed = committed
            self.owner.core.seen.saw(self.topic_id, self.partition, committed, epoch)

    def ended(self, ended: messages.StreamEnded) -> None:
        self.stream_id = None
        if ended.failure is None:
            self.finished = True
            self.owner.reader_finished()
            return
        error = messages.raised(ended.failure)
        if isinstance(error, Closed):
            return  # the broker stops; the link will break and be made again
        if self.owner.will_be_back(self, error) or self.owner.doubts(self, error):
            return
        self.owner.reader_failed(self, error)

    @property
    def lag(self) -> int:
        """Committed messages that the application has not taken."""
        return max(0, self.committed - self.taken)


class SubscriptionCore:
    """The streams of one subscription."""

    def __init__(
        self,
        core: ClientCore,
        topics: str | list[str],
        *,
        start: Start = "latest",
        end: Place | None = None,
        partition: int | Iterable[int] | None = None,
        on_slow: OnSlow = "catch_up",
        max_lag: int | timedelta | None = None,
        stale: Stale = "refuse",
        put: Callable[[Any], None],
        credit: int = limits.SUBSCRIPTION_CREDIT_BYTES,
    ) -> None:
        patterns = [topics] if isinstance(topics, str) else list(topics)
        if not patterns:
            raise InvalidArgument("A subscription needs at least one topic.")
        for pattern in patterns:
            check_pattern(pattern)
        starts, partitions = Starts(start, patterns), wanted_partitions(partition)
        if end is not None:
            check_position(end, "end")
        _check_slow(on_slow, max_lag)
        self.core = core
        self.patterns = patterns
        self.starts = starts
        self.end = end
        self.partitions = partitions
        self.on_slow = on_slow
        self.max_lag = max_lag
        self.stale = allows_stale(stale)
        self.put = put
        self.credit = credit
        self.readers: dict[tuple[int, int], Reader] = {}
        self.closed = False
        self.opened = False
        self.events: list[Event] = []
        self.skipped = 0  # messages jumped over by on_slow="skip"
        self._finding: asyncio.Task[None] | None = None
        self._checking: set[asyncio.Task[None]] = set()  # whether the starts that members refused are beyond the end
        self._routes_stale = False  # topics may have come since we looked
        self._retry: asyncio.TimerHandle | None = None  # when readers that were refused ask again, all at once
        self._telling: asyncio.TimerHandle | None = None  # when the broker hears what little was taken

    async def open(self, deadline: Deadline) -> None:
        """Find the partitions and position every stream, so that nothing published later is missed."""
        self.core.route_listeners.add(self._routes_changed)
        try:
            await self._open(deadline)
        except BaseException:
            self.core.route_listeners.discard(self._routes_changed)
            raise

    async def _open(self, deadline: Deadline) -> None:
        await self._find_named(deadline)
        self._check_starts()
        await self._add_readers(deadline)
        missing = (self.partitions or frozenset()) - {partition for _, partition in self.readers}
        if missing:
            raise PartitionNotFound(
                f"{', '.join(self.patterns)} has no partition {min(missing)}.",
                hint="Partitions count from 0; `stentor topic describe` shows how many there are.",
                operation="subscribe",
            )
        self.opened = True
        self.core.link_listeners.add(self._relinked)
        self.core.closers.add(self.close)
        for reader in self.readers.values():
            self._open_stream(reader)
        self.reader_finished()
        self._routes_changed()  # topics that came while we were looking

    async def _find_named(self, deadline: Deadline) -> None:
        """A subscription may come before the first message, and makes the topics it names.

        A bounded read does not, nor does who goes on in a topic that must be there.
        """
        named = {pattern for pattern in self.patterns if not is_pattern(pattern)}
        there = named if self.end is not None else named & self.starts.named.keys()
        if there or self.end is not None:
            await existing(self.core, sorted(there), deadline)
        for name in sorted(named - there):
            await self.core.topic(name, deadline)
        if not self.starts.named.keys() <= self.core.routes.keys():
            await self.core.refresh_routes(deadline)
        known = (topic for topic in self.starts.ids if topic in self.core.routes)
        await asyncio.gather(*(self._settle(topic, deadline) for topic in known))

    async def _settle(self, topic: str, deadline: Deadline) -> None:
        """Positions are of a topic by its id. Brokers say which it has now; this client may hear of it a bit later."""
        described = (await self.core.call(messages.DescribeTopic(name=topic), deadline)).topic
        self.starts.check_id(topic, described.id)
        try:
            async with deadline.bound():
                while (route := self.core.routes.get(topic)) is None or route.id != described.id:
                    await self.core.changes(limits.LINK_WATCH_S)
        except TimeoutError as error:
            raise self.core.late("subscribe", deadline.seconds) from error

    def _check_starts(self) -> None:
        """The starts fit the topics as they are; a topic of a pattern may be gone, which is told."""
        for topic, offsets in self.starts.named.items():
            route = self.core.routes.get(topic)
            if route is not None:
                self.starts.check(route)
                continue
            for partition in offsets:
                self.note(Event("topic_gone", topic, partition))

    def _start_of(self, reader: Reader) -> Any:
        """Partitions found after subscribing are read from their start (C24): nothing slips between."""
        if not self.opened or self.starts.ids.get(reader.topic) == reader.topic_id:
            return self.starts.of(reader.topic, reader.partition)
        return "earliest"

    async def _add_readers(self, deadline: Deadline) -> list[Reader]:
        wanted = [
            Reader(self, route.name, route.id, index)
            for route in self.core.routes.values()
            if any(matches(pattern, route.name) for pattern in self.patterns)
            for index in range(len(route.partitions))
            if (route.id, index) not in self.readers and (self.partitions is None or index in self.partitions)
        ]
        outcomes = await asyncio.gather(*(self._position(r, deadline) for r in wanted), return_exceptions=True)
        found = []
        for reader, outcome in zip(wanted, outcomes, strict=True):
            if outcome is None:
                self.readers[reader.topic_id, reader.partition] = reader
                found.append(reader)
            elif not self.opened:
                raise outcome
        return found

    async def _position(self, reader: Reader, deadline: Deadline) -> None:
        start = self._start_of(reader)
        kept = None
        if isinstance(start, int) and self.starts.names(reader.topic, reader.partition):
            kept = await self._check_kept(reader, start, deadline)
        found = await self._resolve(reader, start, deadline, stale=self.stale)
        reader.start, reader.committed = found.offset, found.committed
        reader.received = reader.taken = reader.start
        if self.end is not None:
            end = await self._resolve(reader, self.end, deadline, stale=self.stale)
            reader.end, reader.sure = end.offset, end.sure
            reader.finished = reader.end <= reader.start
            if kept is not None and reader.end < reader.start and reader.sure and self.end in ("now", "latest"):
                raise out_of_range(reader.name, reader.start, kept, reader.end)

    async def _check_kept(self, reader: Reader, start: int, deadline: Deadline) -> int:
        """The first offset there is. Who goes on before it is told at once, not after messages of other partitions."""
        kept = await self._resolve(reader, "earliest", deadline, stale=True)
        if start < kept.offset:
            raise out_of_range(reader.name, start, kept.offset, kept.committed)
        return kept.offset

    async def _resolve(self, reader: Reader, position: Any, deadline: Deadline, *, stale: bool) -> messages.OffsetFound:
        now_us = time.time_ns() // 1000
        wish = find_request(position, reader.topic_id, reader.partition, now_us, stale=stale)
        if isinstance(wish, int):
            seen = self.core.seen.of(reader.topic_id, reader.partition)
            return messages.OffsetFound(offset=wish, start=0, committed=seen.committed)
        return await self.core.find_offset(wish, reader.topic, deadline)

    def positions(self, handed: Handed | None) -> list[str]:
        """How far the application has come in each partition; `handed` is what it is being handed now."""
        found = []
        for reader in list(self.readers.values()):
            offset = reader.taken
            if handed is not None and handed.reader is reader:
                offset = max(offset, handed.next_offset())
            if reader.end is not None:
                offset = min(offset, max(reader.start, reader.end))
            found.append(Position(reader.topic, reader.partition, offset, reader.topic_id))
        return [str(position) for position in sorted(found, key=lambda each: (each.topic, each.partition))]

    def ends(self) -> dict[str, dict[int, int]]:
        """Where a bounded read ends, by topic and partition."""
        found: dict[str, dict[int, int]] = {}
        for reader in self.readers.values():
            found.setdefault(reader.topic, {})[reader.partition] = reader.start if reader.end is None else reader.end
        return found

    @property
    def sure(self) -> bool:
        """Whether nothing was committed beyond those ends when they were found (C30)."""
        return all(reader.sure for reader in self.readers.values())

    def _open_stream(self, reader: Reader) -> None:
        """Open it at a member of the chain; if none can be reached yet, a new link will tell."""
        link = self._link_for(reader)
        if reader.finished or link is None:
            return
        reader.owed, reader.link = 0, link
        reader.stream_id = link.open_stream(
            messages.OpenStream(
                topic_id=reader.topic_id,
                partition=reader.partition,
                start=reader.received,
                end=reader.end,
                credit=max(1, self.credit - reader.waiting),
                seen=reader.committed,
            ),
            reader,
        )

    def _link_for(self, reader: Reader) -> BrokerLink | None:
        """A member that did not refuse; if none of those is linked, all may be asked again."""
        link = self.core.member_link(reader.topic, reader.topic_id, reader.partition, reader.refused)
        if link is None and reader.refused:
            reader.refused.clear()
            link = self.core.member_link(reader.topic, reader.topic_id, reader.partition)
        return link

    # --- changes --------------------------------------------------------------------------------

    def _relinked(self, link: BrokerLink) -> None:  # noqa: ARG002
        self._reopen()

    def _reopen(self) -> None:
        """Streams whose link is gone, or whose broker left the chain, come from another member (C25)."""
        if self.closed:
            return
        for reader in self.readers.values():
            if reader.finished or (reader.stream_id is not None and self._is_well(reader)):
                continue
            self._close_stream(reader)
            self._open_stream(reader)

    def _is_well(self, reader: Reader) -> bool:
        link, route = reader.link, self.core.routes.get(reader.topic)
        if link is None or not link.alive or link.broker is None:
            return False
        if route is None or route.id != reader.topic_id or len(self.core.links.brokers) < 2:
            return True
        return link.broker.id in route.partitions[reader.partition].chain

    def will_be_back(self, reader: Reader, error: StentorError) -> bool:
        """A member that cannot serve now: ask again in a moment, another one if there is one."""
        route = self.core.routes.get(reader.topic)
        unknown = isinstance(error, PartitionNotFound) and len(self.core.links.brokers) > 1
        if not isinstance(error, NotReady) and not (unknown and route is not None and route.id == reader.topic_id):
            return False
        self._try_another(reader)
        return True

    def _try_another(self, reader: Reader) -> None:
        if reader.link is not None and reader.link.broker is not None:
            reader.refused.add(reader.link.broker.id)
        if self._retry is None and not self.closed:
            self._retry = self.core.loop.call_later(limits.LINK_WATCH_S, self._ask_again)

    def doubts(self, reader: Reader, error: StentorError) -> bool:
        """A member says that its messages end before the start. It may be behind: the head is asked first (C24)."""
        ends_before = isinstance(error, OffsetOutOfRange) and reader.received > (error.end or 0)
        if ends_before and not self.closed:
            task = self.core.loop.create_task(self._check_end(reader, error))
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)
        return ends_before

    async def _check_end(self, reader: Reader, refusal: StentorError) -> None:
        """Ask another member if the partition does hold the start; tell the application if it does not."""
        try:
            found = await self._resolve(reader, "latest", self.core.deadline(None), stale=False)
        except StentorError as error:
            self.reader_failed(reader, error)
            return
        committed = found.committed
        if reader.received > committed:
            start = refusal.detail.get("start", 0)
            refusal.message = f"{reader.name} holds offsets {start} to {committed}; {reader.received} was asked for."
            refusal.detail["end"] = committed
            self.reader_failed(reader, refusal)
        elif not self.closed:
            reader.committed = max(reader.committed, committed)
            self._try_another(reader)

    def _ask_again(self) -> None:
        self._retry = None
        self._reopen()

    def _routes_changed(self) -> None:
        """Members and topics come and go."""
        if self.opened:
            self._reopen()
        if self.closed or self.end is not None or not any(map(is_pattern, self.patterns)):
            return
        self._routes_stale = True
        if self.opened and (self._finding is None or self._finding.done()):
            self._finding = self.core.loop.create_task(self._find_new())

    async def _find_new(self) -> None:
        while self._routes_stale and not self.closed:
            self._routes_stale = False
            for reader in await self._add_readers(self.core.deadline(None)):
                self.note(Event("topic_found", reader.topic, reader.partition))
                if not self.closed:
                    self._open_stream(reader)

    def reader_failed(self, reader: Reader, error: StentorError) -> None:
        gone = isinstance(error, PartitionNotFound) or error.code == "topic_not_found"
        if gone and any(map(is_pattern, self.patterns)):
            self.readers.pop((reader.topic_id, reader.partition), None)
            self.note(Event("topic_gone", reader.topic, reader.partition))
            self.reader_finished()
            return
        reader.finished = True
        self.put(error)

    def reader_finished(self) -> None:
        """With an end: once every partition has reached it, so has the subscription."""
        if self.end is not None and self.opened and all(r.finished for r in self.readers.values()):
            self.put(None)

    def note(self, event: Event) -> None:
        if len(self.events) < _EVENTS_KEPT_MAX:
            self.events.append(event)

    # --- what the application did ---------------------------------------------------------------

    def grant(self, reader: Reader, size: int) -> None:
        """The application took this much; tell the broker, a quarter of the window at a time, or after a moment."""
        reader.owed += size
        reader.waiting -= size
        link = reader.link
        if reader.stream_id is None or link is None:
            return
        if reader.owed >= self.credit // 4:
            link.grant(reader.stream_id, reader.owed)
            reader.owed = 0
        elif self._telling is None and not self.closed:
            self._telling = self.core.loop.call_later(limits.CREDIT_TOLD_S, self._tell_taken)

    def _tell_taken(self) -> None:
        """Operators see lag by the credit that came back: what was taken is told soon, however little it is."""
        self._telling = None
        for reader in self.readers.values():
            if reader.owed and reader.stream_id is not None and reader.link is not None:
                reader.link.grant(reader.stream_id, reader.owed)
                reader.owed = 0

    def too_slow(self, reader: Reader, appended_at_us: int | None) -> bool:
        if self.max_lag is None:
            return False
        if isinstance(self.max_lag, timedelta):
            lag_us = 0 if appended_at_us is None else time.time_ns() // 1000 - appended_at_us
            return lag_us > self.max_lag // timedelta(microseconds=1)
        return reader.lag > self.max_lag

    async def skip_to_now(self, reader: Reader) -> None:
        """Jump to the commit point and say exactly what was not delivered."""
        self._close_stream(reader)
        first = reader.taken
        try:
            # About now will do: who is too slow anyway should not stand still where nobody is certain.
            found = await self._resolve(reader, "latest", self.core.deadline(None), stale=True)
            self._close_stream(reader)  # a new link may have opened it again meanwhile, and have brought more
            now = max(found.offset, reader.received)
            reader.received = reader.taken = reader.start = now
            reader.committed = max(found.committed, now)
            self.note(Event("skipped", reader.topic, reader.partition, first, now))
            self.skipped += now - first
        finally:
            self._reopen()  # at now; where that could not be found, behind what was received

    def _close_stream(self, reader: Reader) -> None:
        link = reader.link
        if link is not None and reader.stream_id is not None:
            link.close_stream(reader.stream_id)
        reader.stream_id = None

    def squawk(self, reader: Reader) -> None:
        """Tell the alerts topic that a subscriber gives up; best effort, without waiting."""
        text = f"{self.core.name} is too slow on {reader.topic}/{reader.partition}: {reader.lag} messages behind"
        self.core.loop.create_task(self.core.alert(ALERTS_TOPIC, text))

    async def confirm_damage(self, reader: Reader, delivery_end: int, found: StentorError) -> StentorError:
        """Let the broker look at its disk; if it finds the damage, it knows best how to go on."""
        request = messages.ReportDamage(
            topic_id=reader.topic_id, partition=reader.partition, offset=reader.taken, end=delivery_end
        )
        try:
            await self.core.call_partition(request, reader.topic)
        except CorruptData as confirmed:
            return confirmed
        except StentorError:
            pass  # then what the reader found must do
        return found

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.core.link_listeners.discard(self._relinked)
        self.core.route_listeners.discard(self._routes_changed)
        self.core.closers.discard(self.close)
        for timer in (self._retry, self._telling):
            if timer is not None:
                timer.cancel()
        for task in self._checking:
            task.cancel()
        for reader in self.readers.values():
            self._close_stream(reader)
        self.put(None)

    def statistics(self) -> dict[str, Any]:
        return {
            "topics": sorted({reader.topic for reader in self.readers.values()}),
            "lag": {r.name: r.lag for r in self.readers.values()},
            "positions": {r.name: r.taken for r in self.readers.values()},
            "skipped": self.skipped,
        }


def _check_slow(on_slow: str, max_lag: object) -> None:
    if on_slow not in _ON_SLOW:
        raise InvalidArgument(f"on_slow={on_slow!r} is unknown.", hint=f"Use one of {', '.join(_ON_SLOW)}.")
    if on_slow != "catch_up" and max_lag is None:
        raise InvalidArgument(
            f"on_slow={on_slow!r} needs max_lag.",
            hint="A number of messages, or a timedelta, for example max_lag=10_000.",
        )
    if max_lag is not None and (isinstance(max_lag, bool) or not isinstance(max_lag, int | timedelta)):
        raise InvalidArgument(f"max_lag={max_lag!r} is neither a number of messages nor a timedelta.")
