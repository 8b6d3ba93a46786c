"""A subscription: the partitions that it reads, found when it is opened and as topics come and go.

`SubscriptionCore` lives in the client's loop: it finds the partitions, opens a stream for each (`client.streams`),
takes deliveries as bytes and hands them to an inbox, from which a subscription takes them.

What to do when the application is too slow is its choice (D7):

    catch_up    read on from the log at its own pace (the default)
    raise       past max_lag raise SlowSubscriber and stop, after telling the alerts topic
    skip        past max_lag jump to now, and report exactly which offsets were skipped
    disconnect  past max_lag end the subscription quietly
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.client.places import Places
from stentor.client.position import Position
from stentor.client.reader import Event, Reader
from stentor.client.streams import Streams
from stentor.core.names import check_pattern, is_pattern, matches
from stentor.errors import CorruptData, InvalidArgument, OffsetOutOfRange, PartitionNotFound, StentorError
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.handed import Handed
    from stentor.client.link import BrokerLink
    from stentor.client.options import MaxLag, OnSlow, SubscriptionStatistics, TopicOptions
    from stentor.client.positions import Place, Stale
    from stentor.client.starts import Start

logger = logging.getLogger(__name__)

ALERTS_TOPIC: Final = "_alerts"
_ALERT_S: Final = 5.0  # who is too slow has no more time to lose
_WATCH_S: Final = 1.0  # how often a subscription that wants to know is looked at
_ALERTS: Final[TopicOptions] = {"retention_age_s": 604_800, "retention_bytes": 64 * limits.MIB}  # a week, if it fits
_ON_SLOW: Final = ("catch_up", "raise", "skip", "disconnect")


class SubscriptionCore:
    """One subscription, in the client's loop."""

    def __init__(
        self,
        core: ClientCore,
        topics: str | list[str],
        *,
        start: Start = "latest",
        end: Place | None = None,
        partition: int | Iterable[int] | None = None,
        on_slow: OnSlow = "catch_up",
        max_lag: MaxLag | None = None,
        stale: Stale = "refuse",
        put: Callable[[Any], None],
        credit: int = limits.SUBSCRIPTION_CREDIT_BYTES,
        subtree: str = "",
        copies: bool = False,
    ) -> None:
        patterns = [topics] if isinstance(topics, str) else list(topics)
        if not patterns:
            raise InvalidArgument("A subscription needs at least one topic.")
        for pattern in patterns:
            check_pattern(pattern)
        places = Places(core, patterns, start=start, end=end, partition=partition, stale=stale)
        _check_slow(on_slow, max_lag)
        self.core = core
        self.patterns = patterns
        self.places = places
        self.end = end
        self.on_slow = on_slow
        self.max_lag = max_lag
        self.look: Callable[[], None] | None = None  # how the application is with what it has at hand
        self.put = put
        self.credit = credit
        self.subtree = subtree  # of a table: the keys to send; empty, all of them
        self.copies = copies  # its owner keeps the latest of each key, and must see every deletion
        self.readers: dict[tuple[int, int], Reader] = {}
        self.closed = False
        self.opened = False
        self.events: list[Event] = []
        self.skipped = 0  # messages jumped over by on_slow="skip"
        self.removed = 0  # messages, at most, that compactions had removed from what was received
        self._finding: asyncio.Task[None] | None = None
        self._routes_stale = False  # topics may have come since we looked
        self.streams = Streams(core, self)

    async def open(self, deadline: Deadline) -> None:
        """Find the partitions and position every stream, so that nothing published later is missed."""
        self.core.route_listeners.add(self._routes_changed)
        try:
            await self._open(deadline)
        except BaseException:
            self.core.route_listeners.discard(self._routes_changed)
            raise

    async def _open(self, deadline: Deadline) -> None:
        await self.places.find_named(deadline)
        for event in self.places.check_starts():
            self.note(event)
        await self._add_readers(deadline)
        missing = (self.places.partitions or frozenset()) - {partition for _, partition in self.readers}
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
            self.streams.open(reader)
        self.reader_finished()
        if self.on_slow == "raise":
            self._watch()
        self._routes_changed()  # topics that came while we were looking

    async def _add_readers(self, deadline: Deadline) -> list[Reader]:
        partitions = self.places.partitions
        wanted = [
            Reader(self, route.name, route.id, index)
            for route in self.core.routes.values()
            if any(matches(pattern, route.name) for pattern in self.patterns)
            for index in range(len(route.partitions))
            if (route.id, index) not in self.readers and (partitions is None or index in partitions)
        ]
        outcomes = await asyncio.gather(
            *(self.places.position(reader, deadline, found_later=self.opened) for reader in wanted),
            return_exceptions=True,
        )
        found = []
        for reader, outcome in zip(wanted, outcomes, strict=True):
            if outcome is None:
                self.readers[reader.topic_id, reader.partition] = reader
                found.append(reader)
            elif not self.opened:
                raise outcome
            elif isinstance(outcome, StentorError) and outcome.retriable:
                self._routes_stale = True  # nobody may tell of it again
        return found

    # --- what the application asks: any thread --------------------------------------------------

    def readers_now(self) -> list[Reader]:
        """The readers of this moment. The loop adds and removes some while the application asks in another thread; the
        copy is made in one step for the interpreter.
        """
        return list(self.readers.values())

    def topics(self) -> list[str]:
        """The topics that it reads now."""
        return sorted({reader.topic for reader in self.readers_now()})

    def positions(self, handed: Handed | None) -> list[str]:
        """How far the application has come in each partition; `handed` is what it is being handed now."""
        found = []
        for reader in self.readers_now():
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
        for reader in self.readers_now():
            found.setdefault(reader.topic, {})[reader.partition] = reader.start if reader.end is None else reader.end
        return found

    @property
    def sure(self) -> bool:
        """Whether nothing was committed beyond those ends when they were found (C30)."""
        return all(reader.sure for reader in self.readers_now())

    # --- changes --------------------------------------------------------------------------------

    def _relinked(self, link: BrokerLink) -> None:  # noqa: ARG002
        self.streams.reopen()

    def _routes_changed(self) -> None:
        """Members and topics come and go."""
        if self.opened:
            self.streams.reopen()
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
                    self.streams.open(reader)
            if self._routes_stale:
                await self.core.changes(limits.LINK_WATCH_S)

    def reader_failed(self, reader: Reader, error: StentorError) -> None:
        gone = isinstance(error, PartitionNotFound) or error.code == "topic_not_found"
        if gone and any(map(is_pattern, self.patterns)):
            self.readers.pop((reader.topic_id, reader.partition), None)
            self.note(Event("topic_gone", reader.topic, reader.partition))
            self.reader_finished()
            return
        if isinstance(error, OffsetOutOfRange) and error.detail.get("begun_anew") and reader.end is None:
            now = error.start or 0
            self.note(Event("skipped", reader.topic, reader.partition, reader.received, now, unknown=True))
            reader.received = reader.begins = now
            self.streams.open(reader)
            return
        if (
            isinstance(error, OffsetOutOfRange)
            and not (reader.held or self.copies)  # a copy that was empty and current must know what it missed
            and (error.start or 0) > reader.received == reader.start
        ):
            self._begin_later(reader, error.start or 0)
            return
        reader.finished = True
        self.put(error)

    def _begin_later(self, reader: Reader, log_start: int) -> None:
        """Retention took messages between the question where a partition begins and the stream. Nobody was given a
        position there: the reader begins where the log begins now, and an event says so.
        """
        now = log_start if reader.end is None else min(log_start, reader.end)
        self.note(Event("skipped", reader.topic, reader.partition, reader.received, now))
        reader.received = reader.taken = reader.start = now
        if now == reader.end:
            reader.finished = True
            self.reader_finished()
        else:
            self.streams.open(reader)

    def reader_finished(self) -> None:
        """With an end: once every partition has reached it, so has the subscription."""
        if self.end is not None and self.opened and all(r.finished for r in self.readers.values()):
            self.put(None)

    def note(self, event: Event) -> None:
        if len(self.events) < limits.EVENTS_KEPT_MAX:
            self.events.append(event)

    def overtaken(self, reader: Reader, removed: int, next_offset: int) -> None:
        """A compaction has removed messages from what comes now: the application must hear of it (C23)."""
        self.removed += removed
        known = self.copies or reader.was_overtaken or not reader.was_current  # in other words, or as it wants it
        if not known:
            logger.warning("%s: a compaction removed messages before this reader came to them", reader.name)
        reader.was_overtaken = True
        self.note(Event("compacted", reader.topic, reader.partition, reader.received, next_offset, removed))

    # --- what the application did ---------------------------------------------------------------

    def too_slow(self, reader: Reader, appended_at_us: int | None, next_offset: int | None = None) -> bool:
        """Whether an application is too far behind that comes to this offset, and a batch that was appended then."""
        messages_max, seconds_max = _limits(self.max_lag)
        if messages_max is not None:
            at = reader.begins if next_offset is None else max(next_offset, reader.begins)
            behind = reader.committed - max(at, reader.taken)
            if behind > messages_max:
                return True
        if seconds_max is None or appended_at_us is None:
            return False
        return time.time_ns() // 1000 - appended_at_us > seconds_max // timedelta(microseconds=1)

    def _watch(self) -> None:
        """A snail is noticed also while it is at one delivery for long."""
        if not self.closed:
            if self.look is not None:
                self.look()
            self.core.loop.call_later(_WATCH_S, self._watch)

    async def skip_to_now(self, reader: Reader) -> None:
        """Jump to the commit point and say exactly what was not delivered."""
        self.streams.close(reader)
        first = max(reader.taken, reader.begins)  # what was lost before that, an event has said
        try:
            # About now will do: who is too slow anyway should not stand still where nobody is certain.
            found = await self.places.resolve(reader, "latest", self.core.deadline(None), stale=True)
            self.streams.close(reader)  # a new link may have opened it again meanwhile, and have brought more
            now = max(found.offset, reader.received)
            reader.received = reader.taken = reader.start = now
            reader.committed = max(found.committed, now)
            self.note(Event("skipped", reader.topic, reader.partition, first, now))
            self.skipped += now - first
        finally:
            self.streams.reopen()  # at now; where that could not be found, behind what was received

    def squawk(self, reader: Reader) -> None:
        """Tell the alerts topic that a subscriber gives up; best effort, without waiting."""
        text = (
            f"{self.core.name} is too slow on {reader.topic}/{reader.partition}: {reader.lag} messages behind, with"
            f" max_lag={describe_lag(self.max_lag)}; it gives up"
        )
        self.core.loop.create_task(self._alert(text))

    async def _alert(self, text: str) -> None:
        client = self.core.client
        if client is not None:
            with suppress(StentorError):  # an alert that cannot be sent must not hide what it was about
                await client.create_topic(ALERTS_TOPIC, exist_ok=True, timeout=_ALERT_S, **_ALERTS)
                await client.publish(ALERTS_TOPIC, text, key=self.core.name, timeout=_ALERT_S)

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
        self.streams.end()
        self.put(None)

    def statistics(self) -> SubscriptionStatistics:
        readers = self.readers_now()
        return {
            "topics": self.topics(),
            "lag": {reader.name: reader.lag for reader in readers},
            "positions": {reader.name: reader.taken for reader in readers},
            "skipped": self.skipped,
            "compacted": self.removed,
        }


