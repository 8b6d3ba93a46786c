"""Producers go on where a topic was made anew, or where messages acknowledged below `all` went down with a head."""

import pytest

import stentor
from stentor.client.link import BrokerLink


@pytest.fixture
def unheard(monkeypatch):
    """A switch: publishes do not reach any broker."""
    publish = BrokerLink.publish

    def switch(*, on):
        monkeypatch.setattr(BrokerLink, "publish", (lambda *_: None) if on else publish)

    return switch


def make_anew(client, topic, wait_until, **settings):
    """Delete a topic and make it again; this client has heard of it at the end."""
    client.delete_topic(topic)
    made = client.create_topic(topic, **settings)
    wait_until(lambda: topic in client._core.routes and client._core.routes[topic].id == made.id, "the new topic")


def values_of(client, topic):
    return sorted(message.value for message in client.read(topic))


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_producer_goes_on_in_a_topic_that_was_made_anew(client, wait_until, partitions):
    topic = f"anew.{partitions}"
    client.create_topic(topic, partitions=partitions)
    with client.producer(topic) as producer:
        for number in range(100):
            producer.send(b"old", key=b"%d" % number)
        producer.flush()
        for round_ in range(2):
            make_anew(client, topic, wait_until, partitions=partitions)
            for number in range(100):
                producer.send(b"new %d" % round_, key=b"%d" % number)
            producer.flush(timeout=10)
            assert values_of(client, topic) == [b"new %d" % round_] * 100


def test_what_was_not_acknowledged_goes_to_the_new_topic(client, wait_until, unheard):
    client.create_topic("anew.unanswered")
    heard = []
    with client.producer("anew.unanswered", batch_messages=2) as producer:
        producer.send(b"old")
        producer.flush()
        unheard(on=True)
        for number in range(5):
            producer.send(b"%d" % number, on_delivery=lambda *told: heard.append(told))
        lane = producer._core.single
        wait_until(lambda: lane.pending and all(sent.attempts for sent in list(lane.pending)), "batches on the wire")
        unheard(on=False)
        make_anew(client, "anew.unanswered", wait_until)
        producer.flush(timeout=10)
        assert [message.value for message in client.read("anew.unanswered")] == [b"%d" % n for n in range(5)]
        assert [(receipt.offset, error) for receipt, error in heard] == [(number, None) for number in range(5)]


def test_a_deleted_topic_is_an_error_until_it_is_made_again(client, wait_until):
    client.create_topic("anew.later")
    with client.producer("anew.later") as producer:
        client.delete_topic("anew.later")
        wait_until(lambda: "anew.later" not in client._core.routes)
        producer.send(b"lost")
        with pytest.raises(stentor.PublishError, match="goes on once it is made again"):
            producer.flush(timeout=10)
        made = client.create_topic("anew.later")
        wait_until(lambda: client._core.routes.get("anew.later") and client._core.routes["anew.later"].id == made.id)
        producer.send(b"taken")
        producer.flush(timeout=10)
        assert values_of(client, "anew.later") == [b"taken"]


@pytest.mark.parametrize("case", ["partitions", "identity"])
def test_a_producer_that_cannot_go_on_says_what_to_do(client, wait_until, case):
    topic = f"anew.cannot.{case}"
    client.create_topic(topic)
    producer = client.producer(topic, **({"identity": "lasting", "secret": "s"} if case == "identity" else {}))
    make_anew(client, topic, wait_until, partitions=2 if case == "partitions" else 1)
    producer.send(b"x")
    with pytest.raises(stentor.PublishError, match=r"made anew.* make a new producer"):
        producer.close()


@pytest.mark.parametrize("ack", ["head", "quorum"])
def test_a_producer_goes_on_behind_what_was_acknowledged_provisionally_and_lost(client, ack):
    """The new head never had the last batch that the old one acknowledged."""
    topic = f"provisional.{ack}"
    with client.producer(topic, ack=ack, batch_messages=2) as producer:
        producer.send(b"kept")
        producer.flush()
        producer._core.single.sequence += 1  # a batch that only the old head had
        for number in range(9):
            producer.send(b"%d" % number)
        producer.flush(timeout=10)
        producer.send(b"last")
        producer.flush(timeout=10)
    assert [message.value for message in client.read(topic)] == [b"kept", *(b"%d" % n for n in range(9)), b"last"]


def test_a_publish_does_so_too(client):
    client.publish("provisional.publish", b"kept", ack="head")
    (producer,) = (p for (topic, _), p in client._publishers.items() if topic == "provisional.publish")
    producer._core.single.sequence += 1
    assert client.publish("provisional.publish", b"next", ack="head").offset == 1


def test_what_was_acknowledged_by_all_is_never_taken_for_lost(client):
    producer = client.producer("provisional.all")
    producer.send(b"kept")
    producer.flush()
    producer._core.single.sequence += 1
    producer.send(b"behind a gap")
    with pytest.raises(stentor.PublishError, match="expected"):
        producer.close()
    assert values_of(client, "provisional.all") == [b"kept"]
