"""The routes a client knows: what a whole table, and one that may be old, do to them."""

import asyncio

import pytest
import uvloop

import stentor
from stentor import limits
from stentor.client import routes
from stentor.client.link import BrokerLink
from stentor.errors import NotReady
from stentor.testing import broker
from stentor.wire.messages import PartitionRoute, RouteTable, TopicRoute, TopicSettings, WatchRoutes


def topic(name, number, *epochs):
    partitions = [PartitionRoute(epoch=epoch, chain=[f"b{epoch}"]) for epoch in epochs]
    return TopicRoute(name=name, id=number, settings=TopicSettings(), partitions=partitions)


def ids_and_epochs(known):
    return {name: (route.id, [p.epoch for p in route.partitions]) for name, route in known.items()}


KNOWN = {"stays": topic("stays", 1, 5, 5), "anew": topic("anew", 7, 1), "new": topic("new", 8, 1)}
TABLE = [topic("stays", 1, 4, 6), topic("anew", 2, 9), topic("other", 3, 1)]


def test_a_table_replaces_what_was_known_but_newer_epochs():
    assert ids_and_epochs(routes.replaced(KNOWN, TABLE)) == {"stays": (1, [5, 6]), "anew": (2, [9]), "other": (3, [1])}


def test_a_table_that_may_be_old_adds_to_what_is_known_and_takes_nothing_away():
    assert ids_and_epochs(routes.merged(KNOWN, TABLE)) == {
        "stays": (1, [5, 6]),
        "anew": (7, [1]),
        "new": (8, [1]),
        "other": (3, [1]),
    }


@pytest.fixture
def asked(monkeypatch):
    """Whether a table that may be old would have done, of each time one was asked for."""
    found = []
    request = BrokerLink.request

    async def noted(link, message):
        if isinstance(message, WatchRoutes):
            found.append(message.stale)
        return await request(link, message)

    monkeypatch.setattr(BrokerLink, "request", noted)
    return found


def test_after_an_ordinary_outage_a_client_wants_a_home_that_knows_what_is(asked):
    with broker() as local, local.client() as client:
        local.stop()
        with pytest.raises(stentor.DeadlineExceeded):
            client.topics(timeout=0.3)  # so some attempts have failed
        local.start()
        client.topics()
        assert not client._core.home.settled
    assert asked == [False, False]


def test_a_home_that_only_knows_what_was_hides_no_topic_until_it_knows_what_is(shared, monkeypatch):
    """It says that it is cut off, nobody else is there, so it will do; then it hears from its cluster."""
    cut_off = asyncio.Event()
    request = BrokerLink.request

    async def answer(link, message):
        if not isinstance(message, WatchRoutes) or not cut_off.is_set():
            return await request(link, message)
        if not message.stale:
            raise NotReady("This broker is cut off from its cluster.")
        return RouteTable(version=1, brokers=[], topics=[])

    async def run():
        async with stentor.connect_async(shared.url) as client:
            await client.publish("newer.than.the.table", "before")
            core = client._core
            monkeypatch.setattr(BrokerLink, "request", answer)
            cut_off.set()
            core.link.give_way()
            await core.link_within(10, "find a home again")
            assert core.home.settled
            assert "newer.than.the.table" in core.routes
            await client.publish("newer.than.the.table", "meanwhile", timeout=10)
            cut_off.clear()
            async with asyncio.timeout(10):
                while core.home.settled:
                    await core.changes(0.1)
            return core.links_made

    monkeypatch.setattr(limits, "LINK_AVOIDED_S", 0.05)
    assert uvloop.run(run()) == 2  # it stayed where it was
