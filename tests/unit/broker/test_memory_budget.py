"""Memory topics and queues share one budget of their broker; a small compressed batch cannot use it up."""

from array import array

import pytest

from stentor import Client
from stentor.errors import DeadlineExceeded, LimitExceeded, PublishError, UnknownOutcome
from stentor.limits import KIB, MIB
from stentor.testing import broker
from stentor.wire import arrow_body, batch, queue_rows
from stentor.wire.header import HEADER_BYTES, unpack


def fill(client, topic, count, size):
    with client.producer(topic, timeout=2) as producer:
        for _ in range(count):
            producer.send(bytes(size))


def fill_queue(client, count):
    with client.producer("jobs", timeout=2) as producer:
        for number in range(count):
            producer.send(b"", key=b"%d" % number)


def used(local):
    memory = local.inner.statistics().broker.memory
    local.inner.parts.ground.memory.check_invariants()
    return memory.bytes


def test_many_memory_topics_together_stay_within_one_budget():
    with broker(memory_budget_bytes=8 * MIB) as local, local.client() as client:
        for number in range(8):
            client.create_topic(f"t{number}", durability="memory", retention_bytes=4 * MIB)
        fill(client, "t0", 56, 64 * KIB)
        fill(client, "t1", 56, 64 * KIB)
        with pytest.raises(PublishError) as failed:
            fill(client, "t2", 56, 64 * KIB)
        assert isinstance(failed.value.failed[0].error, DeadlineExceeded | UnknownOutcome)
        assert "The memory for topics is used up" in str(failed.value.failed[0].error)
        assert used(local) <= 8 * MIB + 2 * MIB  # one batch beyond it at most
        (problem,) = [each for each in local.inner.statistics().health.problems if each.object == "memory"]
        assert problem.severity == "error"
        client.publish("disk", b"topics on disk go on")
        client.delete_topic("t0")
        assert used(local) < 8 * MIB
        client.publish("t2", b"and so does this one", timeout=30)


def test_a_memory_topic_that_has_its_share_goes_on_while_the_budget_is_used_up():
    with broker(memory_budget_bytes=4 * MIB) as local, local.client() as client:
        client.create_topic("ring", durability="memory", retention_bytes=1 * MIB)
        fill(client, "ring", 40, 64 * KIB)
        client.create_topic("greedy", durability="memory", retention_bytes=64 * MIB)
        with pytest.raises((PublishError, DeadlineExceeded)):  # whichever is late first: a message, or room for one
            fill(client, "greedy", 128, 64 * KIB)
        fill(client, "ring", 40, 64 * KIB)


def test_what_a_queue_holds_counts_and_is_given_back_when_it_is_gone():
    with broker(memory_budget_bytes=256 * KIB) as local, local.client() as client:
        client.create_topic("jobs", kind="queue", ordered_by="key")
        with pytest.raises(PublishError) as failed:
            fill_queue(client, 50_000)
        assert isinstance(failed.value.failed[0].error, DeadlineExceeded | UnknownOutcome)
        assert "The memory for topics is used up" in str(failed.value.failed[0].error)
        assert 256 * KIB <= used(local) < 512 * KIB
        held = used(local)
        local.stop()
        local.start()
        assert used(local) == held
        client.queue("jobs").purge()  # who ends jobs is never refused
        client.delete_topic("jobs")
        assert used(local) == 0


def empty_jobs(count):
    """A batch of jobs that say nothing, as small as it can be."""
    nothing = arrow_body.pa.nulls(count, arrow_body.pa.binary())
    times = arrow_body.timestamps_array(array("q", [1_700_000_000_000_000]) * count)
    rows = arrow_body.pa.RecordBatch.from_arrays(
        [times, nothing, nothing, arrow_body.headers_array(None, count)], schema=arrow_body.SCHEMA
    )
    encoded = batch.encode_arrow(rows, compression="zstd")
    data = memoryview(bytes(queue_rows.whole(encoded, topic_id=1, partition=0)))
    return unpack(data), data[HEADER_BYTES:]


def test_two_kilobytes_cannot_be_a_million_jobs():
    header, body = empty_jobs(1_000_000)
    assert len(body) < 4_096
    with pytest.raises(LimitExceeded, match="1000000 jobs in"):
        queue_rows.check(header, body, "jobs")
    queue_rows.check(*empty_jobs(queue_rows.BATCH_JOBS_MIN), "jobs")


def test_no_old_client_is_refused_for_a_compressed_batch_of_its_own(client: Client):
    client.create_topic("jobs", kind="queue")
    with client.producer("jobs", compression="zstd") as producer:
        for _ in range(10_000):
            producer.send(b"the same job")
    assert client.queue("jobs").describe().waiting == 10_000
