"""Groups, as clients and operators use them: joined, left, committed to, described, deleted.

Whoever asks comes to the head of the group's partition, which clients find by the route table; another broker says who
it is (NotHead).
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Protocol

from stentor import limits
from stentor.broker.cluster.trust import GROUPS, HOLDERS
from stentor.broker.cursors.heads import check_size, committed_soon, cursors_of, publish_record
from stentor.broker.groups.heads import GroupConnection, foreign, groups_of
from stentor.broker.groups.transactions import TransactionDesk, transactions_of
from stentor.broker.long_requests import PIECE, Shared, encoded, in_pieces, sorting
from stentor.core import group_limits, refusals
from stentor.core.cursors import Forgotten, Moved
from stentor.core.group_coordinator import HeldPartitions, MemberBeat
from stentor.core.groups import EMPTY, GroupMember, GroupStep
from stentor.core.holders import NOBODY
from stentor.core.names import check_group_name, check_label, check_member_id, check_pattern, matches, printable
from stentor.errors import GroupInUse, GroupNotFound, InvalidArgument, StaleGeneration
from stentor.wire import cursor_records
from stentor.wire import group_messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.cluster.trust import Trust
    from stentor.broker.cursors.desk import CursorDesk
    from stentor.broker.environment import BrokerIdentity
    from stentor.broker.groups.heads import GroupHeads, Lead
    from stentor.broker.long_requests import LongRequests
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.partitions.serving import Serving
    from stentor.core.cursors import CursorRecord
    from stentor.core.group_coordinator import AnswerBeat
    from stentor.core.groups import HeldGroup
    from stentor.core.records import Key
    from stentor.ports import Clock
    from stentor.security.permissions import Permissions

_NAMED_MAX = 10  # partitions that an error names
_KEYS_PIECE = 1_024  # cursors whose topic one piece of a long request looks at


class Asker(Protocol):
    """The connection of a client that asks."""

    on_left: list[Callable[[], None]]  # called when the client closes it

    @property
    def client(self) -> tuple[str, str]:
        """Name and address."""
        ...

    @property
    def holder(self) -> bytes:
        """The hash of the secret that the client showed (C36)."""
        ...


class GroupDesk:
    """Takes what is asked about groups to the heads that decide it."""

    def __init__(
        self,
        identity: BrokerIdentity,
        clock: Clock,
        *,
        trust: Trust,
        permissions: Permissions,
        catalogue: Catalogue,
        serving: Serving,
        cursors: CursorDesk,
        heads: GroupHeads,
        long_requests: LongRequests,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._trust = trust
        self._catalogue = catalogue
        self._serving = serving
        self._cursors = cursors
        self._heads = heads
        self._long_requests = long_requests
        self.transactions = TransactionDesk(
            identity,
            clock,
            trust=trust,
            permissions=permissions,
            catalogue=catalogue,
            heads=heads,
            long_requests=long_requests,
            check_owner=self._check_owner,
        )
        self._listed = Shared(self._list)
        self._numbers = itertools.count(1)
        self._connections: weakref.WeakKeyDictionary[Asker, GroupConnection] = weakref.WeakKeyDictionary()

    def look(self) -> None:
        """Called by a timer: this broker may have become the head of a group."""
        if self._enabled:
            self._heads.look()

    @property
    def _enabled(self) -> bool:
        return self._identity.alone or self._trust.level >= GROUPS

    @property
    def _binds(self) -> bool:
        """Whether members are written down with their holders (C27)."""
        return self._identity.alone or self._trust.level >= HOLDERS

    def _check(self, group: str) -> None:
        check_group_name(group)
        if not self._enabled:
            raise refusals.being_upgraded("groups")

    # --- members --------------------------------------------------------------------------------

    async def beat(self, client: Asker, request: m.GroupHeartbeat) -> m.GroupAssigned:
        """A member is there."""
        self._check(request.group)
        for pattern in request.topics:
            check_pattern(pattern)
        silence_s = request.silence_ms / 1000
        if not group_limits.GROUP_SILENCE_S_MIN <= silence_s <= group_limits.GROUP_SILENCE_S_MAX:
            raise InvalidArgument(
                f"A member cannot be silent for {silence_s:g} s; a limit between {group_limits.GROUP_SILENCE_S_MIN:g} s"
                f" and {group_limits.GROUP_SILENCE_S_MAX:g} s is possible."
            )
        member = check_member_id(request.member)
        await self._cursors.make_topic()
        await self._heads.learn(request.topics)
        about = GroupMember(
            request.topics,
            name=check_label("name of a member", request.name or client.client[0]),
            instance=check_label("instance of a member", request.instance),
            zone=check_label("zone of a member", request.zone),
            silence_ms=request.silence_ms,
            holder=client.holder if self._binds else NOBODY,
        )
        beat = MemberBeat(
            member,
            about,
            request.number,
            request.seen,
            HeldPartitions(request.holding),
            client.holder,
            binds=self._binds,
        )
        lead, answer = await self._heads.beat(request.group, beat, self._connection(client))
        return self._assigned(request.group, lead, answer)

    def _connection(self, client: Asker) -> GroupConnection:
        """A client's connection, as the heads of its groups know it; what follows when the client closes it."""
        known = self._connections.get(client)
        if known is None:
            known = self._connections[client] = GroupConnection(next(self._numbers))
            client.on_left.append(partial(self._heads.broke, known))
        return known

    def _assigned(self, name: str, lead: Lead, answer: AnswerBeat) -> m.GroupAssigned:
        if answer.partitions is None:
            return m.GroupAssigned(generation=answer.generation, number=answer.number)
        cursors, group = cursors_of(lead.partition).named(name), lead.groups.get(name) or EMPTY
        unfinished = transactions_of(lead.partition).unfinished(name)
        partitions = []
        for (topic_id, index), since in sorted(answer.partitions.items()):
            topic, cursor = self._catalogue.by_id.get(topic_id), cursors.get(topic_id)
            if topic is not None:  # else it was deleted a moment ago
                assigned = m.AssignedPartition(
                    topic_id=topic_id,
                    topic=topic.record.name,
                    partition=index,
                    since=since,
                    position=None if cursor is None else cursor.positions.get(index),
                    begins=index < group.born.get(topic_id, 0),
                    unfinished=any(self.transactions.concerns(each, (topic_id, index)) for each in unfinished),
                )
                partitions.append(assigned)
        return m.GroupAssigned(generation=answer.generation, number=answer.number, partitions=partitions)

    async def leave(self, client: Asker, request: m.LeaveGroup) -> None:
        """A member leaves."""
        self._check(request.group)
        await self._heads.leave(request.group, check_member_id(request.member), client.holder)

    async def commit(self, client: Asker, request: m.CommitGroup) -> None:
        """Move the group's cursors, if the member owns what it commits (C22): all of these positions, or none."""
        self._check(request.group)
        partition = self._heads.partition(request.group)
        self._check_owner(partition, client, request)
        cursors = cursors_of(partition)
        by_topic: dict[int, dict[int, int]] = defaultdict(dict)
        for each in request.positions:
            by_topic[each.topic_id][each.partition] = each.offset
        by, now_us = printable(client.client[0]), self._clock.now_us()
        records: list[CursorRecord] = [
            Moved(topic_id, request.group, positions, by=by, at_us=now_us) for topic_id, positions in by_topic.items()
        ]
        news = [record for record in records if cursors.is_news(record)]
        if not news:
            await self._serving.find_end(partition, stale=False)
            return
        for record in news:
            check_size(partition, cursors, record, reserved=limits.CURSOR_RESERVED)
        await self._append(partition, news)

    def _check_owner(self, partition: Partition, client: Asker, request: m.CommitGroup | m.CommitTransaction) -> None:
        """Judged by all that the log says, in the same turn of the loop in which the commit is appended."""
        claimed = [((each.topic_id, each.partition), each.since) for each in request.positions]
        groups, member = groups_of(partition), check_member_id(request.member)
        if not groups.may_speak(request.group, member, client.holder):
            raise foreign(request.group)
        if stale := groups.stale(request.group, member, claimed):
            names = [self._name(key) for key in stale[:_NAMED_MAX]]
            more = f" and {len(stale) - _NAMED_MAX} more" if len(stale) > _NAMED_MAX else ""
            verb = "does" if len(stale) == 1 else "do"
            raise StaleGeneration(
                f"{', '.join(names)}{more} {verb} not belong to this member of group {request.group} any more.",
                hint="Another member goes on behind the last position that was committed in time.",
                object=request.group,
            )

    def _name(self, key: Key) -> str:
        topic = self._catalogue.by_id.get(key[0])
        return f"{key[0]:x}/{key[1]}" if topic is None else f"{topic.record.name}/{key[1]}"

    async def _append(self, partition: Partition, records: list[CursorRecord]) -> None:
        topic_id, index = partition.key
        now_us = self._clock.now_us()
        batches = (cursor_records.encode(each, now_us, topic_id=topic_id, partition=index) for each in records)
        await committed_soon(partition, *[publish_record(partition, batch) for batch in batches])

    # --- operators ------------------------------------------------------------------------------

    async def describe(self, client: object, request: m.DescribeGroup) -> m.GroupDescribed:
        """One group, with its members and partitions."""
        self._check(request.group)
        lead = await self._heads.confirmed(request.group)
        group = self._existing(lead, request.group)
        return await self._long_requests.walk(client, self._describing(lead, request.group, group))

    def _describing(self, lead: Lead, name: str, group: HeldGroup) -> Generator[None, None, m.GroupDescribed]:
        cursors = cursors_of(lead.partition).named(name)
        yield
        keys = group.owners.keys() | {(topic, index) for topic, cursor in cursors.items() for index in cursor.positions}
        partitions = []
        for number, key in enumerate(sorted(keys), 1):
            if number % PIECE == 0:
                yield
            topic, owner, cursor = self._catalogue.by_id.get(key[0]), group.owners.get(key), cursors.get(key[0])
            if topic is not None:
                share = m.GroupShare(
                    topic=topic.record.name,
                    topic_id=key[0],
                    partition=key[1],
                    member="" if owner is None else owner.member,
                    position=None if cursor is None else cursor.positions.get(key[1]),
                )
                partitions.append(encoded(share))
        unfinished = len(transactions_of(lead.partition).unfinished(name))
        return m.GroupDescribed(group=self._state(name, group, partitions, unfinished))

    async def list_all(self) -> m.GroupList:
        """The groups that are led here."""
        self._check("any")
        return await self._listed.get()

    async def _list(self) -> m.GroupList:
        leads = self._heads.led()
        for lead in leads:
            await self._serving.find_end(lead.partition, stale=False)
        return await self._long_requests.walk(self, self._listing(leads))

    def _listing(self, leads: list[Lead]) -> Generator[None, None, m.GroupList]:
        led, unfinished = {}, {}
        for lead in leads:
            led.update(dict.fromkeys(lead.groups.unordered(), lead))
            yield
            unfinished[lead] = transactions_of(lead.partition).unfinished_counts()
            yield
        found, weight = [], 0
        for name in (yield from sorting(list(led))):
            lead = led[name]
            group = lead.groups.get(name)
            if group is None:
                continue
            found.append(encoded(self._state(name, group, [], unfinished[lead][name])))
            weight += 1 + len(group.members)
            if weight >= PIECE:
                weight = 0
                yield
        return m.GroupList(groups=found)

    def reading(self, topic_id: int, name: str) -> Generator[None, None, list[str]]:
        """The groups that are led here and read a topic, or have read it: with members, or with positions in it.

        Cursors that somebody moves by hand, as Spark does, are positions of a group without members.
        """
        found: set[str] = set()
        covers: dict[str, bool] = {}  # many groups read the same
        for lead in self._heads.led() if self._enabled else ():
            for keys in in_pieces(cursors_of(lead.partition).keys(), _KEYS_PIECE):
                found.update(cursor for cursor, topic in keys if topic == topic_id)
                yield
            for names in in_pieces(lead.groups.unordered()):
                for group in names:
                    held = lead.groups.get(group)
                    for pattern in () if held is None else _patterns(held):
                        if pattern not in covers:
                            covers[pattern] = matches(pattern, name)
                        if covers[pattern]:
                            found.add(group)
                            break
                yield
        return (yield from sorting(list(found)))[: group_limits.TOPIC_GROUPS_MAX]

    def _state(self, name: str, group: HeldGroup, partitions: list[m.GroupShare], unfinished: int) -> m.GroupState:
        return m.GroupState(
            name=name,
            generation=group.generation,
            head=self._identity.broker_id,
            changed_at_us=group.changed_at_us,
            members=[
                m.MemberState(id=member, name=each.name, instance=each.instance, zone=each.zone, topics=each.topics)
                for member, each in group.members.items()
            ],
            partitions=partitions,
            unfinished=unfinished,
        )

    async def delete(self, request: m.DeleteGroup) -> None:
        """Forget a group and its positions."""
        self._check(request.group)
        lead = await self._heads.confirmed(request.group)
        group = self._existing(lead, request.group)
        if group.members or not lead.groups.is_settled(request.group):
            raise GroupInUse(
                f"Group {request.group} has {len(group.members)} members.",
                hint="Stop them first, or wait until they count as gone.",
                object=request.group,
            )
        if transactions_of(lead.partition).is_busy(request.group):
            raise GroupInUse(
                f"Group {request.group} has transactions whose outputs are not all in their topics.",
                hint="Let a member join it for a moment: it finishes them.",
                object=request.group,
            )
        gone = GroupStep(request.group, (lead.epoch, group.generation[1] + 1), deleted=True)
        step = self._heads.publish(lead.partition, gone)
        topics = cursors_of(lead.partition).named(request.group)
        await self._append(lead.partition, [Forgotten(topic_id, request.group) for topic_id in topics])
        await committed_soon(lead.partition, step)

    @staticmethod
    def _existing(lead: Lead, name: str) -> HeldGroup:
        group = lead.groups.get(name)
        if group is None:
            raise GroupNotFound(
                f"There is no group {name}.", hint="`stentor group list` shows the groups there are.", object=name
            )
        return group


def _patterns(group: HeldGroup) -> set[str]:
    """Return what the members of a group read."""
    return {pattern for each in group.members.values() for pattern in each.topics}
