"""What is ours is certain only by a clock that counts suspension, and not up to its last moment."""

from __future__ import annotations

import time

from stentor.client.certain import MARGIN_S_MAX, MARGIN_SHARE, OWN_SHARE, Certainty, boottime, clock_of


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_certain_before_a_broker_has_said_so() -> None:
    certainty = Certainty(_Clock())
    assert not certainty.holds
    assert certainty.is_over


def test_it_counts_from_when_it_was_asked_for_and_leaves_a_margin() -> None:
    clock = _Clock()
    certainty = Certainty(clock)
    clock.now += 3.0  # the answer took this long
    certainty.renewed(100.0, 10.0)
    clock.now = 100.0 + (OWN_SHARE - MARGIN_SHARE) * 10.0 - 0.001
    assert certainty.holds
    clock.now += 0.002
    assert not certainty.holds
    assert not certainty.is_over
    clock.now = 100.0 + OWN_SHARE * 10.0
    assert certainty.is_over


def test_an_answer_that_comes_late_takes_nothing_back() -> None:
    clock = _Clock()
    certainty = Certainty(clock)
    certainty.renewed(100.0, 10.0)
    certainty.renewed(95.0, 10.0)
    assert certainty.until == 100.0 + OWN_SHARE * 10.0


def test_the_margin_of_a_long_lease_is_bounded() -> None:
    certainty = Certainty(_Clock())
    certainty.renewed(100.0, 3_600.0)
    assert certainty.until - certainty.sure_until == MARGIN_S_MAX


def test_what_ended_is_over_at_once() -> None:
    certainty = Certainty(_Clock())
    certainty.renewed(100.0, 10.0)
    certainty.end()
    assert not certainty.holds
    assert certainty.is_over


def test_the_clock_counts_suspension_where_the_system_has_such_a_clock() -> None:
    wanted = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
    assert 0 <= boottime() - wanted < 60


def test_a_loop_in_virtual_time_brings_its_own_clock() -> None:
    class _Loop:
        def boottime(self) -> float:
            return 7.0

    assert clock_of(_Loop())() == 7.0
    assert clock_of(object()) is boottime
