"""Epoch tables, and where two logs part."""

import pytest

from stentor.core.records import ChainRecord, EpochTable, Member, common_end


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "common"),
    [
        ([], 0, [], 0, -1),
        ([(1, 0)], 10, [], 0, -1),
        ([(1, 0)], 10, [(1, 0)], 7, 7),
        ([(1, 0)], 7, [(1, 0)], 10, 7),
        ([(1, 0), (3, 8)], 12, [(1, 0), (2, 6)], 9, 6),
        ([(1, 0), (2, 5), (4, 9)], 12, [(1, 0), (2, 5), (3, 7)], 20, 7),
        ([(2, 5), (4, 9)], 12, [(1, 0), (2, 4)], 8, 8),
        ([(5, 100)], 120, [(1, 0)], 50, -1),
    ],
)
def test_logs_are_the_same_up_to_the_end_of_the_newest_epoch_that_both_know(ours, our_end, theirs, their_end, common):
    assert common_end(ours, our_end, theirs, their_end) == common
    assert common_end(theirs, their_end, ours, our_end) == common, "whoever asks"


def test_a_table_knows_the_epoch_before_an_offset():
    table = EpochTable([(1, 0), (3, 10)])
    assert [table.epoch_before(offset) for offset in (0, 1, 10, 11, 99)] == [0, 1, 1, 3, 3]


def test_a_table_follows_its_log():
    table = EpochTable()
    for epoch, offset in ((1, 0), (1, 5), (2, 8), (2, 9), (4, 20)):
        table.note(epoch, offset)
    assert table.entries() == [(1, 0), (2, 8), (4, 20)]
    table.cut(20)
    assert table.entries() == [(1, 0), (2, 8)]
    assert table.last == 2
    table.cut(9)
    assert table.entries() == [(1, 0), (2, 8)], "half of epoch 2 is left"
    table.clear()
    assert table.entries() == []
    assert table.last == 0


@pytest.mark.parametrize(("factor", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_quorum_is_a_majority_of_the_configured_factor(factor, quorum):
    assert ChainRecord(1, (Member("a", 1, 1),), factor=factor).quorum == quorum


def test_a_chain_below_its_minimum_is_short():
    member = Member("a", 1, 1)
    assert ChainRecord(1, (member,), factor=3, min_replicas=2).is_short
    assert not ChainRecord(1, (member,), factor=2, min_replicas=1).is_short


def test_a_restart_makes_another_member_of_the_same_log():
    before, after, wiped = Member("a", 7, 1), Member("a", 7, 2), Member("a", 8, 2)
    assert before != after
    assert before.same_log(after)
    assert not before.same_log(wiped)
