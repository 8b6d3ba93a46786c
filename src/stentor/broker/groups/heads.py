"""What the heads of the internal topic do for groups: performs the effects of their coordinators.

A `Lead` is one partition of the internal topic that this broker leads, in one epoch. With another epoch everything that
is not in the log begins anew: leases in full (C21), answers numbered from 1.

Before a heartbeat counts, the whole chain confirms that this broker is still its head (C30). So a head that was cut off
renews no lease, and a member that hears only such a head ends its own before a new head gives its partitions away.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.broker.cursors.heads import cursors_of, publish_record
from stentor.core import group_coordinator as machine
from stentor.core import group_limits, refusals
from stentor.core.cursors import partition_of
from stentor.core.group_topics import GroupTopics
from stentor.core.groups import Groups, GroupStep
from stentor.core.names import CURSORS_TOPIC
from stentor.core.transactions import Transactions
from stentor.errors import LimitExceeded, MemberReplaced, NotReady, StaleGeneration, StentorError
from stentor.wire import group_records

if TYPE_CHECKING:
    from stentor.broker.background import Background
    from stentor.broker.catalogue import Catalogue
    from stentor.broker.cursors.heads import CursorHeads
    from stentor.broker.environment import Environment
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.partitions.serving import Serving

logger = logging.getLogger(__name__)

_GROUPS_LOOKED_AT = 1_000


class Lead:
    """One partition of the internal topic that this broker leads, in one epoch."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.replica.epoch
        self.groups = groups_of(partition)
        self.coordinators: dict[str, machine.GroupCoordinator] = {}
        self.waiting: dict[int, asyncio.Future[machine.AnswerBeat]] = {}  # heartbeats, by ticket
        self.room_at = 0.0  # when it is worth looking again for groups that make room for others
        self.said_at = float("-inf")  # when it was logged that a group has no room
        self.changed = asyncio.Event()  # set when a step is committed, and replaced

    @property
    def is_current(self) -> bool:
        replica = self.partition.replica
        return replica.epoch == self.epoch and replica.position.is_head and replica.active

    def tell(self) -> None:
        """Something was committed: whoever waits looks again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def end(self) -> None:
        """Another one leads, or will: whoever waits asks again."""
        self.tell()
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(NotReady("The head of the group changes.", hint="Try again in a moment."))


class GroupConnection:
    """The connection of a client, for as long as it is open, with the groups that it has spoken for."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.groups: set[str] = set()
        self.look_at = _GROUPS_LOOKED_AT  # so many groups are looked through for those that are gone


