"""Memory topics: everything that a topic does, nothing on disk, and a clear word when they were lost."""

import pytest

from stentor import Client
from stentor.core.memory_limits import MEMORY_TOPIC_BYTES, MEMORY_TOPIC_BYTES_MAX, OFFSETS_RESERVED
from stentor.core.replica_events import LinkAgain
from stentor.errors import DeadlineExceeded, InvalidArgument, OffsetOutOfRange, PublishError, UnknownOutcome
from stentor.limits import KIB, MIB
from stentor.testing import broker


def files(directory):
    """What is on disk, beside the probe of its health."""
    return {
        str(path.relative_to(directory)): path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".disk-probe"
    }


def publish_many(client, topic, count, *, first=0, size=0):
    with client.producer(topic) as producer:
        for number in range(first, first + count):
            producer.send(b"%d" % number + bytes(size))


def test_messages_flow_and_leave_nothing_on_disk(local, client, read):
    made = client.create_topic("telemetry", durability="memory", partitions=2)
    assert (made.settings.durability, made.settings.replicas) == ("memory", 1)
    assert made.settings.retention_bytes == MEMORY_TOPIC_BYTES
    client.publish("telemetry", b"first", key=b"a")  # the epochs are stored by now
    before = files(local.data_directory)
    publish_many(client, "telemetry", 20_000)
    assert len(read(client, "telemetry")) == 20_001
    local.inner.parts.books.store_now()
    assert files(local.data_directory) == before
    assert not any(name.endswith(".log") or "partitions/" in name for name in before)


def test_a_group_and_a_pattern_read_it(client):
    client.create_topic("telemetry.a", durability="memory")
    publish_many(client, "telemetry.a", 100)
    with client.group("watchers", "telemetry.*") as group:
        messages = iter(group)
        assert [next(messages).value for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_memory_stays_bounded_and_an_overtaken_reader_is_told(local, client):
    client.create_topic("telemetry", durability="memory", retention_bytes=1 * MIB)
    publish_many(client, "telemetry", 10)
    (partition,) = local.inner.partitions.values()
    with client.subscribe("telemetry", start="earliest") as slow:
        messages = iter(slow)
        assert next(messages).value == b"0"
        for first in range(0, 1_600, 100):  # a hundred times the ring
            publish_many(client, "telemetry", 100, first=first, size=64 * KIB)
            assert partition.log.bytes <= 2 * MIB
        assert partition.replica.start == partition.log.start > 10
        with pytest.raises(OffsetOutOfRange) as error:
            list(messages)
    assert error.value.start > 10
    assert "begun_anew" not in error.value.detail


def test_after_a_restart_it_is_there_and_empty_and_no_offset_comes_twice(local, client, read):
    client.create_topic("telemetry", durability="memory")
    publish_many(client, "telemetry", 500)
    subscription = client.subscribe("telemetry", start="earliest")
    messages = iter(subscription)
    with client.producer("telemetry") as producer:
        producer.send(b"known before")
        producer.flush()
        seen = [next(messages).offset for _ in range(501)]
        for life in (1, 2):
            local.stop()
            local.start()
            assert read(client, "telemetry") == []
            producer.send(b"life %d" % life)  # nothing was under way: it goes on by itself
            producer.flush()
            assert read(client, "telemetry") == [b"life %d" % life]
            (info,) = client.describe_topic("telemetry").partitions
            assert (info.start, info.end) == (life * OFFSETS_RESERVED, life * OFFSETS_RESERVED + 1)
            seen.append(next(messages).offset)
    assert seen == [*range(501), OFFSETS_RESERVED, 2 * OFFSETS_RESERVED]
    events = [event for event in subscription.events() if event.kind == "skipped"]
    assert (events[0].first_offset, events[0].next_offset) == (501, OFFSETS_RESERVED)
    assert all(event.unknown for event in events)  # offsets say nothing of how many messages are missing
    assert subscription.statistics()["skipped"] == 0
    with pytest.raises(OffsetOutOfRange):
        list(client.read("telemetry", start=100))


def test_what_was_lost_is_not_counted_by_a_reader_that_skips(local, client, wait_until):
    """A slow reader jumps to now: what lies before the new beginning was lost, and nobody knows how much that was."""
    client.create_topic("telemetry", durability="memory")
    client.publish("telemetry", b"0")
    with client.subscribe("telemetry", start="earliest", max_lag=5, on_slow="skip") as subscription:
        assert subscription.get(timeout=10).value == b"0"
        local.stop()
        local.start()
        publish_many(client, "telemetry", 100)

        def came():  # a last one may be jumped over, too
            client.publish("telemetry", b"last")
            try:
                return subscription.get(timeout=0.5).value == b"last"
            except DeadlineExceeded:
                return False

        wait_until(came, "it goes on")
        events = [event for event in subscription.events() if event.kind == "skipped"]
        known = [event for event in events if not event.unknown]
        assert len(known) < len(events)
        assert sum(event.next_offset - event.first_offset for event in known) < 1_000
        assert subscription.statistics()["skipped"] < 1_000


def test_a_member_that_comes_later_does_not_count_what_was_lost(local, client):
    client.create_topic("telemetry", durability="memory")
    client.publish("telemetry", b"0")
    with client.group("readers", "telemetry", start="earliest") as group:
        assert next(iter(group)).value == b"0"
    local.stop()
    local.start()
    client.publish("telemetry", b"1")
    with client.group("readers", "telemetry") as group:
        assert next(iter(group)).value == b"1"
        (event,) = [event for event in group.events() if event.kind == "skipped"]
        assert event.unknown
        assert client.describe_group("readers").lag <= 1


def test_a_killed_broker_comes_back_with_an_empty_topic(served, read):
    process = served().start()
    with Client(process.url, timeout=30) as client:
        client.create_topic("telemetry", durability="memory")
        client.create_topic("kept")
        for topic in ("telemetry", "kept"):
            client.publish(topic, b"before")
        process.kill()
        process.start()
        assert (read(client, "telemetry"), read(client, "kept")) == ([], [b"before"])
        client.publish("telemetry", b"after")
        assert [message.offset for message in client.read("telemetry")] == [OFFSETS_RESERVED]


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "table"},
        {"kind": "queue"},
        {"cleanup": "compact"},
        {"cleanup": "compact,delete"},
        {"keep_unrecorded": True},
        {"retention_waits_for": "archive"},
        {"flush": "interval"},
        {"retention_bytes": None},
        {"retention_bytes": MEMORY_TOPIC_BYTES_MAX + 1},
    ],
)
def test_what_must_not_be_lost_is_not_kept_in_memory(client, settings):
    with pytest.raises(InvalidArgument, match="memory"):
        client.create_topic("telemetry", durability="memory", **settings)
    assert client.topics("telemetry") == []


