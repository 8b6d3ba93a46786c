"""Attempts count when handlers begin; jobs are shared out fairly; and only their holder speaks for them."""

import msgspec
import pytest
from tests.queue_log import QueueLog, S, new_state

from stentor.core import queue_events as q
from stentor.core import queue_head
from stentor.core import queue_records as r
from stentor.core.queue_head import HOLDERS_MAX, QueuePolicy
from stentor.core.queue_jobs import UNBEGUN_MAX
from stentor.wire import queue_rows
from stentor.wire.header import HEADER_BYTES, unpack

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
MINE, OTHERS = b"m" * 16, b"o" * 16
POLICY = QueuePolicy(lease_us=5 * S, attempts_max=2, retry_us=S)


@pytest.fixture
def log():
    return led(QueueLog(policy=POLICY))


def led(log):
    log.lead()
    for holder in (A, B):
        log.hear(holder)
    return log


def lose(log, *, keep=B):
    """Every lease ends but one."""
    for _ in range(6):
        log.hear(keep)
        log.passes(1)


def asked_back(log, ticket):
    answer = log.answers.get(ticket)
    return None if answer is None else answer.count


# --- what counts ----------------------------------------------------------------------------------


def test_jobs_that_nobody_began_do_not_count_when_their_holder_is_lost(log):
    log.put(*[b"job"] * 4)
    log.commit()
    assert len(log.take(A, 1, 4, reports=True)) == 4
    assert log.settle(A, 1, begun=[1, 1]) == []
    lose(log)
    assert log.take(B, 1, 4, reports=True) == [(0, 1), (1, 2), (2, 1), (3, 1)]


def test_a_job_that_was_held_by_lost_holders_is_never_dead_by_that_alone(log):
    log.put(*[b"job"] * 10)
    log.commit()
    for number in range(1, 8):
        holder = bytes([number]) * 16
        log.hear(holder)
        log.take(holder, 1, 10, reports=True)
        lose(log)
    assert log.state.statistics()["dead"] == 0
    assert log.state.statistics()["waiting"] == 10


def test_of_holders_that_do_not_say_what_begins_every_attempt_counts(log):
    log.put(b"job")
    log.commit()
    for number in (1, 2):
        holder = bytes([number]) * 16
        log.hear(holder)
        assert log.take(holder, 1) == [(0, number)]
        lose(log)
    assert log.state.jobs[0].dead


def test_below_the_feature_level_every_attempt_counts_and_nothing_new_is_written():
    log = led(QueueLog(policy=msgspec.structs.replace(POLICY, holders=False)))
    log.put(b"one", b"two")
    log.commit()
    log.take(A, 1, reports=True, shown=MINE)
    log.settle(A, 1, begun=[0, 1], shown=OTHERS)
    lose(log)
    assert log.take(B, 1) == [(0, 2), (1, 2)]
    for data in log.batches:
        for step in steps_of(data):
            assert not getattr(step, "secret", b"")
            assert not getattr(step, "begun", [])
            assert not any(each.lost for each in getattr(step, "back", []))


def steps_of(data):
    return queue_rows.read_steps(data[HEADER_BYTES:]) if unpack(data).control else []


def test_a_job_whose_holders_are_lost_again_and_again_comes_alone_and_counts_once_it_began(log):
    log.put(*[b"job"] * 3)
    log.commit()
    for number in range(1, UNBEGUN_MAX + 1):
        holder = bytes([number]) * 16
        log.hear(holder)
        assert len(log.take(holder, 1, 10, reports=True)) == 3
        lose(log)
    given = log.answers[log.ask(q.JobsWanted, B, 1, 10, reports=True)]
    assert (given.noted, given.alone) == ([0], True)
    assert log.settle(B, 1, begun=[0, 1]) == []
    log.fail_over()
    log.hear(A)
    lose(log, keep=A)
    log.hear(A)
    assert log.take(A, 1, 10, reports=True) == [(0, 2)]


def test_a_job_that_was_given_back_is_not_suspected_any_more(log):
    log.put(b"job")
    log.commit()
    for number in range(1, UNBEGUN_MAX + 1):
        holder = bytes([number]) * 16
        log.hear(holder)
        log.take(holder, 1, reports=True)
        lose(log)
    assert log.state.jobs[0].alone
    log.take(B, 1, reports=True)
    log.settle(B, 1, back=[q.GivenBack(0, 1, delay_us=0)])
    assert not log.state.jobs[0].alone


