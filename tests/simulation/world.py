"""The simulated world: one clock, one queue, one source of randomness.

Everything that happens is an event in one queue, ordered by time and then by the order of its making, so a
seed gives the same run every time. The trace is a running checksum of what happened.
"""

import heapq
import random
import zlib
from dataclasses import dataclass
from itertools import count

SECOND = 1_000_000
STEPS_MAX = 150_000  # several times what any seed needs


@dataclass
class Rates:
    """How much goes wrong by itself; drawn anew for each seed."""

    loss: float = 0.0  # a message is lost silently
    breaks: float = 0.0  # a message breaks its connection instead of arriving
    duplicate: float = 0.0
    reorder: float = 0.0
    unknown: float = 0.0  # a swap of the store whose answer is lost
    compacted: float = 0.0  # a watch that must read everything again
    torn: float = 0.0  # a crash loses a part of what was not synced
    sync_error: float = 0.0
    disk_full: float = 0.0
    crash_between: float = 0.0  # a crash between two effects
    retention: float = 0.0  # how often a head lets the beginning of a log go, per second
    delay_us: int = 3_000
    sync_us: int = 4_000

    @classmethod
    def draw(cls, rng):
        def some(rate):
            return rng.choice([0.0, rate / 4, rate])

        return cls(
            loss=some(0.01),
            breaks=some(0.01),
            duplicate=some(0.02),
            reorder=some(0.05),
            unknown=some(0.2),
            compacted=some(0.1),
            torn=rng.choice([0.0, 0.5, 1.0]),
            sync_error=some(0.0005),
            disk_full=some(0.01),
            crash_between=some(0.0002),
            retention=rng.choice([0.0, 0.0, 0.2, 1.0]),
            delay_us=rng.choice([200, 1_000, 5_000, 20_000]),
            sync_us=rng.choice([300, 2_000, 20_000]),
        )


class World:
    """Time, chance and the queue."""

    def __init__(self, seed, *, full_trace=False, show=None):
        self.rng = random.Random(seed)
        self.rates = Rates()
        self.now = 1 * SECOND
        self.steps = 0
        self.trace = 0
        self.full_trace = full_trace or show is not None
        self._show = show  # a function that prints what happens
        self.touched = {}  # (broker, key) of what may have changed in this step, in order
        self._queue = []
        self._order = count()
        self._ids = count(1)

    def new_id(self):
        return next(self._ids)

    def chance(self, rate):
        return rate > 0 and self.rng.random() < rate

    def between(self, low, high):
        return low + int(self.rng.random() * (high - low + 1))

    def delay(self):
        return self.between(self.rates.delay_us // 4, self.rates.delay_us)

    def at(self, delay_us, work, *arguments):
        heapq.heappush(self._queue, (self.now + max(0, int(delay_us)), next(self._order), work, arguments))

    def note(self, *what):
        """Something happened that belongs into every trace."""
        text = f"{self.now} {what}"
        self.trace = zlib.crc32(text.encode(), self.trace)
        if self._show is not None:
            self._show(text)

    def detail(self, *what):
        """The same, for what happens so often that only a full trace has it."""
        if self.full_trace:
            self.note(*what)

    def run(self, until_us, after_step, enough=None):
        """Let things happen until a time, or until it is enough; whether it is."""
        queue = self._queue
        while queue and queue[0][0] <= until_us:
            self.now, _, work, arguments = heapq.heappop(queue)
            work(*arguments)
            self.steps += 1
            assert self.steps < STEPS_MAX, "far too many messages: somebody repeats itself"
            if self.touched:
                touched, self.touched = self.touched, {}
                after_step(touched)
            if enough is not None and enough():
                return True
        self.now = max(self.now, until_us)
        return enough is not None and enough()
