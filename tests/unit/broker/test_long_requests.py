"""Long requests: a piece of each connection's first walk in turn (C35)."""

import asyncio

import pytest

from stentor.broker.environment import SystemClock
from stentor.broker.failures import Failures
from stentor.broker.long_requests import LongRequests
from stentor.broker.loop_watch import LoopWatch
from stentor.broker.slices import SLICE_S, Slices
from stentor.errors import LimitExceeded


class Clock(SystemClock):
    """A clock that only work moves."""

    now = 100.0

    def monotonic(self):
        return self.now


class Broker:
    def __init__(self):
        self.clock = Clock()
        self.done = []
        self.closed = []
        loop = asyncio.get_running_loop()
        self.failures = Failures(loop, self.clock.monotonic)
        slices = Slices(loop, self.clock.monotonic, self.failures)
        self.long_requests = LongRequests(loop, slices, LoopWatch(loop, self.clock))

    def walk(self, name, pieces=3, took_s=0.0):
        try:
            for piece in range(pieces):
                self.clock.now += took_s
                self.done.append(f"{name}{piece}")
                yield
        finally:
            self.closed.append(name)
        return name

    def ask(self, whose, name, **how):
        return asyncio.create_task(self.long_requests.walk(whose, self.walk(name, **how)))


def test_a_walk_that_fits_into_this_turn_is_over_at_once():
    async def ask():
        broker = Broker()
        asked = broker.ask("a", "x")
        await asyncio.sleep(0)
        assert asked.done()
        return asked.result()

    assert asyncio.run(ask()) == "x"


def test_connections_take_turns_and_one_walk_of_each_is_under_way():
    async def ask():
        broker = Broker()
        asked = [broker.ask(whose, name, took_s=SLICE_S) for whose, name in (("a", "x"), ("a", "y"), ("b", "z"))]
        assert await asyncio.gather(*asked) == ["x", "y", "z"]
        return broker.done

    done = asyncio.run(ask())
    assert done.index("x2") < done.index("y0")
    assert done.index("z0") < done.index("x2")
    assert done.index("z2") < done.index("y1")


def test_other_work_of_the_loop_goes_on_between_pieces():
    async def ask():
        broker = Broker()
        asked = [broker.ask(whose, "x", pieces=10, took_s=SLICE_S) for whose in range(10)]
        turns = 0
        while not all(task.done() for task in asked):
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(ask()) >= 100


def test_who_is_gone_is_left_out():
    async def ask():
        broker = Broker()
        first = broker.ask("a", "x", took_s=SLICE_S)
        second = broker.ask("a", "y", took_s=SLICE_S)
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "y"
        return broker

    broker = asyncio.run(ask())
    assert broker.done == ["x0", "y0", "y1", "y2"]
    assert broker.closed == ["x", "y"]


def test_what_fails_is_told_to_who_asked_and_nobody_else():
    def fail():
        yield
        raise LimitExceeded("too much")

    async def ask():
        broker = Broker()
        failing = asyncio.create_task(broker.long_requests.walk("a", fail()))
        other = broker.ask("b", "x")
        with pytest.raises(LimitExceeded, match="too much"):
            await failing
        assert await other == "x"
        assert await broker.ask("a", "y") == "y"
        assert broker.failures.count == 0

    asyncio.run(ask())
