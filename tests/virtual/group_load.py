"""A consumer group on a simulated cluster: members that come, go, are killed and paused, and what must hold of them.

Members are the product's own clients, each a process of its own. A member counts as the owner of a partition from the
answer that lists it until it lets go, or its lease ends by its own clock.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.virtual.workload import TOPIC
from tests.virtual.world import SECOND

from stentor.broker.groups.desk import GroupDesk
from stentor.broker.groups.heads import groups_of
from stentor.core.groups import EMPTY, PartitionOwner
from stentor.errors import StentorError
from stentor.wire.group_messages import CommitGroup, GroupPosition

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster
    from tests.virtual.world import Process

    from stentor.client.group import AsyncGroup
    from stentor.client.message import Message

GROUP = "g"
MEMBERS = 3
SILENCE_S = 5.0
LATE_S = 1.0  # timers of a process may ring late


CHECK_OWNER = GroupDesk._check_owner


def watch_commits(require: Any) -> None:
    """C22 and C36, by themselves: whatever a head accepts was committed by the client of the member that owns it."""

    def check(desk: GroupDesk, partition: Any, client: Any, request: Any) -> None:
        CHECK_OWNER(desk, partition, client, request)
        group = groups_of(partition)._applied.get(request.group, EMPTY)
        holder = group.members[request.member].holder if request.member in group.members else b""
        require(holder in (b"", client.holder), "a commit of another client was accepted", request.member)
        owners = group.owners
        for each in request.positions:
            found = owners.get((each.topic_id, each.partition))
            wanted = PartitionOwner(request.member, each.since)
            require(found == wanted, "a commit of an earlier owner was accepted", found, wanted)

    GroupDesk._check_owner = check


class Member:
    """One process of the group."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.group: AsyncGroup | None = None
        self.stands_still_until = 0  # a shorter pause in a longer one does not end that

    def owned(self) -> set[tuple[int, int]]:
        """The partitions that it may read, as it knows."""
        if self.group is None or self.process.dead:
            return set()
        life = self.group._core.tie.life
        if life.lease_ends is None or self.process.loop.time() >= life.lease_ends:
            return set()
        return set(life.holding)


class GroupLoad:
    """Members, until they are told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world, self.require = cluster, cluster.world, cluster.world.require
        self.stopping = False
        self.hurries = False  # handlers take no time
        self.members: list[Member] = []
        self.handled: set[tuple[int, int]] = set()
        self.repeated = 0
        self.positions: dict[int, int] = {}  # as somebody saw them committed
        self.unfinished = 0  # transactions, the same
        self._numbers = 0

    # --- members --------------------------------------------------------------------------------

    def begin(self) -> None:
        watch_commits(self.require)
        for _ in range(MEMBERS):
            self.add()
        self.cluster.process("groupwatch").run(self._watch())

    def add(self) -> None:
        name = f"group{self._numbers}"
        self._numbers += 1
        member = Member(self.cluster.process(name))
        self.members.append(member)
        member.process.run(self._work(name, member))

    async def _work(self, name: str, member: Member) -> None:
        rng, group = self.world.rng, await self._join(name, member)
        workers = rng.choice([0, 0, 1, 3])
        if workers:
            order = rng.choice(["key", "partition", None])
            await group.run(lambda message: self._handle(member, message), workers=workers, ordered_by=order)
            return
        async for message in group:
            await self._handle(member, message)

    async def _join(self, name: str, member: Member) -> AsyncGroup:
        while True:
            try:
                client = await self.cluster.client(name)
                member.group = await client.group(GROUP, TOPIC, silence=SILENCE_S, timeout=20)
            except StentorError:
                await asyncio.sleep(0.1)
            else:
                return member.group

    async def _handle(self, member: Member, message: Message) -> None:
        self._check_owners(member)
        self._check_lease(member)
        place = message.partition, message.offset
        self.repeated += place in self.handled
        await asyncio.sleep(0 if self.hurries else self.world.rng.choice([0, 0, 0, 0.01, 0.1]))
        self.handled.add(place)

    def _check_lease(self, member: Member) -> None:
        """Nothing is begun without a lease, but for what was on its way when a process stood still."""
        process = member.process
        if member.group is None or self.world.now < member.stands_still_until + SECOND:
            return
        ends = member.group._core.tie.life.lease_ends
        over = ends is not None and process.loop.time() > ends + LATE_S
        self.require(not over, "a message is begun after the lease", process.name)

    def _check_owners(self, mine: Member) -> None:
        owned = mine.owned()
        for other in self.members:
            if other is not mine:
                both = owned & other.owned()
                self.require(not both, "a partition has two owners", mine.process.name, other.process.name, both)

    def fail(self) -> None:
        """One of them dies, stands still, or comes."""
        rng = self.world.rng
        alive = [member for member in self.members if not member.process.dead]
        what, one = rng.random(), rng.choice(alive) if alive else None
        if one is not None and what < 0.3:
            one.process.dead = True
            self.cluster.network.died(one.process, silently=False)
            self.add()
        elif one is not None and what < 0.5:
            one.process.paused_until = self.world.now + round(rng.choice([0.5, 3, 8]) * SECOND)
            one.stands_still_until = max(one.stands_still_until, one.process.paused_until)
        elif one is not None and what < 0.6 and one.group is not None:
            one.process.run(self._leave(one))
        elif what < 0.7 and len(alive) < MEMBERS + 2:
            self.add()
        elif one is not None and what < 0.85 and one.group is not None:
            one.process.run(self._commit_late(one.group))

    async def _commit_late(self, group: AsyncGroup) -> None:
        """A commit that is long on its way: what it claims may be another member's by then."""
        tie, core = group._core.tie, group._core
        late = [
            GroupPosition(topic_id=key[0], partition=key[1], offset=core.progress.position(reader), since=since)
            for key, since in tie.life.holding.items()
            if (reader := core.readers.get(key)) is not None
        ]
        request = CommitGroup(group=GROUP, member=tie.life.member, positions=late)
        await asyncio.sleep(self.world.rng.choice([1, 4, 8]))
        with suppress(StentorError, TimeoutError):
            async with asyncio.timeout(5):
                await tie.ask(request)

    async def _leave(self, member: Member) -> None:
        group, member.group = member.group, None
        if group is not None:
            await group.close()
            self.add()

    async def _watch(self) -> None:
        """Committed positions never go back, whoever looks."""
        client: Any = None
        while True:
            await asyncio.sleep(0.2)
            try:
                client = client or await self.cluster.client("groupwatch")
                found = await client.describe_group(GROUP, timeout=5)
            except StentorError:
                continue
            self.unfinished = found.unfinished
            for each in found.partitions:
                before, now = self.positions.get(each.partition, 0), each.position or 0
                self.require(now >= before, "a committed position went back", each.partition, before, now)
                self.positions[each.partition] = now

    # --- the end --------------------------------------------------------------------------------

    def caught_up(self, ends: dict[int, set[int]]) -> bool:
        """Whether everything is handled and committed."""
        return all(self.positions.get(partition, 0) == max(found) for partition, found in ends.items())

    def compare(self, acknowledged: Any, outputs: list[Any] | None = None) -> None:
        """Every acknowledged message was handled."""
        for place in acknowledged:
            self.require(place in self.handled, "a message was not handled", place)
