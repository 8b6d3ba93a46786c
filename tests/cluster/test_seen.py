"""Members of a chain that know less than a client has seen are passed over (C24)."""

from __future__ import annotations

import pytest

from stentor.client.link import Link
from stentor.errors import DeadlineExceeded
from stentor.wire.messages import FindOffset, ListBrokers

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(monkeypatch):
    """Which brokers were asked for offsets, in order."""
    found: list[str] = []
    request = Link.request

    async def noted(link, message):
        if isinstance(message, FindOffset):
            found.append(link.broker.id)
        return await request(link, message)

    monkeypatch.setattr(Link, "request", noted)
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
        client.offsets("seen", timeout=1)
    assert asked[:3] == partition.chain[::-1]


def test_only_the_head_may_say_that_something_is_lost(topic, asked):
    client, topic_id, partition = topic
    client._core.seen.saw(topic_id, 0, 1_000, partition.epoch - 1)
    assert client.offsets("seen") == {0: 1}
    assert asked == partition.chain[::-1]
    assert client._core.seen.of(topic_id, 0).committed == 1