def test_what_begins_is_known_to_a_new_head_and_in_a_snapshot(log):
    log.put(*[b"job"] * 3)
    log.commit()
    log.take(A, 1, reports=True)
    log.settle(A, 1, begun=[0, 1])
    restored = log.rederived()
    restored.restore(log.state.snapshot())
    restored.check_invariants()
    assert [restored.has_begun(offset) for offset in range(3)] == [True, False, False]
    assert restored.snapshot() == log.state.snapshot() == log.rederived().snapshot()
    assert log.settle(A, 2, first=[0, 3]) == []
    assert log.state.first_open() == log.end


def test_a_beginning_of_somebody_elses_job_is_refused(log):
    log.put(b"job")
    log.commit()
    log.take(A, 1, reports=True)
    assert log.settle(B, 1, begun=[0, 1]) == [0, 1]
    assert not log.state.has_begun(0)


def test_a_fence_grows_with_each_hand_over_and_is_told_again(log):
    log.put(b"job")
    log.commit()
    first = log.answers[log.ask(q.JobsWanted, A, 1, 1)]
    assert log.answers[log.ask(q.JobsWanted, A, 1, 1)].fence == first.fence
    log.settle(A, 1, back=[q.GivenBack(0, 1, counted=False)])
    second = log.answers[log.ask(q.JobsWanted, B, 1, 1)]
    assert second.attempts == [1]
    assert second.fence > first.fence > 0


def test_the_time_that_is_left_of_a_ttl_is_told(log):
    log.put(b"mortal", ttl_us=5 * S)
    log.commit()
    log.passes(2)
    assert log.answers[log.ask(q.JobsWanted, A, 1, 1)].left_us == [3 * S]


def test_what_goes_back_after_its_ttl_is_dead(log):
    log.put(b"mortal", ttl_us=3 * S)
    log.commit()
    log.take(A, 1, reports=True)
    log.passes(4)
    log.settle(A, 1, back=[q.GivenBack(0, 1, counted=False)])
    log.take(A, 2)
    assert log.state.jobs[0].dead
    assert log.state.jobs[0].attempts == 0


def test_an_extension_never_shortens(log):
    log.put(b"slow")
    log.commit()
    log.take(A, 1)
    log.hear(A, (0, 1, 20 * S))
    log.hear(A, (0, 1, 1 * S))
    for _ in range(5):
        log.passes(1)
        assert log.hear(A).overdue == []


def test_jobs_that_may_die_next_are_counted(log):
    log.put(b"one", b"two")
    log.commit()
    assert log.state.dying(POLICY.attempts_max) == 0
    log.take(A, 1, 1)
    log.settle(A, 1, back=[q.GivenBack(0, 1, delay_us=0)])
    assert log.state.dying(POLICY.attempts_max) == 1
    log.take(A, 2, 2)
    assert log.state.dying(POLICY.attempts_max) == 1
    assert log.state.dying(1) == 2


# --- fair shares ----------------------------------------------------------------------------------


def test_what_there_is_goes_to_those_who_have_least(log):
    log.hear(C)
    log.put(*[b"job"] * 4)
    log.commit()
    assert len(log.take(A, 1, 4)) == 4
    tickets = [log.ask(q.JobsWanted, holder, 2 if holder == A else 1, 500) for holder in (A, B, C)]
    log.put(*[b"job"] * 6)
    log.commit()
    log.turn()
    assert [len(log.given(ticket) or ()) for ticket in tickets] == [0, 3, 3]


def test_who_holds_more_than_it_has_begun_is_asked_for_some_when_another_has_none(log):
    log.put(*[b"job"] * 10)
    log.commit()
    log.take(A, 1, 10, reports=True)
    log.settle(A, 1, begun=[0, 1])
    heeding = log.ask(q.RecallAwaited, A)
    log.passes(1)
    assert asked_back(log, heeding) is None
    waiting = log.ask(q.JobsWanted, B, 1, 10, reports=True)
    log.passes(0.1)
    count = asked_back(log, heeding)
    assert count == 4  # so that both have about as many in reserve
    assert log.given(waiting) is None  # not before they are back, and that is committed
    log.settle(A, 2, back=[q.GivenBack(offset, 1, counted=False) for offset in range(10 - count, 10)])
    assert log.given(waiting) == [(offset, 1) for offset in range(6, 10)]


