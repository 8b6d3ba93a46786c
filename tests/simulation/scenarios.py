"""Directed runs, for what chance alone brings about too seldom. Each raises what it finds."""

import msgspec
from tests.simulation.checks import require
from tests.simulation.cluster import Cluster
from tests.simulation.faults import plan_for
from tests.simulation.store import CONTROLLER
from tests.simulation.world import SECOND, Rates

from stentor.core.membership import ControllerKey

KEY = (1, 0)


class Quiet(Cluster):
    """Three brokers, one partition, and no faults but those that are asked for."""

    def layout(self):
        self.build(["b0", "b1", "b2"], [], {1: plan_for(3)}, 1)


def restored_head():
    """C9, C13: the head's disk comes back from an old backup. Whatever it says, the others keep what is committed."""
    cluster = Quiet(1)
    cluster.checker.halts_allowed = True
    cluster.go(3 * SECOND)
    held = dict(cluster.checker.values[KEY])
    head, *others = (cluster.brokers[member.broker] for member in cluster.record(KEY).chain)
    for broker in (head, *others):
        broker.crash()
    log = head.disk.logs[KEY]
    log.excused, log.floor, log.checked = True, 0, 0
    log.cut(log.batches[len(log.batches) // 2].base_offset)
    cluster.checker.stored.clear()
    for broker in (head, *others):
        broker.start()
    cluster.world.run(cluster.world.now + 5 * SECOND, lambda _: None)
    for broker in others:
        log = broker.disk.logs[KEY]
        kept = {batch.base_offset: batch for batch in log.batches}
        require(held.items() <= kept.items(), "committed batches were cut off", broker.name, log.failed)


def replaced_controller():
    """C16: the controller is replaced while a change of its own is on the way to the store."""
    cluster = Quiet(2)
    cluster.go(2 * SECOND)
    store, swap = cluster.store, cluster.store.swap

    def intercepted(who, expect, put, done):
        swap(who, expect, put, done)
        if ("chains", KEY) in put and who == store.value(*CONTROLLER):
            other = next(broker for broker in cluster.brokers.values() if broker.name != who.broker)
            store.put({CONTROLLER: ControllerKey(other.name, other.disk.incarnation)})

    store.swap = intercepted
    store.put({("topics", 1): plan_for(2)})
    cluster.go(SECOND)
    require(store.value(*CONTROLLER) is not None, "there is no controller")


class Four(Cluster):
    """The same with four brokers in one chain, and slow disks."""

    def layout(self):
        self.world.rates = Rates(sync_us=20_000, delay_us=1_000)
        self.build(["b0", "b1", "b2", "b3"], [], {1: plan_for(4)}, 1)


def shorter_head():
    """C5: the last two have no room while the first two go on; then the last one leads, and all are cut back to it.

    What the third one heard from above in the old epoch is more than anybody has in the new one.
    """
    cluster = Four(3)
    cluster.go(2 * SECOND)
    chain = cluster.record(KEY).chain
    third, last = (cluster.brokers[member.broker] for member in chain[2:])
    for broker in (third, last):
        broker.full_until = cluster.world.now + 400_000
    cluster.go(390_000)
    require(third.replicas[KEY]._above > last.replicas[KEY].end, "the first two are not ahead")
    record = msgspec.structs.replace(cluster.record(KEY), epoch=2, chain=(chain[3], *chain[:3]))
    cluster.store.check_change = None
    cluster.store.put({("chains", KEY): record})
    cluster.go(2 * SECOND)
    require(cluster.record(KEY).epoch >= 2, "the chain was not changed")


SCENARIOS = {"shorter-head": shorter_head, "restored-head": restored_head, "replaced-controller": replaced_controller}
