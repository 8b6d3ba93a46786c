"""Positions, bounds, order and flow: what a reader gets, and what it costs the broker."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest

from stentor import Last, connect, limits
from stentor.broker.sessions import requests
from stentor.client.places import Places
from stentor.client.reader import Reader
from stentor.errors import DeadlineExceeded, InvalidArgument, OffsetOutOfRange, SlowSubscriber
from stentor.testing import broker

T0 = datetime(2024, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def ten(client):
    """A topic of ten messages, one second apart, in batches of one."""
    for number in range(10):
        client.publish("t", b"%d" % number, timestamp=T0 + number * SECOND)
    return client


def publish_batch(client, topic, values, **options):
    """All of these in one batch."""
    with client.producer(topic) as producer:
        producer.send_many(values, **options)


# --- positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", 0),
        ("latest", 10),
        (0, 0),
        (7, 7),
        (10, 10),
        (Last(3), 7),
        (Last(0), 10),
        (Last(10**9), 0),
        (T0, 0),
        (T0 + 4 * SECOND, 4),
        (T0 + 3.5 * SECOND, 4),
        (T0 - timedelta(days=365), 0),
        (T0 + timedelta(days=365), 10),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (timedelta(hours=-1), 10),
        (timedelta(days=-36500), 0),
        (timedelta(0), 10),
    ],
    ids=str,
)
def test_a_read_starts_where_it_is_told_to(ten, read, start, expected):
    assert read(ten, "t", start=start) == [b"%d" % number for number in range(expected, 10)]
    assert ten.offsets("t", start) == {0: expected}


def test_messages_are_found_by_their_time_one_search_at_a_time(ten, local, monkeypatch):
    """Each may look at a million of them, in a thread: many such threads keep the loop from the interpreter."""
    search, running, another = requests._offset_at, threading.Semaphore(1), threading.Event()

    def watched(*args):
        if not running.acquire(blocking=False):
            another.set()
        another.wait(0.1)  # the others have time to come
        running.release()
        return search(*args)

    monkeypatch.setattr(requests, "_offset_at", watched)
    with connect(local.url) as other, ThreadPoolExecutor(4) as threads:
        found = [threads.submit(each.offsets, "t", T0 + 4 * SECOND) for each in (ten, other, ten, other)]
        assert [each.result() for each in found] == [{0: 4}] * 4
    assert not another.is_set()


@pytest.mark.parametrize(
    ("end", "expected"),
    [("now", 10), ("latest", 10), ("earliest", 0), (3, 3), (0, 0), (10, 10), (T0 + 4 * SECOND, 4), (Last(2), 8)],
    ids=str,
)
def test_a_read_ends_before_the_position_it_is_told(ten, read, end, expected):
    assert read(ten, "t", end=end) == [b"%d" % number for number in range(expected)]


def test_a_subscription_starts_where_it_is_told_and_goes_on_live(ten):
    for start, first in (("earliest", 0), (8, 8), (Last(2), 8), (T0 + 5 * SECOND, 5)):
        with ten.subscribe("t", start=start) as subscription:
            assert subscription.get(timeout=5).value == b"%d" % first
    with ten.subscribe("t") as subscription:
        ten.publish("t", b"live")
        assert subscription.get(timeout=5).value == b"live"


def test_nothing_published_after_subscribing_is_missed(client):
    for number in range(30):
        with client.subscribe("t") as subscription:
            client.publish("t", b"%d" % number)
            assert subscription.get(timeout=5).value == b"%d" % number


@pytest.mark.parametrize("start", range(0, 100, 9))
@pytest.mark.parametrize("length", [0, 1, 17, 50])
def test_reads_may_start_and_end_inside_a_batch(client, read, start, length):
    values = [b"%d" % number for number in range(100)]
    publish_batch(client, "t", values[:40])
    publish_batch(client, "t", values[40:])
    end = min(start + length, 100)
    assert read(client, "t", start=start, end=end) == values[start:end]
    table = client.read("t", start=start, end=end).to_arrow()
    assert table["value"].to_pylist() == values[start:end]
    assert table["offset"].to_pylist() == list(range(start, end))


def test_an_end_that_is_not_there_yet_is_waited_for(client):
    client.publish("t", b"0")
    history = iter(client.read("t", end=3))
    assert next(history).value == b"0"
    for number in (1, 2, 3):
        client.publish("t", b"%d" % number)
    assert [message.value for message in history] == [b"1", b"2"]


def test_a_limit_ends_a_read_early_in_every_form(ten):
    assert [m.value for m in ten.read("t", limit=3)] == [b"0", b"1", b"2"]
    assert ten.read("t", limit=3).to_arrow().num_rows == 3
    assert [m.value for m in ten.read("t", limit=0)] == []


def test_a_read_covers_every_partition_or_the_one_that_is_named(client, read):
    client.create_topic("t", partitions=3)
    for number in range(30):
        client.publish("t", b"%d" % number, partition=number % 3)
    assert sorted(map(int, read(client, "t"))) == list(range(30))
    assert read(client, "t", partition=1) == [b"%d" % number for number in range(1, 30, 3)]
    assert client.offsets("t", Last(4)) == {0: 6, 1: 6, 2: 6}


@pytest.mark.parametrize("start", [11, 1000, 2**62 - 1])
def test_an_offset_beyond_the_end_is_out_of_range_and_says_what_there_is(ten, read, start):
    with pytest.raises(OffsetOutOfRange) as caught:
        read(ten, "t", start=start, end=2**62)
    assert (caught.value.start, caught.value.end) == (0, 10)
    assert "0 to 10" in str(caught.value)
    assert "earliest" in caught.value.hint


# --- times --------------------------------------------------------------------------------------


def test_a_time_finds_the_first_message_that_is_not_older_even_when_times_jump(client):
    times = [5, 3, 9, 1, 9, 4, 12, 2, 12, 0]
    for number in times:
        client.publish("t", b"x", timestamp=T0 + number * SECOND)
    for moment in range(14):
        expected = next((index for index, number in enumerate(times) if number >= moment), len(times))
        assert client.offsets("t", T0 + moment * SECOND) == {0: expected}, moment


@pytest.mark.parametrize("count", [10, 40])
def test_a_time_is_found_inside_a_batch(client, count):
    times = [T0 + (number * 7 % count) * SECOND for number in range(count)]
    rows = pa.table({"value": [b"x"] * count, "timestamp": pa.array(times, pa.timestamp("us", "UTC"))})
    with client.producer("t") as producer:
        producer.send_batch(rows)
    for moment in range(count + 1):
        wanted = T0 + moment * SECOND
        expected = next((index for index, time in enumerate(times) if time >= wanted), count)
        assert client.offsets("t", wanted) == {0: expected}, moment


def test_times_are_found_across_segments(client):
    client.create_topic("t", segment_bytes=limits.SEGMENT_BYTES_MIN)
    for number in range(60):
        client.publish("t", b"x" * 5000, timestamp=T0 + number * SECOND)
    assert client.describe_topic("t").partitions[0].segments > 2
    for moment in (0, 1, 13, 30, 59):
        assert client.offsets("t", T0 + moment * SECOND) == {0: moment}
    assert client.offsets("t", T0 + 60 * SECOND) == {0: 60}


# --- history and live ---------------------------------------------------------------------------


def test_a_reader_far_behind_catches_up_from_disk_and_becomes_live(client, monkeypatch, local):
    client.create_topic("t", segment_bytes=limits.SEGMENT_BYTES_MIN)
    with client.producer("t", batch_bytes=20_000) as producer:
        for number in range(3000):
            producer.send(b"%06d" % number + bytes(4000))
        producer.flush()
        partition = local.inner.parts.serving.partition(client.describe_topic("t").id, 0)
        assert partition.tail.bytes < partition.log.bytes / 2, "most of it is only on disk"
        with client.subscribe("t", start="earliest") as subscription:
            for number in range(3000):
                assert subscription.get(timeout=10).value[:6] == b"%06d" % number
            producer.send(b"live")
            assert subscription.get(timeout=10).value == b"live"


def test_a_thousand_one_message_batches_come_in_order_to_every_subscriber(client, local):
    subscriptions = [client.subscribe("t", start="earliest") for _ in range(5)]
    for number in range(300):
        client.publish("t", b"%d" % number)
    for subscription in subscriptions:
        assert [subscription.get(timeout=5).value for _ in range(300)] == [b"%d" % number for number in range(300)]
        subscription.close()


def test_readers_go_on_after_a_restart_without_gap_or_repeat(local, client):
    with client.subscribe("t", start="earliest") as subscription, local.client() as other:
        for number in range(60):
            other.publish("t", b"%d" % number)
            if number % 20 == 10:
                local.stop()
                local.start()
            assert subscription.get(timeout=15).value == b"%d" % number


def test_a_stopped_reader_does_not_grow_the_broker_and_misses_nothing(client, local, wait_until):
    size, count = 200_000, 150
    with client.subscribe("t", start="earliest") as subscription, local.client() as other:
        with other.producer("t") as producer:
            for number in range(count):
                producer.send(b"%04d" % number + bytes(size))
        partition = local.inner.parts.serving.partition(client.describe_topic("t").id, 0)
        (stream,) = partition.followers.streams
        wait_until(lambda: stream.cursor.credit <= 0, "the credit is used up")
        pushed = stream.cursor.position * size
        assert pushed <= limits.SUBSCRIPTION_CREDIT_BYTES + 2 * limits.DELIVERY_BYTES
        assert partition.tail.bytes <= limits.TAIL_CACHE_BYTES + size
        assert not stream.session.blocked
        for number in range(count):
            assert subscription.get(timeout=10).value[:4] == b"%04d" % number


def test_closing_a_subscription_frees_its_streams(client, local, wait_until):
    client.create_topic("t", partitions=4)
    for _ in range(5):
        with client.subscribe("t"):
            wait_until(lambda: local.inner.statistics().broker.streams == 4)
        wait_until(lambda: local.inner.statistics().broker.streams == 0)


# --- slow subscribers ---------------------------------------------------------------------------


def backlog(client, count, topic="t"):
    for start in range(0, count, 10):
        publish_batch(client, topic, [b"%d" % number for number in range(start, min(start + 10, count))])


def test_a_slow_subscriber_that_wants_to_know_is_told_and_the_alerts_topic_as_well(client):
    alerts = client.subscribe("_alerts")
    backlog(client, 200)
    slow = client.subscribe("t", start="earliest", on_slow="raise", max_lag=100)
    with slow, pytest.raises(SlowSubscriber, match="200 messages behind") as caught:
        slow.get(timeout=5)
    assert "catch_up" in caught.value.hint
    assert b"too slow on t/0" in alerts.get(timeout=5).value
    alerts.close()


def test_a_subscriber_within_its_lag_is_left_alone(client):
    backlog(client, 90)
    with client.subscribe("t", start="earliest", on_slow="raise", max_lag=100) as subscription:
        assert [subscription.get(timeout=5).value for _ in range(90)] == [b"%d" % n for n in range(90)]


def test_lag_can_be_a_time(client):
    client.publish("t", b"old")
    began = datetime.now(UTC)
    while datetime.now(UTC) - began < timedelta(milliseconds=60):
        client.publish("other", b"x")
    slow = client.subscribe("t", start="earliest", on_slow="raise", max_lag=timedelta(milliseconds=50))
    with slow, pytest.raises(SlowSubscriber):
        slow.get(timeout=5)
    with client.subscribe("t", start="earliest", on_slow="raise", max_lag=timedelta(hours=1)) as subscription:
        assert subscription.get(timeout=5).value == b"old"


def test_lag_can_be_both_a_time_and_a_number(client):
    backlog(client, 200)
    both = (100, timedelta(hours=1))
    slow = client.subscribe("t", start="earliest", on_slow="raise", max_lag=both)
    with slow, pytest.raises(SlowSubscriber, match="max_lag is 100 messages or 3600 s"):
        slow.get(timeout=5)
    began = datetime.now(UTC)
    while datetime.now(UTC) - began < timedelta(milliseconds=60):
        client.publish("other", b"x")
    slow = client.subscribe("t", start="earliest", on_slow="raise", max_lag=(1000, timedelta(milliseconds=50)))
    with slow, pytest.raises(SlowSubscriber):
        slow.get(timeout=5)
    for wrong in ((1,), (1, 2), (timedelta(1), 1), "10", True):
        with pytest.raises(InvalidArgument, match="max_lag"):
            client.subscribe("t", on_slow="raise", max_lag=wrong)


def test_a_snail_is_noticed_while_it_is_at_one_delivery(client, wait_until):
    """Its handler is slow, and much is at hand: it gets no more of that."""
    with client.subscribe("t", start="earliest", on_slow="raise", max_lag=150) as slow:
        backlog(client, 100)
        assert slow.get(timeout=5).offset == 0
        backlog(client, 100)
        wait_until(lambda: client.topics("_alerts") and client.describe_topic("_alerts").partitions[0].committed)
        with pytest.raises(SlowSubscriber):
            [slow.get(timeout=5) for _ in range(150)]
    (alert,) = client.read("_alerts")
    assert b"max_lag=150 messages; it gives up" in alert.value
    assert client.describe_topic("_alerts").settings.retention_bytes == 64 * limits.MIB


def test_a_subscriber_that_skips_says_exactly_what_it_did_not_get(client):
    backlog(client, 50)
    with client.subscribe("t", start="earliest", on_slow="skip", max_lag=100) as subscription:
        received = [subscription.get(timeout=5).offset]
        for start in range(50, 1000, 10):
            publish_batch(client, "t", [b"%d" % number for number in range(start, start + 10)])
        client.publish("t", b"mark")
        while True:
            try:
                message = subscription.get(timeout=0.5)
            except DeadlineExceeded:
                break
            received.append(message.offset)
        for number in range(3):
            assert client.publish("t", b"after").offset == 1001 + number
            received.append(subscription.get(timeout=5).offset)
        skipped = [(e.first_offset, e.next_offset) for e in subscription.events() if e.kind == "skipped"]
        assert skipped, "it was more than max_lag behind"
        covered = sorted([*received, *(offset for first, end in skipped for offset in range(first, end))])
        assert covered == list(range(1004)), "every offset was delivered or reported, and none twice"
        assert subscription.statistics()["skipped"] == sum(end - first for first, end in skipped)


def test_a_subscriber_that_disconnects_when_slow_just_ends(client):
    backlog(client, 200)
    assert list(client.subscribe("t", start="earliest", on_slow="disconnect", max_lag=100)) == []


def test_a_subscriber_that_catches_up_gets_everything_however_late(client):
    backlog(client, 300)
    with client.subscribe("t", start="earliest", max_lag=10) as subscription:
        assert [subscription.get(timeout=5).offset for _ in range(300)] == list(range(300))


# --- retention ----------------------------------------------------------------------------------


@pytest.fixture
def tidy(monkeypatch):
    """A broker that looks for expired segments often."""
    monkeypatch.setattr(limits, "RETENTION_CHECK_S", 0.1)
    with broker(segment_bytes=limits.SEGMENT_BYTES_MIN) as local, local.client() as connected:
        yield connected


def fill(client, kilobytes, topic="t"):
    for number in range(kilobytes // 10):
        client.publish(topic, b"%05d" % number + bytes(10_000))


def start_of(client, topic="t"):
    return client.describe_topic(topic).partitions[0].start


def test_retention_by_size_removes_old_segments_and_keeps_the_newest(tidy, wait_until, read):
    tidy.create_topic("t", retention_bytes=150_000)
    fill(tidy, 600)
    wait_until(lambda: start_of(tidy) > 0, "old segments are gone")
    wait_until(lambda: tidy.describe_topic("t").partitions[0].bytes < 400_000)
    first = start_of(tidy)
    values = read(tidy, "t")
    assert values[-1][:5] == b"00059"
    assert sum(map(len, values)) >= 150_000
    assert values[0][:5] >= b"%05d" % first  # it goes on beside the read


@pytest.mark.parametrize("end", [None, "now"])
def test_a_read_from_the_earliest_begins_where_retention_is_by_then_and_says_so(tidy, wait_until, monkeypatch, end):
    """Retention passes between the question where the log begins and the stream: nobody was given that place."""
    tidy.create_topic("t", retention_bytes=150_000)
    fill(tidy, 600)
    wait_until(lambda: start_of(tidy) > 0, "old segments are gone")
    resolve = Places.resolve

    async def a_moment_ago(places, reader, position, *given, **options):
        found = await resolve(places, reader, position, *given, **options)
        return msgspec.structs.replace(found, offset=0) if position == "earliest" else found

    monkeypatch.setattr(Places, "resolve", a_moment_ago)
    with tidy.subscribe("t", start="earliest", end=end) as subscription:
        first = subscription.get(timeout=10)
        (event,) = subscription.events()
    assert first.offset > 0
    assert (event.kind, event.first_offset, event.next_offset) == ("skipped", 0, first.offset)
    with pytest.raises(OffsetOutOfRange):
        tidy.subscribe("t", start={0: 1}, end=end).get(timeout=10)


def test_retention_by_age_removes_what_is_too_old_also_when_nothing_new_comes(tidy, wait_until, read):
    tidy.create_topic("t", retention_age_s=1)
    fill(tidy, 300)
    wait_until(lambda: start_of(tidy) == 30, "everything has expired")
    assert read(tidy, "t") == []
    assert tidy.publish("t", b"new").offset == 30


def test_who_reads_below_the_start_is_told_where_it_can_go_on(tidy, wait_until, read):
    tidy.create_topic("t", retention_bytes=100_000)
    fill(tidy, 500)
    wait_until(lambda: start_of(tidy) > 0)
    with pytest.raises(OffsetOutOfRange) as caught:
        read(tidy, "t", start=0)
    assert caught.value.start > 0
    assert "earliest" in caught.value.hint
    assert read(tidy, "t", start=caught.value.start)[0][:5] == b"%05d" % caught.value.start
    assert tidy.offsets("t", "earliest")[0] >= caught.value.start
    # Retention may delete something between two questions.
    wait_until(lambda: tidy.offsets("t", datetime(2000, 1, 1, tzinfo=UTC)) == tidy.offsets("t", "earliest"))


def test_a_subscriber_overtaken_by_retention_is_told_not_silently_moved(tidy, wait_until):
    """There is more than its credit and what the broker keeps in memory: it must be read from where it was deleted."""
    tidy.create_topic("t")
    fill(tidy, 20_000)
    with tidy.subscribe("t", start="earliest") as subscription:
        assert subscription.get(timeout=5).offset == 0
        tidy.alter_topic("t", retention_bytes=100_000)
        wait_until(lambda: start_of(tidy) > 1900, "retention has overtaken it")
        offsets = [0]
        with pytest.raises(OffsetOutOfRange) as caught:
            offsets.extend(message.offset for message in subscription)
        assert offsets == list(range(len(offsets))), "no gap before the news"
        assert caught.value.start > offsets[-1] + 1


def test_retention_can_be_changed_while_running(tidy, wait_until):
    fill(tidy, 300)
    assert start_of(tidy) == 0
    tidy.alter_topic("t", retention_bytes=0)
    wait_until(lambda: start_of(tidy) > 10)
    kept = start_of(tidy)
    tidy.alter_topic("t", retention_bytes=None)
    fill(tidy, 200)
    assert start_of(tidy) >= kept
    assert tidy.describe_topic("t").partitions[0].committed == 50


def test_history_comes_in_large_pushes_to_who_has_the_connection_to_itself(tmp_path, monkeypatch):
    sizes = []
    delivered = Reader.delivered
    monkeypatch.setattr(Reader, "delivered", lambda self, body: (sizes.append(len(body)), delivered(self, body)))
    with broker(tmp_path) as local, local.client() as client, client.producer("t") as producer:
        for number in range(6_000):
            producer.send(b"%04d" % number + bytes(1_000))
    with broker(tmp_path) as local, local.client() as client:
        alone = [message.value[:4] for message in client.read("t")]
        largest_alone, sizes[:] = max(sizes), []
        with client.subscribe("t"):
            beside = [message.value[:4] for message in client.read("t")]
    assert alone == beside == [b"%04d" % number for number in range(6_000)]
    assert limits.DELIVERY_BYTES < largest_alone <= limits.HISTORY_BYTES + limits.PRODUCER_BATCH_BYTES
    assert max(sizes) <= limits.DELIVERY_BYTES + limits.PRODUCER_BATCH_BYTES


def test_history_of_several_partitions_comes_in_large_pushes_unless_somebody_waits_for_news(tmp_path, monkeypatch):
    sizes = []
    delivered = Reader.delivered
    monkeypatch.setattr(Reader, "delivered", lambda self, body: (sizes.append(len(body)), delivered(self, body)))
    with broker(tmp_path) as local, local.client() as client:
        client.create_topic("t", partitions=3)
        with client.producer("t") as producer:
            for number in range(15_000):
                producer.send(b"%05d" % number + bytes(1_000), partition=number % 3)
    with broker(tmp_path) as local, local.client() as client:
        bounded = {message.value[:5] for message in client.read("t")}
        bounded_sizes, sizes[:] = sizes[:], []
        with client.subscribe("t"):
            beside = {message.value[:5] for message in client.read("t")}
    assert bounded == beside == {b"%05d" % number for number in range(15_000)}
    large = [size for size in bounded_sizes if size > limits.DELIVERY_BYTES + limits.PRODUCER_BATCH_BYTES]
    assert len(large) >= len(bounded_sizes) // 2
    assert max(large) <= limits.HISTORY_BYTES + limits.PRODUCER_BATCH_BYTES
    assert max(sizes) <= limits.DELIVERY_BYTES + limits.PRODUCER_BATCH_BYTES
