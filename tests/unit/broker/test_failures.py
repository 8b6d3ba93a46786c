"""Repeated work of many pieces: one that fails fails alone (S7)."""

import asyncio
import logging

import pytest

from stentor.broker.failures import Failures
from stentor.broker.slices import SLICE_S, Slices
from stentor.errors import LimitExceeded


class Loop:
    """A loop whose turns the test takes, and a clock that only work moves."""

    def __init__(self):
        self.now, self.soon, self.bugs = 100.0, [], []

    def call_soon(self, work):
        self.soon.append(work)

    def call_exception_handler(self, context):
        self.bugs.append(context["exception"])

    def turn(self):
        soon, self.soon = self.soon, []
        for work in soon:
            work()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def failures(loop):
    return Failures(loop, lambda: loop.now)


@pytest.fixture
def slices(loop, failures):
    return Slices(loop, lambda: loop.now, failures)


def fail(error):
    raise error


def test_what_fails_does_not_keep_others_from_their_turn(failures, loop):
    done = []
    failures.each("work", [lambda: done.append(1), lambda: fail(KeyError("x")), lambda: done.append(2)])
    assert done == [1, 2]
    assert failures.count == 1
    assert [type(error) for error in loop.bugs] == [KeyError]


def test_a_failure_is_logged_once_a_minute_for_each_thing_and_always_counted(failures, loop, caplog):
    caplog.set_level(logging.ERROR)
    for _ in range(50):
        failures.run("group a", fail, LimitExceeded("Too much."))
    failures.run("group b", fail, LimitExceeded("Too much."))
    assert [line.split(" failed")[0] for line in caplog.messages] == ["group a", "group b"]
    loop.now += 61
    failures.run("group a", fail, LimitExceeded("Too much."))
    assert len(caplog.messages) == 3
    assert failures.count == 52


def test_many_things_that_fail_do_not_fill_log_or_memory(failures, caplog):
    caplog.set_level(logging.ERROR)
    for number in range(10_000):
        failures.run(f"group {number}", fail, LimitExceeded("Too much."))
    assert len(caplog.messages) <= 200
    assert len(failures._logged) <= 200
    assert failures.count == 10_000


def pieces(loop, done, name, count, took_s=0.0):
    def work(number):
        loop.now += took_s
        done.append((name, number))

    return [lambda number=number: work(number) for number in range(count)]


def test_short_work_is_done_at_once(slices, loop):
    done, ended = [], []
    slices.begin("work", pieces(loop, done, "a", 1_000), lambda: ended.append(len(done)))
    assert len(done) == 1_000
    assert ended == [1_000]


def test_long_work_takes_a_slice_of_each_turn_and_keeps_its_order(slices, loop):
    done = []
    slices.begin("work", pieces(loop, done, "a", 1_000, took_s=SLICE_S / 100))
    per_turn = [len(done)]
    while loop.soon:
        loop.now += 1
        loop.turn()
        per_turn.append(len(done) - sum(per_turn))
    assert max(per_turn) <= 100 + 32
    assert done == [("a", number) for number in range(1_000)]


def test_jobs_share_the_slice_and_none_waits_for_the_end_of_another(slices, loop):
    done, ended = [], []
    slices.begin("long", pieces(loop, done, "long", 10_000, took_s=SLICE_S / 100), lambda: ended.append("long"))
    slices.begin("short", pieces(loop, done, "short", 10, took_s=SLICE_S / 100), lambda: ended.append("short"))
    while loop.soon:
        loop.turn()
    assert ended == ["short", "long"]


def test_a_piece_that_fails_fails_alone_and_the_end_comes(slices, failures, loop):
    done, ended = [], []
    work = [lambda: done.append(1), lambda: fail(ValueError("x")), lambda: done.append(2)]
    slices.begin("work", work, lambda: ended.append(True))
    assert (done, ended, failures.count) == ([1, 2], [True], 1)


def test_work_that_begins_other_work_does_not_nest(slices, loop):
    done = []

    def first():
        slices.begin("second", pieces(loop, done, "second", 3))
        done.append("first")

    slices.begin("first", [first, first])
    assert done[:2] == ["first", "first"]
    assert len(done) == 8


def test_a_beat_that_fails_is_not_the_last(local, wait_until, caplog):
    """Whatever one listener of the beat does, the next beat comes, and the others hear of each."""
    liveness = local.inner.parts.cluster.liveness
    heard, before = [], local.inner.statistics().broker.failures

    async def listen():
        liveness.on_beat.insert(0, lambda: fail(ValueError("a listener is broken")))
        liveness.on_beat.append(lambda: heard.append(True))

    asyncio.run_coroutine_threadsafe(listen(), local.inner.loop).result(10)
    wait_until(lambda: len(heard) >= 3, "beats go on")
    assert local.inner.statistics().broker.failures - before >= 3
    assert sum("a part of the beat" in message for message in caplog.messages) == 1
