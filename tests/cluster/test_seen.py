"""Members of a chain that know less than a client has seen are passed over (C24)."""

from __future__ import annotations

import pytest

from stentor.client.link import BrokerLink
from stentor.client.positions import Last
from stentor.errors import DeadlineExceeded, NotReady
from stentor.wire.messages import FindOffset, ListBrokers

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(monkeypatch):
    """Which brokers were asked for offsets, in order."""
    found: list[str] = []
    request = BrokerLink.request

    async def noted(link, message):
        if isinstance(message, FindOffset):
            found.append(link.broker.id)
        return await request(link, message)

    monkeypatch.setattr(BrokerLink, "request", noted)
    return found


@pytest.fixture
def topic(three):
    """A topic with one message, and a client that is linked to all members of its chain."""
    with three.client(timeout=20) as client:
        info = client.create_topic("seen", partitions=1)
        client.publish("seen", "x")
        for broker in three.brokers:
            client._call(client._core.ask_one(ListBrokers(), broker, 10))
        yield client, info.id, client.describe_topic("seen").partitions[0]
        client.delete_topic("seen")


def test_all_members_are_asked_before_the_client_waits(topic, asked):
    client, topic_id, partition = topic
    client._core.seen.saw(topic_id, 0, 1_000, partition.epoch)
    with pytest.raises(DeadlineExceeded):
        client.offsets("seen", "earliest", timeout=1)
    assert asked[:3] == partition.chain[::-1]


def test_only_the_head_may_say_that_something_is_lost(topic, asked):
    client, topic_id, partition = topic
    client._core.seen.saw(topic_id, 0, 1_000, partition.epoch - 1)
    assert client.offsets("seen", "earliest") == {0: 0}
    assert asked == partition.chain[::-1]
    assert client._core.seen.of(topic_id, 0).committed == 1


@pytest.mark.parametrize("at", ["latest", Last(0)])
def test_where_the_messages_end_is_a_question_for_the_head(three, topic, asked, at):
    """It has given the acknowledgements; the others hear of them a moment later."""
    *_, partition = topic
    with three.client(read_from=lambda infos: infos[::-1]) as reader:
        assert reader.offsets("seen", at) == {0: 1}
    assert asked == partition.chain[:1]


def test_a_head_that_is_new_is_waited_for(topic, asked, monkeypatch):
    client, _, partition = topic
    request = BrokerLink.request

    async def not_yet(link, message):
        answer = await request(link, message)
        if len(asked) < 3:
            raise NotReady("It leads since a moment ago.")
        return answer

    monkeypatch.setattr(BrokerLink, "request", not_yet)
    assert client.offsets("seen") == {0: 1}
    assert asked == partition.chain[:1] * 3


def test_a_head_that_never_answers_is_not_waited_for_longer_than_a_moment(topic, asked, monkeypatch):
    client, _, partition = topic
    request = BrokerLink.request

    async def never(link, message):
        answer = await request(link, message)
        if link.broker.id == partition.chain[0]:
            raise NotReady("It does not hear its successor.")
        return answer

    monkeypatch.setattr(BrokerLink, "request", never)
    assert client.offsets("seen") == {0: 1}
    assert asked[-1] == partition.chain[-1]
