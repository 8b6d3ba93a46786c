"""Named cursors: a function of the log's prefix, that never goes back by itself (C19)."""

import random

import msgspec
import pytest
from tests.headers import Batch

from stentor.core.cursors import CursorRecord, Cursors, Forgotten, Moved, NamedCursor
from stentor.core.derived import States
from stentor.errors import CorruptData, FormatTooNew

encode = msgspec.json.encode


def read(body):
    return (msgspec.json.decode(bytes(body), type=CursorRecord),)


def at(end):
    return Batch(end - 1, end, 1, 0, 0, 0, 0, 0)


class Log:
    """Records with snapshots at the starts of segments, as a broker keeps them."""

    def __init__(self):
        self.cursors = Cursors(read)
        self.states = States(self.cursors)
        self.records = []
        self.snapshots = {}
        self.start = self.committed = 0

    @property
    def end(self):
        return self.start + len(self.records)

    def append(self, *records):
        for record in records:
            self.records.append(record)
            self.states.apply(at(self.end), encode(record))

    def commit(self, end=None):
        self.committed = self.end if end is None else end
        self.states.commit(self.committed)

    def cut(self, end):
        self.records = self.records[: end - self.start]
        self.snapshots = {base: taken for base, taken in self.snapshots.items() if base <= end}
        if not self.states.cut(end):
            self.derive(self.states)
        self.states.commit(self.committed)

    def roll(self):
        self.snapshots[self.end] = self.states.snapshot()

    def let_go(self, start):
        """Retention: the segments before this one are gone."""
        self.records = self.records[start - self.start :]
        self.snapshots = {base: taken for base, taken in self.snapshots.items() if base >= start}
        self.start = start

    def derive(self, states):
        oldest = self.start
        for base in sorted(self.snapshots, reverse=True):
            if states.restore(self.snapshots[base], base):
                oldest = base
                break
        else:
            states.restore(None, self.start)
        for place, record in enumerate(self.records, self.start + 1):
            if place > oldest:
                states.replay(at(place), encode(record))

    def opened(self, committed):
        """The cursors of a copy that is opened, and knows of commits so far."""
        cursors = Cursors(read)
        states = States(cursors)
        states.begin(committed)
        self.derive(states)
        states.commit(committed)
        return cursors


def naive(records):
    """What the records say, the plain way."""
    view = {}
    for record in records:
        key = record.name, record.topic_id
        if isinstance(record, Forgotten):
            view = {k: v for k, v in view.items() if k != key and (record.name or k[1] != record.topic_id)}
            continue
        known = view.setdefault(key, {})
        for partition, offset in record.positions.items():
            known[partition] = offset if record.back else max(known.get(partition, 0), offset)
    return view


def positions(view):
    return {key: cursor.positions for key, cursor in view.items()}


def chosen(chance):
    name, topic_id = chance.choice("ab"), chance.choice([1, 2])
    if chance.random() < 0.1:
        return Forgotten(topic_id, chance.choice(["", name]))
    moves = {chance.randrange(3): chance.randrange(100) for _ in range(2)}
    return Moved(topic_id, name, moves, by="me", at_us=5, back=chance.random() < 0.1)


@pytest.mark.parametrize("seed", range(40))
def test_cursors_are_a_function_of_the_prefix(seed):
    chance = random.Random(seed)
    log, everything = Log(), []
    for _ in range(150):
        match chance.randrange(10):
            case 0:
                log.roll()
            case 1 | 2:
                log.commit(chance.randint(log.committed, log.end))
            case 3:
                end = chance.randint(log.committed, log.end)
                log.cut(end)
                del everything[end:]
            case 4:
                starts = [base for base in log.snapshots if log.start < base <= log.committed]
                if starts:
                    log.let_go(chance.choice(starts))
            case _:
                everything.append(chosen(chance))
                log.append(everything[-1])
        for cursors in (log.cursors, log.opened(log.committed)):
            assert positions(cursors._applied) == naive(everything)
            assert positions(cursors._committed) == naive(everything[: log.committed])
            cursors.check_invariants()
        assert positions(log.opened(chance.randint(0, log.committed))._applied) == naive(everything)


