"""Directed runs of what operators ask for: a copy that shall lead although it may not (C13), drained brokers (K2)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

from tests.virtual.operators import Operators
from tests.virtual.scene import Scene, require, scene
from tests.virtual.workload import TOPIC

from stentor.broker import broker
from stentor.broker.catalogue import deleted_key
from stentor.broker.cluster import deletion_marks

if TYPE_CHECKING:
    from collections.abc import Callable


def torn_alone() -> None:
    """C13: the power goes at the only copy of a topic that shall have two by now. It waits, and loses nothing."""
    torn = sum(_torn_alone(seed) for seed in range(80, 84))
    require(torn >= 2, "nothing was torn")


def _torn_alone(seed: int) -> bool:
    with scene(seed, replicas=1) as s:
        (head,) = s.chain
        s.hang(head)
        s.go(0.3)
        s.kill(head, power=True)
        s.ask(lambda client: client.alter_topic(TOPIC, replicas=2), 5)
        s.start(head)
        s.go(5)
        if not s.partition(head).log.recovery.truncated:
            return False  # by chance, all that was written was on disk
        _help(s, replicas=2)
        return True


def all_failed() -> None:
    """C13: a sync fails at every member. They wait, also when their brokers are started again, and lose nothing."""
    for seed in (84, 85):
        with scene(seed) as s:
            for disk in s.disks.values():
                disk.fails = True
            s.go(2)
            for name in s.disks:
                s.kill(name, power=False)
                s.start(name)
            s.go(5)
            _help(s, replicas=3)


def failed_beside_torn() -> None:
    """C13: the disk of one member is gone for good, and the other one was torn. It leads when the first is off."""
    torn = sum(_failed_beside_torn(seed) for seed in range(86, 90))
    require(torn >= 2, "nothing was torn")


def _failed_beside_torn(seed: int) -> bool:
    with scene(seed, replicas=2, min_replicas=2) as s:
        first, second = s.chain
        s.hang(second)
        s.go(0.2)
        s.disks[first].fails = True
        s.kill(second, power=True)
        s.go(0.1)
        s.start(second)
        s.go(3)
        if not s.partition(second).log.recovery.truncated:
            return False  # by chance, all that was written was on disk
        require(s.partition(first).replica.failed != "", "the first one has not failed", s.record)
        operators = Operators(s.cluster)
        require(operators.awaited(s.key), "nobody waits for an operator", s.record)
        s.kill(first, power=False)
        s.go(2)
        operators.recover(s.key, second)
        s.start(first)
        _goes_on(s, operators, replicas=2)
        return True


def copy_with_a_hole() -> None:
    """K2: a copy that left its chain loses a bit, and is wanted again: it is begun anew, since another one has all."""
    with scene(90, replicas=1) as s:
        s.go(2)
        (first,) = s.chain
        s.ask(lambda client: client.drain_broker(first), 5)
        require(s.go(10, lambda: len(s.chain) == 1 and s.chain != [first]), "nothing was moved", s.record)
        s.kill(first, power=False)
        s.flip(first)
        s.start(first)
        require(s.go(5, lambda: s.cluster.partitions(first).get(s.key) is not None), "the copy is not opened")
        require(bool(s.partition(first).log.damaged), "nothing is damaged")
        s.ask(lambda client: client.drain_broker(first, draining=False), 5)
        for name in s.disks:
            if name != first:
                s.ask(lambda client, name=name: client.drain_broker(name), 5)
        require(s.go(10, lambda: s.chain == [first]), "nothing was moved back", s.record)
        damaged = s.partition(first).log.damaged
        require(not damaged, "messages are lost that another broker had", damaged)


def deleted_while_away() -> None:
    """E8, C27: the mark of a deleted topic stays until a broker that was away has removed its copies, and then goes."""
    patches = patch.multiple(deletion_marks, MARK_AGE_S=3.0), patch.object(broker, "MARKS_LOOK_S", 1.0)
    with patches[0], patches[1], scene(140) as s:
        s.ask(lambda client: client.create_topic("gone", replicas=3), 5)
        topic_id = s.broker(s.chain[0]).parts.ground.catalogue.topics["gone"].record.id
        away = next(name for name in s.disks if name != s.controller)
        s.kill(away, power=False)
        s.go(2)
        s.ask(lambda client: client.delete_topic("gone"), 5)
        s.go(15)
        require(deleted_key(topic_id) in s.store.entries, "the mark went before a broker that was away has heard of it")
        s.start(away)
        require(s.go(15, lambda: deleted_key(topic_id) not in s.store.entries), "the mark stays", s.store.entries)
        s.go(1)
        for name in s.disks:
            parts = s.broker(name).parts
            require(topic_id not in parts.copies.topics_on_disk(), "a broker has something of it", name)
            require(not parts.ground.catalogue.deleted, "a broker knows of the mark", name)
        s.ask(lambda client: client.create_topic("gone", replicas=3), 5)
        s.ask(lambda client: client.delete_topic("gone"), 5)
        gone = lambda: not any(key.startswith("deleted/") for key in s.store.entries)  # noqa: E731 - said once
        require(s.go(20, gone), "the next mark stays", s.store.entries)


def _help(s: Scene, replicas: int) -> None:
    operators = Operators(s.cluster)
    require(operators.awaited(s.key), "nobody waits for an operator", s.record)
    operators.help(s.key)
    _goes_on(s, operators, replicas)


def _goes_on(s: Scene, operators: Operators, replicas: int) -> None:
    require(s.go(10, lambda: len(s.chain) == replicas), "the chain is not whole", operators.done, s.record)
    require(not operators.awaited(s.key), "an operator is awaited who has helped", s.record)
    before = s.checker.acknowledgements
    s.go(2)
    require(s.checker.acknowledgements > before, "nothing goes on", operators.done, s.record)


RUNS: dict[str, Callable[[], None]] = {
    run.__name__: run for run in (torn_alone, all_failed, failed_beside_torn, copy_with_a_hole, deleted_while_away)
}
