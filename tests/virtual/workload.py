"""Clients of a simulated cluster: the product's own, and what they saw."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stentor.errors import OffsetOutOfRange, PublishError, StentorError, UnknownOutcome

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster
    from tests.virtual.world import World

    from stentor.client.message import Receipt

TOPIC = "t"
CURSORS = ("a", "b", "c")


class History:
    """What was promised, and what was shown."""

    def __init__(self, world: World) -> None:
        self.require = world.require
        self.acknowledged: dict[tuple[int, int], bytes] = {}  # (partition, offset) -> value, at ack=all
        self.at: dict[bytes, tuple[int, int]] = {}  # the same, by value
        self.refused: dict[bytes, str] = {}  # said to be nowhere
        self.unknown: set[bytes] = set()
        self.shown: dict[tuple[int, int], bytes] = {}  # to any reader
        self.moved: dict[tuple[str, int], int] = {}  # (cursor, partition) -> the highest position that was answered
        self.unsure: set[bytes] = set()  # acknowledged by fewer than all: may be lost

    def acknowledge(self, value: bytes, receipt: Receipt, ack: str) -> None:
        place = receipt.partition, receipt.offset
        if ack != "all":
            self.unsure.add(value)
            return
        self.require(self.acknowledged.get(place, value) == value, "two messages at one offset", place, value)
        self.require(self.shown.get(place, value) == value, "another message was shown there", place, value)
        self.acknowledged[place] = value
        self.at[value] = place

    def show(self, place: tuple[int, int], value: bytes) -> None:
        for known in (self.acknowledged, self.shown):
            self.require(
                known.get(place, value) == value, "a reader sees another message", place, known.get(place), value
            )
        self.shown[place] = value

    def move(self, place: tuple[str, int], position: int) -> None:
        self.moved[place] = max(position, self.moved.get(place, 0))

    def check_cursors(self, promised: dict[tuple[str, int], int], found: dict[str, dict[int, int]]) -> None:
        for (name, partition), position in promised.items():
            there = found.get(name, {}).get(partition, -1)
            self.require(there >= position, "a cursor went back", name, partition, position, there)

    def ends(self) -> dict[int, int]:
        """Up to where everything acknowledged at `all` goes, by partition."""
        found: dict[int, int] = defaultdict(int)
        for partition, offset in self.acknowledged:
            found[partition] = max(found[partition], offset + 1)
        return dict(found)


class Workload:
    """Producers and readers that go on until they are told to stop."""

    def __init__(self, cluster: Cluster, history: History, *, retains: bool = False) -> None:
        self._retains = retains
        self.cluster, self.world, self.history = cluster, cluster.world, history
        self.stopping = False
        self.outstanding = 0
        self.sent = 0
        self.positions: dict[str, dict[int, int]] = {}

    async def produce(self, name: str, ack: str) -> None:
        """Bursts of small messages, and pauses."""
        client = await self._client(name)
        with suppress(PublishError):  # `on_delivery` has told which
            await self._send(await client.producer(TOPIC, ack=ack), name, ack)

    async def _send(self, producer: Any, name: str, ack: str) -> None:
        rng = self.world.rng
        async with producer:
            number = 0
            while not self.stopping:
                for _ in range(rng.choice([1, 1, 1, 2, 8])):
                    value = f"{name}:{number}".encode()
                    headers = {"padding": bytes(2_000)} if self._retains else None  # so that segments fill up
                    number += 1
                    self.outstanding += 1
                    self.sent += 1
                    await producer.send(value, on_delivery=self._told(value, ack), headers=headers)
                await asyncio.sleep(rng.choice([0.002, 0.02, 0.05, 0.2]))

    def _told(self, value: bytes, ack: str) -> Any:
        def told(receipt: Receipt | None, error: StentorError | None) -> None:
            self.outstanding -= 1
            if receipt is not None:
                self.history.acknowledge(value, receipt, ack)
            elif isinstance(error, UnknownOutcome) or ack != "all":
                self.history.unknown.add(value)
            else:
                self.history.refused[value] = repr(error)

        return told

    async def read(self, name: str) -> None:
        """A live reader: everything, in order, once."""
        positions: dict[int, int] = defaultdict(int)
        self.positions[name] = positions
        client = await self._client(name)
        while True:
            try:
                await self._follow(name, await client.subscribe(TOPIC, start="earliest"), positions)
            except OffsetOutOfRange:
                may = self._retains or bool(self.cluster.checker.begins)
                self.history.require(may, "a reader is refused what is there", name)
                positions.clear()  # retention was faster: it begins again with what is left

    async def _follow(self, name: str, subscription: Any, positions: dict[int, int]) -> None:
        async for message in subscription:
            due = positions[message.partition]
            fits = message.offset >= due if self._retains else message.offset == due
            if not fits and message.offset > due:  # a memory topic that was lost goes on where it began anew
                fits = message.offset in self.cluster.checker.began(message.partition, TOPIC)
            self.history.require(fits, "a reader jumps", name, message.partition, due, message.offset)
            positions[message.partition] = message.offset + 1
            self.history.show((message.partition, message.offset), message.value)
            committed = self.cluster.checker.committed_of(message.partition, TOPIC)
            self.history.require(
                message.offset < committed, "a reader sees what is not committed", name, message.offset, committed
            )

    async def look(self, name: str) -> None:
        """Bounded reads: each must show whatever was acknowledged before it began."""
        rng = self.world.rng
        while not self.stopping:
            await asyncio.sleep(rng.uniform(0.05, 0.8))
            try:
                client = await self.cluster.client(f"{name}", timeout=rng.choice([2.0, 10.0]))
                async with client:
                    promised = self.history.ends()
                    ends = await client.offsets(TOPIC)
                    for partition, end in promised.items():
                        self.history.require(
                            ends[partition] >= end, "a stale end", name, partition, end, ends[partition]
                        )
            except StentorError:
                continue

    async def resume(self, name: str) -> None:
        """Whoever kept a position goes on from there, as a client that has seen nothing: it is never out of range."""
        rng = self.world.rng
        while not self.stopping:
            await asyncio.sleep(rng.choice([0.02, 0.1, 0.4]))
            shown = sorted(self.history.shown)
            if not shown:
                continue
            partition, offset = shown[-1] if rng.random() < 0.5 else rng.choice(shown)
            try:
                client = await self.cluster.client(name, timeout=rng.choice([1.0, 5.0]))
                async with client:
                    await self._go_on(client, partition, offset + 1, bounded=rng.random() < 0.5)
            except OffsetOutOfRange as error:
                may = self._retains or bool(self.cluster.checker.begins)
                self.history.require(may, "a kept position is refused", name, partition, offset, repr(error))
            except StentorError:
                continue

    async def _go_on(self, client: Any, partition: int, offset: int, *, bounded: bool) -> None:
        start = {partition: offset}
        if bounded:
            async with client.read(TOPIC, start=start, partition=partition) as history:
                async for message in history:
                    self.history.show((partition, message.offset), message.value)
            return
        async with client.subscribe(TOPIC, start=start, partition=partition) as subscription:
            for _ in range(self.world.rng.choice([1, 5])):
                message = await subscription.get(timeout=1.0)
                self.history.require(message.offset == offset, "a kept position is passed over", message.offset, offset)
                self.history.show((partition, message.offset), message.value)
                offset += 1

    async def move(self, name: str) -> None:
        """Moves cursors forward, as far as messages are acknowledged; what is answered must stay."""
        rng = self.world.rng
        client = await self._client(name)
        while not self.stopping:
            await asyncio.sleep(rng.choice([0.002, 0.02, 0.05, 0.2]))
            cursor = rng.choice(CURSORS)
            for partition, end in self.history.ends().items():
                position = rng.randint(0, end)
                try:
                    await client.move_cursor(TOPIC, cursor, {partition: position}, timeout=5.0)
                except OffsetOutOfRange as error:
                    may = bool(self.cluster.checker.begins)
                    self.history.require(may, "a position that was reached is refused", cursor, position, repr(error))
                except StentorError:
                    continue
                self.history.move((cursor, partition), position)

    async def list_cursors(self, name: str) -> None:
        """Whoever lists cursors sees at least what was answered before it asked."""
        rng = self.world.rng
        client = await self._client(name)
        while not self.stopping:
            await asyncio.sleep(rng.uniform(0.02, 0.5))
            promised = dict(self.history.moved)
            try:
                found = await client.cursors(TOPIC, timeout=5.0)
            except StentorError:
                continue
            self.history.check_cursors(promised, {cursor.name: cursor.positions for cursor in found})

    async def _client(self, name: str) -> Any:
        while True:
            try:
                return await self.cluster.client(name)
            except StentorError:
                await asyncio.sleep(0.1)
