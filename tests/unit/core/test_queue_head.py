"""The head of a queue: who gets which job, when it is handed out again, and what a new head knows."""

import time

import pytest
from tests.queue_log import WALL, QueueLog, S

from stentor import limits
from stentor.core import queue_events as q
from stentor.core.queue_head import QueuePolicy
from stentor.wire import queue_rows

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
POLICY = QueuePolicy(lease_us=5 * S, attempts_max=3, retry_us=S)


@pytest.fixture
def log():
    return led(QueueLog(policy=POLICY))


def led(log, *holders):
    log.lead()
    for holder in holders or (A, B):
        log.hear(holder)
    return log


def failed(offset, attempt, **how):
    return q.GivenBack(offset, attempt, why="bad", **how)


def test_jobs_go_out_in_order_and_end(log):
    log.put(b"one", b"two", b"three")
    log.commit()
    assert log.take(A, 1, 2) == [(0, 1), (1, 1)]
    assert log.take(A, 2, 2) == [(2, 1)]
    assert log.settle(A, 1, first=[0, 3]) == []
    assert log.state.first_open() == log.end


def test_who_finds_nothing_waits_until_jobs_are_committed(log):
    ticket = log.ask(q.JobsWanted, A, 1, 10)
    log.put(b"job")
    log.turn(commit=False)
    assert log.given(ticket) is None
    log.commit()
    log.turn()
    assert log.given(ticket) == [(0, 1)]


def test_nothing_is_handed_out_before_its_attempt_is_committed(log):
    log.put(b"job")
    log.commit()
    ticket = log.ask(q.JobsWanted, A, 1, 10, turn=False)
    log.turn(commit=False)
    assert log.given(ticket) is None
    assert log.state.attempts(0) == 1
    log.commit()
    assert log.given(ticket) == [(0, 1)]


def test_those_who_wait_share_what_there_is(log):
    for holder in (A, B, C):
        log.hear(holder)
    tickets = [log.ask(q.JobsWanted, holder, 1, 500) for holder in (A, B, C)]
    log.put(*[b"job"] * 9)
    log.commit()
    log.turn()
    assert [len(log.given(ticket)) for ticket in tickets] == [3, 3, 3]


def test_urgent_jobs_come_first_and_late_ones_when_they_are_due(log):
    log.put(b"late", delay_us=2 * S)
    log.put(b"usual")
    log.put(b"urgent", priority=5)
    log.put(b"more urgent", priority=6)
    log.commit()
    assert [log.take(A, number, 1) for number in (1, 2, 3)] == [[(3, 1)], [(2, 1)], [(1, 1)]]
    ticket = log.ask(q.JobsWanted, A, 4, 1)
    log.passes(1.9)
    assert log.given(ticket) is None
    log.passes(0.2)
    assert log.given(ticket) == [(0, 1)]


def test_a_job_that_fails_rests_and_dies_after_its_attempts(log):
    log.put(b"bad")
    log.commit()
    assert log.take(A, 1) == [(0, 1)]
    log.settle(A, 1, back=[failed(0, 1)])
    ticket = log.ask(q.JobsWanted, A, 2, 1)
    log.passes(0.9)
    assert log.given(ticket) is None
    log.passes(0.2)
    assert log.given(ticket) == [(0, 2)]
    log.settle(A, 2, back=[failed(0, 2, delay_us=0)])
    assert log.take(A, 3) == [(0, 3)]
    log.settle(A, 3, back=[failed(0, 3, trace="Traceback …")])
    assert log.state.jobs[0].dead
    assert [why for _, why in log.state.jobs[0].history] == ["bad"] * 3
    ticket = log.ask(q.JobsWanted, A, 4, 1)
    assert log.answers[ticket].burial == q.GiveBurial(1, [0])
    log.ask(q.JobsBuried, 1)
    assert (log.state.first_open(), log.state.died) == (log.end, 1)


