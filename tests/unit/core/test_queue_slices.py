"""However many jobs a turn of a queue's head could decide about, it decides about some; the next one goes on (C35)."""

import pytest
from tests.queue_log import WALL, QueueLog, S

from stentor.core import queue_events as q
from stentor.core import queue_head
from stentor.core.queue_head import ANSWERS_AT_ONCE, PARTING_AT_ONCE, SERVED_AT_ONCE, QueuePolicy
from stentor.core.queue_ready import EXPIRED_AT_ONCE, JOBS_AT_ONCE
from stentor.core.queue_records import HolderLeft, Returned, Settled, Took
from stentor.wire import queue_rows
from stentor.wire.header import HEADER_BYTES, unpack

A, B = b"a" * 16, b"b" * 16
POLICY = QueuePolicy(lease_us=5 * S, attempts_max=3, retry_us=S)


@pytest.fixture
def log():
    log = QueueLog(policy=POLICY)
    log.checks = False  # they look at every job
    log.lead()
    return log


def name(number):
    return number.to_bytes(16)


def steps_of(data):
    header = unpack(data)
    return queue_rows.read_steps(memoryview(data)[HEADER_BYTES:]) if header.control else []


def singles(steps):
    """How many jobs a list of steps names one by one."""
    count = 0
    for step in steps:
        match step:
            case Took():
                count += len(step.noted) + len(step.fresh) // 2
            case Settled():
                count += len(step.back) + len(step.begun) + len(step.done) // 2
            case Returned() | HolderLeft():
                count += len(step.back)
    return count


def largest(log, since=0):
    """The most jobs that one batch of steps names, and the most steps."""
    batches = [steps_of(data) for data in log.batches[since:]]
    return max(map(singles, batches)), max(map(len, batches))


def crowd(log, holders, jobs, **terms):
    """So many holders that have so many jobs each."""
    left = holders * jobs
    while left:
        part = min(left, 1_000)
        log.put(*[b""] * part, **terms)
        left -= part
    log.commit()
    for number in range(holders):
        log.ask(q.HolderHeard, name(number), [], turn=False)
    tickets = [log.ask(q.JobsWanted, name(number), 1, jobs, turn=False) for number in range(holders)]
    log.turn()
    held = sum(holder.held for holder in log.state.holders.values())
    assert held == holders * jobs if not terms else held
    return tickets


def all_taken(log, holder):
    """All jobs that there are, as much at a time as one turn hands out."""
    number = 1
    while taken := log.take(holder, number, 20_000):
        yield taken
        number += 1


@pytest.mark.parametrize(("holders", "jobs"), [(700, 3), (3, 2 * JOBS_AT_ONCE)])
def test_leases_that_end_together_end_some_jobs_at_a_time_and_all_in_the_end(log, holders, jobs):
    crowd(log, holders, jobs)
    since = len(log.batches)
    log.passes(5.2)
    assert not log.state.holders
    assert {log.state.attempts(offset) for offset in log.state.jobs} == {1}
    most, steps = largest(log, since)
    assert most <= JOBS_AT_ONCE
    assert steps <= PARTING_AT_ONCE
    log.state.check_invariants()
    log.hear(B)
    assert sum(len(taken) for taken in all_taken(log, B)) == holders * jobs
    log.state.check_invariants()


def test_whoever_asks_meanwhile_is_not_kept_waiting_until_all_leases_have_ended(log):
    crowd(log, 1, 3 * JOBS_AT_ONCE)
    for _ in range(52):
        log.ask(q.HolderHeard, B, [], turn=False)
        log.now += S // 10
        log._do(q.QueueTick())
    ticket = log.ask(q.JobsWanted, B, 1, 5, turn=False)
    turns = 0
    while log.given(ticket) is None and turns < 10:
        log.turn_once()
        turns += 1
    assert len(log.given(ticket)) == 5
    assert name(0) in log.state.holders  # it has jobs yet


