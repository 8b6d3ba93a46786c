"""Transactions as the log says: one at a time for each member, undone by a cut, kept until they are done."""

import pytest
from tests.headers import Batch

from stentor.core.cursors import Cursors
from stentor.core.groups import GroupStep
from stentor.core.transactions import GroupTransaction, TransactionDone, Transactions
from stentor.errors import CorruptData, FormatTooNew
from stentor.wire import batch, group_records, transaction_records
from stentor.wire.header import HEADER_BYTES


class Log:
    """Records in a log, one a batch."""

    def __init__(self, state):
        self.state = state
        self.end = 0

    def add(self, record):
        kind = group_records if isinstance(record, GroupStep) else transaction_records
        encoded = kind.encode(record, 5, topic_id=1, partition=0)
        self.end += 1
        self.state.apply(at(self.end), bytes(encoded[HEADER_BYTES:]))
        self.state.check_invariants()


def at(end):
    return Batch(end - 1, end, 1, 0, 0, 0, 0, 0)


@pytest.fixture
def log():
    return Log(Transactions(transaction_records.read))


def made(number, member="m", group="g", outputs=(("out", b"batch"),)):
    return GroupTransaction(
        group, member, number, {7: {0: 10 * number, 1: 3}}, by="somebody", at_us=9, outputs=tuple(outputs)
    )


def test_a_transaction_is_told_once_it_is_committed(log):
    log.add(made(1))
    assert log.state.unfinished("g") == []
    assert log.state.is_busy("g")
    log.state.commit(1)
    assert log.state.unfinished("g") == [made(1)]
    assert log.state.unfinished("other") == []


def test_it_is_done_when_that_is_said_of_this_very_one(log):
    log.add(made(1))
    log.add(TransactionDone("g", "m", 1))
    log.state.commit(2)
    assert log.state.unfinished("g") == []
    assert log.state.last("g", "m").number == 1
    log.add(made(2))
    log.add(TransactionDone("g", "m", 1))
    log.state.commit(4)
    assert log.state.unfinished("g") == [made(2)]


def test_the_oldest_comes_first(log):
    log.add(made(1, "b"))
    log.add(made(1, "a"))
    log.add(made(2, "b"))
    log.state.commit(3)
    assert [each.member for each in log.state.unfinished("g")] == ["a", "b"]


def test_a_cut_undoes_what_was_not_committed(log):
    log.add(made(1))
    log.state.commit(1)
    log.add(TransactionDone("g", "m", 1))
    log.add(made(2))
    log.state.cut(1)
    assert log.state.last("g", "m").unfinished == made(1)
    log.state.check_invariants()


def test_what_a_member_leaves_is_kept_until_it_is_done(log):
    log.add(made(1))
    log.add(made(1, "n"))
    log.add(TransactionDone("g", "n", 1))
    log.add(GroupStep("g", (1, 2), left=["m", "n"]))
    assert log.state.last("g", "n") is None
    assert log.state.last("g", "m").unfinished == made(1)
    log.add(TransactionDone("g", "m", 1))
    assert log.state.last("g", "m") is None
    log.state.commit(log.end)
    assert log.state.unfinished("g") == []


def test_a_deleted_group_is_forgotten(log):
    log.add(made(1))
    log.add(made(1, group="h"))
    log.add(GroupStep("g", (1, 2), deleted=True))
    assert log.state.last("g", "m") is None
    assert log.state.last("h", "m") is not None


def test_a_snapshot_brings_everything_back(log):
    log.add(made(1))
    log.add(made(4, "n"))
    log.add(TransactionDone("g", "n", 4))
    log.add(GroupStep("g", (1, 2), left=["m"]))
    log.state.commit(log.end)
    again = Transactions(transaction_records.read)
    again.restore(log.state.snapshot())
    assert again._applied == log.state._applied == again._committed
    again.restore(None)
    assert again.unfinished("g") == []
    with pytest.raises(CorruptData):
        again.restore(b"rubbish")
    with pytest.raises(FormatTooNew):
        again.restore(b"\x92\x63\x90")


def test_sizes_count_what_is_not_done(log):
    log.add(made(1, outputs=[("a", b"12345")]))
    assert log.state.size_with(made(1, "n", outputs=[("a", b"123")])) == 8
    assert log.state.size_with(made(2, outputs=[("a", b"123")])) == 3
    log.add(TransactionDone("g", "m", 1))
    assert log.state.size_with(made(1, "n", outputs=[("a", b"123")])) == 3


def test_positions_of_a_transaction_move_the_groups_cursors():
    cursors = Cursors(transaction_records.read_moves)
    log = Log(cursors)
    log.add(made(1))
    cursors.commit(1)
    found = cursors.get("g", 7)
    assert (found.positions, found.moved_by, found.moved_at_us) == ({0: 10, 1: 3}, "somebody", 9)


def test_whatever_else_is_in_the_log_says_nothing(log):
    for body in (b"", b"rubbish", bytes(batch.encode_at(5, [b"g"], [b'{"type":"moved"}']).body)):
        log.state.apply(at(1), body)
    assert log.state.last("g", "m") is None


def test_what_is_unfinished_counts_until_it_is_committed_that_it_is_done(log):
    log.add(made(1))
    assert log.state.all_unfinished() == [made(1)], "not committed yet"
    log.state.commit(1)
    log.add(TransactionDone("g", "m", 1))
    assert log.state.all_unfinished() == [made(1)], "it may be cut back"
    log.state.commit(2)
    assert log.state.all_unfinished() == []
