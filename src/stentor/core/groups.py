"""Consumer groups: who is in one, and who owns which partition, as the log says.

A group's members share the partitions of its topics. The head of the partition of the internal topic that the group's
name chooses decides (`core.group_coordinator`), and writes every decision down as a `GroupStep`. Groups are state that
is derived from that log (`core.derived`), beside the cursors (`core.cursors`) that are the groups' positions.

    generation   (epoch of the internal partition, counter): every step of a group has its own, higher than all before
    since        the generation whose step made a member the owner of a partition

A commit names member and `since` of each partition. The head compares them with the applied view when it appends the
commit, so what an earlier owner says is refused from the very step on that gave its partition away (C22).

A member is bound to the secret of the client that joined (C36, `core.holders`): its id, which others can read, is not
enough to commit for it, to leave for it or to say a heartbeat of it.

Room (S7). All groups of one partition share two things: room for members, and room for what groups *claim*:
themselves, the partitions that their members want, and the topics that they remember. A group has its claim before its
partitions are handed out, and keeps it while nobody is in it: whoever returns finds the room that was there. What a
group claims counts for the clients of its members in equal parts; when it has none, for the client of an earlier one.
A client gets more only within its share of what is left (`share`): so whoever comes later finds room beside one with
much, and even beside one that came many times, as another client each time.

Invariants: every owner is a member, in both views (`core.folded`). A member's holder, once known, does not change.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.core import group_limits
from stentor.core.folded import Folded, read_snapshot
from stentor.core.holders import NOBODY, may_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stentor.core.records import Key

_VERSION: Final = 1

Generation = tuple[int, int]
"""Epoch of the internal partition, and counter: (3, 17)."""


# There may be ten thousand groups, and Python's collector stops the loop while it walks over them (C35). What a group
# consists of refers to nothing that refers to it, so the collector need not know it, nor the dictionaries of it.
class GroupMember(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A member of a group."""

    topics: list[str]  # names and patterns that it reads
    name: str = ""  # of its client, for people
    instance: str = ""  # of a static member: who comes back under it gets the same partitions
    zone: str = ""  # where it runs
    silence_ms: int = 0  # after this much silence it counts as gone
    holder: bytes = NOBODY  # the hash of its client's secret: who shows another one is not this member (C36)


class GroupStep(msgspec.Struct, frozen=True, tag="group", tag_field="type", omit_defaults=True):
    """A group changes: members come and go, partitions change hands."""

    name: str
    generation: Generation
    joined: dict[str, GroupMember] = {}  # by id; one that is known has changed
    left: list[str] = []  # ids; what they owned is nobody's
    owners: list[tuple[int, int, str]] = []  # topic id, partition, member; an empty one: nobody
    born: dict[int, int] = {}  # the first step: how many partitions each topic had, by id
    lost: list[str] = []  # ids of members whose connections were closed
    found: list[str] = []  # ids of members that were lost, and are heard again
    deleted: bool = False  # the group is gone
    at_us: int = 0  # when, by the clock of the head that took it
    room: int | None = None  # for how many partitions the group has room from now on; None: as before


class PartitionOwner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who owns a partition."""

    member: str
    since: Generation


class HeldGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group, as of a step."""

    generation: Generation
    members: dict[str, GroupMember]
    owners: dict[Key, PartitionOwner]
    born: dict[int, int]
    changed_at_us: int = 0
    lost: frozenset[str] = frozenset()  # members whose connections were closed, and that were not heard since
    room: int = 0  # partitions that it has room for, whoever owns them
    keeper: bytes = NOBODY  # whose client its claim counts for while it has no members

    @property
    def claim(self) -> int:
        """What memory and snapshots grow with, beside members."""
        return self.claim_of(self.room)

    def claim_of(self, partitions: int) -> int:
        """Return what it would claim with room for this many partitions."""
        return 1 + len(self.born) + max(len(self.owners), partitions)


EMPTY: Final = HeldGroup((0, 0), {}, {}, {})
"""A group that nobody has joined yet."""


class _Row(msgspec.Struct, array_like=True):
    name: str
    generation: Generation
    members: dict[str, GroupMember]
    owners: list[tuple[int, int, str, Generation]]
    born: dict[int, int]
    changed_at_us: int
    lost: list[str] = []
    room: int = 0
    keeper: bytes = NOBODY


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    groups: list[_Row]


_decoder = msgspec.msgpack.Decoder(_Snapshot)  # made here, under the import lock: logs are opened in several threads

_View = dict[str, HeldGroup]


