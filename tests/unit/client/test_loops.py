"""Clients and event loops: each client has one, and says so where it is used in another."""

import asyncio
import warnings

import pytest

import stentor
from stentor.errors import InvalidArgument
from stentor.testing import broker


@pytest.fixture(scope="module")
def local():
    with broker() as started:
        yield started


def test_a_client_that_is_used_in_another_event_loop_gets_a_typed_error(local):
    async def opened():
        client = await stentor.connect_async(local.url)
        await client.publish("t", b"x")
        return client, await client.subscribe("t", start="earliest"), await client.producer("t")

    async def used(call):
        await call()

    first = asyncio.new_event_loop()
    client, subscription, producer = first.run_until_complete(opened())
    try:
        for call in (
            lambda: client.publish("t", b"x"),
            client.topics,
            lambda: client.subscribe("t"),
            subscription.get,
            client.close,
            producer.flush,
            producer.close,
        ):
            with pytest.raises(InvalidArgument, match="another event loop"):
                asyncio.run(used(call))
        assert first.run_until_complete(subscription.get()).value == b"x"
    finally:
        first.run_until_complete(client.close())
        first.close()


def test_the_sync_client_warns_inside_a_running_loop_and_works(local):
    async def inside():
        with pytest.warns(RuntimeWarning, match="connect_async"), stentor.connect(local.url) as client:
            return client.publish("t", b"x").offset

    assert asyncio.run(inside()) >= 0


def test_the_warning_points_at_the_line_that_connects(local):
    async def inside():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stentor.connect(local.url).close()
        return caught

    [warning] = asyncio.run(inside())
    assert warning.filename == __file__
