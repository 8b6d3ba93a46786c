"""Every mistake a user can make with the API ends in a sentence that says what to do."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import stentor
from stentor import Last, limits
from stentor.errors import (
    DecodeFailed,
    InvalidArgument,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionNotFound,
    StentorError,
    TopicExists,
    TopicNotFound,
)
from stentor.testing import broker


@pytest.fixture(scope="module")
def shared():
    with broker() as local:
        yield local


@pytest.fixture(scope="module")
def known(shared):
    """A client of a broker with one topic of two partitions."""
    with shared.client(timeout=10) as client:
        client.create_topic("t", partitions=2)
        client.publish("t", b"x", partition=0)
        client.publish("numbers", b"not json")
        yield client


BIG_KEY = bytes(limits.MESSAGE_KEY_BYTES_MAX + 1)
BIG_VALUE = bytes(limits.MESSAGE_VALUE_BYTES_MAX + 1)
MANY_HEADERS = [("k", b"v")] * (limits.MESSAGE_HEADERS_MAX + 1)

MISTAKES = {
    # names
    "a topic name with a space": (lambda c: c.publish("a b", b"x"), InvalidArgument),
    "an empty topic name": (lambda c: c.publish("", b"x"), InvalidArgument),
    "a pattern to publish to": (lambda c: c.publish("a.*", b"x"), InvalidArgument),
    "a long topic name": (lambda c: c.create_topic("x" * 201), StentorError),
    "a topic name that is no text": (lambda c: c.publish(5, b"x"), InvalidArgument),
    "a wrong pattern": (lambda c: c.subscribe("a.>.b"), InvalidArgument),
    "a wrong pattern to list": (lambda c: c.topics("a..b"), InvalidArgument),
    "no topic to subscribe to": (lambda c: c.subscribe([]), InvalidArgument),
    "a topic that is there already": (lambda c: c.create_topic("t"), TopicExists),
    "a topic that is not there": (lambda c: c.describe_topic("nowhere"), TopicNotFound),
    "a topic to delete that is not there": (lambda c: c.delete_topic("nowhere"), TopicNotFound),
    "a topic to alter that is not there": (lambda c: c.alter_topic("nowhere", flush="always"), TopicNotFound),
    "offsets of a topic that is not there": (lambda c: c.offsets("nowhere"), TopicNotFound),
    # settings
    "an unknown setting": (lambda c: c.create_topic("n", colour="red"), InvalidArgument),
    "no partitions": (lambda c: c.create_topic("n", partitions=0), InvalidArgument),
    "too many partitions": (lambda c: c.create_topic("n", partitions=10_000), InvalidArgument),
    "other partitions later": (lambda c: c.alter_topic("t", partitions=5), InvalidArgument),
    "an unknown flush": (lambda c: c.alter_topic("t", flush="never"), InvalidArgument),
    # messages
    "a value that is a number": (lambda c: c.publish("t", 5), InvalidArgument),
    "a value that is a dict": (lambda c: c.publish("t", {"a": 1}), InvalidArgument),
    "a key that is a number": (lambda c: c.publish("t", b"x", key=5), InvalidArgument),
    "a value that is too large": (lambda c: c.publish("t", BIG_VALUE), LimitExceeded),
    "a key that is too large": (lambda c: c.publish("t", b"x", key=BIG_KEY), InvalidArgument),
    "a partition that is not there": (lambda c: c.publish("t", b"x", partition=9), StentorError),
    "a negative partition": (lambda c: c.publish("t", b"x", partition=-1), StentorError),
    "an unknown ack": (lambda c: c.publish("t", b"x", ack="some"), InvalidArgument),
    "headers that are text": (lambda c: c.publish("t", b"x", headers="abc"), InvalidArgument),
    "headers that are pairs of one": (lambda c: c.publish("t", b"x", headers=[("a",)]), InvalidArgument),
    "a header key that is a number": (lambda c: c.publish("t", b"x", headers={1: b"x"}), InvalidArgument),
    "a header value that is a number": (lambda c: c.publish("t", b"x", headers={"a": 1}), InvalidArgument),
    "too many headers": (lambda c: c.publish("t", b"x", headers=MANY_HEADERS), LimitExceeded),
    "a timestamp that is text": (lambda c: c.publish("t", b"x", timestamp="now"), InvalidArgument),
    "a timestamp before 1970": (lambda c: c.publish("t", b"x", timestamp=-1), InvalidArgument),
    "a timestamp far away": (lambda c: c.publish("t", b"x", timestamp=2**62), InvalidArgument),
    # producers
    "an unknown compression": (lambda c: c.producer("t", compression="gzip"), InvalidArgument),
    "a batch of no messages": (lambda c: c.producer("t", batch_messages=0), InvalidArgument),
    "a batch of too many bytes": (lambda c: c.producer("t", batch_bytes=10**9), InvalidArgument),
    "a list as a batch": (lambda c: c.producer("t").send_batch([b"x"]), InvalidArgument),
    "a table without values": (lambda c: c.producer("t").send_batch(pa.table({"a": [1]})), InvalidArgument),
    "a table of numbers": (lambda c: c.producer("t").send_batch(pa.table({"value": [1.5]})), InvalidArgument),
    "keys that do not fit": (lambda c: c.producer("t").send_many([b"a", b"b"], [b"k"]), InvalidArgument),
    "an unknown partition of a producer": (lambda c: c.producer("t").send(b"x", partition=5), StentorError),
    # positions
    "an unknown word as a start": (lambda c: c.subscribe("t", start="begin"), InvalidArgument),
    "a negative offset": (lambda c: c.subscribe("t", start=-1), InvalidArgument),
    "a float as a start": (lambda c: c.subscribe("t", start=1.5), InvalidArgument),
    "True as a start": (lambda c: c.subscribe("t", start=True), InvalidArgument),
    "a negative Last": (lambda c: c.subscribe("t", start=Last(-1)), InvalidArgument),
    "an unknown end": (lambda c: c.read("t", end="tomorrow"), InvalidArgument),
    "None as a start": (lambda c: c.read("t", start=None), InvalidArgument),
    "an offset beyond the end": (lambda c: list(c.read("numbers", start=5, end=9)), OffsetOutOfRange),
    # subscriptions
    "an unknown on_slow": (lambda c: c.subscribe("t", on_slow="panic"), InvalidArgument),
    "on_slow without max_lag": (lambda c: c.subscribe("t", on_slow="skip"), InvalidArgument),
    "a max_lag that is text": (lambda c: c.subscribe("t", on_slow="skip", max_lag="much"), InvalidArgument),
    # typed topics
    "an unknown format": (lambda c: c.topic("t", type=int, format="xml"), InvalidArgument),
    "an unknown on_error": (lambda c: c.topic("t", type=int, on_error="cry"), InvalidArgument),
    "a value of another type": (lambda c: list(c.topic("numbers", type=int).read()), DecodeFailed),
    # connecting
    "a URL of another kind": (lambda _: stentor.connect("http://localhost"), InvalidArgument),
    "a port that is no number": (lambda _: stentor.connect("localhost:x"), InvalidArgument),
    "a timeout of zero": (lambda _: stentor.connect("localhost:1", timeout=0), InvalidArgument),
    "nobody there": (lambda _: stentor.connect("127.0.0.1:1", timeout=2), stentor.ConnectionFailed),
    "a long client name": (lambda _: stentor.connect("127.0.0.1:1", name="x" * 300), InvalidArgument),
}


@pytest.mark.parametrize(("call", "error"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_in_a_typed_error_that_reads_as_a_sentence(known, call, error):
    with pytest.raises(error) as caught:
        call(known)
    text = str(caught.value)
    assert isinstance(caught.value, StentorError)
    assert text.endswith((".", "'")), text
    assert len(text) > 20
    assert "Traceback" not in text
    assert "\n" not in text
    assert caught.value.code != "internal_error"
    assert known.publish("t", b"still works", timeout=10)


@pytest.mark.parametrize("headers", [5, object(), True])
def test_headers_that_cannot_be_iterated_are_refused_in_words(known, headers):
    with pytest.raises(InvalidArgument):
        known.publish("t", b"x", headers=headers)


@pytest.mark.parametrize("call", ["read", "subscribe"])
def test_reading_a_partition_that_is_not_there_is_refused(known, call):
    with pytest.raises(PartitionNotFound):
        getattr(known, call)("t", partition=9)


def test_a_large_value_that_was_refused_does_not_take_others_with_it(shared):
    with shared.client() as client, client.producer("innocent") as producer:
        producer.send(b"before")
        with pytest.raises(LimitExceeded):
            producer.send(BIG_VALUE)
        producer.send(b"after")
        producer.flush()
        assert [message.value for message in client.read("innocent")] == [b"before", b"after"]


def test_a_wrong_row_among_many_is_refused_and_the_others_arrive(shared):
    with shared.client() as client, client.producer("rows") as producer:
        for number in range(50):
            if number % 10 == 5:
                with pytest.raises(InvalidArgument):
                    producer.send(number)
            else:
                producer.send(b"%d" % number)
        producer.flush()
        assert len(list(client.read("rows"))) == 45


def test_a_callback_that_raises_does_not_stop_the_producer(shared):
    def explode(receipt, error):
        raise RuntimeError("the application's own fault")

    with shared.client() as client, client.producer("exploding") as producer:
        for number in range(20):
            producer.send(b"%d" % number, on_delivery=explode)
        producer.flush()
        assert len(list(client.read("exploding"))) == 20


def test_times_without_a_zone_are_local_times(shared):
    with shared.client() as client:
        moment = datetime(2024, 5, 1, 12, 0, 0)  # noqa: DTZ001 - that is the point
        client.publish("naive", b"x", timestamp=moment)
        (message,) = client.read("naive", start=moment)
        assert message.timestamp == moment.astimezone(UTC)
        assert list(client.read("naive", start=moment + timedelta(seconds=1))) == []
