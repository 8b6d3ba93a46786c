"""Deadlines: a call ends within its own, whatever others do."""

import asyncio
import threading
import time

import pytest
import uvloop

import stentor
from stentor.client.link import BrokerLink
from stentor.wire import messages

LARGE = bytes(2_000_000)  # a batch of its own


def test_flush_waits_for_what_was_sent_before_and_not_for_what_others_send(shared):
    """Every answer makes another message here: there is no moment at which nothing is under way."""

    async def run():
        async with stentor.connect_async(shared.url) as client, await client.producer("busy") as producer:
            heard = []

            def again(receipt, error):
                heard.append(error)
                if not stopped.is_set():
                    producer._offer(b"more", None, None, None, None, again)

            stopped = asyncio.Event()
            for _ in range(10):
                await producer.send(b"first", on_delivery=again)
            try:
                await producer.flush(timeout=5)
            finally:
                stopped.set()
            return heard

    heard = uvloop.run(run())
    assert len(heard) >= 10
    assert set(heard) == {None}


def test_a_publish_ends_at_its_own_deadline_when_too_much_is_under_way(shared, monkeypatch):
    with shared.client(timeout=10) as client:
        client.publish("full", "x")
        (publisher,) = client._publishers.values()
        publisher._core.room.buffer_bytes = 1
        monkeypatch.setattr(BrokerLink, "publish", lambda *_: None)  # nobody answers
        began = time.monotonic()
        with pytest.raises(stentor.DeadlineExceeded, match=r"within 0\.2 s"):
            client.publish("full", LARGE, timeout=0.2)
        assert time.monotonic() - began < 5
        client._core.loop.call_soon_threadsafe(publisher._core.discard)


def test_an_awaited_publish_does_so_too(shared, monkeypatch):
    async def run():
        async with stentor.connect_async(shared.url, timeout=10) as client:
            await client.publish("full", "x")
            (publisher,) = client._publishers.values()
            publisher._core.room.buffer_bytes = 1
            monkeypatch.setattr(BrokerLink, "publish", lambda *_: None)
            began = time.monotonic()
            with pytest.raises(stentor.DeadlineExceeded, match=r"within 0\.2 s"):
                await client.publish("full", LARGE, timeout=0.2)
            publisher._core.discard()
            return time.monotonic() - began

    assert uvloop.run(run()) < 5


def test_a_publish_to_a_topic_that_is_not_known_yet_has_one_deadline_for_all_it_does(shared, monkeypatch):
    async def never(*_):
        await asyncio.get_running_loop().create_future()

    with shared.client(timeout=10) as client:
        monkeypatch.setattr(BrokerLink, "request", never)
        began = time.monotonic()
        with pytest.raises(stentor.DeadlineExceeded):
            client.publish("not.known.yet", "x", timeout=0.2)
        assert time.monotonic() - began < 5


def test_a_deadline_in_the_past_has_passed(client):
    client.publish("past", "x")
    with pytest.raises(stentor.DeadlineExceeded):
        client.topics(timeout=-1)


# --- one deadline for all steps of a call -------------------------------------------------------


@pytest.fixture
def slow_broker(monkeypatch):
    """A broker that takes most of a second for the routes, and answers nothing else."""
    request = BrokerLink.request

    async def slowly(link, message):
        if not isinstance(message, messages.WatchRoutes):
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.7)
        return await request(link, message)

    return lambda: monkeypatch.setattr(BrokerLink, "request", slowly)


STEPS = {
    "offsets": lambda client: client.offsets("steps", timeout=1),
    "read": lambda client: client.read("steps", timeout=1),
    "subscribe": lambda client: client.subscribe("steps", end="now", timeout=1),
    "recover": lambda client: client.recover_partition("steps", 0, timeout=1),
    "describe": lambda client: client.describe_topic("steps", timeout=1),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_call_of_several_steps_has_one_deadline(shared, slow_broker, step):
    with shared.client(timeout=10) as client:
        client.publish("steps", "x")
        slow_broker()
        client._core.routing.routes = {}
        began = time.monotonic()
        with pytest.raises(stentor.DeadlineExceeded, match="within 1 s"):
            STEPS[step](client)
        assert time.monotonic() - began < 1.6, "the routes took most of the time that there was"


def test_a_call_may_take_as_long_as_it_says_even_if_the_client_allows_less(shared, monkeypatch):
    with shared.client(timeout=0.5) as client:
        client.publish("longer", "x")
        request = BrokerLink.request

        async def slowly(link, message):
            await asyncio.sleep(0.7)
            return await request(link, message)

        monkeypatch.setattr(BrokerLink, "request", slowly)
        client.subscribe("longer", start="earliest", end="latest", timeout=10).close()


def test_a_message_is_told_of_within_its_time_although_it_waited_behind_another(shared, monkeypatch, wait_until):
    """Its time begins when it is sent, not when the batch before it was given up."""
    with shared.client() as client:
        producer = client.producer("behind.another", timeout=2)
        monkeypatch.setattr(BrokerLink, "publish", lambda *_: None)  # nobody answers
        told, heard = [], threading.Event()
        producer.send("first")
        wait_until(lambda: producer._core.single.pending, "the batch that nobody answers")
        began = time.monotonic()
        producer.send("second", on_delivery=lambda *_: (told.append(time.monotonic() - began), heard.set()))
        assert heard.wait(10)
        assert told[0] < 3.5
        client._core.loop.call_soon_threadsafe(producer._core.discard)


def test_a_typed_get_has_one_deadline_whatever_it_skips(client, monkeypatch):
    client.create_topic("typed.deadline")
    topic = client.topic("typed.deadline", int, on_error="skip")
    with topic.subscribe() as subscription:
        inner, given = subscription._inner, []
        get = type(inner).get

        def noted(self, timeout=None):
            given.append(timeout)
            return get(self, timeout)

        monkeypatch.setattr(type(inner), "get", noted)
        for value in ("no number", "neither", "7"):
            client.publish("typed.deadline", value)
        assert subscription.get(timeout=5).value == 7
        assert len(given) == 3
        assert given == sorted(set(given), reverse=True), "each has less time than the one before"
