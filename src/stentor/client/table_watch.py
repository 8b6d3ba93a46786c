"""Watches: the changes of a table as they come, one by one or by callback.

The copy tells of changes in the client's loop, a batch at a time. They wait in a bounded backlog
(`client.table_backlog`) until somebody takes them, in any thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from operator import gt
from typing import TYPE_CHECKING, Any, Final, Self

from stentor.client.deadline import Deadline
from stentor.client.exact import missing_since
from stentor.client.help import explained
from stentor.client.inbox import AsyncInbox
from stentor.client.position import Position
from stentor.client.table_backlog import Backlog, Past
from stentor.client.table_copy import Overtaken, TableChange
from stentor.errors import (
    Closed,
    Compacted,
    DeadlineExceeded,
    InvalidArgument,
    OffsetOutOfRange,
    SlowSubscriber,
    StentorError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stentor.client.async_client import AsyncClient
    from stentor.client.message import Message
    from stentor.client.subscription import AsyncSubscription, Subscription
    from stentor.client.sync_client import Client
    from stentor.client.table_backlog import OnSlowWatch
    from stentor.client.table_copy import TableCopy, TableSequence
    from stentor.client.table_reload import TableResync

logger = logging.getLogger(__name__)

_SLICE_S = 1.0  # a thread that waits longer looks up this often, so that Ctrl-C is heard


class _WatchFace:
    """What both watches share: what waits, where it began, why it ended."""

    def __init__(
        self, copy: TableCopy, subtree: str, start: TableSequence | None, limit: int, on_slow: OnSlowWatch
    ) -> None:
        self._copy = copy
        self._limit, self._on_slow = limit, on_slow
        self._present: deque[TableChange] = deque()  # the whole table, for who begins again
        self._subtree = subtree = copy.part(subtree)
        self._failure: StentorError | None = None
        self._closed = False
        if start is not None:
            start = copy.check_sequence(start)
        Backlog((), limit, on_slow)  # what is wrong with these is said before anything is told to the copy
        with copy.lock:
            copy.check()
            now = copy.sequence
            self._began = self._start = now if start is None else start
            self._backlog = Backlog(self._start, limit, on_slow)
            behind = any(wanted < have for wanted, have in zip(self._start, now, strict=True))
            self._past = Past(self._start, now, subtree) if behind else None
            copy.watchers.append(self._take)

    @property
    def sequence(self) -> TableSequence:
        """Everything before it was taken from this watch. Give it as `start=` to another one, to go on there."""
        with self._copy.lock:
            if self._present:
                return self._began
            return self._backlog.sequence(waiting=self._past is None)

    def _take(self, changes: list[TableChange] | Overtaken | StentorError) -> None:
        """In the client's loop."""
        if isinstance(changes, StentorError):
            self._failure = self._failure or changes
        elif isinstance(changes, Overtaken):
            if changes.removed and self._failure is None and any(map(gt, changes.before, self._start)):
                self._overtaken(changes)
        else:
            start = self._start
            wanted = [
                change
                for change in changes
                if change.key.startswith(self._subtree) and change.version >= start[change.partition]
            ]
            if not wanted or self._failure is not None:
                return
            try:
                with self._copy.lock:
                    self._backlog.add(wanted)
            except StentorError as error:
                error.object = self._copy.name
                self._failure = error
                self._copy.unwatch(self._take)
        self._wake()

    def _overtaken(self, news: Overtaken, *, before: bool = False) -> None:
        """Changes are missing: the next one that is told counts them, or the watch ends here."""
        try:
            with self._copy.lock:
                self._backlog.overtaken(news.removed, news.reason, before=before)
        except SlowSubscriber as error:
            error.object = self._copy.name
            self._copy.unwatch(self._take)
            with self._copy.lock:
                self._failure = error
                if self._past is not None:  # what waits lies behind what is missing
                    self._past, self._backlog = None, Backlog(self._start, self._limit, self._on_slow)

    def _wake(self) -> None:
        raise NotImplementedError

    def _next(self) -> TableChange | None:
        """The next change that waits; None if none does. Past the last one, why there will be none."""
        with self._copy.lock:
            change = self._present.popleft() if self._present else self._backlog.take()
        if change is None or self._closed:
            if self._closed:
                raise Closed(f"This watch of table {self._copy.name} is closed.", hint="Watch the table again.")
            if self._failure is not None:
                raise self._failure
        return change

    async def _look_back(self) -> None:
        """Find out what the log lacks of the changes from the start on. Compacted, once, if what is left does not lead
        to the present state: whoever goes on is handed the whole table.
        """
        past, copy = self._past, self._copy
        assert past is not None
        try:
            missing = await missing_since(copy, self._start, past.until)
        except (Compacted, OffsetOutOfRange) as error:
            raise self._begin_again(error) from error
        if missing > past.missing:
            why = f"Compactions of table {copy.name} removed up to {missing} changes after {self._start}."
            if past.read and self._on_slow != "raise":  # what was told meanwhile may lack any of them
                raise self._begin_again(Compacted(why))
            self._overtaken(Overtaken(missing, past.until, why), before=True)
            past.missing = missing

    def _begin_again(self, why: StentorError) -> Compacted:
        """Go on with the whole table as it is now, and what changes from there on."""
        copy = self._copy
        with copy.lock:
            inside = [entry for entry in copy.entries.values() if entry.key.startswith(self._subtree)]
            self._start = copy.sequence
            self._backlog = Backlog(self._start, self._limit, self._on_slow)
            self._past = None
            self._present.extend(
                TableChange(entry.key, None, entry, entry.version, copy.partition_of(entry.key))
                for entry in sorted(inside, key=lambda entry: entry.version)
            )
        return Compacted(
            f"Changes of table {copy.name} after {self._began} are no longer known: {why.message}",
            hint="Forget what you have of the table, and go on with this watch: it hands out the whole table as it is.",
            operation="watch",
            object=copy.name,
            **({"horizon": why.detail["horizon"]} if "horizon" in why.detail else {}),
        )

    def _positions(self) -> list[str]:
        """The beginning of the table's log, which must still be there."""
        copy = self._copy
        return [str(Position(copy.name, index, 0, copy.topic_id)) for index in range(len(self._start))]

    def _passed(self, row: Message) -> TableChange | None:
        assert self._past is not None
        change = self._past.change(row)
        if change is None:
            return None
        with self._copy.lock:
            return self._backlog.passed(change)

    def _late(self, deadline: Deadline) -> DeadlineExceeded:
        name = self._copy.name
        return DeadlineExceeded(
            f"No change of table {name} within {deadline.seconds:.3g} s.", operation="watch", object=name
        )

    def _end(self) -> None:
        self._closed = True
        self._copy.unwatch(self._take)
        self._wake()


