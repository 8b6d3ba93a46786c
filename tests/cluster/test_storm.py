"""A thousand clients lose their broker at the same moment: all come back, and nobody else suffers.

That their attempts are spread cannot be seen from here, where one process runs all of them and spreads them by being
busy: tests/unit/client/test_links.py looks at it.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from tests.cluster.crowd import Crowd

pytestmark = pytest.mark.slow

CLIENTS = 1_000
BACK_S = 20.0  # on two idle cores it takes three seconds, most of them the crowd's own process
PROBE_S = 0.02
STAYS = 20  # looks in a row that find the same chain
PROBE_LATENCY_S_MAX = 1.0


def two_heads(cluster, client):
    """A topic for the crowd, and one for the probe whose head is another broker."""
    client.create_topic("storm", partitions=1, exist_ok=True)
    wait_until_heads_stay(cluster, "storm")
    crowded = cluster.chain("storm")[0]
    for number in range(len(cluster.brokers)):
        client.create_topic(f"calm-{number}", partitions=1, exist_ok=True)
        if cluster.chain(f"calm-{number}")[0] != crowded:
            return crowded, f"calm-{number}"
    raise AssertionError("all heads are on one broker")


def wait_until_heads_stay(cluster, topic):
    """Heads move once more after brokers have come back; a crowd that was linked to both would lose nothing."""
    seen = []

    def stays():
        seen.append(cluster.chain(topic))
        return len(seen) > STAYS and all(chain == seen[-1] and len(chain) == 3 for chain in seen[-STAYS:])

    cluster.wait_for(stays, 30, f"a head of {topic} that stays")


@contextmanager
def probing(cluster, topic):
    """Publish now and then to a broker that survives; yields the (time, latency) of each."""
    found: list[tuple[float, float]] = []
    stop = threading.Event()

    def probe() -> None:
        while not stop.wait(PROBE_S):
            began = time.monotonic()
            client.publish(topic, "still there?", timeout=BACK_S)
            found.append((began, time.monotonic() - began))

    with cluster.client(name="probe") as client:
        client.publish(topic, "there?")
        thread = threading.Thread(target=probe)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join()


@pytest.mark.long
def test_a_thousand_clients_lose_their_broker_and_come_back(three):
    with three.client(timeout=20) as client:
        crowded, calm = two_heads(three, client)
    address = f"stentor://{three.brokers[crowded].address}"
    with Crowd(address, "storm", CLIENTS) as crowd, probing(three, calm) as probes:
        assert set(crowd.hear()["homes"]) == {three.brokers[crowded].address}
        killed = time.monotonic()
        three.kill(crowded)
        crowd.publish()
        found = crowd.hear()
        back_s = max(found["answered"]) - killed
        latency_s = max(latency for began, latency in probes if began >= killed)
    print(f"back after {back_s:.2f} s, {found['tried']} attempts, {found['made']} made, probe {latency_s:.3f} s")
    assert back_s < BACK_S
    assert latency_s < PROBE_LATENCY_S_MAX
    homes = [found["homes"].count(home) for home in set(found["homes"])]
    assert len(homes) == 2, "each of the others takes some"
    assert min(homes) > CLIENTS // 5, "and each its share"
