"""Keys that expire: their times are counted by the head, begin in full, and never end early (C21)."""

import random
from types import SimpleNamespace

import pytest
from tests.headers import Batch

from stentor.core import expiry as expiry_module
from stentor.core.expiry import Expiry
from stentor.core.table import ABSENT, KeyChange, KeyLease, TableState

S = 1_000_000
STEP = 100_000  # microseconds: a beat
OWNER, OTHER = b"o" * 16, b"x" * 16


class Head:
    """A table and the machine of its head, in a time of their own."""

    def __init__(self):
        self.table = TableState(lambda _, rows: rows)
        self.expiry = Expiry(self.table)
        self.now = 7 * S
        self.end = 0
        self.gone = {}  # key: when it was due
        self.lead(1)

    def lead(self, epoch):
        self.expiry.lead(epoch)

    def apply(self, *rows):
        base, self.end = self.end, self.end + len(rows)
        self.table.apply(Batch(base, self.end, 1, 0, 0, 0, 0, 0, refused=False), rows)
        return base

    def put(self, key, ttl=0.0, session=b"", *, commit=True):
        version = self.apply(KeyChange(key, deletes=False, ttl_us=round(ttl * S), session=session))
        if commit:
            self.table.commit(self.end)
        return version

    def delete(self, key):
        self.apply(KeyChange(key, deletes=True))
        self.table.commit(self.end)

    def tick(self, *, counts=True, step=STEP):
        self.now += step
        due = self.expiry.tick(self.now, counts=counts)
        self.expiry.check_invariants()
        self.table.check_invariants()
        return due

    def run(self, seconds, *, deletes=True):
        """Time passes; what is due is deleted, as a head would."""
        for _ in range(round(seconds * S / STEP)):
            for key, version in self.tick():
                assert self.table.version(key) == version
                self.gone[key] = self.now
                if deletes:
                    self.delete(key)

    def touch(self, *keys, session=b""):
        self.expiry.touched(keys, session, self.now)


@pytest.fixture
def head():
    return Head()


def test_a_key_goes_when_its_time_is_over_and_not_before(head):
    head.put(b"a", 2)
    began = head.now
    head.run(5)
    assert 2 * S <= head.gone[b"a"] - began <= 2 * S + 3 * STEP
    assert head.table.version(b"a") == ABSENT
    assert head.expiry.timers == 0


def test_a_key_without_a_ttl_stays(head):
    head.put(b"a")
    head.run(100)
    assert head.gone == {}


def test_a_key_that_is_put_again_without_ttl_stays(head):
    head.put(b"a", 1)
    head.run(0.5)
    head.put(b"a")
    head.run(10)
    assert head.gone == {}
    assert head.expiry.timers == 0


def test_the_time_of_a_key_that_is_put_again_begins_anew(head):
    head.put(b"a", 1)
    head.run(0.8)
    head.put(b"a", 1)
    began = head.now
    head.run(5)
    assert head.gone[b"a"] - began >= 1 * S


@pytest.mark.parametrize(("first", "second"), [(1, 10), (10, 1), (1, 1)])
def test_the_newest_ttl_counts(head, first, second):
    head.put(b"a", first)
    head.run(0.5)
    head.put(b"a", second)
    began = head.now
    head.run(30)
    assert second * S <= head.gone[b"a"] - began <= second * S + 3 * STEP


def test_a_touch_begins_the_time_anew(head):
    head.put(b"a", 1)
    for _ in range(10):
        head.run(0.7)
        head.touch(b"a")
    began = head.now
    assert head.gone == {}
    head.run(5)
    assert head.gone[b"a"] - began >= 1 * S


def test_a_session_keeps_all_its_keys_and_no_others(head):
    for number in range(20):
        head.put(b"mine/%d" % number, 1, OWNER)
        head.put(b"theirs/%d" % number, 1, OTHER)
    for _ in range(6):
        head.run(0.5)
        head.touch(session=OWNER)
    assert set(head.gone) == {b"theirs/%d" % number for number in range(20)}
    head.run(3)
    assert len(head.gone) == 40


def test_a_session_without_keys_is_not_remembered(head):
    for number in range(100):
        head.touch(session=b"%016d" % number)
    assert head.expiry._sessions == {}
    head.put(b"a", 1, OWNER)
    head.run(3)
    assert head.expiry._sessions == {}


def test_a_new_epoch_begins_all_times_in_full(head):
    head.put(b"a", 2)
    head.put(b"b", 2, OWNER)
    head.run(1.8)
    head.lead(2)
    began = head.now
    head.run(5)
    assert min(head.gone.values()) - began >= 2 * S


def test_who_leads_again_has_forgotten_what_it_counted(head):
    head.put(b"a", 2)
    head.run(1.8)
    head.expiry.rest()
    head.now += 100 * S  # another one leads, and the key is touched there
    head.lead(3)
    began = head.now
    head.run(5)
    assert head.gone[b"a"] - began >= 2 * S


