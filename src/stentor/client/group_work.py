"""A group as a source of work: positions move only past what is finished, partition by partition.

`GroupSource` stands between a member's streams and `client.workers`. While it does, it takes the place of the inbox of
messages and of the `GroupProgress`: deliveries come here, and the member's commits ask here how far the work is.

Credit for a delivery is given back when all of its messages are finished. So a partition has a bounded number of bytes
and messages in work (AHEAD_MAX), and a partition that is stuck stops by itself while the others go on.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import Counter, deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from stentor.client.decode import decode_messages, position_of
from stentor.client.group_unfinished import Unfinished
from stentor.client.job import sendable, text_of
from stentor.client.workers import Workers
from stentor.client.workers_pool import Interrupted
from stentor.client.workers_source import log_failure
from stentor.errors import CorruptData, StentorError
from stentor.work_errors import HandlerError, HandlerTimeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from stentor.client.group_core import GroupCore
    from stentor.client.handed import HandedRun
    from stentor.client.message import Message
    from stentor.client.reader import Delivery, Reader
    from stentor.client.workers import WorkStatistics
    from stentor.client.workers_pool import WorkerPool
    from stentor.client.workers_terms import WorkTerms

PARTITION_AHEAD_MAX: Final = 16_384
"""Messages of one partition that are taken and not finished: enough for the quickest handler."""

PARTITION_AHEAD_MIN: Final = 256
"""However many partitions there are."""

_TRACEBACK_CHARACTERS_MAX = 8_000  # of a dead letter's header: the end of it says what was wrong


class OnFailed(Protocol):
    """What becomes of a message whose handler failed."""

    def __call__(self, message: Message, error: Exception) -> Awaitable[None]: ...


class _Share:
    """One partition that this member works on."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.deliveries: deque[Delivery] = deque()
        self.runs: Iterator[HandedRun] = iter(())  # of the delivery at hand
        self.delivery: Delivery | None = None
        self.current: Iterator[Message] = iter(())  # of the run at hand
        self.next_offset = reader.start  # behind what was taken
        self.unfinished = Unfinished()
        self.handled: set[int] = set()  # what comes again, and was finished before a pause
        self.granting: deque[tuple[int, int]] = deque()  # end and size of deliveries whose credit is held back
        self.listed = False  # it is among those that have something

    @property
    def position(self) -> int:
        """Everything below is finished."""
        lowest = self.unfinished.lowest
        return max(self.next_offset, self.reader.taken) if lowest is None else lowest

    def take(self, limit: int) -> list[Message]:
        """The next messages; an empty list if there are none."""
        while True:
            found = self._take(limit)
            before = [message for message in found if message.offset in self.handled] if self.handled else []
            if not before:
                return found
            self.unfinished.finish(before)
            left = [message for message in found if message.offset not in self.handled]
            self.handled.difference_update(message.offset for message in before)
            if left:
                return left

    def _take(self, limit: int) -> list[Message]:
        found: list[Message] = []
        while len(found) < limit:
            more = list(islice(self.current, limit - len(found)))
            found += more
            if not more and not self._next_run():
                break
        if found:
            self.next_offset = found[-1].offset + 1
            self.unfinished.took(found)
        return found

    def _next_run(self) -> bool:
        run = next(self.runs, None)
        while run is None:
            if self.delivery is not None:
                self.reader.taken = self.delivery.next_offset
                self.granting.append((self.delivery.next_offset, len(self.delivery.body)))
                self.delivery = None
            if not self.deliveries:
                return False
            delivery = self.delivery = self.deliveries.popleft()
            reader, body = self.reader, delivery.body
            floor = max(reader.start, self.next_offset)
            place = position_of(body, 0, floor)
            self.runs = decode_messages(body, reader.topic, reader.partition, floor, None, place)
            run = next(self.runs, None)
        self.current = run.messages
        return True

    def handled_behind(self) -> set[int]:
        """Return the offsets of messages behind the position that are finished."""
        position = self.position
        return {offset for offset in self.handled | self.unfinished.finished_behind() if offset >= position}

    def empty(self) -> None:
        """Hand out nothing more."""
        self.deliveries.clear()
        self.runs, self.current, self.delivery = iter(()), iter(()), None