def test_a_burial_is_given_to_another_when_its_holder_is_lost(log):
    log.put(b"bad", b"good")
    log.commit()
    log.take(A, 1, 1)
    log.settle(A, 1, back=[failed(0, 1, dead=True)])
    assert log.answers[log.ask(q.JobsWanted, A, 2, 1)].burial == q.GiveBurial(1, [0])
    for _ in range(6):
        log.hear(B)
        log.passes(1)
    assert log.answers[log.ask(q.JobsWanted, B, 1, 1)].burial == q.GiveBurial(1, [0])
    log.ask(q.JobsBuried, 1)
    log.ask(q.JobsBuried, 1)  # said again
    assert log.state.died == 1


def test_an_end_is_said_once_however_often_it_is_asked(log):
    log.put(b"job")
    log.commit()
    log.take(A, 1)
    assert log.settle(A, 1, first=[0, 1]) == []
    assert log.settle(A, 1, first=[0, 1]) == []
    assert log.settle(A, 2, first=[0, 1]) == [0, 1]  # another request: acknowledged twice


def test_jobs_of_a_silent_holder_go_to_another_and_its_late_end_is_refused(log):
    log.put(b"job")
    log.commit()
    log.take(A, 1)
    for _ in range(6):
        log.hear(B)
        log.passes(1)
    assert log.take(B, 1) == [(0, 2)]
    assert log.settle(A, 1, first=[0, 1]) == [0, 1]
    assert isinstance(log.hear(A), q.RefuseAsker)
    assert log.take(A, 2) == "lost"
    assert log.settle(B, 1, later=[0, 2]) == []


def test_a_holder_that_is_heard_keeps_its_jobs_however_long_they_take(log):
    log.put(b"job")
    log.commit()
    log.take(A, 1)
    for _ in range(100):
        log.passes(1)
        log.hear(A)
        log.hear(B)
    assert log.take(B, 1) is None
    assert log.settle(A, 1, first=[0, 1]) == []


def test_an_attempt_beyond_its_limit_is_taken_away_and_its_holder_told(log):
    log.put(b"slow", b"next")
    log.commit()
    log.take(A, 1)
    log.hear(A, (0, 1, 2 * S))
    for _ in range(4):
        log.passes(1)
        log.hear(B)
    assert log.hear(A).overdue == [0, 1]
    assert log.settle(A, 1, first=[0, 2]) == [0, 1]
    assert log.take(B, 1) == [(0, 2)]


def test_a_ttl_ends_what_nobody_began(log):
    log.put(b"mortal", ttl_us=2 * S)
    log.commit()
    log.passes(3)
    log.hear(A)
    assert log.answers[log.ask(q.JobsWanted, A, 1, 1)].burial == q.GiveBurial(1, [0])
    assert log.state.jobs[0].attempts == 0


def test_leaving_gives_back_what_never_began(log):
    log.put(b"one", b"two")
    log.commit()
    log.take(A, 1)
    log.ask(q.HolderLeaving, A)
    assert log.take(B, 1) == [(0, 1), (1, 1)]


def test_a_log_that_takes_nothing_loses_nothing(log):
    log.put(b"one", b"two", priority=1)
    log.put(b"three")
    log.commit()
    log.takes = False
    assert log.take(A, 1) == "not_now"
    log.takes = True
    assert log.take(A, 1) == [(0, 1), (1, 1), (2, 1)]


def test_a_lease_that_could_not_be_ended_ends_later(log):
    log.put(b"job")
    log.commit()
    log.take(A, 1)
    log.takes = False
    for _ in range(6):
        log.hear(B)
        log.passes(1)
    log.takes = True
    for _ in range(6):
        log.hear(B)
        log.passes(1)
    assert log.take(B, 1) == [(0, 2)]


# --- a new head -----------------------------------------------------------------------------------


def test_a_new_head_hands_out_nothing_that_somebody_works_on(log):
    log.put(b"one", b"two")
    log.commit()
    log.take(A, 1, 1)
    log.fail_over()
    log.hear(B)
    assert log.take(B, 1) == [(1, 1)]
    log.passes(4)
    log.hear(A)
    log.hear(B)
    log.passes(4)  # its lease began anew, and was renewed
    assert log.settle(A, 1, first=[0, 1]) == []


