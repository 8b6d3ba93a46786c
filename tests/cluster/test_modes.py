"""Placement modes, operators' requests, selectors and relays on a real cluster of three."""

import pytest

import stentor
from stentor import selectors
from stentor.client.link import BrokerLink
from stentor.client.links import Links
from stentor.client.sync_client import Client
from stentor.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(3, settings={"http": False}) as local:
        yield local


@pytest.fixture
def client(cluster):
    with cluster.client(timeout=20) as client:
        yield client


def test_spread_gives_every_broker_its_share_of_heads(cluster, client):
    client.create_topic("spread", partitions=6)
    heads = [partition.chain[0] for partition in client.describe_topic("spread").partitions]
    assert sorted(heads) == ["b0", "b0", "b1", "b1", "b2", "b2"]
    client.delete_topic("spread")


def test_multi_primary_makes_every_broker_the_head_of_a_partition(cluster, client):
    client.create_topic("primaries", partitions=3, placement="multi-primary")
    heads = [partition.chain[0] for partition in client.describe_topic("primaries").partitions]
    assert heads == ["b0", "b1", "b2"]
    for number in range(30):
        client.publish("primaries", str(number), key=str(number))
    assert len(client.read("primaries").to_arrow()) == 30
    client.delete_topic("primaries")


def test_active_passive_has_one_that_serves_and_exactly_one_takes_over(cluster, client):
    client.create_topic("standby", partitions=3, placement="active-passive")
    cluster.wait_for(lambda: len(heads(client, "standby")) == 1, what="one active broker")
    (active,) = heads(client, "standby")
    for number in range(20):
        client.publish("standby", str(number), key=str(number))
    cluster.kill(active)
    client.publish("standby", "after", key="1")
    cluster.wait_for(lambda: len(heads(client, "standby")) == 1, what="one active broker again")
    (successor,) = heads(client, "standby")
    assert successor != active
    assert len(client.read("standby").to_arrow()) == 21
    cluster.restart(active)
    cluster.wait_for(lambda: lengths(client, "standby") == {3}, what="full chains")
    client.delete_topic("standby")


def heads(client, topic):
    return {partition.chain[0] for partition in client.describe_topic(topic).partitions}


def lengths(client, topic):
    return {len(partition.chain) for partition in client.describe_topic(topic).partitions}


def test_a_standby_refuses_readers_and_names_the_active_one(cluster, client):
    client.create_topic("refused", placement="active-passive")
    cluster.wait_for(lambda: len(heads(client, "refused")) == 1, what="one active broker")
    client.publish("refused", "x")
    with cluster.client(read_from=lambda brokers: brokers[::-1]) as reader:
        assert [message.value for message in reader.read("refused")] == [b"x"], "clients go to the active one"
    client.delete_topic("refused")


def test_brokers_are_listed_with_what_they_hold(cluster, client):
    client.create_topic("listed", partitions=3)
    states = {state.info.id: state for state in client.brokers()}
    assert set(states) == {"b0", "b1", "b2"}
    assert sum(state.controller for state in states.values()) == 1
    assert all(state.view == "heard" and state.replicas >= 3 for state in states.values())
    client.delete_topic("listed")


def test_a_running_or_unknown_broker_is_not_forgotten(client):
    with pytest.raises(stentor.InvalidArgument, match="is running"):
        client.forget_broker("b1")
    with pytest.raises(stentor.InvalidArgument, match="no broker b9"):
        client.forget_broker("b9")
    with pytest.raises(stentor.InvalidArgument, match="no broker b9"):
        client.drain_broker("b9")


def test_a_drained_broker_holds_nothing_and_can_be_forgotten(cluster, client):
    client.create_topic("moved", partitions=2, replicas=2)
    with client.producer("moved") as producer:
        for number in range(1000):
            producer.send(str(number), key=str(number % 7))
    name = client.describe_topic("moved").partitions[0].chain[0]
    client.drain_broker(name)
    cluster.wait_for(lambda: not holds(client, "moved", name), what=f"{name} to be empty")
    assert len(client.read("moved").to_arrow()) == 1000
    client.drain_broker(name, draining=False)
    client.delete_topic("moved")


def holds(client, topic, broker):
    return any(broker in partition.chain for partition in client.describe_topic(topic).partitions)


def test_the_number_of_replicas_can_be_changed(cluster, client):
    client.create_topic("wider", replicas=1)
    client.publish("wider", "x")
    client.alter_topic("wider", replicas=3)
    cluster.wait_for(lambda: lengths(client, "wider") == {3}, what="three replicas")
    client.alter_topic("wider", replicas=2)
    cluster.wait_for(lambda: lengths(client, "wider") == {2}, what="two replicas")
    client.publish("wider", "y")
    assert [message.value for message in client.read("wider")] == [b"x", b"y"]
    with pytest.raises(stentor.InvalidArgument, match="brokers"):
        client.alter_topic("wider", replicas=5)
    client.delete_topic("wider")


