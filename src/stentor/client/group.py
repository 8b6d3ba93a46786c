"""Groups as applications use them: messages of the partitions that belong to this member, committed when they are done.

A message is done when the next one is asked for. What is done is committed about once a second, when a partition goes
to another member, and at the end. After a crash the group goes on behind what was committed: every message is handed
out at least once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from stentor.client.arrow import tables
from stentor.client.certain import clock_of, readings
from stentor.client.deadline import Deadline
from stentor.client.group_core import join_group
from stentor.client.group_hooks import in_hook
from stentor.client.group_progress import GroupProgress
from stentor.client.group_run import make_run
from stentor.client.group_taking import AsyncTaking, Taking, traced
from stentor.client.help import explained
from stentor.client.inbox import AsyncInbox
from stentor.client.reader import joined
from stentor.client.transaction import AsyncTransaction, Transaction
from stentor.client.workers import WorkStatistics
from stentor.client.workers_run import is_handler, run_here
from stentor.client.workers_terms import ATTEMPTS, FINISH_S
from stentor.errors import InvalidArgument, StentorError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stentor.client.core import ClientCore
    from stentor.client.group_core import GroupCore
    from stentor.client.group_run import GroupStatistics, RunOptions
    from stentor.client.group_work import GroupRun
    from stentor.client.message import Message
    from stentor.client.options import GroupOptions, OnFailure
    from stentor.client.positions import Place
    from stentor.client.reader import Event, Reader
    from stentor.client.workers_plan import OrderedBy
    from stentor.client.workers_terms import WorkMode


class _GroupFace:
    """What the sync and async groups share."""

    _taking: Taking | AsyncTaking

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        assert isinstance(core.progress, GroupProgress)
        self._progress = core.progress
        self._clock = clock_of(core.core.loop)
        self._looping = False
        self._run: GroupRun | None = None  # the last one
        self._stopped = False  # `run` ends, also one that has not begun

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._core.name

    @property
    def member(self) -> str:
        """The id of this member."""
        return self._core.tie.life.member

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that belong to this member now: topic and number of each."""
        return sorted((reader.topic, reader.partition) for reader in self._core.readers_now())

    @property
    def paused(self) -> list[tuple[str, int]]:
        """The partitions that are paused: topic and number of each."""
        return sorted(self._core.paused)

    def lag(self) -> dict[str, int]:
        """How many committed messages this member has not finished, by partition, such as orders.eu/0."""
        position = self._core.progress.position
        return {reader.name: max(0, reader.committed - position(reader)) for reader in self._core.readers_now()}

    def positions(self) -> dict[str, int]:
        """How far this member has come, by partition: everything below is finished."""
        return {reader.name: self._core.progress.position(reader) for reader in self._core.readers_now()}

    def statistics(self) -> GroupStatistics:
        """What `run` has done and is doing, and how far this member is behind."""
        counted = WorkStatistics() if self._run is None else self._run.statistics()
        return {
            "done": counted.done,
            "failed": counted.failed,
            "in_work": counted.in_work,
            "waiting": counted.waiting,
            "workers_died": counted.died,
            "lag": sum(self.lag().values()),
        }

    def events(self) -> list[Event]:
        """What happened since the last call: partitions that were assigned, revoked or lost, and messages that
        retention deleted, or a compaction removed, before the group came to them.
        """
        events, self._core.events = self._core.events, []
        return joined(events)

    def _begin_loop(self) -> None:
        if self._looping:
            raise InvalidArgument(
                "This member of the group is being iterated already.",
                hint="One loop at a time: let every thread or task join the group by itself.",
            )
        self._looping = True

    def _check_outside(self) -> None:
        if self._core.transactions.is_open:
            raise InvalidArgument(
                "This cannot be done inside a transaction: its end says how far this member has come.",
                hint="Leave its block first.",
            )

    def _ask(self) -> None:
        """The application asks for more: what it has is done."""
        if self._looping:
            self._begin_loop()
        self._progress.finish()

    def _handed(self, message: Message) -> Message:
        self._progress.working = message
        if self._progress.held is not None:
            self._progress.hand(message)
        return message

    def _handed_rows(self, reader: Reader, end: int) -> None:
        self._progress.rows = reader, end
        if self._progress.held is not None:
            self._progress.hand_rows(reader, end)

    def _finish(self) -> None:
        """What was handed out is done with; what workers have is not, before they say so, nor what is in work beside a
        hook.
        """
        if (self._run is None or self._run.ended.is_set()) and not in_hook():
            self._progress.finish()


