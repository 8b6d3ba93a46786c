"""What a client asks about topics and brokers, and has done to them, sync and async.

The sync form calls the async one, call by call.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from stentor import limits
from stentor.client import groups, queues, routes
from stentor.client.convert import allows_stale
from stentor.client.cursors import CursorInfo, mark_recorded, move_cursor, with_lag
from stentor.client.positions import check_position, find_request
from stentor.client.recovery import best_copy
from stentor.errors import InvalidArgument
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.groups import GroupInfo
    from stentor.client.options import TopicOptions
    from stentor.client.positions import Place, Stale
    from stentor.client.queues import QueueInfo
    from stentor.wire.messages import BrokerInfo, BrokerState, ClientInfo, PartitionRecovered, TopicInfo, TopicRoute

R = TypeVar("R")


class TopicOffsets(msgspec.Struct, frozen=True):
    """An offset in each partition of a topic; the id tells a topic from a later one of the same name."""

    id: int
    offsets: dict[int, int]
    sure: bool = True  # False only with stale="allow": more may be committed
    # Of a memory topic that was lost: where partitions began again. How many messages were before, nobody knows.
    begins: dict[int, int] = {}


class Offsets(dict[int, int]):
    """The offset of a position in each partition. `sure` is False only with `stale="allow"`, if some broker was not
    certain where its messages end: then everything before these offsets is committed, and more may be.
    """

    def __init__(self, offsets: dict[int, int], *, sure: bool = True) -> None:
        super().__init__(offsets)
        self.sure = sure


class AsyncAdmin:
    """What an async client asks about topics and brokers, and has done to them."""

    _core: ClientCore

    # --- topics ---------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, *, exist_ok: bool = False, timeout: float | None = None, **settings: Unpack[TopicOptions]
    ) -> TopicInfo:
        """Make a topic. Settings that are not named are the broker's defaults."""
        request = messages.CreateTopic(name=name, settings=messages.topic_changes(dict(settings)), exist_ok=exist_ok)
        described = await self._core.call(request, timeout)
        return described.topic  # type: ignore[no-any-return]

    async def alter_topic(
        self, name: str, *, timeout: float | None = None, **changes: Unpack[TopicOptions]
    ) -> TopicInfo:
        """Change settings of a topic."""
        request = messages.AlterTopic(name=name, changes=messages.topic_changes(dict(changes)))
        described = await self._core.call(request, timeout)
        return described.topic  # type: ignore[no-any-return]

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """A topic's settings and partitions, and the groups and cursors that read it.

        All are as of now. Who leads a partition or a group and does not answer within a moment is left out.
        """
        request, deadline = messages.DescribeTopic(name=name), self._core.deadline(timeout)
        described = await self._core.call(request, deadline)
        return (await self._completed([described.topic], request, deadline))[0]

    async def _completed(self, topics: list[TopicInfo], request: Any, deadline: Deadline) -> list[TopicInfo]:
        """What each partition's own head says of it; one broker knows only where the others' are."""
        heads = {partition.chain[0] for topic in topics for partition in topic.partitions if partition.chain}
        if isinstance(request, messages.DescribeTopic):
            from stentor.client.groups import group_heads

            heads |= group_heads(self._core)
        answers = await self._core.ask_others(request, heads, deadline.left_of(limits.LINK_OPEN_S))
        if not answers:
            return topics
        if isinstance(request, messages.DescribeTopic):
            led = {group for answer in answers.values() for group in answer.topic.groups}
            topics = [msgspec.structs.replace(topic, groups=sorted({*topic.groups, *led})) for topic in topics]
        known = {
            (topic.id, partition.partition): partition
            for broker, answer in answers.items()
            for topic in (answer.topics if isinstance(answer, messages.TopicList) else [answer.topic])
            for partition in topic.partitions
            if partition.chain and partition.chain[0] == broker
        }
        return [
            msgspec.structs.replace(topic, partitions=[known.get((topic.id, p.partition), p) for p in topic.partitions])
            for topic in topics
        ]

    async def find_topic(self, name: str, *, timeout: float | None = None) -> TopicRoute:
        """A topic's id, settings and chains; it is made on the way if the broker makes topics by itself."""
        return await self._core.topic(name, timeout)

    async def topics(
        self, pattern: str | None = None, *, internal: bool = False, timeout: float | None = None
    ) -> list[TopicInfo]:
        """All topics, or those that match a pattern; internal ones only if asked for, or named from their start."""
        request = messages.ListTopics(pattern=pattern or ">", internal=internal)
        deadline = self._core.deadline(timeout)
        found = await self._core.call(request, deadline)
        return await self._completed(found.topics, request, deadline)

    async def mark_recorded(self, topic: str, ends: Mapping[int, int], *, timeout: float | None = None) -> None:
        """A recorder has put away all messages below these offsets, by partition; it never moves back.

        Topics with `keep_unrecorded` delete nothing that is not marked, whatever their retention says.
        """
        await mark_recorded(self._core, topic, ends, timeout)

    async def move_cursor(
        self, topic: str, name: str, positions: Mapping[int, int], *, back: bool = False, timeout: float | None = None
    ) -> None:
        """Move a named cursor of a topic: its owner is done with all messages below these offsets, by partition.

        A position never goes back, whoever moves it, unless `back` says so. Retention may wait for a cursor.
        """
        await move_cursor(self._core, topic, name, positions, back=back, timeout=timeout)

    async def cursors(self, topic: str, *, timeout: float | None = None) -> list[CursorInfo]:
        """All named cursors of a topic: where each is, how far behind, who moved it last and when."""
        deadline = self._core.deadline(timeout)
        found = await self._core.call(messages.ListCursors(topic=topic), deadline)
        if not found.cursors:
            return []
        request = messages.DescribeTopic(name=topic)
        described = await self._core.call(request, deadline)
        return with_lag(found.cursors, (await self._completed([described.topic], request, deadline))[0])

    async def delete_cursor(self, topic: str, name: str, *, timeout: float | None = None) -> None:
        """Forget a named cursor of a topic."""
        await self._core.call(messages.DeleteCursor(topic=topic, name=name), timeout)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and all its messages."""
        await self._core.call(messages.DeleteTopic(name=name), timeout)

    async def offsets(
        self, topic: str, at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> Offsets:
        """The offset of a position in each partition.

        EndUnknown at the deadline, if no broker is certain where the committed messages end. With `stale="allow"`
        it is what is known to be committed, and `sure` of the answer says whether that was all.
        """
        found = (await self.find_offsets([topic], at, stale=stale, timeout=timeout))[topic]
        return Offsets(found.offsets, sure=found.sure)

    async def find_offsets(
        self, topics: list[str], at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> dict[str, TopicOffsets]:
        """The offset of a position in each partition of topics or patterns, with the topics' ids.

        A topic that is named and does not exist is an error; a pattern that matches none is not.
        """
        check_position(at, "at")
        may_be_stale = allows_stale(stale)
        deadline = self._core.deadline(timeout)
        found_routes, now_us = await routes.existing(self._core, topics, deadline), time.time_ns() // 1000

        async def find(route: messages.TopicRoute, partition: int) -> tuple[int, bool, int]:
            wish = find_request(at, route.id, partition, now_us, stale=may_be_stale)
            if isinstance(wish, int):
                return wish, True, 0
            found = await self._core.find_offset(wish, route.name, deadline)
            return found.offset, found.sure, found.begins

        found = {}
        for route in found_routes:
            answers = await asyncio.gather(*(find(route, index) for index in range(len(route.partitions))))
            offsets = {index: offset for index, (offset, _, _) in enumerate(answers)}
            begins = {index: first for index, (_, _, first) in enumerate(answers) if first}
            found[route.name] = TopicOffsets(route.id, offsets, all(sure for _, sure, _ in answers), begins)
        return found

    # --- groups ---------------------------------------------------------------------------------

    async def queues(self, *, timeout: float | None = None) -> list[QueueInfo]:
        """All work queues, with the number of their jobs."""
        return await queues.list_queues(self._core, timeout)

    async def describe_queue(self, name: str, *, timeout: float | None = None) -> QueueInfo:
        """A work queue: its settings, and how many jobs of each partition wait, are in work, finished and dead."""
        return await queues.describe_queue(self._core, name, timeout)

    async def groups(self, *, timeout: float | None = None) -> list[GroupInfo]:
        """All consumer groups, with their members."""
        return await groups.list_groups(self._core, self._core.deadline(timeout))

    async def describe_group(self, name: str, *, timeout: float | None = None) -> GroupInfo:
        """A consumer group: its members, and the owner, position and lag of each partition, in messages and seconds."""
        deadline = self._core.deadline(timeout)
        state = await groups.describe_group(self._core, name, deadline)
        named = sorted({share.topic for share in state.partitions})
        topics = [await self.describe_topic(topic, timeout=deadline.left()) for topic in named]
        return await groups.with_ages(self._core, groups.with_lag(state, topics), deadline)

    async def reset_group(
        self,
        name: str,
        to: Place | None = None,
        *,
        like: str | None = None,
        topics: list[str] | None = None,
        timeout: float | None = None,
    ) -> GroupInfo:
        """Let a group go on from another position, or from where another group is; in all of its topics or in those
        that are named. It must have no members.
        """
        if (to is None) == (like is None):
            raise InvalidArgument("reset_group needs either a position or the group to be `like`.")
        deadline = self._core.deadline(timeout)
        state = await groups.describe_group(self._core, name, deadline)
        groups.check_unused(state)
        if like is not None:
            other = await groups.describe_group(self._core, like, deadline)
            places = groups.positions_of(other, topics)
        else:
            named = sorted({share.topic for share in state.partitions}) if topics is None else topics
            found = await self.find_offsets(named, to, timeout=deadline.left())  # type: ignore[arg-type]
            places = {topic: each.offsets for topic, each in found.items()}
        for topic, offsets in places.items():
            await self.move_cursor(topic, name, offsets, back=True, timeout=deadline.left())
        return await self.describe_group(name, timeout=deadline.left())

    async def delete_group(self, name: str, *, timeout: float | None = None) -> None:
        """Forget a consumer group that has no members, and its positions."""
        await groups.delete_group(self._core, name, self._core.deadline(timeout))

    # --- brokers --------------------------------------------------------------------------------

    async def brokers(self, *, timeout: float | None = None) -> list[BrokerState]:
        """All brokers of the cluster, as the one that is asked sees them."""
        found = await self._core.call(messages.ListBrokers(), timeout)
        return found.brokers  # type: ignore[no-any-return]

    async def drain_broker(self, broker: str, *, draining: bool = True, timeout: float | None = None) -> None:
        """Move all replicas away from a broker, without stopping writes; or let it take some again."""
        await self._core.call(messages.DrainBroker(broker=broker, draining=draining), timeout)

    async def forget_broker(self, broker: str, *, timeout: float | None = None) -> None:
        """Take a broker that is gone for good off the list."""
        await self._core.call(messages.ForgetBroker(broker=broker), timeout)

    async def recover_partition(
        self, topic: str, partition: int, broker: str | None = None, *, timeout: float | None = None
    ) -> PartitionRecovered:
        """Let a broker's copy lead although it may lack committed messages; says what was lost.

        Without a broker: the one whose copy is furthest; all brokers must be there to find out.
        """
        deadline = self._core.deadline(timeout)
        if broker is None:
            broker = await best_copy(self._core, topic, partition, deadline)
        request = messages.RecoverPartition(topic=topic, partition=partition)
        return await self._core.ask_one(request, broker, deadline)  # type: ignore[no-any-return]

    async def clients(self, *, timeout: float | None = None) -> list[ClientInfo]:
        """Who is connected to the broker."""
        found = await self._core.call(messages.ListClients(), timeout)
        return found.clients  # type: ignore[no-any-return]

    async def statistics(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The broker's statistics."""
        found = await self._core.call(messages.GetStatistics(), timeout)
        return found.statistics  # type: ignore[no-any-return]

    async def broker(self, *, timeout: float | None = None) -> BrokerInfo:
        """The broker this client is connected to."""
        link = await self._core.link_within(timeout, "broker")
        assert link.broker is not None
        return link.broker


