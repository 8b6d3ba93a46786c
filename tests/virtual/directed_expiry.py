"""Directed runs with keys that expire (C21)."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from tests.virtual.expiry_load import EXPIRING, LATE_S, Promises
from tests.virtual.scene import Scene, require, scene
from tests.virtual.world import SECOND

from stentor.broker.catalogue import chain_key, encode
from stentor.broker.partitions.expiring import table_of
from stentor.core.controller import Controller
from stentor.errors import StentorError
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.virtual.world import Process

    from stentor.client.table import AsyncTable
    from stentor.client.table_copy import TableEntry
    from stentor.core.records import ChainRecord, Key

GRACE_S = 3.0
FAILOVER_S = 5.0
BEAT_US = 100_000


class Keeping:
    """A table whose keys expire, in a scene."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.promises = Promises(s.cluster)
        self.table: AsyncTable | None = None

    @property
    def key(self) -> Key:
        catalogue = next(iter(self.s.cluster.brokers.values())).parts.ground.catalogue
        return catalogue.get(EXPIRING).record.id, 0

    @property
    def record(self) -> ChainRecord:
        return self.s.checker.record(self.key)

    @property
    def chain(self) -> list[str]:
        return [member.broker for member in self.record.chain]

    def own(self, name: str = "owner") -> Process:
        """Somebody with a copy, who does as told."""
        process = self.s.cluster.process(name)

        async def open_table() -> None:
            client = await self.s.cluster.client(name)
            self.table = await client.table(EXPIRING)

        opening = process.run(open_table())
        require(self.s.go(10, opening.done), "no copy")
        opening.result()
        return process

    def do(self, process: Process, what: Callable[[AsyncTable], Any], seconds: float = 10) -> Any:
        """One call, and its result."""
        assert self.table is not None
        doing = process.run(what(self.table))
        require(self.s.go(seconds, doing.done), "a call does not end")
        return doing.result()

    def put(self, process: Process, name: str, **how: Any) -> TableEntry:
        asked = self.s.world.now
        entry = self.do(process, lambda table: table.put(name, "1", **how))
        self.promises.stays(entry, asked, "put")
        return entry

    def touch(self, process: Process, entry: TableEntry) -> None:
        asked = self.s.world.now
        self.do(process, lambda table: table.touch(entry.key))
        self.promises.stays(entry, asked, "touch")

    def is_there(self, name: str) -> bool:
        """As far as any member knows what is committed."""
        held = [found for broker in self.chain if (found := self.s.cluster.partitions(broker).get(self.key))]
        return any(table_of(partition).committed_version(name.encode()) >= 0 for partition in held)  # type: ignore[union-attr]

    def is_nearly_due(self, name: str) -> bool:
        """Whether the next beat of the head may let a key go."""
        timed = self.s.broker(self.chain[0]).parts.serving.expiring._timed.get(self.key)
        timer = None if timed is None else timed.expiry._timers.get(name.encode())
        return timer is not None and timer.slot * BEAT_US - timed.expiry._counted_us <= BEAT_US

    def goes_within(self, name: str, seconds: float) -> None:
        require(self.s.go(seconds, lambda: not self.is_there(name)), "a key stays too long", name)

    def lead(self, name: str) -> None:
        """As if a controller had changed the order of the chain."""
        record = self.record
        first = next(member for member in record.chain if member.broker == name)
        chain = (first, *(member for member in record.chain if member.broker != name))
        changed = msgspec.structs.replace(record, epoch=record.epoch + 1, chain=chain)
        self.s.store.change({chain_key(self.key): encode(changed)}, ())
        partition = self.s.broker(name).partitions[self.key]
        require(self.s.go(5, lambda: partition.replica.active and self.chain[0] == name), "it does not lead", name)

    def compare(self) -> None:
        self.s.go(1)
        log = self.s.broker(self.chain[0]).partitions[self.key].log
        self.promises.compare(log, self.s.checker.archive[self.key])
        require(not self.s.world.broken, "a promise was broken", *self.s.world.broken[:1])


