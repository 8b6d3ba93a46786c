"""A simulated cluster with producers, faults of every kind, and then healing."""

from tests.simulation.broker import Broker
from tests.simulation.checks import Checker, require
from tests.simulation.world import Network, Rates, Store, World

from stentor.core.controller import BrokerRecord, TopicPlan
from stentor.core.placement import Candidate, Load, place
from stentor.core.records import ChainRecord, Member
from stentor.core.replica import Answer

SECOND = 1_000_000
ALL = 3
FAULTS = [
    "crash",
    "crash",
    "start",
    "start",
    "start",
    "pause",
    "cut",
    "one_way",
    "heal",
    "heal",
    "store",
    "head",
    "tail",
    "wipe",
]


class Producer:
    """An idempotent producer: a few batches under way, resent in order until they are answered."""

    def __init__(self, cluster, producer_id, key, ack):
        self.cluster, self.world = cluster, cluster.world
        self.id, self.key, self.ack = producer_id, key, ack
        self.generation = 0
        self.next = 0  # the next sequence
        self.under_way = {}  # sequence -> (checksum, size)
        self.acknowledged = {}  # (producer, generation, sequence) -> offset
        self.target = None
        self.stopped = False
        self.gaps = 0
        self.world.at(self.world.rng.randint(0, 50_000), self.turn)

    def turn(self):
        rng = self.world.rng
        if not self.stopped and len(self.under_way) < 4:
            self.under_way[self.next] = (rng.getrandbits(32), rng.randint(1, 5))
            self.next += 1
        if self.under_way:
            self.send_all()
        if not self.stopped or self.under_way:
            self.world.at(rng.randint(5_000, 60_000), self.turn)

    def send_all(self):
        if self.target is None or self.world.chance(0.1):
            self.target = self.find_head()
        broker = self.cluster.brokers.get(self.target)
        if broker is None or not broker.up or self.target in self.cluster.unreachable:
            self.target = None
            return
        generation = self.generation
        for sequence, (checksum, size) in sorted(self.under_way.items()):
            producer = (self.id, generation, sequence, checksum, size)
            self.world.at(
                self.world.delay(),
                broker.guard(broker.publish),
                self.key,
                self.ack,
                producer,
                lambda effect, sequence=sequence: self.world.at(
                    self.world.delay(), self.answered, broker, generation, sequence, effect
                ),
            )

    def find_head(self):
        known = self.cluster.store.entries.get(("chains", self.key))
        if self.world.chance(0.3):
            return self.world.rng.choice(sorted(self.cluster.brokers))
        return None if known is None else known[0].chain[0].broker

    def answered(self, broker, generation, sequence, effect):
        if generation != self.generation or sequence not in self.under_way:
            return
        if isinstance(effect, Answer):
            self.under_way.pop(sequence)
            if self.ack == ALL:
                self.cluster.checker.acknowledged(broker, self.key, effect.epoch)
                self.acknowledged[self.id, generation, sequence] = effect.base_offset
                self.cluster.acknowledgements += 1
            return
        self.target = None
        error = getattr(effect, "error", None)
        reason = error.detail.get("reason") if error is not None else None
        if reason in ("gap", "unknown_producer", "old_generation", "forgotten"):
            self.lost_something(error, reason)

    def lost_something(self, error, reason):
        """An acknowledgement below `all` was provisional: what it covered may be gone. Go on under a new generation."""
        oldest = min(self.under_way)
        expected = error.detail.get("expected", 0)
        if reason in ("gap", "unknown_producer") and expected >= oldest:
            return  # overtaken on the way
        require(self.ack != ALL, "a producer that waits for `all` lost a batch", self.id, reason, expected, oldest)
        waiting = [self.under_way[sequence] for sequence in sorted(self.under_way)]
        self.generation += 1
        self.under_way = dict(enumerate(waiting))
        self.next = len(waiting)


