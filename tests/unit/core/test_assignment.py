"""Which member of a group should own which partition: even, sticky, always the same."""

import random
from collections import Counter

import pytest

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