@explained("TableWatch")
class TableWatch(_WatchFace):
    """Changes of a table as they come: iterate, or `get(timeout=...)`. Use as a context manager.

    Threads may share one: each change goes to one of them. `table.watch()` makes one.
    """

    def __init__(
        self,
        client: Client,
        copy: TableCopy,
        subtree: str,
        start: TableSequence | None,
        limit: int,
        on_slow: OnSlowWatch,
    ) -> None:
        self._client = client
        self._some = threading.Condition(threading.Lock())
        self._turn = threading.Lock()  # who has it reads the past
        self._reading: Subscription | None = None
        super().__init__(copy, subtree, start, limit, on_slow)

    def _wake(self) -> None:
        with self._some:
            self._some.notify_all()

    def get(self, timeout: float | None = None) -> TableChange:
        """The next change; DeadlineExceeded if none comes in time."""
        deadline = Deadline(timeout)
        if self._past is not None and (found := self._from_past(deadline)) is not None:
            return found
        while True:
            with self._some:
                found = self._next()
                if found is not None:
                    return found
                if deadline.has_passed():
                    raise self._late(deadline)
                self._some.wait(deadline.left_of(_SLICE_S))

    def _from_past(self, deadline: Deadline) -> TableChange | None:
        """The next change that was made before this watch; None once there are no more."""
        left = deadline.left()
        if not self._turn.acquire(timeout=-1 if left is None else left):
            raise self._late(deadline)
        try:
            while self._past is not None:
                row = self._row(deadline)
                change = self._passed(row) if row is not None else None
                if row is None:
                    self._past = None
                elif change is not None:
                    return change
            return None
        finally:
            self._turn.release()

    def _row(self, deadline: Deadline) -> Message | None:
        """The next row of the log, up to what the copy had when this watch began."""
        self._copy.check()
        if self._reading is None:
            self._client._call(self._look_back())  # noqa: SLF001 - two halves of one thing
            if self._past is None:
                return None
            try:
                self._reading = self._client.subscribe(self._copy.name, start=self._positions(), end="now")
            except OffsetOutOfRange as error:
                raise self._begin_again(error) from error
        try:
            return self._reading.get(deadline.left())
        except Closed:
            self._copy.check()
            if self._closed:
                self._next()
            if self._reading.statistics()["compacted"]:
                self._client._call(self._look_back())  # noqa: SLF001 - it may have lost more meanwhile
            return None

    def __iter__(self) -> Iterator[TableChange]:
        while True:
            try:
                change = self.get()
            except Closed:
                if self._closed:
                    return
                raise
            yield change

    def close(self) -> None:
        """No more changes; whoever waits for one is told, and loops end."""
        self._end()
        if self._reading is not None:
            self._reading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("TableWatch", asynchronous=True)