@explained("Group")
class Group(_GroupFace):
    """A member of a consumer group. Iterate it; use it as a context manager: leaving the block leaves the group.

    One thread at a time. Every further thread or process joins the group by itself.
    """

    def __init__(self, core: GroupCore, inbox: Any) -> None:
        super().__init__(core)
        self._taking: Taking = (Taking if core.core.tracing is None else traced()[0])(core, inbox)
        self._progress.at_hand = self._taking
        self._taking._progress = self._progress  # noqa: SLF001 - two halves of one thing

    def __iter__(self) -> Iterator[Message]:
        progress, certainty = self._progress, self._core.tie.certainty
        self._ask()
        self._begin_loop()
        try:
            # The clock is read once a message was taken, and before it is handed out.
            for message, now in zip(self._taking, readings(self._clock), strict=False):
                if now >= certainty.sure_until and not self._may_hand_out():
                    continue
                progress.working = message
                if progress.held is not None:
                    progress.hand(message)
                yield message
                progress.finished = progress.working
        finally:
            self._looping = False

    def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time. The one before counts as done."""
        self._ask()
        deadline = Deadline(timeout)
        while True:
            message = self._taking.get(deadline.left())
            if self._clock() < self._core.tie.certainty.sure_until or self._may_hand_out():
                return self._handed(message)

    def _may_hand_out(self) -> bool:
        """Return whether what was taken is this member's, where that is not certain: the process stood still (C36)."""
        reader = self._taking.source()
        return reader is None or bool(self._core.core.wait_for(self._core.tie.sure(reader)))

    def batches(self) -> Iterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        with_position, certainty = tables().with_position, self._core.tie.certainty
        self._ask()
        self._begin_loop()
        try:
            while (found := self._taking._take_rows(Deadline(None))) is not None:  # noqa: SLF001 - two halves of one thing
                reader, first, rows = found
                if self._clock() >= certainty.sure_until and not self._may_hand_out():
                    continue
                self._handed_rows(reader, first + rows.num_rows)
                yield with_position(rows, reader.topic, reader.partition, first)
                self._progress.rows_done = self._progress.rows
        finally:
            self._looping = False

    def run(
        self,
        handler: Callable[..., object] | str,
        *,
        workers: int = 1,
        mode: WorkMode | None = None,
        ordered_by: OrderedBy | None = "partition",
        batch: int | None = None,
        on_error: OnFailure = "raise",
        dead_letters: str | None = None,
        attempts: int = ATTEMPTS,
        time_limit: float | None = None,
        finish_within: float = FINISH_S,
    ) -> None:
        """Call the handler with every message, until the group is closed, `stop` is called, or a handler fails.

        Workers handle messages beside each other. A position moves only past what is finished: a message counts as done
        when its handler returns. With `batch` the handler is called with lists.
        """
        options: RunOptions = {
            "workers": workers,
            "mode": mode,
            "ordered_by": ordered_by,
            "batch": batch,
            "on_error": on_error,
            "dead_letters": dead_letters,
            "attempts": attempts,
            "time_limit": time_limit,
            "finish_within": finish_within,
        }
        self._check_outside()
        run, pool = make_run(self._core, handler, options, asynchronous=False)
        self._ask()
        self._begin_loop()
        self._run = run
        if self._stopped:
            self.stop()
        try:
            run_here(self._core.core.loop, run, pool)
        finally:
            self._looping = False

    def stop(self) -> None:
        """Let `run` end: nothing more is taken, and what is in work is finished first. It does not wait.

        A `run` that begins later ends at once.
        """
        self._stopped = True
        if self._run is not None:
            self._core.core.loop.call_soon_threadsafe(self._run.stop)

    def seek(self, topic: str, partition: int, to: Place, *, timeout: float | None = None) -> None:
        """Go on from another position in a partition that belongs to this member.

        It is for this member and this moment: what the group has committed does not go back. `reset_group` does that.
        """
        self._check_outside()
        self._core.core.wait_for(self._seek(topic, partition, to, timeout))

    def pause(self, topic: str | None = None, partition: int | None = None) -> None:
        """Hand out nothing of some or all partitions. They stay with this member, also for hours."""
        self._check_outside()
        self._core.core.wait_for(self._core.pause(topic, partition))

    def resume(self, topic: str | None = None, partition: int | None = None) -> None:
        """Go on with partitions that were paused."""
        self._check_outside()
        self._core.core.wait_for(self._core.resume(topic, partition))

    async def _seek(self, topic: str, partition: int, to: Place, timeout: float | None) -> None:
        await self._core.seek(topic, partition, to, self._core.core.deadline(timeout))

    def transaction(self, timeout: float | None = None) -> Transaction:
        """What is taken and what is sent out by it, as one: a context manager for each such step.

        At the end of its block everything that was handed out counts as done, and what was sent is sent: both, or
        neither. If the block raises, nothing is sent, and what was taken is handed out again.
        """
        return Transaction(self._core, self._progress, timeout)

    def commit(self, timeout: float | None = None, *, wait: bool = True) -> None:
        """Commit everything that was handed out, and wait until that is done.

        StaleGeneration names the partitions whose messages were handled here and belong to another member by now; what
        still belongs to this one is committed. With `wait=False` nothing is raised: the next call that waits says it.
        """
        self._check_outside()
        self._finish()
        if wait:
            self._core.core.wait_for(self._commit(timeout))
        else:
            self._core.core.loop.call_soon_threadsafe(commit_soon, self._core)

    async def _commit(self, timeout: float | None) -> None:
        await commit_within(self._core, timeout)

    def close(self) -> None:
        """Commit what is done, and leave the group. A static member stays in it, to come back.

        A `run` that is under way finishes what is in work first.
        """
        run = self._run
        if run is not None and not run.ended.is_set() and not is_handler():
            self.stop()
            run.ended.wait(run.terms.finish_s)
        self._taking.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._progress.finish()
        self.close()