class Cluster:
    """Brokers, store, producers and a checker, from one seed."""

    broker_type = Broker

    def __init__(self, seed, *, rates=None, brokers=None, factor=3, partitions=1, broker_type=None):
        self.world = world = World(seed, rates)
        self.network, self.store = Network(world), Store(world)
        names = [f"b{i}" for i in range(brokers or world.rng.choice([3, 3, 4, 5]))]
        self.unreachable = set()
        self.topics = {1: TopicPlan(factor, factor // 2 + 1 if factor > 2 else 1)}
        kind = broker_type or self.broker_type
        self.brokers = {name: kind(world, self.network, self.store, name, self.topics) for name in names}
        for broker in self.brokers.values():
            broker.lost_disk = False
            broker.drift = 1 + world.rng.uniform(-0.01, 0.01)
        self.keys = [(1, index) for index in range(partitions)]
        self.create(factor)
        self.checker = Checker(self)
        world.after_step = self.checker
        self.acknowledgements = 0
        for broker in self.brokers.values():
            broker.start()
        self.producers = [
            Producer(self, number + 1, key, ack)
            for key in self.keys
            for number, ack in enumerate([ALL, ALL, world.rng.choice([1, 2, 3])])
        ]

    def create(self, factor):
        """What creating the topic leaves in the store."""
        candidates = [Candidate(name) for name in self.brokers]
        load = Load.of([])
        minimum = self.topics[1].min_replicas
        for name in self.brokers:
            self.store.entries["brokers", name] = (BrokerRecord(name, 0), self.store.revision)
        for key in self.keys:
            chain = place(key[1], factor, candidates, load)
            load.add(chain)
            members = tuple(Member(name, self.world.new_id(), 1) for name in chain)
            record = ChainRecord(1, members, factor=factor, min_replicas=minimum)
            self.store.revision += 1
            self.store.entries["chains", key] = (record, self.store.revision)

    # --- faults ---------------------------------------------------------------------------------

    def fault(self):
        """One thing goes wrong, or gets better."""
        rng = self.world.rng
        broker = rng.choice(sorted(self.brokers))
        kind = rng.choice(FAULTS)
        self.world.note("fault", kind, broker)
        getattr(self, f"fault_{kind}")(broker, rng)

    def fault_crash(self, broker, _):
        self.brokers[broker].crash()

    def fault_start(self, broker, _):
        self.brokers[broker].start()

    def fault_pause(self, broker, rng):
        self.brokers[broker].pause(rng.choice([200_000, 1 * SECOND, 3 * SECOND]))

    def fault_cut(self, broker, rng):
        others = [o for o in self.brokers if o != broker and rng.random() < 0.7]
        self.network.cuts |= {(broker, o) for o in others} | {(o, broker) for o in others}

    def fault_one_way(self, broker, rng):
        self.network.cuts.add((broker, rng.choice([o for o in self.brokers if o != broker])))

    def fault_heal(self, *_):
        self.network.cuts.clear()

    def fault_store(self, _, rng):
        self.store.available = not self.store.available
        self.world.at(rng.choice([1, 3]) * SECOND, self.store_back)

    def fault_head(self, _, rng):
        self.brokers[self.store.entries["chains", rng.choice(self.keys)][0].chain[0].broker].crash()

    def fault_tail(self, _, rng):
        self.brokers[self.store.entries["chains", rng.choice(self.keys)][0].chain[-1].broker].crash()

    def fault_wipe(self, broker, _):
        self.wipe(self.brokers[broker])

    def store_back(self):
        self.store.available = True

    def wipe(self, broker):
        """A disk is lost, but never the last whole copy, and never two at a time."""
        if broker.up or any(other.lost_disk for other in self.brokers.values()):
            return
        for key in self.keys:
            record = self.store.entries["chains", key][0]
            holders = [m for m in record.chain if m.broker != broker.name]
            if len(holders) < 2 or any(self.brokers[m.broker].disk.logs.get(key) is None for m in holders):
                return
        broker.lost_disk = True
        broker.disk.logs.clear()
        self.world.note("wipe", broker.name)

    def disks_whole(self):
        """A lost disk counts as replaced once nobody relies on it any more."""
        for broker in self.brokers.values():
            if broker.lost_disk and all(
                (log := broker.disk.logs.get(key)) is not None and log.log_id == member.log_id
                for key in self.keys
                for member in self.store.entries["chains", key][0].chain
                if member.broker == broker.name
            ):
                broker.lost_disk = False

    # --- a run ----------------------------------------------------------------------------------

    def run(self, seconds=20):
        """Faults for a while; then none, and everything must come together."""
        world = self.world
        end = world.now + seconds * SECOND
        while world.now < end:
            world.run(world.now + world.rng.randint(50_000, 1_500_000))
            self.disks_whole()
            self.fault()
        self.heal()
        require(world.run(world.now + 60 * SECOND, self.settled), "the cluster does not come together", self.state())
        for producer in self.producers:
            producer.stopped = True
        require(
            world.run(world.now + 60 * SECOND, lambda: not any(p.under_way for p in self.producers)),
            "publishes are not answered although everything is well",
            self.state(),
        )
        for key in self.keys:
            merged = {k: v for p in self.producers if p.key == key for k, v in p.acknowledged.items()}
            self.checker.finish(key, merged)
        return world.trace

    def heal(self):
        world = self.world
        world.rates = Rates(delay_us=world.rates.delay_us, sync_us=world.rates.sync_us)
        world.note("heal")
        self.network.cuts.clear()
        self.network.connected.clear()
        self.store.available = True
        for broker in self.brokers.values():
            broker.paused_until = 0
            broker.start()
            # A watch of the store notices by itself what it missed.
            self.store.read(broker.guard(broker.loaded_store))

    def settled(self):
        """All chains have all their members, at work, and everything is committed everywhere."""
        if self.world.steps % 20:
            return False
        for key in self.keys:
            record = self.store.entries["chains", key][0]
            if len(record.chain) != record.factor or record.joining is not None:
                return False
            for member in record.chain:
                broker = self.brokers[member.broker]
                replica = broker.replicas.get(key) if broker.up else None
                if replica is None or replica.epoch != record.epoch or not replica.active:
                    return False
        return True

    def state(self):
        lines = [f"cuts {self.network.cuts} store {self.store.available}"]
        lines.extend(str(self.store.entries["chains", key]) for key in self.keys)
        lines.append(str(self.store.entries.get(("controller",))))
        for broker in self.brokers.values():
            lines.append(f"{broker.name} up={broker.up} inc={broker.disk.incarnation} halted={broker.halted}")
            if broker.up:
                now = broker.clock()
                lines.append(
                    f"   {broker.cluster.membership.statistics(now)} controller={broker.cluster.controller is not None}"
                )
                lines.extend(
                    f"   {key} {replica.me} {replica.statistics()} cutting={replica._cutting}"
                    f" adopting={replica._adopting is not None} feed={broker.feeds.get(key)}"
                    for key, replica in broker.replicas.items()
                )
        return "\n".join(lines)
