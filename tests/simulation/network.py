"""Connections between brokers: in order and whole, until they break; sometimes worse than that."""

from itertools import count


class Network:
    """Who is connected with whom, and who does not get through to whom."""

    def __init__(self, world):
        self.world = world
        self.brokers = {}
        self.cuts = set()  # ordered pairs that do not get through
        self.connected = {}  # ordered pair -> generation
        self._last = {}  # ordered pair -> when its last message arrives
        self._generations = count(1)

    def send(self, sender, to, what, *arguments):
        """Hand a message to the other side, if the connection lives that long."""
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
            if world.chance(world.rates.reorder):
                due = world.now + world.delay() * world.rng.choice([1, 5, 50])  # may come after another epoch began
            else:
                due = max(due, self._last.get(pair, 0))
                self._last[pair] = due
            world.at(due - world.now, self._arrive, pair, generation, what, arguments)

    def _arrive(self, pair, generation, what, arguments):
        if self.connected.get(pair) == generation and pair not in self.cuts:
            broker = self.brokers[pair[1]]
            self.world.detail(what, pair, arguments)
            broker.when_awake(broker.hear, what, *arguments)

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
