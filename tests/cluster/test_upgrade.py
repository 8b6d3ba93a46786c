"""A rolling upgrade: brokers of two feature levels side by side, under load, until the last one is new (C27)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.cluster.load import Load

from stentor.broker.cluster.trust import PEERS_PROVE
from stentor.errors import DeadlineExceeded, NotReady
from stentor.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow


def test_what_is_new_begins_with_the_last_upgraded_broker(wait_until):
    with (
        LocalCluster(3, settings={"feature_level_max": PEERS_PROVE}) as cluster,
        cluster.client(timeout=30) as client,
        Load(cluster, "orders", partitions=2) as load,
    ):
        for name in cluster.brokers:
            refuses_what_is_new(client)
            cluster.terminate(name)
            cluster.restart(name, feature_level_max=None)
            for partition in range(2):
                cluster.wait_for_chain("orders", 3, partition)
            load.wait_for_acks()
        wait_until(lambda: makes_a_table(client), "the level rises")
        uses_what_is_new(client)
        head = cluster.head("config")
        cluster.kill(head)
        uses_what_is_new(client)
        cluster.restart(head)


def refuses_what_is_new(client):
    for wish in (
        lambda: client.create_topic("config", kind="table"),
        lambda: client.cursors("orders"),
        lambda: client.group("readers", "orders", timeout=1),
        lambda: client.create_topic("jobs", kind="queue"),
        lambda: client.serve("prices", lambda _: b"1", timeout=1),
    ):
        with pytest.raises((NotReady, DeadlineExceeded), match="being upgraded"):
            wish()


def makes_a_table(client):
    with suppress(NotReady):
        client.create_topic("config", kind="table", exist_ok=True)
        return True
    return False


def uses_what_is_new(client):
    with client.table("config") as table:
        table.add("n")
        table.put("leaves", "soon", ttl=60)
        table.put("mine", "here", ephemeral=True)
    client.move_cursor("orders", "me", {0: 1})
    assert "me" in [cursor.name for cursor in client.cursors("orders")]
    with client.group("readers", "orders") as group, group.transaction() as out:
        out.send("billed", group.get(timeout=30).value)
    with client.queue("jobs") as queue:
        queue.put("work")
        job = queue.get(timeout=30)
        assert job.value == b"work"
        queue.ack(job)
    with client.serve("prices", lambda request: request.value * 2):
        assert client.request("prices", b"ab", timeout=30).value == b"abab"
