"""Queues and the log below them: retention waits for jobs, a restarted broker knows them, nonsense is refused."""

import asyncio
import threading
from contextlib import suppress
from itertools import cycle

import pyarrow as pa
import pytest

import stentor
from stentor import limits
from stentor.broker.partitions.tail_cache import TailCache
from stentor.broker.queues import heads
from stentor.broker.queues.bodies import READS_KEPT_MAX, JobReads, LogRead, WantedJobs, _chosen
from stentor.errors import DeadlineExceeded, InvalidArgument, LeaseLost, NotReady, StentorError
from stentor.storage.log import PartitionLog
from stentor.testing import broker
from stentor.wire import batch, queue_rows, sparse
from stentor.wire import queue_messages as m
from stentor.wire.header import HEADER_BYTES, check_header, extents, stamp, unpack

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


def test_a_consumer_that_held_nothing_goes_on_after_a_long_outage(served, wait_until):
    """Its lease was over meanwhile, and no head knows the id under which it asked for jobs then."""
    process = served().start()
    with stentor.Client(process.url) as client:
        client.create_topic("q", kind="queue", lease_s=1)
        with client.queue("q") as queue:
            with pytest.raises(DeadlineExceeded):
                queue.get(timeout=0.1)  # it asks from now on
            port = queue._core.consumer._ports[0]
            before = port.holder
            process.kill()
            wait_until(lambda: port.holder != before, "its lease is over")
            process.start()
            queue.put("x")
            assert queue.get(timeout=10).value == b"x"


def test_a_consumer_that_held_nothing_need_not_wait_for_its_next_renewal_at_a_new_head(served):
    """It would be 15 seconds away here: a head gives jobs only to those that it has heard."""
    process = served().start()
    with stentor.Client(process.url) as client:
        client.create_topic("q", kind="queue", lease_s=60)
        with client.queue("q") as queue:
            with pytest.raises(DeadlineExceeded):
                queue.get(timeout=0.1)  # it asks from now on
            process.kill()
            process.start()
            queue.put("x")
            assert queue.get(timeout=5).value == b"x"


def test_a_consumer_may_have_more_partitions_than_requests_may_be_under_way(client):
    partitions = limits.REQUESTS_UNDER_WAY_MAX + 36
    client.create_topic("q", kind="queue", partitions=partitions)
    with client.queue("q") as queue:
        queue.put_many([b"x"] * partitions)
        for _ in range(partitions):
            queue.ack(queue.get(timeout=10), wait=False)


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
        (lambda **at: m.TakeJobs(**at, holder=b"x" * 16, number=1, jobs_max=1, known=[7]), InvalidArgument),
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


def test_messages_that_a_consumer_has_are_not_sent_again(local, client):
    client.create_topic("q", kind="queue")
    for number in range(10):
        client.publish("q", b"job %d" % number)
    ask(client, lambda **at: m.RenewJobs(**at, holder=b"x" * 16))

    def offsets(**wish):
        taken = ask(client, lambda **at: m.TakeJobs(**at, holder=b"x" * 16, jobs_max=5, **wish))
        return taken.fresh, [base for _, _, base, _ in extents(taken.batches)]

    assert offsets(number=1, known=[1, 3]) == ([0, 5], [0, 4])
    assert offsets(number=1, known=[3, 40]) == ([0, 5], [0, 1, 2])
    assert offsets(number=1) == ([0, 5], [0, 1, 2, 3, 4])
    assert offsets(number=2, known=[0, 40]) == ([5, 5], [])


def test_several_consumers_get_the_right_messages_from_the_log(local, client, monkeypatch):
    """Their jobs are next to each other in the same batches, which memory does not hold any more."""
    monkeypatch.setattr(TailCache, "take", lambda *_: None)
    reads = []
    monkeypatch.setattr(PartitionLog, "read", counted(PartitionLog.read, reads))
    client.create_topic("q", kind="queue")
    with client.queue("q", prefetch=7) as one, client.queue("q", prefetch=5) as other:
        one.put_many([b"%d" % number for number in range(100)])
        for number in range(100, 200):
            client.publish("q", b"%d" % number)
        found = []
        for queue in cycle((one, other)):
            with suppress(DeadlineExceeded):  # the other one has the last jobs
                job = queue.get(timeout=5 if len(found) < 180 else 0.1)
                found.append((job.offset, job.value))
                queue.ack(job)
            if len(found) == 200:
                break
    values = [value for _, value in sorted(found)]
    assert values == [b"%d" % number for number in range(200)]
    assert len(reads) < 20


def counted(method, calls):
    def call(*arguments, **settings):
        calls.append(arguments)
        return method(*arguments, **settings)

    return call


def stored(base, values):
    encoded = batch.encode([7] * len(values), [None] * len(values), values, None)
    chunk = queue_rows.whole(encoded, topic_id=1, partition=0)
    stamp(memoryview(chunk), 0, base_offset=base, epoch=1, appended_at_us=7)
    return bytes(chunk)


def test_batches_are_passed_on_in_one_piece_and_cut_only_where_much_is_not_wanted():
    small = [stored(base, [b"v"] * 20) for base in (0, 20, 40, 60)]
    chunk = b"".join(small)
    assert _chosen(chunk, extents(chunk), WantedJobs([(25, 20)])) == [small[1] + small[2]]
    assert _chosen(chunk, extents(chunk), WantedJobs([(0, 1), (60, 1)])) == [small[0], small[3]]
    large = stored(80, [b"v" * 40_000] * 20)
    cut, after = _chosen(large + small[0], extents(large + small[0]), WantedJobs([(0, 82), (99, 1)]))
    assert (unpack(cut, 0).count, after) == (3, small[0])
    assert _chosen(large, extents(large), WantedJobs([(80, 19)])) == [large]


def test_few_reads_are_kept_and_none_of_those_who_lead_no_more():
    reads = JobReads()
    for lead in range(READS_KEPT_MAX + 1):
        reads.keep(lead, LogRead(stored(10, [b"v"] * 5), 15))
    assert reads.find(0, 10) is None
    assert reads.find(1, 14) is not None
    assert (reads.find(1, 9), reads.find(1, 15)) == (None, None)
    reads.forget(1)
    assert reads.find(1, 14) is None
    reads.keep(2, LogRead(b"", 15))
    assert reads.find(2, 14) is None


def test_a_large_batch_is_cut_beside_the_loop(local, client, monkeypatch):
    """To cut it means to read all of it: 20 requests at once held the loop for 1.8 s."""
    client.create_topic("large", kind="queue")
    with client.producer("large", batch_messages=100_000, batch_bytes=4_000_000) as producer:
        producer.send_batch(pa.record_batch({"value": [b"x" * 100] * 10_000}))  # which stays in one piece
    threads, keep = [], sparse.keep

    def noted(*args):
        threads.append(threading.current_thread().name)
        return keep(*args)

    monkeypatch.setattr(sparse, "keep", noted)
    request = m.FetchJobs(topic_id=client.describe_topic("large").id, partition=0, ranges=[5, 1, 9_000, 2])

    async def asked():
        link = await client._core.ready_link()
        return await asyncio.gather(*(link.request(request) for _ in range(5)))

    for found in client._core.wait_for(asked()):
        rows = sparse.rows_of(check_header(found.batches), memoryview(found.batches)[HEADER_BYTES:])
        assert [offset for offset in rows.offsets if offset in (5, 9_000, 9_001)] == [5, 9_000, 9_001]
    assert threads
    assert all(name.startswith("stentor-read") for name in threads)
