"""The coordination store: a map with revisions, whose answers may be late or lost; watches and liveness keys."""

from tests.simulation.world import SECOND

from stentor import limits

CONTROLLER = ("controller",)
LEASE_US = 3 * SECOND
POLL_US = int(limits.COORDINATION_POLL_S * SECOND)
UNKNOWN = "unknown"


class Store:
    """Changed only by compare-and-swap; every change has a revision."""

    def __init__(self, world):
        self.world = world
        self.revision = 1
        self.entries = {}  # key -> (value, revision)
        self.available = True
        self.cut = set()  # brokers that do not reach it
        self.watchers = {}  # broker -> watcher
        self.leases = {}  # broker -> when it expires
        self.expired = set()
        self.check_change = None  # checks what follows what
        self.world.at(SECOND, self._expire)

    def value(self, *key):
        return self.entries.get(key, (None, 0))[0]

    def revision_of(self, *key):
        return self.entries.get(key, (None, 0))[1]

    def records(self):
        return {key[1]: value for key, (value, _) in self.entries.items() if key[0] == "chains"}

    def reachable(self, broker):
        return self.available and broker not in self.cut

    # --- swaps and reads ------------------------------------------------------------------------

    def swap(self, who, expect, put, done):
        """done(revision) when it succeeded, done(None) when it failed, done(UNKNOWN) when nobody knows."""
        world = self.world
        if not self.reachable(who.broker):
            world.at(50_000, done, UNKNOWN)
            return
        lost = world.chance(world.rates.unknown)
        if lost and world.rng.random() < 0.5:  # the request itself was lost
            world.at(50_000, done, UNKNOWN)
            return
        late = 40_000 if lost else 0
        world.at(world.delay() + late, self._apply, who, expect, put, done, lost)
        if lost:
            world.at(30_000, done, UNKNOWN)

    def _apply(self, who, expect, put, done, lost):
        if not self.available:
            if not lost:
                self.world.at(20_000, done, UNKNOWN)
            return
        held = all(self.revision_of(*key) == revision for key, revision in expect.items())
        if held:
            self.put(put, who)
        if not lost:
            self.world.at(self.world.delay(), done, self.revision if held else None)

    def put(self, put, who=None):
        """What a successful swap does; without a name it is an operator's doing."""
        if self.check_change is not None:
            for key, value in put.items():
                self.check_change(key, self.value(*key), value, who)
        self.revision += 1
        for key, value in put.items():
            self.entries[key] = (value, self.revision)
            if key[0] == "chains":
                self.world.touched["", key[1]] = None
        self.world.note("swap", self.revision, put)
        for watcher in list(self.watchers.values()):
            watcher.changed({key: (value, self.revision) for key, value in put.items()})

    def read(self, broker, done):
        """done(entries); it goes on trying while the store is away."""
        if self.reachable(broker):
            self.world.at(2 * self.world.delay(), done, dict(self.entries))
        else:
            self.world.at(50_000, self.read, broker, done)

    # --- liveness keys (E1) ---------------------------------------------------------------------

    def renew(self, broker):
        if self.reachable(broker):
            self.leases[broker] = self.world.now + LEASE_US
            if broker in self.expired:
                self.expired.discard(broker)
                self._tell(broker, alive=True)

    def _expire(self):
        if self.available:
            for broker, due in self.leases.items():
                if due < self.world.now and broker not in self.expired:
                    self.lapse(broker)
        self.world.at(SECOND // 2, self._expire)

    def lapse(self, broker):
        self.expired.add(broker)
        self.world.note("lease", broker)
        self._tell(broker, alive=False)

    def _tell(self, broker, *, alive):
        for watcher in list(self.watchers.values()):
            watcher.changed({("alive", broker): (alive, self.revision)})


class Watcher:
    """One broker's watch: changes in order, late, now and then everything at once; and after an absence too."""

    def __init__(self, store, broker, deliver):
        self.store, self.broker = store, broker
        self.deliver = deliver
        self.closed = False
        self._missed = False
        self._last = 0
        store.world.at(POLL_US, self._poll)

    def changed(self, entries):
        world = self.store.world
        if not self.store.reachable(self.broker):
            self._missed = True
            return
        due = max(world.now + world.delay() * world.rng.choice([1, 1, 10]), self._last)
        self._last = due
        if world.chance(world.rates.compacted):
            world.at(due - world.now, self._resync)
        else:
            world.at(due - world.now, self._arrive, entries)

    def _poll(self):
        if self.closed:
            return
        if self._missed and self.store.reachable(self.broker):
            self._missed = False
            self._resync()
        self.store.world.at(POLL_US, self._poll)

    def _arrive(self, entries):
        if not self.closed:
            self.deliver(entries)

    def _resync(self):
        alive = {("alive", broker): (broker not in self.store.expired, 0) for broker in self.store.leases}
        self._arrive({**self.store.entries, **alive})