class GroupSource:
    """What a group's member gives its workers: a `WorkSource`, and how far they are."""

    def __init__(self, core: GroupCore, on_failed: OnFailed) -> None:
        self._core = core
        self._on_failed = on_failed
        self.workers: Workers | None = None
        self._shares: dict[tuple[str, int], _Share] = {}
        self._ready: deque[_Share] = deque()
        self._news = asyncio.Event()
        self._over = False
        self._failure: BaseException | None = None
        self._failing: Counter[tuple[str, int]] = Counter()  # messages whose failure is being settled, by partition

    # --- what the member's streams bring --------------------------------------------------------

    def put(self, item: Any) -> None:
        """A delivery, an error, or the end."""
        if item is None or isinstance(item, BaseException):
            self._over, self._failure = True, item
        elif not item.reader.dropped:
            share = self._share(item.reader)
            share.deliveries.append(item)
            self._list(share)
        self._news.set()

    def _share(self, reader: Reader) -> _Share:
        key = reader.topic, reader.partition
        share = self._shares.get(key)
        if share is None or share.reader is not reader:
            share = self._shares[key] = _Share(reader)
        return share

    def _list(self, share: _Share) -> None:
        if not share.listed and not share.reader.dropped and share.unfinished.count < self._ahead():
            share.listed = True
            self._ready.append(share)
            self._news.set()

    def _ahead(self) -> int:
        many = PARTITION_AHEAD_MAX * 8 // max(1, len(self._core.readers))
        return max(PARTITION_AHEAD_MIN, min(PARTITION_AHEAD_MAX, many))

    # --- a WorkSource ---------------------------------------------------------------------------

    async def take(self, limit: int) -> list[Message] | None:
        """Of the partitions in turn."""
        while True:
            while self._ready:
                share = self._ready.popleft()
                share.listed = False
                if share.reader.dropped:
                    continue
                try:
                    found = share.take(limit)
                except CorruptData as error:
                    reader = share.reader
                    end = reader.received if share.delivery is None else share.delivery.next_offset
                    raise await self._core.confirm_damage(reader, end, error) from error
                if found:
                    self._list(share)
                    return found
                self._grant(share)
            if self._over:
                if self._failure is not None:
                    raise self._failure
                return None
            self._news.clear()
            await self._news.wait()

    def begin(self, messages: list[Message]) -> list[Message]:
        """All of them, or none if their partition went to another member while this process stood still."""
        share = self._shares.get((messages[0].topic, messages[0].partition))
        return messages if share is not None and self._core.tie.holds(share.reader) else []

    def certain_until(self, messages: list[Message]) -> float:  # noqa: ARG002 - the whole member has one lease
        """Until when these may be begun without asking."""
        return self._core.tie.certainty.sure_until

    async def ask(self, messages: list[Message]) -> None:
        """Ask the head; those of partitions that are not this member's any more are left out by `begin`."""
        share = self._shares.get((messages[0].topic, messages[0].partition))
        if share is not None:
            await self._core.tie.sure(share.reader)

    def recalled(self, messages: list[Message]) -> None:
        """Nothing depends on it."""

    def done(self, messages: list[Message]) -> None:
        """The position may move."""
        share = self._shares.get((messages[0].topic, messages[0].partition))
        if share is not None:
            share.unfinished.finish(messages)
            self._grant(share)
            if share.deliveries or share.delivery is not None:
                self._list(share)

    def _grant(self, share: _Share) -> None:
        position, granting = share.position, share.granting
        while granting and granting[0][0] <= position:
            self._core.streams.grant(share.reader, granting.popleft()[1])

    async def failed(self, message: Message, error: Exception) -> None:
        """It counts as finished if that is what somebody wants."""
        place = message.topic, message.partition
        self._failing[place] += 1
        try:
            await self._on_failed(message, error)
            self.done([message])
        finally:
            self._failing[place] -= 1

    def back(self, messages: list[Message]) -> None:
        """Whoever owns the partition next begins with them."""

    # --- how far it is, for commits -------------------------------------------------------------

    def position(self, reader: Reader) -> int:
        """Everything of a partition below this offset is finished."""
        share = self._shares.get((reader.topic, reader.partition))
        return share.position if share is not None and share.reader is reader else reader.taken

    def handed_out(self, reader: Reader) -> int:
        """Nothing of a partition at this offset or behind it was begun, as far as its commits can say."""
        return self.position(reader) + (1 if self.is_busy(reader) else 0)

    def is_busy(self, reader: Reader) -> bool:
        """Whether something of a partition is in work."""
        if self._failing[reader.topic, reader.partition]:
            return True
        return self.workers is not None and self.workers.is_at_work(reader.topic, reader.partition)

    def in_work(self) -> object:
        """Workers have a time limit of their own."""
        return None

    def forget(self, reader: Reader) -> None:
        """Workers that are at work on something of it go on; it counts for nothing."""
        self.drop(reader)
        self._shares.pop((reader.topic, reader.partition), None)

    def lose(self, reader: Reader) -> None:
        """Nothing: what was handed out before is another reader's, and is not counted for this one."""

    def moved(self, before: Reader, reader: Reader) -> None:
        """What is finished out of its order is not begun again."""
        share = self._shares.get((before.topic, before.partition))
        if share is not None and share.reader is before:
            self._share(reader).handled = share.handled_behind()

    def drop(self, reader: Reader) -> None:
        """This member should let go of a partition: nothing more of it is begun."""
        share = self._shares.get((reader.topic, reader.partition))
        if share is not None and share.reader is reader:
            share.empty()
            if self.workers is not None:
                self.workers.forget(reader.topic, reader.partition)