class GroupHeads:
    """The groups whose heads are at this broker."""

    def __init__(
        self,
        environment: Environment,
        catalogue: Catalogue,
        serving: Serving,
        heads: CursorHeads,
        background: Background,
    ) -> None:
        self._clock = environment.clock
        self._failures = environment.failures
        self._slices = environment.slices
        self._catalogue = catalogue
        self._serving = serving
        self._heads = heads
        self._background = background
        self._leads: dict[int, Lead] = {}
        self._tickets = 0
        self._ticking = False
        self._topics: dict[str, tuple[int, int]] = {}
        self._known = GroupTopics({})  # which of them patterns cover
        self._topics_at: object = None  # which change of the catalogue these are of

    # --- who leads ------------------------------------------------------------------------------

    def partition(self, group: str) -> Partition:
        """The partition of a group, if it is led here. NotHead if another broker leads it."""
        topic = self._catalogue.topics.get(CURSORS_TOPIC)
        if topic is None:
            raise NotReady(f"This broker has not heard of {CURSORS_TOPIC} yet.", hint="Try again in a moment.")
        index = partition_of(group, topic.record.settings.partitions)
        partition = self._serving.partition(topic.record.id, index)
        replica = partition.replica
        if not replica.position.is_head:
            raise refusals.not_head(next(iter(replica.position.brokers), ""), replica.epoch, replica.revision)
        if not replica.active:
            raise NotReady(f"{partition.name} is not at work yet.", hint="Try again in a moment.")
        return partition

    async def confirmed(self, group: str) -> Lead:
        """The same, confirmed by its whole chain."""
        partition = self.partition(group)
        await self._serving.find_end(partition, stale=False)
        return self._lead(self.partition(group))

    def led(self) -> list[Lead]:
        """All that are led here."""
        return [self._lead(partition) for partition in self._heads.led()]

    def _lead(self, partition: Partition) -> Lead:
        lead = self._leads.get(partition.index)
        if lead is not None and lead.partition is partition and lead.is_current:
            return lead
        if lead is not None:
            lead.end()
        lead = self._leads[partition.index] = Lead(partition)
        for name in lead.groups.names():
            group = lead.groups.get(name)
            if group is not None and group.members:
                self._begin(lead, name)
        return lead

    def _begin(self, lead: Lead, name: str) -> machine.GroupCoordinator:
        made = machine.GroupCoordinator(name, lead.groups, lead.epoch, self._clock.monotonic())
        lead.coordinators[name] = made
        self._look_at_topics()
        self._tick_soon(lead.partition.loop)
        self._try_step(lead, made, machine.TopicsAre(self._topics, self._known))
        return made

    # --- events ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Called by a timer: begin to coordinate the groups whose head this broker has become."""
        for index, lead in list(self._leads.items()):
            if not lead.is_current:
                lead.end()
                del self._leads[index]
        self.led()

    def _tick_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._ticking:
            self._ticking = True
            loop.call_later(group_limits.GROUP_TICK_S, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leases end, topics come and go. Only while there are groups here; whatever fails, the next tick comes."""
        self._failures.run("finding the groups that are led here", self.look)
        self._failures.run("looking at topics for groups", self._look_at_topics)
        groups = [(lead, name) for lead in self._leads.values() for name in lead.coordinators]
        ticks = (partial(self._look_at, lead, name) for lead, name in groups)
        self._slices.begin("looking at groups", ticks, partial(self._ticked, loop))

    def _ticked(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticking = False
        if any(lead.coordinators for lead in self._leads.values()):
            self._tick_soon(loop)

    def _look_at(self, lead: Lead, name: str) -> None:
        coordinator = lead.coordinators.get(name)
        if coordinator is None:
            return
        if coordinator.topics is not self._topics:
            self._try_step(lead, coordinator, machine.TopicsAre(self._topics, self._known))
        self._try_step(lead, coordinator, machine.GroupTick())
        if coordinator.idle:
            lead.coordinators.pop(name, None)

    def _look_at_topics(self) -> None:
        if self._catalogue.changes == self._topics_at:
            return
        self._topics_at = self._catalogue.changes
        topics = {
            name: (topic.record.id, topic.record.settings.partitions) for name, topic in self._catalogue.topics.items()
        }
        if topics != self._topics:
            self._topics, self._known = topics, GroupTopics(topics, self._known)

    async def learn(self, patterns: list[str]) -> None:
        """Find out what patterns cover, in slices: then a group that they come to need not (C35)."""
        self._look_at_topics()
        known = self._known
        unknown = [pattern for pattern in patterns if not known.knows(pattern)]
        if unknown:
            learnt = asyncio.Event()
            comparing = (partial(known.learn, pattern) for pattern in unknown)
            self._slices.begin("comparing patterns of groups with topics", comparing, learnt.set)
            await learnt.wait()

    def broke(self, connection: GroupConnection) -> None:
        """A client closed its connection: its groups hear of it, which may be very many, in slices (C35)."""
        event = machine.ConnectionBroke(connection.number)
        hearing = (partial(self._hear, name, event) for name in list(connection.groups))
        self._slices.begin("telling groups of a connection that was closed", hearing)

    def _hear(self, name: str, event: machine.ConnectionBroke) -> None:
        for lead in list(self._leads.values()):
            coordinator = lead.coordinators.get(name)
            if coordinator is not None:
                self._try_step(lead, coordinator, event)

    def _spoke(self, connection: GroupConnection, group: str) -> None:
        """Remember whom a connection speaks for; what it named long ago may have nobody to care for any more."""
        connection.groups.add(group)
        if len(connection.groups) >= connection.look_at:
            connection.look_at = 2 * len(connection.groups)
            names = list(connection.groups)
            looking = (partial(self._forget_idle, connection, name) for name in names)
            self._slices.begin("forgetting groups of a connection", looking)

    def _forget_idle(self, connection: GroupConnection, name: str) -> None:
        if not any(name in lead.coordinators for lead in self._leads.values()):
            connection.groups.discard(name)

    async def beat(
        self, group: str, beat: machine.MemberBeat, connection: GroupConnection
    ) -> tuple[Lead, machine.AnswerBeat]:
        """A member's heartbeat, until it is answered."""
        lead = await self.confirmed(group)
        coordinator = lead.coordinators.get(group) or self._begin(lead, group)
        if coordinator.topics is not self._topics:  # whether there is room depends on them
            self._try_step(lead, coordinator, machine.TopicsAre(self._topics, self._known))
        self._tickets += 1
        ticket = self._tickets
        answer = lead.waiting[ticket] = lead.partition.loop.create_future()
        self._spoke(connection, group)
        self._step(lead, coordinator, machine.MemberHeard(beat, ticket, connection.number))
        try:
            async with asyncio.timeout(group_limits.GROUP_BEAT_S):
                return lead, await answer
        except TimeoutError:
            raise NotReady(f"Group {group} waits for its chain.", hint="Try again in a moment.") from None
        finally:
            del lead.waiting[ticket]

    async def leave(self, group: str, member: str, shown: bytes) -> None:
        """A member leaves, until that is written down. StaleGeneration if another client is that member."""
        lead = await self.confirmed(group)
        coordinator = lead.coordinators.get(group)
        if coordinator is None:
            return
        if not coordinator.may_speak(member, shown):
            raise foreign(group)
        self._step(lead, coordinator, machine.MemberLeft(member, shown))
        with suppress(TimeoutError):  # it will be written down, or its lease ends
            async with asyncio.timeout(limits.CURSOR_MOVE_S):
                while member in coordinator.group.members and lead.is_current:
                    await lead.changed.wait()

    # --- effects --------------------------------------------------------------------------------

    def _step(self, lead: Lead, coordinator: machine.GroupCoordinator, event: machine.GroupEvent) -> None:
        if not lead.is_current:
            return
        for effect in coordinator.step(event, self._clock.monotonic()):
            if isinstance(effect, machine.AppendStep):
                self._append(lead, coordinator, effect.step)
                continue
            waiting = lead.waiting.get(effect.ticket)
            if waiting is None or waiting.done():
                continue
            if isinstance(effect, machine.AnswerBeat):
                waiting.set_result(effect)
            elif effect.why == "room" and self._make_room(lead) and _asked(event, effect.ticket):
                self._step(lead, coordinator, event)
            else:
                waiting.set_exception(_refusal(coordinator.name, effect.why, lead.partition.name))
        self._say_short(lead, coordinator)

    def _try_step(self, lead: Lead, coordinator: machine.GroupCoordinator, event: machine.GroupEvent) -> None:
        """Do the same for one group of many: what goes wrong with it is not the others' concern."""
        self._failures.run(f"group {coordinator.name}", self._step, lead, coordinator, event)

    def _append(self, lead: Lead, coordinator: machine.GroupCoordinator, step: GroupStep) -> None:
        outcome = self._failures.run(f"writing down a step of group {step.name}", self.publish, lead.partition, step)
        if outcome is not None:
            self._background.spawn(self._until_committed(lead, coordinator, outcome))

    def _make_room(self, lead: Lead) -> bool:
        """Let groups that nobody is in make room for others: those that committed nothing are forgotten, others keep no
        room for partitions after a while. Positions stay. Return whether any did.
        """
        now = self._clock.monotonic()
        if now < lead.room_at:
            return False
        lead.room_at = now + group_limits.GROUP_ROOM_LOOK_S
        transactions = next(state for state in lead.partition.replica.states if isinstance(state, Transactions))
        needed = cursors_of(lead.partition).names() | transactions.busy()
        kept_us = self._clock.now_us() - int(group_limits.GROUP_ROOM_KEPT_S * 1_000_000)
        made = 0
        for name, group in lead.groups.deserted():
            generation = (lead.epoch, group.generation[1] + 1)
            if name not in needed:
                step = GroupStep(name, generation, deleted=True)
            elif group.room and group.changed_at_us <= kept_us:
                step = GroupStep(name, generation, room=0)
            else:
                continue
            outcome = self._failures.run(f"making room of group {name}", self.publish, lead.partition, step)
            if outcome is not None:
                outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
                made += 1
            if made >= group_limits.GROUP_ROOM_STEPS_MAX:
                break
        return made > 0

    def _say_short(self, lead: Lead, coordinator: machine.GroupCoordinator) -> None:
        now = self._clock.monotonic()
        if coordinator.short and now >= lead.said_at + group_limits.GROUP_SHORT_SAID_S:
            lead.said_at = now
            logger.error(
                "nobody owns %d partitions of group %s: groups of %s claim all of %d groups and partitions,"
                " or the group's clients their share; delete groups that nobody needs",
                coordinator.short,
                coordinator.name,
                lead.partition.name,
                group_limits.GROUP_SIZE_MAX,
            )

    def publish(self, partition: Partition, step: GroupStep) -> asyncio.Future[None]:
        """Append a step; the outcome is known once it is committed."""
        now_us = self._clock.now_us()
        topic_id, index = partition.key
        step = msgspec.structs.replace(step, at_us=now_us)
        return publish_record(partition, group_records.encode(step, now_us, topic_id=topic_id, partition=index))

    async def _until_committed(
        self, lead: Lead, coordinator: machine.GroupCoordinator, outcome: asyncio.Future[None]
    ) -> None:
        try:
            async with asyncio.timeout(limits.CURSOR_MOVE_S):
                await outcome
        except (StentorError, TimeoutError) as error:
            logger.info("a step of group %s was not committed: %s", coordinator.name, error)
            return  # the next tick looks again
        self._step(lead, coordinator, machine.StepCommitted())
        lead.tell()


def _asked(event: machine.GroupEvent, ticket: int) -> bool:
    """Return whether an event is the heartbeat that an answer is for."""
    return isinstance(event, machine.MemberHeard) and event.ticket == ticket


def groups_of(partition: Partition) -> Groups:
    """The groups that are derived from a partition's log."""
    return next(state for state in partition.replica.states if isinstance(state, Groups))


def foreign(group: str) -> StaleGeneration:
    """Return the refusal of a caller who speaks for a member that another client is (C36)."""
    return StaleGeneration(
        f"Another client is this member of group {group}.",
        hint="Only the client that joined as a member can act for it. Join the group to get partitions of your own.",
        object=group,
    )


def _refusal(group: str, why: str, partition: str) -> StentorError:
    if why == "foreign":
        return foreign(group)
    if why == "replaced":
        return MemberReplaced(
            f"Another process joined group {group} under the same instance name.",
            hint="Give every process an instance name of its own.",
            object=group,
        )
    if why == "full":
        return LimitExceeded(
            f"Group {group} has {group_limits.GROUP_MEMBERS_MAX} members; that is the limit.", object=group
        )
    if why == "crowded":
        return LimitExceeded(
            f"Group {group} can have {group_limits.GROUP_MEMBERS_MAX} members, and this client has its share of them.",
            hint="A client with fewer members finds room. Let this one have more partitions in each member.",
            object=group,
        )
    if why == "room":
        return LimitExceeded(
            f"{partition} has no room for group {group} with this member: groups there may claim"
            f" {group_limits.GROUP_SIZE_MAX} partitions, and one client its share of what is left.",
            hint="Delete groups that nobody needs (`stentor group delete`), or read fewer partitions.",
            object=group,
        )
    if why == "overtaken":
        return NotReady("A later heartbeat of this member came before this one.", hint="Nothing more is needed.")
    return StaleGeneration(
        f"This process is not a member of group {group} any more: it was silent for too long.",
        hint="It joins again by itself; what it has not committed is handed out again.",
        object=group,
    )