def _check_slow(on_slow: str, max_lag: object) -> None:
    if on_slow not in _ON_SLOW:
        raise InvalidArgument(f"on_slow={on_slow!r} is unknown.", hint=f"Use one of {', '.join(_ON_SLOW)}.")
    if on_slow != "catch_up" and max_lag is None:
        raise InvalidArgument(
            f"on_slow={on_slow!r} needs max_lag.",
            hint="A number of messages, or a timedelta, for example max_lag=10_000.",
        )
    parts = max_lag if isinstance(max_lag, tuple) and len(max_lag) == 2 else (max_lag,)
    kinds = [int, timedelta] if len(parts) == 2 else [int | timedelta]
    if max_lag is not None and not all(
        isinstance(part, kind) and not isinstance(part, bool) for part, kind in zip(parts, kinds, strict=True)
    ):
        raise InvalidArgument(
            f"max_lag={max_lag!r} is neither a number of messages nor a timedelta.",
            hint="Both are possible as a pair, for example max_lag=(10_000, timedelta(seconds=5)).",
        )


def _limits(max_lag: MaxLag | None) -> tuple[int | None, timedelta | None]:
    """In messages, and in time."""
    if isinstance(max_lag, tuple):
        return max_lag
    if isinstance(max_lag, timedelta):
        return None, max_lag
    return max_lag, None


def describe_lag(max_lag: MaxLag | None) -> str:
    """A limit, as people read it."""
    messages_max, seconds_max = _limits(max_lag)
    parts = [] if messages_max is None else [f"{messages_max} messages"]
    parts += [] if seconds_max is None else [f"{seconds_max.total_seconds():g} s"]
    return " or ".join(parts)
