"""What a consumer may begin, for how long it may work, how much it holds, and when a run ends that was stopped."""

import asyncio
import logging
import threading
import time
import uuid

import pytest

import stentor
from stentor.client.queue_share import FIRST, JobShare
from stentor.errors import DeadlineExceeded, LeaseLost


@pytest.fixture
def name():
    return f"jobs.{uuid.uuid4().hex[:8]}"


def make(client, name, limit=None, prefetch=500, **settings):
    client.create_topic(name, kind="queue", **({"retry_delay_ms": 1} | settings))
    return client.queue(name, limit=limit, prefetch=prefetch)


def port_of(queue):
    return queue._core.consumer._ports[0]


# --- how long -------------------------------------------------------------------------------------


def test_extending_a_job_without_a_limit_takes_nothing_from_it(client, name):
    with make(client, name) as queue, client.queue(name) as other:
        queue.put("long")
        job = queue.get(timeout=5)
        queue.extend(job, 0.2)
        with pytest.raises(DeadlineExceeded):
            other.get(timeout=0.7)
        queue.ack(job)


def test_an_extension_lasts_what_it_says_and_never_shortens(client, name, wait_until):
    with make(client, name, limit=0.6) as queue, client.queue(name) as other:
        queue.put("long")
        job = queue.get(timeout=5)
        began = time.monotonic()
        queue.extend(job, 2)
        queue.extend(job, 0.1)
        with pytest.raises(DeadlineExceeded):
            other.get(timeout=0.7)
        wait_until(lambda: time.monotonic() > began + 1.9)
        assert job.is_held
        assert other.get(timeout=10).attempt == 2
        with pytest.raises(LeaseLost):
            queue.ack(job)


@pytest.mark.parametrize("options", [{"workers": 2}, {"time_limit": 0.3}, {"batch": 2}])
def test_an_extension_lasts_what_it_says_also_for_workers(client, name, options):
    attempts, ended = [], threading.Event()
    with make(client, name, limit=0.3) as queue:

        def handle(jobs):
            for job in jobs if isinstance(jobs, list) else [jobs]:
                attempts.append(job.attempt)
                if job.attempt > 1:
                    return
                queue.extend(job, 30)
                ended.wait(1.0)  # nobody sets it
            queue.stop()

        queue.put("long")
        queue.run(handle, **options)
        assert attempts == [1]
        assert queue.statistics()["failed"] == 0


def test_a_job_whose_ttl_ended_while_it_waited_here_is_not_begun(client, name, wait_until):
    with make(client, name) as queue:
        queue.put("slow", ttl=60)
        queue.put("mortal", ttl=0.3)
        assert queue.get(timeout=5).value == b"slow"
        wait_until(lambda: len(queue._core.consumer._jobs) == 1)
        waiting = queue._core.consumer._jobs[0]
        wait_until(lambda: waiting.port.is_expired(waiting))
        with pytest.raises(DeadlineExceeded):
            queue.get(timeout=0.3)
        wait_until(lambda: queue.describe().died == 1)


def test_a_job_whose_ttl_ended_before_its_answer_was_read_is_not_begun(client, shared, name, wait_until):
    """The process stood still as the answer came: the loop stands still here as a stopped process does."""
    with make(client, name) as queue, stentor.connect(shared.url) as other, other.queue(name) as putting:
        putting.put("first")
        queue.ack(queue.get(timeout=5))
        wait_until(lambda: queue.describe().finished == 1)
        still = threading.Event()
        client._core.loop.call_soon_threadsafe(still.wait, 60)
        putting.put("mortal", ttl=0.3)
        wait_until(lambda: putting.describe().held == 1, "it is on its way")
        later = time.monotonic() + 0.4
        wait_until(lambda: time.monotonic() > later)
        still.set()
        with pytest.raises(DeadlineExceeded):
            queue.get(timeout=0.3)
        wait_until(lambda: queue.describe().died == 1)


def test_a_job_with_a_ttl_is_begun_by_who_waited_longer_than_that(client, name, wait_until):
    with make(client, name) as queue:
        found = []
        waiting = threading.Thread(target=lambda: found.append(queue.get(timeout=20)))
        waiting.start()
        wait_until(lambda: queue._core.consumer is not None)
        later = time.monotonic() + 0.6
        wait_until(lambda: time.monotonic() > later)
        queue.put("mortal", ttl=0.5)
        waiting.join(20)
        assert [(job.value, job.attempt) for job in found] == [(b"mortal", 1)]
        queue.ack(found[0])


@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_a_run_does_not_begin_a_job_whose_ttl_is_over(client, name, wait_until, options):
    seen, begun, release = [], threading.Event(), threading.Event()

    def handle(job):
        seen.append(job.value)
        if job.value != b"slow":
            return
        if seen.count(b"slow") == options.get("workers", 1):
            begun.set()
        release.wait(20)

    with make(client, name) as queue:
        for _ in range(options.get("workers", 1)):
            queue.put("slow", ttl=60)
        queue.put("mortal", ttl=1.5)
        running = threading.Thread(target=queue.run, args=(handle,), kwargs=options)
        running.start()
        assert begun.wait(20)
        wait_until(lambda: queue.describe().held == options.get("workers", 1) + 1)
        later = time.monotonic() + 1.6
        wait_until(lambda: time.monotonic() > later)
        release.set()
        wait_until(lambda: queue.describe().died == 1)
        queue.stop()
        running.join(20)
        assert b"mortal" not in seen


