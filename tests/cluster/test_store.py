"""etcd is gone for a while: messages flow on, changes wait and are made when it is back (C27, E7).

`python -m tests.cluster.outage` does it for a whole minute.
"""

from __future__ import annotations

import time

import pytest
from tests.cluster.outage import change_something, wait

from stentor import Client
from stentor.errors import DeadlineExceeded, EndUnknown, NotReady, StentorError
from stentor.limits import LEASE_S
from stentor.storage.directory import CATALOGUE_FILE, JOURNAL_FILE
from stentor.storage.journal import load_journal

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_etcd_stands_still_for_longer_than_its_leases(three, load):
    with load(three) as flow:
        since = time.monotonic()
        three.etcd.pause()
        try:
            wait(three, LEASE_S + 1.5)
            flow.wait_for_acks()
            assert flow.longest_gap_s(since) < 1
            with pytest.raises(StentorError):
                flow.client.create_topic(f"{flow.topic}-meanwhile", timeout=1)
        finally:
            three.etcd.resume()
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < 1, "mass expiry of leases is not mass death"
        change_something(three, flow)
    assert flow.errors == []


def test_etcd_is_killed_and_a_broker_dies_meanwhile(three, load):
    """The chain waits for the change that only etcd can take, and goes on when it is back."""
    with load(three) as flow:
        three.etcd.kill()
        flow.wait_for_acks()
        name = flow.chains()[0][1]
        three.kill(name)
        three.etcd.start()
        flow.wait_until_without(name)
        flow.wait_for_acks()
        three.restart(name)
        flow.wait_until_whole()
    assert flow.errors == []


def floor(broker, key):
    """Up to where a partition is committed, by the broker's journal."""
    for topic_id, partition, state in load_journal(broker.directory / JOURNAL_FILE).replicas:
        if (topic_id, partition) == key:
            return state.committed
    return None


def start_without_store(cluster, *names):
    before = {name: waits(cluster, name) for name in names}
    for name in names:
        cluster.brokers[name].launch()
    for name in names:
        cluster.wait_for(lambda name=name: waits(cluster, name) > before[name], what=f"{name} to serve readers")


def waits(cluster, name):
    """How often a broker has said that it serves without its store."""
    return cluster.brokers[name].log_file.read_text(encoding="utf-8").count("the coordination store is away")


@pytest.mark.long
@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_all_brokers_start_without_etcd_and_serve_what_is_known_to_be_committed(three, end):
    topic, values = f"without-store-{end}", [f"{number}".encode() for number in range(100)]
    with three.client(timeout=30) as client:
        client.create_topic(topic, replicas=3)
        for value in values:
            client.publish(topic, value)
        key = (client.describe_topic(topic).id, 0)
        three.wait_for(lambda: all(floor(broker, key) == len(values) for broker in three.brokers.values()))
    three.etcd.stop()
    for name in three.brokers:
        getattr(three, end)(name)
    start_without_store(three, *three.brokers)

    try:
        with three.client(timeout=20) as client:
            with pytest.raises(EndUnknown):
                client.offsets(topic, timeout=2)  # C30: others may have committed more since
            known = client.read(topic, stale="allow")
            assert [message.value for message in known] == values
            assert (known.sure, known.ends) == (False, {topic: {0: len(values)}})
            assert client.describe_topic(topic).partitions[0].committed == len(values)
            with pytest.raises(StentorError, match="coordination store was away"):
                client.publish(topic, "too early", timeout=2)
            with pytest.raises(NotReady, match="coordination store was away"):
                client.create_topic(f"{topic}-too")
            subscription = client.subscribe(topic, start="earliest")
            with pytest.raises(DeadlineExceeded):
                subscription.get(timeout=1)  # nobody is "live" on a broker that hears of nothing

            three.etcd.start()
            for broker in three.brokers.values():
                broker.wait_ready()
            client.publish(topic, "after", timeout=30)
            found = [subscription.get(timeout=30).value for _ in range(102)]
            assert found == [*values, b"too early", b"after"]  # a deadline that passed is an unknown outcome
    finally:
        three.etcd.start()


@pytest.mark.long
def test_a_broker_that_starts_without_etcd_leaves_clients_to_those_that_run(three):
    with three.client(timeout=30) as client:
        client.create_topic("elsewhere", partitions=3, replicas=1)
        chains = [partition.chain[0] for partition in client.describe_topic("elsewhere").partitions]
        running, waiting = chains[0], next(name for name in chains if name != chains[0])
    catalogue = three.brokers[waiting].directory / CATALOGUE_FILE
    three.wait_for(lambda: b"elsewhere" in catalogue.read_bytes())
    three.etcd.stop()
    three.kill(waiting)
    start_without_store(three, waiting)

    try:
        addresses = [three.brokers[waiting].address, three.brokers[running].address]
        for order in (addresses, addresses[::-1]):
            with Client(",".join(order), timeout=5) as client:
                assert client.broker().id == running
                assert client.publish("elsewhere", "now", partition=chains.index(running), timeout=5).partition == 0
        with Client(addresses[0], timeout=5) as client:  # it knows the others
            assert client.publish("elsewhere", "now", partition=chains.index(running), timeout=5).partition == 0
            assert len(list(client.read("elsewhere", partition=chains.index(running)))) == 3
            three.wait_for(lambda: client.broker().id != waiting, what="a better home")
    finally:
        three.etcd.start()
    three.brokers[waiting].wait_ready()
