"""What applications pass in by mistake is refused in words, before anything is lost."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

import stentor
from stentor import Last

DEEP = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"


@pytest.mark.parametrize("generation", [-1, 2**32, 2**40, "1", 1.0, True, None])
def test_a_generation_that_fits_no_batch_is_refused_before_messages_are_taken(client, generation):
    with pytest.raises(stentor.InvalidArgument):
        client.producer("generations", identity="one", secret="s", generation=generation)


def test_the_last_generation_is_one(client):
    with client.producer("generations.last", identity="one", secret="s", generation=2**32 - 1) as producer:
        producer.send("x")
    assert [message.value for message in client.read("generations.last")] == [b"x"]


@pytest.mark.parametrize(
    "options", [{"identity": 1}, {"batch_messages": "x"}, {"batch_bytes": None}, {"timeout": "1"}, {"ack": []}]
)
def test_a_wrong_option_of_a_producer_is_refused_in_words(client, options):
    with pytest.raises(stentor.InvalidArgument):
        client.producer("options", **options)


@pytest.mark.parametrize(
    "position",
    [
        2**70,
        2**63,
        timedelta.max,
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        Last("x"),
        Last(2**70),
        Last(-1),
        Last(count=True),
    ],
)
def test_a_position_out_of_bounds_is_refused_in_words(client, position):
    client.create_topic("bounds", exist_ok=True)
    with pytest.raises(stentor.InvalidArgument):
        client.subscribe("bounds", start=position)
    with pytest.raises(stentor.InvalidArgument):
        client.read("bounds", end=position)
    with pytest.raises(stentor.InvalidArgument):
        client.offsets("bounds", position)


@pytest.mark.parametrize(
    "position", [timedelta.min, timedelta(days=365_000), datetime(1, 1, 2, tzinfo=UTC), Last(2**62)]
)
def test_a_position_far_away_is_one(client, position):
    client.create_topic("far", exist_ok=True)
    assert client.offsets("far", position) == {0: 0}


@pytest.mark.parametrize("limit", [-1, "1", 1.5, True])
def test_a_limit_that_is_no_number_of_messages_is_refused_in_words(client, limit):
    with pytest.raises(stentor.InvalidArgument):
        client.read("limits", limit=limit)


@pytest.mark.parametrize("partition", ["0", 0.0, -1, [], b""])
def test_a_partition_that_is_none_is_refused_in_words(client, partition):
    with client.producer("partitions") as producer:
        with pytest.raises(stentor.InvalidArgument):
            producer.send(b"x", partition=partition)
        with pytest.raises(stentor.InvalidArgument):
            producer.send_many([b"x"], partition=partition)
    with pytest.raises(stentor.InvalidArgument):
        client.publish("partitions", b"x", partition=partition)


@pytest.mark.parametrize("topics", [5, None, [5], [["a"]], {"a": 1}])
def test_topics_that_are_no_text_are_refused_in_words(client, topics):
    with pytest.raises(stentor.InvalidArgument):
        client.subscribe(topics)


@pytest.mark.parametrize(
    ("topic", "options"), [([], {}), (5, {}), ("t", {"ack": []}), ("t", {"ack": 1}), ("t", {"timeout": "1"})]
)
def test_a_wrong_argument_of_publish_is_refused_in_words(client, topic, options):
    with pytest.raises(stentor.InvalidArgument):
        client.publish(topic, b"x", **options)


@pytest.mark.parametrize("options", [{"timeout": "1"}, {"timeout": 0}, {"name": 1}])
def test_a_wrong_argument_of_connect_is_refused_in_words(shared, options):
    with pytest.raises(stentor.InvalidArgument):
        stentor.connect(shared.url, **options)


@pytest.mark.parametrize("values", [None, 5, (b"x" for _ in range(3))])
def test_many_values_that_are_no_list_are_refused_in_words(client, values):
    with client.producer("many.wrong") as producer, pytest.raises(stentor.InvalidArgument):
        producer.send_many(values)


def test_a_number_that_cannot_travel_is_refused_in_words(client):
    client.create_topic("numbers", exist_ok=True)
    with pytest.raises(stentor.InvalidArgument):
        client.alter_topic("numbers", retention_bytes=2**70)
    with pytest.raises(stentor.InvalidArgument):
        client.topic("numbers", type=dict, format="msgpack").publish({"a": 2**70})


def test_a_value_nested_too_deeply_is_one_that_cannot_be_decoded(client):
    client.publish("deep", DEEP)
    client.publish("deep", b'{"a":1}')

    def values(on_error):
        return [message.value for message in client.topic("deep", type=dict, on_error=on_error).read()]

    assert values("skip") == [{"a": 1}]
    assert values("raw") == [DEEP, {"a": 1}]
    with pytest.raises(stentor.DecodeFailed):
        values("raise")


def test_a_value_nested_too_deeply_cannot_be_encoded(client):
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(stentor.InvalidArgument):
        client.topic("deep.too", type=list).publish(nested)