def share(free: int, most: int) -> int:
    """Return how much one client may have of something of which this much is left: when k clients have taken all that
    they may, about the k-th part is left. Were it half of what is left, nothing would be after fourteen clients.
    """
    return free * free // most if free > 0 else 0


class _Room:
    """How much of something is used, in all and by each client."""

    def __init__(self) -> None:
        self.total = 0
        self._used: Counter[bytes] = Counter()

    def change(self, before: Mapping[bytes, int], after: Mapping[bytes, int]) -> None:
        for holder in before.keys() | after.keys():
            more = after.get(holder, 0) - before.get(holder, 0)
            self.total += more
            self._used[holder] += more
            if not self._used[holder]:
                del self._used[holder]

    def has(self, before: Mapping[bytes, int], after: Mapping[bytes, int], most: int, *, shared: bool) -> bool:
        """Return whether there is room for what some clients would have, each that gets more within its share if that
        counts.
        """
        free = most - self.total - sum(after.values()) + sum(before.values())
        if free < 0 or not shared:
            return free >= 0
        more = {holder: count - before.get(holder, 0) for holder, count in after.items()}
        return all(self._used[holder] + count <= share(free, most) for holder, count in more.items() if count > 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Room) and (self.total, self._used) == (other.total, other._used)

    __hash__ = None  # type: ignore[assignment]


class Groups(Folded[GroupStep, str, HeldGroup]):
    """The groups of one partition of the internal topic: a `core.derived.DerivedState`."""

    name = "groups"
    vital: Final = True  # two members would own one partition by what is missing
    came_later: Final = True  # snapshots of before there were groups lack them

    def __init__(self, read: Callable[[bytes | memoryview], Iterable[GroupStep]]) -> None:
        super().__init__(read)
        self._claims, self._members = _Room(), _Room()  # of the applied view

    @staticmethod
    def fold(view: _View, step: GroupStep) -> None:
        """A view after one more step."""
        after = _after(view.get(step.name), step)
        if after is None:
            view.pop(step.name, None)
        else:
            view[step.name] = after

    # --- questions ------------------------------------------------------------------------------

    def get(self, name: str) -> HeldGroup | None:
        """A group, as it is committed."""
        return self._committed.get(name)

    def names(self) -> list[str]:
        """All groups, as they are committed."""
        return sorted(self._committed)

    def unordered(self) -> list[str]:
        """Return the names of all groups, as they are committed, in no order."""
        return list(self._committed)

    def is_settled(self, name: str) -> bool:
        """Whether everything that the log says of a group is committed."""
        return not any(step.name == name for _, steps in self._pending for step in steps)

    def stale(self, name: str, member: str, claimed: Iterable[tuple[Key, Generation]]) -> list[Key]:
        """Which of these partitions a member does not own, or not since then, by all that the log says."""
        group = self._applied.get(name, EMPTY)
        return [key for key, since in claimed if group.owners.get(key) != PartitionOwner(member, since)]

    def may_speak(self, name: str, member: str, shown: bytes) -> bool:
        """Return whether a caller who showed this hash may speak for a member, by all that the log says (C36)."""
        about = self._applied.get(name, EMPTY).members.get(member)
        return about is None or may_use(about.holder, shown)

    def owns(self, name: str, key: Key, shown: bytes) -> bool:
        """Return whether a caller who showed this hash is the owner of a partition, by all that the log says."""
        group = self._applied.get(name, EMPTY)
        owner = group.owners.get(key)
        return owner is not None and may_use(group.members[owner.member].holder, shown)

    def is_member(self, name: str, shown: bytes) -> bool:
        """Return whether a caller who showed this hash is any member of a group, by all that the log says."""
        return any(may_use(about.holder, shown) for about in self._applied.get(name, EMPTY).members.values())

    def is_this_member(self, name: str, member: str, shown: bytes) -> bool:
        """Return whether a caller who showed this hash is this very member, by all that the log says."""
        about = self._applied.get(name, EMPTY).members.get(member)
        return about is not None and may_use(about.holder, shown)

    def has_room_for_member(self, holder: bytes, count: int, *, shared: bool) -> bool:
        """Return whether a client may have this many members more. `shared`: within its share."""
        return self._members.has({}, {holder: count}, group_limits.GROUP_MEMBERSHIPS_MAX, shared=shared)

    def has_room_for_claim(self, name: str, claim: int, members: Mapping[str, GroupMember], *, shared: bool) -> bool:
        """Return whether a group with these members may claim this much. `shared`: each client within its share."""
        known = self._applied.get(name)
        if known is not None and claim <= known.claim:
            return True
        before, after = _claims(known), _divided(claim, members)
        return self._claims.has(before, after, group_limits.GROUP_SIZE_MAX, shared=shared)

    def deserted(self) -> list[tuple[str, HeldGroup]]:
        """Groups that nobody is in, those that claim most first."""
        unsettled = {step.name for _, steps in self._pending for step in steps}
        found = [
            (name, group) for name, group in self._committed.items() if not group.members and name not in unsettled
        ]
        return sorted(found, key=lambda each: (-each[1].claim, each[0]))

    # --- derived from the log -------------------------------------------------------------------

    def _take(self, step: GroupStep) -> None:
        before = self._applied.get(step.name)
        super()._take(step)
        after = self._applied.get(step.name)
        self._claims.change(_claims(before), _claims(after))
        self._members.change(_crowd(before), _crowd(after))

    def cut(self, end: int) -> None:
        """The log ends here now: what was not committed is undone."""
        super().cut(end)
        self._claims, self._members = self._counted()

    def _counted(self) -> tuple[_Room, _Room]:
        claims, members = _Room(), _Room()
        for group in self._applied.values():
            claims.change({}, _claims(group))
            members.change({}, _crowd(group))
        return claims, members

    def snapshot(self) -> bytes:
        """The applied view."""
        rows = [
            _Row(
                name,
                group.generation,
                group.members,
                [(*key, owner.member, owner.since) for key, owner in sorted(group.owners.items())],
                group.born,
                group.changed_at_us,
                sorted(group.lost),
                group.room,
                group.keeper,
            )
            for name, group in sorted(self._applied.items())
        ]
        return msgspec.msgpack.encode(_Snapshot(_VERSION, rows))

    def restore(self, snapshot: bytes | None) -> None:
        """Back to a snapshot; all of it is committed."""
        rows = [] if snapshot is None else read_snapshot(snapshot, _decoder, _VERSION, "groups").groups
        view: _View = {}
        for row in rows:
            owners = {(topic_id, index): PartitionOwner(member, since) for topic_id, index, member, since in row.owners}
            lost = frozenset(row.lost)
            view[row.name] = HeldGroup(
                row.generation, row.members, owners, row.born, row.changed_at_us, lost, row.room, row.keeper
            )
        self._begin_with(view)
        self._claims, self._members = self._counted()

    def statistics(self) -> dict[str, int]:
        """How many there are."""
        groups = self._committed.values()
        return {"groups": len(groups), "members": sum(len(group.members) for group in groups)}

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        super().check_invariants()
        assert (self._claims, self._members) == self._counted()
        for group in (*self._committed.values(), *self._applied.values()):
            assert group.lost <= group.members.keys()
            assert all(owner.member in group.members for owner in group.owners.values())
            assert all(owner.since <= group.generation for owner in group.owners.values())


