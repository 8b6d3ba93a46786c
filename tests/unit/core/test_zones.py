"""Partitions are even over zones, too, if members say theirs, and never less even over members."""

import random
from collections import Counter

import pytest

from stentor.core.assignment import assign


def shares(target, names):
    return Counter(dict.fromkeys(names, 0)) + Counter(names[member] for member in target.values())


def test_what_is_left_over_goes_to_the_zone_that_has_least():
    zones = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    target = assign({1: 6}, {1: list(zones)}, {}, zones)
    assert shares(target, zones) == {"a": 3, "b": 3}
    both_in_a = {(1, 0): "a1", (1, 1): "a1", (1, 2): "a2", (1, 3): "a2", (1, 4): "b1", (1, 5): "b2"}
    assert shares(assign({1: 6}, {1: list(zones)}, both_in_a), zones) == {"a": 4, "b": 2}, "without zones it stays"
    moved = assign({1: 6}, {1: list(zones)}, both_in_a, zones)
    assert shares(moved, zones) == {"a": 3, "b": 3}
    assert sum(moved[key] != both_in_a[key] for key in moved) == 1


@pytest.mark.parametrize("seed", range(40))
def test_zones_cost_no_evenness_and_come_to_rest(seed):
    chance = random.Random(seed)
    members = [f"m{number}" for number in range(chance.randrange(2, 8))]
    zones = {member: chance.choice("abc") for member in members if chance.random() < 0.9}
    topics = {topic: chance.randrange(1, 12) for topic in range(chance.randrange(1, 5))}
    readers = {topic: chance.sample(members, chance.randrange(1, len(members) + 1)) for topic in topics}
    plain, zoned = assign(topics, readers, {}), assign(topics, readers, {}, zones)
    for topic, count in topics.items():
        found = Counter(member for key, member in zoned.items() if key[0] == topic)
        base = count // len(readers[topic])
        assert all(base <= found[member] <= base + 1 for member in readers[topic])
    assert sorted(Counter(plain.values()).values()) == sorted(Counter(zoned.values()).values())
    assert assign(topics, readers, zoned, zones) == zoned, "nothing moves when nothing has changed"
