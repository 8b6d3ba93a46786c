"""Virtual time, and the processes that live in it.

A process has an event loop of its own. All loops are run by one heap of events: what happens next is what is due next,
and chance, from one seed, decides how long everything takes. Nothing waits for real: ten minutes pass as fast as the
processor can go through what happens in them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

SECOND = 1_000_000
STEPS_MAX = 500_000  # several times what any seed needs
STUCK_US = 20_000  # until it is looked again whether a process goes on


class BrokenError(AssertionError):
    """Something does not hold."""


class DiedError(BaseException):
    """Ends what a process does at this moment: it was killed in the middle of it."""


class World:
    """The heap of events, the time, and the chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000 * SECOND
        self.started_at_us = 1_700_000_000 * SECOND
        self.current: Process | None = None  # whose code runs
        self.tasks = 0  # made so far
        self.in_thread = False  # of that process: a thread is at work, not its loop
        self.broken: list[str] = []  # what does not hold, or was not expected: the run ends with it
        self.touched: dict[Any, None] = {}  # what may have changed in this step, for `check`
        self.check: Callable[[], None] | None = None  # looks at what was touched, after every step
        self.steps = 0
        self.steps_max = STEPS_MAX
        self.trace = 0  # of when everything happened: the same in two runs of a seed
        self._heap: list[tuple[int, int, Process, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0

    def between(self, low: int, high: int) -> int:
        return low + int(self.rng.random() * (high - low + 1))

    def require(self, holds: bool, what: str, *details: Any) -> None:
        """Anywhere, in any process: the run ends after this step if it does not hold."""
        if not holds:
            self.broken.append(f"{what}: {', '.join(map(str, details))}" if details else what)

    def at(self, when: int, process: Process, call: Callable[..., None], *args: Any) -> None:
        """Call this for a process, unless it is dead by then; later, if it is paused."""
        self._numbers += 1
        heapq.heappush(self._heap, (max(when, self.now), self._numbers, process, call, args))

    def run(self, until: int, enough: Callable[[], bool] | None = None) -> bool:
        """Let things happen; True as soon as it is enough."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, number, process, call, args = heapq.heappop(heap)
            if process.dead:
                continue
            if later := process.held_up(when):
                heapq.heappush(heap, (later, number, process, call, args))
                continue
            self.now = when
            self.current = process
            try:
                call(*args)
            except DiedError:
                pass  # in the middle of it
            finally:
                self.current = None
            self._look(when)
            if enough is not None and enough():
                return True
        self.now = max(self.now, until)
        return False

    def _look(self, when: int) -> None:
        """After every step."""
        self.steps += 1
        self.trace = (self.trace * 31 + when) & 0xFFFFFFFF
        if self.touched and self.check is not None:
            self.check()
        self.require(self.steps < self.steps_max, "far too much happens: somebody repeats itself")
        if self.broken:
            raise BrokenError(self.broken[0])


class Process:
    """Something with a loop: a broker's life, or a client's."""

    def __init__(self, world: World, name: str) -> None:
        from tests.virtual.loop import VirtualLoop

        self.world = world
        self.name = name
        self.born = world.now
        self.dead = False
        self.paused_until = 0
        self.stuck: Callable[[], bool] | None = None  # whether its loop still waits for the disk
        self.clock_ahead_us = 0  # of the wall clock
        self.rate = 1.0  # of its clocks, beside those of the world
        self.loop = VirtualLoop(self)

    def held_up(self, when: int) -> int:
        """Until when it does nothing; 0 if it goes on."""
        if self.paused_until > when:
            return self.paused_until
        if self.stuck is not None:
            if self.stuck():
                return when + STUCK_US
            self.stuck = None
        return 0

    def run(self, work: Any) -> asyncio.Task[Any]:
        """Begin a coroutine in this process."""
        return self.loop.create_task(work)

    # --- its clocks -----------------------------------------------------------------------------

    def now_us(self) -> int:
        return self.world.started_at_us + int(self.world.now * self.rate) + self.clock_ahead_us

    def monotonic(self) -> float:
        return self.world.now * self.rate / SECOND


def number_objects() -> None:
    """Sets of objects are walked by where these lie in memory: number them instead, from 0 in each run."""
    from stentor.broker.partitions.chain_feed import ChainFeed
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.sessions.reader_stream import ReaderStream
    from stentor.broker.sessions.session import Session
    from stentor.client.core import ClientCore
    from stentor.client.link import BrokerLink
    from stentor.transport.connection import Connection

    numbers = itertools.count()

    def number(thing: Any) -> int:
        found = thing.__dict__.get("_number")
        if found is None:
            found = thing._number = next(numbers)
        return int(found)

    for kind in (ChainFeed, Partition, Session, ReaderStream, BrokerLink, Connection):
        kind.__hash__ = number  # type: ignore[method-assign, assignment]
    if not hasattr(ClientCore.__init__, "orders"):
        ClientCore.__init__ = _in_order(ClientCore.__init__)  # type: ignore[method-assign]


class Ordered(dict[Any, None]):
    """A set that is walked in the order in which things came into it."""

    def add(self, thing: Any) -> None:
        self[thing] = None

    def discard(self, thing: Any) -> None:
        self.pop(thing, None)


def _in_order(init: Callable[..., None]) -> Callable[..., None]:
    """Methods are hashed by where their objects lie, whatever these say of themselves."""

    def ordered(core: Any, *args: Any, **settings: Any) -> None:
        init(core, *args, **settings)
        core.link_listeners, core.route_listeners, core.closers = Ordered(), Ordered(), Ordered()
        core.leavers = Ordered()

    ordered.orders = True  # type: ignore[attr-defined]
    return ordered