def test_jobs_whose_answer_was_lost_with_a_head_come_again_and_count_once(log):
    log.put(b"one", b"two")
    log.put(b"late", priority=1)
    log.commit()
    log.ask(q.JobsWanted, A, 1, 10, turn=False)
    log.turn(commit=False)  # in the log, and told to nobody
    log.fail_over()
    log.hear(A)
    assert log.take(A, 1, 10) == [(0, 1), (1, 1), (2, 1)]


def test_an_end_whose_answer_was_lost_is_answered_by_the_log(log):
    log.put(b"one", b"two")
    log.commit()
    log.take(A, 1, 10)
    log.ask(q.JobsSettled, A, 1, [0, 1], turn=False)
    log.turn(commit=False)
    log.fail_over()
    assert log.settle(A, 1, first=[0, 1]) == []
    assert log.state.finished == 1


def test_what_was_lost_with_a_head_is_as_if_it_never_was(log):
    log.put(b"one")
    log.commit()
    end = log.end
    log.take(A, 1, 10)
    log.fail_over(end)
    log.hear(B)
    assert log.take(B, 1) == [(0, 1)]
    log.hear(A)
    assert log.settle(A, 1, first=[0, 1]) == [0, 1]


# --- order by key ---------------------------------------------------------------------------------


def test_two_jobs_of_one_key_are_never_in_work_at_once():
    log = led(QueueLog(ordered=True, policy=POLICY))
    log.put(*[b"job"] * 6, keys=[b"x", b"x", b"y", b"x", None, None])
    log.commit()
    assert log.take(A, 1) == [(0, 1), (2, 1), (4, 1), (5, 1)]
    waiting = log.ask(q.JobsWanted, B, 1, 10)
    assert log.given(waiting) is None
    log.settle(A, 1, first=[2, 1, 0, 1])
    assert log.given(waiting) == [(1, 1)]
    log.settle(B, 1, first=[1, 1])
    assert log.take(A, 2) == [(3, 1)]


def test_a_bad_job_parks_its_key_and_nothing_else():
    log = led(QueueLog(ordered=True, policy=POLICY))
    log.put(*[b"job"] * 4, keys=[b"x", b"x", b"y", b"x"])
    log.commit()
    assert log.take(A, 1, 1) == [(0, 1)]
    log.settle(A, 1, back=[failed(0, 1, delay_us=10 * S)])
    assert log.take(A, 2) == [(2, 1)]
    log.fail_over()
    log.hear(A)
    log.hear(B)
    waiting = log.ask(q.JobsWanted, B, 1, 10)
    assert log.given(waiting) is None
    for _ in range(11):
        log.passes(1)
        log.hear(A)
        log.hear(B)
    assert log.given(waiting) == [(0, 2)]
    log.settle(B, 1, back=[failed(0, 2, dead=True)])
    assert log.take(B, 3) == [(1, 1)]


def test_a_key_is_free_again_after_a_purge_of_those_who_waited_for_it():
    log = led(QueueLog(ordered=True, policy=POLICY))
    log.put(*[b"job"] * 2, keys=[b"x", b"x"])
    log.put(b"urgent", keys=[b"x"], priority=1)
    log.commit()
    assert log.take(A, 1, 1) == [(2, 1)]
    waiting = log.ask(q.JobsWanted, B, 1, 1)  # both others wait for the key
    log.ask(q.PurgeJobs)
    log.settle(A, 1, later=[2, 1])
    offset = log.put(b"next", keys=[b"x"])
    log.commit()
    log.turn()
    assert log.given(waiting) == [(offset, 1)]


