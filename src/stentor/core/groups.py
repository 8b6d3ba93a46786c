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

Invariants: every owner is a member, in both views (`core.folded`). A member's holder, once known, does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from stentor.core.folded import Folded, read_snapshot
from stentor.core.holders import NOBODY, may_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.core.records import Key

_VERSION: Final = 1

Generation = tuple[int, int]
"""Epoch of the internal partition, and counter: (3, 17)."""


class GroupMember(msgspec.Struct, frozen=True, omit_defaults=True):
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


class PartitionOwner(msgspec.Struct, frozen=True, array_like=True):
    """Who owns a partition."""

    member: str
    since: Generation


class HeldGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group, as of a step."""

    generation: Generation
    members: dict[str, GroupMember]
    owners: dict[Key, PartitionOwner]
    born: dict[int, int]
    changed_at_us: int = 0
    lost: frozenset[str] = frozenset()  # members whose connections were closed, and that were not heard since

    @property
    def size(self) -> int:
        """What memory and snapshots grow with."""
        return 1 + len(self.members) + len(self.owners) + len(self.born)


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


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    groups: list[_Row]


_decoder = msgspec.msgpack.Decoder(_Snapshot)  # made here, under the import lock: logs are opened in several threads

_View = dict[str, HeldGroup]


class Groups(Folded[GroupStep, str, HeldGroup]):
    """The groups of one partition of the internal topic: a `core.derived.DerivedState`."""

    name = "groups"
    vital: Final = True  # two members would own one partition by what is missing
    came_later: Final = True  # snapshots of before there were groups lack them

    def __init__(self, read: Callable[[bytes | memoryview], Iterable[GroupStep]]) -> None:
        super().__init__(read)
        self._size = 0  # of the applied view

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

    def items(self) -> Iterable[tuple[str, HeldGroup]]:
        """The same, each with what is known of it."""
        return self._committed.items()

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

    def size_with(self, step: GroupStep) -> int:
        """How many groups, members and owners there would be with a step."""
        before = self._applied.get(step.name)
        return self._size + _size(_after(before, step)) - _size(before)

    # --- derived from the log -------------------------------------------------------------------

    def _take(self, step: GroupStep) -> None:
        before = _size(self._applied.get(step.name))
        super()._take(step)
        self._size += _size(self._applied.get(step.name)) - before

    def cut(self, end: int) -> None:
        """The log ends here now: what was not committed is undone."""
        super().cut(end)
        self._size = sum(map(_size, self._applied.values()))

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
            view[row.name] = HeldGroup(row.generation, row.members, owners, row.born, row.changed_at_us, lost)
        self._begin_with(view)
        self._size = sum(map(_size, self._applied.values()))

    def statistics(self) -> dict[str, int]:
        """How many there are."""
        groups = self._committed.values()
        return {"groups": len(groups), "members": sum(len(group.members) for group in groups)}

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        super().check_invariants()
        assert self._size == sum(map(_size, self._applied.values()))
        for group in (*self._committed.values(), *self._applied.values()):
            assert group.lost <= group.members.keys()
            assert all(owner.member in group.members for owner in group.owners.values())
            assert all(owner.since <= group.generation for owner in group.owners.values())


def _size(group: HeldGroup | None) -> int:
    return 0 if group is None else group.size


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
    return HeldGroup(step.generation, members, owners, group.born or step.born, step.at_us, lost)
