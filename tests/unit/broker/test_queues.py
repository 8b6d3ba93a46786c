"""Queues and the log below them: retention waits for jobs, a restarted broker knows them, nonsense is refused."""

import pytest

from stentor import limits
from stentor.broker.queues import heads
from stentor.errors import InvalidArgument, LeaseLost, NotReady, StentorError
from stentor.testing import broker
from stentor.wire import queue_messages as m

SEGMENT = limits.SEGMENT_BYTES_MIN
VALUE = b"v" * 20_000  # three in a segment


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setattr(limits, "RETENTION_CHECK_S", 0.02)
    monkeypatch.setattr(heads, "_MOVE_AGAIN_S", 0.1)
    with broker(segment_bytes=SEGMENT) as started:
        yield started


def start_of(client, name="q"):
    return client.describe_topic(name).partitions[0].start


def done(queue, count):
    for _ in range(count):
        queue.ack(queue.get(timeout=5))


def test_jobs_outlive_retention_and_late_ones_keep_no_old_files(local, client, wait_until):
    client.create_topic("q", kind="queue", retention_bytes=0)
    with client.queue("q", prefetch=1) as queue:
        queue.put("late", delay=1_000, priority=3)
        for _ in range(12):
            queue.put(VALUE)
        assert start_of(client) == 0
        done(queue, 12)
        wait_until(lambda: start_of(client) > 6, "what is finished goes, and the late job is further behind")
        (late,) = queue.peek()
        assert (late.message.value, late.state, late.priority) == (b"late", "delayed", 3)
        assert queue.purge() == 1


def test_a_broker_that_starts_again_knows_jobs_attempts_and_dead_letters(tmp_path, wait_until):
    with broker(tmp_path, segment_bytes=SEGMENT) as local, local.client() as client:
        client.create_topic("q", kind="queue", retry_delay_ms=0)
        with client.queue("q") as queue:
            queue.put_many([VALUE] * 20)
            queue.nack(queue.get(timeout=5), delay=0)
            done(queue, 10)
    with broker(tmp_path, segment_bytes=SEGMENT) as local, local.client() as client:
        info = client.describe_queue("q")
        assert (info.finished, info.waiting, info.held) == (10, 10, 0)


def ask(client, request):
    route = client._core.routes["q"]

    async def asked():
        return await client._core.call(request(topic_id=route.id, partition=0))

    return client._call(asked())


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (lambda **at: m.TakeJobs(**at, holder=b"x" * 16, number=1, jobs_max=1, wait_ms=0), NotReady),
        (lambda **at: m.SettleJobs(**at, holder=b"x" * 16, sequence=1, first=[0]), InvalidArgument),
        (lambda **at: m.SettleJobs(**at, holder=b"x" * 16, sequence=1, first=[0, 2, 1, 2]), InvalidArgument),
        (lambda **at: m.SettleJobs(**at, holder=b"x" * 16, sequence=1, first=[0, 2], later=[1, 2]), InvalidArgument),
        (lambda **at: m.RenewJobs(**at, holder=b"short"), StentorError),
    ],
)
def test_requests_that_make_no_sense_are_refused(local, client, request_, error):
    client.create_topic("q", kind="queue")
    client.publish("q", "job")
    with pytest.raises(error):
        ask(client, request_)


def test_whoever_never_had_a_job_cannot_end_it(local, client):
    client.create_topic("q", kind="queue")
    client.publish("q", "job")
    answer = ask(client, lambda **at: m.SettleJobs(**at, holder=b"x" * 16, sequence=1, first=[0, 1]))
    assert answer.refused == [0, 1]
    with client.queue("q") as queue:
        job = queue.get(timeout=5)
        assert job.attempt == 1
        queue.ack(job)
        with pytest.raises(LeaseLost):
            queue.ack(job)