def test_a_job_that_waits_behind_a_slow_one_goes_to_who_has_nothing(log):
    log.put(b"slow", b"next")
    log.commit()
    log.take(A, 1, 2, reports=True)
    log.settle(A, 1, begun=[0, 1])
    heeding = log.ask(q.RecallAwaited, A)
    log.ask(q.JobsWanted, B, 1, 10, reports=True)
    log.passes(0.1)
    assert asked_back(log, heeding) == 1


def test_who_is_about_to_begin_its_only_job_is_not_asked_for_it_unless_it_rests(log):
    log.put(b"job")
    log.commit()
    log.take(A, 1, 2, reports=True)
    heeding = log.ask(q.RecallAwaited, A)
    log.ask(q.JobsWanted, B, 1, 10, reports=True)
    log.passes(0.9)
    assert asked_back(log, heeding) is None
    log.passes(0.4)
    assert asked_back(log, heeding) == 1  # it seems that nobody there wants it


def test_who_gave_nothing_back_is_not_asked_all_the_time(log):
    log.put(*[b"job"] * 10)
    log.commit()
    log.take(A, 1, 10, reports=True)
    log.ask(q.JobsWanted, B, 1, 10, reports=True)
    asked = 0
    heeding = log.ask(q.RecallAwaited, A)
    for _ in range(10):
        log.passes(0.1)
        if asked_back(log, heeding) is not None:
            asked += 1
            heeding = log.ask(q.RecallAwaited, A)
    assert 1 <= asked <= 5


# --- rights (C36) ---------------------------------------------------------------------------------


def bound(log):
    """A holds a job, and has shown a secret."""
    log.hear(C, shown=MINE)
    log.put(b"job")
    log.commit()
    assert log.take(C, 1, shown=MINE, reports=True) == [(0, 1)]
    return log


@pytest.mark.parametrize("fails_over", [False, True])
@pytest.mark.parametrize("shown", [OTHERS, b""])
def test_who_knows_only_the_id_of_a_holder_can_do_nothing_for_it(log, shown, fails_over):
    bound(log)
    if fails_over:
        log.fail_over()
    assert log.settle(C, 1, first=[0, 1], shown=shown) == "other"
    assert log.settle(C, 2**63 - 1, shown=shown) == "other"
    assert log.hear(C, (0, 1, 1), shown=shown).why == "other"
    assert log.take(C, 2**63 - 1, shown=shown) == "other"
    assert log.answers[log.ask(q.HolderLeaving, C, shown=shown)].why == "other"
    assert log.answers[log.ask(q.RecallAwaited, C, shown=shown)].why == "other"
    assert log.settle(C, 1, first=[0, 1], shown=MINE) == []


def test_a_holder_that_holds_nothing_yet_is_its_own_too(log):
    log.hear(C, shown=MINE)
    assert log.take(C, 2**63 - 1, shown=OTHERS) == "other"


def test_a_holder_without_a_secret_is_open_until_it_shows_one(log):
    log.put(b"one", b"two")
    log.commit()
    log.take(A, 1, 1)
    assert log.settle(A, 1, first=[0, 1], shown=OTHERS) == []
    log.hear(A, shown=MINE)
    assert log.take(A, 2, 1, shown=MINE) == [(1, 1)]
    assert log.settle(A, 2, first=[1, 1], shown=OTHERS) == "other"


def test_only_who_was_given_dead_jobs_says_that_they_are_buried(log):
    bound(log)
    log.settle(C, 1, back=[q.GivenBack(0, 1, dead=True)], shown=MINE)
    assert log.answers[log.ask(q.JobsWanted, C, 2, 0, shown=MINE)].burial == q.GiveBurial(1, [0])
    assert log.answers[log.ask(q.JobsBuried, 1, shown=OTHERS)].why == "other"
    log.fail_over()
    assert log.answers[log.ask(q.JobsBuried, 1, shown=b"")].why == "other"
    assert log.state.died == 0
    log.ask(q.JobsBuried, 1, shown=MINE)
    assert log.state.died == 1


