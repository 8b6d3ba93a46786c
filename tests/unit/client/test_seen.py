"""A client is never shown less of a partition than it has seen (C24)."""

import pytest

from stentor.client.seen import Seen, Sight
from stentor.errors import NotReady
from stentor.wire import messages
from stentor.wire.frames import Kind
from stentor.wire.messages import FindOffset


def test_the_highest_counts_and_gone_topics_are_forgotten():
    seen = Seen()
    assert seen.of(1, 0) == Sight(0, 0)
    seen.saw(1, 0, 5, 2)
    seen.saw(1, 0, 3, 3)
    seen.saw(2, 0, 7, 1)
    assert seen.of(1, 0) == Sight(5, 2)
    seen.corrected(1, 0, 3, 3)
    assert seen.of(1, 0) == Sight(3, 3)
    seen.forget({1})
    assert seen.of(1, 0) == Sight(0, 0)
    assert seen.of(2, 0) == Sight(7, 1)


def test_a_client_remembers_what_it_was_told_by_deliveries_and_answers(client):
    client.publish("told", "x")
    topic = client.describe_topic("told").id
    seen = client._core.seen
    assert client.offsets("told") == {0: 1}
    assert seen.of(topic, 0).committed == 1
    with client.subscribe("told", start="earliest") as subscription:
        client.publish("told", "y")
        assert [subscription.get(timeout=5).value for _ in range(2)] == [b"x", b"y"]
    assert seen.of(topic, 0).committed == 2
    client.delete_topic("told")


def test_a_broker_that_knows_less_says_not_yet(client, shared, raw):
    client.publish("less", "x")
    info = client.describe_topic("less")
    link = raw(shared.url).greet()
    wish = {"topic_id": info.id, "partition": 0, "at": "latest"}
    found = link.ask(FindOffset(**wish, seen=1))
    assert (found.offset, found.epoch) == (1, info.partitions[0].epoch)
    with pytest.raises(NotReady):
        link.ask(FindOffset(**wish, seen=2, seen_epoch=found.epoch))


def test_the_head_of_a_later_epoch_may_say_that_something_is_lost(client, shared, raw):
    client.publish("lost", "x")
    info = client.describe_topic("lost")
    wish = FindOffset(topic_id=info.id, partition=0, at="latest", seen=2, seen_epoch=info.partitions[0].epoch - 1)
    assert raw(shared.url).greet().ask(wish).committed == 1
    client._core.seen.saw(info.id, 0, 2, info.partitions[0].epoch - 1)
    assert client.offsets("lost") == {0: 1}
    assert client._core.seen.of(info.id, 0).committed == 1


@pytest.mark.parametrize(
    ("start", "seen", "answer"),
    [(2, 0, "offset_out_of_range"), (2, 1, "offset_out_of_range"), (9, 5, "not_ready"), (1, 1, None), (5, 5, None)],
)
def test_a_broker_that_is_behind_refuses_no_start_for_good(client, shared, raw, start, seen, answer):
    client.publish("behind.seen", "x")
    info = client.describe_topic("behind.seen")
    end = client.offsets("behind.seen")[0]
    link = raw(shared.url).greet()
    wish = messages.OpenStream(
        topic_id=info.id, partition=0, start=start + end - 1, seen=seen and seen + end - 1, credit=1_000
    )
    link.send(Kind.OPEN_STREAM, 1, messages.encode(wish))
    link.send(Kind.PING, 2)  # answered after the stream
    kind, _, body = link.receive()
    told = messages.decode(body, messages.StreamEnded).failure.code if kind == Kind.STREAM_ENDED else None
    assert told == answer
