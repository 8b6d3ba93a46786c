"""What goes wrong in a simulated cluster, one thing at a time; each seed draws what it prefers."""

import msgspec
from tests.simulation.world import SECOND

from stentor.core.controller import TopicPlan


def plan_for(factor, minimum=None, mode="spread"):
    if minimum is None:
        minimum = factor // 2 + 1 if factor > 2 else 1
    return TopicPlan(factor, minimum, mode)


class Faults:
    """Chooses a fault, and does it."""

    def __init__(self, cluster, favour=()):
        self.cluster, self.world = cluster, cluster.world
        self.network, self.store = cluster.network, cluster.store
        rng = self.world.rng
        self.weights = [weight * rng.choice([0, 1, 1, 3]) for weight in KINDS.values()]
        if favour:
            self.weights = [3 * (kind in favour) for kind in KINDS]
        self.weights[0] = self.weights[1] = 6  # things also get better

    def one(self):
        rng = self.world.rng
        (kind,) = rng.choices(list(KINDS), self.weights)
        broker = rng.choice(list(self.cluster.brokers.values()))
        self.world.note("fault", kind, broker.name)
        getattr(self, kind)(broker, rng)

    def record(self, rng):
        return self.cluster.record(rng.choice(self.cluster.keys))

    # --- brokers --------------------------------------------------------------------------------

    def start(self, broker, _):
        broker.start()

    def crash(self, broker, _):
        broker.crash()

    def bounce(self, broker, rng):
        """Down and up again before anybody notices."""
        broker.crash()
        self.world.at(rng.choice([0, 5_000, 50_000]), broker.start)

    def head(self, _, rng):
        self.cluster.brokers[self.record(rng).chain[0].broker].crash()

    def head_bounces(self, _, rng):
        self.bounce(self.cluster.brokers[self.record(rng).chain[0].broker], rng)

    def tail(self, _, rng):
        self.cluster.brokers[self.record(rng).chain[-1].broker].crash()

    def joiner(self, _, rng):
        joining = self.record(rng).joining
        if joining is not None:
            self.bounce(self.cluster.brokers[joining.broker], rng)

    def controller(self, _, __):
        key = self.store.value("controller")
        if key is not None:
            self.cluster.brokers[key.broker].crash()

    def power(self, *_):
        """All at once."""
        for broker in self.cluster.brokers.values():
            broker.crash()
            if broker.life and self.world.chance(0.8):
                self.world.at(self.world.between(0, SECOND), broker.start)

    def pause(self, broker, rng):
        broker.pause(rng.choice([200_000, 1 * SECOND, 3 * SECOND]))

    def clock(self, broker, rng):
        """The wall clock jumps; the other one runs at another rate from now on."""
        broker.wall_offset += rng.choice([-3_600, -10, 10, 3_600]) * SECOND

    # --- the network ----------------------------------------------------------------------------

    def heal(self, *_):
        self.network.cuts.clear()
        self.store.cut.clear()

    def cut(self, broker, rng):
        others = [o for o in self.cluster.brokers if o != broker.name and rng.random() < 0.7]
        self.both_ways([(broker.name, other) for other in others])

    def split(self, _, rng):
        """Two sides; whatever was cut before is healed."""
        self.network.cuts.clear()
        names = list(self.cluster.brokers)
        left = {name for name in names if rng.random() < 0.5}
        self.both_ways([(a, b) for a in names for b in names if a in left and b not in left])

    def ring(self, *_):
        """Everyone reaches only its neighbours."""
        self.network.cuts.clear()
        names = list(self.cluster.brokers)
        near = {(a, b) for a, b in zip(names, [*names[1:], names[0]], strict=True)}
        self.both_ways([(a, b) for a in names for b in names if a < b and (a, b) not in near and (b, a) not in near])

    def pair(self, broker, rng):
        """Two do not reach each other, and everybody else reaches both; neighbours of a chain rather than others."""
        chain = [member.broker for member in self.record(rng).chain]
        others = [name for name in self.cluster.brokers if name != broker.name]
        pair = (broker.name, rng.choice(others))
        if len(chain) > 1 and rng.random() < 0.7:
            place = rng.randrange(len(chain) - 1)
            pair = chain[place], chain[place + 1]
        self.both_ways([pair])

    def one_way(self, broker, rng):
        self.network.cuts.add((broker.name, rng.choice([o for o in self.cluster.brokers if o != broker.name])))

    def both_ways(self, pairs):
        self.network.cuts |= set(pairs) | {(b, a) for a, b in pairs}

    # --- the store ------------------------------------------------------------------------------

    def store_away(self, _, rng):
        self.store.available = False
        self.world.at(rng.choice([1, 2, 4]) * SECOND, self.store_back)

    def store_back(self):
        self.store.available = True

    def store_cut(self, broker, rng):
        """One broker does not reach it; the controller rather than others."""
        key = self.store.value("controller")
        name = broker.name if key is None or rng.random() < 0.5 else key.broker
        self.store.cut.add(name)

    def leases(self, broker, rng):
        """One liveness key lapses, or all of them do: the store was paused."""
        for name in [broker.name] if rng.random() < 0.5 else list(self.store.leases):
            self.store.lapse(name)

    # --- disks ----------------------------------------------------------------------------------

    def full(self, broker, rng):
        broker.full_until = self.world.now + rng.choice([1, 3]) * SECOND
        broker.knows_disk = rng.random() < 0.7

    def all_full(self, _, rng):
        """Disks of replicas fill up together."""
        for broker in self.cluster.brokers.values():
            if rng.random() < 0.8:
                self.full(broker, rng)

    def hang(self, broker, rng):
        """No sync comes to an end for a while, and those that were under way do then."""
        if broker.up and not broker.hangs:
            broker.hangs, broker.knows_disk = True, rng.random() < 0.5
            self.world.at(rng.choice([500_000, 2 * SECOND, 5 * SECOND]), broker.release)

    def slow_disk(self, broker, rng):
        broker.slow_until = self.world.now + rng.choice([1, 4]) * SECOND

    def wipe(self, broker, _):
        """A disk is replaced by an empty one."""
        if not broker.up and all(self.cluster.checker.may_lose(broker.name, key) for key in broker.disk.logs):
            broker.disk.lost |= {log.log_id for log in broker.disk.logs.values()}
            broker.disk.logs.clear()

    def flip(self, broker, rng):
        """A bit flips in one log: it cannot be used any more, and is not reported."""
        if not broker.up and broker.disk.logs:
            key = rng.choice(list(broker.disk.logs))
            if self.cluster.checker.may_lose(broker.name, key):
                broker.disk.lost.add(broker.disk.logs.pop(key).log_id)

    def shorten(self, broker, rng):
        """A file is cut off below what was known to be on disk."""
        if not broker.up and broker.disk.logs:
            key = rng.choice(list(broker.disk.logs))
            log = broker.disk.logs[key]
            known = sum(batch.end_offset <= log.checked for batch in log.batches)
            if known and not log.failed and self.cluster.checker.may_lose(broker.name, key):
                log.excused = True
                del log.batches[self.world.between(0, known - 1) :]
                log.synced = len(log.batches)

    # --- operators ------------------------------------------------------------------------------

    def add(self, *_):
        fresh = [broker for broker in self.cluster.brokers.values() if not broker.life]
        if fresh:
            fresh[0].start()

    def drain(self, broker, _):
        held = self.store.value("brokers", broker.name)
        if held is not None:
            draining = msgspec.structs.replace(held, draining=not held.draining)
            self.store.put({("brokers", broker.name): draining})

    def factor(self, _, rng):
        topic = rng.choice([key[0] for key in self.cluster.keys])
        factor = rng.choice([1, 2, 3, 5])
        minimum = rng.choice([None, None, 1, min(factor, 2)])
        mode = rng.choice(["spread", "multi-primary"])
        self.store.put({("topics", topic): plan_for(factor, minimum, mode)})


KINDS = {
    "start": 6,
    "heal": 6,
    "crash": 3,
    "bounce": 2,
    "head": 2,
    "head_bounces": 2,
    "tail": 1,
    "joiner": 1,
    "controller": 1,
    "power": 1,
    "pause": 3,
    "clock": 1,
    "cut": 2,
    "split": 2,
    "ring": 1,
    "one_way": 1,
    "pair": 2,
    "store_away": 1,
    "store_cut": 1,
    "leases": 1,
    "full": 1,
    "all_full": 1,
    "hang": 2,
    "slow_disk": 1,
    "wipe": 2,
    "flip": 2,
    "shorten": 2,
    "add": 1,
    "drain": 1,
    "factor": 1,
}
