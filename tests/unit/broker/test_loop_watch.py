"""How long a loop was held, and by whom: on a machine whose clock moves only with the work."""

import asyncio
import logging

import pytest

from stentor.broker.loop_watch import BOUNDS_MS, TICK_S, LoopWatch, Measured


class Machine:
    """A loop, a clock and a processor."""

    def __init__(self):
        self.now = self.used = 0.0
        self.timer = None
        self.watch = LoopWatch(self, self, lambda: self.used)
        self.watch.start()

    def monotonic(self):
        return self.now

    def now_us(self):
        return round(self.now * 1e6)

    def call_later(self, delay, callback):
        self.timer = self.now + delay, callback

    def hold(self, seconds, share=1.0):
        """Some work holds the loop, and has the processor for a share of that."""
        self.now += seconds
        self.used += share * seconds

    def tick(self):
        """The timer rings, when its time has come and the loop is free."""
        due, callback = self.timer
        self.now = max(self.now, due)
        callback()
        return self.watch.statistics()


@pytest.fixture
def machine():
    return Machine()


def test_an_idle_loop_has_steps_without_length(machine):
    for _ in range(10):
        found = machine.tick()
    assert (found.steps, found.longest_ms, found.counts[0]) == (10, 0.0, 10)


def test_the_longest_step_is_named_after_who_took_it(machine):
    machine.watch.run("timer of something", machine.hold, 0.065)
    found = machine.tick()
    assert found.longest_ms == pytest.approx(60)
    assert found.longest_by == found.lately_by == "timer of something"
    assert (found.over_50_ms, found.over_200_ms) == (1, 0)
    assert found.steps == sum(found.counts) == sum(found.cpu_counts)
    assert len(found.counts) == len(found.cpu_counts) == len(BOUNDS_MS) + 1


def test_slices_of_one_turn_count_together(machine):
    for number in range(4):
        machine.watch.run(f"piece {number}", machine.hold, 0.02 + (number == 2) * 0.01)
    found = machine.tick()
    assert found.longest_ms == pytest.approx(85)
    assert found.longest_by == "piece 2 and others"


def test_what_is_not_measured_is_said_to_be_so(machine):
    machine.watch.run("timer of something", machine.hold, 0.01)
    machine.hold(0.1)
    assert machine.tick().longest_by == "work that is not measured"


def test_a_step_without_the_processor_says_so(machine):
    machine.hold(0.1, share=0.1)
    assert machine.tick().longest_by == "the machine, with the processor for only 10 ms"
    machine.watch.run("timer of something", machine.hold, 0.2, 0.1)
    found = machine.tick()
    assert found.longest_by == "timer of something, with the processor for only 20 ms"
    assert found.over_50_ms == 2
    assert sum(found.cpu_counts[: BOUNDS_MS.index(50)]) == 2


def test_the_longest_step_of_late_is_forgotten_after_two_minutes_and_that_of_all_time_is_not(machine):
    machine.hold(0.1)
    machine.tick()
    for _ in range(3):
        machine.now += 61.0 - TICK_S
        machine.timer = machine.now, machine.timer[1]
        machine.watch._due = machine.now
        found = machine.tick()
    assert found.lately_ms == 0.0
    assert found.longest_ms == pytest.approx(95)


def test_a_long_step_is_logged_once_in_a_while(machine, caplog):
    for _ in range(3):
        machine.watch.run("timer of something", machine.hold, 0.3)
        machine.tick()
    assert [record.message for record in caplog.records] == ["the loop was held for 295 ms by timer of something"]
    assert caplog.records[0].levelname == "WARNING"


def test_a_long_step_of_a_busy_machine_is_no_warning(machine, caplog):
    caplog.set_level(logging.INFO)
    machine.hold(0.3, share=0.1)
    machine.tick()
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_every_step_of_a_task_is_noted(machine):
    async def request():
        await asyncio.sleep(0)
        machine.hold(0.06)

    async def run():
        await asyncio.get_running_loop().create_task(Measured(machine.watch, request(), lambda: "client c (Describe)"))

    asyncio.run(run())
    assert machine.tick().longest_by == "client c (Describe)"


def test_a_task_that_is_cancelled_ends(machine):
    async def run():
        task = asyncio.get_running_loop().create_task(Measured(machine.watch, asyncio.sleep(60), lambda: ""))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
