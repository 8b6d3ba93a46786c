"""Groups as applications use them: messages of the partitions that belong to this member, committed when they are done.

A message is done when the next one is asked for. What is done is committed about once a second, when a partition goes
to another member, and at the end. After a crash the group goes on behind what was committed: every message is handed
out at least once.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self

from stentor.client.arrow import tables
from stentor.client.deadline import Deadline
from stentor.client.group_core import join_group
from stentor.client.help import explained
from stentor.client.inbox import AsyncInbox
from stentor.client.subscription import AsyncSubscription, Subscription
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stentor.client.at_hand import AtHand
    from stentor.client.core import ClientCore
    from stentor.client.group_core import GroupCore
    from stentor.client.message import Message
    from stentor.client.options import GroupOptions
    from stentor.client.reader import Delivery, Event, Reader

    _Base = AtHand
else:
    _Base = object


class _Dropping(_Base):
    """A subscription from which partitions are taken away."""

    def use_up(self, reader: Reader) -> None:
        """Hand out nothing more of a partition. Called by the client's loop, whoever takes meanwhile."""
        current, handed = self._current, self._handed
        if handed is not None and handed.reader is reader:
            list(current)  # in one step: who takes from it finds it used up

    def _is_due(self, delivery: Delivery) -> bool:
        return not delivery.reader.dropped and delivery.next_offset > delivery.reader.taken

    def _forget_dropped(self) -> None:
        if self._delivery is not None and self._delivery.reader.dropped:
            self._batches, self._rows = iter(()), iter(())
            self._current, self._delivery = iter(()), None

    def _next_batch(self) -> bool:
        self._forget_dropped()
        return super()._next_batch()

    def _next_rows(self) -> Any:
        self._forget_dropped()
        return super()._next_rows()


class _Taking(_Dropping, Subscription):
    """What a member takes from."""


class _AsyncTaking(_Dropping, AsyncSubscription):
    """The same for `async` code."""


class _GroupFace:
    """What the sync and async groups share."""

    _taking: _Taking | _AsyncTaking

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        self._progress = core.progress
        self._looping = False

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

    def lag(self) -> dict[str, int]:
        """How many committed messages this member has not finished, by partition, such as orders.eu/0."""
        position = self._progress.position
        return {reader.name: max(0, reader.committed - position(reader)) for reader in self._core.readers_now()}

    def positions(self) -> dict[str, int]:
        """How far this member has come, by partition: everything below is finished."""
        return {reader.name: self._progress.position(reader) for reader in self._core.readers_now()}

    def events(self) -> list[Event]:
        """What happened since the last call: messages that retention deleted before the group came to them."""
        events, self._core.events = self._core.events, []
        return events

    def _begin_loop(self) -> None:
        if self._looping:
            raise InvalidArgument(
                "This member of the group is being iterated already.",
                hint="One loop at a time: let every thread or task join the group by itself.",
            )
        self._looping = True

    def _ask(self) -> None:
        """The application asks for more: what it has is done."""
        if self._looping:
            self._begin_loop()
        self._progress.finish()


@explained("Group")
class Group(_GroupFace):
    """A member of a consumer group. Iterate it; use it as a context manager: leaving the block leaves the group.

    One thread at a time. Every further thread or process joins the group by itself.
    """

    def __init__(self, core: GroupCore, inbox: Any) -> None:
        super().__init__(core)
        self._taking: _Taking = _Taking(core, inbox)
        core.progress.at_hand = self._taking

    def __iter__(self) -> Iterator[Message]:
        progress = self._progress
        self._ask()
        self._begin_loop()
        try:
            for message in self._taking:
                progress.working = message
                yield message
                progress.finished = message
        finally:
            self._looping = False

    def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time. The one before counts as done."""
        self._ask()
        message = self._progress.working = self._taking.get(timeout)
        return message

    def batches(self) -> Iterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        with_position = tables().with_position
        self._ask()
        self._begin_loop()
        try:
            while (found := self._taking._take_rows(Deadline(None))) is not None:  # noqa: SLF001 - two halves of one thing
                reader, first, rows = found
                self._progress.rows = (reader, first + rows.num_rows)
                yield with_position(rows, reader.topic, reader.partition, first)
                self._progress.rows_done = self._progress.rows
        finally:
            self._looping = False

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call the handler with every message, until the group is closed or the handler raises."""
        for message in self:
            handler(message)

    def commit(self, timeout: float | None = None) -> None:
        """Commit everything that was handed out, and wait until that is done.

        StaleGeneration if a partition belongs to another member by now.
        """
        self._progress.finish()
        self._core.core.wait_for(self._commit(timeout))

    async def _commit(self, timeout: float | None) -> None:
        await commit_within(self._core, timeout)

    def close(self) -> None:
        """Commit what is done, and leave the group. A static member stays in it, to come back."""
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
        self._taking: _AsyncTaking = _AsyncTaking(core, inbox)
        core.progress.at_hand = self._taking

    async def __aiter__(self) -> AsyncIterator[Message]:
        progress = self._progress
        self._ask()
        self._begin_loop()
        try:
            async for message in self._taking:
                progress.working = message
                yield message
                progress.finished = message
        finally:
            self._looping = False

    async def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time. The one before counts as done."""
        self._ask()
        message = self._progress.working = await self._taking.get(timeout)
        return message

    async def batches(self) -> AsyncIterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        with_position = tables().with_position
        self._ask()
        self._begin_loop()
        try:
            while (found := await self._taking._take_rows(Deadline(None))) is not None:  # noqa: SLF001 - as above
                reader, first, rows = found
                self._progress.rows = (reader, first + rows.num_rows)
                yield with_position(rows, reader.topic, reader.partition, first)
                self._progress.rows_done = self._progress.rows
        finally:
            self._looping = False

    async def run(self, handler: Callable[[Message], object]) -> None:
        """Call the handler with every message, until the group is closed or the handler raises."""
        async for message in self:
            answer = handler(message)
            if isawaitable(answer):
                await answer

    async def commit(self, timeout: float | None = None) -> None:
        """Commit everything that was handed out, and wait until that is done.

        StaleGeneration if a partition belongs to another member by now.
        """
        self._progress.finish()
        await commit_within(self._core, timeout)

    async def close(self) -> None:
        """Commit what is done, and leave the group. A static member stays in it, to come back."""
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
            await core.tie.commit()
    except TimeoutError as error:
        raise core.core.late("commit", deadline.seconds) from error


async def open_group(core: ClientCore, name: str, topics: str | list[str], options: GroupOptions) -> AsyncGroup:
    """Join a group, for async code."""
    inbox = AsyncInbox()
    return AsyncGroup(await join_group(core, name, topics, inbox.put, **options), inbox)
