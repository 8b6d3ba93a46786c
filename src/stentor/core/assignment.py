"""Which member of a group should own which partition: even over every topic, even in all, with few moves.

1. Every topic by itself. With n partitions and k members that read it, each gets n // k or one more. Who has one more
   already keeps it, so only what is too much anywhere moves.
2. All topics together. What is left over of each topic (the "one more") goes from who has most in all to who has
   least, as long as that makes it more even.
3. Zones, among members that say theirs. What is left over goes from the zone that has most to the one that has least,
   as long as that makes zones more even and members not less: a zone that fails takes as little as possible with it.

The outcome depends on nothing but the arguments: every head that looks at the same group decides the same.

There may be ten thousand topics and hundreds of members, and a head decides this in its event loop. So a topic costs as
much as it has partitions, not as much as it has members: who has least is looked up (`_Lowest`), not searched for, and
topics with the same readers share that.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from stentor.core.records import Key

_SHARED_MAX: Final = 32  # sets of readers for which heaps are kept: each change of a total goes into all of a member's


class _Lowest:
    """Who of some members has least in all; among equals, the first of them by the order that they are given in."""

    def __init__(self, members: Sequence[str], total: Counter[str], *, heaped: bool) -> None:
        self._total = total
        self._rank = {member: rank for rank, member in enumerate(members)}
        self._heap = [(total[member], rank, member) for member, rank in self._rank.items()] if heaped else None
        heapify(self._heap or [])

    def note(self, member: str) -> None:
        """Its total has changed. The entry that it had is passed over from now on, until the total is that again."""
        if self._heap is not None:
            heappush(self._heap, (self._total[member], self._rank[member], member))

    def has(self, member: str) -> bool:
        """Whether it is one of them."""
        return member in self._rank

    def bottom(self) -> int:
        """The lowest total, of whomever; or less, if finding out would take long."""
        total, heap = self._total, self._heap
        if heap is None:
            return 0
        while heap[0][0] != total[heap[0][2]]:
            heappop(heap)
        return heap[0][0]

    def take(self, count: int, but: Collection[str]) -> list[str]:
        """The lowest so many that are not among these, or all there are."""
        total, heap = self._total, self._heap
        if heap is None:
            others = [member for member in self._rank if member not in but]
            return nsmallest(count, others, key=lambda member: (total[member], self._rank[member]))
        found: list[str] = []
        seen: dict[str, tuple[int, int, str]] = {}
        while heap and len(found) < count:
            entry = heappop(heap)
            member = entry[2]
            if entry[0] != total[member] or member in seen:
                continue
            seen[member] = entry
            if member not in but:
                found.append(member)
        for entry in seen.values():
            heappush(heap, entry)
        return found


class _Readers:
    """Members that read the same topics."""

    def __init__(self, members: Sequence[str]) -> None:
        self.members = sorted(set(members))
        self.lowest: _Lowest | None = None
        self.by_zone: dict[str, _Lowest] = {}


class _Plan:
    """Who gets what, while it is worked out."""

    def __init__(self, readers: Mapping[int, Sequence[str]], now: Mapping[Key, str]) -> None:
        self.now = now
        self.target: dict[Key, str] = {}
        self.total: Counter[str] = Counter()
        self.readers = _shared(readers)
        self._sets = list({id(each): each for each in self.readers.values()}.values())
        self._heaped = len(self._sets) <= _SHARED_MAX
        self._watching: dict[str, list[_Lowest]] = {}
        for each in self._sets:
            each.lowest = self._watch(each.members)

    def _watch(self, members: Sequence[str]) -> _Lowest:
        made = _Lowest(members, self.total, heaped=self._heaped)
        if self._heaped:
            for member in members:
                self._watching.setdefault(member, []).append(made)
        return made

    def watch_zones(self, zones: Mapping[str, str]) -> None:
        """From now on it is known who has least in each zone; among equals, the last one by name."""
        for each in self._sets:
            by_zone: dict[str, list[str]] = {}
            for member in reversed(each.members):
                if member in zones:
                    by_zone.setdefault(zones[member], []).append(member)
            each.by_zone = {zone: self._watch(members) for zone, members in by_zone.items()}

    def change(self, member: str, by: int) -> None:
        self.total[member] += by
        for each in self._watching.get(member, ()):
            each.note(member)

    def owned(self, topic_id: int, partitions: int) -> dict[str, list[int]]:
        """The partitions of a topic by the members that have some."""
        has: dict[str, list[int]] = {}
        for index in range(partitions):
            has.setdefault(self.target[topic_id, index], []).append(index)
        return has

    def move(self, topic_id: int, has: dict[str, list[int]], one: str, other: str) -> None:
        """One partition goes from a member to another."""
        index = has[one].pop()
        if not has[one]:
            del has[one]
        has.setdefault(other, []).append(index)
        self.target[topic_id, index] = other
        self.change(one, -1)
        self.change(other, 1)


def assign(
    topics: Mapping[int, int],
    readers: Mapping[int, Sequence[str]],
    now: Mapping[Key, str],
    zones: Mapping[str, str] | None = None,
) -> dict[Key, str]:
    """The member for each partition that anybody reads.

    `topics` has the number of partitions by topic, `readers` the members that read each, `now` who has what, `zones`
    where members are that said so. It is quick if topics with the same readers have one and the same list of them.
    """
    plan = _Plan(readers, now)
    read = sorted((topic_id, count) for topic_id, count in topics.items() if topic_id in plan.readers)
    for topic_id, partitions in read:
        _assign_topic(plan, topic_id, partitions)
    uneven = [each for each in read if each[1] % len(plan.readers[each[0]].members)]
    moved = True
    while moved:  # every move makes the sum of the squares of all totals smaller, so this ends
        moves = [_even_out(plan, topic_id, partitions) for topic_id, partitions in uneven]
        moved = any(moves)
    if zones and len(set(zones.values())) > 1:
        plan.watch_zones(zones)
        by_zone: Counter[str] = Counter()
        for member, zone in zones.items():
            by_zone[zone] += plan.total[member]
        for topic_id, partitions in uneven:
            _even_zones(plan, topic_id, partitions, zones, by_zone)
    return plan.target


def _shared(readers: Mapping[int, Sequence[str]]) -> dict[int, _Readers]:
    """The readers of each topic that has any; the same object for the same readers."""
    by_list: dict[int, _Readers] = {}
    by_members: dict[tuple[str, ...], _Readers] = {}
    found: dict[int, _Readers] = {}
    for topic_id, members in readers.items():
        if not members:
            continue
        known = by_list.get(id(members))
        if known is None:
            made = _Readers(members)
            known = by_list[id(members)] = by_members.setdefault(tuple(made.members), made)
        found[topic_id] = known
    return found


def _assign_topic(plan: _Plan, topic_id: int, partitions: int) -> None:
    readers, total = plan.readers[topic_id], plan.total
    allowed = readers.lowest
    assert allowed is not None
    base, extra = divmod(partitions, len(readers.members))
    has: dict[str, list[int]] = {}
    free: list[int] = []
    for index in range(partitions):
        member = plan.now.get((topic_id, index), "")
        if allowed.has(member):
            has.setdefault(member, []).append(index)
        else:
            free.append(index)
    # Who has most now keeps the one more; among equals, who has least in all.
    order = sorted(has, key=lambda member: (-len(has[member]), total[member], member))
    if base:
        order += allowed.take(len(readers.members), has)
    elif len(order) < extra:
        order += allowed.take(extra - len(order), has)
    quota = {member: base + (place < extra) for place, member in enumerate(order)}
    for member in order:
        some = has.setdefault(member, [])
        free += some[quota[member] :]
        del some[quota[member] :]
    free.sort(reverse=True)
    for member in sorted(order, key=lambda member: (total[member], member)):
        while len(has[member]) < quota[member]:
            has[member].append(free.pop())
    for member, indexes in has.items():
        plan.change(member, len(indexes))
        for index in indexes:
            plan.target[topic_id, index] = member


def _even_out(plan: _Plan, topic_id: int, partitions: int) -> bool:
    """Whether anything of a topic was moved."""
    readers, total = plan.readers[topic_id], plan.total
    assert readers.lowest is not None
    base = partitions // len(readers.members)
    has = plan.owned(topic_id, partitions)
    moved = False
    while True:
        above = [member for member, indexes in has.items() if len(indexes) > base]
        most = max(above, key=lambda member: (total[member], member))
        if total[most] - readers.lowest.bottom() < 2:
            return moved
        (least,) = readers.lowest.take(1, above)
        if total[most] - total[least] < 2:
            return moved
        moved = True
        plan.move(topic_id, has, most, least)


def _even_zones(plan: _Plan, topic_id: int, partitions: int, zones: Mapping[str, str], by_zone: Counter[str]) -> None:
    """Every move makes the sum of the squares of the zones' totals smaller, and that of the members' no larger."""
    readers, total = plan.readers[topic_id], plan.total
    base = partitions // len(readers.members)
    has = None
    while max(by_zone.values()) - min(by_zone.values()) >= 2:
        has = has or plan.owned(topic_id, partitions)
        above = {member for member, indexes in has.items() if len(indexes) > base}
        others = [other for zone in readers.by_zone.values() for other in zone.take(1, above)]
        pairs = [
            (by_zone[zones[one]] - by_zone[zones[other]], total[one] - total[other], one, other)
            for one in above
            if one in zones
            for other in others
            if total[one] > total[other]
        ]
        gap, _, most, least = max(pairs, default=(0, 0, "", ""))
        if gap < 2:
            return
        plan.move(topic_id, has, most, least)
        by_zone[zones[most]] -= 1
        by_zone[zones[least]] += 1
