"""Where messages end: a client waits until a broker is certain, or takes what is known if it may (C30)."""

import asyncio
import time
from datetime import timedelta

import msgspec
import pytest

import stentor
from stentor.client.link import BrokerLink
from stentor.errors import EndUnknown
from stentor.wire.messages import FindOffset

KNOWN = 3  # of five messages that are committed: what an unsure broker knows


@pytest.fixture
def unsure(monkeypatch):
    """A switch: from then on the broker is not certain where messages end. It counts how often it was asked."""
    request, asked = BrokerLink.request, []
    monkeypatch.setattr(stentor.limits, "NEW_HEAD_S", 0.2)

    async def answer(link, message):
        if not isinstance(message, FindOffset) or message.at == "earliest":
            return await request(link, message)
        asked.append(message)
        if not message.stale:
            raise EndUnknown("A member of the chain does not answer.", sure_to=KNOWN)
        found = await request(link, message)
        return msgspec.structs.replace(found, offset=min(found.offset, KNOWN), committed=KNOWN, sure=False)

    def switch(*, on):
        monkeypatch.setattr(BrokerLink, "request", answer if on else request)
        return asked

    return switch


@pytest.fixture
def five(client):
    topic = f"five.{time.monotonic_ns()}"
    for number in range(5):
        client.publish(topic, str(number))
    client._core.seen.forget({client.describe_topic(topic).id})  # somebody else has published them
    return topic


QUESTIONS = {
    "a read": lambda client, topic: client.read(topic, timeout=0.5),
    "offsets": lambda client, topic: client.offsets(topic, timeout=0.5),
    "from latest": lambda client, topic: client.subscribe(topic, timeout=0.5),
    "from the last": lambda client, topic: client.subscribe(topic, start=stentor.Last(2), timeout=0.5),
    "from a time": lambda client, topic: client.subscribe(topic, start=timedelta(hours=-1), timeout=0.5),
    "up to now": lambda client, topic: client.subscribe(topic, start=0, end="now", timeout=0.5),
    "typed": lambda client, topic: client.topic(topic, int).read(timeout=0.5),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_end_that_nobody_is_certain_of_is_an_error_at_the_deadline(client, five, unsure, question):
    asked = unsure(on=True)
    began = time.monotonic()
    with pytest.raises(EndUnknown, match=rf"{five}/0 .*within 0.5 s \(A member") as refused:
        QUESTIONS[question](client, five)
    assert 0.4 < time.monotonic() - began < 5
    assert refused.value.retriable
    assert refused.value.object == f"{five}/0"
    assert refused.value.sure_to >= KNOWN
    assert len(asked) > 1, "it was asked again"


@pytest.mark.parametrize("question", ["a read", "offsets", "from latest"])
def test_an_async_client_says_so_too(shared, five, unsure, question):
    async def ask():
        async with stentor.connect_async(shared.url) as client:
            unsure(on=True)
            await QUESTIONS[question](client, five)

    with pytest.raises(EndUnknown, match=five):
        asyncio.run(ask())


def test_a_read_waits_until_a_broker_is_certain(client, five, unsure):
    unsure(on=True)
    client._core.loop.call_soon_threadsafe(client._core.loop.call_later, 0.5, lambda: unsure(on=False))
    history = client.read(five, timeout=20)
    assert [message.value for message in history] == [b"0", b"1", b"2", b"3", b"4"]
    assert (history.sure, history.ends) == (True, {five: {0: 5}})


def test_a_start_needs_no_certain_end(client, five, unsure):
    unsure(on=True)
    with client.subscribe(five, start="earliest", timeout=5) as subscription:
        assert subscription.get(timeout=5).value == b"0"
    with client.subscribe(five, start=1, end=4, timeout=5) as subscription:
        assert [message.offset for message in subscription] == [1, 2, 3]
    assert client.offsets(five, "earliest", timeout=5) == {0: 0}


def test_what_is_known_may_be_had_and_says_how_far_it_goes(client, five, unsure):
    unsure(on=True)
    history = client.read(five, stale="allow", timeout=5)
    assert (history.sure, history.ends) == (False, {five: {0: KNOWN}})
    assert [message.offset for message in history] == [0, 1, 2]
    found = client.offsets(five, stale="allow", timeout=5)
    assert (found, found.sure) == ({0: KNOWN}, False)
    assert client.topic(five, int).read(stale="allow", timeout=5).sure is False
    assert client.topic(five, int).offsets(stale="allow", timeout=5).sure is False
    unsure(on=False)
    assert client.offsets(five, stale="allow").sure is True
    assert client.read(five, stale="allow").sure is True


def test_an_async_client_has_it_too(shared, five, unsure):
    async def ask():
        async with stentor.connect_async(shared.url) as client:
            unsure(on=True)
            history = await client.read(five, stale="allow", timeout=5)
            found = await client.offsets(five, stale="allow", timeout=5)
            assert (found, found.sure) == ({0: KNOWN}, False)
            assert (history.sure, history.ends) == (False, {five: {0: KNOWN}})
            return [message.offset async for message in history]

    assert asyncio.run(ask()) == [0, 1, 2]


@pytest.mark.parametrize("call", ["read", "offsets", "subscribe"])
def test_a_wrong_choice_is_told(client, five, call):
    with pytest.raises(stentor.InvalidArgument, match="'refuse' or 'allow'"):
        getattr(client, call)(five, stale=True)


def test_who_skips_needs_no_certain_end(client, five, unsure, wait_until):
    with client.subscribe(five, on_slow="skip", max_lag=2) as subscription:
        (reader,) = subscription._core.readers.values()
        with client.producer(five) as producer:
            producer.send_many([b"x"] * 20)
        wait_until(lambda: reader.received == 25, "all messages")
        client._core.seen.forget({reader.topic_id})
        unsure(on=True)
        with pytest.raises(stentor.DeadlineExceeded, match="No message"):
            subscription.get(timeout=0)
        assert [(event.first_offset, event.next_offset) for event in subscription.events()] == [(5, 25)]
