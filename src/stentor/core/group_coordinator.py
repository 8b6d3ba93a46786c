"""The coordinator of a group: which member owns which partition, decided by the head of the group's partition.

`GroupCoordinator` is the part that is not in the log: who was heard when, who should own what, who waits for an answer.
What it decides becomes a `GroupStep` (`core.groups`); a member hears of it once that is committed (C22). A new head
begins a new coordinator from the log alone, and all leases begin in full (C21).

    member ── MemberHeard ──► coordinator ── AppendStep ──► log ── StepCommitted ──► coordinator ── AnswerBeat ──►

How a partition changes hands. The *target* says who should own it. While its owner is another one, the owner's answers
do not list it any more: it is asked back. The owner finishes, commits, and says in its next heartbeat that it does not
hold it. Only then, or when the owner is gone and that is written down, a step makes the target the owner.

When "does not hold it" means "has let go": an answer may be on its way that lists the partition, and the member would
begin with it. Answers are numbered; a member says the last one that it has *seen*. It has let go once it does not hold
the partition, and has seen an answer of this coordinator that is as new as the last one that listed it. A member takes
only the answer to the heartbeat that it sent last, so an older answer is never taken after a newer one.

Leases. A member is gone after its own limit of silence. One whose connection was closed from its side is gone after
GROUP_GRACE_S: a process that is killed closes its connections, one that is only busy or paused does not. A member ends
its own lease by the same rules, from the moment it sent its heartbeat or lost its link, which is never later than what
happens here. Static members are given the whole limit after a broken connection, unless another process came under
their name.

That a connection was closed is written down, so that a new head gives its member no more than GROUP_GRACE_S either. A
member that is heard again is answered once this, too, is written down: else a new head would not know that its lease
began anew.

Room (S7). Whoever joins or reads more is refused if its client has its share of members, of this group or of all, or if
the clients of the group have their shares of what groups claim (`core.groups`). Nobody loses anything by that. When
topics grow and there is no room, their new partitions are owned by nobody until there is (`short`).

Rights. A member belongs to the client that joined (C36). Whoever shows another secret is refused before anything that
it says counts: it renews no lease, takes no number, and leaves for nobody.

Invariants: no partition is given away while its owner is a member that may hold it. Nothing is answered that is not
committed. One step of a group is under way at a time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec

from stentor.core import group_limits
from stentor.core.assignment import assign
from stentor.core.group_topics import GroupTopics
from stentor.core.groups import EMPTY, GroupMember, GroupStep, HeldGroup, share
from stentor.core.holders import NOBODY, may_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stentor.core.groups import Generation, Groups
    from stentor.core.records import Key

NOTHING_SEEN: Final = (0, 0)

# --- events -------------------------------------------------------------------------------------


class HeldPartitions:
    """The partitions that a member says it reads.

    Their numbers are whatever the member likes. Numbers can be chosen so that pairs of them have the same hash, and a
    set of such pairs takes a second to build. So none is built: topics and partitions are looked up by one number each,
    of which no more than a few share a hash, and only those that are asked for.
    """

    __slots__ = ("_indexes", "_topics")

    def __init__(self, topics: Mapping[int, Sequence[int]]) -> None:
        self._topics = topics
        self._indexes: dict[int, frozenset[int]] = {}

    def __contains__(self, key: object) -> bool:
        topic_id, index = cast("Key", key)
        indexes = self._indexes.get(topic_id)
        if indexes is None:
            indexes = self._indexes[topic_id] = frozenset(self._topics.get(topic_id, ()))
        return index in indexes

    def __bool__(self) -> bool:
        return any(self._topics.values())


class MemberBeat(msgspec.Struct, frozen=True, gc=False):
    """What a member says with each heartbeat."""

    member: str
    about: GroupMember
    number: int  # each has a higher one: what was overtaken on its way counts no more
    seen: tuple[int, int] = NOTHING_SEEN  # the last answer that it took: epoch and number
    holding: HeldPartitions | frozenset[Key] = frozenset()  # partitions that it reads
    shown: bytes = NOBODY  # the hash of the secret that its client showed (C36)
    binds: bool = True  # the cluster's feature level is HOLDERS: what came with it may be written (C27)


class MemberHeard(msgspec.Struct, frozen=True):
    """A heartbeat came."""

    beat: MemberBeat
    ticket: int  # the answer goes there
    connection: int


class ConnectionBroke(msgspec.Struct, frozen=True):
    """A connection was closed from the other side."""

    connection: int


class MemberLeft(msgspec.Struct, frozen=True):
    """A member says that it leaves; it holds nothing any more."""

    member: str
    shown: bytes = NOBODY  # the hash of the secret that its client showed (C36)


class TopicsAre(msgspec.Struct, frozen=True):
    """The topics there are: id and number of partitions, by name."""

    topics: dict[str, tuple[int, int]]
    known: GroupTopics | None = None  # the same, with what is known of patterns


class StepCommitted(msgspec.Struct, frozen=True):
    """A step was committed, or given up."""


class GroupTick(msgspec.Struct, frozen=True):
    """Time has passed."""


GroupEvent = MemberHeard | ConnectionBroke | MemberLeft | TopicsAre | StepCommitted | GroupTick

# --- effects ------------------------------------------------------------------------------------


class AppendStep(msgspec.Struct, frozen=True):
    """Append this step; `Committed` when it is."""

    step: GroupStep


class AnswerBeat(msgspec.Struct, frozen=True):
    """Answer a heartbeat."""

    ticket: int
    generation: Generation
    number: tuple[int, int]  # of this answer
    partitions: dict[Key, Generation] | None  # what the member owns, and since when; None: as in the answer it has seen


class RefuseBeat(msgspec.Struct, frozen=True):
    """Refuse a heartbeat."""

    ticket: int
    why: Literal["unknown", "replaced", "full", "crowded", "room", "overtaken", "foreign"]


GroupEffect = AppendStep | AnswerBeat | RefuseBeat

# --- the machine --------------------------------------------------------------------------------


class _Contact:
    """What is known of a member that is not in the log."""

    __slots__ = ("beat", "connection", "heard_at", "listed", "lost_at", "number", "ticket", "ticket_at", "told")

    def __init__(self, now: float) -> None:
        self.heard_at = now  # a new coordinator counts from its own beginning (C21)
        self.lost_at: float | None = None  # its connection was closed from its side
        self.connection = 0
        self.beat: MemberBeat | None = None  # the last one; none since this coordinator began
        self.ticket: int | None = None  # a heartbeat that waits for its answer
        self.ticket_at = 0.0
        self.number = 0  # of the last answer
        self.told: dict[Key, Generation] | None = None  # what that answer listed
        self.listed: dict[Key, int] = {}  # the last answer that listed each partition


class _Compared:
    """Who owns what, beside who should."""

    def __init__(self, group: HeldGroup, target: dict[Key, str]) -> None:
        self.group = group
        self.target = target
        self.settled: dict[str, dict[Key, Generation]] = {}  # by member: what it owns and should own, and since when
        for key, owner in group.owners.items():
            if target.get(key) == owner.member:
                self.settled.setdefault(owner.member, {})[key] = owner.since
        owners = group.owners
        self.unsettled = sorted(
            key for key in target.keys() | owners.keys() if key not in owners or target.get(key) != owners[key].member
        )


class GroupCoordinator:
    """One group, at the head of its partition."""

    def __init__(self, name: str, groups: Groups, epoch: int, now: float) -> None:
        self.name = name
        self._groups = groups
        self._epoch = epoch
        self.topics: dict[str, tuple[int, int]] = {}
        self._ticked_at = now
        self._contacts = {member: _Contact(now) for member in self.group.members}
        for member in self.group.lost:
            self._contacts[member].lost_at = now
        self._arrivals: dict[str, GroupMember] = {}  # joined or changed, and not committed yet
        self._leaving: set[str] = set()
        self._replaced: OrderedDict[str, None] = OrderedDict()  # members that gave way to another process of their name
        self._target: dict[Key, str] = {}
        self._target_for: object = None  # what the target was made for
        self._known = GroupTopics({})  # which topics patterns cover
        self._comparison: _Compared | None = None
        # Whether the cluster's feature level is HOLDERS: clients are known, and room is kept (C27).
        self._binds = any(about.holder for about in self.group.members.values())
        self.short = 0  # partitions that nobody can own, because there is no room

    @property
    def group(self) -> HeldGroup:
        """As it is committed."""
        return self._groups.get(self.name) or EMPTY

    @property
    def idle(self) -> bool:
        """Whether there is nobody to care for."""
        return not self._contacts and not self._arrivals and not self.group.members

    def step(self, event: GroupEvent, now: float) -> list[GroupEffect]:
        """What to do after an event."""
        effects: list[GroupEffect] = []
        if isinstance(event, MemberHeard):
            effects += self._heard(event, now)
        elif isinstance(event, ConnectionBroke):
            self._broke(event.connection, now)
        elif isinstance(event, MemberLeft):
            if self.may_speak(event.member, event.shown):
                self._leaving.add(event.member)  # it may be about to become a member
                self._arrivals.pop(event.member, None)
        elif isinstance(event, TopicsAre):
            self.topics = event.topics
            self._known = event.known or GroupTopics(event.topics, self._known)
        elif isinstance(event, GroupTick):
            self._excuse(now)
        if self._groups.is_settled(self.name):
            effects += self._decide(now)
            effects += self._answer(now)
        return effects

    # --- hearing --------------------------------------------------------------------------------

    def may_speak(self, member: str, shown: bytes) -> bool:
        """Return whether a caller who showed this hash may speak for a member, or become one of this id (C36)."""
        known = self._about(member)
        return known is None or may_use(known.holder, shown)

    def _about(self, member: str) -> GroupMember | None:
        return self._arrivals.get(member) or self.group.members.get(member)

    def _heard(self, event: MemberHeard, now: float) -> list[GroupEffect]:
        beat, group = event.beat, self.group
        if not self.may_speak(beat.member, beat.shown):
            return [RefuseBeat(event.ticket, "foreign")]
        contact = self._contacts.get(beat.member)
        if self._gave_way(beat.member, group):
            if contact is not None:
                contact.heard_at, contact.connection, contact.lost_at = now, event.connection, None
            return [RefuseBeat(event.ticket, "replaced")]
        if (why := self._turned_away(beat, group)) is not None:
            return [RefuseBeat(event.ticket, why)]
        if contact is None:  # it is new; or its joining, under the head before this one, was committed just now
            contact = self._contacts[beat.member] = _Contact(now)
        if contact.beat is not None and beat.number <= contact.beat.number:
            return [RefuseBeat(event.ticket, "overtaken")]
        about, known = beat.about, self._about(beat.member)
        if known is not None and known.holder:
            about = msgspec.structs.replace(about, holder=known.holder)  # what is bound stays bound
        if group.members.get(beat.member) != about:
            self._arrivals[beat.member] = about
        effects: list[GroupEffect] = []
        if contact.ticket is not None:
            effects.append(RefuseBeat(contact.ticket, "overtaken"))
        contact.heard_at, contact.lost_at, contact.connection = now, None, event.connection
        self._binds |= beat.binds
        contact.beat, contact.ticket, contact.ticket_at = beat, event.ticket, now
        return effects

    def _gave_way(self, member: str, group: HeldGroup) -> bool:
        """Whether another process joined under a member's name; remembered when the member is long gone."""
        if member not in self._replaced and member not in self._superseded(group, self._arrivals):
            return False
        self._replaced[member] = None
        if len(self._replaced) > group_limits.GROUP_MEMBERS_MAX:
            self._replaced.popitem(last=False)
        return True

    def _turned_away(self, beat: MemberBeat, group: HeldGroup) -> Literal["unknown", "full", "crowded"] | None:
        """Why somebody who is no member cannot become one: it believes that it is one, or there are enough."""
        if beat.member in group.members or beat.member in self._arrivals:
            return None
        if beat.seen != NOTHING_SEEN or beat.holding or beat.member in self._leaving:
            return "unknown"
        all_of_it = group.members | self._arrivals
        free = group_limits.GROUP_MEMBERS_MAX - len(all_of_it) - 1
        if free < 0:
            return "full"
        mine = sum(about.holder == beat.about.holder for about in all_of_it.values())
        return "crowded" if beat.binds and mine and mine + 1 > share(free, group_limits.GROUP_MEMBERS_MAX) else None

    def _broke(self, connection: int, now: float) -> None:
        for contact in self._contacts.values():
            if contact.connection == connection and contact.lost_at is None:
                contact.lost_at, contact.ticket = now, None

    def _excuse(self, now: float) -> None:
        """While this broker stood still, nobody could be heard (C15)."""
        stood_still = now - self._ticked_at - group_limits.GROUP_TICK_S
        self._ticked_at = now
        if stood_still > group_limits.GROUP_TICK_S:
            for contact in self._contacts.values():
                contact.heard_at = min(now, contact.heard_at + stood_still)
                if contact.lost_at is not None:
                    contact.lost_at = min(now, contact.lost_at + stood_still)

    def _superseded(self, group: HeldGroup, joining: Mapping[str, GroupMember]) -> dict[str, str]:
        """Static members whose name another process has joined under, and that process. The later one counts."""
        last: dict[str, str] = {}
        for member, about in (group.members | dict(joining)).items():
            if about.instance:
                last[about.instance] = member
        return {
            member: last[about.instance]
            for member, about in group.members.items()
            if about.instance and last[about.instance] != member
        }

    def ends_at(self, member: str, about: GroupMember, *, superseded: bool = False) -> float:
        """When the lease of a member ends, unless it is heard before."""
        contact = self._contacts[member]
        end = contact.heard_at + about.silence_ms / 1000
        if contact.lost_at is not None and (superseded or not about.instance):
            end = min(end, contact.lost_at + group_limits.GROUP_GRACE_S)
        return end

    # --- deciding -------------------------------------------------------------------------------

    def _decide(self, now: float) -> list[GroupEffect]:
        """The next step, if there is one."""
        group = self.group
        self._arrivals = {
            member: about
            for member, about in self._arrivals.items()
            if group.members.get(member) != about and self._contacts[member].lost_at is None
        }
        self._leaving &= group.members.keys()
        effects, joining = self._admit(group)
        superseded = self._superseded(group, joining)
        for member in group.members.keys() - self._contacts.keys():
            self._contacts[member] = _Contact(now)
        left = [
            member
            for member, about in group.members.items()
            if member in self._leaving or now >= self.ends_at(member, about, superseded=member in superseded)
        ]
        gone = set(left)
        joined = {member: about for member, about in joining.items() if member not in gone}
        members = {member: about for member, about in (group.members | joined).items() if member not in gone}
        lost = {
            member
            for member, about in group.members.items()
            if not about.instance and member not in gone and self._contacts[member].lost_at is not None
        }
        self._aim(group, members, superseded)
        room = self._room(group, members)
        owners = self._handed_over(group, gone)
        if not (joined or left or owners or lost != group.lost - gone or room is not None):
            return effects
        step = GroupStep(
            self.name,
            (self._epoch, group.generation[1] + 1),
            joined=joined,
            left=left,
            owners=owners,
            lost=sorted(lost - group.lost),
            found=sorted(group.lost - lost - gone),
            born=dict(self._counts(members)) if group.generation == EMPTY.generation else {},
            room=room,
        )
        return [*effects, AppendStep(step)]

    def _admit(self, group: HeldGroup) -> tuple[list[GroupEffect], dict[str, GroupMember]]:
        """Return refusals of those for whom there is no room, and who joins or changes with the next step."""
        effects: list[GroupEffect] = []
        joining: dict[str, GroupMember] = {}
        count: Counter[bytes] = Counter()  # of those that are new, by client
        members = dict(group.members)
        read = {each for about in members.values() for each in about.topics}
        for member, about in list(islice(self._arrivals.items(), group_limits.GROUP_STEP_MEMBERS_MAX)):
            new = member not in group.members
            shared = self._contacts[member].beat.binds  # type: ignore[union-attr]  # whoever arrives has said something
            fits = not new or self._groups.has_room_for_member(about.holder, count[about.holder] + 1, shared=shared)
            if fits and (group is EMPTY or not read.issuperset(about.topics)):
                counts = self._counts(members | {member: about})
                partitions, topics = sum(counts.values()), len(counts)
                fits = self._fits(group, members | {member: about}, partitions, topics, shared=shared)
            if fits:
                joining[member] = members[member] = about
                read.update(about.topics)
                count[about.holder] += new
                continue
            del self._arrivals[member]
            contact = self._contacts[member]
            if contact.ticket is not None:
                effects.append(RefuseBeat(contact.ticket, "room"))
                contact.ticket = None
        return effects, joining

    def _fits(
        self, group: HeldGroup, members: dict[str, GroupMember], partitions: int, topics: int, *, shared: bool
    ) -> bool:
        """Return whether there is room for the group with these members and partitions."""
        claim = group.claim_of(partitions) + (topics if group.generation == EMPTY.generation else 0)
        return self._groups.has_room_for_claim(self.name, claim, members, shared=shared)

    def _room(self, group: HeldGroup, members: dict[str, GroupMember]) -> int | None:
        """Return for how many partitions the group has room from now on, if that changes."""
        self.short = 0
        if not members:
            return None
        wanted, held = len(self._target), max(len(group.owners), group.room)
        topics = len(self._counts(members)) if group.generation == EMPTY.generation else 0
        if wanted > held and not self._fits(group, members, wanted, topics, shared=self._binds):
            self.short = wanted - held
            wanted = held
        return wanted if self._binds and wanted != group.room else None

    def _counts(self, members: Mapping[str, GroupMember]) -> dict[int, int]:
        """The topics that anybody reads, with their partitions."""
        read = set(
            self._known.names(self._known.covered({each for about in members.values() for each in about.topics}))
        )
        return {topic_id: partitions for name, (topic_id, partitions) in self.topics.items() if name in read}

    def _aim(self, group: HeldGroup, members: dict[str, GroupMember], superseded: Mapping[str, str]) -> None:
        """Who should own what. Made anew only when members or topics have changed: what changes hands does so by it."""
        made_for = (self.topics, list(members.items()))
        if made_for == self._target_for:
            return
        self._target_for = made_for
        eligible = {member: about for member, about in members.items() if member not in superseded}
        now = {key: superseded.get(owner.member, owner.member) for key, owner in group.owners.items()}
        for key, member in self._target.items():
            if member in eligible and now.get(key) != member:
                now[key] = member  # it is on its way there: let it go on
        zones = {member: about.zone for member, about in eligible.items() if about.zone}
        self._target = assign(self._counts(eligible), self._readers(eligible), now, zones)

    def _readers(self, members: Mapping[str, GroupMember]) -> dict[int, list[str]]:
        """Who reads each topic. Topics that the same lists of patterns cover share one list of members."""
        by_patterns: dict[tuple[str, ...], list[str]] = {}
        for member, about in members.items():
            by_patterns.setdefault(tuple(about.topics), []).append(member)
        covered: dict[str, int] = {}  # lists that cover a topic, as bits
        for number, patterns in enumerate(by_patterns):
            for name in self._known.names(self._known.covered(patterns)):
                covered[name] = covered.get(name, 0) | 1 << number
        said = list(by_patterns.values())
        shared = {
            lists: [member for number, some in enumerate(said) if lists >> number & 1 for member in some]
            for lists in {*covered.values()}
        }
        return {self.topics[name][0]: shared[lists] for name, lists in covered.items()}

    def _handed_over(self, group: HeldGroup, left: set[str]) -> list[tuple[int, int, str]]:
        """Partitions that are free for their target, or for nobody; as many as a step may have."""
        changed: list[tuple[int, int, str]] = []
        if left:
            keys: Iterable[Key] = sorted(self._target.keys() | group.owners.keys())
        else:
            keys = self._compared(group).unsettled
        free = len(self._target) - self.short - sum(owner.member not in left for owner in group.owners.values())
        for key in keys:
            if len(changed) >= group_limits.GROUP_STEP_PARTITIONS_MAX:
                break
            owner, wanted = group.owners.get(key), self._target.get(key, "")
            if owner is None or owner.member in left:
                if wanted and (free > 0 or not self.short):
                    changed.append((*key, wanted))
                    free -= 1
            elif owner.member != wanted and self._has_let_go(owner.member, key):
                changed.append((*key, wanted))
        return changed

    def _compared(self, group: HeldGroup) -> _Compared:
        """The owners and the target: compared once for each pair of them, since members ask many times a second."""
        known = self._comparison
        if known is None or known.group is not group or known.target is not self._target:
            known = self._comparison = _Compared(group, self._target)
        return known

    def _has_let_go(self, member: str, key: Key) -> bool:
        contact = self._contacts[member]
        beat = contact.beat
        if beat is None or beat.seen[0] != self._epoch or key in beat.holding:
            return False
        return beat.seen[1] >= max(1, contact.listed.get(key, 0))

    # --- answering ------------------------------------------------------------------------------

    def _answer(self, now: float) -> list[GroupEffect]:
        """Heartbeats that wait: at once if there is news for the member, else after a while."""
        effects: list[GroupEffect] = []
        group = self.group
        for member, contact in list(self._contacts.items()):
            if member not in group.members:
                if member not in self._arrivals:
                    del self._contacts[member]
                    if contact.ticket is not None:
                        effects.append(RefuseBeat(contact.ticket, "unknown"))
                continue
            if contact.ticket is None or contact.beat is None or member in group.lost:
                continue
            owned = self._compared(group).settled.get(member, {})
            number = (self._epoch, contact.number)
            if owned == contact.told and contact.beat.seen == number:
                if now - contact.ticket_at < group_limits.GROUP_POLL_S:
                    continue
                effects.append(AnswerBeat(contact.ticket, group.generation, number, None))
            else:
                contact.number += 1
                contact.told = owned
                contact.listed |= dict.fromkeys(owned, contact.number)
                number = (self._epoch, contact.number)
                effects.append(AnswerBeat(contact.ticket, group.generation, number, dict(owned)))
            contact.ticket = None
        return effects

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        assert all(
            number <= contact.number for contact in self._contacts.values() for number in contact.listed.values()
        )
