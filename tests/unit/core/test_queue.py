"""The state of a queue: a function of its log."""

import time
import zlib
from itertools import combinations

import pytest
from tests.queue_log import WALL, QueueLog, S, new_state

from stentor.core import queue_events as q
from stentor.core import queue_jobs
from stentor.core.queue import ENDED, QueueState
from stentor.core.queue_jobs import FORGOTTEN_AT_ONCE, UniqueNames
from stentor.core.queue_records import HolderLeft, JobBack, Purged, Settled, Took
from stentor.errors import CorruptData
from stentor.wire import queue_rows
from stentor.wire.header import HEADER_BYTES, unpack

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def write(log, *steps):
    log.append(queue_rows.encode_steps(steps, topic_id=1, partition=0))
    log.state.check_invariants()


def test_jobs_that_end_in_any_order_leave_the_first_that_is_open():
    log = QueueLog()
    log.put(*[b"job"] * 6)
    write(log, Took(A, 1, [0, 6], []), Settled(A, 1, [2, 4], [], []))
    assert log.state.first_open() == 0
    write(log, Settled(A, 2, [0, 1], [], []))
    assert log.state.first_open() == 1
    write(log, Settled(A, 3, [1, 1], [], []))
    assert log.state.first_open() == log.end
    assert log.state.finished == 6


def test_control_batches_are_no_jobs():
    log = QueueLog()
    log.put(b"one")
    write(log, Took(A, 1, [0, 1], []))
    log.put(b"two")
    assert log.state.next_fresh(0, log.end) == 2
    assert log.state.statistics()["waiting"] == 1


def test_an_attempt_is_counted_and_belongs_to_its_holder():
    log = QueueLog()
    log.put(b"job")
    write(log, Took(A, 1, [0, 1], []), HolderLeft(A, [JobBack(0, why="lost")]))
    write(log, Took(B, 1, [], [0]))
    (b,) = log.state.holders.values()
    assert log.state.attempts(0) == 2
    assert log.state.holds(b, 0, 2)
    assert not log.state.holds(b, 0, 1)
    assert not log.state.holds(log.state.gone[A], 0, 1)


def test_an_attempt_that_never_began_does_not_count():
    log = QueueLog()
    log.put(b"job")
    write(log, Took(A, 1, [0, 1], []), HolderLeft(A, [JobBack(0, counted=False)]))
    assert log.state.attempts(0) == 0


def test_terms_of_a_message_make_its_job_late_urgent_or_mortal():
    log = QueueLog()
    log.put(b"late", delay_us=5 * S)
    log.put(b"urgent", priority=9)
    log.put(b"mortal", ttl_us=S)
    log.put(b"then", at_us=WALL + 7 * S)
    jobs = log.state.jobs
    assert [jobs[offset].due_us for offset in range(4)] == [WALL + 5 * S, 0, 0, WALL + 7 * S]
    assert (jobs[1].priority, jobs[2].expires_us) == (9, WALL + S)


def test_a_unique_name_is_free_again_after_its_time():
    log = QueueLog()
    log.put(b"x", unique=b"invoice 7", unique_us=10 * S)
    (data,) = log.batches
    again = unpack(data)
    body = memoryview(data)[HEADER_BYTES:]
    assert not log.state.allows(again, body)
    log.now += 11 * S
    log.put(b"y", unique=b"invoice 7", unique_us=10 * S)
    assert log.state.allows(unpack(log.batches[0]), body) is False  # its header says the time of the first
    assert not log.state.uses(b"other", WALL)


