"""Work that concerns many things at once, a slice in each turn of the loop (C35).

Streams that hear of a message, groups whose leases are looked at: there may be a hundred thousand of them. What is
begun here is done at once as far as this turn has time for it, and else goes on in the next ones, each job a little in
turn. A piece that fails fails alone (`failures`).

    begin ──► pieces, until the turn's time is over ──left──► the next turn ──► … ──► then
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from stentor.broker.failures import Failures

SLICE_S: Final = 0.005
"""What all such work together gets in one turn of the loop: with what connections get (`transport.turns`) and one large
piece it stays below the 50 ms of C35."""

_PIECES: Final = 32  # of one job before another has its turn


class _Job(NamedTuple):
    what: str
    pieces: Iterator[Callable[[], object]]
    then: Callable[[], None]


class Slices:
    """Such work of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], failures: Failures) -> None:
        self._loop = loop
        self._now = now
        self._failures = failures
        self._jobs: deque[_Job] = deque()
        self._begun = False  # this turn; the next one is scheduled
        self._ends = 0.0
        self._working = False

    def begin(self, what: str, pieces: Iterable[Callable[[], object]], then: Callable[[], None] = lambda: None) -> None:
        """Do all of these, in order, now or soon; and then this."""
        self._jobs.append(_Job(what, iter(pieces), then))
        if not self._begun:
            self._begin_turn()
        if not self._working:
            self._work()

    def _begin_turn(self) -> None:
        self._begun = True
        self._ends = self._now() + SLICE_S
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._begun = False
        if self._jobs:
            self._begin_turn()
            self._work()

    def _work(self) -> None:
        self._working = True
        while self._jobs and self._now() < self._ends:
            job = self._jobs.popleft()
            if self._failures.run(job.what, self._go_on, job):
                self._jobs.append(job)
        self._working = False

    def _go_on(self, job: _Job) -> bool:
        """Do some pieces; return whether there may be more."""
        for _ in range(_PIECES):
            piece = next(job.pieces, None)
            if piece is None:
                job.then()
                return False
            self._failures.run(job.what, piece)
            if self._now() >= self._ends:
                break
        return True
