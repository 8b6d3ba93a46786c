"""The network of a local cluster: what a cut lets through, and that nothing of it stays behind."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from stentor.errors import InvalidArgument
from stentor.testing import LocalCluster
from stentor.testing.network import Network, remove_left_behind, require_network, why_no_network

BROKERS = ("b0", "b1", "b2", "b3")
ARRIVAL_S = 10.0
SILENCE_S = 0.1
NEW_NETWORK = 0x40000000


def socket_in(network, name):
    """A socket with the address of a broker, made in its namespace by a thread that goes there."""
    made = []

    def make():
        if name not in {"clients", "etcd"}:
            with Path(f"/run/netns/{network.namespace(name)}").open() as namespace:
                assert ctypes.CDLL(None).setns(namespace.fileno(), NEW_NETWORK) == 0
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made[0].bind((network.address(name), 0))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def arrives(network, sender, receiver, within=ARRIVAL_S):
    with socket_in(network, sender) as here, socket_in(network, receiver) as there:
        there.settimeout(within)
        try:
            here.sendto(b"hello", there.getsockname())
            return there.recvfrom(100) == (b"hello", here.getsockname())
        except (TimeoutError, PermissionError):  # a filter on the way out tells datagrams, though not TCP
            return False


def silent(network, sender, receiver):
    return not arrives(network, sender, receiver, within=SILENCE_S)


@pytest.fixture(scope="module")
def shared_network():
    require_network()
    made = Network()
    made.start()
    for name in BROKERS:
        made.add(name)
    yield made
    made.remove()


@pytest.fixture
def network(shared_network):
    yield shared_network
    shared_network.heal()


def is_ready(broker):
    try:
        with urllib.request.urlopen(f"http://{broker.host}:{broker.http_port}/health/ready", timeout=10):
            return True
    except urllib.error.HTTPError as refused:
        with refused:
            return "hears neither the controller nor a majority" not in refused.read().decode()


def bridge_of(network):
    """The name that everything of a network begins with; other clusters of this machine have others."""
    return network.namespace("").rstrip("-")


def interfaces(bridge):
    shown = subprocess.run(["ip", "-oneline", "link"], capture_output=True, text=True, check=True)
    names = {line.split(": ")[1].partition("@")[0] for line in shown.stdout.splitlines()}
    return {name for name in names if name.startswith(bridge)}


def test_everyone_reaches_everyone(network):
    for sender, receiver in permutations((*BROKERS[:2], "clients", "etcd"), 2):
        if {sender, receiver} != {"clients", "etcd"}:
            assert arrives(network, sender, receiver), (sender, receiver)


def test_a_cut_is_for_two_and_both_ways(network):
    network.cut("b0", "b1")
    assert silent(network, "b0", "b1")
    assert silent(network, "b1", "b0")
    assert arrives(network, "b0", "b2")
    assert arrives(network, "clients", "b1")


@pytest.mark.parametrize("other", ["b1", "clients", "etcd"])
def test_a_cut_can_be_one_way(network, other):
    network.cut("b0", other, one_way=True)
    assert silent(network, "b0", other)
    assert arrives(network, other, "b0")


def test_heal_ends_all_cuts(network):
    network.isolate("b0")
    network.cut("b1", "etcd", one_way=True)
    network.heal()
    assert network.cuts == []
    assert arrives(network, "b0", "b1")
    assert arrives(network, "b1", "etcd")


def test_an_isolated_broker_reaches_nobody_or_only_etcd(network):
    network.isolate("b0")
    assert all(silent(network, "b0", other) for other in ("b1", "b2", "b3", "clients", "etcd"))
    network.heal()
    network.isolate("b0", from_etcd=False)
    assert silent(network, "b0", "b1")
    assert arrives(network, "b0", "etcd")


def test_a_partition_cuts_groups_and_leaves_who_is_in_none(network):
    network.partition([["b0"], ["b1", "b2", "etcd", "clients"]])
    assert silent(network, "b0", "etcd")
    assert silent(network, "clients", "b0")
    assert arrives(network, "b1", "b2")
    assert arrives(network, "b3", "b0")
    assert arrives(network, "b3", "b1")


def test_in_a_ring_brokers_reach_their_neighbours(network):
    network.ring()
    assert network.cuts == [("b0", "b2"), ("b1", "b3"), ("b2", "b0"), ("b3", "b1")]
    assert silent(network, "b0", "b2")
    assert arrives(network, "b0", "b3")
    assert arrives(network, "b0", "etcd")


def test_what_cannot_be_cut_is_refused_with_a_sentence(network):
    with pytest.raises(InvalidArgument, match="no 'b9' in this network, only"):
        network.cut("b0", "b9")
    with pytest.raises(InvalidArgument, match="nothing to cut between"):
        network.cut("clients", "etcd")


def test_networks_stand_side_by_side_and_leave_nothing(network):
    with ExitStack() as removed:
        others = [Network(), Network()]
        for other in others:
            removed.callback(other.remove)
            other.start()
            other.add("b0")
        assert len({each.address("b0") for each in (network, *others)}) == 3
        bridges = [bridge_of(other) for other in others]
        assert [len(interfaces(bridge)) for bridge in bridges] == [2, 2]
    assert [interfaces(bridge) for bridge in bridges] == [set(), set()]


def test_what_a_killed_process_left_behind_is_removed(network):
    script = (
        "import os, signal\nfrom stentor.testing.network import Network\n"
        "network = Network()\nnetwork.start()\nnetwork.add('b0')\n"
        "print(network.namespace(''), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    remove_left_behind()
    assert interfaces(done.stdout.strip().rstrip("-")) == set()


def test_a_cluster_without_a_network_of_its_own_says_so():
    with pytest.raises(InvalidArgument, match="Start it with network=True"):
        LocalCluster().cut("b0", "b1")


def test_who_may_not_make_networks_is_told_why(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_no_network().startswith("A separate network needs root")
    with pytest.raises(InvalidArgument, match="needs root"):
        LocalCluster(network=True).start()


def test_a_cluster_goes_on_without_an_isolated_broker_and_takes_it_back():
    require_network()
    with LocalCluster(brokers=3, network=True) as cluster, cluster.client() as client:
        bridge = bridge_of(cluster.network)
        assert len(interfaces(bridge)) == 4
        client.publish("orders", "one")
        cluster.wait_for_chain("orders", 3)
        alone = cluster.brokers[min(set(cluster.brokers) - {cluster.controller()})]
        cluster.isolate(alone.name, from_clients=False)
        client.publish("orders", "two")
        cluster.wait_for(lambda: not is_ready(alone), what="the broker to notice that it is cut off")
        cluster.heal()
        cluster.wait_for(lambda: is_ready(alone), what="the broker to be ready again")
        cluster.wait_for_chain("orders", 3)
        assert [message.value for message in client.read("orders")] == [b"one", b"two"]
    assert interfaces(bridge) == set()