class AsyncTableWatch(_WatchFace):
    """The same for `async` code."""

    def __init__(
        self,
        client: AsyncClient,
        copy: TableCopy,
        subtree: str,
        start: TableSequence | None,
        limit: int,
        on_slow: OnSlowWatch,
    ) -> None:
        self._client = client
        self._inbox = AsyncInbox()
        self._turn = asyncio.Lock()
        self._reading: AsyncSubscription | None = None
        self._task: asyncio.Task[None] | None = None  # that calls a callback
        super().__init__(copy, subtree, start, limit, on_slow)

    def _wake(self) -> None:
        self._inbox.wake_all()

    async def get(self, timeout: float | None = None) -> TableChange:
        """The next change; DeadlineExceeded if none comes in time."""
        deadline = Deadline(timeout)
        if self._past is not None and (found := await self._from_past(deadline)) is not None:
            return found
        while (found := self._next()) is None:
            try:
                await self._inbox.changed(deadline)
            except TimeoutError:
                raise self._late(deadline) from None
        return found

    async def _from_past(self, deadline: Deadline) -> TableChange | None:
        """The next change that was made before this watch; None once there are no more."""
        try:
            async with deadline.bound(), self._turn:
                while self._past is not None:
                    row = await self._row(deadline)
                    change = self._passed(row) if row is not None else None
                    if row is None:
                        self._past = None
                    elif change is not None:
                        return change
                return None
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self._late(deadline) from None

    async def _row(self, deadline: Deadline) -> Message | None:
        """The next row of the log, up to what the copy had when this watch began."""
        self._copy.check()
        if self._reading is None:
            await self._look_back()
            if self._past is None:
                return None
            try:
                self._reading = await self._client.subscribe(self._copy.name, start=self._positions(), end="now")
            except OffsetOutOfRange as error:
                raise self._begin_again(error) from error
        try:
            return await self._reading.get(deadline.left())
        except Closed:
            self._copy.check()
            if self._closed:
                self._next()
            if self._reading.statistics()["compacted"]:
                await self._look_back()  # it may have lost more meanwhile
            return None

    async def __aiter__(self) -> AsyncIterator[TableChange]:
        while True:
            try:
                change = await self.get()
            except Closed:
                if self._closed:
                    return
                raise
            yield change

    async def close(self) -> None:
        """No more changes; whoever waits for one is told, and loops end."""
        self._end()
        if self._reading is not None:
            await self._reading.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# --- callbacks ----------------------------------------------------------------------------------


def check_callback(callback: object) -> None:
    """What is called with changes can be called."""
    if not callable(callback):
        raise InvalidArgument(f"A callback is a function, not {type(callback).__name__}.")


_RESYNC_FAILED: Final = "A callback for a new copy of table %s failed."
_FAILED: Final = "A callback for changes of table %s failed. It is called again for the next change."


def _ended(name: str, error: StentorError) -> None:
    if not isinstance(error, Closed):
        logger.warning("Callbacks for changes of table %s have ended: %s", name, error)


def call_in_thread(watch: TableWatch, name: str, callback: Callable[[TableChange], Any]) -> Callable[[], None]:
    """Call somebody with every change, in a thread of its own; returns what ends it."""

    def run() -> None:
        try:
            for change in watch:
                try:
                    callback(change)
                except Exception:  # whatever it is, the next change is told all the same
                    logger.exception(_FAILED, name)
        except StentorError as error:
            _ended(name, error)

    threading.Thread(target=run, name=f"stentor-table-{name}", daemon=True).start()
    return watch.close


def call_in_task(watch: AsyncTableWatch, name: str, callback: Callable[[TableChange], Any]) -> Callable[[], None]:
    """The same in a task; what the callback returns is awaited if it can be."""

    async def run() -> None:
        try:
            async for change in watch:
                try:
                    outcome = callback(change)
                    if inspect.isawaitable(outcome):
                        await outcome
                except Exception:  # whatever it is, the next change is told all the same
                    logger.exception(_FAILED, name)
        except StentorError as error:
            _ended(name, error)

    watch._task = asyncio.get_running_loop().create_task(run())  # noqa: SLF001 - held: a loop holds it only weakly
    return watch._end  # noqa: SLF001 - two halves of one thing


def tell_in_thread(name: str, callback: Callable[[TableResync], Any]) -> Callable[[TableResync], None]:
    """Who calls somebody with news of a copy, each time in a thread."""

    def run(news: TableResync) -> None:
        try:
            callback(news)
        except Exception:
            logger.exception(_RESYNC_FAILED, name)

    def tell(news: TableResync) -> None:
        threading.Thread(target=run, args=(news,), name=f"stentor-table-{name}", daemon=True).start()

    return tell


def tell_in_task(name: str, callback: Callable[[TableResync], Any]) -> Callable[[TableResync], None]:
    """The same in a task; what the callback returns is awaited if it can be."""
    running: set[asyncio.Task[None]] = set()  # held: a loop holds tasks only weakly

    async def run(news: TableResync) -> None:
        try:
            outcome = callback(news)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            logger.exception(_RESYNC_FAILED, name)

    def tell(news: TableResync) -> None:
        task = asyncio.get_running_loop().create_task(run(news))
        running.add(task)
        task.add_done_callback(running.discard)

    return tell
