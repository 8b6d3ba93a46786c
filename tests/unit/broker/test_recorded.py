"""Topics whose retention waits until a recorder has marked what it would delete."""

import pytest

from stentor import Client, limits
from stentor.broker.catalogue import News
from stentor.errors import (
    CoordinationUnavailable,
    DeadlineExceeded,
    DiskFull,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from stentor.ports import Entry
from stentor.storage.directory import CHANGES_FILE
from stentor.testing import broker

MIB = limits.MIB
SEGMENT = limits.SEGMENT_BYTES_MIN
VALUE = b"v" * 20_000


@pytest.fixture
def often(monkeypatch):
    """Retention and marks do not keep a test waiting."""
    monkeypatch.setattr(limits, "RETENTION_CHECK_S", 0.02)
    monkeypatch.setattr(limits, "RECORDED_STORE_S", 0.02)


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


def test_marks_survive_a_crash_once_they_are_stored(served, tmp_path, wait_until):
    process = served().start()
    with Client(process.url) as client:
        client.create_topic("t")
        client.publish("t", "x")
        client.mark_recorded("t", {0: 1})
        stored = tmp_path / "data" / CHANGES_FILE
        wait_until(lambda: b"recorded/" in stored.read_bytes(), "the mark is stored")
        process.kill()
        process.start()
        assert state(client).recorded == 1


def test_a_topic_made_again_starts_at_zero(local, client, wait_until):
    client.create_topic("t")
    client.publish("t", "x")
    client.mark_recorded("t", {0: 1})
    wait_until(lambda: local.inner.parts.ground.catalogue.recorded, "the mark is stored")
    client.delete_topic("t")
    client.create_topic("t")
    assert state(client).recorded == 0
    wait_until(lambda: not local.inner.parts.ground.catalogue.recorded, "nothing is left of it")


def test_an_unclean_recovery_takes_back_what_lies_beyond_its_end(local, client):
    topic = client.create_topic("t")
    fill(client, count=5)
    client.mark_recorded("t", {0: 4})
    key = (topic.id, 0)
    assert local.inner.parts.recorded.cut(key, 4) == {}
    ((name, value),) = local.inner.parts.recorded.cut(key, 3).items()
    local.inner.parts.ground.catalogue.put(Entry(name, value, 10**9), News())
    assert state(client).recorded == 3


def test_a_store_that_does_not_answer_keeps_nobody_waiting_and_has_it_later(local, client, monkeypatch, wait_until):
    client.create_topic("t")
    client.publish("t", "x")
    store = local.inner.parts.ground.store
    swap, failures = store.swap, []

    async def failing(**changes):
        if len(failures) < 3:
            failures.append(changes)
            raise CoordinationUnavailable("The store does not answer.")
        return await swap(**changes)

    monkeypatch.setattr(store, "swap", failing)
    client.mark_recorded("t", {0: 1}, timeout=5)
    assert state(client).recorded == 1
    wait_until(lambda: local.inner.parts.ground.catalogue.recorded, "the mark is stored")
    assert len(failures) == 3


def test_a_full_disk_says_what_is_kept(often, tmpfs, raw, wait_until):
    disk = tmpfs(12)
    with broker(disk / "data", disk_reserve_bytes=MIB, segment_bytes=MIB) as local, local.client() as client:
        topic = client.create_topic("t", retention_bytes=MIB, keep_unrecorded=True)
        link = raw(local.url).greet()
        refusal = fill_up(link, topic.id)
        wait_until(lambda: "not recorded" in fill_up(link, topic.id).hint, "the refusal says why")
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
