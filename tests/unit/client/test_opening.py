"""What async clients open can be awaited, or entered at once."""

import asyncio

import pytest

import stentor


def run(shared, work):
    async def main():
        async with stentor.connect_async(shared.url) as client:
            return await work(client)

    return asyncio.run(main())


def test_a_producer_and_a_subscription_are_entered_without_await(shared):
    async def work(client):
        async with client.producer("opening.plain") as producer:
            await producer.send("one")
        async with client.subscribe("opening.plain", start="earliest") as subscription:
            message = await subscription.get(timeout=5)
        with pytest.raises(stentor.Closed):
            await producer.send("two")
        with pytest.raises(stentor.Closed):
            await subscription.get(timeout=5)
        return message.value

    assert run(shared, work) == b"one"


def test_a_read_is_iterated_or_entered_without_await(shared):
    async def work(client):
        await client.publish("opening.read", "one")
        async with client.read("opening.read") as history:
            entered = [message.value async for message in history]
        return entered, [message.value async for message in client.read("opening.read")]

    assert run(shared, work) == ([b"one"], [b"one"])


def test_they_are_awaited_as_ever(shared):
    async def work(client):
        async with await client.producer("opening.awaited") as producer:
            await producer.send("one")
        subscription = await asyncio.wait_for(client.subscribe("opening.awaited", start="earliest"), 5)
        history = await asyncio.create_task(client.read("opening.awaited"))
        (producer,) = await asyncio.gather(client.producer("opening.awaited"))
        await producer.close()
        return (await subscription.get(timeout=5)).value, [message.value async for message in history]

    assert run(shared, work) == (b"one", [b"one"])


def test_what_fails_to_open_says_why_and_leaves_nothing(shared):
    async def work(client):
        with pytest.raises(stentor.InvalidArgument, match="ack"):
            async with client.producer("opening.wrong", ack="some"):
                pytest.fail("it was entered")
        with pytest.raises(stentor.TopicNotFound):
            async with client.read("opening.nowhere"):
                pytest.fail("it was entered")

    run(shared, work)


def test_one_opening_opens_once(shared):
    async def work(client):
        opening = client.producer("opening.once")
        producer = await opening
        await producer.close()
        with pytest.raises(RuntimeError):
            await opening

    run(shared, work)


def test_an_error_in_the_block_is_the_one_to_see(shared):
    producers = []

    async def work(client):
        async with client.producer("opening.error") as producer:
            producers.append(producer)
            await producer.send("one")
            raise KeyError

    with pytest.raises(KeyError):
        run(shared, work)
    assert producers[0].statistics()["messages_acknowledged"] == 1


def test_nobody_waits_for_what_is_dropped(shared):
    async def work(client):
        client.producer("opening.dropped")

    with pytest.warns(RuntimeWarning, match="never awaited"):
        run(shared, work)