@contextmanager
def keeping(seed: int) -> Iterator[Keeping]:
    with scene(seed) as s:
        k = Keeping(s)
        with k.promises.watching():
            s.ask(lambda client: client.create_topic(EXPIRING, kind="table", replicas=3), 10)
            s.go(1)
            yield k
            k.compare()


def dead_owner() -> None:
    """The key of an owner that died goes within its grace; with the head dead, too, within two and a failover."""
    for seed, head_dies in ((1, False), (2, True)):
        with keeping(seed) as k:
            owner = k.own()
            k.put(owner, "me", ephemeral=True, grace=GRACE_S)
            k.s.go(2 * GRACE_S)
            require(k.is_there("me"), "the key of a living owner went")
            head = k.chain[0]
            owner.dead = True
            k.s.network.died(owner, silently=True)
            if head_dies:
                k.s.kill(head, power=False)
                k.s.go(GRACE_S / 2)
                require(k.is_there("me"), "a new head begins all times in full")
                k.goes_within("me", 1.5 * GRACE_S + FAILOVER_S)
                k.s.start(head)
                k.s.go(2)
            else:
                k.goes_within("me", GRACE_S + 1)


def led_again() -> None:
    """C21: a head hands over, the next one lets a key be touched, and the first leads again: it begins in full."""
    with keeping(3) as k, patch.object(Controller, "_rebalanced", lambda *_: None):
        owner = k.own()
        first, second, *_ = k.chain
        entry = k.put(owner, "a", ttl=GRACE_S)
        k.s.go(0.8 * GRACE_S)
        k.lead(second)
        k.s.go(0.5)
        k.touch(owner, entry)
        k.lead(first)
        k.goes_within("a", GRACE_S + LATE_S)


def touched_in_vain() -> None:
    """C21, C30: a head is paused, replaced, and wakes up cut off: it says of no key that this was touched."""
    for seed in range(25, 28):
        with keeping(seed) as k:
            owner = k.own()
            head, *others = k.chain
            entry = k.put(owner, "a", ttl=2.5)
            touch = messages.Touch(topic_id=k.key[0], partition=0, keys=[b"a"])

            async def insist(
                client: Any, k: Keeping = k, entry: TableEntry = entry, touch: messages.Touch = touch
            ) -> None:
                asked = k.s.world.now
                await client._core.call_partition(touch, EXPIRING, 2.0, head_first=True)
                k.promises.stays(entry, asked, "touch")

            k.s.faithful(head, insist)
            k.s.go(0.5)
            k.s.pause(head, 3)
            k.s.cut(*((head, other) for other in others))
            k.s.store.cut.add(head)
            k.s.go(8)
            k.s.network.heal()
            k.s.store.cut.clear()
            require(k.s.go(20, lambda k=k: len(k.chain) == 3), "the head does not come back")


def put_on_its_way() -> None:
    """C20, C21: a key is put again while its time is over, and the chain stands still: the put counts."""
    with keeping(5) as k:
        owner = k.own()
        k.put(owner, "a", ttl=2.0)
        require(k.s.go(5, lambda: k.is_nearly_due("a")), "its time does not end")
        k.s.hang(k.chain[-1])
        asked = k.s.world.now

        async def put(table: AsyncTable) -> None:
            k.promises.stays(await table.put("a", "2", ttl=2.0), asked, "put")

        assert k.table is not None
        putting = owner.run(put(k.table))
        require(k.s.go(10, putting.done), "a put does not end")
        with suppress(StentorError):
            putting.result()
        k.goes_within("a", 2.0 + LATE_S)


def set_clocks() -> None:
    """A head whose clock is set forward by an hour lets nothing expire for that."""
    with keeping(6) as k:
        owner = k.own()
        entry = k.put(owner, "a", ttl=GRACE_S)
        for ahead in (3600, -3600, 0):
            k.s.processes[k.chain[0]].clock_ahead_us = ahead * SECOND
            k.s.go(0.5)
            k.touch(owner, entry)
        k.goes_within("a", GRACE_S + LATE_S)


RUNS: dict[str, Callable[[], None]] = {
    run.__name__: run for run in (dead_owner, led_again, touched_in_vain, put_on_its_way, set_clocks)
}
