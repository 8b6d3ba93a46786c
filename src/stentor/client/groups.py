"""Groups as operators see them: listed, described, reset, deleted. The head of each group is asked."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor.client.inbox import AsyncInbox
from stentor.client.subscription import AsyncSubscription
from stentor.client.subscription_core import SubscriptionCore
from stentor.core.cursors import partition_of
from stentor.core.names import CURSORS_TOPIC, check_group_name
from stentor.errors import (
    ConnectionFailed,
    CoordinationUnavailable,
    GroupInUse,
    GroupNotFound,
    InvalidArgument,
    NotReady,
    StentorError,
)
from stentor.wire import group_messages

if TYPE_CHECKING:
    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.starts import Start
    from stentor.wire.messages import TopicInfo

_AGES_MAX = 100  # partitions whose first waiting message is looked at: each costs a read
_AGE_S = 5.0  # who describes a group wants to see the rest, too
_START = datetime(1970, 1, 1, tzinfo=UTC)


class GroupMemberInfo(msgspec.Struct, frozen=True):
    """A member of a group."""

    id: str
    name: str  # of its client
    instance: str  # of a static member
    topics: list[str]  # what it reads
    partitions: list[tuple[str, int]]  # what it owns: topic and number of each


class GroupPartitionInfo(msgspec.Struct, frozen=True):
    """A partition of a group."""

    topic: str
    partition: int
    member: str  # the id of its owner; empty: nobody's now
    position: int | None  # everything below is done with; None: nothing was committed yet
    lag: int  # committed messages that are not done with
    behind_s: float | None = None  # the age of the first of them; None: it was not looked at, or is deleted by now


class GroupInfo(msgspec.Struct, frozen=True):
    """A consumer group."""

    name: str
    generation: tuple[int, int]
    head: str  # the broker that coordinates it
    changed_at: datetime
    members: list[GroupMemberInfo]
    partitions: list[GroupPartitionInfo]  # only where one group is described
    unfinished: int = 0  # transactions whose outputs are not all in their topics yet

    @property
    def lag(self) -> int:
        """Committed messages that are not done with, in all partitions."""
        return sum(partition.lag for partition in self.partitions)

    @property
    def behind_s(self) -> float:
        """The age of the oldest message that is not done with, in seconds."""
        return max((partition.behind_s or 0.0 for partition in self.partitions), default=0.0)


def _info(state: group_messages.GroupState, partitions: list[GroupPartitionInfo]) -> GroupInfo:
    return GroupInfo(
        state.name,
        state.generation,
        state.head,
        _START + timedelta(microseconds=state.changed_at_us),
        [
            GroupMemberInfo(
                each.id,
                each.name,
                each.instance,
                each.topics,
                [(share.topic, share.partition) for share in state.partitions if share.member == each.id],
            )
            for each in state.members
        ],
        partitions,
        state.unfinished,
    )


async def _ask_head(core: ClientCore, group: str, request: Any, deadline: Deadline) -> Any:
    """Ask the head of a group, again if that changes meanwhile."""
    check_group_name(group)
    refusal: StentorError | None = None
    deleting = isinstance(request, group_messages.DeleteGroup)
    lost = False  # an answer: the request may have been done
    try:
        async with deadline.bound():
            await core.ready_link()
            route = core.routes.get(CURSORS_TOPIC)
            if route is None:
                await core.refresh_routes(deadline)
            while True:
                route = core.routes.get(CURSORS_TOPIC)
                if route is None:
                    raise GroupNotFound(f"There is no group {group}.", object=group)
                chain = route.partitions[partition_of(group, len(route.partitions))].chain
                link = core.links.to(chain[0]) if chain else None
                try:
                    if link is not None:
                        return await link.request(request)
                except GroupNotFound:
                    if deleting and lost:
                        return None  # by the request whose answer was lost
                    raise
                except (ConnectionFailed, CoordinationUnavailable, NotReady) as error:
                    refusal = error
                    lost = lost or isinstance(error, ConnectionFailed)
                await core.changes(limits.LINK_WATCH_S)
    except TimeoutError as error:
        raise core.late(type(request).__name__, deadline.seconds, refusal) from error


def group_heads(core: ClientCore) -> set[str]:
    """The brokers that lead groups, by the route table."""
    route = core.routes.get(CURSORS_TOPIC)
    return set() if route is None else {partition.chain[0] for partition in route.partitions if partition.chain}


async def list_groups(core: ClientCore, deadline: Deadline) -> list[GroupInfo]:
    """All groups: the heads of all partitions of the internal topic are asked."""
    await core.refresh_routes(deadline)
    found: dict[str, group_messages.GroupState] = {}
    for head in sorted(group_heads(core)):
        answer = await core.ask_one(group_messages.ListGroups(), head, deadline)
        found |= {state.name: state for state in answer.groups}
    return [_info(found[name], []) for name in sorted(found)]


async def describe_group(core: ClientCore, name: str, deadline: Deadline) -> group_messages.GroupState:
    """One group, as its head knows it."""
    described = await _ask_head(core, name, group_messages.DescribeGroup(group=name), deadline)
    state: group_messages.GroupState = described.group
    return state


def with_lag(state: group_messages.GroupState, topics: list[TopicInfo]) -> GroupInfo:
    """The same as people see it."""
    ends = {(topic.id, each.partition): (each.start, each.committed) for topic in topics for each in topic.partitions}
    partitions = []
    for share in state.partitions:
        start, committed = ends.get((share.topic_id, share.partition), (0, 0))
        lag = max(0, committed - max(start, share.position or 0))
        partitions.append(GroupPartitionInfo(share.topic, share.partition, share.member, share.position, lag))
    return _info(state, partitions)


def positions_of(state: group_messages.GroupState, topics: list[str] | None) -> dict[str, dict[int, int]]:
    """Where a group is, by topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for share in state.partitions:
        if share.position is not None and (topics is None or share.topic in topics):
            found.setdefault(share.topic, {})[share.partition] = share.position
    if not found:
        raise InvalidArgument(f"Group {state.name} has committed nothing that could be taken over.", object=state.name)
    return found


