"""Clients through a real HAProxy: the death of a broker, and of HAProxy itself."""

import shutil
import subprocess
import urllib.error
import urllib.request

import pytest

from stentor.cli.app import run
from stentor.testing import LocalCluster
from stentor.testing.haproxy import require_haproxy


@pytest.fixture(scope="module")
def balanced():
    require_haproxy()
    with LocalCluster(brokers=3, haproxy=2) as cluster, cluster.client() as client:
        client.publish("orders", "first")
        cluster.wait_for_chain("orders", 3)
        yield cluster


@pytest.fixture
def cluster(balanced):
    yield balanced
    balanced.restart_haproxy()
    for name, broker in balanced.brokers.items():
        if not broker.running:
            balanced.restart(name)
    balanced.wait_for_chain("orders", 3)


def health(cluster, what):
    """What each running broker answers, by name."""
    return {name: code_of(broker, what) for name, broker in cluster.brokers.items() if broker.running}


def code_of(broker, what):
    try:
        with urllib.request.urlopen(f"http://{broker.host}:{broker.http_port}/health/{what}", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_clients_begin_at_the_balancer(cluster):
    assert cluster.url != cluster.direct_url
    assert set(health(cluster, "ready").values()) == {200}
    with cluster.client() as client:
        assert client.broker().id in cluster.brokers
        assert {broker.address for broker in cluster.brokers.values()}.isdisjoint(cluster.url.split("//")[1].split(","))


def test_clients_through_the_balancer_survive_the_death_of_the_head(cluster):
    with cluster.client() as client, client.subscribe("orders") as subscription:
        client.publish("orders", "before")
        cluster.kill(cluster.head("orders"))
        client.publish("orders", "after")
        assert [subscription.get(timeout=20).value for _ in range(2)] == [b"before", b"after"]


def test_a_new_client_is_led_past_a_dead_broker(cluster):
    cluster.kill("b0")
    for _ in range(6):
        with cluster.client() as client:
            assert client.broker().id != "b0"


def test_clients_outlive_the_balancer_they_came_through(cluster):
    with cluster.client() as client, client.subscribe("orders") as subscription:
        client.publish("orders", "before")
        cluster.kill_haproxy(0)
        cluster.kill_haproxy(1)
        client.publish("orders", "without")
        assert [subscription.get(timeout=20).value for _ in range(2)] == [b"before", b"without"]
        cluster.kill(cluster.head("orders"))
        client.publish("orders", "and without its broker")
        assert subscription.get(timeout=20).value == b"and without its broker"


def test_one_of_two_balancers_is_enough_to_begin(cluster):
    cluster.kill_haproxy(0)
    with cluster.client() as client:
        client.publish("orders", "through the second")


def test_a_paused_broker_is_left_out(cluster):
    cluster.pause("b1")
    try:
        with cluster.client() as client:
            assert client.broker().id != "b1"
    finally:
        cluster.resume("b1")


def test_exactly_one_broker_is_active_for_active_passive_topics_and_another_takes_over(cluster):
    assert set(health(cluster, "active").values()) == {200}
    with cluster.client() as client:
        client.create_topic("ledger", placement="active-passive")

        def active():
            return [name for name, code in health(cluster, "active").items() if code == 200]

        cluster.wait_for(lambda: len(active()) == 1, what="one active broker")
        [first] = active()
        cluster.kill(first)
        cluster.wait_for(lambda: active() not in ([], [first]), what="another active broker")
        assert len(active()) == 1
        client.publish("ledger", "entry")


@pytest.mark.parametrize(("kind", "check"), [("haproxy", ["haproxy", "-c", "-f"]), ("nginx", ["nginx", "-t", "-c"])])
def test_what_lb_config_writes_is_valid(kind, check, tmp_path):
    if shutil.which(check[0]) is None:
        pytest.skip(f"there is no {kind} on this machine")
    file = tmp_path / "lb.cfg"
    assert run(["lb-config", kind, "--brokers", "127.0.0.1,127.0.0.2:1/2,[::1]:7440/80", "--out", str(file)]) == 0
    checked = subprocess.run([*check, str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
