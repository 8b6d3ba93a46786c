"""Tables: versions derived from a log, conditions that the head decides, and outcomes that resends get again (C20)."""

import random

import pytest
from tests.alone import alone
from tests.headers import Batch, appended

from stentor import limits
from stentor.core.dedupe import Resend
from stentor.core.derived import States
from stentor.core.replica_events import Answer, Append, Durable, Publish
from stentor.core.table import ABSENT, KeyChange, KeyLease, TableState
from stentor.errors import CorruptData

ALL = 3
ANYHOW = None


def table() -> TableState:
    return TableState(lambda _, rows: rows)


def batch(base, rows, *, refused=False, sequence=0):
    return Batch(base, base + len(rows), 1, 7, 0, sequence, 0, 0, refused)


def put(key, condition=ANYHOW):
    return KeyChange(key, deletes=False, condition=condition)


def delete(key, condition=ANYHOW):
    return KeyChange(key, deletes=True, condition=condition)


def holding(*rows):
    """A table with these rows, each a batch of its own, all committed."""
    state = table()
    for offset, row in enumerate(rows):
        state.apply(batch(offset, [row]), [row])
    state.commit(len(rows))
    return state


def allows(state, *rows):
    return state.allows(batch(0, rows), list(rows))


# --- conditions -----------------------------------------------------------------------------------


def test_a_version_must_be_the_newest_one():
    state = holding(put(b"a"), put(b"b"), put(b"a"))
    assert allows(state, put(b"a", 2))
    assert not allows(state, put(b"a", 0))
    assert not allows(state, put(b"a", 1))
    assert not allows(state, put(b"a", ABSENT))
    assert not allows(state, put(b"c", 0))


def test_absent_is_what_was_never_set_or_is_deleted():
    state = holding(put(b"a"), delete(b"a"), put(b"b"))
    assert allows(state, put(b"a", ABSENT))
    assert allows(state, put(b"c", ABSENT))
    assert allows(state, delete(b"c", ABSENT))
    assert not allows(state, put(b"b", ABSENT))
    assert not allows(state, put(b"a", 0)), "a version from before the deletion"
    assert not allows(state, put(b"a", 1)), "the deletion is no version"


def test_what_is_not_committed_yet_counts():
    state = holding(put(b"a"))
    state.apply(batch(1, [put(b"a")]), [put(b"a")])
    state.apply(batch(2, [put(b"b")]), [put(b"b")])
    assert not allows(state, put(b"a", 0))
    assert allows(state, put(b"a", 1))
    assert not allows(state, put(b"b", ABSENT))
    state.apply(batch(3, [delete(b"a")]), [delete(b"a")])
    assert allows(state, put(b"a", ABSENT))
    assert (state.version(b"a"), state.committed_version(b"a")) == (ABSENT, 0)


def test_all_rows_must_hold():
    state = holding(put(b"a"), put(b"b"))
    assert allows(state, put(b"a", 0), put(b"b", 1), put(b"c", ABSENT), put(b"d"))
    assert not allows(state, put(b"a", 0), put(b"b", 0))
    assert not allows(state, put(b"d"), put(b"c", ABSENT), put(b"a", ABSENT))


def test_rows_see_those_before_them():
    state = holding(put(b"a"))
    assert allows(state, delete(b"a", 0), put(b"a", ABSENT))
    assert not allows(state, put(b"b", ABSENT), put(b"b", ABSENT))
    assert not allows(state, delete(b"a"), put(b"a", 0))
    assert not allows(state, put(b"a"), put(b"a", 0))


def test_no_row_can_name_the_version_that_its_own_batch_makes():
    """The version is the head's to give. Before, the header says 0, or whatever a client says."""
    state = table()
    for said in (0, 5, 1 << 40):
        rows = [put(b"a"), put(b"a", said)]
        assert not state.allows(batch(said, rows), rows)


# --- derived from the log ---------------------------------------------------------------------------


def test_a_refused_batch_changes_nothing():
    state = holding(put(b"a"))
    state.apply(batch(1, [put(b"a", 7)], refused=True), [put(b"a", 7)])
    assert state.version(b"a") == 0
    state.commit(2)
    assert state.committed_version(b"a") == 0
    assert state.statistics() == {"keys": 1}


def test_it_is_its_own_snapshot():
    state = holding(put(b"a"))
    assert state.snapshot() is None
    with pytest.raises(CorruptData, match="snapshot of a table"):
        state.restore(b"something")
    assert state.version(b"a") == 0, "what cannot be restored changes nothing"
    state.restore(None)
    assert state.version(b"a") == state.committed_version(b"a") == ABSENT


