"""A simulated cluster with clients, faults of every kind, and then healing."""

from dataclasses import replace

import msgspec
from tests.simulation.broker import Broker
from tests.simulation.checks import Checker, require
from tests.simulation.clients import EndReader, Producer, Reader
from tests.simulation.faults import Faults, plan_for
from tests.simulation.network import Network
from tests.simulation.store import Store
from tests.simulation.world import SECOND, Rates, World

from stentor.core.acks import ALL
from stentor.core.controller import BrokerRecord
from stentor.core.placement import Candidate, Load, place
from stentor.core.records import ChainRecord, Member

SECONDS = 10  # of faults


class Cluster:
    """Brokers, store, clients and a checker, from one seed."""

    def __init__(self, seed, *, full_trace=False, show=None, favour=(), rates=None):
        self.world = world = World(seed, full_trace=full_trace, show=show)
        self.rates = replace(Rates.draw(world.rng), **(rates or {}))
        self.network, self.store = Network(world), Store(world)
        self.checker = Checker(self)
        self.acknowledgements = 0
        self.excused = set()  # partitions whose last copies the faults took
        self.layout()
        self.store.check_change = self.checker.check_change
        self.faults = Faults(self, favour)

    def layout(self):
        """How many brokers and topics, and of which kind."""
        rng = self.world.rng
        names = [f"b{i}" for i in range(rng.choice([3, 3, 4, 5]))]
        later = [f"b{len(names) + i}" for i in range(rng.choice([0, 0, 0, 1, 2]))]
        factors = rng.choice([[3], [3], [3], [3, 1], [2], [3, 2], [5, 3], [3, 3]])
        partitions = 1 if len(factors) > 1 else rng.choice([1, 1, 2])
        mode = rng.choice(["spread", "multi-primary"])
        topics = {topic: plan_for(factor, mode=mode) for topic, factor in enumerate(factors, 1)}
        self.build(names, later, topics, partitions)

    def build(self, names, later, topics, partitions):
        rng = self.world.rng
        self.brokers = {name: Broker(self, name) for name in [*names, *later]}
        for broker in self.brokers.values():
            broker.drift = 1 + rng.uniform(-0.03, 0.03)
        self.keys = [(topic, index) for topic in topics for index in range(partitions)]
        self.create(names, topics)
        for name in names:
            self.brokers[name].start()
        levels = [ALL, rng.choice([1, 2, 3])] if len(self.keys) > 1 else [ALL, ALL, rng.choice([1, 2, 3])]
        self.producers = [Producer(self, number, key, ack) for key in self.keys for number, ack in enumerate(levels, 1)]
        self.readers = [Reader(self, key) for key in self.keys]
        self.end_readers = [EndReader(self, key) for key in self.keys]

    def create(self, names, topics):
        """What creating the topics leaves in the store."""
        candidates, load = [Candidate(name) for name in names], Load.of([])
        self.store.put({("brokers", name): BrokerRecord(name, 0) for name in names})
        self.store.put({("topics", topic): plan for topic, plan in topics.items()})
        for key in self.keys:
            plan = topics[key[0]]
            chain = place(key[1], plan.factor, candidates, load)
            load.add(chain)
            members = tuple(Member(name, self.world.new_id(), 1) for name in chain)
            record = ChainRecord(1, members, factor=plan.factor, min_replicas=plan.min_replicas)
            self.store.put({("chains", key): record})

    def record(self, key):
        return self.store.entries["chains", key][0]

    # --- a run ----------------------------------------------------------------------------------

    def run(self, seconds=SECONDS):
        """Faults for a while; then none, and everything must come together."""
        self.go(SECOND)
        self.world.rates = self.rates
        end = self.world.now + seconds * SECOND
        while self.world.now < end:
            self.go(self.world.between(10_000, 700_000))
            self.faults.one()
        return self.converge()

    def go(self, duration_us, enough=None):
        return self.world.run(self.world.now + duration_us, self.checker, enough)

    def converge(self):
        self.heal()
        require(self.go(60 * SECOND, self.settled), "the cluster does not come together", self.state())
        for producer in self.producers:
            producer.stopped = True
        answered = self.go(60 * SECOND, self.answered)
        require(answered, "publishes are not answered although everything is well", self.state())
        finished = self.go(60 * SECOND, self.finished)
        require(finished, "what is in the logs is not committed everywhere", self.state())
        for key in self.keys:
            if key not in self.excused:
                merged = {k: v for p in self.producers if p.key == key for k, v in p.acknowledged.items()}
                self.checker.finish(key, merged)
                self.read_everywhere(key)
        return self.world.trace

    def read_everywhere(self, key):
        """One reader goes to every member in turn, from the beginning."""
        reader = Reader(self, key)
        for member in self.record(key).chain:
            reader.position = 0
            reader.read(self.brokers[member.broker], count=len(self.checker.values[key]))
            end, committed = reader.position, self.checker.committed[key]
            require(end == committed, "a member does not show all that is committed", key, member, end, committed)

    def heal(self):
        world = self.world
        world.rates = Rates(delay_us=world.rates.delay_us, sync_us=world.rates.sync_us)
        world.note("heal")
        self.network.cuts.clear()
        self.network.connected.clear()
        self.store.cut.clear()
        self.store.available = True
        for name, broker in self.brokers.items():
            broker.full_until = broker.slow_until = 0
            broker.release()
            broker.start()
            held = self.store.value("brokers", name)
            if held is not None and held.draining:
                self.store.put({("brokers", name): msgspec.structs.replace(held, draining=False)})
        self.excused = {key for key in self.keys if self.is_beyond_repair(key)}

    def is_beyond_repair(self, key):
        """Every copy that may lead was taken by a fault: that is for an operator (C13)."""
        record = self.record(key)
        logs = [self.checker.log_of(key, member) for member in (*record.chain, *record.eligible)]
        return not any(log is not None and log.whole for log in logs)

    def answered(self):
        return not any(p.under_way for p in self.producers if p.key not in self.excused)

    def finished(self):
        """Settled, and everyone knows that everything is committed."""
        if not self.settled():
            return False
        replicas = [
            self.brokers[member.broker].replicas[key]
            for key in self.keys
            if key not in self.excused
            for member in self.record(key).chain
        ]
        return all(replica.committed == replica.end for replica in replicas)

    def settled(self):
        """All chains have all their members, at work, as planned."""
        return not self.world.steps % 20 and all(map(self.is_settled, self.keys))

    def is_settled(self, key):
        record, plan = self.record(key), self.store.value("topics", key[0])
        if key in self.excused:
            return True
        if len(record.chain) != min(plan.factor, len(self.brokers)) or record.joining is not None:
            return False
        if (record.factor, record.min_replicas) != (plan.factor, plan.min_replicas):
            return False
        for member in record.chain:
            broker = self.brokers[member.broker]
            replica = broker.replicas.get(key) if broker.up else None
            if replica is None or replica.epoch != record.epoch or not replica.active:
                return False
        return True

    def state(self):
        """Everything, for a person who looks for the reason."""
        lines = [f"cuts {self.network.cuts} store {self.store.available} excused {self.excused}"]
        lines.extend(f"{key} {entry}" for key, entry in self.store.entries.items())
        for broker in self.brokers.values():
            lines.append(f"{broker.name} up={broker.up} incarnation={broker.disk.incarnation}")
            if broker.up:
                lines.append(f"   {broker.cluster.membership.statistics(broker.clock())}")
            lines.extend(
                f"   {key} {replica.me} {replica.statistics()} start={replica.start} cutting={replica._cutting}"
                f" adopting={replica._adopting is not None} damaged={replica.damaged} feed={broker.feeds.get(key)}"
                for key, replica in broker.replicas.items()
            )
        return "\n".join(lines)
