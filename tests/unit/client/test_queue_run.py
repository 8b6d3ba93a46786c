"""A queue's `run`: workers share the jobs of a consumer; each is acknowledged, tried again, dead, or given back."""

import asyncio
import os
import signal
import threading
import uuid
from pathlib import Path

import pytest

import stentor
from stentor.client.job import Job
from stentor.client.message import Block, Message
from stentor.client.workers_wire import pack, unpack
from stentor.errors import InvalidArgument


@pytest.fixture
def name():
    return f"pool.{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def importable(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("NOTES", str(tmp_path))


class Working:
    """A run in a thread of its own."""

    def __init__(self, queue, handler, **options):
        self.queue, self.failure = queue, None
        self.thread = threading.Thread(target=self._run, args=(handler,), kwargs=options)

    def _run(self, handler, **options):
        try:
            self.queue.run(handler, **options)
        except BaseException as error:  # noqa: BLE001 - told in the thread of the test
            self.failure = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.queue.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure


def make(client, name, **settings):
    client.create_topic(name, kind="queue", **({"retry_delay_ms": 1} | settings))
    return client.queue(name)


def numbers(count):
    return [b"%d" % number for number in range(count)]


def is_finished(client, name, count):
    """Whether so many jobs are done, and that is committed."""
    return lambda: client.describe_queue(name).finished == count


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 4}, {"workers": 3, "batch": 7}, {"workers": 3, "mode": "async"}, {"time_limit": 30}],
    ids=str,
)
def test_every_job_is_handled_once_and_acknowledged(client, name, options, wait_until):
    seen = []

    def handle(given):
        seen.extend(job.value for job in (given if "batch" in options else [given]))

    with make(client, name, partitions=2) as queue:
        queue.put_many(numbers(300))
        with Working(queue, handle, **options):
            wait_until(is_finished(client, name, 300))
            counted = queue.statistics()
            assert (counted["done"], counted["failed"], counted["lost"]) == (300, 0, 0)
    assert sorted(seen, key=int) == numbers(300)


def test_workers_handle_jobs_beside_each_other(client, name, wait_until):
    meeting = threading.Barrier(4, timeout=20)
    with make(client, name) as queue:
        queue.put_many(numbers(4))
        with Working(queue, lambda _: meeting.wait(), workers=4):
            wait_until(is_finished(client, name, 4))


def test_a_slow_job_stops_nobody(client, name, wait_until):
    release = threading.Event()

    def handle(job):
        assert job.value != b"0" or release.wait(30)

    with make(client, name) as queue:
        queue.put_many(numbers(200))
        with Working(queue, handle, workers=2):
            wait_until(is_finished(client, name, 199))
            release.set()
            wait_until(is_finished(client, name, 200))


def test_what_fails_is_tried_again_and_then_dead(client, name):
    attempts = []

    def handle(job):
        if job.value == b"bad":
            attempts.append(job.attempt)
            raise ValueError("no good")

    with make(client, name, max_attempts=3) as queue:
        queue.put_many([b"good", b"bad", b"good"])
        with Working(queue, handle, workers=3):
            letter = client.subscribe(f"{name}.dead", start="earliest").get(timeout=20)
        assert attempts == [1, 2, 3]
        said = dict(letter.headers)
        assert (letter.value, said["stentor-dead-attempts"]) == (b"bad", b"3")
        assert said["stentor-dead-reason"] == b"ValueError: no good"
        assert b"raise ValueError" in said["stentor-dead-traceback"]
        assert queue.statistics()["failed"] == 3


def test_a_batch_that_fails_is_tried_again(client, name, wait_until):
    sizes, attempts = [], set()

    def handle(jobs):
        sizes.append(len(jobs))
        attempts.update((job.value, job.attempt) for job in jobs)
        if any(job.attempt == 1 for job in jobs):
            raise ValueError("not yet")

    with make(client, name) as queue:
        queue.put_many(numbers(6))
        with Working(queue, handle, batch=4):
            wait_until(is_finished(client, name, 6))
    assert max(sizes) == 4
    assert attempts == {(value, attempt) for value in numbers(6) for attempt in (1, 2)}


