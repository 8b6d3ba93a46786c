"""States derived from a log: a function of its prefix, whatever is cut, restored and replayed (C19)."""

import random
from collections import deque

import msgspec
import pytest
from tests.headers import Batch

from stentor.core.dedupe import Dedupe
from stentor.core.derived import States
from stentor.errors import CorruptData, InternalError, InvalidArgument


class Sums:
    """What bodies add up to, with an overlay that can be undone; takes a snapshot now and then."""

    name = "sums"
    wants_bodies = True
    undoes = True

    def __init__(self, *, vital=False, came_later=False, often=1):
        self.vital = vital
        self.came_later = came_later
        self.committed = 0
        self.pending: deque[tuple[int, int]] = deque()
        self.often, self.asked = often, 0

    @property
    def applied(self):
        return self.committed + sum(number for _, number in self.pending)

    def apply(self, batch, body):
        self.pending.append((batch.end_offset, int(bytes(body))))

    def allows(self, batch, body):
        return True

    def commit(self, end):
        while self.pending and self.pending[0][0] <= end:
            self.committed += self.pending.popleft()[1]

    def cut(self, end):
        while self.pending and self.pending[-1][0] > end:
            self.pending.pop()

    def snapshot(self):
        self.asked += 1
        return str(self.applied).encode() if self.asked % self.often == 0 else None

    def restore(self, snapshot):
        self.pending.clear()
        self.committed = int(snapshot or 0)

    def check_invariants(self):
        assert list(self.pending) == sorted(self.pending)


class Log:
    """Batches with snapshots at the starts of segments, as a broker keeps them."""

    def __init__(self, states):
        self.states = states
        self.batches: list[tuple[Batch, bytes]] = []
        self.snapshots: dict[int, bytes] = {}
        self.start = self.committed = 0

    @property
    def end(self):
        return self.batches[-1][0].end_offset if self.batches else self.start

    def append(self, number):
        sequence = sum(1 for batch, _ in self.batches)
        batch = Batch(self.end, self.end + 1, 1, 7, 0, sequence, number, 0)
        self.batches.append((batch, b"%d" % number))
        self.states.apply(*self.batches[-1])

    def roll(self):
        self.snapshots[self.end] = self.states.snapshot()

    def commit(self, end):
        self.committed = end
        self.states.commit(end)

    def cut(self, end):
        self.batches = [row for row in self.batches if row[0].end_offset <= end]
        self.snapshots = {base: data for base, data in self.snapshots.items() if base <= end}
        if not self.states.cut(end):
            self.derive(self.states)
        self.states.commit(self.committed)

    def derive(self, states):
        """As `storage.log` does it."""
        oldest = self.start
        for base in sorted(self.snapshots, reverse=True):
            if states.restore(self.snapshots[base], base):
                oldest = base
                break
        else:
            states.restore(None, self.start)
        for batch, body in self.batches:
            if batch.base_offset >= oldest:
                states.replay(batch, memoryview(body))


def opened(log, **options):
    states = States(Sums(**options))
    states.begin(log.committed)
    log.derive(states)
    states.commit(log.committed)
    return states


def sums(states):
    return next(state for state in states if isinstance(state, Sums))


@pytest.mark.parametrize("often", [1, 3])
@pytest.mark.parametrize("seed", range(30))
def test_states_are_a_function_of_the_prefix(seed, often):
    chance = random.Random(seed)
    log = Log(States(Sums(often=often)))
    for _ in range(120):
        match chance.randrange(8):
            case 0:
                log.roll()
            case 1:
                log.commit(chance.randint(log.committed, log.end))
            case 2:
                log.cut(chance.randint(log.committed, log.end))
            case _:
                log.append(chance.randrange(1000))
        numbers = [int(body) for _, body in log.batches]
        plain = Dedupe()
        for batch, _ in log.batches:
            plain.apply(batch)
        for states in (log.states, opened(log)):
            assert sums(states).applied == sum(numbers)
            assert sums(states).committed == sum(numbers[: log.committed])
            assert states.dedupe.snapshot() == plain.snapshot()
            states.check_invariants()


