"""Deadlines: a call ends within its own, whatever others do."""

import asyncio
import time

import pytest
import uvloop

import stentor
from stentor.client.link import Link

LARGE = bytes(2_000_000)  # a batch of its own


def test_flush_waits_for_what_was_sent_before_and_not_for_what_others_send(shared):
    """Every answer makes another message here: there is no moment at which nothing is under way."""

    async def run():
        async with stentor.connect_async(shared.url) as client, await client.producer("busy") as producer:
            heard = []

            def again(receipt, error):
                heard.append(error)
                if not stopped.is_set():
                    producer.offer(b"more", None, None, None, None, again)

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
        publisher._core.buffer_bytes = 1
        monkeypatch.setattr(Link, "publish", lambda *_: None)  # nobody answers
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
            publisher._core.buffer_bytes = 1
            monkeypatch.setattr(Link, "publish", lambda *_: None)
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
        monkeypatch.setattr(Link, "request", never)
        began = time.monotonic()
        with pytest.raises(stentor.DeadlineExceeded):
            client.publish("not.known.yet", "x", timeout=0.2)
        assert time.monotonic() - began < 5


def test_a_deadline_in_the_past_has_passed(client):
    client.publish("past", "x")
    with pytest.raises(stentor.DeadlineExceeded):
        client.topics(timeout=-1)