async def with_ages(core: ClientCore, info: GroupInfo, deadline: Deadline) -> GroupInfo:
    """The same with the age of the first message that waits in each partition, as many as can be looked at."""
    some = [each for each in info.partitions if each.lag][:_AGES_MAX]
    found = await asyncio.gather(*(_age(core, each, deadline) for each in some))
    ages = {(each.topic, each.partition): age for each, age in zip(some, found, strict=True)}
    partitions = [
        msgspec.structs.replace(each, behind_s=ages.get((each.topic, each.partition)) if each.lag else 0.0)
        for each in info.partitions
    ]
    return msgspec.structs.replace(info, partitions=partitions)


async def _age(core: ClientCore, each: GroupPartitionInfo, deadline: Deadline) -> float | None:
    """How old the first message is that a partition waits with."""
    start: Start = {each.partition: each.position} if each.position is not None else "earliest"
    inbox = AsyncInbox()
    try:
        reading = SubscriptionCore(
            core, each.topic, start=start, partition=each.partition, stale="allow", put=inbox.put, credit=1
        )
        await reading.open(deadline)
        async with AsyncSubscription(reading, inbox) as subscription:
            message = await subscription.get(min(_AGE_S, deadline.left() or _AGE_S))
    except StentorError:  # retention may have deleted it
        return None
    return max(0.0, time.time() - message.timestamp_us / 1e6)


async def delete_group(core: ClientCore, name: str, deadline: Deadline) -> None:
    """Forget a group and its positions."""
    await _ask_head(core, name, group_messages.DeleteGroup(group=name), deadline)


def check_unused(state: group_messages.GroupState) -> None:
    """Whether nobody would commit over what is being changed."""
    if state.members:
        raise GroupInUse(
            f"Group {state.name} has {len(state.members)} members.",
            hint="Stop them first, or wait until they count as gone.",
            object=state.name,
        )