class GroupRun:
    """One `run` of a member, in the client's loop."""

    def __init__(self, core: GroupCore, pool: WorkerPool, terms: WorkTerms, on_failed: OnFailed) -> None:
        self._core = core
        self.terms = terms
        self.ended = threading.Event()
        self._over = asyncio.Event()  # the same for whoever waits in the loop
        self._source = GroupSource(core, on_failed)
        self._workers = Workers(self._source, pool, terms)
        self._source.workers = self._workers

    async def run(self) -> None:
        """Until the group is closed, `stop` is called, or a failure ends it."""
        core, source = self._core, self._source
        progress, put = core.progress, core.put
        core.put = source.put
        self._start_anew(progress.position)
        core.progress = source
        hung: HandlerTimeout | None = None
        try:
            await self._workers.run()
        except HandlerTimeout as error:
            hung = error
            raise
        finally:
            self.ended.set()
            self._over.set()
            core.put = put
            if core.closed:
                core.put(None)
            else:
                self._start_anew(source.position)
            core.progress = progress
            for reader in core.readers_now():
                progress.forget(reader)
            if hung is not None and self.terms.mode != "process":
                core.tie.give_up(hung)  # what hangs cannot be ended: others must get its partitions

    async def wait_ended(self) -> None:
        """Until what is in work is finished, or its time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.terms.finish_s):
                await self._over.wait()

    def _start_anew(self, position: Callable[[Reader], int]) -> None:
        """Streams begin again behind what is finished: nobody knows what is at hand elsewhere."""
        for reader in self._core.readers_now():
            self._core.move(reader, position(reader))

    def stop(self) -> None:
        """Take nothing more; end when what is in work is finished."""
        self._workers.stop()

    def statistics(self) -> WorkStatistics:
        """What was done."""
        return self._workers.statistics()


async def raise_it(message: Message, error: Exception) -> None:  # noqa: ARG001 - the shape of OnFailed
    """The first error ends the work."""
    raise error


async def skip_it(message: Message, error: Exception) -> None:
    """Log whatever fails, and pass over it."""
    if isinstance(error, Interrupted):
        raise error
    log_failure(name_message(message), error)


def name_message(message: Message) -> str:
    """Name a message in a log line."""
    return f"message {message.topic}/{message.partition}@{message.offset}"


def dead_letter(message: Message, error: Exception) -> dict[str, str]:
    """The headers of a message that failed: where it was, and why."""
    kind, trace = type(error).__name__, "".join(traceback.format_exception(error))
    if isinstance(error, HandlerError):
        kind, trace = str(error.detail.get("kind", kind)), str(error.detail.get("traceback", trace))
    return {
        "stentor-failed-topic": message.topic,
        "stentor-failed-partition": str(message.partition),
        "stentor-failed-offset": str(message.offset),
        "stentor-failed-error": kind,
        "stentor-failed-reason": (error.message if isinstance(error, StentorError) else text_of(error))[:1000],
        "stentor-failed-traceback": sendable(trace)[-_TRACEBACK_CHARACTERS_MAX:],
    }
