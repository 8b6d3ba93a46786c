"""How long the loop of a broker is held at a time, and by whom (C35).

A step is what the loop does while a timer of 5 ms is late, whatever it consists of: the slices of one turn count
together. Pieces of work that take long say whose they are (`note`, `run`, `Measured`); the longest of them names the
step that it is in. A step in which the process had the processor for less than half of the time says so: others used
it, the process was stopped, a thread held the interpreter, or the work waited for a disk.

Only the process that runs a broker starts the timer. What is noted costs two looks at a clock per piece of work, never
per message.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from stentor.wire.statistics import LoopStatistics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from stentor.ports import Clock

logger = logging.getLogger(__name__)

TICK_S: Final = 0.005  # C35: what a step is
BOUNDS_MS: Final = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500, 1_000, 2_000, 5_000)
"""Steps are counted in classes, so that a percentile of any span of time can be found."""

_LONG_S: Final = 0.2  # C35: no step is ever longer; one that is goes to the log
_NOTED_S: Final = 0.001  # a shorter piece of work is nobody's long step
_RECENT_S: Final = 60.0  # "lately" is this span, or the one before it
_TOLD_AGAIN_S: Final = 10.0  # whatever holds the loop again and again must not fill the log
_MACHINE: Final = "the machine"
_NOBODY: Final = "work that is not measured"


class LoopWatch:
    """Measures the steps of one loop, and remembers the longest."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        """`cpu_s`: the processor time of the thread that asks."""
        self._loop = loop
        self._clock = clock
        self._cpu_s = cpu_s
        self.now = clock.monotonic
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._cpu = 0.0
        self._noted_s = self._noted_total_s = 0.0  # in the step that is under way
        self._noted = ""
        self._steps = 0
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._cpu_counts = [0] * (len(BOUNDS_MS) + 1)  # by the processor time of the loop's thread
        self._longest = (0.0, "", 0)  # seconds, whose, when
        self._lately = [(0.0, ""), (0.0, "")]  # the longest of this span and of the one before it
        self._lately_since = self._told_at = float("-inf")

    # --- what was at work -----------------------------------------------------------------------

    def note(self, took_s: float, whose: Callable[[], str]) -> None:
        """Some work has held the loop for this long."""
        self._noted_total_s += took_s
        if took_s > self._noted_s:
            self._noted_s, self._noted = took_s, whose()

    def run(self, what: str, work: Callable[..., Any], *args: Any) -> Any:
        """Call something, and note how long it held the loop."""
        began = self.now()
        try:
            return work(*args)
        finally:
            took = self.now() - began
            if took > _NOTED_S:
                self.note(took, lambda: what)

    # --- the timer ------------------------------------------------------------------------------

    def start(self) -> None:
        """Measure from now on."""
        self._cpu = self._cpu_s()
        self._wait(self.now())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, now: float) -> None:
        self._due = now + TICK_S
        self._noted_s = self._noted_total_s = 0.0
        self._noted = ""
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now, cpu = self.now(), self._cpu_s()
        late = max(0.0, now - self._due)
        self._count(late, now, cpu - self._cpu)
        self._cpu = cpu
        self._wait(now)

    def _count(self, late_s: float, now: float, cpu_s: float) -> None:
        self._steps += 1
        late_ms = late_s * 1000
        self._counts[bisect_left(BOUNDS_MS, late_ms)] += 1
        self._cpu_counts[bisect_left(BOUNDS_MS, cpu_s * 1000)] += 1
        if now - self._lately_since > _RECENT_S:
            self._lately = [(0.0, ""), self._lately[0]]
            self._lately_since = now
        if late_s <= min(self._lately[0][0], self._longest[0]):
            return
        whose = self._whose(late_s, cpu_s)
        self._lately[0] = max(self._lately[0], (late_s, whose))
        if late_s > self._longest[0]:
            self._longest = (late_s, whose, self._clock.now_us())
        if late_s > _LONG_S and now - self._told_at > _TOLD_AGAIN_S:
            self._told_at = now
            level = logging.INFO if cpu_s < late_s / 2 else logging.WARNING  # that a machine is busy is no news
            logger.log(level, "the loop was held for %.0f ms by %s", late_ms, whose)

    def _whose(self, late_s: float, cpu_s: float) -> str:
        starved = cpu_s < late_s / 2
        whose = _MACHINE if starved else _NOBODY
        if self._noted_total_s > late_s / 2:
            whose = self._noted if self._noted_s > self._noted_total_s / 2 else f"{self._noted} and others"
        return f"{whose}, with the processor for only {cpu_s * 1000:.0f} ms" if starved else whose

    def statistics(self) -> LoopStatistics:
        """Return what was measured so far; all zero in a process that does not measure."""
        lately_s, lately_by = max(self._lately)
        longest_s, longest_by, longest_at_us = self._longest
        return LoopStatistics(
            steps=self._steps,
            over_50_ms=sum(self._counts[BOUNDS_MS.index(50) + 1 :]),
            over_200_ms=sum(self._counts[BOUNDS_MS.index(200) + 1 :]),
            lately_ms=round(lately_s * 1000, 3),
            lately_by=lately_by,
            longest_ms=round(longest_s * 1000, 3),
            longest_by=longest_by,
            longest_at_us=longest_at_us,
            counts=tuple(self._counts),
            cpu_counts=tuple(self._cpu_counts),
        )


class Measured(Coroutine[Any, Any, None]):
    """A coroutine whose every step is noted: make a task of it instead of the coroutine itself."""

    __slots__ = ("_coroutine", "_watch", "_whose")

    def __init__(self, watch: LoopWatch, coroutine: Coroutine[Any, Any, None], whose: Callable[[], str]) -> None:
        self._watch = watch
        self._coroutine = coroutine
        self._whose = whose

    def send(self, value: Any) -> Any:
        now = self._watch.now
        began = now()
        try:
            return self._coroutine.send(value)
        finally:
            took = now() - began
            if took > _NOTED_S:
                self._watch.note(took, self._whose)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()
