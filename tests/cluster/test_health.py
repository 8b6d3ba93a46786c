"""What is wrong with a cluster is told by its brokers' health checks and metrics, and told well again afterwards."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from stentor.cli.checkup import check_connection
from stentor.cli.describe import describe
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


def described(broker, capsys):
    """What `stentor describe` says of the health."""
    capsys.readouterr()
    describe(url=f"stentor://{broker.host}:{broker.port}")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("health")]
    return line.removeprefix("health").strip(": ").strip()


def found(broker):
    """What `stentor doctor` finds that is not in order."""
    findings = check_connection(f"stentor://{broker.host}:{broker.port}", 10)
    return [f"{one.object}: {one.message}" for one in findings if one.severity != "ok"]


def since_now(brokers):
    """What each of them will have added to its log when it is asked for."""
    before = {broker.name: broker.log_file.stat().st_size for broker in brokers}
    return lambda broker: broker.log_file.read_bytes()[before[broker.name] :].decode(errors="replace")


def all_well(cluster, capsys, wait_until):
    """Every broker says so in every place."""
    for broker in cluster.brokers.values():
        wait_until(lambda each=broker: ready(each) == WELL, "it is well", 60)
        wait_until(lambda each=broker: not found(each), "doctor is content", 30)
        assert described(broker, capsys) == "ok"
        assert metric(broker, "stentor_disk_writable") == metric(broker, "stentor_store_reachable") == 1
        for name in ("stentor_chain_short", "stentor_chain_refusing", "stentor_log_failed"):
            assert metric(broker, name) == 0


def test_a_killed_broker_is_told_by_the_others_as_short_chains_until_it_is_back(cluster, capsys, wait_until):
    all_well(cluster, capsys, wait_until)
    others = [broker for name, broker in cluster.brokers.items() if name != "b2"]
    new_lines = since_now(others)
    cluster.kill("b2")
    try:
        for broker in others:
            wait_until(lambda each=broker: metric(each, "stentor_chain_short") > 0, "the metric tells it", 30)
            answer = ready(broker)
            assert answer["ready"]
            assert "fewer replicas" in str(answer["warnings"])
            assert "without all replicas" in described(broker, capsys)
            assert [text for text in found(broker) if text.startswith("orders/") and "The chain has" in text]
            assert "fewer replicas than they should have" in new_lines(broker)
            assert metric(broker, "stentor_chain_refusing") == 0
    finally:
        cluster.restart("b2")
    all_well(cluster, capsys, wait_until)
    for broker in others:
        assert "every chain has all its replicas again" in new_lines(broker)


def test_a_broker_with_a_full_disk_stays_ready_and_warns_and_its_chains_are_short(cluster, capsys, wait_until):
    name = "b1"
    new_lines = since_now([cluster.brokers[name]])
    others = [broker for other, broker in cluster.brokers.items() if other != name]
    wait_until(lambda: all(ready(broker) == WELL for broker in cluster.brokers.values()), "all is well", 30)
    cluster.fill_disk(name)
    try:
        full = cluster.brokers[name]
        wait_until(lambda: "is full" in str(ready(full).get("warnings")), "it warns", 30)
        assert ready(full)["ready"]
        assert metric(full, "stentor_disk_writable") == 0
        assert "is full" in described(full, capsys)
        assert [text for text in found(full) if text.startswith("disk: ") and "is full" in text]
        wait_until(lambda: "is full" in new_lines(full), "the log tells it")
        wait_until(lambda: all(metric(broker, "stentor_chain_short") > 0 for broker in others), "the others know", 30)
        assert all(ready(broker)["ready"] for broker in others)
        assert all(metric(broker, "stentor_chain_refusing") == 0 for broker in others)
    finally:
        cluster.free_disk(name)
    all_well(cluster, capsys, wait_until)
    wait_until(lambda: "the disk takes writes again" in new_lines(full), "the log tells that it is over")


def test_a_store_that_does_not_answer_is_a_warning_of_every_broker(cluster, capsys, wait_until):
    new_lines = since_now(cluster.brokers.values())
    cluster.etcd.pause()
    try:
        for broker in cluster.brokers.values():
            wait_until(lambda each=broker: "coordination store" in str(ready(each).get("warnings")), "it warns", 30)
            assert ready(broker)["ready"]
            assert metric(broker, "stentor_store_reachable") == 0
            assert "coordination store does not answer" in described(broker, capsys)
            assert [text for text in found(broker) if text.startswith("coordination store: ")]
            assert "the coordination store does not answer" in new_lines(broker)
    finally:
        cluster.etcd.resume()
    all_well(cluster, capsys, wait_until)
    for broker in cluster.brokers.values():
        assert "the coordination store answers again" in new_lines(broker)
