"""etcd is restored from an older state: told, never followed, and an operator has what it takes (C27)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stentor.errors import CoordinationRefused, DeadlineExceeded, StentorError
from stentor.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PARTITIONS = 2


class Restorable:
    """A cluster whose etcd has a backup that was made before a chain changed and a topic was made."""

    def __init__(self, cluster: LocalCluster, backup: Path) -> None:
        self.cluster = cluster
        self._backup = backup
        self.published = 0
        with cluster.client(timeout=20) as client:
            client.create_topic("orders", partitions=PARTITIONS, replicas=3)
        self.publish(50)
        cluster.etcd.stop()
        shutil.copytree(cluster.etcd.data_directory, backup)
        cluster.etcd.start()
        victim = cluster.chain("orders")[0]
        cluster.kill(victim)
        self.publish(50)
        cluster.restart(victim)
        for partition in range(PARTITIONS):
            cluster.wait_for_chain("orders", 3, partition)
        with cluster.client(timeout=20) as client:
            client.create_topic("later", replicas=3)
            client.publish("later", "kept")
        self.publish(50)

    def publish(self, count: int) -> None:
        with self.cluster.client(timeout=20) as client, client.producer("orders", timeout=20) as producer:
            for number in range(self.published, self.published + count):
                producer.send(f"order {number}", partition=number % PARTITIONS)
        self.published += count

    def check(self) -> None:
        """Everything acknowledged is there, in order and once."""
        with self.cluster.client(timeout=20) as client:
            for partition in range(PARTITIONS):
                found = [message.value.decode() for message in client.read("orders", partition=partition)]
                assert found == [f"order {n}" for n in range(self.published) if n % PARTITIONS == partition]

    def restore(self) -> None:
        directory = self.cluster.etcd.data_directory
        self.cluster.etcd.stop()
        shutil.rmtree(directory)
        shutil.copytree(self._backup, directory)
        self.cluster.etcd.start()

    def said(self, words: str) -> bool:
        return any(self._who_said(words))

    def all_said(self, words: str) -> bool:
        return all(self._who_said(words))

    def _who_said(self, words: str) -> list[bool]:
        return [words in broker.log_file.read_text(encoding="utf-8") for broker in self.cluster.brokers.values()]


@pytest.fixture
def restorable(tmp_path: Path) -> Iterator[Restorable]:
    with LocalCluster(3) as cluster:
        yield Restorable(cluster, tmp_path / "backup")


@pytest.mark.long
def test_under_running_brokers_messages_flow_on_and_nothing_is_followed(restorable):
    cluster = restorable.cluster
    restorable.restore()
    cluster.wait_for(
        lambda: restorable.all_said("the coordination store was restored from an older backup"), what="the alert"
    )
    restorable.publish(50)
    restorable.check()
    with cluster.client(timeout=20) as client:
        assert client.publish("later", "and more").offset == 1  # the store has never heard of it
        with pytest.raises(CoordinationRefused, match="restored from an older state"):
            client.create_topic("refused")
        with pytest.raises(CoordinationRefused, match="restored from an older state"):
            client.drain_broker("b1")
    assert cluster.chain("orders")
    assert cluster.chain("later")


@pytest.mark.long
def test_brokers_start_on_it_by_an_operators_word_and_lose_nothing(restorable):
    cluster = restorable.cluster
    for name in cluster.brokers:
        cluster.terminate(name)
    restorable.restore()

    refused = cluster.brokers["b0"]
    refused.launch()
    refused.wait(20)
    assert "restored from an older state" in refused.last_words()

    for broker in cluster.brokers.values():
        broker.settings["accept_older_store"] = True
        broker.launch()
    for broker in cluster.brokers.values():
        broker.wait_ready()
    cluster.wait_for(lambda: restorable.said("has an older chain than its members"), what="the alert")
    with cluster.client(timeout=20) as client:
        with pytest.raises(DeadlineExceeded, match="waits for an operator"):
            client.read("orders", timeout=2)
        with pytest.raises(StentorError, match="no head"), client.producer("orders", timeout=2) as producer:
            producer.send("too early", partition=0)
        assert not any(partition.chain for partition in client.describe_topic("orders").partitions)
        for partition in range(PARTITIONS):
            recovered = client.recover_partition("orders", partition)
            assert recovered.end == recovered.committed == restorable.published // PARTITIONS
    for partition in range(PARTITIONS):
        cluster.wait_for_chain("orders", 3, partition)
    restorable.publish(50)
    restorable.check()
    directories = [path.name for broker in cluster.brokers.values() for path in broker.directory.rglob("*.log")]
    assert len(directories) == 3 * (PARTITIONS + 1), "the logs of the topic that the store forgot stay"
