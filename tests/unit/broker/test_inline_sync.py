"""A lone publisher's syncs are done in the loop; anyone else's, and slow ones, are not."""

import threading
import time

import pytest

from stentor.broker.sessions import inline_sync as lone
from stentor.testing import broker


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setattr(lone, "SYNC_US_MAX", 10**9)  # no test depends on this machine's disk
    with broker() as running:
        yield running


@pytest.fixture
def syncing_threads(local, monkeypatch):
    """The names of the threads that synced, in order."""
    from stentor.storage.log import PartitionLog

    names = []
    real = PartitionLog.sync

    def sync(log):
        names.append(threading.current_thread().name)
        return real(log)

    monkeypatch.setattr(PartitionLog, "sync", sync)
    return names


def test_one_publish_at_a_time_is_soon_synced_in_the_loop(local, syncing_threads):
    with local.client() as client:
        for number in range(lone.RUN_MIN + 10):
            assert client.publish("t", f"{number}").offset == number
        assert syncing_threads[0].startswith("stentor-sync")
        assert syncing_threads[-1] == "stentor-broker"
        assert client.statistics()["broker"]["syncs_in_loop"] >= 5


def test_a_second_publisher_ends_it(local, syncing_threads):
    with local.client() as client, local.client() as other:
        for _ in range(lone.RUN_MIN + 5):
            client.publish("t", "x")
        del syncing_threads[:]
        for _ in range(10):
            client.publish("t", "x")
            other.publish("t", "y")
        assert "stentor-broker" not in syncing_threads[1:]


def test_a_slow_sync_ends_it(local, monkeypatch, syncing_threads):
    with local.client() as client:
        for _ in range(lone.RUN_MIN + 5):
            client.publish("t", "x")
        monkeypatch.setattr(lone, "SYNC_US_MAX", -1)
        client.publish("t", "slow")
        del syncing_threads[:]
        for _ in range(lone.RUN_MIN + 5):
            client.publish("t", "x")
        assert "stentor-broker" not in syncing_threads


def test_a_producer_at_full_speed_is_not_alone(local, syncing_threads):
    with local.client() as client, client.producer("t", batch_messages=1) as producer:
        for number in range(3_000):
            producer.send(b"%d" % number)
        producer.flush()
        in_loop = syncing_threads.count("stentor-broker")
        assert in_loop < 0.2 * len(syncing_threads) + 5
        assert [m.value for m in client.read("t")] == [b"%d" % n for n in range(3_000)]


def test_a_sync_that_fails_in_the_loop_is_told_like_any_other(local, monkeypatch):
    import os

    with local.client(timeout=2) as client:
        for _ in range(lone.RUN_MIN + 5):
            client.publish("t", "x")

        def broken(descriptor):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", broken)
        started = time.monotonic()
        with pytest.raises(Exception, match="not known"):
            client.publish("t", "y")
        assert time.monotonic() - started < 2
