"""Subscriptions: whatever way messages are taken, and wherever it is left, none is lost or given twice."""

import asyncio
import multiprocessing
import time

import pytest

import stentor
from stentor.client.reader import Delivery
from stentor.wire import batch, header

COUNT = 1_000  # in batches that come in one delivery
WAYS = ("for", "get", "batches", "offset_batches")


@pytest.fixture(scope="module", params=[50, 1], ids=["large batches", "small batches"])
def numbers(shared, request):
    """A topic with a thousand messages."""
    topic = f"numbers-{request.param}"
    with shared.client() as client:
        client.create_topic(topic)
        with client.producer(topic, batch_messages=request.param) as producer:
            for number in range(COUNT):
                producer.send(b"%d" % number)
    return topic


def pieces(subscription, way):
    """Offsets, a list at a time, as one way of taking gives them."""
    if way == "for":
        yield from ([message.offset] for message in subscription)
    elif way == "batches":
        yield from (found.column("offset").to_pylist() for found in subscription.batches())
    elif way == "offset_batches":
        yield from (list(range(first, first + rows.num_rows)) for first, rows in subscription.offset_batches())
    else:
        try:
            while True:
                yield [subscription.get(timeout=10).offset]
        except stentor.Closed:
            return


async def async_pieces(subscription, way):
    if way == "for":
        async for message in subscription:
            yield [message.offset]
    elif way == "batches":
        async for found in subscription.batches():
            yield found.column("offset").to_pylist()
    elif way == "offset_batches":
        async for first, rows in subscription.offset_batches():
            yield list(range(first, first + rows.num_rows))
    else:
        try:
            while True:
                yield [(await subscription.get(timeout=10)).offset]
        except stentor.Closed:
            return


# --- left and begun again -----------------------------------------------------------------------


