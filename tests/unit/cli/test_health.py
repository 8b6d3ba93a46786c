from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from stentor import BrokerInfo, NotReady, PartitionInfo, TopicInfo, TopicSettings
from stentor.cli import checkup
from stentor.cli.app import run
from stentor.wire.messages import BrokerState, PartitionRecovered


def topic(*chains, failed="", **settings):
    partitions = [PartitionInfo(partition=n, chain=list(chain), failed=failed) for n, chain in enumerate(chains)]
    return TopicInfo(name="orders", id=1, settings=TopicSettings(**settings), partitions=partitions)


@pytest.fixture
def shown(monkeypatch, capsys):
    """What a command prints about a topic of a cluster."""

    def show(found, *arguments):
        client = MagicMock(describe_topic=lambda _: found, topics=lambda *_, **__: [found])
        client.broker.return_value = BrokerInfo(id="b0", cluster_id="c", version="1", address="a:1")
        client.statistics.return_value = {"broker": {}}
        monkeypatch.setattr("stentor.cli.options.connect", lambda *_: nullcontext(client))
        assert run(list(arguments)) == 0
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize(
    ("found", "health"),
    [
        (topic("abc", replicas=3), "ok"),
        (topic("a"), "ok"),
        (topic("abc", "ab", replicas=3), "2 of 3 replicas"),
        (topic("abc", "a", replicas=3), "1 of 3 replicas, accepts no messages"),
        (topic("abc", "a", replicas=3, min_replicas=1), "1 of 3 replicas"),
        (topic("", replicas=3), "0 of 3 replicas, accepts no messages"),
        (topic("ab", replicas=3, failed="input/output error"), "damaged, 2 of 3 replicas"),
    ],
)
def test_the_list_of_topics_tells_what_chains_lack(shown, found, health):
    [_, line] = shown(found, "topic", "list").splitlines()
    assert line.endswith(f"for ever   {health}")


def test_a_topic_shows_the_health_of_each_partition_and_the_minimum_that_holds(shown):
    lines = shown(topic("abc", "ab", replicas=3), "topic", "describe", "orders").splitlines()
    assert "replicas      3, at least 2, spread" in lines
    assert [line.rpartition("  ")[2] for line in lines[-2:]] == ["ok", "2 of 3 replicas"]


@pytest.mark.parametrize(("settings", "least"), [({}, 1), ({"replicas": 2}, 1), ({"replicas": 5}, 3)])
def test_the_minimum_is_a_majority_unless_said(shown, settings, least):
    wanted = settings.get("replicas", 1)
    assert f"{wanted}, at least {least}, spread" in shown(topic("a", **settings), "topic", "describe", "orders")


def test_the_overview_counts_partitions_that_lack_replicas(shown):
    out = shown(topic("abc", "ab", "a", replicas=3), "describe")
    assert "2 partitions without all replicas" in out
    assert "2 partitions without all replicas" not in shown(topic("abc", replicas=3), "describe")


def test_the_doctor_warns_of_chains_that_lack_members():
    [finding] = checkup._check_topics([topic("abc", "ab", replicas=3)])
    assert (finding.severity, finding.object) == ("warning", "orders/1")
    assert "2 of 3 replicas" in finding.message


class Cluster:
    """Two brokers of three are there; each says which partitions of `orders` are at work."""

    def __init__(self, **active):
        self.active = active
        self.recovered = []

    def connect(self, address, *_):
        client = MagicMock()
        client.describe_topic.return_value = topic(("b0", "b1"), ("b1", "b0"), replicas=3)
        client.brokers.return_value = [
            BrokerState(info=BrokerInfo(id=name, cluster_id="c", version="1", address=name), view=view)
            for name, view in (("b0", "heard"), ("b1", "heard"), ("b2", "refused"))
        ]
        client.broker.return_value = SimpleNamespace(id=address)
        client.statistics.return_value = (
            {
                "partitions": [
                    {
                        "topic": "orders",
                        "partition": partition,
                        "replica": {"active": partition in self.active[address]},
                    }
                    for partition in (0, 1)
                ]
            }
            if address in self.active
            else {"partitions": []}
        )
        client.recover_partition = self.recover
        return nullcontext(client)

    def recover(self, _, partition, broker):
        if broker is None:
            raise NotReady("b2 did not say what copy it has.")
        self.recovered.append((partition, broker))
        return PartitionRecovered(epoch=9, end=5, committed=5)


def test_partitions_at_work_need_no_answer_of_every_broker_to_be_left_alone(monkeypatch, capsys):
    cluster = Cluster(b0={0, 1}, b1={1})
    monkeypatch.setattr("stentor.cli.options.connect", cluster.connect)
    assert run(["topic", "recover", "orders", "--yes", "--url", "b0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "orders/0: left as it is: orders/0 is at work.",
        "orders/1: left as it is: orders/1 is at work.",
    ]


def test_what_only_a_member_that_is_no_head_calls_at_work_still_needs_all_copies(monkeypatch, capsys):
    cluster = Cluster(b0={0, 1}, b1=set())
    monkeypatch.setattr("stentor.cli.options.connect", cluster.connect)
    assert run(["topic", "recover", "orders", "--yes", "--url", "b0"]) == 1
    out, err = capsys.readouterr()
    assert out == "orders/0: left as it is: orders/0 is at work.\n"
    assert err == "stentor: b2 did not say what copy it has.\n"
    assert run(["topic", "recover", "orders", "--yes", "--url", "b0", "--partition", "1", "--broker", "b1"]) == 0
    assert cluster.recovered == [(1, "b1")]