def test_the_durability_of_a_topic_stays_and_its_retention_may_change(local, client):
    client.create_topic("telemetry", durability="memory")
    client.create_topic("kept")
    for topic, other in (("telemetry", "disk"), ("kept", "memory")):
        with pytest.raises(InvalidArgument, match="durability"):
            client.alter_topic(topic, durability=other)
    with pytest.raises(InvalidArgument, match="retention"):
        client.alter_topic("telemetry", retention_bytes=MEMORY_TOPIC_BYTES_MAX + 1)
    assert client.alter_topic("telemetry", retention_bytes=MIB).settings.retention_bytes == MIB
    client.delete_topic("telemetry")
    client.create_topic("telemetry", durability="memory")
    client.publish("telemetry", b"again")
    assert local.inner.statistics().broker.memory_log_bytes > 0


def test_a_broker_that_keeps_much_on_disk_makes_memory_topics_that_keep_little():
    with broker(retention_bytes=10**12, flush="interval") as local, local.client() as client:
        settings = client.create_topic("telemetry", durability="memory").settings
        assert (settings.retention_bytes, settings.flush) == (MEMORY_TOPIC_BYTES, "always")


def test_a_batch_that_may_have_been_seen_before_the_loss_is_not_written_again(local, client):
    """Its very first batch: a broker that remembers nothing would take it for a new one."""
    client.create_topic("telemetry", durability="memory")
    producer = client.producer("telemetry")
    (partition,) = local.inner.partitions.values()
    partition.replica._acks.add = lambda *_: None  # it is never answered
    producer.send(b"once")
    with client.subscribe("telemetry", start="earliest") as subscription:
        assert next(iter(subscription)).value == b"once"
    local.stop()
    local.start()
    with pytest.raises(PublishError) as error:
        producer.flush(timeout=20)
    assert isinstance(error.value.failed[0].error, UnknownOutcome)
    client.publish("telemetry", b"next")
    assert [message.value for message in client.read("telemetry")] == [b"next"]


def test_a_joiner_that_the_ring_overtakes_begins_where_the_log_begins_now(local, client):
    client.create_topic("telemetry", durability="memory")
    (partition,) = local.inner.partitions.values()
    stepped = []
    partition.step = stepped.append
    partition.feed_failed(OffsetOutOfRange("Offset 5 is before the start.", start=9, end=12))
    assert stepped == [LinkAgain()]
    del partition.step
