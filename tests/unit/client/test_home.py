"""Where a client looks for a home."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from stentor import limits
from stentor.client.home import Candidates, Home
from stentor.errors import NotReady


class Clock:
    """A loop's time, moved by a test."""

    now = 100.0

    def time(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def candidates(clock):
    brokers = {
        name: SimpleNamespace(address=f"{name}:1", alive=name != "dead") for name in ("given", "learned", "dead")
    }

    async def make():
        return Candidates(["given:1", "other:1"], SimpleNamespace(brokers=brokers))

    made = asyncio.run(make())
    made._loop = clock
    return made


def test_it_is_one_of_the_addresses_given_or_a_broker_that_is_alive(candidates):
    assert sorted(candidates.all()) == ["given:1", "learned:1", "other:1"]


def test_the_one_that_was_lost_comes_last(candidates):
    assert {candidates.all("given:1")[-1] for _ in range(50)} == {"given:1"}


def test_clients_spread_over_the_brokers(candidates):
    assert {candidates.all()[0] for _ in range(200)} == {"given:1", "learned:1", "other:1"}


def test_one_that_said_it_is_none_is_avoided_for_a_while(candidates, clock):
    assert not candidates.avoids_some()
    candidates.avoid("other:1")
    assert candidates.avoids_some()
    assert candidates.fresh(["given:1", "other:1"]) == ["given:1"]
    clock.now += limits.LINK_AVOIDED_S
    assert candidates.fresh(["given:1", "other:1"]) == ["given:1", "other:1"]


def test_clients_that_start_where_no_broker_is_ready_do_not_ask_in_step(monkeypatch):
    """A thousand of them may be started together, by the same hand."""
    spans = []

    def drawn(low, high):
        spans.append((low, high))
        return 0.0

    async def nobody_is_ready(*_):
        await asyncio.sleep(0)
        raise NotReady("This broker is cut off from its cluster.")

    async def start():
        await Home(["a:1"], SimpleNamespace(brokers={}, race=nobody_is_ready), timeout=0.1).start()

    monkeypatch.setattr(random, "uniform", drawn)
    with pytest.raises(NotReady):
        asyncio.run(start())
    assert spans[:6] == [(0, 0.05), (0, 0.1), (0, 0.2), (0, 0.4), (0, 0.8), (0, 1.0)]
