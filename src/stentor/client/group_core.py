"""A member's subscription: the partitions that its group gives it, as they come and go.

`GroupCore` is a `SubscriptionCore` whose partitions are not found by their names: `client.group_member` adds and drops
them. Everything else, from streams to credit, is as in any subscription.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stentor.client.convert import as_seconds, check_topics
from stentor.client.group_hooks import GroupHooks
from stentor.client.group_member import BUSY_POLL_S, GroupTie, check_limit_s
from stentor.client.group_progress import GroupProgress, MemberProgress
from stentor.client.positions import check_position
from stentor.client.reader import Event, Reader
from stentor.client.starts import out_of_range
from stentor.client.subscription_core import SubscriptionCore
from stentor.client.transaction_core import MemberTransactions
from stentor.core import group_limits
from stentor.core.names import check_group_name
from stentor.errors import OffsetOutOfRange, PartitionNotFound, StentorError, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.group_hooks import Hook
    from stentor.client.positions import Place
    from stentor.core.records import Key
    from stentor.wire.group_messages import AssignedPartition


_BEGUN_POLL_S = 0.01  # how often it is looked whether a partition that was just assigned can be read


class GroupCore(SubscriptionCore):
    """One member of a group, in the client's loop."""

    def __init__(
        self,
        core: ClientCore,
        name: str,
        topics: str | list[str],
        *,
        start: Place,
        instance: str,
        zone: str,
        silence_s: float,
        time_limit_s: float | None,
        auto_commit: bool,
        hooks: GroupHooks,
        progress: GroupProgress,
        put: Callable[[Any], None],
    ) -> None:
        check_group_name(name)
        check_position(start, "start")
        super().__init__(core, topics, start=start, put=put)
        self.name = name
        self.progress: MemberProgress = progress
        self.paused: set[tuple[str, int]] = set()  # topic and number of partitions that the application rests from
        self.tie = GroupTie(
            self,
            instance=instance,
            zone=zone,
            silence_s=silence_s,
            auto_commit=auto_commit,
            time_limit_s=time_limit_s,
            hooks=hooks,
        )
        self.transactions = MemberTransactions(self, progress)

    async def open(self, deadline: Deadline) -> None:
        """Join the group, until it says what this member owns."""
        await self.places.find_named(deadline)
        self.opened = True
        self.core.route_listeners.add(self._routes_changed)
        self.core.link_listeners.add(self._relinked)
        self.core.closers.add(self.close)
        try:
            await self.tie.join(deadline)
        except BaseException:
            await self.close()
            raise

    def _routes_changed(self) -> None:
        """Members of chains come and go; which topics count is the group's to know."""
        self.streams.reopen()

    # --- partitions that come and go ------------------------------------------------------------

    async def begin(self, assigned: AssignedPartition, done: int) -> Reader:
        """Read a partition, from where the group has come to; `done` is what this member has done of it before."""
        reader = Reader(self, assigned.topic, assigned.topic_id, assigned.partition)
        deadline = self.core.deadline(None)
        if assigned.position is None and assigned.begins:
            start: Any = self.places.starts.of(reader.topic, reader.partition)
            found = await self.places.resolve(reader, start, deadline, stale=False)
            offset = found.offset
        else:
            found = await self.places.resolve(reader, "earliest", deadline, stale=True)
            offset = max(found.offset, assigned.position or 0)
            done_before = assigned.position
            if done_before is not None and done_before < found.offset:  # retention was faster, or it was lost
                anew = done_before < found.begins
                self.note(Event("skipped", reader.topic, reader.partition, done_before, found.offset, unknown=anew))
        reader.start = reader.received = reader.taken = max(offset, done)
        reader.committed = max(found.committed, reader.start)
        return reader

    def read(self, reader: Reader) -> None:
        """It is positioned: messages may come."""
        self.readers[reader.topic_id, reader.partition] = reader
        reader.finished = (reader.topic, reader.partition) in self.paused
        self.transactions.reads(reader)
        self.streams.open(reader)

    def reads(self, reader: Reader) -> bool:
        """Whether this is what a partition is read by."""
        return self.readers.get((reader.topic_id, reader.partition)) is reader

    def move(self, reader: Reader, offset: int) -> None:
        """Read a partition on from an offset: what is at hand of it or on its way counts no more."""
        if not self.reads(reader):
            return  # another member's by now
        fresh = Reader(self, reader.topic, reader.topic_id, reader.partition)
        fresh.start = fresh.received = fresh.taken = offset
        fresh.committed = max(reader.committed, offset)
        self._rest(reader)
        self.progress.moved(reader, fresh)
        self.read(fresh)

    def _rest(self, reader: Reader) -> None:
        """Hand out nothing more of it."""
        reader.dropped = reader.finished = True
        self.streams.close(reader)
        self.progress.drop(reader)

    # --- what the application asks: in the loop -------------------------------------------------

    async def seek(self, topic: str, partition: int, to: Place, deadline: Deadline) -> None:
        """Go on from another position in a partition that belongs to this member."""
        check_position(to, "to")
        reader = await self._begun(topic, partition, deadline)
        found = await self.places.resolve(reader, to, deadline, stale=False)
        kept = await self.places.resolve(reader, "earliest", deadline, stale=True)
        if not kept.offset <= found.offset <= max(found.committed, kept.committed):
            raise out_of_range(reader.name, found.offset, kept.offset, max(found.committed, kept.committed))
        reader = await self._begun(topic, partition, deadline)
        self.progress.forget(reader)
        self.move(reader, found.offset)

    async def pause(self, topic: str | None, partition: int | None) -> None:
        """Hand out nothing of these partitions, and keep them."""
        for name, key in self._owned(topic, partition):
            if name not in self.paused:
                self.paused.add(name)
                if key in self.readers:
                    self._rest(self.readers[key])

    async def resume(self, topic: str | None, partition: int | None) -> None:
        """Go on with them; those that belong to another member are not paused when they come back."""
        named = {name for name in self.paused if topic in (None, name[0]) and partition in (None, name[1])}
        if not named:
            self._owned(topic, partition)  # it was paused by nobody, and may not even be this member's
        self.paused -= named
        for reader in self.readers_now():
            if (reader.topic, reader.partition) in named:
                if self.progress.is_busy(reader):
                    self.tie.spawn(self._go_on(reader))
                else:
                    self.move(reader, self.progress.position(reader))

    async def _go_on(self, reader: Reader) -> None:
        """Read a partition on once nothing of it is in work: what is would be handed out again."""
        while self.reads(reader) and (reader.topic, reader.partition) not in self.paused:
            if not self.progress.is_busy(reader):
                self.move(reader, self.progress.position(reader))
                return
            await asyncio.sleep(BUSY_POLL_S)

    async def _begun(self, topic: str, partition: int, deadline: Deadline) -> Reader:
        """The reader of a partition that belongs to this member, once it knows where to begin."""
        try:
            async with deadline.bound():
                while True:
                    ((_, key),) = self._owned(topic, partition)
                    if key in self.readers:
                        return self.readers[key]
                    await asyncio.sleep(_BEGUN_POLL_S)
        except TimeoutError as error:
            raise self.core.late("seek", deadline.seconds) from error

    def _owned(self, topic: str | None, partition: int | None) -> list[tuple[tuple[str, int], Key]]:
        """Names and keys of partitions that belong to this member; PartitionNotFound if a named one does not."""
        found = [
            (name, key)
            for key, name in self.tie.assigned().items()
            if topic in (None, name[0]) and partition in (None, name[1])
        ]
        if not found and topic is not None:
            name = topic if partition is None else f"{topic}/{partition}"
            raise PartitionNotFound(
                f"{name} does not belong to this member of group {self.name}.",
                hint="`group.assignment` says which partitions do.",
                object=name,
            )
        return found

    def drop(self, key: Key) -> Reader | None:
        """Read it no more. What is at hand of it is handed out no more, either."""
        reader = self.readers.pop(key, None)
        if reader is not None:
            reader.dropped = True
            self.streams.close(reader)
            self.progress.drop(reader)
        return reader

    def reader_failed(self, reader: Reader, error: StentorError) -> None:
        """A topic that is gone will be taken from this member; what retention has deleted is passed over."""
        if reader.dropped or isinstance(error, PartitionNotFound | TopicNotFound):
            return
        if isinstance(error, OffsetOutOfRange) and error.start is not None and error.end is not None:
            now = min(max(reader.received, error.start), max(error.start, error.end))
            anew = bool(error.detail.get("begun_anew"))
            self.note(Event("skipped", reader.topic, reader.partition, reader.received, now, unknown=anew))
            reader.received = now
            self.streams.open(reader)
            return
        reader.finished = True
        self.put(error)

    async def close(self) -> None:
        """Commit, leave, and end."""
        if self.closed:
            return
        await self.tie.end()
        self.transactions.close()
        await super().close()


async def join_group(
    core: ClientCore,
    name: str,
    topics: str | list[str],
    put: Callable[[Any], None],
    *,
    start: Place = "earliest",
    instance: str | None = None,
    auto_commit: bool = True,
    silence: float = group_limits.GROUP_SILENCE_S,
    time_limit: float | None = None,
    zone: str | None = None,
    on_assigned: Hook | None = None,
    on_revoked: Hook | None = None,
    timeout: float | None = None,
    asynchronous: bool = False,
) -> GroupCore:
    """Become a member of a group."""
    check_topics(topics)
    member = GroupCore(
        core,
        name,
        topics,
        start=start,
        instance=instance or "",
        zone=zone or "",
        time_limit_s=None if time_limit is None else check_limit_s(time_limit),
        silence_s=as_seconds(silence),
        auto_commit=auto_commit,
        hooks=GroupHooks(on_assigned, on_revoked, asynchronous=asynchronous),
        progress=GroupProgress(),
        put=put,
    )
    await member.open(core.deadline(timeout))
    return member
