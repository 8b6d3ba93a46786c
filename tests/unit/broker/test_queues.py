"""Queues and the log below them: retention waits for jobs, a restarted broker knows them, nonsense is refused."""

import pytest

from stentor import limits
from stentor.broker.queues import heads
from stentor.broker.queues.bodies import WantedJobs
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
        (lambda **at: m.SettleJobs(**at, holder=b"x" * 16, sequence=1, first=[0, 1_000_000]), InvalidArgument),
        (lambda **at: m.SettleJobs(**at, holder=b"x" * 16, sequence=0), StentorError),
        (lambda **at: m.TakeJobs(**at, holder=b"x" * 16, number=0, jobs_max=1, wait_ms=0), StentorError),
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


def test_a_pause_beyond_all_measure_is_refused_and_stops_nobody(local, client):
    client.create_topic("q", kind="queue")
    client.publish("q", "job")
    ask(client, lambda **at: m.RenewJobs(**at, holder=b"x" * 16))
    taken = ask(client, lambda **at: m.TakeJobs(**at, holder=b"x" * 16, number=1, jobs_max=1, wait_ms=5_000))
    assert taken.fresh == [0, 1]
    back = m.JobReturn(offset=0, attempt=1, delay_ms=2**63 - 1)
    with pytest.raises(StentorError):
        ask(client, lambda **at: m.SettleJobs(**at, holder=b"x" * 16, sequence=1, back=[back]))
    client.publish("q", "other")
    with client.queue("q") as queue:
        assert queue.get(timeout=5).value == b"other"


def test_ranges_that_overlap_cost_no_more_than_one():
    wanted = WantedJobs([(5, 1_000_000), (6, 10), (1, 4), (2_000_000, 2), (3, 2)])
    assert wanted.within(0, 10) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert wanted.whole(1, 1_000_005)
    assert not wanted.whole(1, 1_000_006)
    assert (wanted.next(0), wanted.next(500_000), wanted.next(1_000_005)) == (1, 500_000, 2_000_000)


def test_jobs_in_large_batches_come_in_answers_that_fit_a_frame(local, client):
    """Some, then nearly a frame in one batch."""
    client.create_topic("q", kind="queue")
    for _ in range(4):
        client.publish("q", b"v" * 900_000)
    with client.queue("q", prefetch=100) as queue:
        queue.put_many([b"v" * 600_000] * 24)
        client.publish("q", b"v" * limits.MESSAGE_VALUE_BYTES_MAX)
        sizes = [len(queue.get(timeout=10).value) for _ in range(29)]
    assert sorted(sizes) == [*[600_000] * 24, *[900_000] * 4, limits.MESSAGE_VALUE_BYTES_MAX]
