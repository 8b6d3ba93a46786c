"""Threads or tasks that share one subscription: each message goes to one of them, and all are released at its end."""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

import stentor

COUNT = 20_000  # in batches of 50: many deliveries if they are small
DEADLINE_S = 30.0
ALIKE = [("for",) * 2, ("get",) * 3, ("batches",) * 4, ("for",) * 8, ("get",) * 8]
MIXED = [("for", "get"), ("for", "batches", "get"), ("get", "offset_batches", "for", "batches")]


@pytest.fixture(scope="module")
def numbers(shared):
    """A topic of three partitions with many messages."""
    with shared.client() as client:
        client.create_topic("shared.numbers", partitions=3)
        with client.producer("shared.numbers", batch_messages=50) as producer:
            for number in range(COUNT):
                producer.send(b"%d" % number, b"%d" % number)
    return "shared.numbers"


@pytest.fixture(scope="module")
def published(shared, numbers):
    with shared.client() as client:
        return Counter(int(message.value) for message in client.read(numbers))


async def until(condition):
    """Tasks have no other way to look into a subscription; the test's own deadline ends it."""
    while not condition():  # noqa: ASYNC110 - there is no event for these
        await asyncio.sleep(0.001)


def taken_by_thread(subscription, way, take=lambda: None):
    """The values that one thread gets."""
    values = []
    if way == "for":
        for message in subscription:
            values.append(int(message.value))
            take()
    elif way == "get":
        try:
            while True:
                values.append(int(subscription.get(timeout=DEADLINE_S).value))
                take()
        except stentor.Closed:
            pass
    elif way == "batches":
        for found in subscription.batches():
            values += map(int, found.column("value").to_pylist())
            take()
    else:
        for _, rows in subscription.offset_batches():
            values += map(int, rows.column("value").to_pylist())
            take()
    return values


async def taken_by_task(subscription, way):
    """The same of a task, which lets the others run after every message."""
    values = []
    if way == "for":
        async for message in subscription:
            values.append(int(message.value))
            await asyncio.sleep(0)
    elif way == "get":
        try:
            while True:
                values.append(int((await subscription.get(timeout=DEADLINE_S)).value))
                await asyncio.sleep(0)
        except stentor.Closed:
            pass
    else:
        found = subscription.batches() if way == "batches" else subscription.offset_batches()
        async for rows in found:
            values += map(int, (rows if way == "batches" else rows[1]).column("value").to_pylist())
            await asyncio.sleep(0)
    return values


@pytest.mark.parametrize("ways", [*ALIKE, *MIXED], ids="-".join)
def test_threads_that_share_a_bounded_subscription_have_each_message_once(client, numbers, published, ways):
    with client.subscribe(numbers, start="earliest", end="latest") as subscription, ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(taken_by_thread, subscription, way) for way in ways]
        taken = Counter(value for future in futures for value in future.result(DEADLINE_S))
    assert taken == published


@pytest.mark.parametrize("ways", [*ALIKE, *MIXED], ids="-".join)
def test_tasks_that_share_a_bounded_subscription_have_each_message_once(shared, numbers, published, ways):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            subscription = await client.subscribe(numbers, start="earliest", end="latest")
            found = await asyncio.gather(*(taken_by_task(subscription, way) for way in ways))
        return Counter(value for values in found for value in values)

    assert asyncio.run(asyncio.wait_for(work(), DEADLINE_S)) == published


def test_threads_that_leave_their_loops_lose_nothing(client, numbers, published):
    """Each takes a few messages in a loop, leaves it, and begins another one, in another way."""

    def work(subscription):
        values, ways = [], ["for", "batches"]
        while True:
            loop = iter(subscription) if ways[0] == "for" else subscription.batches()
            found = [one for _, one in zip(range(7), loop, strict=False)]
            for one in found:
                values += [int(one.value)] if ways[0] == "for" else map(int, one.column("value").to_pylist())
            if not found:
                return values
            ways.reverse()

    with client.subscribe(numbers, start="earliest", end="latest") as subscription, ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(work, subscription) for _ in range(4)]
        taken = Counter(value for future in futures for value in future.result(DEADLINE_S))
    assert not taken - published, "none twice"
    assert taken.total() == published.total()