def _crowd(group: HeldGroup | None) -> Counter[bytes]:
    """Count the members of a group by client."""
    return Counter() if group is None else Counter(about.holder for about in group.members.values())


def _claims(group: HeldGroup | None) -> Mapping[bytes, int]:
    """Return what a group claims, by client."""
    if group is None:
        return {}
    return _divided(group.claim, group.members) if group.members else {group.keeper: group.claim}


def _divided(claim: int, members: Mapping[str, GroupMember]) -> Counter[bytes]:
    """Return what each client of some members has of a claim: as much for each member, the first ones one more."""
    divided: Counter[bytes] = Counter()
    base, extra = divmod(claim, len(members))
    for place, about in enumerate(members.values()):
        divided[about.holder] += base + (place < extra)
    return divided


def _after(before: HeldGroup | None, step: GroupStep) -> HeldGroup | None:
    """A group after one more step; None when it is gone."""
    if step.deleted:
        return None
    group = before or EMPTY
    gone = set(step.left)
    members = {member: each for member, each in group.members.items() if member not in gone} | step.joined
    owners = {key: owner for key, owner in group.owners.items() if owner.member in members}
    for topic_id, index, member in step.owners:
        if member in members:
            owners[topic_id, index] = PartitionOwner(member, step.generation)
        else:
            owners.pop((topic_id, index), None)
    lost = frozenset(member for member in (*group.lost, *step.lost) if member in members and member not in step.found)
    room = group.room if step.room is None else step.room
    keeper = NOBODY
    if not members:
        keeper = next((about.holder for about in group.members.values()), group.keeper)
    born = group.born or step.born
    return HeldGroup(step.generation, members, owners, born, step.at_us, lost, room, keeper)
