"""Members that are of no use: full disks, disks that hang, links that are cut, a controller without a store."""

from __future__ import annotations

import time

import pytest

from stentor.client.sync_client import Client
from stentor.testing.cluster import LocalCluster
from stentor.testing.disks import require_disks
from stentor.testing.network import require_network

pytestmark = pytest.mark.slow

SILENT_S = 3.0
"""The longest that publishers may wait for a member that is of no use; doubled here, where other tests run beside."""
DISK_BYTES = 192 << 20


@pytest.fixture(scope="module")
def troubled():
    """Three brokers with networks and disks of their own."""
    require_network()
    require_disks(hanging=True)
    with LocalCluster(3, network=True, disk_bytes=DISK_BYTES) as cluster:
        yield cluster


@pytest.fixture
def cluster(troubled):
    yield troubled
    troubled.mend()


def gap_limit_s():
    return 2 * SILENT_S


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
def test_a_full_disk_stops_only_the_broker_that_has_it(cluster, load, place):
    with load(cluster, partitions=1) as flow:
        name = flow.chains()[0][place]
        since = time.monotonic()
        cluster.fill_disk(name)
        flow.wait_until_without(name)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < gap_limit_s()
        cluster.free_disk(name)
        flow.wait_until_whole()
    assert flow.errors == []


def test_when_all_disks_are_full_everything_waits_and_then_goes_on(cluster, load):
    with load(cluster, partitions=1, timeout=60) as flow:
        before = set(flow.chains()[0])
        for name in cluster.brokers:
            cluster.fill_disk(name)
        flow.wait_for(lambda: "is full" in cluster.brokers[flow.chains()[0][0]].last_words(), "the head to say so")
        for name in cluster.brokers:
            cluster.free_disk(name)
        flow.wait_for_acks()
        flow.wait_until_whole()
        assert set(flow.chains()[0]) == before
    assert flow.errors == []


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
def test_a_disk_that_hangs_stops_only_the_broker_that_has_it(cluster, load, place):
    with load(cluster, partitions=1) as flow:
        name = flow.chains()[0][place]
        since = time.monotonic()
        cluster.hang_disk(name)
        flow.wait_until_without(name)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < gap_limit_s()
        cluster.release_disk(name)
        flow.wait_until_whole()
    assert flow.errors == []


@pytest.mark.parametrize("place", [0, 1], ids=["head and middle", "middle and tail"])
def test_a_cut_between_two_neighbours_of_a_chain_is_noticed_as_silence(cluster, load, place):
    with load(cluster, partitions=1) as flow:
        one, other = flow.chains()[0][place : place + 2]
        since = time.monotonic()
        cluster.cut(one, other)
        flow.wait_for(lambda: flow.chains()[0][: place + 2] != [*flow.chains()[0][:place], one, other], "a new chain")
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < gap_limit_s()
        cluster.heal()
        flow.wait_until_whole()
    assert flow.errors == []


def test_a_controller_that_lost_the_store_is_replaced_before_somebody_dies(cluster, load):
    with load(cluster, partitions=1) as flow:
        controller = cluster.controller()
        cluster.cut(controller, "etcd")
        other = next(name for name in flow.chains()[0] if name != controller)
        since = time.monotonic()
        cluster.kill(other)
        flow.wait_until_without(other)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < gap_limit_s() + 1
        flow.wait_for(lambda: cluster.controller() not in (controller, other), "another controller")
        with Client(cluster.brokers[controller].address, timeout=20) as client:
            client.create_topic("through-another", partitions=1, replicas=2)  # its home cannot make one
        with Client(cluster.brokers[cluster.controller()].address, timeout=20) as client:
            client.delete_topic("through-another")
        cluster.heal()
        cluster.restart(other)
        flow.wait_until_whole()
    assert flow.errors == []


def test_a_slow_link_stops_publishers_only_for_a_moment(cluster, load):
    with load(cluster, partitions=1, size=20_000) as flow:
        name = flow.chains()[0][1]
        since = time.monotonic()
        cluster.slow(name, 256_000)
        flow.wait_until_without(name)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < gap_limit_s() + 2
        cluster.heal()
        flow.wait_until_whole(60)
    assert flow.errors == []