@pytest.mark.parametrize("workers", [2, 8])
def test_threads_that_share_a_live_subscription_have_each_message_once(client, workers):
    topic = f"shared.live.{workers}"
    client.create_topic(topic, partitions=2)
    values, enough = [], threading.Event()

    def work():
        for message in subscription:
            values.append(int(message.value))
            if len(values) >= 3_000:
                enough.set()

    with client.subscribe(topic) as subscription, ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work) for _ in range(workers)]
        with client.producer(topic) as producer:
            for number in range(3_000):
                producer.send(b"%d" % number, b"%d" % number)
        assert enough.wait(DEADLINE_S)
        subscription.close()
        assert not wait(futures, DEADLINE_S).not_done, "all were released"
    assert sorted(values) == list(range(3_000))


async def _take_with_deadlines(subscription, values):
    while len(values) < 2_000:
        try:
            values.append(int((await subscription.get(timeout=0.002)).value))
            await asyncio.sleep(0)
        except stentor.DeadlineExceeded:
            pass


async def _take_and_be_cancelled(subscription, values):
    while len(values) < 2_000:
        getting = asyncio.create_task(subscription.get())
        await asyncio.sleep(0.001)
        getting.cancel()
        (found,) = await asyncio.gather(getting, return_exceptions=True)
        if not isinstance(found, asyncio.CancelledError):
            values.append(int(found.value))


async def _send_slowly(client, topic):
    async with await client.producer(topic, batch_messages=3) as producer:
        for number in range(2_000):
            await producer.send(b"%d" % number)
            if number % 5 == 0:
                await asyncio.sleep(0)


def test_tasks_with_deadlines_and_cancelled_ones_lose_nothing(shared):
    async def work():
        values = []
        async with stentor.connect_async(shared.url) as client:
            await client.create_topic("shared.cancelled")
            subscription = await client.subscribe("shared.cancelled")
            takers = [_take_with_deadlines, _take_and_be_cancelled] * 2
            sending = _send_slowly(client, "shared.cancelled")
            await asyncio.gather(sending, *(take(subscription, values) for take in takers))
        return values

    assert sorted(asyncio.run(asyncio.wait_for(work(), DEADLINE_S))) == list(range(2_000))


def test_a_task_that_is_cancelled_as_it_is_woken_lets_another_one_look(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            await client.create_topic("shared.woken")
            subscription = await client.subscribe("shared.woken")
            first, second = (asyncio.create_task(subscription.get(timeout=DEADLINE_S)) for _ in range(2))
            await until(lambda: len(subscription._inbox._waiting) == 2)
            put = subscription._core.put

            def put_and_cancel(item):
                put(item)
                first.cancel()  # its turn to look has come, and it never will

            subscription._core.put = put_and_cancel
            await client.publish("shared.woken", "a")
            return (await second).value

    assert asyncio.run(asyncio.wait_for(work(), DEADLINE_S)) == b"a"


def test_threads_that_wait_with_a_deadline_behind_another_meet_it(client):
    client.create_topic("shared.deadlines")
    with client.subscribe("shared.deadlines") as subscription, ThreadPoolExecutor(1) as pool:
        endless = pool.submit(subscription.get)
        began = time.monotonic()
        with pytest.raises(stentor.DeadlineExceeded):
            subscription.get(timeout=0.3)
        assert 0.25 < time.monotonic() - began < 5
        client.publish("shared.deadlines", "a")
        assert endless.result(DEADLINE_S).value == b"a"


@pytest.mark.parametrize("way", ["for", "get", "batches"])
def test_close_releases_all_threads_that_wait(client, wait_until, way):
    topic = f"shared.closed.{way}"
    client.create_topic(topic)
    subscription = client.subscribe(topic)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(taken_by_thread, subscription, way) for _ in range(4)]
        wait_until(lambda: all(future.running() for future in futures), "the threads")
        subscription.close()
        assert [future.result(DEADLINE_S) for future in futures] == [[]] * 4