@explained("Group", asynchronous=True)
class AsyncGroup(_GroupFace):
    """The same for `async` code. One task at a time; every further task joins the group by itself."""

    def __init__(self, core: GroupCore, inbox: Any) -> None:
        super().__init__(core)
        self._taking: AsyncTaking = (AsyncTaking if core.core.tracing is None else traced()[1])(core, inbox)
        self._progress.at_hand = self._taking
        self._taking._progress = self._progress  # noqa: SLF001 - two halves of one thing

    async def __aiter__(self) -> AsyncIterator[Message]:
        progress, clock, certainty = self._progress, self._clock, self._core.tie.certainty
        self._ask()
        self._begin_loop()
        try:
            async for message in self._taking:
                if clock() >= certainty.sure_until and not await self._may_hand_out():
                    continue
                progress.working = message
                if progress.held is not None:
                    progress.hand(message)
                yield message
                progress.finished = progress.working
        finally:
            self._looping = False

    async def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time. The one before counts as done."""
        self._ask()
        deadline = Deadline(timeout)
        while True:
            message = await self._taking.get(deadline.left())
            if self._clock() < self._core.tie.certainty.sure_until or await self._may_hand_out():
                return self._handed(message)

    async def _may_hand_out(self) -> bool:
        """Return whether what was taken is this member's, where that is not certain: the process stood still (C36)."""
        reader = self._taking.source()
        return reader is None or await self._core.tie.sure(reader)

    async def batches(self) -> AsyncIterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        with_position, certainty = tables().with_position, self._core.tie.certainty
        self._ask()
        self._begin_loop()
        try:
            while (found := await self._taking._take_rows(Deadline(None))) is not None:  # noqa: SLF001 - as above
                reader, first, rows = found
                if self._clock() >= certainty.sure_until and not await self._may_hand_out():
                    continue
                self._handed_rows(reader, first + rows.num_rows)
                yield with_position(rows, reader.topic, reader.partition, first)
                self._progress.rows_done = self._progress.rows
        finally:
            self._looping = False

    async def run(
        self,
        handler: Callable[..., object] | str,
        *,
        workers: int = 1,
        mode: WorkMode | None = None,
        ordered_by: OrderedBy | None = "partition",
        batch: int | None = None,
        on_error: OnFailure = "raise",
        dead_letters: str | None = None,
        attempts: int = ATTEMPTS,
        time_limit: float | None = None,
        finish_within: float = FINISH_S,
    ) -> None:
        """Call the handler with every message, until the group is closed, `stop` is called, or a handler fails.

        Workers handle messages beside each other. A position moves only past what is finished: a message counts as done
        when its handler returns. With `batch` the handler is called with lists.
        """
        options: RunOptions = {
            "workers": workers,
            "mode": mode,
            "ordered_by": ordered_by,
            "batch": batch,
            "on_error": on_error,
            "dead_letters": dead_letters,
            "attempts": attempts,
            "time_limit": time_limit,
            "finish_within": finish_within,
        }
        self._check_outside()
        run, _ = make_run(self._core, handler, options, asynchronous=True)
        self._ask()
        self._begin_loop()
        self._run = run
        if self._stopped:
            run.stop()
        try:
            await run.run()
        finally:
            self._looping = False

    def stop(self) -> None:
        """Let `run` end: nothing more is taken, and what is in work is finished first. It does not wait.

        A `run` that begins later ends at once.
        """
        self._stopped = True
        if self._run is not None:
            self._run.stop()

    async def seek(self, topic: str, partition: int, to: Place, *, timeout: float | None = None) -> None:
        """Go on from another position in a partition that belongs to this member.

        It is for this member and this moment: what the group has committed does not go back. `reset_group` does that.
        """
        self._check_outside()
        await self._core.seek(topic, partition, to, self._core.core.deadline(timeout))

    async def pause(self, topic: str | None = None, partition: int | None = None) -> None:
        """Hand out nothing of some or all partitions. They stay with this member, also for hours."""
        self._check_outside()
        await self._core.pause(topic, partition)

    async def resume(self, topic: str | None = None, partition: int | None = None) -> None:
        """Go on with partitions that were paused."""
        self._check_outside()
        await self._core.resume(topic, partition)

    def transaction(self, timeout: float | None = None) -> AsyncTransaction:
        """What is taken and what is sent out by it, as one: a context manager for each such step.

        At the end of its block everything that was handed out counts as done, and what was sent is sent: both, or
        neither. If the block raises, nothing is sent, and what was taken is handed out again.
        """
        return AsyncTransaction(self._core, self._progress, timeout)

    async def commit(self, timeout: float | None = None, *, wait: bool = True) -> None:
        """Commit everything that was handed out, and wait until that is done.

        StaleGeneration names the partitions whose messages were handled here and belong to another member by now; what
        still belongs to this one is committed. With `wait=False` nothing is raised: the next call that waits says it.
        """
        self._check_outside()
        self._finish()
        if wait:
            await commit_within(self._core, timeout)
        else:
            commit_soon(self._core)

    async def close(self) -> None:
        """Commit what is done, and leave the group. A static member stays in it, to come back.

        A `run` that is under way finishes what is in work first.
        """
        run = self._run
        if run is not None and not run.ended.is_set() and not is_handler():
            run.stop()
            await run.wait_ended()
        await self._taking.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._progress.finish()
        await self.close()


async def commit_within(core: GroupCore, timeout: float | None) -> None:
    """Commit, within the deadline of a call."""
    deadline = core.core.deadline(timeout)
    try:
        async with deadline.bound():
            await core.tie.commit_all()
    except TimeoutError as error:
        raise core.core.late("commit", deadline.seconds) from error


def commit_soon(core: GroupCore) -> None:
    """Commit, beside whatever else happens."""

    async def commit() -> None:
        with suppress(StentorError, TimeoutError):
            async with core.core.deadline(None).bound():
                await core.tie.commit()

    core.tie.spawn(commit())


async def open_group(core: ClientCore, name: str, topics: str | list[str], options: GroupOptions) -> AsyncGroup:
    """Join a group, for async code."""
    inbox = AsyncInbox()
    return AsyncGroup(await join_group(core, name, topics, inbox.put, asynchronous=True, **options), inbox)
