"""Named cursors, as clients use them on one broker."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from stentor import limits
from stentor.broker.cursors.heads import cursors_of
from stentor.core.cursors import partition_of
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import (
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
    TopicReserved,
)
from stentor.testing import broker


@pytest.fixture
def filled(client):
    """A topic with two partitions, and ten messages in each."""
    client.create_topic("t", partitions=2)
    with client.producer("t") as producer:
        for partition in (0, 1):
            for number in range(10):
                producer.send(f"{number}", partition=partition)
    return client


def positions(client, topic="t"):
    return {cursor.name: cursor.positions for cursor in client.cursors(topic)}


def test_a_topic_begins_without_cursors(filled):
    assert filled.cursors("t") == []
    assert filled.topics("_stentor.>") == [], "the internal topic is made when it is needed"


def test_a_cursor_says_where_it_is_and_who_moved_it(filled):
    before = datetime.now(UTC) - timedelta(seconds=1)
    filled.move_cursor("t", "billing", {0: 4})
    (cursor,) = filled.cursors("t")
    assert (cursor.name, cursor.positions, cursor.lag) == ("billing", {0: 4}, {0: 6, 1: 10})
    assert cursor.moved_by == filled.name
    assert before <= cursor.moved_at <= datetime.now(UTC)


def test_each_cursor_moves_by_itself(filled):
    filled.create_topic("u")
    filled.publish("u", "x")
    for name in "abcdefghij":
        filled.move_cursor("t", name, {0: ord(name) - 96, 1: 1})
    filled.move_cursor("u", "a", {0: 0})
    assert positions(filled) == {name: {0: ord(name) - 96, 1: 1} for name in "abcdefghij"}
    assert positions(filled, "u") == {"a": {0: 0}}


def test_a_cursor_goes_back_only_when_asked_to(filled):
    filled.move_cursor("t", "a", {0: 5, 1: 5})
    filled.move_cursor("t", "a", {0: 3, 1: 7})
    assert positions(filled) == {"a": {0: 5, 1: 7}}
    filled.move_cursor("t", "a", {0: 3}, back=True)
    assert positions(filled) == {"a": {0: 3, 1: 7}}


def test_a_move_to_where_the_cursor_is_writes_nothing(filled, local):
    filled.move_cursor("t", "a", {0: 5})
    log = internal(local)
    filled.move_cursor("t", "a", {0: 5})
    filled.move_cursor("t", "a", {0: 4})
    assert internal(local) == log == 1


def internal(local):
    """How many records the internal topic has."""
    return sum(partition.log.end for partition in local.inner.partitions.values() if partition.topic == CURSORS_TOPIC)


def test_a_cursor_can_be_deleted(filled):
    filled.delete_cursor("t", "nobody")
    filled.move_cursor("t", "a", {0: 5})
    filled.move_cursor("t", "b", {0: 5})
    filled.delete_cursor("t", "a")
    assert positions(filled) == {"b": {0: 5}}
    filled.move_cursor("t", "a", {0: 2})
    assert positions(filled) == {"a": {0: 2}, "b": {0: 5}}


def test_cursors_survive_a_restart(filled, local):
    filled.move_cursor("t", "a", {0: 5})
    local.stop()
    local.start()
    assert positions(filled) == {"a": {0: 5}}


def test_cursors_survive_when_most_of_their_log_is_gone(filled, local, monkeypatch, wait_until):
    """Snapshots at the starts of segments carry them."""
    filled.move_cursor("t", "kept", {0: 1})
    topic = local.inner.parts.ground.catalogue.get(CURSORS_TOPIC)
    mine = [p for p in local.inner.partitions.values() if p.topic == CURSORS_TOPIC and p.log.end]
    (partition,) = mine
    small = limits.SEGMENT_BYTES_MIN
    partition.log.settings = type(partition.log.settings)(segment_bytes=small, retention_bytes=0)
    moves = 0
    while partition.log.start == 0:
        filled.move_cursor("t", "kept", {0: 1 + moves % 9}, back=True)
        moves += 1
        assert moves < 5_000
        partition.log.retain(time.time_ns() // 1000, committed=partition.committed)
    assert topic.record.settings.retention_bytes == limits.CURSOR_RETENTION_BYTES
    there = positions(filled)
    local.stop()
    local.start()
    assert positions(filled) == there != {}


def test_what_is_not_there_cannot_be_moved(filled):
    with pytest.raises(TopicNotFound):
        filled.move_cursor("nowhere", "a", {0: 0})
    with pytest.raises(TopicNotFound):
        filled.cursors("nowhere")
    with pytest.raises(TopicNotFound):
        filled.delete_cursor("nowhere", "a")
    with pytest.raises(PartitionNotFound):
        filled.move_cursor("t", "a", {2: 0})
    with pytest.raises(OffsetOutOfRange) as refusal:
        filled.move_cursor("t", "a", {0: 5, 1: 11})
    assert refusal.value.detail["end"] == 10
    assert positions(filled) == {}


@pytest.mark.parametrize("name", ["", "two words", "a" * 201, "a..b", "a/b"])
def test_a_cursor_has_a_name_that_can_be_typed(filled, name):
    with pytest.raises(InvalidArgument, match="name of a cursor"):
        filled.move_cursor("t", name, {0: 0})


def test_positions_are_numbers(filled):
    for wrong in ({0: -1}, {0: None}, {"a": 1}):
        with pytest.raises(InvalidArgument, match="count from 0"):
            filled.move_cursor("t", "a", wrong)


def test_a_move_of_what_is_not_known_to_be_committed_yet_waits_for_it(filled, local, monkeypatch):
    partition = next(p for p in local.inner.partitions.values() if p.name == "t/0")
    monkeypatch.setattr(partition.replica, "committed", 0)
    with pytest.raises(DeadlineExceeded, match="is committed up to"):
        filled.move_cursor("t", "a", {0: 1}, timeout=0.5)
    monkeypatch.undo()
    filled.move_cursor("t", "a", {0: 1})
    assert positions(filled) == {"a": {0: 1}}


def test_there_is_room_for_so_many_cursors(filled, monkeypatch):
    monkeypatch.setattr(limits, "CURSOR_SIZE_MAX", 3)
    filled.move_cursor("t", "a", {0: 1, 1: 1})
    filled.move_cursor("t", "a", {0: 2, 1: 2})
    filled.create_topic("u")
    with pytest.raises(LimitExceeded, match="limit is 3"):
        filled.move_cursor("u", "a", {0: 0})


def test_whoever_moves_cursors_leaves_room_for_what_members_of_groups_commit(filled, monkeypatch):
    monkeypatch.setattr(limits, "CURSOR_SIZE_MAX", 3)
    names = (f"cursor-{number}" for number in range(1_000))
    beside = [name for name in names if partition_of(name, 8) == partition_of("billing", 8)]
    filled.move_cursor("t", beside[0], {0: 1, 1: 1})
    with pytest.raises(LimitExceeded, match="limit is 3"):
        filled.move_cursor("t", beside[1], {0: 1})
    with filled.group("billing", "t") as group:
        assert group.get(timeout=10)
    assert positions(filled)["billing"]
    monkeypatch.setattr(limits, "CURSOR_SIZE_MAX", 1)
    filled.move_cursor("t", beside[0], {0: 2, 1: 2})
    assert positions(filled)[beside[0]] == {0: 2, 1: 2}, "it takes no more room than before"


def test_clients_neither_change_nor_read_what_is_the_brokers_own(filled):
    with pytest.raises(TopicReserved):
        filled.create_topic(CURSORS_TOPIC)
    filled.move_cursor("t", "a", {0: 5})
    assert [topic.name for topic in filled.topics("_stentor.>")] == [CURSORS_TOPIC]
    for forbidden in (
        lambda: filled.publish(CURSORS_TOPIC, "x"),
        lambda: filled.alter_topic(CURSORS_TOPIC, retention_bytes=0),
        lambda: filled.delete_topic(CURSORS_TOPIC),
        lambda: filled.create_topic("_stentor.mine"),
        lambda: filled.move_cursor(CURSORS_TOPIC, "a", {0: 0}),
        lambda: list(filled.read(CURSORS_TOPIC)),
        lambda: next(iter(filled.subscribe(CURSORS_TOPIC, start="earliest"))),
    ):
        with pytest.raises(TopicReserved):
            forbidden()
    assert [cursor.positions for cursor in filled.cursors("t")] == [{0: 5}]
    filled.create_topic("_spark.mine")


def test_the_internal_topic_is_small(filled):
    filled.move_cursor("t", "a", {0: 5})
    topic = filled.describe_topic(CURSORS_TOPIC)
    assert len(topic.partitions) == limits.CURSOR_PARTITIONS
    assert topic.settings.segment_bytes == limits.CURSOR_SEGMENT_BYTES
    assert topic.settings.retention_bytes == limits.CURSOR_RETENTION_BYTES


def test_all_partitions_of_the_internal_topic_are_asked(filled, local):
    names = [f"cursor-{number}" for number in range(30)]
    for name in names:
        filled.move_cursor("t", name, {0: 1})
    used = [p for p in local.inner.partitions.values() if p.topic == CURSORS_TOPIC and cursors_of(p).topics()]
    assert len(used) > 4
    assert [cursor.name for cursor in filled.cursors("t")] == sorted(names)


def test_the_internal_topic_grows_with_the_cluster(etcd, tmp_path, monkeypatch, wait_until):
    monkeypatch.setattr(limits, "CURSOR_CHECK_S", 0.05)
    settings = {"coordination": f"{etcd.url}/growing"}
    with broker(tmp_path / "b0", broker_id="b0", **settings) as first, first.client() as client:
        client.create_topic("t")
        client.move_cursor("t", "a", {0: 0})
        assert client.describe_topic(CURSORS_TOPIC).settings.replicas == 1
        with broker(tmp_path / "b1", broker_id="b1", **settings):
            wait_until(
                lambda: all(len(partition.chain) == 2 for partition in client.describe_topic(CURSORS_TOPIC).partitions),
                "every partition has a second copy",
            )
            assert client.describe_topic(CURSORS_TOPIC).settings.replicas == 2
            assert positions(client) == {"a": {0: 0}}


def test_a_broker_that_begins_anew_has_no_cursors(tmp_path):
    with broker(tmp_path / "one") as started, started.client() as client:
        client.create_topic("t")
        client.move_cursor("t", "a", {0: 0})
    with broker(tmp_path / "two") as started, started.client() as client:
        client.create_topic("t")
        assert client.cursors("t") == []
