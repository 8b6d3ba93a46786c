"""What is wrong with a cluster is told by its brokers' health checks and metrics, and told well again afterwards."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from stentor.testing.cluster import LocalCluster
from stentor.testing.disks import require_disks

pytestmark = pytest.mark.slow

DISK_BYTES = 192 << 20
WELL = {"ready": True}


@pytest.fixture(scope="module")
def cluster():
    require_disks()
    with LocalCluster(3, disk_bytes=DISK_BYTES) as started:
        with started.client() as client:
            client.create_topic("orders", partitions=3, replicas=3)
        yield started


def ask(broker, path):
    with urllib.request.urlopen(f"http://{broker.host}:{broker.http_port}{path}", timeout=10) as answer:
        return answer.read().decode()


def ready(broker):
    """What a load balancer hears; every answer but 200 raises."""
    return json.loads(ask(broker, "/health/ready"))


def metric(broker, name):
    return float(re.search(rf"^{name} (\S+)$", ask(broker, "/metrics"), re.MULTILINE)[1])


def test_a_broker_with_a_full_disk_stays_ready_and_warns_and_its_chains_are_short(cluster, wait_until):
    name = "b1"
    others = [broker for other, broker in cluster.brokers.items() if other != name]
    wait_until(lambda: all(ready(broker) == WELL for broker in cluster.brokers.values()), "all is well", 30)
    cluster.fill_disk(name)
    try:
        full = cluster.brokers[name]
        wait_until(lambda: "is full" in str(ready(full).get("warnings")), "it warns", 30)
        assert ready(full)["ready"]
        assert metric(full, "stentor_disk_writable") == 0
        wait_until(lambda: all(metric(broker, "stentor_chain_short") > 0 for broker in others), "the others know", 30)
        assert all(ready(broker)["ready"] for broker in others)
        assert all(metric(broker, "stentor_chain_refusing") == 0 for broker in others)
    finally:
        cluster.free_disk(name)
    wait_until(lambda: all(ready(broker) == WELL for broker in cluster.brokers.values()), "all is well again", 60)
    assert all(metric(broker, "stentor_disk_writable") == 1 for broker in cluster.brokers.values())


def test_a_store_that_does_not_answer_is_a_warning_of_every_broker(cluster, wait_until):
    cluster.etcd.pause()
    try:
        for broker in cluster.brokers.values():
            wait_until(lambda each=broker: "coordination store" in str(ready(each).get("warnings")), "it warns", 30)
            assert ready(broker)["ready"]
            assert metric(broker, "stentor_store_reachable") == 0
    finally:
        cluster.etcd.resume()
    wait_until(lambda: all(ready(broker) == WELL for broker in cluster.brokers.values()), "all is well again", 60)