class Admin:
    """The same without `await`."""

    _async: AsyncAdmin

    def _call(self, work: Coroutine[Any, Any, R]) -> R:
        """Let the async client do it, and wait."""
        raise NotImplementedError

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, exist_ok: bool = False, timeout: float | None = None, **settings: Unpack[TopicOptions]
    ) -> TopicInfo:
        """Make a topic. Settings that are not named are the broker's defaults."""
        return self._call(self._async.create_topic(name, exist_ok=exist_ok, timeout=timeout, **settings))

    def alter_topic(self, name: str, *, timeout: float | None = None, **changes: Unpack[TopicOptions]) -> TopicInfo:
        """Change settings of a topic."""
        return self._call(self._async.alter_topic(name, timeout=timeout, **changes))

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """A topic's settings and partitions, and the groups and cursors that read it.

        All are as of now. Who leads a partition or a group and does not answer within a moment is left out.
        """
        return self._call(self._async.describe_topic(name, timeout=timeout))

    def find_topic(self, name: str, *, timeout: float | None = None) -> TopicRoute:
        """A topic's id, settings and chains; it is made on the way if the broker makes topics by itself."""
        return self._call(self._async.find_topic(name, timeout=timeout))

    def topics(
        self, pattern: str | None = None, *, internal: bool = False, timeout: float | None = None
    ) -> list[TopicInfo]:
        """All topics, or those that match a pattern; internal ones only if asked for, or named from their start."""
        return self._call(self._async.topics(pattern, internal=internal, timeout=timeout))

    def mark_recorded(self, topic: str, ends: Mapping[int, int], *, timeout: float | None = None) -> None:
        """A recorder has put away all messages below these offsets, by partition; it never moves back.

        Topics with `keep_unrecorded` delete nothing that is not marked, whatever their retention says.
        """
        self._call(self._async.mark_recorded(topic, ends, timeout=timeout))

    def move_cursor(
        self, topic: str, name: str, positions: Mapping[int, int], *, back: bool = False, timeout: float | None = None
    ) -> None:
        """Move a named cursor of a topic: its owner is done with all messages below these offsets, by partition.

        A position never goes back, whoever moves it, unless `back` says so. Retention may wait for a cursor.
        """
        self._call(self._async.move_cursor(topic, name, positions, back=back, timeout=timeout))

    def cursors(self, topic: str, *, timeout: float | None = None) -> list[CursorInfo]:
        """All named cursors of a topic: where each is, how far behind, who moved it last and when."""
        return self._call(self._async.cursors(topic, timeout=timeout))

    def delete_cursor(self, topic: str, name: str, *, timeout: float | None = None) -> None:
        """Forget a named cursor of a topic."""
        self._call(self._async.delete_cursor(topic, name, timeout=timeout))

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and all its messages."""
        self._call(self._async.delete_topic(name, timeout=timeout))

    def offsets(
        self, topic: str, at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> Offsets:
        """The offset of a position in each partition.

        EndUnknown at the deadline, if no broker is certain where the committed messages end. With `stale="allow"`
        it is what is known to be committed, and `sure` of the answer says whether that was all.
        """
        return self._call(self._async.offsets(topic, at, stale=stale, timeout=timeout))

    def find_offsets(
        self, topics: list[str], at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> dict[str, TopicOffsets]:
        """The offset of a position in each partition of topics or patterns, with the topics' ids.

        A topic that is named and does not exist is an error; a pattern that matches none is not.
        """
        return self._call(self._async.find_offsets(topics, at, stale=stale, timeout=timeout))

    # --- groups ---------------------------------------------------------------------------------

    def queues(self, *, timeout: float | None = None) -> list[QueueInfo]:
        """All work queues, with the number of their jobs."""
        return self._call(self._async.queues(timeout=timeout))

    def describe_queue(self, name: str, *, timeout: float | None = None) -> QueueInfo:
        """A work queue: its settings, and how many jobs of each partition wait, are in work, finished and dead."""
        return self._call(self._async.describe_queue(name, timeout=timeout))

    def groups(self, *, timeout: float | None = None) -> list[GroupInfo]:
        """All consumer groups, with their members."""
        return self._call(self._async.groups(timeout=timeout))

    def describe_group(self, name: str, *, timeout: float | None = None) -> GroupInfo:
        """A consumer group: its members, and the owner, position and lag of each partition, in messages and seconds."""
        return self._call(self._async.describe_group(name, timeout=timeout))

    def reset_group(
        self,
        name: str,
        to: Place | None = None,
        *,
        like: str | None = None,
        topics: list[str] | None = None,
        timeout: float | None = None,
    ) -> GroupInfo:
        """Let a group go on from another position, or from where another group is; in all of its topics or in those
        that are named. It must have no members.
        """
        return self._call(self._async.reset_group(name, to, like=like, topics=topics, timeout=timeout))

    def delete_group(self, name: str, *, timeout: float | None = None) -> None:
        """Forget a consumer group that has no members, and its positions."""
        self._call(self._async.delete_group(name, timeout=timeout))

    # --- brokers --------------------------------------------------------------------------------

    def brokers(self, *, timeout: float | None = None) -> list[BrokerState]:
        """All brokers of the cluster, as the one that is asked sees them."""
        return self._call(self._async.brokers(timeout=timeout))

    def drain_broker(self, broker: str, *, draining: bool = True, timeout: float | None = None) -> None:
        """Move all replicas away from a broker, without stopping writes; or let it take some again."""
        self._call(self._async.drain_broker(broker, draining=draining, timeout=timeout))

    def forget_broker(self, broker: str, *, timeout: float | None = None) -> None:
        """Take a broker that is gone for good off the list."""
        self._call(self._async.forget_broker(broker, timeout=timeout))

    def recover_partition(
        self, topic: str, partition: int, broker: str | None = None, *, timeout: float | None = None
    ) -> PartitionRecovered:
        """Let a broker's copy lead although it may lack committed messages; says what was lost.

        Without a broker: the one whose copy is furthest; all brokers must be there to find out.
        """
        return self._call(self._async.recover_partition(topic, partition, broker, timeout=timeout))

    def clients(self, *, timeout: float | None = None) -> list[ClientInfo]:
        """Who is connected to the broker."""
        return self._call(self._async.clients(timeout=timeout))

    def statistics(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The broker's statistics."""
        return self._call(self._async.statistics(timeout=timeout))

    def broker(self, *, timeout: float | None = None) -> BrokerInfo:
        """The broker this client is connected to."""
        return self._call(self._async.broker(timeout=timeout))
