"""Control messages about consumer groups. All but ListGroups go to the head of the group's partition.

A member's heartbeat is answered at once when there is news for it, else after a while (`core.group_coordinator`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stentor import limits
from stentor.core import group_limits
from stentor.wire.topic_settings import U32, U63, Label, Name

Stamp = tuple[U63, U63]
"""An epoch, and a number within it."""


Outputs = Annotated[list[tuple[Name, bytes]], msgspec.Meta(max_length=group_limits.TRANSACTION_PARTITIONS_MAX)]
"""What a transaction sends out: the name of a topic, and a whole batch for one partition of it."""


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plain value inside a message."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """A message that is told apart by its type."""


class GroupHeartbeat(_Message, frozen=True):
    """A member is there; the first one joins. Answer: GroupAssigned."""

    group: Name
    member: Label  # an id that the member chose, for this life of it
    number: U63  # of this heartbeat; each has a higher one
    topics: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=group_limits.GROUP_TOPICS_MAX)]
    name: Label = ""  # empty: the name of the client
    instance: Label = ""  # of a static member
    zone: Label = ""
    silence_ms: U32 = int(group_limits.GROUP_SILENCE_S * 1000)  # it counts as gone after this much silence
    seen: Stamp = (0, 0)  # `number` of the last answer that it took
    holding: Annotated[dict[U63, list[U32]], msgspec.Meta(max_length=limits.TOPICS_MAX)] = {}  # by topic id


class AssignedPartition(_Value, frozen=True):
    """A partition that a member owns."""

    topic_id: int
    topic: str
    partition: int
    since: Stamp  # the generation that made it the owner
    position: int | None = None  # how far the group has come; none: nobody has committed anything
    begins: bool = False  # it was there when the group began: without a position, `start` counts
    unfinished: bool = False  # a transaction that named it is not done: finish that first (FindTransaction)


class GroupAssigned(_Message, frozen=True):
    """What a member owns."""

    generation: Stamp  # of the group
    number: Stamp  # of this answer
    partitions: list[AssignedPartition] | None = None  # none: as in the answer that the member has seen


class LeaveGroup(_Message, frozen=True):
    """A member leaves; it holds nothing any more. Answer: Done."""

    group: Name
    member: Label


class GroupPosition(_Value, frozen=True):
    """How far a member has come in a partition that it owns."""

    topic_id: U63
    partition: U32
    offset: U63  # everything below is done with
    since: Stamp


class CommitGroup(_Message, frozen=True):
    """All of these positions, or none if the member does not own one of the partitions. Answer: Done."""

    group: Name
    member: Label
    positions: Annotated[list[GroupPosition], msgspec.Meta(max_length=group_limits.GROUP_COMMIT_PARTITIONS_MAX)]


class CommitTransaction(_Message, frozen=True):
    """The same, together with what is sent out; by a frame of its own kind (TRANSACTION). Answer: Done."""

    group: Name
    member: Label
    number: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]  # of this transaction of the member
    positions: Annotated[
        list[GroupPosition], msgspec.Meta(min_length=1, max_length=group_limits.GROUP_COMMIT_PARTITIONS_MAX)
    ]
    done: U32 = 0  # all outputs of those up to this one are in their topics
    outputs: Outputs = []


class EndTransaction(_Message, frozen=True):
    """All outputs of a transaction are in their topics. Answer: Done."""

    group: Name
    author: Label  # the id of the member whose transaction it is
    number: U32


class FindTransaction(_Message, frozen=True):
    """The oldest transaction that named a partition and is not done. Answer: TransactionFound."""

    group: Name
    topic_id: U63
    partition: U32
    member: str = ""  # the caller's own id: it asks for its token, and for nothing else
    again: U32 = 0  # which token of the author it asks for: ids under which somebody sent something else are passed by


class TransactionFound(_Message, frozen=True):
    """A transaction that is not done, if there is one."""

    author: str = ""  # the id of the member whose transaction it is; empty: there is none
    number: int = 0
    outputs: list[tuple[str, bytes]] = []
    token: bytes = b""  # of the producer id of its outputs; empty: that needs none


class DescribeGroup(_Message, frozen=True):
    """Answer: GroupDescribed."""

    group: Name


class ListGroups(_Message, frozen=True):
    """The groups whose heads are at the broker that is asked. Answer: GroupList."""


class DeleteGroup(_Message, frozen=True):
    """Forget a group that has no members, and its positions. Answer: Done."""

    group: Name


class MemberState(_Value, frozen=True):
    """A member, as operators see it."""

    id: str
    name: str = ""
    instance: str = ""
    zone: str = ""
    topics: list[str] = []


class GroupShare(_Value, frozen=True):
    """A partition of a group."""

    topic: str
    topic_id: int
    partition: int
    member: str = ""  # the id of its owner
    position: int | None = None


class GroupState(_Value, frozen=True):
    """A group, as operators see it."""

    name: str
    generation: Stamp
    head: str  # the broker that coordinates it
    changed_at_us: int = 0
    members: list[MemberState] = []
    partitions: list[GroupShare] = []  # only where one group is described
    unfinished: int = 0  # transactions whose outputs are not all in their topics


class GroupDescribed(_Message, frozen=True):
    """One group."""

    group: GroupState


class GroupList(_Message, frozen=True):
    """Groups by name."""

    groups: list[GroupState]


GroupRequest = (
    GroupHeartbeat
    | LeaveGroup
    | CommitGroup
    | EndTransaction
    | FindTransaction
    | DescribeGroup
    | ListGroups
    | DeleteGroup
)
GroupResponse = GroupAssigned | GroupDescribed | GroupList | TransactionFound
