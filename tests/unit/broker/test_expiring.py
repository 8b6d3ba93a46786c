"""Keys that expire, on real brokers: across restarts, standstills and upgrades."""

import asyncio
import signal
import time

import msgspec
import pytest

from stentor import Client, limits
from stentor.broker.cluster import trust
from stentor.broker.cursors.heads import publish_record
from stentor.client.table_changes import encode_changes
from stentor.client.table_leases import NewLease
from stentor.errors import LimitExceeded, NotReady, PublishError, StentorError
from stentor.testing import broker
from stentor.wire import batch, table_rows
from stentor.wire.header import TIMED, unpack

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


# --- one key that cannot be deleted ---------------------------------------------------------------


def long_key_frame(topic_id, key_bytes, ttl_us):
    """A row whose key is longer than any limit, as earlier versions took it."""
    encoded = batch.encode([1], [b"k" * key_bytes], [b"1"], [table_rows.lease(ttl_us)])
    encoded = msgspec.structs.replace(encoded, attributes=encoded.attributes | TIMED)
    header = batch.address(encoded, topic_id=topic_id, partition=0, producer_id=0, generation=0, sequence=0)
    return bytes(header) + bytes(encoded.body)


@pytest.mark.parametrize("count", [1, 40])
def test_a_key_that_is_too_long_is_refused_in_every_encoding(client, count):
    topic = client.create_topic("stream")
    keys = [b"k" * (limits.MESSAGE_KEY_BYTES_MAX + 1)] * count
    encoded = batch.encode([1] * count, keys, [b"1"] * count)
    header = batch.address(encoded, topic_id=topic.id, partition=0, producer_id=0, generation=0, sequence=0)
    whole = bytes(header) + bytes(encoded.body)
    with pytest.raises(LimitExceeded, match="A key has 65537 bytes; the limit is 65536"):
        batch.validate(whole, unpack(whole))
    short = batch.encode([1] * count, [b"k" * limits.MESSAGE_KEY_BYTES_MAX] * count, [b"1"] * count)
    header = batch.address(short, topic_id=topic.id, partition=0, producer_id=0, generation=0, sequence=0)
    batch.validate(bytes(header) + bytes(short.body), unpack(bytes(header) + bytes(short.body)))


def test_a_key_whose_deletion_does_not_fit_into_a_batch_keeps_no_other_from_expiring(
    local, client, monkeypatch, wait_until
):
    """Logs of earlier versions have such keys; the head can only leave them."""
    topic = client.create_topic("config", kind="table")
    frame = long_key_frame(topic.id, limits.BATCH_BYTES_MAX - 150, 100_000)
    monkeypatch.setattr(limits, "MESSAGE_KEY_BYTES_MAX", limits.BATCH_BYTES_MAX)
    (partition,) = (each for each in local.inner.partitions.values() if each.topic == "config")

    async def publish():
        data = bytearray(frame)
        await publish_record(partition, data)

    asyncio.run_coroutine_threadsafe(publish(), local.inner.loop).result(10)
    monkeypatch.undo()
    failures = local.inner.parts.ground.environment.failures
    wait_until(lambda: failures.count >= 1, "its deletion has failed")
    with client.table("config") as table:
        table.put("short", "1", ttl=0.2)
        wait_until(lambda: "short" not in table, "another key expires")