def test_one_client_leaves_room_for_the_consumers_of_others():
    log = QueueLog(policy=POLICY)
    log.checks = False
    log.lead()
    for number in range(1, HOLDERS_MAX + 1):
        log.ask(q.HolderHeard, number.to_bytes(16), [], shown=MINE, turn=False)
    full = sum(isinstance(answer, q.RefuseAsker) for answer in log.answers.values())
    assert full == HOLDERS_MAX // 2
    assert isinstance(log.hear(A, shown=OTHERS), q.AnswerHeard)


def full_of(log, most, *, secrets=16):
    """As many consumers as one stranger may have who comes again and again, as another client each time."""
    for each in range(secrets):
        for number in range(most):
            name = (each * most + number).to_bytes(16)
            asked = log.ask(q.HolderHeard, name, [], shown=b"stranger %d" % each, turn=False)
            if isinstance(log.answers[asked], q.RefuseAsker):
                break


def test_a_stranger_who_comes_again_as_others_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(queue_head, "HOLDERS_MAX", 200)
    log = QueueLog(policy=POLICY)
    log.checks = False
    log.lead()
    full_of(log, 200)
    ours = [log.ask(q.HolderHeard, b"o%015d" % number, [], shown=MINE, turn=False) for number in range(4)]
    assert all(isinstance(log.answers[ticket], q.AnswerHeard) for ticket in ours)
    assert len(log.head._heard) <= 200
    log.turn()
    tickets = [log.ask(q.JobsWanted, b"o%015d" % number, 1, 1, shown=MINE, turn=False) for number in range(4)]
    log.put(*[b"job"] * 4)
    log.commit()
    log.turn()
    assert all(len(log.given(ticket)) == 1 for ticket in tickets)


def test_nobody_who_has_a_job_makes_room(monkeypatch):
    monkeypatch.setattr(queue_head, "HOLDERS_MAX", 20)
    log = QueueLog(policy=POLICY)
    log.lead()
    log.put(*[b"job"] * 20)
    log.commit()
    names = [number.to_bytes(16) for number in range(10)]
    for name in names:
        log.hear(name, shown=OTHERS)
        assert len(log.take(name, 1, 1, shown=OTHERS)) == 1
    for number in range(10, 20):
        log.hear(number.to_bytes(16), shown=b"s%d" % number)
    assert log.hear(A, shown=MINE).why == "full"
    assert len(log.state.holders) == 10
    log.now += S
    log.settle(names[3], 1, first=[3, 1], shown=OTHERS)
    log.passes(0.2)
    assert isinstance(log.hear(A, shown=MINE), q.AnswerHeard)
    assert names[3] not in log.head._heard


def test_steps_of_older_heads_mean_what_they_meant():
    """As an older version wrote them: without the fields at the end."""
    old = msgspec.msgpack.encode([[1, A, 1, [0, 2], []], [2, A, 1, [0, 1], [[1, 0, True, False, "bad", ""]], []]])
    took, settled = queue_rows.read_steps(old)
    assert took == r.Took(A, 1, [0, 2], [])
    assert settled.begun == []
    assert not settled.back[0].lost


def test_a_burial_that_needs_a_token_keeps_needing_it():
    """Another id would write its letters twice. Clients that know no tokens do not get it."""
    log = led(QueueLog(policy=msgspec.structs.replace(POLICY, proves=True)))
    log.put(b"bad", b"good")
    log.commit()
    log.take(A, 1, 1, reports=True)
    log.settle(A, 1, back=[q.GivenBack(0, 1, dead=True)])
    given = log.answers[log.ask(q.JobsWanted, A, 2, 0, reports=True)].burial
    assert given == q.GiveBurial(1, [0], proven=True)
    lose(log)
    log.fail_over()
    log.hear(B)
    assert log.ask(q.JobsWanted, B, 1, 0) not in log.answers
    log.head.policy = POLICY
    assert log.ask(q.JobsWanted, B, 1, 0, reports=True) not in log.answers
    log.head.policy = msgspec.structs.replace(POLICY, proves=True)
    given = log.answers[log.ask(q.JobsWanted, B, 1, 0, reports=True)].burial
    assert given == q.GiveBurial(1, [0], proven=True)
    assert log.state.burial.proven