def test_order_by_key_holds_with_workers_and_failures(client, name, wait_until):
    lock, in_work, seen, failed = threading.Lock(), set(), {}, set()

    def handle(job):
        with lock:
            assert job.key not in in_work
            in_work.add(job.key)
        try:
            if int(job.value) % 7 == 0 and job.attempt == 1:
                failed.add(job.value)
                raise ValueError("again")
            seen.setdefault(job.key, []).append(int(job.value))
        finally:
            with lock:
                in_work.discard(job.key)

    with make(client, name, ordered_by="key", partitions=2) as queue:
        queue.put_many(numbers(120), [b"k%d" % (number % 6) for number in range(120)])
        with Working(queue, handle, workers=4):
            wait_until(is_finished(client, name, 120))
    assert len(failed) == 18
    assert sorted(seen) == [b"k%d" % number for number in range(6)]
    assert all(found == sorted(found) and len(found) == 20 for found in seen.values())


def test_processes_have_jobs_and_their_errors_are_told_as_they_were(client, name, wait_until, tmp_path):
    with make(client, name, max_attempts=2) as queue:
        queue.put_many([*numbers(20), b"raise"], [b"k"] * 21)
        with Working(queue, "worker_handlers:note_job", workers=2, mode="process"):
            letter = client.subscribe(f"{name}.dead", start="earliest").get(timeout=30)
            wait_until(is_finished(client, name, 20))
    said = dict(letter.headers)
    assert said["stentor-dead-reason"] == b"ValueError: a bad message"
    assert b"in note" in said["stentor-dead-traceback"]
    files = [path for path in tmp_path.iterdir() if path.name.isdigit()]
    lines = [line.split() for path in files for line in path.read_text().splitlines()]
    assert sorted(int(line[2]) for line in lines) == list(range(20))
    assert {line[3] for line in lines} == {"k"}


def test_a_killed_worker_costs_its_job_one_attempt_and_others_none(client, name, wait_until, tmp_path):
    """Another process sends the signal, in the middle of a job: the other jobs that the worker had are not to blame."""
    with make(client, name, max_attempts=2) as queue:
        queue.put_many([b"wait", *numbers(50)])
        with Working(queue, "worker_handlers:note_attempt", workers=1, mode="process"):
            wait_until((tmp_path / "waits").exists)
            os.kill(int((tmp_path / "waits").read_text()), signal.SIGKILL)
            wait_until(is_finished(client, name, 51))
            counted = queue.statistics()
        assert (counted["workers_died"], counted["failed"], counted["done"]) == (1, 1, 51)
    lines = [line.split() for line in (tmp_path / "attempts").read_text().splitlines()]
    assert sorted(lines) == sorted([["wait", "2"], *([str(number), "1"] for number in range(50))])


@pytest.mark.parametrize("mode", ["process", "thread", "async"])
def test_a_handler_that_hangs_is_told_replaced_and_its_job_dead(client, name, wait_until, mode, caplog):
    release = threading.Event()

    async def hang(job):
        if job.value == b"hang":
            await asyncio.Event().wait()

    def block(job):
        if job.value == b"hang":
            release.wait(60)

    handler = {"process": "worker_handlers:hang", "thread": block, "async": hang}[mode]
    with make(client, name, max_attempts=2) as queue:
        queue.put_many([b"hang", *numbers(20)])
        with Working(queue, handler, workers=2, mode=mode, time_limit=0.4):
            wait_until(is_finished(client, name, 20))
            letter = client.subscribe(f"{name}.dead", start="earliest").get(timeout=30)
            queue.put("one more")
            wait_until(is_finished(client, name, 21))
            release.set()
    said = dict(letter.headers)
    assert (letter.value, said["stentor-dead-attempts"]) == (b"hang", b"2")
    assert said["stentor-dead-reason"].startswith(b"HandlerTimeout: A handler did not finish within 0.4 s")
    assert "did not finish within 0.4 s" in caplog.text


