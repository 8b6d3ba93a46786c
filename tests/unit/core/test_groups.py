"""Groups: a function of the log's prefix (C19), that refuses what an earlier owner says (C22)."""

import random

import msgspec
import pytest
from tests.headers import Batch

from stentor.core.groups import GroupMember, Groups, GroupStep, PartitionOwner
from stentor.errors import CorruptData, FormatTooNew

ABOUT = GroupMember(["orders.*"], silence_ms=45_000)


def read(body):
    return (msgspec.json.decode(bytes(body), type=GroupStep),)


def at(end):
    return Batch(end - 1, end, 1, 0, 0, 0, 0, 0)


def applied(*steps):
    groups = Groups(read)
    for end, step in enumerate(steps, 1):
        groups.apply(at(end), msgspec.json.encode(step))
    return groups


FIRST = GroupStep("g", (1, 1), joined={"a": ABOUT}, owners=[(7, 0, "a"), (7, 1, "a")], born={7: 2})
SECOND = GroupStep("g", (1, 2), joined={"b": ABOUT}, owners=[(7, 1, "b")])


def test_nothing_is_told_before_it_is_committed():
    groups = applied(FIRST)
    assert groups.get("g") is None
    assert not groups.is_settled("g")
    groups.commit(1)
    assert groups.get("g").owners == {(7, 0): PartitionOwner("a", (1, 1)), (7, 1): PartitionOwner("a", (1, 1))}
    assert groups.is_settled("g")


def test_a_commit_is_judged_by_all_that_the_log_says():
    groups = applied(FIRST, SECOND)
    groups.commit(1)
    assert groups.stale("g", "a", [((7, 0), (1, 1)), ((7, 1), (1, 1))]) == [(7, 1)]
    assert groups.stale("g", "b", [((7, 1), (1, 2))]) == []
    assert groups.stale("g", "b", [((7, 1), (1, 1))]) == [(7, 1)]
    assert groups.stale("other", "b", [((7, 1), (1, 2))]) == [(7, 1)]


def test_what_a_member_owned_is_nobodys_when_it_left():
    groups = applied(FIRST, SECOND, GroupStep("g", (1, 3), left=["a"]))
    groups.commit(3)
    assert groups.get("g").owners == {(7, 1): PartitionOwner("b", (1, 2))}
    assert set(groups.get("g").members) == {"b"}


def test_a_deleted_group_is_gone():
    groups = applied(FIRST, GroupStep("g", (1, 2), deleted=True))
    groups.commit(2)
    assert groups.names() == []


def test_a_cut_undoes_what_was_not_committed():
    groups = applied(FIRST, SECOND)
    groups.commit(1)
    groups.cut(1)
    assert groups.is_settled("g")
    assert groups.stale("g", "a", [((7, 1), (1, 1))]) == []
    groups.check_invariants()


def test_a_snapshot_brings_everything_back():
    groups = applied(FIRST, SECOND)
    again = Groups(read)
    again.restore(groups.snapshot())
    groups.commit(2)
    assert again.get("g") == groups.get("g")
    assert list(again.get("g").members) == list(groups.get("g").members)


def test_a_snapshot_that_cannot_be_read_is_refused():
    with pytest.raises(CorruptData):
        Groups(read).restore(b"\x92\x01\x01")
    with pytest.raises(FormatTooNew):
        Groups(read).restore(msgspec.msgpack.encode([99, []]))


@pytest.mark.parametrize("seed", range(10))
def test_groups_are_a_function_of_the_prefix(seed):
    chance = random.Random(seed)
    groups, log, committed = Groups(read), [], 0
    for counter in range(60):
        kind = chance.randrange(6)
        if kind == 0:
            committed = chance.randint(committed, len(log))
            groups.commit(committed)
        elif kind == 1:
            end = chance.randint(committed, len(log))
            del log[end:]
            groups.cut(end)
        else:
            step = GroupStep(
                chance.choice("gh"),
                (1, counter),
                joined={chance.choice("abc"): ABOUT},
                left=chance.sample("abc", chance.randint(0, 1)),
                owners=[(7, chance.randrange(4), chance.choice(["a", "b", "c", ""]))],
                deleted=chance.random() < 0.05,
            )
            log.append(step)
            groups.apply(at(len(log)), msgspec.json.encode(step))
        groups.check_invariants()
        fresh = applied(*log)
        assert fresh.snapshot() == groups.snapshot()
        fresh.commit(committed)
        assert fresh.names() == groups.names()