@pytest.mark.parametrize("then", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_one_way_of_taking_goes_on_where_another_was_left(client, numbers, first, then):
    with client.subscribe(numbers, start="earliest", end="latest") as subscription:
        offsets = []
        for way in (first, then, first):
            for _, found in zip(range(3), pieces(subscription, way), strict=False):
                offsets += found
        for found in pieces(subscription, then):
            offsets += found
    assert offsets == list(range(COUNT))


@pytest.mark.parametrize("then", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_it_does_so_in_async_code(shared, numbers, first, then):
    async def work():
        offsets = []
        async with stentor.connect_async(shared.url) as client:
            subscription = await client.subscribe(numbers, start="earliest", end="latest")
            async for found in async_pieces(subscription, first):
                offsets += found
                break
            async for found in async_pieces(subscription, then):
                offsets += found
        return offsets

    assert asyncio.run(work()) == list(range(COUNT))


def test_two_ways_of_taking_may_take_turns(client, numbers):
    with client.subscribe(numbers, start="earliest", end="latest") as subscription:
        loop, tables, offsets = pieces(subscription, "for"), pieces(subscription, "batches"), []
        for found in loop:
            offsets += [*found, *next(tables, [])]
    assert offsets == list(range(COUNT))


def test_a_get_in_a_loop_takes_the_next_message(client, numbers):
    with client.subscribe(numbers, start="earliest", end="latest") as subscription:
        offsets = []
        for message in subscription:
            offsets.append(message.offset)
            if message.offset + 2 < COUNT:  # three at a time, so that a get is the first to come to a new batch
                offsets += [subscription.get(timeout=10).offset for _ in range(2)]
    assert offsets == list(range(COUNT))


def test_an_async_get_in_a_loop_takes_the_next_message(shared, numbers):
    async def work():
        offsets = []
        async with stentor.connect_async(shared.url) as client:
            subscription = await client.subscribe(numbers, start="earliest", end="latest")
            async for message in subscription:
                offsets.append(message.offset)
                if message.offset + 2 < COUNT:
                    offsets += [(await subscription.get(timeout=10)).offset for _ in range(2)]
        return offsets

    assert asyncio.run(work()) == list(range(COUNT))


@pytest.mark.parametrize("way", WAYS)
def test_credit_is_given_back_for_what_was_left_as_well(client, numbers, way, wait_until):
    with client.subscribe(numbers, start="earliest") as subscription:
        (reader,) = subscription._core.readers.values()
        taken = 0
        while taken < COUNT:
            taken += len(next(pieces(subscription, way)))
        wait_until(lambda: reader.waiting == 0, "the credit")


def test_small_batches_come_together_as_arrow_and_count_as_taken_when_all_are_handed_out(client):
    client.create_topic("small")
    with client.subscribe("small", start="earliest") as subscription:
        (reader,) = subscription._core.readers.values()
        body = b"".join(stored(base, 1) for base in range(500)) + stored(500, 100)
        subscription._inbox.put(Delivery(reader, body, 600))
        subscription._inbox.put(Delivery(reader, stored(600, 1), 601))
        before, tables = reader.taken, subscription.batches()
        assert next(tables).column("offset").to_pylist() == list(range(500))
        assert next(tables).column("offset").to_pylist() == list(range(500, 600))
        assert reader.taken == before
        assert next(tables).column("offset").to_pylist() == [600]
        assert reader.taken == 600


def test_batches_after_a_get_keep_the_offsets_that_compaction_left(client):
    client.create_topic("gaps")
    with client.subscribe("gaps", start="earliest") as subscription:
        (reader,) = subscription._core.readers.values()
        body = b"".join(stored(base, 3) for base in (0, 10, 20))
        subscription._inbox.put(Delivery(reader, body, 23))
        assert subscription.get(timeout=10).offset == 0
        tables = subscription.batches()
        assert [next(tables).column("offset").to_pylist() for _ in range(3)] == [[1, 2], [10, 11, 12], [20, 21, 22]]


def stored(base_offset, count):
    """A batch as a broker delivers it."""
    encoded = batch.encode([5] * count, [None] * count, [b"x"] * count)
    packed = batch.address(encoded, topic_id=1, partition=0, producer_id=3, generation=0, sequence=base_offset)
    header.stamp(memoryview(packed), 0, base_offset=base_offset, epoch=1, appended_at_us=5)
    return bytes(packed) + bytes(encoded.body)


# --- bounded reads ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 120])
def test_a_loop_over_a_read_may_be_left_and_begun_again(client, numbers, limit):
    history = client.read(numbers, limit=limit)
    offsets = [message.offset for _, message in zip(range(10), history, strict=False)]
    offsets += [message.offset for message in history]
    assert offsets == list(range(limit or COUNT))
    assert list(history) == []


def test_a_limit_counts_for_messages_and_tables_together(client, numbers):
    history = client.read(numbers, limit=120)
    for message in history:
        if message.offset == 9:
            break
    assert history.to_arrow().column("offset").to_pylist() == list(range(10, 120))
    assert history.to_arrow().num_rows == 0


def test_a_read_that_was_left_for_good_says_so(client, numbers):
    history = client.read(numbers)
    for _ in history.batches():
        break
    for take in (history.to_arrow, lambda: list(history), lambda: list(history.offset_batches())):
        with pytest.raises(stentor.Closed, match="left before its end"):
            take()


def test_an_async_read_that_was_left_for_good_says_so(shared, numbers):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            history = await client.read(numbers, limit=120)
            async for _ in history:
                break
            with pytest.raises(stentor.Closed, match="left before its end"):
                await history.to_arrow()
            whole = await client.read(numbers, limit=120)
            assert len([message async for message in whole]) == 120
            assert [message async for message in whole] == []

    asyncio.run(work())


# --- skipping -----------------------------------------------------------------------------------


def fall_behind(client, topic):
    """More than a subscription's credit, in a topic that exists."""
    with client.producer(topic) as producer:
        for _ in range(24):
            producer.send(bytes(500_000))


def test_a_subscriber_that_skipped_is_served_on(client, wait_until):
    client.create_topic("skipping")
    with client.subscribe("skipping", on_slow="skip", max_lag=10) as subscription:
        (reader,) = subscription._core.readers.values()
        fall_behind(client, "skipping")
        wait_until(lambda: reader.waiting >= subscription._core.credit, "a full inbox")
        with pytest.raises(stentor.DeadlineExceeded):
            subscription.get(timeout=0)
        for number in range(5):
            client.publish("skipping", b"%d" % number)
            assert subscription.get(timeout=5).value == b"%d" % number
        (skipped,) = subscription.events()
        assert (skipped.first_offset, skipped.next_offset) == (0, 24)
        wait_until(lambda: reader.waiting == 0, "the credit")


def test_an_async_subscriber_that_skipped_is_served_on(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            await client.create_topic("skipping.async")
            subscription = await client.subscribe("skipping.async", on_slow="skip", max_lag=10)
            (reader,) = subscription._core.readers.values()
            async with await client.producer("skipping.async") as producer:
                for _ in range(24):
                    await producer.send(bytes(500_000))
            deadline = time.monotonic() + 10
            while reader.waiting < subscription._core.credit:
                assert time.monotonic() < deadline
                await asyncio.sleep(0)
            with pytest.raises(stentor.DeadlineExceeded):
                await subscription.get(timeout=0)
            for number in range(5):
                await client.publish("skipping.async", b"%d" % number)
                assert (await subscription.get(timeout=5)).value == b"%d" % number
            assert reader.waiting == 0

    asyncio.run(work())


@pytest.fixture
def find_offset_fails(client, monkeypatch):
    """A switch: from then on nobody says where the end of a partition is."""
    find_offset = client._core.find_offset

    async def failing(*_):
        raise stentor.DeadlineExceeded("Nobody answers.")

    def switch(*, on):
        monkeypatch.setattr(client._core, "find_offset", failing if on else find_offset)

    return switch


def behind(client, topic, wait_until):
    """A subscriber that will skip: two hundred messages in its inbox, and nothing under way."""
    client.create_topic(topic)
    subscription = client.subscribe(topic, on_slow="skip", max_lag=100)
    (reader,) = subscription._core.readers.values()
    with client.producer(topic) as producer:
        producer.send_many([b"%d" % number for number in range(200)])
    wait_until(lambda: reader.received == 200, "all messages")
    return subscription


def test_a_skip_that_failed_is_tried_again(client, find_offset_fails, wait_until):
    with behind(client, "skip.again", wait_until) as subscription:
        find_offset_fails(on=True)
        for _ in range(2):
            with pytest.raises(stentor.DeadlineExceeded, match="Nobody answers"):
                subscription.get(timeout=5)
        find_offset_fails(on=False)
        with pytest.raises(stentor.DeadlineExceeded, match="No message"):
            subscription.get(timeout=0)
        client.publish("skip.again", "after")
        assert subscription.get(timeout=5).value == b"after"
        assert [(e.first_offset, e.next_offset) for e in subscription.events()] == [(0, 200)]


def test_a_skip_that_failed_loses_nothing(client, find_offset_fails, wait_until):
    with behind(client, "skip.none", wait_until) as subscription:
        find_offset_fails(on=True)
        with pytest.raises(stentor.DeadlineExceeded, match="Nobody answers"):
            subscription.get(timeout=5)
        subscription._core.max_lag = None
        client.publish("skip.none", "after")
        assert [subscription.get(timeout=5).offset for _ in range(201)] == list(range(201))
        assert subscription.events() == []


# --- after a fork -------------------------------------------------------------------------------


def _in_child(what, subscription, answers):
    try:
        if what == "close":
            subscription.close()
        elif what == "get":
            subscription.get()
        else:
            next(iter(pieces(subscription, what)))
    except stentor.ForkDetected:
        answers.put("refused")
    else:
        answers.put("went through")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("what", ["close", *WAYS])
def test_a_subscription_carried_over_a_fork_never_hangs(client, what):
    topic = f"forked.{what}"
    client.create_topic(topic)
    with client.subscribe(topic) as subscription:
        client.publish(topic, "a")
        client.publish(topic, "b")
        assert subscription.get(timeout=5).value == b"a"
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(what, subscription, answers))
        child.start()
        child.join(10)
        hangs = child.is_alive()
        child.kill()
        child.join()
        assert not hangs
        assert answers.get() == ("went through" if what == "close" else "refused")
        assert subscription.get(timeout=5).value == b"b", "it is the parent's still"