def test_a_key_is_free_again_after_a_purge_of_the_one_whose_turn_it_was():
    log = led(QueueLog(ordered=True, policy=POLICY))
    log.put(*[b"job"] * 2, keys=[b"x", b"x"])
    log.commit()
    assert log.take(A, 1) == [(0, 1)]
    log.settle(A, 1, first=[0, 1])  # the second one may begin
    log.ask(q.PurgeJobs)
    offset = log.put(b"next", keys=[b"x"])
    log.commit()
    assert log.take(A, 2) == [(offset, 1)]


def test_a_key_is_free_again_after_the_one_whose_turn_it_was_was_too_late():
    log = led(QueueLog(ordered=True, policy=POLICY))
    log.put(b"job", keys=[b"x"])
    log.put(b"mortal", keys=[b"x"], ttl_us=2 * S)
    log.put(b"next", keys=[b"x"])
    log.commit()
    assert log.take(A, 1) == [(0, 1)]
    waiting = log.ask(q.JobsWanted, B, 1, 10)
    log.passes(3)
    log.settle(A, 1, first=[0, 1])
    log.turn()
    assert log.given(waiting) == [(2, 1)]
    assert log.answers[waiting].burial == q.GiveBurial(1, [1])


def test_a_key_is_free_again_after_the_one_whose_turn_it_was_moved():
    log = led(QueueLog(ordered=True, policy=POLICY))
    log.put(b"job", keys=[b"x"])
    log.put(b"mortal", keys=[b"x"], ttl_us=60 * S)
    log.commit()
    assert log.take(A, 1) == [(0, 1)]
    log.settle(A, 1, first=[0, 1])
    offset = log.append(queue_rows.whole(queue_rows.moved(1, WALL, b"x", b"mortal", []), topic_id=1, partition=0))
    log.commit()
    assert log.take(A, 2) == [(offset, 1)]


# --- two at once, and many ------------------------------------------------------------------------


def test_a_purge_and_a_request_in_one_turn_touch_different_jobs(log):
    log.put(b"urgent", priority=1)
    log.put(b"mortal", ttl_us=S)
    log.put(b"plain")
    log.commit()
    log.passes(2)
    log.ask(q.PurgeJobs, turn=False)
    waiting = log.ask(q.JobsWanted, A, 1, 10)
    assert log.given(waiting) is None
    assert log.state.first_open() == log.end
    assert log.rederived().snapshot() == log.state.snapshot()


def test_a_purge_and_a_burial_in_one_turn_touch_different_jobs(log):
    log.put(b"one", b"two")
    log.commit()
    log.take(A, 1)
    log.settle(A, 1, back=[failed(0, 1, dead=True), failed(1, 1, dead=True)])
    log.ask(q.PurgeJobs, turn=False)
    waiting = log.ask(q.JobsWanted, B, 1, 10)
    assert waiting not in log.answers
    assert log.state.first_open() == log.end
    assert log.state.burial is None


def steps_bytes(log, since):
    return max(len(data) for data in log.batches[since:])


def test_many_jobs_that_are_too_late_are_written_down_in_batches_that_fit(log):
    log.checks = False
    log.put(*[b"mortal"] * 60_000, ttl_us=S)
    log.commit()
    log.now += 2 * S
    log.hear(A)
    since = len(log.batches)
    for _ in range(4):
        log.ask(q.JobsWanted, A, 1, 10_000)
    assert log.state.statistics()["dead"] == 60_000
    assert steps_bytes(log, since) < limits.MIB


def test_consumers_that_are_lost_at_once_are_written_down_in_batches_that_fit(log):
    log.checks = False
    names = [bytes([number]) * 16 for number in range(1, 9)]
    log.put(*[b"job"] * 100_000)
    log.commit()
    for name in names:
        log.hear(name)
        log.take(name, 1, 10_000)
    since = len(log.batches)
    log.passes(POLICY.lease_us / S + 4)
    assert not log.state.holders
    assert steps_bytes(log, since) < limits.BATCH_BYTES_MAX // 4