def test_a_holder_that_is_about_to_go_gets_nothing_more_and_may_settle_what_it_still_has(log):
    crowd(log, 1, 3 * JOBS_AT_ONCE)
    waiting = log.ask(q.JobsWanted, name(0), 2, 5, turn=False)
    for _ in range(52):
        log.now += S // 10
        log._do(q.QueueTick())
    log.turn_once()
    assert log.answers[waiting].why == "lost"
    last = log.put(b"more")
    log.commit()
    assert log.answers[log.ask(q.HolderHeard, name(0), [], turn=False)].why == "lost"
    assert log.answers[log.ask(q.JobsWanted, name(0), 3, 5, turn=False)].why == "lost"
    held = list(log.state.held_by(log.state.holders[name(0)]))
    assert 0 < len(held) < 3 * JOBS_AT_ONCE
    gone = next(offset for offset in range(last) if offset not in held)
    asked = log.ask(q.JobsSettled, name(0), 1, [], [gone, 1, held[-1], 1], [])
    assert log.answers[asked].refused == [gone, 1]
    assert not log.state.holders
    assert log.state.finished == 1
    log.state.check_invariants()


def test_whoever_leaves_with_many_jobs_hears_of_it_when_all_are_handed_back(log):
    crowd(log, 1, 3 * JOBS_AT_ONCE)
    since = len(log.batches)
    ticket = log.ask(q.HolderLeaving, name(0), turn=False)
    log.turn_once()
    log.turn_once()
    assert ticket not in log.answers
    log.turn()
    assert isinstance(log.answers[ticket], q.AnswerDone)
    assert largest(log, since)[0] <= JOBS_AT_ONCE
    assert {log.state.attempts(offset) for offset in log.state.jobs} == {0}
    log.state.check_invariants()


def test_if_the_log_takes_nothing_leases_begin_in_full(log):
    crowd(log, 1, 2 * JOBS_AT_ONCE)
    ticket = log.ask(q.HolderLeaving, name(0), turn=False)
    log.takes = False
    log.turn_once()
    log.turn_once()
    assert log.answers[ticket].why == "not_now"
    assert not log.head.unfinished
    log.takes = True
    assert isinstance(log.hear(name(0)), q.AnswerHeard)
    log.passes(5.2)
    assert not log.state.holders


def test_many_who_wait_are_served_some_at_a_time_and_evenly(log):
    tickets = crowd(log, 3 * SERVED_AT_ONCE, 1)
    assert all(len(log.given(ticket)) == 1 for ticket in tickets)
    assert largest(log)[1] <= SERVED_AT_ONCE


def test_what_is_committed_is_told_some_at_a_time(log):
    for number in range(3 * ANSWERS_AT_ONCE):
        log.ask(q.HolderHeard, name(number), [], turn=False)
        log.ask(q.JobsWanted, name(number), 1, 1, turn=False)
    log.put(*[b""] * 3 * ANSWERS_AT_ONCE)
    log.commit()
    log.answers.clear()
    log._do(q.QueueTurn(log.committed, WALL + log.now))
    log._do(q.QueueTurn(log.committed, WALL + log.now))
    counts = []
    while log.head.unfinished or not counts:
        before = len(log.answers)
        log.commit()
        counts.append(len(log.answers) - before)
    assert sum(counts) == 3 * ANSWERS_AT_ONCE
    assert max(counts) == ANSWERS_AT_ONCE


def test_jobs_with_terms_are_handed_out_some_at_a_time(log):
    crowd(log, 1, 3 * JOBS_AT_ONCE, priority=1)
    assert largest(log)[0] <= JOBS_AT_ONCE


def test_nothing_is_handed_out_before_all_that_changed_was_looked_at(log):
    log.hear(A)
    log.put(b"usual")
    for _ in range(5):
        log.put(*[b""] * JOBS_AT_ONCE, delay_us=S)
    urgent = log.put(b"urgent", priority=9)
    log.commit()
    ticket = log.ask(q.JobsWanted, A, 1, 1, turn=False)
    log.turn_once()
    assert log.given(ticket) is None
    assert log.head.unfinished
    log.turn()
    assert log.given(ticket) == [(urgent, 1)]


def test_whoever_finds_nothing_makes_no_turn_after_the_other(log):
    """Jobs that are not due yet lie in the way."""
    for _ in range(6):
        log.put(*[b""] * JOBS_AT_ONCE, delay_us=S)
    log.commit()
    for number in range(JOBS_AT_ONCE):
        log.ask(q.HolderHeard, name(number), [], turn=False)
        log.ask(q.JobsWanted, name(number), 1, 1, turn=False)
    log.turn()
    assert not log.head.unfinished


