"""Deadlines: a call ends within its own, whatever others do."""

import asyncio
import threading
import time

import pytest
import uvloop

import stentor
from stentor.client.link import BrokerLink
from stentor.testing import broker
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
        with pytest.raises(stentor.UnknownOutcome, match=r"within 0\.2 s"):
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
            with pytest.raises(stentor.UnknownOutcome, match=r"within 0\.2 s"):
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


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), True, "1"])
def test_a_deadline_in_the_past_is_none(client, timeout):
    client.publish("past", "x")
    before = client.offsets("past")
    for call in (
        lambda: client.topics(timeout=timeout),
        lambda: client.publish("past", "never", timeout=timeout),
        lambda: client.producer("past", timeout=timeout),
        lambda: client.request("past", timeout=timeout),
        lambda: client.close(timeout=timeout),
    ):
        with pytest.raises(stentor.InvalidArgument, match="timeout="):
            call()
    assert client.offsets("past") == before


def test_no_time_is_no_message_and_all_time_is_a_deadline(client):
    client.publish("past", "x", timeout=float("inf"))
    before = client.offsets("past")
    with pytest.raises(stentor.DeadlineExceeded):
        client.publish("past", "never", timeout=0)
    assert client.offsets("past") == before


# --- what a publish says of its message at its deadline ------------------------------------------


def values_of(client, topic):
    return [message.value for message in client.read(topic)]


def test_a_publish_that_could_not_be_sent_within_its_time_is_never_published():
    with broker() as local, local.client() as client:
        client.publish("late", "before")
        local.stop()
        with pytest.raises(stentor.DeadlineExceeded, match=r"within 0\.3 s.* It was not published\."):
            client.publish("late", "never", timeout=0.3)
        assert client._publishers["late", "all"].statistics()["in_flight_batches"] == 0
        local.start()
        client.publish("late", "after")
        assert values_of(client, "late") == [b"before", b"after"]


def test_a_publish_that_was_sent_and_not_answered_is_unknown_and_leaves_nothing_to_close(shared, monkeypatch):
    client = shared.client(timeout=60)
    client.publish("unanswered", "x")
    monkeypatch.setattr(BrokerLink, "publish", lambda *_: None)
    with pytest.raises(stentor.UnknownOutcome, match=r"within 0\.2 s.* may be in the log"):
        client.publish("unanswered", "y", timeout=0.2)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 20


def test_a_task_that_is_cancelled_takes_its_message_with_it():
    with broker() as local:

        async def run():
            async with stentor.connect_async(local.url, timeout=60) as client:
                await client.publish("cancelled", "before")
                local.stop()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.publish("cancelled", "never"), 0.3)
                (publisher,) = client._publishers.values()
                assert publisher.statistics()["in_flight_batches"] == 0
                local.start()
                await client.publish("cancelled", "after")
                async with client.read("cancelled") as history:
                    return [message.value async for message in history]

        assert uvloop.run(run()) == [b"before", b"after"]


def test_one_message_that_is_given_up_takes_no_other_with_it():
    """Both wait for the broker, in one batch or in two; the patient one is published alone."""
    with broker() as local:

        async def run():
            async with stentor.connect_async(local.url, timeout=60) as client:
                await client.publish("patience", "before")
                local.stop()
                patient = [asyncio.ensure_future(client.publish("patience", name)) for name in ("a", "b")]
                hasty = [asyncio.ensure_future(client.publish("patience", "never", timeout=0.3)) for _ in range(3)]
                patient += [asyncio.ensure_future(client.publish("patience", name)) for name in ("c", "d")]
                outcomes = await asyncio.gather(*hasty, return_exceptions=True)
                local.start()
                receipts = await asyncio.gather(*patient)
                async with client.read("patience") as history:
                    return outcomes, [r.offset for r in receipts], [message.value async for message in history]

        outcomes, offsets, values = uvloop.run(run())
        assert [type(outcome) for outcome in outcomes] == [stentor.DeadlineExceeded] * 3
        assert values == [b"before", b"a", b"b", b"c", b"d"]
        assert offsets == [1, 2, 3, 4]


def test_a_publish_may_have_more_time_than_its_client():
    with broker() as local, local.client(timeout=0.2) as client:
        client.publish("patient", "before", timeout=10)
        local.stop()
        ended = []
        waits = threading.Thread(target=lambda: ended.append(client.publish("patient", "after", timeout=30)))
        waits.start()
        with pytest.raises(stentor.DeadlineExceeded):
            client.publish("patient", "never")
        local.start()
        waits.join(30)
        assert [receipt.offset for receipt in ended] == [1]


def test_a_producer_and_a_client_close_within_the_time_they_are_given(monkeypatch):
    with broker() as local:
        client = local.client(timeout=60)
        producer = client.producer("closing")
        local.stop()
        producer.send("x")
        began = time.monotonic()
        with pytest.raises(stentor.PublishError, match="not published") as error:
            producer.close(timeout=0.2)
        assert [failed.count for failed in error.value.failed] == [1]
        with pytest.raises(stentor.InvalidArgument):
            client.close(timeout=-1)
        client.close(timeout=0.2)
        assert time.monotonic() - began < 20


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
