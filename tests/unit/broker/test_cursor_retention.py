"""Topics whose retention waits for a named cursor, with a limit and an alarm."""

import logging

import pytest

from stentor import limits
from stentor.broker.catalogue import TopicRecord
from stentor.broker.cursors.positions import Asked
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import InvalidArgument
from stentor.testing import broker
from stentor.wire.messages import TopicSettings

SEGMENT = limits.SEGMENT_BYTES_MIN
VALUE = b"v" * 20_000  # three in a segment


@pytest.fixture
def local(monkeypatch):
    for name in ("RETENTION_CHECK_S", "CURSOR_CHECK_S", "HEALTH_CHECK_S"):
        monkeypatch.setattr(limits, name, 0.02)
    with broker(segment_bytes=SEGMENT) as started:
        yield started


def fill(client, count=20, topic="t"):
    with client.producer(topic, batch_messages=1) as producer:
        for _ in range(count):
            producer.send(VALUE)


def state(client, topic="t"):
    return client.describe_topic(topic).partitions[0]


def test_retention_waits_for_the_cursor_that_it_is_told(local, client, wait_until):
    client.create_topic("t", retention_bytes=0, retention_waits_for="billing")
    fill(client)
    wait_until(lambda: state(client).kept_unrecorded >= 15, "it is said how much waits")
    assert state(client).start == 0
    client.mark_recorded("t", {0: 20})
    client.move_cursor("t", "other", {0: 20})
    client.move_cursor("t", "billing", {0: 10})
    wait_until(lambda: state(client).start > 0, "what it has passed goes")
    assert state(client).start <= 10
    assert state(client).recorded == 10
    client.alter_topic("t", retention_waits_for="")
    wait_until(lambda: state(client).start > 10, "nothing waits any more")


def test_retention_may_wait_for_two(local, client, wait_until):
    client.create_topic("t", retention_bytes=0, retention_waits_for="billing", keep_unrecorded=True)
    fill(client)
    client.move_cursor("t", "billing", {0: 20})
    client.mark_recorded("t", {0: 5})
    wait_until(lambda: state(client).start > 0, "what both have passed goes")
    assert state(client).start <= 5
    client.mark_recorded("t", {0: 20})
    wait_until(lambda: state(client).start > 10, "the rest goes")


def test_a_new_head_knows_nothing_and_asks(local, client, wait_until):
    client.create_topic("t", retention_bytes=0, retention_waits_for="billing")
    fill(client, count=10)
    client.move_cursor("t", "billing", {0: 10})
    wait_until(lambda: state(client).start > 5, "what it has passed goes")
    positions = local.inner.parts.positions
    key = next(key for key, partition in local.inner.partitions.items() if partition.topic == "t")
    assert positions.position(key, "billing") == 10
    positions._known.clear()
    assert positions.position(key, "billing") is None
    wait_until(lambda: positions.position(key, "billing") == 10, "it was asked for")


def test_what_is_known_from_an_earlier_epoch_counts_no_more(local, client):
    client.create_topic("t", retention_waits_for="billing")
    client.publish("t", "x")
    client.move_cursor("t", "billing", {0: 1})
    positions = local.inner.parts.positions
    key, partition = next(found for found in local.inner.partitions.items() if found[1].topic == "t")
    assert positions.position(key, "billing") == 1
    partition.replica.epoch += 1
    assert positions.position(key, "billing") is None


def test_an_answer_that_was_overtaken_is_not_believed(local, client):
    client.create_topic("t", retention_waits_for="billing")
    client.publish("t", "x")
    client.move_cursor("t", "billing", {0: 1})
    positions = local.inner.parts.positions
    key, partition = next(found for found in local.inner.partitions.items() if found[1].topic == "t")
    positions.learn("billing", {0: 0}, 0, {key: Asked(partition.replica.epoch, stored=False)})
    assert positions.position(key, "billing") is None


def test_as_long_as_nobody_says_where_a_cursor_is_nothing_is_deleted(local, client, monkeypatch, wait_until):
    monkeypatch.setattr(type(local.inner.parts.positions), "_find", lambda *_: None)
    client.create_topic("t", retention_bytes=0, retention_waits_for="billing")
    fill(client)
    client.move_cursor("t", "billing", {0: 20})
    for _ in range(3):
        local.inner.parts.letting_go.retain()
    assert state(client).start == 0
    monkeypatch.undo()
    wait_until(lambda: state(client).start > 10, "now it is known")


def test_beyond_a_limit_it_waits_no_longer_and_says_so(local, client, wait_until, caplog):
    caplog.set_level(logging.INFO)
    limit = 4 * SEGMENT
    client.create_topic("t", retention_bytes=0, retention_waits_for="billing", retention_wait_bytes=limit)
    fill(client, count=9)
    client.move_cursor("t", "billing", {0: 1})
    wait_until(lambda: state(client).kept_unrecorded > 3, "it waits")
    assert state(client).start == 0
    assert local.inner.health().retention_overrun == 0
    fill(client, count=30)
    wait_until(lambda: state(client).start > 10, "what waits is limited")
    wait_until(lambda: state(client).bytes <= limit + 2 * SEGMENT, "no more than that")
    wait_until(lambda: local.inner.health().retention_overrun == 1, "an alarm")
    (problem,) = [problem for problem in local.inner.health().problems if problem.object == "retention"]
    assert "t/0" in problem.message
    wait_until(lambda: "had not passed" in caplog.text, "a line in the log")
    client.move_cursor("t", "billing", {0: 39})
    wait_until(lambda: local.inner.health().retention_overrun == 0, "all is well again")
    over = "no cursor that retention waits for is behind what was deleted any more"
    wait_until(lambda: over in caplog.text, "another line in the log")


def test_a_cursor_that_begins_late_is_no_alarm(local, client, wait_until):
    client.create_topic("t", retention_bytes=0)
    fill(client)
    wait_until(lambda: state(client).start > 10, "retention deletes")
    client.alter_topic("t", retention_waits_for="billing", retention_wait_bytes=100 * SEGMENT)
    fill(client)
    wait_until(lambda: state(client).kept_unrecorded > 10, "it waits")
    assert local.inner.health().retention_overrun == 0


def test_the_name_of_a_cursor_to_wait_for_is_checked(client):
    with pytest.raises(InvalidArgument, match="name of a cursor"):
        client.create_topic("t", retention_waits_for="two words")
    client.create_topic("t")
    with pytest.raises(InvalidArgument, match="name of a cursor"):
        client.alter_topic("t", retention_waits_for="a/b")


def test_cursors_move_on_a_disk_that_is_full_for_others(local):
    own, others = (TopicRecord(name, 1, TopicSettings(), 0) for name in (CURSORS_TOPIC, "t"))
    settings = local.inner.parts.copies.log_settings
    assert settings(own).disk_reserve_bytes < settings(others).disk_reserve_bytes
