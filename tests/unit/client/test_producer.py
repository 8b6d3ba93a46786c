"""Producers batch by themselves, keep order, report what failed, and never double a message."""

import threading
import zlib
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import stentor
from stentor import limits
from stentor.errors import LimitExceeded
from stentor.testing import broker


def values_of(client, topic):
    return [message.value for message in client.read(topic)]


def test_messages_arrive_in_the_order_they_were_sent(client):
    sent = [b"%d" % index for index in range(10_000)]
    with client.producer("ordered") as producer:
        for value in sent:
            producer.send(value)
    assert values_of(client, "ordered") == sent


def test_threads_share_a_producer_without_losing_or_doubling(client):
    def send(thread):
        for index in range(5_000):
            producer.send(b"%d:%d" % (thread, index), key=b"%d" % thread)

    with client.producer("threads", batch_messages=50) as producer:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values_of(client, "threads")
    assert len(found) == 20_000
    for number in range(4):
        prefix = b"%d:" % number
        assert [v for v in found if v.startswith(prefix)] == [b"%d:%d" % (number, i) for i in range(5_000)]


def test_a_key_goes_to_the_partition_of_its_crc32(client):
    client.create_topic("keyed", partitions=4)
    with client.producer("keyed") as producer:
        for index in range(400):
            producer.send(b"v", key=b"key-%d" % index)
    for message in client.read("keyed"):
        assert message.partition == zlib.crc32(message.key) % 4


def test_messages_without_a_key_spread_over_partitions(client):
    client.create_topic("spread", partitions=3)
    with client.producer("spread", batch_messages=10) as producer:
        for index in range(300):
            producer.send(b"%d" % index)
    found = list(client.read("spread"))
    assert len(found) == 300
    assert {message.partition for message in found} == {0, 1, 2}


def test_messages_without_a_key_go_to_the_partitions_in_turn_at_any_rate(client):
    client.create_topic("in.turn", partitions=4)
    published = [client.publish("in.turn", b"x").partition for _ in range(40)]
    assert {published.count(partition) for partition in range(4)} == {10}
    sent = []
    with client.producer("in.turn") as producer:
        for _ in range(40):
            producer.send(b"x", on_delivery=lambda receipt, _: sent.append(receipt.partition))
            producer.flush()
    assert {sent.count(partition) for partition in range(4)} == {10}


def test_producers_that_send_little_begin_anywhere(client):
    client.create_topic("anywhere", partitions=4)
    for _ in range(60):
        with client.producer("anywhere") as producer:
            producer.send(b"x")
    assert {message.partition for message in client.read("anywhere")} == {0, 1, 2, 3}


def test_an_explicit_partition_is_kept(client):
    client.create_topic("explicit", partitions=3)
    with client.producer("explicit") as producer:
        producer.send(b"x", key=b"anything", partition=2)
        producer.send_many([b"y"], partition=1)
    assert {(m.value, m.partition) for m in client.read("explicit")} == {(b"x", 2), (b"y", 1)}


def test_headers_and_timestamps_travel_with_their_message(client):
    moment = datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    with client.producer("extras") as producer:
        producer.send("plain")
        producer.send("full", "k", headers={"trace": "1", "empty": None}, timestamp=moment)
    plain, full = client.read("extras")
    assert plain.headers == []
    assert full.headers == [("trace", b"1"), ("empty", None)]
    assert full.timestamp == moment


def test_on_delivery_hears_of_every_message(client):
    receipts = []
    with client.producer("heard") as producer:
        for index in range(100):
            producer.send(b"%d" % index, on_delivery=lambda receipt, error: receipts.append((receipt, error)))
    assert [receipt.offset for receipt, _ in receipts] == list(range(100))
    assert all(error is None for _, error in receipts)


