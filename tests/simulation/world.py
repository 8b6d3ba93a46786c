"""The simulated world: one clock, one queue, one source of randomness; a network and a coordination store.

Everything that happens is an event in one queue, ordered by time and then by the order of its making, so a
seed gives the same run every time. The trace is a running checksum of what happened.
"""

import heapq
import random
import zlib
from dataclasses import dataclass, field
from itertools import count


@dataclass
class Rates:
    """How much goes wrong; drawn anew for each seed."""

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
            delay_us=rng.choice([200, 1_000, 5_000, 20_000]),
            sync_us=rng.choice([300, 2_000, 20_000]),
        )


class World:
    """Time, chance and the queue."""

    def __init__(self, seed, rates=None):
        self.rng = random.Random(seed)
        self.rates = rates or Rates.draw(self.rng)
        self.now = 1_000_000
        self.steps = 0
        self.trace = 0
        self.after_step = lambda: None
        self.touched = {}  # brokers that may have changed in this step
        self._queue = []
        self._order = count()
        self._ids = count(1)

    def new_id(self):
        return next(self._ids)

    def chance(self, rate):
        return rate > 0 and self.rng.random() < rate

    def at(self, delay_us, work, *arguments):
        heapq.heappush(self._queue, (self.now + max(0, int(delay_us)), next(self._order), work, arguments))

    def delay(self):
        return self.rng.randint(self.rates.delay_us // 4, self.rates.delay_us)

    def note(self, *what):
        self.trace = zlib.crc32(repr((self.now, what)).encode(), self.trace)

    def run(self, until_us, enough=lambda: False):
        """Let things happen until a time; or until it is enough."""
        while self._queue and self._queue[0][0] <= until_us:
            self.now, _, work, arguments = heapq.heappop(self._queue)
            work(*arguments)
            self.steps += 1
            self.after_step()
            if enough():
                return True
        self.now = max(self.now, until_us)
        return enough()


@dataclass
class Network:
    """Connections between brokers: in order and whole, until they break; sometimes worse than that."""

    world: World
    brokers: dict = field(default_factory=dict)
    cuts: set = field(default_factory=set)  # ordered pairs that do not get through
    connected: dict = field(default_factory=dict)  # ordered pair -> generation
    _last: dict = field(default_factory=dict)
    _generations: object = field(default_factory=lambda: count(1))

    def send(self, sender, to, deliver, *arguments):
        """Hand `deliver(*arguments)` to the other side, if the connection lives that long."""
        world, pair = self.world, (sender, to)
        generation = self.connected.get(pair)
        if generation is None or world.chance(world.rates.loss):
            return
        if world.chance(world.rates.breaks):
            self.break_pair(sender, to)
            return
        times = 2 if world.chance(world.rates.duplicate) else 1
        for _ in range(times):
            due = world.now + world.delay()
            if not world.chance(world.rates.reorder):
                due = max(due, self._last.get(pair, 0))
                self._last[pair] = due
            world.at(due - world.now, self._arrive, pair, generation, deliver, arguments)

    def _arrive(self, pair, generation, deliver, arguments):
        if self.connected.get(pair) == generation and pair not in self.cuts:
            self.brokers[pair[1]].when_awake(deliver, *arguments)

    def break_pair(self, one, other):
        self.connected.pop((one, other), None)
        self.connected.pop((other, one), None)

    def try_connect(self, one, other):
        """What a connection attempt gives: connected, refused or nothing."""
        if (one, other) in self.connected:
            return ""
        if (one, other) in self.cuts or (other, one) in self.cuts:
            return ""
        if not self.brokers[other].up:
            return "refused"
        self.connected[one, other] = self.connected[other, one] = next(self._generations)
        return "connected"

    def drop(self, broker):
        for pair in [pair for pair in self.connected if broker in pair]:
            del self.connected[pair]


class Store:
    """The coordination store: a map with revisions, whose answers may be late or lost."""

    def __init__(self, world):
        self.world = world
        self.revision = 1
        self.entries = {}  # key -> (value, revision)
        self.available = True
        self.watchers = {}  # broker -> watcher

    def swap(self, expect, put, done):
        """done(revision) when it succeeded, done(None) when it failed, done("unknown") when nobody knows."""
        world = self.world
        if not self.available:
            world.at(50_000, done, "unknown")
            return
        lost = world.chance(world.rates.unknown)
        if lost and world.rng.random() < 0.5:  # the request itself was lost
            world.at(50_000, done, "unknown")
            return
        late = 40_000 if lost else 0
        world.at(world.delay() + late, self._apply, expect, put, done, lost)
        if lost:
            world.at(30_000, done, "unknown")

    def _apply(self, expect, put, done, lost):
        if not self.available:
            if not lost:
                self.world.at(20_000, done, "unknown")
            return
        held = all(self.entries.get(key, (None, 0))[1] == revision for key, revision in expect.items())
        if held:
            self.revision += 1
            for key, value in put.items():
                self.entries[key] = (value, self.revision)
            self.world.note("swap", self.revision, sorted(map(str, put)))
            for watcher in list(self.watchers.values()):
                watcher.changed(self.revision, put)
        if not lost:
            self.world.at(self.world.delay(), done, self.revision if held else None)

    def read(self, done):
        """done(entries, revision), or never if the store is away."""
        if self.available:
            entries, revision = dict(self.entries), self.revision
            self.world.at(2 * self.world.delay(), done, entries, revision)
        else:
            self.world.at(50_000, self.read, done)


class Watcher:
    """One broker's watch: changes in order, late, and now and then everything at once."""

    def __init__(self, store, deliver):
        self.store = store
        self.deliver = deliver
        self.closed = False
        self._last = 0

    def changed(self, revision, put):
        world = self.store.world
        due = max(world.now + world.delay() * world.rng.choice([1, 1, 10]), self._last)
        self._last = due
        if world.chance(world.rates.compacted):
            world.at(due - world.now, self._resync)
        else:
            world.at(due - world.now, self._arrive, {key: (value, revision) for key, value in put.items()})

    def _arrive(self, entries):
        if not self.closed:
            self.deliver(entries)

    def _resync(self):
        self._arrive(dict(self.store.entries))