class Model:
    """A log of rows, and what a table is by definition: what its prefix says."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.log: list[tuple[Batch, list[KeyChange]]] = []
        self.committed = 0
        self.state = table()

    @property
    def end(self):
        return self.log[-1][0].end_offset if self.log else 0

    def versions(self, end):
        found: dict[bytes, int] = {}
        for header, rows in self.log:
            if header.end_offset <= end and not header.refused:
                for offset, row in enumerate(rows, header.base_offset):
                    found.pop(row.key, None)
                    if not row.deletes:
                        found[row.key] = offset
        return found

    def leases(self, end):
        rows = {
            offset: row
            for header, rows in self.log
            if not header.refused
            for offset, row in enumerate(rows, header.base_offset)
        }
        now = {key: (rows[version], version) for key, version in self.versions(end).items()}
        return {key: KeyLease(at, row.ttl_us, row.session) for key, (row, at) in now.items() if row.ttl_us}

    def holds(self, rows):
        """Row by row, with a version that nobody can name for what the batch itself sets."""
        now = self.versions(self.end)
        for row in rows:
            if row.condition is not None and now.get(row.key, ABSENT) != row.condition:
                return False
            now[row.key] = ABSENT if row.deletes else -2
        return True

    def row(self):
        key = self.rng.choice([b"a", b"b", b"c"])
        known = self.versions(self.end).get(key, ABSENT)
        condition = self.rng.choice([None, None, known, known, ABSENT, self.rng.randrange(self.end + 2)])
        lease = self.rng.choice([(0, b""), (0, b""), (5, b""), (9, b"s")])
        return KeyChange(key, self.rng.random() < 0.3, condition, *lease)

    def append(self):
        rows = [self.row() for _ in range(self.rng.choice([1, 1, 1, 2, 3]))]
        allowed = self.state.allows(batch(self.rng.randrange(50), rows), rows)
        assert allowed == self.holds(rows), rows
        header = batch(self.end, rows, refused=not allowed)
        self.log.append((header, rows))
        self.state.apply(header, rows)

    def commit(self):
        ends = [header.end_offset for header, _ in self.log if header.end_offset >= self.committed]
        if ends:
            self.committed = self.rng.choice(ends)
            self.state.commit(self.committed)

    def cut(self):
        end = self.rng.choice([self.committed, *(h.end_offset for h, _ in self.log if h.end_offset >= self.committed)])
        self.log = [found for found in self.log if found[0].end_offset <= end]
        self.state.cut(end)

    def reopen(self):
        self.state = table()
        self.state.restore(None)
        for header, rows in self.log:
            self.state.apply(header, rows)
        self.state.commit(self.committed)

    def check(self):
        self.state.check_invariants()
        applied, committed = self.versions(self.end), self.versions(self.committed)
        for key in (b"a", b"b", b"c"):
            assert self.state.version(key) == applied.get(key, ABSENT)
            assert self.state.committed_version(key) == committed.get(key, ABSENT)
            assert self.state.lease(key) == self.leases(self.end).get(key)
        assert self.state.leases == self.leases(self.committed)
        assert self.state.statistics() == {"keys": len(committed)}


@pytest.mark.parametrize("seed", range(40))
def test_it_is_a_function_of_the_log_whatever_is_appended_committed_cut_and_read_again(seed):
    model = Model(seed)
    steps = [model.append] * 6 + [model.commit] * 3 + [model.cut, model.reopen]
    for _ in range(200):
        model.rng.choice(steps)()
        model.check()


# --- the head ---------------------------------------------------------------------------------------


class Head:
    """A replica on its own, with a table."""

    def __init__(self, states=None, **where):
        self.states = states or States(table())
        self.replica = alone(states=self.states, **where)
        self.tickets = 0

    def publish(self, sequence, *rows):
        """Its effects; what it appends is in the log then."""
        self.tickets += 1
        conditional = batch(0, rows) if any(row.condition is not None for row in rows) else None
        event = Publish(
            self.tickets, ALL, len(rows), 7, 0, sequence, 100 + sequence, conditional=conditional, body=list(rows)
        )
        (effect,) = self.replica.step(event, 1)
        if isinstance(effect, Append):
            self.replica.step(appended(event, effect, list(rows)), 1)
        return effect

    def durable(self):
        """Everything is on disk: what is answered then."""
        effects = self.replica.step(Durable(self.replica.end), 1)
        return [(effect.ticket, effect.base_offset, effect.refused) for effect in effects if isinstance(effect, Answer)]


def test_a_refused_batch_is_written_with_its_sequence_and_answered_once_committed():
    head = Head()
    assert head.publish(0, put(b"a", ABSENT)) == Append(0, 1, 0)
    assert head.publish(1, put(b"a", ABSENT)) == Append(1, 1, 0, refused=True)
    assert head.publish(2, put(b"a", 0)) == Append(2, 1, 0)
    assert head.durable() == [(1, 0, False), (2, 1, True), (3, 2, False)]


def test_two_changes_in_flight_are_decided_one_after_the_other():
    head = Head()
    head.publish(0, put(b"a"))
    head.durable()
    assert not head.publish(1, put(b"a", 0)).refused
    assert head.publish(2, put(b"a", 0)).refused
    assert head.durable() == [(2, 1, False), (3, 2, True)]


def test_a_resend_gets_the_same_answer_before_and_after_the_commit():
    head = Head()
    head.publish(0, put(b"a", ABSENT))
    head.publish(1, put(b"a", ABSENT))
    head.publish(1, put(b"a", ABSENT))
    assert head.durable() == [(1, 0, False), (2, 1, True), (3, 1, True)]
    for _ in range(2):
        answer = head.publish(1, put(b"a", ABSENT))
        assert (answer.base_offset, answer.refused) == (1, True)
    answer = head.publish(0, put(b"a", ABSENT))
    assert (answer.base_offset, answer.refused) == (0, False)
    assert head.replica.end == 2


def test_a_resend_is_not_decided_again():
    """What was refused stays refused, even if its condition would hold now; what was done is done."""
    head = Head()
    head.publish(0, put(b"a"))
    assert head.publish(1, put(b"a", ABSENT)).refused
    head.publish(2, delete(b"a"))
    head.durable()
    answer = head.publish(1, put(b"a", ABSENT))
    assert isinstance(answer, Answer)
    assert answer.refused


def test_another_life_that_restored_a_snapshot_gives_the_same_answer():
    head = Head()
    head.publish(0, put(b"a", ABSENT))
    head.publish(1, put(b"a", ABSENT))
    head.durable()
    states = States(table())
    states.begin(2)
    assert not states.restore(head.states.snapshot(), 2), "a table is in no snapshot"
    assert states.restore(None, 0)
    rows = [put(b"a", ABSENT)]
    states.replay(batch(0, rows), rows)
    states.replay(batch(1, rows, refused=True, sequence=1), rows)
    again = Head(states, end=2)
    answer = again.publish(1, put(b"a", ABSENT))
    assert (answer.base_offset, answer.refused) == (1, True)
    assert not again.publish(2, put(b"a", 0)).refused


def test_a_batch_that_a_search_has_found_is_answered_as_it_was():
    head = Head()
    head.publish(0, put(b"a"))
    head.durable()
    event = Publish(9, ALL, 1, 8, 0, 5, 1, known=Resend(0, 1, 0, refused=True))
    (answer,) = head.replica.step(event, 1)
    assert answer.refused


# --- a sync that commits very many rows ------------------------------------------------------------


def test_what_is_committed_is_taken_over_in_pieces_and_nobody_notices(monkeypatch):
    """A sync of 64 MiB may commit a million rows: to take them over at once held the loop for 0.7 s."""
    monkeypatch.setattr(limits, "TABLE_COMMIT_ROWS", 30)
    state = table()
    for number in range(20):
        rows = [KeyChange(b"%d" % (10 * number + row), deletes=False, ttl_us=5) for row in range(10)]
        state.apply(batch(10 * number, rows), rows)
    state.commit(150)
    assert state.statistics()["keys"] == 30
    assert [state.version(b"%d" % number) for number in range(200)] == list(range(200))
    assert all(state.lease(b"%d" % number).version == number for number in range(200))
    state.check_invariants()
    state.cut(150)
    assert state.version(b"160") == ABSENT
    assert state.version(b"149") == 149
    state.check_invariants()
    for taken in (60, 90, 120, 150, 150):
        state.take_over(30)
        assert state.statistics()["keys"] == len(state.leases) == taken
    state.check_invariants()


def test_what_waits_to_be_taken_over_gets_less_while_more_comes(monkeypatch):
    monkeypatch.setattr(limits, "TABLE_COMMIT_ROWS", 1)
    state = table()
    for number in range(100):
        rows = [put(b"%d" % row) for row in range(10)]
        state.apply(batch(10 * number, rows), rows)
    state.commit(1_000)
    for number in range(100, 200):
        rows = [put(b"%d" % row) for row in range(10)]
        state.apply(batch(10 * number, rows), rows)
    assert len(state._pending) == 100, "all that is committed"
    assert state.committed_version(b"0") == 990
