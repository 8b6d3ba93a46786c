"""Marks of recorders and retention when the head of a partition dies."""

import pytest

from stentor.limits import SEGMENT_BYTES_MIN

pytestmark = pytest.mark.slow

VALUE = b"v" * 20_000
COUNT = 30


@pytest.fixture
def client(three):
    with three.client(timeout=20) as connected:
        yield connected
        connected.delete_topic("lake")


def state(client):
    return client.describe_topic("lake", timeout=5).partitions[0]


@pytest.mark.long
def test_marks_outlive_the_head_and_the_next_one_deletes_no_more_than_is_recorded(three, client):
    client.create_topic("lake", partitions=1, retention_bytes=0, segment_bytes=SEGMENT_BYTES_MIN, keep_unrecorded=True)
    for _ in range(COUNT):  # one by one: members roll segments between deliveries, and must have several
        client.publish("lake", VALUE)
    client.mark_recorded("lake", {0: COUNT // 2})
    head = state(client).chain[0]
    three.kill(head)
    three.wait_for(lambda: state(client).chain[0] != head, what="another head")
    three.wait_for(lambda: state(client).recorded == COUNT // 2, what="the new head to know the mark")
    three.wait_for(lambda: state(client).start > 0, what="the new head to delete what is recorded")
    three.wait_for(lambda: state(client).kept_unrecorded > 0, what="the new head to say what it keeps")
    assert 0 < state(client).start <= COUNT // 2
    three.restart(head)
    client.mark_recorded("lake", {0: COUNT})
    three.wait_for(lambda: state(client).start > COUNT // 2, what="the rest to go")
    assert state(client).recorded == COUNT


@pytest.mark.long
def test_cursors_outlive_every_broker_in_turn(three, client):
    """Whoever leads the partition of the cursor, or of the topic, dies: what was acknowledged stays."""
    client.create_topic("lake", partitions=2)
    for partition in (0, 1):
        client.publish("lake", VALUE, partition=partition)
    names = [f"cursor-{number}" for number in range(12)]
    for name in names:
        client.move_cursor("lake", name, {0: 1})
    for broker in list(three.brokers):
        three.kill(broker)
        for name in names:
            client.move_cursor("lake", name, {1: 1})
        found = {cursor.name: cursor.positions for cursor in client.cursors("lake")}
        assert found == {name: {0: 1, 1: 1} for name in names}
        three.restart(broker)
        three.wait_for(lambda: all(len(p.chain) == 3 for p in internal(client)), what="whole chains")
        for name in names:
            client.move_cursor("lake", name, {1: 0}, back=True)


def internal(client):
    return client.describe_topic("_stentor.cursors").partitions
