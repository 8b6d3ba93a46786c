"""Topics whose retention waits until a recorder has marked what it would delete."""

import pytest

from stentor import Client, limits
from stentor.broker.cursors.heads import cursors_of
from stentor.errors import (
    DeadlineExceeded,
    DiskFull,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from stentor.testing import broker

MIB = limits.MIB
SEGMENT = limits.SEGMENT_BYTES_MIN
VALUE = b"v" * 20_000


@pytest.fixture
def often(monkeypatch):
    """Retention and marks do not keep a test waiting."""
    monkeypatch.setattr(limits, "RETENTION_CHECK_S", 0.02)
    monkeypatch.setattr(limits, "CURSOR_CHECK_S", 0.02)


@pytest.fixture
def local(often):
    with broker(segment_bytes=SEGMENT) as started:
        yield started


def fill(client, topic="t", count=20):
    """Several segments."""
    with client.producer(topic, batch_messages=1) as producer:
        for _ in range(count):
            producer.send(VALUE)


def state(client, topic="t", partition=0):
    return client.describe_topic(topic).partitions[partition]


def retained(local):
    """Retention has been there since now: two rounds, as one may be under way."""
    letting_go = local.inner.parts.letting_go
    for _ in range(2):
        letting_go.retain()


def test_what_is_not_recorded_stays_whatever_retention_says(local, client, wait_until):
    client.create_topic("t", retention_bytes=0, keep_unrecorded=True)
    fill(client)
    retained(local)
    assert state(client).start == 0
    wait_until(lambda: state(client).kept_unrecorded > 0, "it is said how much is kept")
    kept = state(client).kept_unrecorded
    assert kept >= 15
    client.mark_recorded("t", {0: 10})
    wait_until(lambda: state(client).start > 0, "what is recorded goes")
    assert state(client).start <= 10
    assert state(client).recorded == 10
    wait_until(lambda: state(client).kept_unrecorded == kept - 10, "only what is not recorded is kept")
    client.mark_recorded("t", {0: 20})
    wait_until(lambda: state(client).kept_unrecorded == 0, "nothing is kept any more")
    assert state(client).start >= 15


def test_age_waits_as_size_does(local, client, wait_until):
    client.create_topic("t", retention_age_s=1, keep_unrecorded=True)
    fill(client)
    wait_until(lambda: state(client).kept_unrecorded == 20, "all of it is too old")
    assert state(client).start == 0
    client.mark_recorded("t", {0: 20})
    wait_until(lambda: state(client).start == 20, "all of it goes")


def test_without_the_setting_nothing_waits(local, client, wait_until):
    client.create_topic("t", retention_bytes=0)
    fill(client)
    wait_until(lambda: state(client).start > 10, "retention deletes")


def test_a_topic_that_no_longer_waits_lets_go(local, client, wait_until):
    client.create_topic("t", retention_bytes=0, keep_unrecorded=True)
    fill(client)
    retained(local)
    assert state(client).start == 0
    client.alter_topic("t", keep_unrecorded=False)
    wait_until(lambda: state(client).start > 10, "retention deletes")
    wait_until(lambda: state(client).kept_unrecorded == 0, "nothing is kept any more")


def test_a_mark_only_moves_forward(client):
    client.create_topic("t")
    fill(client, count=5)
    client.mark_recorded("t", {0: 4})
    client.mark_recorded("t", {0: 2})
    assert state(client).recorded == 4


def test_a_mark_above_the_end_is_refused_and_marks_nothing(client):
    client.create_topic("t", partitions=2)
    client.publish("t", "x", partition=0)
    with pytest.raises(OffsetOutOfRange) as refusal:
        client.mark_recorded("t", {0: 1, 1: 1})
    assert refusal.value.detail["end"] == 0
    assert [partition.recorded for partition in client.describe_topic("t").partitions] == [0, 0]


def test_a_mark_of_what_is_not_known_to_be_committed_yet_waits_for_it(local, client, monkeypatch):
    client.create_topic("t")
    client.publish("t", "x")
    (partition,) = local.inner.partitions.values()
    monkeypatch.setattr(partition.replica, "committed", 0)
    with pytest.raises(DeadlineExceeded):
        client.mark_recorded("t", {0: 1}, timeout=0.5)
    monkeypatch.undo()
    client.mark_recorded("t", {0: 1})
    assert state(client).recorded == 1


def test_what_is_not_there_cannot_be_marked(client):
    with pytest.raises(TopicNotFound):
        client.mark_recorded("nowhere", {0: 0})
    assert [topic.name for topic in client.topics()] == [], "marking makes no topic"
    client.create_topic("t")
    with pytest.raises(PartitionNotFound):
        client.mark_recorded("t", {1: 0})
    for wrong in ({0: -1}, {0: None}, {"a": 1}):
        with pytest.raises(InvalidArgument, match="count from 0"):
            client.mark_recorded("t", wrong)


def test_marks_survive_a_restart(local, client):
    client.create_topic("t")
    fill(client, count=5)
    client.mark_recorded("t", {0: 4})
    local.stop()
    local.start()
    assert state(client).recorded == 4
    client.mark_recorded("t", {0: 5})
    assert state(client).recorded == 5


def test_marks_survive_a_crash(served):
    process = served().start()
    with Client(process.url) as client:
        client.create_topic("t")
        client.publish("t", "x")
        client.mark_recorded("t", {0: 1})
        process.kill()
        process.start()
        assert state(client).recorded == 1


def test_a_topic_made_again_starts_at_zero(local, client, wait_until):
    client.create_topic("t")
    client.publish("t", "x")
    client.mark_recorded("t", {0: 1})
    client.delete_topic("t")
    client.create_topic("t")
    assert state(client).recorded == 0
    assert client.cursors("t") == []
    led = local.inner.parts.cursor_care._heads.led
    wait_until(lambda: not any(cursors_of(partition).topics() for partition in led()), "nothing is left of it")


def test_a_recorder_is_a_cursor(client):
    client.create_topic("t")
    fill(client, count=5)
    client.mark_recorded("t", {0: 4})
    (cursor,) = client.cursors("t")
    assert (cursor.name, cursor.positions, cursor.lag) == ("recorder", {0: 4}, {0: 1})
    client.move_cursor("t", "recorder", {0: 5})
    assert state(client).recorded == 5


def test_a_full_disk_says_what_is_kept(often, tmpfs, raw, wait_until):
    disk = tmpfs(12)
    with broker(disk / "data", disk_reserve_bytes=MIB, segment_bytes=MIB) as local, local.client() as client:
        topic = client.create_topic("t", retention_bytes=MIB, keep_unrecorded=True)
        link = raw(local.url).greet()
        refusal = fill_up(link, topic.id)
        wait_until(lambda: "wait for the cursor recorder" in fill_up(link, topic.id).hint, "the refusal says why")
        assert refusal.retriable
        client.mark_recorded("t", {0: state(client).committed})
        wait_until(lambda: is_taken(link, topic.id), "there is room again")


def is_taken(link, topic_id):
    try:
        link.published(link.publish(topic_id, [VALUE]))
    except DiskFull:
        return False
    return True


def fill_up(link, topic_id):
    """Publish until the disk says no, and what it said."""
    while True:
        try:
            link.published(link.publish(topic_id, [VALUE]))
        except DiskFull as error:
            return error
