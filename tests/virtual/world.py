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


class World:
    """The heap of events, the time, and the chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000 * SECOND
        self.started_at_us = 1_700_000_000 * SECOND
        self.current: Process | None = None  # whose code runs
        self.errors: list[str] = []  # what a process did not expect
        self.steps = 0
        self._heap: list[tuple[int, int, Process, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0

    def between(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

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
            if process.paused_until > when:
                heapq.heappush(heap, (process.paused_until, number, process, call, args))
                continue
            self.now = when
            self.steps += 1
            self.current = process
            try:
                call(*args)
            finally:
                self.current = None
            if enough is not None and enough():
                return True
        self.now = max(self.now, until)
        return False


class Process:
    """Something with a loop: a broker's life, or a client's."""

    def __init__(self, world: World, name: str) -> None:
        from tests.virtual.loop import VirtualLoop

        self.world = world
        self.name = name
        self.dead = False
        self.paused_until = 0
        self.clock_ahead_us = 0  # of the wall clock
        self.loop = VirtualLoop(self)

    def run(self, work: Any) -> asyncio.Task[Any]:
        """Begin a coroutine in this process."""
        return self.loop.create_task(work)

    # --- its clocks -----------------------------------------------------------------------------

    def now_us(self) -> int:
        return self.world.started_at_us + self.world.now + self.clock_ahead_us

    def monotonic(self) -> float:
        return self.world.now / SECOND


def number_objects() -> None:
    """Sets of objects are walked by where these lie in memory: number them instead, from 0 in each run."""
    from stentor.broker.partitions.chain_feed import ChainFeed
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.sessions.reader_stream import ReaderStream
    from stentor.broker.sessions.session import Session
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
