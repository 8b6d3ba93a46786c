"""Pieces of derived state for a successor that begins anew: from the log's start, and from nowhere else."""

from types import SimpleNamespace

import pytest

from stentor import limits
from stentor.broker.partitions.state_pieces import StatePieces
from stentor.core.chain_messages import AskState, StatePiece
from stentor.core.replica_events import GiveState
from stentor.errors import StorageError


class Reads:
    """A disk that reads when it is told to."""

    def __init__(self):
        self.waiting = []

    def submit(self, work, done):
        self.waiting.append((work, done))

    def run(self):
        now, self.waiting = self.waiting, []
        for work, done in now:
            try:
                result = work()
            except StorageError as error:
                done(None, error)
            else:
                done(result, None)


class Log:
    start = 100

    def __init__(self, state):
        self.state, self.loads = state, 0

    def start_snapshot(self):
        self.loads += 1
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


@pytest.fixture
def giving(monkeypatch):
    monkeypatch.setattr(limits, "STATE_PIECE_BYTES", 4)
    partition = SimpleNamespace(log=Log(b"0123456789"), reads=Reads(), failures=[])
    partition.read_failed = partition.failures.append
    partition.pieces = StatePieces(partition)
    partition.told = []
    return partition


def ask(giving, position, cut=100):
    giving.pieces.give(GiveState("b", AskState(3, 7, cut, position)), lambda to, piece: giving.told.append((to, piece)))
    giving.reads.run()
    told, giving.told = giving.told, []
    return told


def test_the_disk_is_read_once_for_all_pieces(giving):
    assert ask(giving, 0) == [("b", StatePiece(3, 7, 0, 10, b"0123"))]
    assert ask(giving, 4) == [("b", StatePiece(3, 7, 4, 10, b"4567"))]
    assert ask(giving, 8) == [("b", StatePiece(3, 7, 8, 10, b"89"))]
    assert giving.log.loads == 1
    assert ask(giving, 8) == [("b", StatePiece(3, 7, 8, 10, b"89"))], "the last one was lost"
    assert giving.log.loads == 2


def test_no_state_is_one_empty_piece(giving):
    giving.log.state = None
    assert ask(giving, 0) == [("b", StatePiece(3, 7, 0, 0, b""))]


@pytest.mark.parametrize("start", [100, 120])
def test_a_log_that_begins_elsewhere_has_no_such_state(giving, start):
    ask(giving, 0)
    giving.log = Log(b"another")
    giving.log.start = start
    assert ask(giving, 4, cut=90) == [("b", StatePiece(3, 7, 4, gone=True))]


def test_retention_that_passes_while_the_disk_reads_is_noticed(giving):
    class Moving(Log):
        def start_snapshot(self):
            self.start = 120
            return super().start_snapshot()

    giving.log = Moving(b"0123456789")
    assert ask(giving, 0) == [("b", StatePiece(3, 7, 0, gone=True))]


def test_a_disk_that_fails_is_a_failed_read(giving):
    giving.log.state = StorageError("no")
    assert ask(giving, 0) == []
    assert len(giving.failures) == 1