def test_a_callback_that_raises_does_not_stop_the_producer(client):
    def broken(receipt, error):
        raise RuntimeError("no")

    with client.producer("callbacks") as producer:
        producer.send(b"a", on_delivery=broken)
        producer.send(b"b")
    assert values_of(client, "callbacks") == [b"a", b"b"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_read_back_the_same(client, compression):
    sent = [b"the same text again and again %d" % index for index in range(3_000)]
    with client.producer(f"packed.{compression}", compression=compression) as producer:
        producer.send_many(sent)
        producer.send(b"one alone")
    assert values_of(client, f"packed.{compression}") == [*sent, b"one alone"]
    assert client.describe_topic(f"packed.{compression}").partitions[0].bytes < 60_000


def test_send_many_keeps_keys_beside_values(client):
    with client.producer("many") as producer:
        producer.send_many([b"%d" % i for i in range(5_000)], [b"k%d" % i for i in range(5_000)])
        producer.send_many(["text", None], ["k", None])
    found = [(m.key, m.value) for m in client.read("many")]
    assert found[:5_000] == [(b"k%d" % i, b"%d" % i) for i in range(5_000)]
    assert found[5_000:] == [(b"k", b"text"), (None, None)]


def test_send_batch_takes_tables_and_keeps_their_order(client):
    table = pa.table({"value": pa.array([b"%d" % i for i in range(1_000)]), "key": pa.array(["k"] * 1_000)})
    with client.producer("tables") as producer:
        producer.send_batch(table)
    assert values_of(client, "tables") == [b"%d" % i for i in range(1_000)]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_send_batch_cuts_where_a_few_messages_are_large_among_small_ones(client, compression):
    """On average they are small: a batch of so many average ones would be too large."""
    large = bytes(7 << 20)
    values = [large if number in (4001, 4002, 4003, 4004) else b"%d" % number for number in range(9000)]
    with client.producer(f"skewed.{compression}", compression=compression) as producer:
        producer.send_batch(pa.table({"value": values}))
    assert [message.value for message in client.read(f"skewed.{compression}")] == values


@pytest.mark.parametrize(("column", "size"), [("value", limits.MESSAGE_VALUE_BYTES_MAX), ("key", 64 << 10)])
def test_send_batch_refuses_a_message_that_is_too_large_before_anything_is_sent(client, column, size):
    client.create_topic(f"sizes.{column}")
    cells = [b"small"] * 3000
    cells[2500] = bytes(size)
    table = pa.table({"value": [b""] * 3000} | {column: cells})
    cells[2500] = bytes(size + 1)
    too_large = pa.table({"value": [b""] * 3000} | {column: cells})
    with client.producer(f"sizes.{column}") as producer:
        with pytest.raises(LimitExceeded, match=rf"Row 2500 of this batch, counted from 0, has a {column} of more"):
            producer.send_batch(too_large)
        producer.flush()
        assert client.offsets(f"sizes.{column}") == {0: 0}
        producer.send_batch(table)
    assert client.offsets(f"sizes.{column}") == {0: 3000}


def test_send_batch_splits_by_key_like_send(client):
    client.create_topic("tables.keyed", partitions=4)
    table = pa.table({"value": [b"v"] * 100, "key": [b"key-%d" % i for i in range(100)]})
    with client.producer("tables.keyed") as producer:
        producer.send_batch(table)
    assert all(m.partition == zlib.crc32(m.key) % 4 for m in client.read("tables.keyed"))


@pytest.mark.parametrize(
    "data",
    [
        {"wrong": [b"x"]},
        {"value": [1.5]},
        {"value": [b"x"], "surprise": [1]},
        {"value": [b"x"], "timestamp": pa.array([None], pa.timestamp("us", "UTC"))},
    ],
)
def test_a_batch_of_the_wrong_shape_is_refused_in_words(client, data):
    with client.producer("shapes") as producer, pytest.raises(stentor.InvalidArgument):
        producer.send_batch(pa.table(data))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((5,), {}),
        ((b"x", 5), {}),
        ((b"x",), {"headers": {5: b"x"}}),
        ((b"x",), {"headers": ["ab", 3]}),
        ((b"x",), {"timestamp": "yesterday"}),
        ((b"x",), {"timestamp": -1}),
        ((b"x",), {"partition": 9}),
    ],
)
def test_a_wrong_argument_is_refused_in_words(client, arguments, options):
    with client.producer("wrong") as producer, pytest.raises(stentor.InvalidArgument) as error:
        producer.send(*arguments, **options)
    assert str(error.value)


def test_a_value_above_the_limit_is_refused_before_it_is_sent(client):
    with client.producer("large") as producer:
        with pytest.raises(stentor.LimitExceeded):
            producer.send(bytes(9 * 1024 * 1024), headers={"h": b""})
        producer.send(bytes(7 * 1024 * 1024))
        producer.send_many([bytes(3 * 1024 * 1024)] * 4)
    assert [len(v) for v in values_of(client, "large")] == [7 * 1024 * 1024] + [3 * 1024 * 1024] * 4


def test_senders_wait_when_too_much_is_unacknowledged(client):
    with client.producer("budget", buffer_bytes=200_000, batch_bytes=50_000) as producer:
        for _ in range(300):
            producer.send(bytes(10_000))
            assert producer.statistics()["outstanding_bytes"] < 400_000
    assert len(values_of(client, "budget")) == 300


def test_flush_raises_for_what_was_not_acknowledged(client):
    client.create_topic("doomed")
    producer = client.producer("doomed")
    producer.send(b"fine")
    producer.flush()
    client.delete_topic("doomed")
    producer.send(b"lost")
    with pytest.raises(stentor.PublishError) as error:
        producer.flush()
    assert error.value.failed[0].count == 1
    producer.close()


def test_a_closed_producer_says_so(client):
    producer = client.producer("closed")
    producer.close()
    with pytest.raises(stentor.Closed):
        producer.send(b"x", headers={})
    with pytest.raises(stentor.Closed):
        producer.flush()


def test_nothing_is_lost_or_doubled_when_the_broker_restarts_under_a_producer():
    with broker() as local, local.client() as client:
        producer = client.producer("restart", batch_messages=20)
        restarts = iter([2_000, 5_000])
        due = next(restarts)
        for index in range(8_000):
            producer.send(b"%d" % index)
            if index == due:
                local.stop()
                local.start()
                due = next(restarts, None)
        producer.close()
        assert values_of(client, "restart") == [b"%d" % index for index in range(8_000)]


def test_a_producer_gives_up_at_its_deadline_and_says_that_the_outcome_is_unknown():
    with broker() as local, local.client() as client:
        producer = client.producer("silent", timeout=0.5)
        producer.send(b"before")
        producer.flush()
        local.stop()
        producer.send(b"during")
        with pytest.raises(stentor.PublishError):
            producer.flush(timeout=10)
        local.start()
        client.topics()  # waits until the client has found the broker again
        producer.send(b"after")
        producer.flush(timeout=10)
        producer.close()
        assert values_of(client, "silent")[-1] == b"after"


def test_what_was_acknowledged_by_all_is_seen_and_the_rest_is_not(client):
    """No member of a chain may answer with an end below one's own committed publish (C24)."""
    for ack in ("all", "head"):
        receipt = client.publish(f"seen.{ack}", "x", ack=ack)
        topic = client.find_topic(f"seen.{ack}")
        sight = client._core.seen.of(topic.id, receipt.partition)
        assert sight.committed == (receipt.offset + 1 if ack == "all" else 0)