def test_a_handler_of_many_leases_keeps_its_job(client, name, wait_until):
    release, begun, attempts = threading.Event(), threading.Event(), []

    def handle(job):
        attempts.append(job.attempt)
        begun.set()
        release.wait(30)

    with make(client, name, lease_s=1) as queue, client.queue(name) as other:
        queue.put("long")
        with Working(queue, handle, workers=2):
            assert begun.wait(20)
            with pytest.raises(stentor.DeadlineExceeded):
                other.get(timeout=2.5)
            release.set()
            wait_until(is_finished(client, name, 1))
    assert attempts == [1]


def test_stopping_finishes_what_is_in_work_and_gives_back_the_rest_uncounted(client, name, wait_until):
    release, begun = threading.Event(), threading.Barrier(3, timeout=20)

    def handle(_):
        begun.wait()
        release.wait(30)

    with make(client, name, max_attempts=1) as queue, client.queue(name) as other:
        queue.put_many(numbers(10))
        with Working(queue, handle, workers=2):
            begun.wait()
            queue.stop()
            wait_until(lambda: client.describe_queue(name).held == 2)
            release.set()
        wait_until(is_finished(client, name, 2))
        queue.put("while nobody runs")
        found = [other.get(timeout=5) for _ in range(9)]  # the one that ran holds nothing
        assert {job.attempt for job in found} == {1}
        for job in found:
            other.ack(job)
        queue.put("asked for again")
        other.close()
        assert queue.get(timeout=5).value == b"asked for again"


def test_what_a_worker_had_and_did_not_come_to_does_not_count(client, name):
    release, begun = threading.Event(), threading.Event()

    def handle(job):
        if job.value == b"block":
            begun.set()
            release.wait(30)

    with make(client, name, max_attempts=1) as queue, client.queue(name) as other:
        queue.put_many([*numbers(300), b"block", *numbers(50)])  # quick ones come to a worker by the hundred
        with Working(queue, handle, workers=1, time_limit=60):
            assert begun.wait(20)
            queue.stop()
            found = [other.get(timeout=5) for _ in range(50)]
            release.set()
        assert [job.attempt for job in found] == [1] * 50


def test_what_does_not_finish_in_time_goes_back_as_an_attempt(client, name):
    release, begun = threading.Event(), threading.Event()

    def handle(_):
        begun.set()
        release.wait(30)

    with make(client, name) as queue, client.queue(name) as other:
        queue.put("slow")
        with Working(queue, handle, workers=2, finish_within=0.1):
            assert begun.wait(20)
        job = other.get(timeout=5)
        release.set()
        assert job.attempt == 2
        other.ack(job)


def test_a_plain_run_can_be_stopped_from_its_handler_and_begun_again(client, name, wait_until):
    seen, threads = [], set()

    def handle(job):
        seen.append(job.value)
        threads.add(threading.current_thread())
        if job.value in (b"1", b"4"):
            queue.stop()

    with make(client, name) as queue:
        queue.put_many(numbers(5))
        queue.run(handle)
        assert seen == [b"0", b"1"]
        wait_until(is_finished(client, name, 2))
        queue.run(handle)
        assert seen == numbers(5)
        assert queue.statistics()["done"] == 3
    assert threads == {threading.current_thread()}


def test_a_run_that_waits_can_be_stopped(client, name):
    for options in ({}, {"workers": 2}):
        with client.queue(name) as queue, Working(queue, print, **options):
            pass


def test_closing_in_another_thread_ends_a_run(client, name, wait_until):
    begun, release = threading.Event(), threading.Event()

    def handle(_):
        begun.set()
        release.wait(30)

    queue = make(client, name)
    queue.put("job")
    with Working(queue, handle, workers=2) as working:
        assert begun.wait(20)
        threading.Timer(0.1, release.set).start()
        queue.close()
        working.thread.join(20)
        assert not working.thread.is_alive()
    assert client.describe_queue(name).finished == 1


