"""Whom a member reports to the controller, and whom it does not."""

import pytest
from tests.headers import appended
from tests.unit.core.test_members import A, B, C, adopt, link, offer, replica

from stentor import limits
from stentor.core import replica_events as r
from stentor.core.chain_messages import Complaint, Held, Link, Up

TICK_US = int(limits.PEER_HEARTBEAT_S * 1_000_000)


def ticks(machine, seconds, *, begin=0, unheard=frozenset(), awake_since_us=0, sync_began_us=None):
    """Let time pass; what is reported on the way."""
    reports = []
    for now_us in range(begin, begin + int(seconds * 1_000_000), TICK_US):
        effects = machine.step(r.Tick(frozenset(unheard), awake_since_us, sync_began_us), now_us)
        reports += [effect.message for effect in effects if isinstance(effect, r.Report)]
    return reports


def head_with_work(chain=(A, B), joining=None):
    """A head that has something on disk which its successor lacks."""
    head = replica(A)
    adopt(head, 3, chain=chain, joining=joining)
    head.step(r.Received("b", Link(3, 1, B, 0, 0, [])), 0)
    head.step(r.Received("b", Up(3, [0] * (len(chain) - 1))), 0)
    publish = r.Publish(1, 3, 1, 7, 0, 0, 1)
    (append,) = head.step(publish, 0)
    head.step(appended(publish, append), 0)
    head.step(r.Durable(1), 0)
    return head


def blamed(reports):
    return {complaint.member for complaint in reports if isinstance(complaint, Complaint)}


def test_a_successor_that_stands_still_is_reported_after_a_while():
    head = head_with_work()
    assert not ticks(head, limits.REPLICA_STALL_S)
    assert blamed(ticks(head, 0.5, begin=int(limits.REPLICA_STALL_S * 1_000_000))) == {B}


def test_nobody_is_blamed_for_those_after_it():
    """The successor has everything; what is after it stands still, so nothing is committed."""
    head = head_with_work(chain=(A, B, C))
    head.step(r.Received("b", Held(3, 1)), 0)
    assert not ticks(head, 3 * limits.REPLICA_STALL_S)


def test_words_that_say_nothing_new_give_a_successor_no_more_time():
    head = head_with_work()
    begin = int(limits.REPLICA_STALL_S * 1_000_000)
    assert not ticks(head, limits.REPLICA_STALL_S)
    head.step(r.Received("b", Up(3, [0])), begin)
    assert blamed(ticks(head, 0.5, begin=begin)) == {B}


def test_a_successor_that_gets_on_but_never_catches_up_is_reported_too():
    head, reports, now_us = head_with_work(), [], 0
    head.end = head.durable = 1000
    for end in range(1, 1000):
        now_us += TICK_US
        head.step(r.Received("b", Up(3, [end])), now_us)
        reports = ticks(head, limits.PEER_HEARTBEAT_S, begin=now_us)
        if reports:
            break
    assert blamed(reports) == {B}
    assert now_us / 1_000_000 == pytest.approx(limits.REPLICA_SLOW_S, abs=0.3)


def test_a_successor_that_is_not_heard_is_reported_within_half_a_second():
    head = head_with_work()
    assert blamed(ticks(head, 0.5, unheard={"b"})) == {B}


def test_who_stood_still_itself_blames_nobody_for_that_time():
    head = head_with_work()
    assert not ticks(head, 1)
    assert not ticks(head, 1, begin=30_000_000, awake_since_us=30_000_000)
    assert blamed(ticks(head, 0.2, begin=60_000_000)) == {B}, "unless it was awake"


def test_a_member_whose_own_disk_hangs_reports_itself():
    tail = replica(B, end=10)
    adopt(tail, 3)
    link(tail, 3, cut=10)
    offer(tail, 3)
    assert not ticks(tail, limits.REPLICA_STALL_S, sync_began_us=0)
    (complaint, *_) = ticks(tail, 0.5, begin=int(limits.REPLICA_STALL_S * 1_000_000), sync_began_us=0)
    assert (complaint.member, complaint.stalls) == (B, True)


def test_a_sync_that_waits_for_its_turn_is_no_disk_that_hangs():
    tail = replica(B, end=10)
    adopt(tail, 3)
    link(tail, 3, cut=10)
    offer(tail, 3)
    assert not ticks(tail, 3 * limits.REPLICA_STALL_S)


def test_a_joiner_gets_less_time_than_a_member_once_commits_wait_for_it():
    tail = replica(B, end=10)
    adopt(tail, 3, joining=C)
    link(tail, 3, cut=10)
    tail.step(r.Received("c", Link(3, 1, C, 0, 8, [(1, 0)])), 0)
    tail._above = 10
    tail.step(r.Received("c", Up(3, [9])), 0)
    assert tail.downstream.joint
    assert blamed(ticks(tail, limits.JOINT_STALL_S + 0.2)) == {C}


def test_the_tail_waits_for_no_joiner_that_has_not_shown_that_it_can_write():
    tail = replica(B, end=10)
    adopt(tail, 3, joining=C)
    link(tail, 3, cut=10)
    tail.step(r.Received("c", Link(3, 1, C, 0, 8, [(1, 0)])), 0)
    tail._above = 10
    tail.step(r.Received("c", Up(3, [8])), 0)
    assert not tail.downstream.joint
    tail.step(r.Received("c", Up(3, [9])), 0)
    assert tail.downstream.joint


def test_a_member_with_nothing_to_do_needs_no_ticks():
    head = head_with_work()
    assert not head.complaints.are_over(frozenset())
    head.step(r.Received("b", Up(3, [1])), 0)
    assert head.complaints.are_over(frozenset())
    assert not head.complaints.are_over(frozenset("b")), "its successor is not heard"
    head.step(r.AskEnd(1), 0)
    assert not head.complaints.are_over(frozenset()), "a reader waits"
