"""When the machine itself stood still: a control that runs beside what is measured.

Two threads of one process look all the time. One sleeps two milliseconds at a time at real-time priority, which no
process of the work has: if it is late, nobody else could run either. The other one does what a broker's log does, a
hundred times a second: it appends 4 kB to a file on the same disk and syncs it. What took either of them longer than
5 ms is a standstill. A message that was due in one, shortly before it, or while what had queued up was worked off, says
how long the machine stood still and nothing about who delivers it.

Neither of them notices other programs that take the cores from the work: `Others` says how many cores these took.

Messages are told apart by when they were *due*, never by how long they took, and by the same rule whatever is measured.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure import TICKS_PER_S, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bench.model import Spec
    from bench.role import Harness

TICK_S = 0.002
SYNC_EVERY_S = 0.01
LATE_S = 0.005
"""Ten times what a sync takes here, and about what it takes to reach a hundred subscribers."""
BEFORE_S = 0.03
"""What was due so long before a standstill may have been under way; the control may have seen it late, too."""
AFTER_S = 0.1
"""Then what had queued up is worked off."""
PRIORITY = 10
BLOCK_BYTES = 4096
AHEAD_BYTES = 16 << 20

Windows = list[tuple[float, float]]


def watch(spec: Spec, harness: Harness) -> None:
    """Role: looks until it is asked; then says when the machine stood still, and how late it was otherwise."""
    ticks, syncs = Pulse(), Pulse()
    ended = threading.Event()
    threads = [
        threading.Thread(target=_tick, args=(ticks, ended)),
        threading.Thread(target=_sync, args=(syncs, ended, Path(spec.extra["file"]))),
    ]
    for thread in threads:
        thread.start()
    harness.say("watching")
    harness.wait()
    ended.set()
    for thread in threads:
        thread.join()
    harness.say("watched", windows=ticks.windows + syncs.windows, late=ticks.p99_ms(), sync=syncs.p99_ms())


class Pulse:
    """What one thread saw."""

    def __init__(self) -> None:
        self.windows: Windows = []
        self._took_s = array("d")

    def saw(self, began: float, ended: float) -> None:
        self._took_s.append(ended - began)
        if ended - began > LATE_S:
            self.windows.append((began, ended))

    def p99_ms(self) -> float:
        return float(np.percentile(np.array(self._took_s), 99)) * 1e3


def _tick(pulse: Pulse, ended: threading.Event) -> None:
    with suppress(PermissionError):  # without it, it is as late as the processes of the work
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    while not ended.is_set():
        due = time.monotonic() + TICK_S
        time.sleep(TICK_S)
        pulse.saw(due, time.monotonic())


def _sync(pulse: Pulse, ended: threading.Event, path: Path) -> None:
    block, end, ahead = os.urandom(BLOCK_BYTES), 0, 0
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    while not ended.wait(SYNC_EVERY_S):
        if end == ahead:
            os.posix_fallocate(descriptor, ahead, AHEAD_BYTES)
            ahead += AHEAD_BYTES
        began = time.monotonic()
        os.pwrite(descriptor, block, end)
        os.fdatasync(descriptor)
        pulse.saw(began, time.monotonic())
        end += BLOCK_BYTES
    os.close(descriptor)


def undisturbed(due: NDArray[Any], windows: Sequence[Sequence[float]]) -> NDArray[np.bool_]:
    """Which of these times lie in no standstill, nor just before or after one."""
    good = np.ones(len(due), bool)
    for began, ended in windows:
        good &= (due < began - BEFORE_S) | (due >= ended + AFTER_S)
    return good


class Others:
    """How many cores other programs, and the host below, took from the processes of a work since it was asked last."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = list(pids)
        self._before = self._now()

    def cores(self) -> float:
        (began, busy_s, ours_s), self._before = self._before, self._now()
        ended, busy_after_s, ours_after_s = self._before
        return max(0.0, (busy_after_s - busy_s) - (ours_after_s - ours_s)) / (ended - began)

    def _now(self) -> tuple[float, float, float]:
        user, nice, system, _idle, _waiting, _interrupts, _soft, steal = map(int, _cpu_line().split()[1:9])
        ours_s = sum(map(cpu_seconds, self._pids)) + time.process_time()
        return time.monotonic(), (user + nice + system + steal) / TICKS_PER_S, ours_s


def _cpu_line() -> str:
    with Path("/proc/stat").open(encoding="ascii") as lines:
        return next(lines)