@pytest.mark.parametrize("way", ["for", "get", "batches"])
def test_close_releases_all_tasks_that_wait(shared, way):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            await client.create_topic(f"shared.closed.async.{way}")
            subscription = await client.subscribe(f"shared.closed.async.{way}")
            tasks = [asyncio.create_task(taken_by_task(subscription, way)) for _ in range(4)]
            await until(lambda: len(subscription._inbox._waiting) == 4)
            await subscription.close()
            return await asyncio.gather(*tasks)

    assert asyncio.run(asyncio.wait_for(work(), DEADLINE_S)) == [[]] * 4


def test_all_threads_hear_why_a_subscription_ended(client, wait_until):
    client.create_topic("shared.gone")
    subscription = client.subscribe("shared.gone")
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(taken_by_thread, subscription, "for") for _ in range(3)]
        wait_until(lambda: all(future.running() for future in futures), "the threads")
        client.delete_topic("shared.gone")
        for future in futures:
            with pytest.raises(stentor.StentorError):
                future.result(DEADLINE_S)


def _skips_and_values(subscription, values):
    """What was handed out and what was reported as skipped."""
    skipped = [number for event in subscription.events() for number in range(event.first_offset, event.next_offset)]
    return sorted(values + skipped)


def test_threads_that_share_a_subscription_that_skips_account_for_each_message(client, wait_until):
    client.create_topic("shared.skip")
    offsets, enough = [], threading.Event()

    def work():
        for message in subscription:
            offsets.append(message.offset)
            if message.value == b"last":
                enough.set()

    with client.subscribe("shared.skip", on_slow="skip", max_lag=100) as subscription, ThreadPoolExecutor(3) as pool:
        with client.producer("shared.skip", batch_messages=20) as producer:
            for _ in range(2_000):
                producer.send(b"x")
        (reader,) = subscription._core.readers.values()
        wait_until(lambda: reader.committed == 2_000, "the messages")
        futures = [pool.submit(work) for _ in range(3)]
        wait_until(lambda: subscription.statistics()["skipped"] > 0, "a skip")
        client.publish("shared.skip", "last")
        assert enough.wait(DEADLINE_S)
        subscription.close()
        assert not wait(futures, DEADLINE_S).not_done
        assert _skips_and_values(subscription, offsets) == list(range(2_001))


def test_a_task_that_is_cancelled_in_a_skip_loses_nothing(shared, monkeypatch):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            await client.create_topic("shared.skip.async")
            subscription = await client.subscribe("shared.skip.async", on_slow="skip", max_lag=10)
            producer = await client.producer("shared.skip.async", batch_messages=20)
            for _ in range(200):
                await producer.send(b"x")
            await producer.flush()
            (reader,) = subscription._core.readers.values()
            await until(lambda: subscription._inbox.items and reader.committed == 200)
            skipping = asyncio.Event()

            async def never(*_):
                skipping.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patched:
                patched.setattr(subscription._core.core, "find_offset", never)
                first = asyncio.create_task(subscription.get())
                await skipping.wait()
            second = asyncio.create_task(subscription.get())  # it waits for the first one
            await until(lambda: subscription._inbox._waiting)
            first.cancel()
            offsets = []
            await until(lambda: subscription.statistics()["skipped"])
            await client.publish("shared.skip.async", "last")
            offsets.append((await second).offset)
            while offsets[-1] < 200:
                offsets.append((await subscription.get(timeout=DEADLINE_S)).offset)
            await producer.close()
            return _skips_and_values(subscription, offsets)

    assert asyncio.run(asyncio.wait_for(work(), DEADLINE_S)) == list(range(201))
