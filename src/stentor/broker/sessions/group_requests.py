"""What clients ask about groups goes to the groups' desk as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stentor.broker.groups.desk import Asker
from stentor.wire import group_messages, messages

if TYPE_CHECKING:
    from stentor.broker.groups.desk import GroupDesk
    from stentor.security.permissions import Principal


class GroupAsker(Asker, Protocol):
    """The session of a client that asks."""

    @property
    def principal(self) -> Principal:
        """Who asks."""
        ...


class HasGroups(Protocol):
    """What answers all requests."""

    groups: GroupDesk


async def group_beat(desk: HasGroups, client: GroupAsker, request: messages.GroupHeartbeat) -> messages.GroupAssigned:
    """A member is there."""
    return await desk.groups.beat(client, request)


async def leave_group(desk: HasGroups, client: GroupAsker, request: messages.LeaveGroup) -> messages.Done:
    """A member leaves."""
    await desk.groups.leave(client, request)
    return messages.Done()


async def commit_group(desk: HasGroups, client: GroupAsker, request: messages.CommitGroup) -> messages.Done:
    """A member has come this far."""
    await desk.groups.commit(client, request)
    return messages.Done()


async def commit_transaction(
    desk: HasGroups, client: GroupAsker, request: group_messages.CommitTransaction
) -> messages.Done:
    """The same, with what it sends out."""
    await desk.groups.transactions.commit(client, request)
    return messages.Done()


async def end_transaction(desk: HasGroups, client: GroupAsker, request: group_messages.EndTransaction) -> messages.Done:
    """What it sent out is in its topics."""
    await desk.groups.transactions.end(client, request)
    return messages.Done()


async def find_transaction(
    desk: HasGroups, client: GroupAsker, request: group_messages.FindTransaction
) -> group_messages.TransactionFound:
    """What somebody left unfinished."""
    return await desk.groups.transactions.find(client, request)


async def describe_group(
    desk: HasGroups, client: GroupAsker, request: messages.DescribeGroup
) -> messages.GroupDescribed:
    """One group."""
    return await desk.groups.describe(client, request)


async def list_groups(desk: HasGroups, _: GroupAsker, __: messages.ListGroups) -> messages.GroupList:
    """The groups that are led here."""
    return await desk.groups.list_all()


async def delete_group(desk: HasGroups, _: GroupAsker, request: messages.DeleteGroup) -> messages.Done:
    """A group is not wanted any more."""
    await desk.groups.delete(request)
    return messages.Done()