def test_many_failures_at_once_are_written_down_in_batches_that_fit(log):
    names = [number.to_bytes(16) for number in range(1, 300)]
    log.put(*[b"job"] * len(names) * 3)
    log.commit()
    for name in names:
        log.hear(name)
    asked = [(name, log.take(name, 1, 3)) for name in names]
    since = len(log.batches)
    tickets = [
        log.ask(q.JobsSettled, name, 1, back=[failed(*job, dead=True, trace="é" * 8_000) for job in jobs], turn=False)
        for name, jobs in asked
    ]
    for _ in range(20):
        log.turn()
    assert all(log.answers[ticket].refused == [] for ticket in tickets)
    assert steps_bytes(log, since) < limits.BATCH_BYTES_MAX // 2


def test_a_burial_whose_answer_was_lost_is_told_again(log):
    log.put(b"bad")
    log.commit()
    log.take(A, 1)
    log.settle(A, 1, back=[failed(0, 1, dead=True)])
    assert log.answers[log.ask(q.JobsWanted, A, 2, 10)].burial == q.GiveBurial(1, [0])
    waiting = log.ask(q.JobsWanted, A, 2, 10)
    assert waiting not in log.answers  # it may be at work on it
    for _ in range(6):
        log.hear(A)
        log.passes(1)
    assert log.answers[waiting].burial == q.GiveBurial(1, [0])


def test_a_crowd_of_consumers_costs_no_more_than_their_number():
    """Seconds if something is quadratic; else a moment."""
    log = QueueLog()
    log.checks = False
    log.lead()
    names = [number.to_bytes(16) for number in range(1, 5_001)]
    for name in names:
        log.ask(q.HolderHeard, name, [], turn=False)
    log.put(*[b"job"] * 10_000)
    log.commit()
    began = time.process_time()
    tickets = [log.ask(q.JobsWanted, name, 1, 1, turn=False) for name in names]
    log.turn()
    given = [log.given(ticket) for ticket in tickets]
    assert all(len(jobs) == 1 for jobs in given)
    for name, ((offset, attempt),) in zip(names, given, strict=True):
        log.ask(q.HolderHeard, name, [(offset, attempt, 3_600 * S)], turn=False)
    log.passes(1)
    for number, name in enumerate(names):
        log.ask(q.JobsWanted, name, 2, 1, turn=False)
        log._do(q.AskerGone(log.tickets, name))
        assert not log.head.waits, number
    assert time.process_time() - began < 5


def test_jobs_that_move_again_and_again_leave_nothing_behind(log):
    offset = log.put(b"late", delay_us=3_600 * S)
    log.commit()
    log.checks = False
    for _ in range(2_000):
        moved = queue_rows.moved(offset, WALL, None, b"late", [])
        offset = log.append(queue_rows.whole(moved, topic_id=1, partition=0))
        log._do(q.QueueTurn(log.committed, WALL + log.now))
    log.commit()
    assert len(log.head._ready._due) <= 1_100
    log.now += 3_601 * S
    log.hear(A)
    assert log.take(A, 1) == [(offset, 1)]


def test_who_only_wants_to_bury_is_told_at_once_and_takes_no_job(log):
    log.put(b"bad", b"good")
    log.commit()
    log.take(A, 1, 1)
    log.settle(A, 1, back=[failed(0, 1, dead=True)])
    told = log.answers[log.ask(q.JobsWanted, A, 2, 0)]
    assert (told.fresh, told.used, told.burial) == ([], False, q.GiveBurial(1, [0]))
    again = log.answers[log.ask(q.JobsWanted, A, 2, 0)]
    assert again.burial == q.GiveBurial(1, [0])


def test_who_only_wants_to_bury_keeps_no_job_from_others(log):
    log.put(*[b"job"] * 5)
    log.commit()
    assert len(log.take(B, 1, 5)) == 5
    log.hear(C)
    mourners = [log.ask(q.JobsWanted, name, 1, 0) for name in (A, C)]  # who hold less are served first
    waiting = log.ask(q.JobsWanted, B, 2, 1)
    log.put(b"one")
    log.commit()
    log.turn()
    assert [log.given(ticket) for ticket in (*mourners, waiting)] == [None, None, [(6, 1)]]
