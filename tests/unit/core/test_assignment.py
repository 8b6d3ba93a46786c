"""Which member of a group should own which partition: even, sticky, always the same."""

import random
import time
from collections import Counter

import pytest

from stentor.core import assignment
from stentor.core.assignment import assign


def test_partitions_are_spread_evenly():
    target = assign({1: 8}, {1: ["a", "b", "c", "d"]}, {})
    assert Counter(target.values()) == {"a": 2, "b": 2, "c": 2, "d": 2}


def test_a_new_member_gets_its_share_and_nothing_else_moves():
    before = assign({1: 8}, {1: ["a", "b", "c"]}, {})
    after = assign({1: 8}, {1: ["a", "b", "c", "d"]}, before)
    assert Counter(after.values()) == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert all(after[key] == "d" for key in after if after[key] != before[key])


def test_what_a_member_leaves_behind_is_all_that_moves():
    before = assign({1: 8, 2: 5}, {1: ["a", "b", "c", "d"], 2: ["a", "b", "c", "d"]}, {})
    after = assign({1: 8, 2: 5}, {1: ["a", "b", "c"], 2: ["a", "b", "c"]}, before)
    assert all(before[key] == "d" for key in after if after[key] != before[key])


def test_small_topics_do_not_all_go_to_one_member():
    target = assign(dict.fromkeys(range(9), 1), {topic: ["a", "b", "c"] for topic in range(9)}, {})
    assert Counter(target.values()) == {"a": 3, "b": 3, "c": 3}


def test_a_topic_goes_only_to_those_who_read_it():
    target = assign({1: 4, 2: 2}, {1: ["a"], 2: ["a", "b"]}, {})
    assert {member for (topic, _), member in target.items() if topic == 1} == {"a"}
    assert Counter(target.values())["b"] == 1


def test_a_topic_that_nobody_reads_has_no_owner():
    assert assign({1: 4}, {}, {(1, 0): "a"}) == {}


@pytest.mark.parametrize("seed", range(100))
def test_every_topic_is_even_and_nothing_moves_without_need(seed):
    chance = random.Random(seed)
    topics = {topic: chance.randint(1, 12) for topic in range(chance.randint(1, 6))}
    now: dict[tuple[int, int], str] = {}
    for _ in range(6):
        members = [f"m{number}" for number in range(chance.randint(1, 7))]
        readers = {topic: [m for m in members if chance.random() < 0.8] for topic in topics}
        target = assign(topics, readers, now)
        for topic, partitions in topics.items():
            counts = Counter(target[topic, index] for index in range(partitions) if (topic, index) in target)
            if readers[topic]:
                assert sum(counts.values()) == partitions
                shares = [counts[member] for member in readers[topic]]
                assert max(shares) - min(shares) <= 1
        assert assign(topics, readers, target) == target
        now = target


def plainly(topics, readers, now, zones):
    """The same decisions, looked for in the plainest way: the rules of `assign`, however long it takes."""
    total, target = Counter(), {}
    members = {topic: sorted(set(readers.get(topic, ()))) for topic in sorted(topics)}
    for topic, those in members.items():
        has, free = {member: [] for member in those}, []
        for index in range(topics[topic]) if those else ():
            has.get(now.get((topic, index), ""), free).append(index)
        base, extra = divmod(topics[topic], len(those) or 1)
        order = sorted(those, key=lambda member: (-len(has[member]), total[member], member))
        quota = {member: base + (place < extra) for place, member in enumerate(order)}
        for member in order:
            free += has[member][quota[member] :]
            del has[member][quota[member] :]
        free.sort(reverse=True)
        for member in sorted(those, key=lambda member: (total[member], member)):
            while len(has[member]) < quota[member]:
                has[member].append(free.pop())
        for member, indexes in has.items():
            total[member] += len(indexes)
            target |= {(topic, index): member for index in indexes}
    while sum(_moved(target, total, topic, topics[topic], those, {}) for topic, those in members.items()):
        pass
    for topic, those in members.items() if zones else ():
        _moved(target, total, topic, topics[topic], those, zones)
    return target


def _moved(target, total, topic, partitions, members, zones):
    base, moved = partitions // (len(members) or 1), False
    has = {member: [index for index in range(partitions) if target[topic, index] == member] for member in members}
    while partitions % (len(members) or 1):
        above = [member for member in members if len(has[member]) > base and (not zones or member in zones)]
        others = [member for member in members if len(has[member]) == base and (not zones or member in zones)]
        if zones:
            held = Counter()
            for member, zone in zones.items():
                held[zone] += total[member]
            pairs = [
                (held[zones[one]] - held[zones[other]], total[one] - total[other], one, other)
                for one in above
                for other in others
                if total[one] > total[other]
            ]
            gap, _, most, least = max(pairs, default=(0, 0, "", ""))
        else:
            most = max(above, key=lambda member: (total[member], member))
            least = min(others, key=lambda member: (total[member], member))
            gap = total[most] - total[least]
        if gap < 2:
            break
        index = has[most].pop()
        has[least].append(index)
        target[topic, index] = least
        total[most] -= 1
        total[least] += 1
        moved = True
    return moved


@pytest.mark.parametrize("shared", [0, 2, 32])
def test_it_decides_as_the_plain_way_does(shared, monkeypatch):
    monkeypatch.setattr(assignment, "_SHARED_MAX", shared)
    for seed in range(100):
        chance = random.Random(seed)
        topics = {topic: chance.randint(1, chance.choice([3, 12, 30])) for topic in range(chance.randint(1, 10))}
        now: dict[tuple[int, int], str] = {}
        for _ in range(3):
            members = sorted({f"m{chance.randint(0, 99)}" for _ in range(chance.randint(1, 15))})
            some = [[member for member in members if chance.random() < 0.8] for _ in range(3)]
            readers = {topic: members if chance.random() < 0.5 else chance.choice(some) for topic in topics}
            zones = {member: f"z{chance.randint(0, 3)}" for member in members if chance.random() < 0.8}
            zones = zones if len(set(zones.values())) > 1 and chance.random() < 0.5 else {}
            found = assign(topics, readers, now, zones)
            assert found == plainly(topics, readers, now, zones), seed
            now = found


@pytest.mark.parametrize("before", ["nobody", "one", "all but one"])
def test_ten_thousand_topics_and_five_hundred_members_take_no_time_that_counts(before):
    """About 0.1 s of a processor; it was 13 s when a topic cost as much as it has members."""
    topics, members = dict.fromkeys(range(10_000), 1), [f"m{number:03}" for number in range(500)]
    readers = dict.fromkeys(topics, members)
    zones = {member: f"z{number % 3}" for number, member in enumerate(members)}
    now: dict[tuple[int, int], str] = {}
    if before == "one":
        now = dict.fromkeys(((topic, 0) for topic in topics), "m000")
    elif before == "all but one":
        now = assign(topics, dict.fromkeys(topics, members[1:]), {}, zones)
    began = time.process_time()
    target = assign(topics, readers, now, zones)
    assert time.process_time() - began < 3  # machines differ, and some are busy
    assert set(Counter(target.values()).values()) == {20}
