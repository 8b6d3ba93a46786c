"""A cluster in two networks: clients of one never hear of the addresses of the other."""

from __future__ import annotations

import pytest

from stentor.client.sync_client import Client
from stentor.testing.cluster import LocalCluster
from stentor.testing.ports import free_ports

pytestmark = pytest.mark.slow


class TwoNetworks(LocalCluster):
    """Brokers that listen twice: for each other, and for clients, who are told another name for it."""

    def __init__(self, brokers):
        super().__init__(brokers, settings={"http": False})
        self.public: dict[str, int] = {}

    def _make(self, index):
        process = super()._make(index)
        internal, public = free_ports(2, "127.0.0.1")
        process.settings["listeners"] = f"internal=127.0.0.1:{internal},public=127.0.0.1:{public}"
        process.settings["advertised_addresses"] = f"public=localhost:{public}"
        self.public[process.name] = public
        return process


@pytest.fixture(scope="module")
def cluster():
    with TwoNetworks(3) as local:
        yield local


def told(client):
    """The addresses of all brokers, as a client was told."""
    return {name: info.address for name, info in client._core.links.brokers.items()}


def test_a_client_learns_the_addresses_of_the_listener_it_came_in_by(cluster):
    public = {name: f"localhost:{port}" for name, port in cluster.public.items()}
    with Client(f"127.0.0.1:{cluster.public['b0']}") as client:
        assert told(client) == public
        client.create_topic("orders", partitions=6)
        for partition in range(6):
            client.publish("orders", "hello", partition=partition)
        assert {link.address for link in client._core.links.alive()} <= {
            *public.values(),
            f"127.0.0.1:{cluster.public['b0']}",
        }
        assert len(client.read("orders").to_arrow()) == 6
    with cluster.client() as client:
        assert told(client) == {name: broker.address for name, broker in cluster.brokers.items()}


def test_who_is_passed_on_keeps_its_listener(cluster):
    public = {name: f"localhost:{port}" for name, port in cluster.public.items()}
    with Client(f"127.0.0.1:{cluster.public['b0']}") as client:
        link = client._call(client._core.links._make(f"localhost:{cluster.public['b0']}", 5.0, "b1"))
        assert link.broker.id == "b1"
        assert link.broker.address == public["b1"]


def test_what_changes_is_told_in_the_same_words(cluster):
    public = {name: f"localhost:{port}" for name, port in cluster.public.items()}
    with Client(f"127.0.0.1:{cluster.public['b0']}") as client:
        cluster.kill("b2")
        cluster.wait_for(lambda: not client._core.links.brokers["b2"].alive, what="the death of b2 to be told")
        assert told(client) == public