def test_who_does_not_lead_counts_nothing(head):
    head.expiry.rest()
    head.put(b"a", 0.1)
    head.run(5)
    assert head.gone == {}
    assert head.table.news is None, "nobody would take it"


def test_a_broker_that_stood_still_lets_nothing_go_for_that(head):
    """C15: touches may wait in its sockets."""
    head.put(b"a", 2)
    head.run(1)
    assert head.tick(step=60 * S) == []
    head.touch(b"a")
    began = head.now
    head.run(5)
    assert head.gone[b"a"] - began >= 2 * S


def test_time_does_not_count_while_nothing_can_be_touched(head):
    head.put(b"a", 2)
    head.run(1)
    for _ in range(100):
        assert head.tick(counts=False) == []
    began = head.now
    head.run(5)
    assert 0.8 * S <= head.gone[b"a"] - began <= 1.5 * S


def test_a_change_on_its_way_saves_a_key(head):
    """C20, C21: the delete is on the condition that the key is still at its version, in the log and not in the past."""
    head.put(b"a", 1)
    head.run(0.5)
    version = head.put(b"a", 1, commit=False)
    head.run(20)
    assert head.gone == {}
    head.table.commit(head.end)
    began = head.now
    head.run(5)
    assert head.gone[b"a"] - began >= 1 * S
    assert head.table.leases == {}
    assert version == 1


def test_what_was_cut_off_takes_its_lease_along(head):
    head.put(b"a", 1)
    head.put(b"a", 100, commit=False)
    assert head.table.lease(b"a") == KeyLease(1, 100 * S, b"")
    head.table.cut(1)
    assert head.table.lease(b"a") == KeyLease(0, 1 * S, b"")
    head.table.check_invariants()


def test_a_delete_that_is_not_taken_is_tried_again(head):
    head.put(b"a", 1)
    head.run(1.5, deletes=False)
    first = head.gone.pop(b"a")
    head.run(1.5, deletes=False)
    assert head.gone[b"a"] - first >= 0.9 * S


def test_many_keys_are_looked_at_a_few_at_a_time(head, monkeypatch):
    monkeypatch.setattr(expiry_module, "_LOOKED_MAX", 10)
    head.apply(*(KeyChange(b"%d" % number, deletes=False, ttl_us=S) for number in range(95)))
    head.table.commit(head.end)
    due = [head.tick() for _ in range(20)]
    assert max(map(len, due)) == 10
    assert {key for some in due for key, _ in some} == {b"%d" % number for number in range(95)}


def test_a_batch_of_deletes_has_a_size(head, monkeypatch):
    monkeypatch.setattr(expiry_module, "_EXPIRED_BYTES_MAX", 1_000)
    for number in range(20):
        head.put(b"%0300d" % number, 1)
    counts = [len(due) for due in (head.tick() for _ in range(30))]
    assert max(counts) == 4
    assert sum(counts) >= 20


def test_slots_that_were_left_do_not_pile_up(head, monkeypatch):
    monkeypatch.setattr(expiry_module, "_EMPTY_SLOTS_MAX", 5)
    for number in range(1_000):
        head.put(b"a", 5_000 + number)
        head.tick()
        head.put(b"a", 60)
        head.tick()
    assert len(head.expiry._order) <= 2 * len(head.expiry._slots) + 5 + 1


@pytest.mark.parametrize("seed", range(30))
def test_by_chance_nothing_goes_early_nothing_stays_late_and_all_is_in_order(seed):  # noqa: C901 - one line for each thing that may happen
    """A model that keeps, for every key, since when it has its time; commits, touches, cuts and epochs by chance."""
    rng, head = random.Random(seed), Head()
    model = {}  # key: (ttl, session, since)
    heard = {OWNER: 0, OTHER: 0}
    for _ in range(600):
        what, key = rng.random(), b"%d" % rng.randrange(8)
        if what < 0.15:
            ttl, session = rng.choice([0, 0.3, 1, 4]), rng.choice([b"", OWNER, OTHER])
            head.put(key, ttl, session)
            model[key] = SimpleNamespace(ttl=ttl * S, session=session, since=head.now)
        elif what < 0.25:
            head.touch(key)
            if key in model:
                model[key].since = head.now
        elif what < 0.3:
            session = rng.choice([OWNER, OTHER])
            head.touch(session=session)
            heard[session] = head.now
        elif what < 0.32:
            head.lead(head.expiry._epoch + 1)
            for held in model.values():
                held.since = head.now
        elif what < 0.34:
            head.put(key, 1, commit=False)
            head.table.cut(head.end - 1)
            head.end -= 1
        for gone, version in head.tick():
            assert head.table.version(gone) == version
            held = model.pop(gone)
            since = max(held.since, heard.get(held.session, 0))
            assert held.ttl, "it has no ttl"
            assert head.now - since >= held.ttl, "it went early"
            head.delete(gone)
        for held in model.values():
            since = max(held.since, heard.get(held.session, 0))
            assert not held.ttl or head.now - since <= held.ttl + 5 * STEP, "it stays too long"
