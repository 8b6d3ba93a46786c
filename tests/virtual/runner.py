"""One seed: a cluster, its clients, faults for a while, healing, and what must hold then."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from tests.virtual.cluster import Cluster
from tests.virtual.disk import virtual_machine
from tests.virtual.faults import Faults
from tests.virtual.workload import TOPIC, History, Workload
from tests.virtual.world import SECOND, World, number_objects

from stentor import limits
from stentor.errors import InvalidArgument


class FailedError(AssertionError):
    """A run in which something did not hold."""


class Run:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        number_objects()
        self.seed = seed
        self.world = World(seed)
        names = [f"b{number}" for number in range(self.world.rng.choice([3, 3, 4]))]
        self.cluster = Cluster(self.world, names, segment_bytes=limits.SEGMENT_BYTES_MIN)
        self.history = History()
        self.retains = self.world.rng.random() < 0.3  # only the newest messages are kept
        self.load = Workload(self.cluster, self.history, retains=self.retains)
        self.faults = Faults(self.cluster)

    def run(self, seconds: float = 10.0) -> None:
        try:
            with virtual_machine(self.world, self.cluster.disks):
                self._begin()
                self._disturb(seconds)
                self._converge()
                self._compare()
        finally:
            self.cluster.close()

    def require(self, holds: bool, what: str) -> None:
        problems = [*self.history.broken, *self.cluster.broken, *self.world.errors]
        if not holds or problems:
            what = problems[0] if problems else what
            told = "\n".join([f"seed {self.seed}: {what}", *self.faults.done[-30:], self.state()])
            raise FailedError(told)

    def check(self) -> None:
        """Nothing is wrong so far."""
        self.require(holds=True, what="")

    def state(self) -> str:
        lines = []
        for name in self.cluster.disks:
            for key, partition in self.cluster.partitions(name).items():
                lines.append(f"{name} {key} {partition.replica.statistics()}")
        chains = [entry for key, entry in self.cluster.store.entries.items() if key.startswith("chains/")]
        return "\n".join([*lines, *map(str, chains)])

    def _begin(self) -> None:
        cluster = self.cluster
        for name in cluster.disks:
            cluster.start(name)
        self.require(cluster.go(10, cluster.ready), "the brokers do not start")
        partitions = self.world.rng.choice([1, 1, 2])
        kept = {"retention_bytes": 2 * limits.SEGMENT_BYTES_MIN} if self.retains else {}

        async def create() -> None:
            async with await cluster.client("maker") as client:
                while True:
                    try:
                        await client.create_topic(TOPIC, partitions=partitions, replicas=3, **kept)
                    except InvalidArgument:  # not all brokers have heard of each other yet
                        await asyncio.sleep(0.1)
                    else:
                        return

        making = cluster.process("maker").run(create())
        made = cluster.go(10, making.done)
        self.require(made and making.exception() is None, f"the topic is not made: {made and making.exception()}")
        acks = ["all", "all", self.world.rng.choice(["all", "head", "quorum"])]
        for number, ack in enumerate(acks):
            cluster.process(f"producer{number}").run(self.load.produce(f"p{number}", ack))
        for number in range(2):
            cluster.process(f"reader{number}").run(self.load.read(f"r{number}"))
        cluster.process("looker").run(self.load.look("looker"))
        cluster.go(0.5)

    def _disturb(self, seconds: float) -> None:
        end = self.world.now + round(seconds * SECOND)
        while self.world.now < end:
            self.cluster.go(self.world.rng.uniform(0.02, 1.0))
            self.check()
            self.faults.one()

    def _converge(self) -> None:
        cluster = self.cluster
        self.faults.heal()
        self.require(cluster.go(60, self._whole), "the chains do not come together")
        self.load.stopping = True
        self.require(cluster.go(60, lambda: not self.load.outstanding), "publishes are not answered")
        self.require(cluster.go(60, self._let_go), "members keep what the head let go")
        self.require(cluster.go(60, self._read), f"readers do not get everything: {self.load.positions}")

    def _whole(self) -> bool:
        """Every chain has its members, at work, in the newest epoch."""
        brokers = self.cluster.brokers
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        catalogue = next(iter(brokers.values())).parts.ground.catalogue
        for key, held in catalogue.chains.items():
            record = held.record
            if len(record.chain) < record.factor or record.joining is not None:
                return False
            for member in record.chain:
                partition = brokers[member.broker].partitions.get(key)
                if partition is None or not partition.replica.active or partition.replica.epoch != record.epoch:
                    return False
        return bool(catalogue.chains)

    def _read(self) -> bool:
        """All members agree where the log ends, and all readers are there."""
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        ends = self._ends()
        return all(
            len(found) == 1 and all(read.get(partition, 0) == max(found) for read in self.load.positions.values())
            for partition, found in ends.items()
        )

    def _let_go(self) -> bool:
        """Members let go of what the head let go, also when nobody publishes (C23); whole segments, each its own."""
        if self.world.steps % 50:
            return False
        starts = self._starts()
        return all(
            len(segments := partition.log._state.segments) < 2 or segments[1].base > starts[key[1]]
            for name in self.cluster.disks
            for key, partition in self.cluster.partitions(name).items()
            if partition.replica.position.index is not None
        )

    def _starts(self) -> dict[int, int]:
        """Where the copies of the heads begin."""
        return {
            key[1]: partition.log.start
            for name in self.cluster.disks
            for key, partition in self.cluster.partitions(name).items()
            if partition.replica.position.index == 0
        }

    def _ends(self) -> dict[int, set[int]]:
        ends: dict[int, set[int]] = defaultdict(set)
        catalogue = next(iter(self.cluster.brokers.values())).parts.ground.catalogue
        for key, held in catalogue.chains.items():
            for member in held.record.chain:
                replica = self.cluster.brokers[member.broker].partitions[key].replica
                ends[key[1]] |= {replica.end, replica.committed}
        return ends

    def _compare(self) -> None:
        """Everything acknowledged is there once, in order; nothing that was refused is."""
        history = self.history
        places: dict[bytes, tuple[int, int]] = {}
        for place, value in sorted(history.shown.items()):
            history.require(value not in places, "a message is there twice", value, places.get(value), place)
            places[value] = place
        starts = self._starts()
        for value, place in history.at.items():
            if self.retains and place[1] < starts[place[0]] and value not in places:
                continue  # let go before a reader came by
            history.require(
                places.get(value) == place, "an acknowledged message is lost", value, place, places.get(value)
            )
        for value in history.refused:
            history.require(value not in places, "a refused message is there", value, history.refused[value])
        last: dict[tuple[bytes, int], int] = {}
        for (partition, _), value in sorted(history.shown.items()):
            producer, _, number = value.partition(b":")
            history.require(last.get((producer, partition), -1) < int(number), "out of order", partition, value)
            last[producer, partition] = int(number)
        self.check()


def run(seed: int, seconds: float = 10.0) -> Run:
    one = Run(seed)
    one.run(seconds)
    return one
