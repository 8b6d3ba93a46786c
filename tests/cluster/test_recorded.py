"""Marks of recorders and retention when the head of a partition dies."""

import pytest

from stentor.limits import SEGMENT_BYTES_MIN
from stentor.wire.messages import DescribeTopic

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


def test_marks_outlive_the_head_and_the_next_one_deletes_no_more_than_is_recorded(three, client):
    client.create_topic("lake", partitions=1, retention_bytes=0, segment_bytes=SEGMENT_BYTES_MIN, keep_unrecorded=True)
    for _ in range(COUNT):  # one by one: members roll segments between deliveries, and must have several
        client.publish("lake", VALUE)
    client.mark_recorded("lake", {0: COUNT // 2})
    # What other brokers say of it, they have from the store.
    others = [name for name in three.brokers if name != state(client).chain[0]]
    three.wait_for(lambda: all(recorded_at(three, name) == COUNT // 2 for name in others), what="the mark everywhere")
    head = state(client).chain[0]
    three.kill(head)
    three.wait_for(lambda: state(client).chain[0] != head, what="another head")
    assert state(client).recorded == COUNT // 2
    three.wait_for(lambda: state(client).start > 0, what="the new head to delete what is recorded")
    three.wait_for(lambda: state(client).kept_unrecorded > 0, what="the new head to say what it keeps")
    assert 0 < state(client).start <= COUNT // 2
    three.restart(head)
    client.mark_recorded("lake", {0: COUNT})
    three.wait_for(lambda: state(client).start > COUNT // 2, what="the rest to go")
    assert state(client).recorded == COUNT


def recorded_at(cluster, name):
    """What one broker says, without asking the head."""
    with cluster.client() as client:
        answer = client._call(client._core.ask_one(DescribeTopic(name="lake"), name, 5))
        return answer.topic.partitions[0].recorded
