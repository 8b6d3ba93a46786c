"""Until when something is certainly ours that brokers give to others: a lease, a membership, an ephemeral key.

A process may stand still at any moment: stopped by a signal, by its debugger, by a machine that sleeps. What it held
may be another's when it goes on, and the first thing that it does may be the next job. So whoever begins something on
the strength of a lease asks here first, in the very thread that begins it:

    asked_at = clock()                                   before the request is sent
    certainty.renewed(asked_at, lease_s)                 once it was answered
    certainty.holds                                      right before each beginning; otherwise ask the broker

    asked_at ────────────────────────────┬──────┬─────┐
    certain                              │margin│share│ the lease's end, by the broker's clock
                                         holds  until

The clock counts suspension. An event loop's own does not, and some loops look at theirs only once in a turn: a thread
that wakes up before the loop would be given the time at which it fell asleep.

Between the question and the first line of a handler nothing can help, except a fence: a number that grows with each
hand-over, so that a store can refuse whoever comes with a smaller one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat, starmap
from typing import Any, Final

OWN_SHARE: Final = 0.9
"""The part of a lease that counts here: a broker's clock may be a little faster."""

MARGIN_SHARE: Final = 0.05
"""The part of a lease that is left for the way from the question to the beginning."""

MARGIN_S_MAX: Final = 1.0
"""However long the lease is."""

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)

boottime: Final[Callable[[], float]] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""Returns seconds by a clock that never jumps and counts suspension; where there is none, by the monotonic clock. It is
asked twice for every job, so there is no function of ours around it.
"""


def readings(clock: Callable[[], float]) -> Iterator[float]:
    """Return what a clock shows each time it is asked, without end: to be zipped behind what is handed out."""
    if clock is boottime and _BOOTTIME is not None:
        return starmap(time.clock_gettime, repeat((_BOOTTIME,)))
    return starmap(clock, repeat(()))


def clock_of(loop: Any) -> Callable[[], float]:
    """Return the clock by which leases are counted beside a loop: any thread may ask it.

    A loop in virtual time brings its own, as `boottime`.
    """
    clock: Callable[[], float] = getattr(loop, "boottime", boottime)
    return clock


class Certainty:
    """Until when something is certainly held. The client's loop renews it; any thread may ask."""

    __slots__ = ("_clock", "sure_until", "until")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.until = 0.0  # what was begun before is ours until then,
        self.sure_until = 0.0  # and something may be begun until then

    def renewed(self, asked_at: float, lasts_s: float) -> None:
        """Take note of an answer: what was asked for at a time, by the same clock, lasts this long from then on."""
        until = asked_at + OWN_SHARE * lasts_s
        if until > self.until:
            self.until, self.sure_until = until, until - min(MARGIN_SHARE * lasts_s, MARGIN_S_MAX)

    def shorten(self, until: float) -> None:
        """It may be another's from this time on, by the same clock, if not before."""
        margin = self.until - self.sure_until
        if until < self.until:
            self.until, self.sure_until = until, until - margin

    def end(self) -> None:
        """It is not ours any more."""
        self.until = self.sure_until = 0.0

    @property
    def holds(self) -> bool:
        """Whether something may be begun now. If not, it may still be ours: the broker knows."""
        return self._clock() < self.sure_until

    @property
    def is_over(self) -> bool:
        """Whether it may be another's already."""
        return self._clock() >= self.until