def test_a_move_goes_forward_in_each_partition_by_itself():
    log = Log()
    log.append(Moved(1, "a", {0: 5, 1: 5}, "x", 10), Moved(1, "a", {0: 3, 1: 8, 2: 1}, "y", 20))
    log.commit()
    assert log.cursors.get("a", 1) == NamedCursor({0: 5, 1: 8, 2: 1}, "y", 20)


def test_a_move_that_changes_nothing_leaves_who_moved_it():
    log = Log()
    log.append(Moved(1, "a", {0: 5}, "x", 10), Moved(1, "a", {0: 5}, "y", 20))
    log.commit()
    assert log.cursors.get("a", 1) == NamedCursor({0: 5}, "x", 10)


def test_a_move_goes_back_only_if_it_says_so():
    log = Log()
    log.append(Moved(1, "a", {0: 5, 1: 5}), Moved(1, "a", {0: 2}, "operator", 9, back=True))
    log.commit()
    assert log.cursors.get("a", 1) == NamedCursor({0: 2, 1: 5}, "operator", 9)


def test_what_is_not_committed_is_told_to_nobody_and_undone_by_a_cut():
    log = Log()
    log.append(Moved(1, "a", {0: 5}))
    log.commit()
    log.append(Moved(1, "a", {0: 9}), Forgotten(1, "a"))
    assert log.cursors.get("a", 1).positions == {0: 5}
    assert log.cursors.topics() == set()
    log.cut(2)
    assert log.cursors.topics() == {1}
    log.commit()
    assert log.cursors.get("a", 1).positions == {0: 9}


def test_the_cursors_of_a_deleted_topic_go_at_once():
    log = Log()
    log.append(Moved(1, "a", {0: 5}), Moved(1, "b", {0: 5}), Moved(2, "a", {0: 7}), Forgotten(1))
    log.commit()
    assert log.cursors.of_topic(1) == {}
    assert log.cursors.of_topic(2) == {"a": NamedCursor({0: 7}, "", 0)}


def test_a_record_is_news_if_it_changes_something_or_its_cursor_is_not_settled():
    log = Log()
    assert log.cursors.is_news(Moved(1, "a", {0: 0}))
    log.append(Moved(1, "a", {0: 5}))
    assert log.cursors.is_news(Moved(1, "a", {0: 5})), "the one before may be cut off yet"
    assert not log.cursors.is_news(Forgotten(2, "a"))
    log.commit()
    assert not log.cursors.is_news(Moved(1, "a", {0: 4}))
    assert log.cursors.is_news(Moved(1, "a", {0: 4}, back=True))
    assert log.cursors.is_news(Moved(1, "a", {0: 6}))


def test_the_size_is_counted_with_what_would_come():
    log = Log()
    log.append(Moved(1, "a", {0: 5, 1: 5}))
    assert log.cursors.size_with(Moved(1, "a", {0: 6})) == 3
    assert log.cursors.size_with(Moved(1, "b", {0: 6})) == 5
    assert log.cursors.size_with(Forgotten(1)) == 0


def test_a_log_begins_where_all_is_committed_even_if_that_was_not_heard():
    """Retention follows the head at once; the commit floor is stored now and then."""
    log = Log()
    log.append(Moved(1, "a", {0: 5}))
    log.roll()
    log.commit()
    log.let_go(1)
    assert log.opened(committed=0).get("a", 1).positions == {0: 5}


def test_a_lost_snapshot_is_damage():
    log = Log()
    log.append(Moved(1, "a", {0: 5}))
    log.commit()
    log.let_go(1)
    with pytest.raises(CorruptData, match="cursors is lost"):
        log.opened(log.committed)


def test_a_snapshot_that_cannot_be_used_changes_nothing():
    log = Log()
    log.append(Moved(1, "a", {0: 5}))
    log.commit()
    with pytest.raises(CorruptData):
        log.cursors.restore(b"\x92\x01\x93")
    with pytest.raises(FormatTooNew):
        log.cursors.restore(msgspec.msgpack.encode([2, {"cursors": "otherwise"}]))
    assert log.cursors.get("a", 1).positions == {0: 5}
