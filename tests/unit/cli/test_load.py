import itertools
import os
import signal
import socket
import threading
import time
from array import array
from types import SimpleNamespace

import pytest

from stentor.cli.load import STAMP, STEP_BYTES_MAX, Checker, LoadPlan, Outcome, _flat_out, _steady
from stentor.cli.measurement import _deaf_to_interrupts, percentiles


def plan(**changes):
    settings = {
        "url": None, "topic": "bench.t", "partitions": 1, "size": STAMP.size, "batch": 10, "producers": 2,
        "subscribers": 1, "rate": 0, "seconds": 1, "ack": "all", "compression": None, "one_by_one": False, "timeout": 1,
    }  # fmt: skip
    return LoadPlan(**{**settings, **changes})


def check(numbers, totals=(0, 0)):
    checker = Checker(plan())
    for producer, sequence in numbers:
        checker.take([SimpleNamespace(value=STAMP.pack(producer, sequence, time.monotonic_ns()))])
    checker.close(list(totals))
    found = checker.outcome
    return found.messages, found.lost, found.doubled, found.disordered


@pytest.mark.parametrize(
    ("numbers", "totals", "expected"),
    [
        ([], (0, 0), (0, 0, 0, 0)),
        ([(0, 0), (1, 0), (0, 1), (1, 1)], (2, 2), (4, 0, 0, 0)),
        ([(0, 0), (0, 1)], (3, 1), (2, 2, 0, 0)),
        ([(0, 0), (0, 2)], (3, 0), (2, 1, 0, 0)),
        ([(0, 0), (0, 0), (0, 1)], (2, 0), (3, 0, 1, 0)),
        ([(0, 0), (0, 2), (0, 1)], (3, 0), (3, 0, 0, 1)),
    ],
    ids=["nothing", "all is well", "the end is missing", "a gap", "one twice", "two swapped"],
)
def test_loss_doubles_and_disorder_are_told_apart(numbers, totals, expected):
    assert check(numbers, totals) == expected


def test_a_message_of_another_size_is_not_counted_as_ours():
    checker = Checker(plan())
    checker.take([SimpleNamespace(value=b"stranger")])
    assert checker.outcome.disordered == 1
    assert checker.outcome.messages == 0


def test_with_a_rate_every_message_is_timed():
    checker = Checker(plan(rate=10))
    for sequence in range(5):
        checker.take([SimpleNamespace(value=STAMP.pack(0, sequence, 0))])
    assert len(checker.latencies) == 5


def test_a_rate_says_when_each_message_was_due_even_if_it_is_late():
    begin = time.monotonic() - 10
    due = [moment for step in _steady(plan(rate=200, seconds=0.5), begin) for moment in step]
    assert len(due) == 50
    assert {later - earlier for earlier, later in itertools.pairwise(due)} <= {
        9_999_999,
        10_000_000,
        10_000_001,
    }
    assert due[0] == int(begin * 1e9)


@pytest.mark.parametrize(("schedule", "rate"), [(_flat_out, 0), (_steady, 1000)])
def test_large_messages_are_made_a_few_at_a_time(schedule, rate):
    large = plan(size=STEP_BYTES_MAX // 3, batch=1000, producers=1, rate=rate, seconds=20)
    begin = time.monotonic() - 10
    assert len(next(schedule(large, begin))) == 3
    assert len(next(schedule(plan(batch=1000, producers=1, rate=rate, seconds=20), begin))) >= 1000


def test_percentiles_are_of_all_samples_together():
    first, second = array("I", range(1, 1000)), array("I", [5000])
    found = percentiles([Outcome(latencies_us=first.tobytes()), Outcome(latencies_us=second.tobytes())])
    assert (found.p50, found.p90, found.p99, found.p99_9, found.max) == (501, 901, 991, 5000, 5000)
    assert percentiles([Outcome()]) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_a_process_is_started_whichever_thread_hears_it(number):
    """Signals go to any thread that does not block them, and Python acts on them in the main thread all the same."""
    over, heard = threading.Event(), []
    other = threading.Thread(target=over.wait)
    other.start()
    caught, wakeup = socket.socketpair()
    caught.settimeout(10)
    wakeup.settimeout(0)
    before = signal.signal(number, lambda *_: heard.append("handled"))
    signal.set_wakeup_fd(wakeup.fileno())
    try:
        with _deaf_to_interrupts():
            os.kill(os.getpid(), number)
            assert caught.recv(1) == bytes([number]), "the other thread was hit"
            meanwhile = [list(heard) for _ in range(1000)]  # Python looks for signals between two of these
        assert not any(meanwhile)
        assert heard == ["handled"]
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(number, before)
        over.set()
        other.join()
        caught.close()
        wakeup.close()
