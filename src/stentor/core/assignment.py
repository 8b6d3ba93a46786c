"""Which member of a group should own which partition: even over every topic, even in all, with few moves.

1. Every topic by itself. With n partitions and k members that read it, each gets n // k or one more. Who has one more
   already keeps it, so only what is too much anywhere moves.
2. All topics together. What is left over of each topic (the "one more") goes from who has most in all to who has
   least, as long as that makes it more even.
3. Zones, among members that say theirs. What is left over goes from the zone that has most to the one that has least,
   as long as that makes zones more even and members not less: a zone that fails takes as little as possible with it.

The outcome depends on nothing but the arguments: every head that looks at the same group decides the same.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stentor.core.records import Key


def assign(
    topics: Mapping[int, int],
    readers: Mapping[int, Sequence[str]],
    now: Mapping[Key, str],
    zones: Mapping[str, str] | None = None,
) -> dict[Key, str]:
    """The member for each partition that anybody reads.

    `topics` has the number of partitions by topic, `readers` the members that read each, `now` who has what, `zones`
    where members are that said so.
    """
    total: Counter[str] = Counter()
    target: dict[Key, str] = {}
    for topic_id in sorted(topics):
        members = sorted(set(readers.get(topic_id, ())))
        if members:
            _assign_topic(topic_id, topics[topic_id], members, now, target, total)
    moved = True
    while moved:  # every move makes the sum of the squares of all totals smaller, so this ends
        moves = [_even_out(topic_id, topics[topic_id], readers, target, total) for topic_id in sorted(topics)]
        moved = any(moves)
    if zones and len(set(zones.values())) > 1:
        for topic_id in sorted(topics):
            _even_zones(topic_id, topics[topic_id], readers, target, total, zones)
    return target


def _assign_topic(
    topic_id: int,
    partitions: int,
    members: list[str],
    now: Mapping[Key, str],
    target: dict[Key, str],
    total: Counter[str],
) -> None:
    has: dict[str, list[int]] = {member: [] for member in members}
    free: list[int] = []
    for index in range(partitions):
        has.get(now.get((topic_id, index), ""), free).append(index)
    base, extra = divmod(partitions, len(members))
    # Who has most now keeps the one more; among equals, who has least in all.
    order = sorted(members, key=lambda member: (-len(has[member]), total[member], member))
    quota = {member: base + (place < extra) for place, member in enumerate(order)}
    for member in order:
        free += has[member][quota[member] :]
        del has[member][quota[member] :]
    free.sort(reverse=True)
    for member in sorted(members, key=lambda member: (total[member], member)):
        while len(has[member]) < quota[member]:
            has[member].append(free.pop())
    for member, indexes in has.items():
        total[member] += len(indexes)
        for index in indexes:
            target[topic_id, index] = member


def _even_out(
    topic_id: int, partitions: int, readers: Mapping[int, Sequence[str]], target: dict[Key, str], total: Counter[str]
) -> bool:
    """Whether anything of a topic was moved."""
    members = sorted(set(readers.get(topic_id, ())))
    if len(members) < 2 or partitions % len(members) == 0:
        return False
    base = partitions // len(members)
    has: dict[str, list[int]] = {member: [] for member in members}
    for index in range(partitions):
        has[target[topic_id, index]].append(index)
    moved = False
    while True:
        most = max((m for m in members if len(has[m]) > base), key=lambda m: (total[m], m))
        least = min((m for m in members if len(has[m]) == base), key=lambda m: (total[m], m))
        if total[most] - total[least] < 2:
            return moved
        moved = True
        index = has[most].pop()
        has[least].append(index)
        target[topic_id, index] = least
        total[most] -= 1
        total[least] += 1


def _even_zones(
    topic_id: int,
    partitions: int,
    readers: Mapping[int, Sequence[str]],
    target: dict[Key, str],
    total: Counter[str],
    zones: Mapping[str, str],
) -> None:
    """Every move makes the sum of the squares of the zones' totals smaller, and that of the members' no larger."""
    everyone = sorted(set(readers.get(topic_id, ())))
    members = [member for member in everyone if member in zones]
    if len(members) < 2 or partitions % len(everyone) == 0:
        return
    base = partitions // len(everyone)
    has: dict[str, list[int]] = {member: [] for member in everyone}
    for index in range(partitions):
        has[target[topic_id, index]].append(index)
    by_zone: Counter[str] = Counter()
    for member, zone in zones.items():
        by_zone[zone] += total[member]
    while True:
        pairs = [
            (by_zone[zones[one]] - by_zone[zones[other]], total[one] - total[other], one, other)
            for one in members
            if len(has[one]) > base
            for other in members
            if len(has[other]) == base and total[one] > total[other]
        ]
        gap, _, most, least = max(pairs, default=(0, 0, "", ""))
        if gap < 2:
            return
        index = has[most].pop()
        has[least].append(index)
        target[topic_id, index] = least
        total[most] -= 1
        total[least] += 1
        by_zone[zones[most]] -= 1
        by_zone[zones[least]] += 1
