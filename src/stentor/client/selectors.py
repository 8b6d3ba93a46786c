"""Which partition a message goes to, and which member of a chain a reader listens to: plain callables.

    client = stentor.connect(url, read_from=selectors.nearest_zone("eu-1"))
    producer = client.producer("orders", partitioner=selectors.round_robin())

A partitioner gets the key (or None) and the number of partitions, and names one. A selector of members gets
the brokers of a chain, head first, and returns them in the order in which they should be tried; whoever is
not among them is not used. Applications write their own in the same way.
"""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.wire.messages import BrokerInfo

    Partitioner: TypeAlias = Callable[[bytes | None, int], int]
    Selector: TypeAlias = Callable[[list[BrokerInfo]], list[BrokerInfo]]


# --- partitions ---------------------------------------------------------------------------------


def key_hash() -> Partitioner:
    """CRC-32 of the key modulo the number of partitions: a key stays in its partition. Without a key: in turn."""
    turn = count()
    return lambda key, partitions: (next(turn) if key is None else crc32(key)) % partitions


def round_robin() -> Partitioner:
    """Every message to the next partition, whatever its key."""
    turn = count()
    return lambda _, partitions: next(turn) % partitions


def fixed(partition: int) -> Partitioner:
    """Everything to one partition."""
    return lambda _, partitions: partition % partitions


# --- members of a chain -------------------------------------------------------------------------


def tail_first(brokers: list[BrokerInfo]) -> list[BrokerInfo]:
    """The tail knows first what is committed; the default."""
    return brokers[::-1]


def head_first(brokers: list[BrokerInfo]) -> list[BrokerInfo]:
    """The head, for readers that also publish."""
    return brokers


def spread(brokers: list[BrokerInfo]) -> list[BrokerInfo]:
    """Any member, so that many readers spread over all of them."""
    return random.sample(brokers, len(brokers))


def least_loaded(brokers: list[BrokerInfo]) -> list[BrokerInfo]:
    """Whoever has the fewest connections, by its own last report."""
    return sorted(brokers, key=lambda broker: broker.load)


def nearest_zone(zone: str) -> Selector:
    """Members in one's own zone before the others, the tail before the head."""
    return lambda brokers: sorted(tail_first(brokers), key=lambda broker: broker.zone != zone)


def sticky() -> Selector:
    """Whoever was used last, as long as it is a member."""
    last: list[str] = []

    def choose(brokers: list[BrokerInfo]) -> list[BrokerInfo]:
        ordered = sorted(tail_first(brokers), key=lambda broker: broker.id not in last)
        last[:] = [broker.id for broker in ordered[:1]]
        return ordered

    return choose
