"""What only an operator decides: taking logs as they are, changing settings of a live topic."""

import asyncio
import os

import pytest

from stentor.broker.cluster.store_room import StoreKeeper
from stentor.errors import CorruptData, DeadlineExceeded, InvalidArgument, PublishError, StoreFull
from stentor.testing import broker


def test_logs_without_a_journal_are_taken_only_when_the_operator_says_so(tmp_path):
    with broker(tmp_path) as local, local.client() as client:
        for number in range(5):
            client.publish("t", f"{number}")
    (tmp_path / "replicas").rename(tmp_path / "replicas.gone")
    with pytest.raises(CorruptData, match="journal"), broker(tmp_path):
        pass
    with broker(tmp_path, unclean=True) as local, local.client() as client:
        assert [m.value for m in client.read("t")] == [b"0", b"1", b"2", b"3", b"4"]
        assert client.publish("t", "5").offset == 5


def test_a_missing_coordination_file_is_not_an_empty_broker(tmp_path):
    with broker(tmp_path) as local, local.client() as client:
        client.publish("t", "x")
    (tmp_path / "coordination").unlink()
    with pytest.raises(CorruptData, match="coordination"), broker(tmp_path):
        pass


def test_a_log_whose_sync_failed_reads_on_and_takes_writes_again_only_unclean(tmp_path, monkeypatch):
    real = os.fdatasync
    with broker(tmp_path) as local, local.client(timeout=10) as client:
        client.publish("t", "safe")

        def broken(descriptor):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", broken)
        with pytest.raises(PublishError):
            client.publish("t", "unknown")
        monkeypatch.setattr(os, "fdatasync", real)
        assert [m.value for m in client.read("t")] == [b"safe"]
        assert "sync failed" in client.describe_topic("t").partitions[0].failed
    with broker(tmp_path) as local, local.client(timeout=2) as client:
        assert [m.value for m in client.read("t")] == [b"safe"]
        assert client.describe_topic("t").partitions[0].failed
        with pytest.raises(InvalidArgument, match="has failed") as refused:
            client.recover_partition("t", 0)
        assert "--unclean" in refused.value.hint
        with pytest.raises(DeadlineExceeded, match="takes no writes"):
            client.publish("t", "refused")
    with broker(tmp_path, unclean=True) as local, local.client() as client:
        assert client.publish("t", "again").offset >= 1
        assert next(iter(client.read("t"))).value == b"safe"


def test_a_topic_that_changes_to_flush_always_leaves_nothing_unsynced(tmp_path):
    with broker(tmp_path) as local, local.client() as client:
        client.create_topic("t", flush="interval", flush_interval_ms=3_600_000)
        client.publish("t", "only in memory")
        partition = local.inner.parts.serving.partition(client.describe_topic("t").id, 0)
        assert partition.log.synced_end == 0
        client.alter_topic("t", flush="always")
        client.publish("t", "synced")
        assert partition.log.synced_end == 2


def test_settings_that_a_topic_does_not_name_are_the_brokers(tmp_path):
    settings = {"flush": "interval", "retention_age_s": 3600, "default_partitions": 3}
    with broker(tmp_path, **settings) as local, local.client() as client:
        named = client.create_topic("named", partitions=2).settings
        assert (named.partitions, named.flush, named.retention_age_s) == (2, "interval", 3600)
        client.publish("automatic", "x")
        assert client.describe_topic("automatic").settings.partitions == 3


@pytest.fixture
def full_store(monkeypatch):
    """The coordination store has no room for what clients cause."""

    async def refuse(_, size, what):
        raise StoreFull("no room", object=what)

    return lambda: monkeypatch.setattr(StoreKeeper, "check", refuse)


def test_draining_a_broker_needs_room_in_the_coordination_store(local, client, full_store):
    (one,) = client.brokers()
    full_store()
    with pytest.raises(StoreFull, match="no room"):
        client.drain_broker(one.info.id, timeout=0.5)
    assert not client.brokers()[0].draining


def test_what_is_so_already_is_not_written_again(local, client, full_store):
    (one,) = client.brokers()
    client.create_topic("orders", retention_age_s=60)
    client.drain_broker(one.info.id)
    entries = asyncio.run(local.inner.parts.ground.store.range("")).entries
    full_store()
    client.drain_broker(one.info.id)
    client.alter_topic("orders", retention_age_s=60)
    assert asyncio.run(local.inner.parts.ground.store.range("")).entries == entries