def test_jobs_of_one_busy_key_are_passed_by_some_at_a_time():
    log = QueueLog(ordered=True, policy=POLICY)
    log.checks = False
    log.lead()
    log.put(*[b""] * 3 * JOBS_AT_ONCE, keys=[b"same"] * 3 * JOBS_AT_ONCE)
    other = log.put(b"", keys=[b"other"])
    log.commit()
    log.hear(A)
    ticket = log.ask(q.JobsWanted, A, 1, 2, turn=False)
    log.turn_once()
    assert log.given(ticket) == [(0, 1)]
    ticket = log.ask(q.JobsWanted, A, 2, 1, turn=False)
    log.turn_once()
    assert log.given(ticket) is None
    log.turn()
    assert log.given(ticket) == [(other, 1)]


def test_jobs_that_are_too_late_die_some_at_a_time(log):
    for _ in range(4):
        log.put(*[b""] * EXPIRED_AT_ONCE, ttl_us=S)
    log.commit()
    log.now += 2 * S
    log.hear(A)
    for number in range(1, 6):
        log.ask(q.JobsWanted, A, number, 1)
    assert largest(log)[0] <= JOBS_AT_ONCE
    assert len(log.state.dead) + len(log.state.burial.offsets) == 4 * EXPIRED_AT_ONCE


def test_settlements_of_many_are_decided_some_at_a_time(log):
    tickets = crowd(log, 20, 300)
    asked = []
    for number, ticket in enumerate(tickets):
        back = [q.GivenBack(offset, attempt, why="bad") for offset, attempt in log.given(ticket)]
        asked.append(log.ask(q.JobsSettled, name(number), 1, [], [], back, turn=False))
    since = len(log.batches)
    log.turn()
    assert all(log.answers[ticket].refused == [] for ticket in asked)
    assert largest(log, since)[0] <= JOBS_AT_ONCE + 300


def test_what_a_holder_has_is_found_however_often_it_took_and_gave_back(log):
    log.put(*[b""] * 100)
    log.commit()
    log.hear(A)
    for number in range(1, 60):
        taken = log.take(A, number, 50)
        back = [q.GivenBack(*each, delay_us=0, counted=False) for each in taken[number % 2 :]]
        assert log.settle(A, number, back=back) == []
        log.state.check_invariants()
    kept = log.state.snapshot()
    again = log.rederived()
    again.restore(kept)
    again.check_invariants()


def test_a_purge_ends_some_jobs_with_terms_at_a_time(monkeypatch):
    monkeypatch.setattr(queue_head, "PURGED_AT_ONCE", 10)
    log = QueueLog()
    log.lead()
    log.hear(A)
    log.put(*[b"taken"] * 5)
    log.commit()
    log.take(A, 1, 5)
    log.settle(A, 1, back=[q.GivenBack(offset, 1, 0) for offset in range(5)])
    assert len(log.take(A, 2, 5)) == 5, "noted jobs that somebody holds"
    for _ in range(7):
        log.put(*[b"late"] * 5, delay_us=60 * S)
        log.put(b"fresh")
    log.commit()
    last = log.end
    before = len(log.batches)
    asked = log.ask(q.PurgeJobs, turn=False)
    log.turn_once()
    assert 25 <= len(log.state.jobs) - 5 < 35
    assert asked not in log.answers
    assert log.head.waits
    assert log.head.unfinished
    log.put(b"later", delay_us=60 * S)
    log.turn()
    assert isinstance(log.answers[asked], q.AnswerDone)
    assert len(log.batches) - before == 4 + 1
    assert [offset for offset in log.state.jobs if offset >= 5] == [
        offset for offset in log.state.jobs if offset > last
    ]
    assert len(log.state.jobs) == 5 + 1, "what is held, and what came after it was asked for"
    assert log.rederived().snapshot() == log.state.snapshot()


def test_a_purge_that_the_log_did_not_take_is_asked_again(monkeypatch):
    monkeypatch.setattr(queue_head, "PURGED_AT_ONCE", 10)
    log = QueueLog()
    log.lead()
    log.put(*[b"late"] * 25, delay_us=60 * S)
    log.commit()
    asked = log.ask(q.PurgeJobs, turn=False)
    log.turn_once()
    log.takes = False
    log.turn()
    assert log.answers[asked].why == "not_now"
    assert not log.head.waits
    log.takes = True
    again = log.ask(q.PurgeJobs)
    assert isinstance(log.answers[again], q.AnswerDone)
    assert not log.state.jobs