# --- what is certain ------------------------------------------------------------------------------


def test_a_job_is_not_begun_before_its_head_was_asked_if_the_lease_is_not_certain(client, name, wait_until):
    with make(client, name) as queue:
        queue.put_many(["one", "two"])
        queue.ack(queue.get(timeout=5))
        consumer = queue._core.consumer
        wait_until(lambda: consumer._jobs)
        certainty = port_of(queue)._certainty
        certainty.sure_until = 0.0  # as after a pause of nearly a lease
        assert consumer.take_one() is None
        job = queue.get(timeout=5)
        assert (job.value, certainty.holds) == (b"two", True)
        queue.ack(job)


def test_a_consumer_whose_lease_may_be_over_begins_nothing_that_it_held(client, name, wait_until):
    with make(client, name, lease_s=1) as queue, client.queue(name) as other:
        queue.put_many(["one", "two"])
        queue.get(timeout=5)
        wait_until(lambda: queue._core.consumer._jobs)
        held = queue._core.consumer._jobs[0]
        port_of(queue)._certainty.end()  # it stood still for longer than its lease
        assert queue._core.consumer.take_one() is None
        assert not held.is_held
        found = {other.get(timeout=20).value, other.get(timeout=20).value}
        assert found == {b"one", b"two"}


def test_workers_ask_before_they_begin_what_is_not_certain(client, name, wait_until):
    seen, begun, release = [], threading.Event(), threading.Event()

    def handle(job):
        seen.append(job.value)
        begun.set()
        release.wait(20)

    with make(client, name) as queue:
        queue.put_many([b"%d" % number for number in range(6)])
        running = threading.Thread(target=queue.run, args=(handle,), kwargs={"workers": 2})
        running.start()
        assert begun.wait(20)
        certainty = port_of(queue)._certainty
        certainty.sure_until = 0.0
        release.set()
        wait_until(lambda: queue.describe().finished == 6)
        assert certainty.holds
        queue.stop()
        running.join(20)
    assert sorted(seen) == [b"%d" % number for number in range(6)]


# --- how much -------------------------------------------------------------------------------------


def test_a_share_grows_with_quick_jobs_and_stays_small_with_slow_ones():
    share, now = JobShare(500), 0.0
    assert share.now == FIRST
    for _ in range(12):
        share.came(share.now, now)
        now += 0.001
        share.went(0, now)
    assert share.now == 500
    for _ in range(3):
        share.came(share.now, now)
        now += 0.1 * share.now
        share.went(0, now)
    assert FIRST < share.now <= FIRST + 5


def test_the_first_consumer_does_not_take_a_backlog(client, name, wait_until):
    with make(client, name) as queue, client.queue(name) as other:
        queue.put_many([b"%d" % number for number in range(60)])
        queue.get(timeout=5)
        assert queue.describe().held <= FIRST
        for _ in range(60 - FIRST):
            other.ack(other.get(timeout=5), wait=False)


def test_what_a_slow_consumer_has_in_reserve_goes_to_one_that_has_nothing(client, name):
    with make(client, name) as queue, client.queue(name) as other:
        queue.put_many(["slow", "next"])
        queue.get(timeout=5)
        assert other.get(timeout=10).value == b"next"


def test_callers_of_get_have_as_many_jobs_as_they_ask_for(client, name):
    with make(client, name, prefetch=20) as queue:
        queue.put_many([b"%d" % number for number in range(20)])
        assert len({queue.get(timeout=5).offset for _ in range(20)}) == 20


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "mode": "async"}])
def test_a_stop_before_a_run_ends_that_run(client, name, options):
    handled = []

    async def later(job):
        handled.append(job)

    with make(client, name) as queue:
        queue.put("job")
        queue.stop()
        queue.run(later if options.get("mode") == "async" else handled.append, **options)
        assert handled == []
        assert queue.get(timeout=5).value == b"job"  # it is nobody's


def test_a_stop_before_an_async_run_ends_that_run(shared, name):
    async def work():
        async with stentor.connect_async(shared.url) as client, client.queue(name) as queue:
            queue.stop()
            async with asyncio.timeout(20):
                await queue.run(print)
                queue.stop()
                await queue.run(print, workers=2)

    asyncio.run(work())


def test_a_stop_ends_one_run_and_not_the_next_one(client, name, wait_until):
    handled = []

    def handle(job):
        handled.append(job.value)
        queue.stop()

    with make(client, name) as queue:
        queue.put("one")
        queue.run(handle)
        queue.put("two")
        queue.run(handle)
    assert handled == [b"one", b"two"]


@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_a_failed_attempt_is_logged_with_its_traceback(client, name, caplog, wait_until, options):
    def fails_somewhere(_):
        raise ValueError("no such bill")

    with make(client, name, max_attempts=1) as queue, caplog.at_level(logging.WARNING):
        queue.put("job")
        running = threading.Thread(target=queue.run, args=(fails_somewhere,), kwargs=options)
        running.start()
        wait_until(lambda: queue.describe().died == 1)
        queue.stop()
        running.join(20)
    assert "attempt 1 of job" in caplog.text
    assert "in fails_somewhere" in caplog.text


def test_a_fence_comes_with_each_job(client, name):
    with make(client, name) as queue:
        queue.put("job")
        first = queue.get(timeout=5)
        queue.nack(first, delay=0)
        second = queue.get(timeout=5)
        assert second.fence > first.fence > 0