def test_a_burial_of_a_client_that_knows_no_tokens_goes_on_without_one():
    log = led(QueueLog(policy=msgspec.structs.replace(POLICY, proves=True)))
    log.put(b"bad")
    log.commit()
    log.take(A, 1, 1)
    log.settle(A, 1, back=[q.GivenBack(0, 1, dead=True)])
    assert log.answers[log.ask(q.JobsWanted, A, 2, 0)].burial == q.GiveBurial(1, [0])
    lose(log)
    assert log.answers[log.ask(q.JobsWanted, B, 1, 0, reports=True)].burial == q.GiveBurial(1, [0])


def burying(*values):
    """A queue whose jobs are dead, and given to A to be put aside."""
    log = led(QueueLog(policy=msgspec.structs.replace(POLICY, proves=True)))
    log.put(*values)
    log.commit()
    log.take(A, 1, len(values), reports=True)
    log.settle(A, 1, back=[q.GivenBack(offset, 1, dead=True) for offset in range(len(values))])
    given = log.answers[log.ask(q.JobsWanted, A, 2, 0, reports=True)].burial
    assert given == q.GiveBurial(1, list(range(len(values))), proven=True)
    return log


def test_dead_jobs_whose_id_was_spoiled_come_again_under_another_one_and_the_others_do_not():
    log = burying(b"x", b"y", b"z")
    log.ask(q.JobsBuried, 1, left=[0, 2, 77])
    assert (log.state.died, list(log.state.dead)) == (1, [0, 2])
    log.ask(q.JobsBuried, 1, left=[0])  # once more: its answer was lost
    again = q.GiveBurial(2, [0, 2], proven=True, series=1)
    assert log.answers[log.ask(q.JobsWanted, A, 2, 0, reports=True)].burial == again
    lose(log)
    log.fail_over()
    log.hear(B)
    assert log.ask(q.JobsWanted, B, 1, 0) not in log.answers  # an older client, which knows no tokens
    assert log.answers[log.ask(q.JobsWanted, B, 1, 0, reports=True)].burial == again
    log.ask(q.JobsBuried, 2)
    assert (log.state.died, log.state.dead, log.state.series) == (3, {}, 1)
    restored = new_state()
    restored.restore(log.state.snapshot())
    assert restored.series == 1


def test_an_id_that_was_spoiled_is_not_used_by_older_clients_again():
    log = led(QueueLog(policy=msgspec.structs.replace(POLICY, proves=True)))
    log.put(b"x")
    log.commit()
    log.take(A, 1, 1)
    log.settle(A, 1, back=[q.GivenBack(0, 1, dead=True)])
    assert log.answers[log.ask(q.JobsWanted, A, 2, 0)].burial == q.GiveBurial(1, [0])
    lose(log)
    assert log.answers[log.ask(q.JobsWanted, B, 1, 0, reports=True)].burial == q.GiveBurial(1, [0])
    log.ask(q.JobsBuried, 1, left=[0])
    assert log.ask(q.JobsWanted, B, 1, 0) not in log.answers
    given = log.answers[log.ask(q.JobsWanted, B, 1, 0, reports=True)].burial
    assert given == q.GiveBurial(2, [0], proven=True, series=1)


def test_before_all_brokers_know_it_no_dead_jobs_are_given_back():
    log = burying(b"x")
    log.head.policy = msgspec.structs.replace(POLICY, holders=False)
    assert log.answers[log.ask(q.JobsBuried, 1, left=[0])].why == "not_now"
    assert log.state.burial is not None


def test_dead_jobs_that_their_holder_does_not_put_aside_are_given_to_another_one():
    """It is heard of, and asks for nothing: nobody else could ever put them aside, nor those that died later."""
    log = burying(b"x", b"y")
    waiting = log.ask(q.JobsWanted, B, 1, 0, reports=True)
    for _ in range(59):
        log.hear(A)
        log.hear(B)
        log.passes(1)
    assert waiting not in log.answers
    for _ in range(3):
        log.hear(A)
        log.hear(B)
        log.passes(1)
    assert log.answers[waiting].burial == q.GiveBurial(1, [0, 1], proven=True)
    assert log.state.burial.holder == B
    log.ask(q.JobsBuried, 1)
    assert log.state.died == 2
