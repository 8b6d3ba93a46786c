"""What a queue remembers of its consumers is bounded by the jobs that they hold, whatever they say (S7)."""

import tracemalloc

import pytest
from tests.queue_log import QueueLog, S, new_state

from stentor.core import queue_events as q
from stentor.core import queue_records as r
from stentor.core.queue_head import QueuePolicy
from stentor.core.queue_jobs import HOLDER_BYTES, flags_of, kept_flags

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
POLICY = QueuePolicy(lease_us=5 * S, attempts_max=30, retry_us=S)
FOREIGN = [number for each in range(3_500) for number in (2**62 + each, 2**61 + each)]


def led(policy=POLICY, holders=(A, B), checks=True):
    log = QueueLog(policy=policy)
    log.checks = checks
    log.lead()
    for holder in holders:
        log.hear(holder)
    return log


def taken(log, holder, count):
    log.put(*[b"job"] * count)
    log.commit()
    return log.take(holder, 1, count)


def test_refused_claims_take_a_bit_each():
    log = led()
    taken(log, A, 2)
    before = log.state.memory
    assert log.settle(A, 1, later=FOREIGN) == FOREIGN
    assert log.state.memory - before < 600
    assert len(log.batches[-1]) < 1_000, "the log says it as shortly"


def test_a_thousand_holders_with_foreign_claims_stay_small():
    holders = [number.to_bytes(16) for number in range(1, 201)]
    log = led(holders=holders, checks=False)
    log.put(*[b"job"] * len(holders))
    log.commit()
    for holder in holders:
        log.take(holder, 1, 1)
    tracemalloc.start()
    for holder in holders:
        log.settle(holder, 1, later=FOREIGN)
    log.batches.clear()
    log.answers.clear()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < len(holders) * 3_000, "of 280 KB that each of them would take as numbers"


@pytest.mark.parametrize("policy", [POLICY, QueuePolicy(lease_us=5 * S, attempts_max=30, retry_us=S, holders=False)])
def test_who_asks_again_hears_the_same_from_every_head(policy):
    log = led(policy)
    taken(log, A, 20)
    log.settle(A, 1, first=[0, 1], back=[q.GivenBack(3, 1, 0)])
    log.settle(B, 1, first=[0, 1])
    said = {
        "first": [0, 3, 4, 3],
        "later": [8, 2, 9, 1],
        "begun": [10, 1, 3, 1],
        "back": [q.GivenBack(12, 4), q.GivenBack(13, 1)],
    }
    refused = log.settle(A, 2, **said)
    assert sorted(zip(refused[::2], refused[1::2], strict=True)) == [(0, 1), (3, 1), (8, 2), (12, 4)]
    assert sorted(log.settle(A, 2, **said)) == sorted(refused)
    log.fail_over()
    log.hear(A)
    assert sorted(log.settle(A, 2, **said)) == sorted(refused)
    restored = new_state()
    restored.restore(log.state.snapshot())
    log.state = restored
    log.lead()
    log.hear(A)
    assert sorted(log.settle(A, 2, **said)) == sorted(refused)
    log.passes(6)  # its lease is over, and what it said before is remembered
    assert A in log.state.gone
    assert sorted(log.settle(A, 2, **said)) == sorted(refused)


def test_before_the_feature_level_the_log_has_what_older_brokers_read():
    log = led(QueuePolicy(lease_us=5 * S, holders=False))
    taken(log, A, 2)
    log.settle(A, 1, later=[7, 7, 8, 8])
    holder = log.state.holders[A]
    assert (holder.refused, holder.lost) == ([7, 7, 8, 8], b"")


def test_what_older_logs_hold_is_answered_as_before():
    log = led()
    taken(log, A, 2)
    log.state._apply_whole(r.Settled(A, 5, [], [], [7, 7]), 0)
    assert log.settle(A, 5, first=[0, 1], later=[7, 7]) == [7, 7]


@pytest.mark.parametrize("every", [1, 2])
def test_jobs_that_were_given_back_are_not_remembered_as_handed_out(every):
    """`every`: jobs between others with terms, so that the ranges of first attempts are short ones."""
    log = led()
    for _ in range(500 // every):
        log.put(b"job")
        for _ in range(every - 1):
            log.put(b"late", delay_us=60 * S)
    log.commit()
    got = log.take(A, 1, 500)
    log.settle(A, 1, back=[q.GivenBack(*each, 0, counted=False) for each in got[:-20]])
    holder = log.state.holders[A]
    assert holder.held == 20
    assert len(holder.fresh) <= 2 * (2 * 20 + 32)
    assert log.take(A, 1, 500) == got[-20:], "what it still holds is told again"
    log.settle(A, 2, later=[number for each in got[-20:] for number in each])
    got = log.take(A, 2, 500)
    assert holder.held == len(got) == len(holder.noted)
    log.settle(A, 3, back=[q.GivenBack(*each, 0, counted=False) for each in got[:-20]])
    assert len(holder.noted) == len(holder.attempts) <= 2 * 20 + 32
    assert log.take(A, 2, 500) == got[-20:]
    log.settle(A, 4, back=[q.GivenBack(*each, 0, counted=False) for each in got[-20:]])
    assert max(len(holder.noted), len(holder.fresh) // 2, len(log.state._hands[holder.number].runs) // 2) <= 32
    log.state.check_invariants()
    assert log.rederived().snapshot() == log.state.snapshot()


def test_holders_count_as_memory():
    holders = [number.to_bytes(16) for number in range(1, 101)]
    log = led(holders=holders)
    taken(log, holders[0], 1)
    assert log.state.memory >= HOLDER_BYTES
    log.put(*[b"job"] * 99)
    log.commit()
    for holder in holders[1:]:
        log.take(holder, 1, 1)
    full = log.state.memory
    assert full >= 100 * HOLDER_BYTES
    assert log.rederived().memory == full
    restored = new_state()
    restored.restore(log.state.snapshot())
    assert restored.memory == full
    for holder in holders:
        log.ask(q.HolderLeaving, holder)
    assert log.state.memory < full + 100 * 400 + 1_000, "those that left are remembered, and counted"


def test_flags_are_kept_with_their_number():
    for flags in (b"", b"0", b"1", b"0000000010", b"1" * 17, b"0" * 25_000 + b"1"):
        assert flags_of(kept_flags(flags)) == flags.decode()
    assert flags_of(b"") == ""
    assert flags_of(b"\x00\x00") == ""