def test_unclean_recovery_is_refused_while_a_member_runs(client):
    client.create_topic("whole")
    client.publish("whole", "x")  # committed: every member has its copy
    with pytest.raises(stentor.InvalidArgument, match="is running"):
        client.recover_partition("whole", 0, client.describe_topic("whole").partitions[0].chain[-1])
    client.delete_topic("whole")


@pytest.mark.parametrize("choice", [selectors.head_first, selectors.spread, selectors.least_loaded, selectors.sticky()])
def test_readers_choose_their_member(cluster, client, choice):
    client.publish("chosen", "x")
    with cluster.client(read_from=choice) as reader:
        assert reader.read("chosen", limit=1).to_arrow().column("value").to_pylist() == [b"x"]
    client.delete_topic("chosen")


@pytest.mark.parametrize("wanted", ["b0", "b1", "b2"])
def test_a_reader_is_served_by_whom_it_prefers_wherever_it_is_at_home(cluster, client, wanted):
    client.publish("preferred", "x")
    for home in cluster.brokers.values():
        with Client(home.address, read_from=lambda infos: sorted(infos, key=lambda info: info.id != wanted)) as reader:
            subscription = reader.subscribe("preferred", start="earliest")
            assert subscription.get(timeout=10).value == b"x"
            assert {found.link.broker.id for found in subscription._core.readers.values()} == {wanted}
    client.delete_topic("preferred")


def test_a_reader_whose_choice_cannot_be_reached_reads_from_another(cluster, client, monkeypatch):
    client.publish("out-of-reach", "x")
    opened = Links._open

    async def refused(self, broker, attempt):
        if broker == "b2":
            raise ConnectionRefusedError
        return await opened(self, broker, attempt)

    monkeypatch.setattr(Links, "_open", refused)
    home = cluster.brokers["b0"].address
    with Client(home, read_from=lambda infos: sorted(infos, key=lambda info: info.id != "b2")) as reader:
        assert [message.value for message in reader.read("out-of-reach", timeout=10)] == [b"x"]
    client.delete_topic("out-of-reach")


def test_producers_choose_their_partitions(cluster, client):
    client.create_topic("turns", partitions=3)
    with client.producer("turns", partitioner=selectors.round_robin()) as producer:
        for _ in range(9):
            producer.send("x", key="same")
    found = [message.partition for message in client.read("turns")]
    assert sorted(found) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    client.delete_topic("turns")


def wall_off(monkeypatch, only):
    """From now on clients here reach this address and no other."""
    direct = BrokerLink.open.__func__

    async def blocked(cls, address, *rest):
        if address != only:
            raise stentor.ConnectionFailed(f"{address} is behind a wall.")
        return await direct(cls, address, *rest)

    monkeypatch.setattr(BrokerLink, "open", classmethod(blocked))


def test_a_client_that_reaches_one_broker_reaches_all_topics(cluster, client, monkeypatch):
    client.create_topic("far", partitions=3)
    only = cluster.brokers["b1"].address
    wall_off(monkeypatch, only)
    with stentor.connect(only, timeout=20) as walled:
        for number in range(12):
            walled.publish("far", str(number), key=str(number))
        assert len(walled.read("far").to_arrow()) == 12
    client.delete_topic("far")


def test_a_lasting_producer_is_recognised_through_other_brokers_and_after_the_head_died(cluster, client, monkeypatch):
    """It shows its token on every way that it takes, also when that way leads through another broker."""
    client.create_topic("lasting", partitions=3, placement="multi-primary")
    only = cluster.brokers["b1"].address

    def send(client, first, count):
        with client.producer(
            "lasting", identity="orders", secret="hush", generation=first, batch_messages=1
        ) as producer:
            for number in range(first, first + count):
                producer.send(str(number), partition=number % 3, timestamp=1_700_000_000_000_000)

    with monkeypatch.context() as patched:
        wall_off(patched, only)
        with Client(only) as walled:
            send(walled, 0, 150)
            send(walled, 0, 150)
    assert len(client.read("lasting").to_arrow()) == 150
    cluster.kill("b0")
    send(client, 0, 150)
    cluster.restart("b0")
    cluster.wait_for(lambda: lengths(client, "lasting") == {3}, what="full chains")
    assert sorted(int(message.value) for message in client.read("lasting")) == list(range(150))
    client.delete_topic("lasting")
