"""Seeds of the simulation: other ones every day, and those that once found something."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from tests.simulation.runner import run_seed, run_seeds

PER_DAY = 100
ONCE_FAILED = [
    9,
    12,
    14,
    15,
    21,
    24,
    26,
    30,
    33,
    41,
    48,
    54,
    57,
    77,
    1087,
    1095,
    20038,
    20071,
    21291,
    500467,
    603831,
    604146,
]
TRACED = [3, 5, 8]


def seeds_of_today():
    first = 10_000 + datetime.now(UTC).date().toordinal() % 10_000 * PER_DAY
    return range(first, first + PER_DAY)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_todays_seeds_and_those_that_once_failed_break_no_invariant():
    today = seeds_of_today()
    print(f"seeds {today.start} to {today.stop - 1}, and {ONCE_FAILED}")
    outcomes = list(run_seeds([*ONCE_FAILED, *today], processes=2))
    assert len(outcomes) == len(ONCE_FAILED) + PER_DAY
    failed = [str(outcome) for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join(failed)
    assert sum(outcome.acknowledged for outcome in outcomes) > 50 * len(outcomes), "the clusters hardly worked"


@pytest.mark.parametrize("seed", TRACED)
def test_a_seed_gives_the_same_trace_every_time(seed):
    first = run_seed(seed, full_trace=True)
    assert run_seed(seed, full_trace=True) == first
    code = f"from tests.simulation.runner import run_seed; print(run_seed({seed}, full_trace=True).trace)"
    environment = os.environ | {"PYTHONHASHSEED": "12345" if os.environ.get("PYTHONHASHSEED") != "12345" else "1"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(other.stdout) == first.trace


def test_traces_of_two_seeds_differ():
    assert run_seed(TRACED[0]).trace != run_seed(TRACED[1]).trace
