"""Directed runs, for what chance alone brings about too seldom. Each raises what it finds."""

from tests.simulation.checks import require
from tests.simulation.cluster import Cluster
from tests.simulation.faults import plan_for
from tests.simulation.store import CONTROLLER
from tests.simulation.world import SECOND

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


SCENARIOS = {"restored-head": restored_head, "replaced-controller": replaced_controller}
