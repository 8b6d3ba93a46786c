"""Keys that expire, on real brokers: across restarts, standstills and upgrades."""

import signal
import time

import pytest

from stentor import Client
from stentor.broker.cluster import trust
from stentor.client.table_changes import encode_changes
from stentor.client.table_leases import NewLease
from stentor.errors import NotReady, PublishError, StentorError
from stentor.testing import broker

WAIT_S = 20


@pytest.mark.long
def test_a_broker_that_starts_again_begins_all_times_in_full(served, wait_until):
    process = served().start()
    with Client(process.url) as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table, table.watch() as watch:
            table.put("a", "1", ttl=3)
            began = time.monotonic()
            watch.get(timeout=WAIT_S)
            process.kill()
            wait_until(lambda: time.monotonic() - began > 2.0, "most of its time is over")
            again = time.monotonic()
            process.start()
            assert watch.get(timeout=WAIT_S).expired
            assert time.monotonic() - again > 2.9, "it went early"


@pytest.mark.long
def test_a_broker_that_stood_still_hears_its_clients_first(served, wait_until):
    process = served().start()
    with Client(process.url) as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table:
            table.put("me", "1", ephemeral=True, grace=3)
            began = time.monotonic()
            process.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: time.monotonic() - began > 5, "longer than its grace")
            process.process.send_signal(signal.SIGCONT)
            table.put("until", "1", ttl=4)
            wait_until(lambda: "until" not in table, "later")
            assert "me" in table


@pytest.fixture
def before(monkeypatch):
    """Every broker is of the version before: it knows one feature level less."""
    monkeypatch.setattr(trust, "LEVEL_KNOWN", trust.EXPIRY - 1)
    return monkeypatch


def test_keys_expire_once_every_broker_knows_how(etcd, before, tmp_path, wait_until):
    """C27: an older broker would keep them for ever."""
    settings = {"coordination": f"{etcd.url}/expiring", "broker_id": "b0"}
    with broker(tmp_path / "data", **settings) as local, local.client(timeout=5) as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table:
            table.put("a", "1")
            with pytest.raises(StentorError, match="The cluster is being upgraded") as caught:
                table.put("b", "1", ttl=1, timeout=2)
            assert isinstance(caught.value, NotReady | TimeoutError)
            assert dict(table) == {"a": b"1"}
        before.undo()
        local.stop()
        local.start()
        known = local.inner.parts.cluster.trust
        wait_until(lambda: known.level >= trust.EXPIRY, "the level rises")
        with client.table("config") as table:
            table.put("b", "1", ttl=0.2, timeout=WAIT_S)
            wait_until(lambda: "b" not in table, "it expires")


def test_messages_of_a_topic_that_is_no_table_cannot_expire(client):
    client.create_topic("stream")
    encoded = encode_changes({"a": b"1"}, {}, NewLease(5.0), {})

    async def send(lane):
        lane.add_encoded(encoded, [])
        lane.awake = True
        lane.pump()

    producer = client.producer("stream")
    client._call(send(producer._core.lanes[0]))
    with pytest.raises(PublishError, match="neither come with conditions nor expire"):
        producer.close()