def test_names_whose_time_is_over_go_some_at_a_time_and_all_in_the_end():
    names, count = UniqueNames({}), 40 * FORGOTTEN_AT_ONCE
    for number in range(count):
        names.use(b"%d" % number, 10, 0)
    names.use(b"first", 100, 50)
    assert len(names.until) == count + 1 - FORGOTTEN_AT_ONCE
    assert not any(until > 50 for name, until in names.until.items() if name != b"first")
    for number in range(count // (FORGOTTEN_AT_ONCE - 1) + 1):
        names.use(b"more %d" % number, 100, 50)
    assert min(names.until.values()) == 100


def test_to_forget_many_names_takes_no_longer_than_to_use_them():
    """A dict whose front was deleted is searched from where it once began: 100,000 names took four seconds."""

    def forgotten_in(count):
        names = UniqueNames({b"%d" % number: 10 for number in range(count)})
        before = time.thread_time()
        for number in range(count // (FORGOTTEN_AT_ONCE - 1) + 1):
            names.use(b"more %d" % number, 100, 50)
        assert min(names.until.values()) == 100
        return time.thread_time() - before

    few, many = (min(forgotten_in(count) for _ in range(3)) for count in (25_000, 100_000))
    assert many < 10 * few + 0.05


def test_the_same_state_comes_from_the_log_and_from_a_snapshot():
    log = QueueLog(ordered=True)
    log.put(*[b"job"] * 100, keys=[b"%d" % (n % 7) for n in range(100)])
    log.put(b"late", delay_us=S, unique=b"n", unique_us=S)
    write(
        log,
        Took(A, 3, [0, 50], [100]),
        Settled(A, 4, [10, 30], [JobBack(5, pause_us=7, why="bad"), JobBack(6, dead=True)], [1, 1]),
    )
    for state in (log.rederived(), new_state(ordered=True)):
        if not state.end:
            state.restore(log.state.snapshot())
        state.check_invariants()
        assert state.snapshot() == log.state.snapshot()
        assert state.first_open() == 0
        assert list(state.dead) == [6]
        assert state.holders[A].refused == [1, 1]


def test_a_snapshot_of_many_keys_does_not_try_to_compress_them(monkeypatch):
    """They are hashes: it would take a tenth of a second of the loop, for nothing."""
    log = QueueLog(ordered=True)
    for start in range(0, 20_000, 1_000):
        log.put(*[b"job"] * 1_000, keys=[b"%d" % number for number in range(start, start + 1_000)])
    compressed, compress = [], zlib.compress
    monkeypatch.setattr(
        zlib, "compress", lambda data, level: compressed.append(len(data) * level) or compress(data, level)
    )
    taken = log.state.snapshot()
    assert sum(compressed) < 200_000
    restored = new_state(ordered=True)
    restored.restore(taken)
    assert [restored.key_hash(offset) for offset in range(20_000)] == [
        log.state.key_hash(each) for each in range(20_000)
    ]
    few = QueueLog(ordered=True)
    few.put(*[b"job"] * 20_000, keys=[b"%d" % (number % 3) for number in range(20_000)])
    assert len(few.state.snapshot()) < 10_000


def test_a_snapshot_that_cannot_be_read_is_corrupt():
    with pytest.raises(CorruptData):
        new_state().restore(b"nonsense")


def test_retention_hears_only_of_ends_that_are_committed():
    log = QueueLog()
    log.put(b"one", b"two")
    log.commit()
    write(log, Took(A, 1, [0, 2], []), Settled(A, 1, [0, 1], [], []))
    assert (log.state.first_open(), log.state.committed_first) == (1, 0)
    log.commit()
    assert log.state.committed_first == 1
    restored = new_state()
    restored.restore(log.state.snapshot())
    assert restored.committed_first == 0
    restored.commit(log.end)
    assert restored.committed_first == 1


def test_a_job_that_is_appended_again_leaves_its_old_place():
    log = QueueLog()
    log.put(b"late", delay_us=S)
    log.put(b"other")
    job = log.state.jobs[0]
    moved = queue_rows.moved(0, WALL, None, b"late", [])
    log.append(queue_rows.whole(moved, topic_id=1, partition=0))
    assert log.state.jobs == {2: job}
    assert log.state.first_open() == 1
    log.append(queue_rows.whole(moved, topic_id=1, partition=0))  # it is not there any more
    assert log.state.jobs == {2: job}
    log.state.check_invariants()


def test_purging_ends_what_nobody_holds():
    log = QueueLog()
    log.put(*[b"job"] * 4)
    log.put(b"late", delay_us=S)
    write(log, Took(A, 1, [1, 1], []))
    write(log, Purged(log.end))
    assert log.state.statistics()["waiting"] == 0
    assert log.state.first_open() == 1


def test_tracebacks_of_many_dead_jobs_are_not_kept(monkeypatch):
    monkeypatch.setattr(queue_jobs, "TRACES_MAX", 2)
    log = QueueLog()
    log.put(*[b"bad"] * 3)
    write(log, Took(A, 1, [0, 3], []))
    back = [JobBack(offset, dead=True, why="bad", trace="long") for offset in range(3)]
    write(log, Settled(A, 1, [], back, []))
    assert [log.state.jobs[offset].trace for offset in range(3)] == ["long", "long", ""]


def test_a_million_jobs_are_cheap():
    """Not a measurement: a hundred times slower than what was measured, and this fails."""
    state = QueueState(lambda steps: steps, lambda *_: ())

    class Many:
        base_offset, end_offset, passed_over, control, generation, appended_at_us = 0, 900_000, False, False, 0, 0

    state.apply(Many(), b"")
    began = time.perf_counter()
    for first in range(1, 900_000 - 1_000, 1_000):
        state._apply(Took(A, first, [first, 1_000], []), 0)
        state._apply(Settled(A, first, [first, 1_000], [], []), 0)
    assert time.perf_counter() - began < 1
    state._apply(Took(A, 0, [0, 1], []), 0)
    state._apply(Settled(A, 0, [0, 1], [], []), 0)
    began = time.perf_counter()
    assert state.first_open() > 899_000 - 1_000
    assert time.perf_counter() - began < 0.01


def lively_log(ordered):
    """All kinds of steps, on jobs of all kinds."""
    log = QueueLog(ordered=ordered)
    log.lead()
    for holder in (A, B):
        log.hear(holder)
    numbers = {A: 0, B: 0}

    def take(holder, jobs):
        numbers[holder] += 1
        return log.take(holder, numbers[holder], jobs)

    for turn in range(1, 6):
        log.put(*[b"job"] * 4, keys=[b"%d" % key for key in range(4)])
        log.put(b"urgent", priority=3)
        log.put(b"late", delay_us=S)
        log.commit()
        taken = take(A, 3)
        done = [offset for offset, attempt in taken if attempt == 1][:1]
        failed = [q.GivenBack(offset, attempt, dead=turn == 2, why="bad") for offset, attempt in taken[-1:]]
        log.settle(A, turn, first=[each for offset in done for each in (offset, 1)], back=failed)
        take(B, 2)
        log.passes(1)
    log.ask(q.JobsBuried, 1)
    log.ask(q.HolderLeaving, A)
    log.put(*[b"more"] * 3)
    log.commit()
    return log


@pytest.mark.parametrize("ordered", [False, True])
def test_a_damaged_copy_counts_what_is_left_of_it(ordered):
    """K2: whichever batches cannot be read, at the beginning too, the others do."""
    log = lively_log(ordered)
    count = len(log.batches)
    for first, last in combinations(range(count), 2):
        state = new_state(ordered=ordered)
        for place, data in enumerate(log.batches):
            if place not in (first, last):
                header = unpack(data)
                state.apply(header, memoryview(data)[HEADER_BYTES:])
                assert state.end == header.end_offset
        assert state.end == log.end or count - 1 in (first, last)
        assert all(state.mark(offset) != ENDED for offset in state.jobs)
        if last == first + 1:
            work_off(state, ordered)


def work_off(state, ordered):
    """What is left can be handed out, settled and buried; whoever held something is gone."""
    log = QueueLog(ordered=ordered)
    log.state, log.end, log.committed = state, state.end, state.end
    log.lead()
    log.passes(60)
    log.hear(C)
    for number in range(1, 100):
        taken = log.take(C, number, 50) or []
        for offset, attempt in taken:
            log.settle(C, log.tickets, later=[offset, attempt])
        if state.burial is not None:
            log.ask(q.JobsBuried, state.burial.number)
        if state.first_open() == state.end:
            return
        log.passes(1)
        log.hear(C)
    pytest.fail(f"{state.statistics()}: jobs do not end")
