"""Who is let in when there is hardly room: other brokers are, strangers wait or go."""

from types import SimpleNamespace

import pytest

from stentor import limits
from stentor.broker.environment import BrokerIdentity
from stentor.broker.sessions.admission import Admission
from stentor.errors import Closed


class Guest:
    """A session that was refused or not."""

    connections = 1

    def __init__(self, *, is_peer=False):
        self.is_peer = is_peer
        self.refusals = []
        self.connection = SimpleNamespace(favoured=False, unsent_bytes=0)
        self.deaf_since = 0.0

    def refused(self, error):
        self.refusals.append(error)

    def sweep(self, now): ...
    def excuse(self, now): ...


@pytest.fixture
def broker():
    return SimpleNamespace(
        environment=SimpleNamespace(
            config=SimpleNamespace(connections_max=3),
            clock=SimpleNamespace(monotonic=lambda: 100.0),
            slices=SimpleNamespace(begin=lambda _, pieces, then: ([piece() for piece in pieces], then())),
        ),
        identity=BrokerIdentity(),
        partitions={},
    )


@pytest.fixture
def guests(broker):
    return Admission(broker.environment, broker.identity, broker.partitions)


def arrive(guests, count=1):
    arrived = [Guest() for _ in range(count)]
    for guest in arrived:
        guests.started(guest)
    return arrived


def prove(guests, newcomer):
    """It is another broker."""
    peer = Guest(is_peer=True)
    guests.became(newcomer, peer)
    return peer


def test_a_broker_that_comes_back_gets_in_although_strangers_fill_the_house(guests):
    arrive(guests, 3)
    (newcomer,) = arrive(guests)
    peer = prove(guests, newcomer)
    guests.sweep(200.0, lagged=False)
    assert not newcomer.refusals
    assert not peer.refusals
    assert peer.connection.favoured


def test_brokers_are_not_counted_against_clients(guests):
    for newcomer in arrive(guests, 3):
        prove(guests, newcomer)
    clients = arrive(guests, 3)
    for client in clients:
        guests.greeted(client)
    assert not any(client.refusals for client in clients)
    (late,) = arrive(guests)
    with pytest.raises(Closed, match="3 connections"):
        guests.greeted(late)


def test_who_does_not_greet_at_once_leaves_the_antechamber(guests):
    arrive(guests, 3)
    (slow,) = arrive(guests)
    guests.sweep(100.0 + limits.ANTECHAMBER_S / 2, lagged=False)
    assert not slow.refusals
    guests.sweep(100.1 + limits.ANTECHAMBER_S, lagged=False)
    assert isinstance(slow.refusals[0], Closed)


def test_a_full_antechamber_lets_the_oldest_go_for_the_newest(guests):
    arrive(guests, 3)
    waiting = arrive(guests, limits.ANTECHAMBER_CONNECTIONS)
    (newcomer,) = arrive(guests)
    assert [len(guest.refusals) for guest in waiting[:2]] == [1, 0]
    assert not prove(guests, newcomer).refusals
    assert not newcomer.refusals


def test_a_broker_on_its_own_says_at_once_that_it_is_full(guests, broker):
    broker.identity.alone = True
    arrive(guests, 3)
    (late,) = arrive(guests)
    assert isinstance(late.refusals[0], Closed)


def test_places_are_given_back(guests):
    first, *_ = arrive(guests, 3)
    guests.ended(first)
    (next_one,) = arrive(guests)
    guests.greeted(next_one)
    assert not next_one.refusals


def test_logs_take_descriptors_from_clients(guests, broker, monkeypatch):
    monkeypatch.setattr("stentor.broker.sessions.admission.descriptor_limit", lambda: 1024)
    guests._connections_max = 10_000
    assert guests.clients_max == 1024 - limits.DESCRIPTORS_RESERVED - limits.HTTP_CONNECTIONS_MAX
    broker.partitions.update(dict.fromkeys(range(600)))
    assert guests.clients_max == 1024 - limits.DESCRIPTORS_RESERVED - limits.HTTP_CONNECTIONS_MAX - 600
