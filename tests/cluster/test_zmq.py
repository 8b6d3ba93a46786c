"""Two gateways beside two brokers of a cluster, in the roles of a Clone server's primary and backup."""

from __future__ import annotations

import pytest
import zmq
from tests.gateways.clone_clients import ModelSix
from tests.gateways.conftest import free_port_run

from stentor.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow


class WithGateways(LocalCluster):
    """Every broker starts a gateway for the same table."""

    def __init__(self, brokers):
        super().__init__(brokers)
        self.zmq_ports = [free_port_run() for _ in range(brokers)]

    def _make(self, index):
        made = super()._make(index)
        made.settings |= {"zmq_port": self.zmq_ports[index], "zmq_table": "config"}
        return made


@pytest.fixture(scope="module")
def served():
    with WithGateways(3) as cluster:
        yield cluster


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "kind", [pytest.param(zmq.PUB, id="pub"), pytest.param(zmq.PUSH, id="push", marks=pytest.mark.long)]
)
@pytest.mark.long
def test_clone_clients_go_on_when_the_broker_of_their_gateway_is_killed(served, kind):
    names, ports = ["b0", "b1"], served.zmq_ports[:2]
    with served.client(timeout=30) as client:
        served.wait_for(lambda: "config" in {topic.name for topic in client.topics()}, what="the table")
    served.wait_for_chain("config", 3)
    with ModelSix(ports, kind) as one, ModelSix(ports, kind) as other:
        for number in range(20):
            one.set_until_heard(b"one/%d" % number, b"1")
            other.set_until_heard(b"other/%d" % number, b"1")
        before = one.sequence
        killed = names[one.current]
        served.kill(killed)
        try:
            one.run_until(lambda clone: clone.turns and clone.state == "active")
            assert one.sequence >= before
            assert {**one.mine, **other.mine}.items() <= one.values.items()
            for number in range(20, 40):
                one.set_until_heard(b"one/%d" % number, b"2")
                other.set_until_heard(b"other/%d" % number, b"2")
        finally:
            served.restart(killed)
            served.wait_for_chain("config", 3, timeout=60)
        mine = {**one.mine, **other.mine}
        one.run_until(lambda clone: mine.items() <= clone.values.items())
        other.run_until(lambda clone: mine.items() <= clone.values.items())
        with served.client(timeout=30) as client, client.table("config") as table:
            assert {b"/" + key.encode(): value for key, value in table.items()} == one.values == other.values
            for key in list(table):
                table.delete(key)