def test_a_snapshot_of_producers_alone_is_what_older_versions_know():
    log = Log(States())
    log.append(5)
    log.roll()
    alone = Dedupe()
    alone.restore(log.snapshots[1])
    assert alone.snapshot() == log.states.dedupe.snapshot() == log.snapshots[1]


def test_a_snapshot_of_an_older_version_leaves_the_other_states_to_the_log():
    log = Log(States())
    for number in (3, 4):
        log.append(number)
        log.roll()
    states = opened(log)
    assert sums(states).applied == 7


def test_a_lost_snapshot_of_a_vital_state_is_damage():
    log = Log(States(Sums()))
    log.append(3)
    log.start, log.batches = 1, []  # retention has let it go, and its snapshot with it
    assert sums(opened(log)).applied == 0
    with pytest.raises(CorruptData, match="sums is lost"):
        opened(log, vital=True)


def test_a_vital_state_that_came_later_was_empty_before():
    log = Log(States())
    log.append(3)
    log.roll()
    log.start, log.batches = 1, []
    log.append(4)
    assert sums(opened(log, vital=True, came_later=True)).applied == 4


@pytest.mark.parametrize("snapshot", [b"\x81\xa4sums", b"\x81\xa4sums\x01", b"\xde\xff\xff"])
def test_a_snapshot_that_cannot_be_read_is_refused(snapshot):
    states = States(Sums())
    states.begin(5)
    with pytest.raises(CorruptData):
        states.restore(snapshot, 5)


def test_an_unknown_state_in_a_snapshot_is_passed_over():
    """A newer version had it; whoever goes back to this one does without."""
    states = States(Sums())
    states.begin(5)
    snapshot = msgspec.msgpack.encode({"sums": b"9", "later": b"?", "producers": Dedupe().snapshot()})
    assert states.restore(snapshot, 5)
    assert sums(states).applied == 9


def test_what_is_committed_does_not_pile_up_while_a_log_is_read():
    log = Log(States(Sums()))
    for number in range(100):
        log.append(number)
    log.commit(90)
    states, most = States(Sums()), 0
    states.begin(log.committed)
    states.restore(None, 0)
    for batch, body in log.batches:
        states.replay(batch, body)
        most = max(most, len(sums(states).pending) if batch.end_offset <= 90 else 0)
    assert (most, len(sums(states).pending), sums(states).committed) == (0, 10, sum(range(90)))


# --- what cannot be applied (C33) -----------------------------------------------------------------


class Choosy(Sums):
    """Says of some bodies that they cannot be read, and breaks over others."""

    def apply(self, batch, body):
        if bytes(body) == b"unreadable":
            raise CorruptData("Not a number.")
        if bytes(body) == b"impossible":
            raise InvalidArgument("No such number.")
        super().apply(batch, body)


def batch_at(offset):
    return Batch(offset, offset + 1, 1, 0, 0, 0, 0, 0)


def offer(states, offset, body):
    states.apply(batch_at(offset), body)


def test_a_batch_that_cannot_be_read_is_passed_over_and_counted():
    states = States(choosy := Choosy())
    for offset, body in enumerate((b"1", b"unreadable", b"2", b"impossible", b"4")):
        offer(states, offset, body)
    states.commit(5)
    assert (choosy.committed, states.passed_over) == (7, 2)


def test_a_replay_passes_over_the_same_batches():
    replayed = States(choosy := Choosy())
    replayed.begin(5)
    replayed.restore(None, 0)
    for offset, body in enumerate((b"1", b"unreadable", b"2", b"impossible", b"4")):
        replayed.replay(batch_at(offset), body)
    assert (choosy.committed, replayed.passed_over) == (7, 2)


def test_any_other_error_stops_the_copy():
    states = States(Choosy())
    with pytest.raises(InternalError, match="sums cannot be derived from the batch at offset 3"):
        offer(states, 3, b"not a number at all")