def test_the_same_for_async_code(shared, client, name):
    together, most, seen = 0, 0, 0

    async def work():
        async def handle(_):
            nonlocal together, most, seen
            together += 1
            most = max(most, together)
            await asyncio.sleep(0)
            together -= 1
            seen += 1
            if seen in (50, 52):
                queue.stop()

        async with stentor.connect_async(shared.url) as own, own.queue(name) as queue:
            await queue.put_many(numbers(49))
            running = asyncio.create_task(queue.run(handle, workers=5))
            await queue.put("49")
            async with asyncio.timeout(20):
                await running
            await queue.put_many(numbers(2))
            async with asyncio.timeout(20):
                await queue.run(handle)
            return queue.statistics()["done"]

    assert asyncio.run(work()) == 2
    assert most == 5
    assert client.describe_queue(name).finished == 52


def test_a_handler_may_settle_its_job_by_itself(client, name, wait_until):
    def handle(job):
        if job.attempt == 1:
            queue.nack(job, delay=0, wait=False)

    with make(client, name) as queue:
        queue.put("job")
        with Working(queue, handle, workers=2):
            wait_until(is_finished(client, name, 1))
            assert queue.statistics()["failed"] == 0


def test_slow_workers_leave_jobs_to_others(client, name):
    """Two for each worker are held: one in work, and the next one."""
    release, begun = threading.Event(), threading.Barrier(3, timeout=20)

    def handle(_):
        begun.wait()
        release.wait(30)

    with make(client, name) as queue, client.queue(name) as other, Working(queue, handle, workers=2):
        queue.put_many(numbers(50))
        begun.wait()
        found = [other.get(timeout=5) for _ in range(46)]
        assert len(found) == 46
        release.set()
        begun.abort()


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        (7, {}, "A handler is a function or its name"),
        (print, {"workers": 0}, "workers=0"),
        (print, {"batch": 0}, "batch=0"),
        (print, {"mode": "fibre"}, "mode='fibre' is unknown"),
        (print, {"time_limit": -1}, "time_limit=-1"),
        (lambda _: None, {"mode": "process"}, "cannot find"),
        ("worker_handlers:missing", {"workers": 2}, "cannot be imported"),
        ("worker_handlers:missing", {"mode": "process"}, "cannot be imported"),
        ("worker_handlers:note_later", {"mode": "thread"}, "needs mode='async'"),
    ],
)
def test_impossible_runs_are_refused(client, name, handler, options, said):
    with client.queue(name) as queue:
        with pytest.raises(InvalidArgument, match=said):
            queue.run(handler, **options)
        queue.put("job")
        assert queue.get(timeout=5).attempt == 1


def test_workers_run_once_on_one_consumer(client, name, wait_until):
    with client.queue(name) as queue, Working(queue, print, workers=2):
        wait_until(lambda: queue._core.consumer is not None and queue._core.consumer.run is not None)
        with pytest.raises(InvalidArgument, match="run on this consumer"):
            queue.run(print, workers=2)


class Port:
    holder = b"me"

    def owns(self, *_):
        return True


def test_jobs_travel_to_worker_processes_in_any_order():
    blocks = [Block("jobs", 0, 0, 7, None), Block("jobs", 0, 5, [8, 0, 9], [None, None, [("h", b"1")]])]
    messages = [Message(b"k", b"5", 5, blocks[1]), Message(None, b"2", 2, blocks[0]), Message(b"k", None, 7, blocks[1])]
    jobs = [Job(message, 3 + index, Port()) for index, message in enumerate(messages)]
    found = unpack(pack(1, jobs))
    assert [(job.key, job.value, job.offset, job.attempt) for job in found] == [
        (b"k", b"5", 5, 3),
        (None, b"2", 2, 4),
        (b"k", None, 7, 5),
    ]
    assert [(job.message.timestamp_us, job.headers) for job in found] == [(8, []), (7, []), (9, [("h", b"1")])]
    assert (found[0].queue, found[0].partition, found[0].is_held) == ("jobs", 0, True)
    with pytest.raises(InvalidArgument, match="cannot be settled or extended in a worker process"):
        found[0].port.finish(found[0])
