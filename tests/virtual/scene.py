"""A small cluster for directed runs: one partition on every broker, clients, and no faults but those asked for."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from tests.virtual.cluster import PORT, Cluster
from tests.virtual.workload import TOPIC, History, Workload
from tests.virtual.world import BrokenError, Process, World, number_objects

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, chain_key, encode
from stentor.broker.sessions import inline_sync
from stentor.client.async_client import connect_async
from stentor.core.membership import ControllerKey
from stentor.errors import InvalidArgument, NotReady, StentorError
from stentor.storage.directory import JOURNAL_FILE
from stentor.storage.files import FileKind, atomic_write, seal
from stentor.storage.journal import load_journal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from stentor.broker import Broker
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import ChainRecord, Key

NEVER = 1_000_000_000
SLICE_S = 0.05
WAIT_S = 3.0  # the longest that publishers may wait for a member that is there and of no use


def require(holds: bool, what: str, *details: Any) -> None:
    if not holds:
        raise BrokenError(f"{what}: {', '.join(map(str, details))}" if details else what)


class Scene:
    """A cluster, and what a directed run does with it."""

    def __init__(self, seed: int, brokers: int, *, retains: bool = False) -> None:
        number_objects()
        self.world = World(seed)
        names = [f"b{number}" for number in range(brokers)]
        self.cluster = Cluster(self.world, names, segment_bytes=limits.SEGMENT_BYTES_MIN)
        self.checker, self.network, self.store = self.cluster.checker, self.cluster.network, self.cluster.store
        self.disks, self.processes = self.cluster.disks, self.cluster.processes
        self.load = Workload(self.cluster, History(self.world), retains=retains)
        self.go, self.kill, self.start = self.cluster.go, self.cluster.kill, self.cluster.start

    def begin(self, **wishes: Any) -> None:
        for name in self.disks:
            self.start(name)
        require(self.go(10, self.cluster.ready), "the brokers do not start")
        self.ask(lambda client: client.create_topic(TOPIC, **{"replicas": len(self.disks), **wishes}), 10)
        for number in range(2):
            self.cluster.process(f"producer{number}").run(self.load.produce(f"p{number}", "all"))
        self.cluster.process("reader").run(self.load.read("r"))
        self.cluster.process("looker").run(self.load.look("looker"))
        self.go(1)
        replicas = wishes.get("replicas", len(self.disks))
        require(self.go(10, lambda: len(self.chain) == replicas), "the chain is not whole", self.record)

    def ask(self, what: Callable[[Any], Awaitable[Any]], seconds: float) -> None:
        """An operator asks for something until it is done."""

        async def insist() -> None:
            async with await self.cluster.client("operator") as client:
                while True:
                    try:
                        await what(client)
                    except (InvalidArgument, NotReady):  # not all have heard of each other yet, or one has just come
                        await asyncio.sleep(0.1)
                    else:
                        return

        asking = self.cluster.process("operator").run(insist())
        require(self.go(seconds, asking.done), "what an operator asks for is not done")

    # --- who is who -----------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        return self.checker.keys()[0]

    @property
    def record(self) -> ChainRecord:
        return self.checker.record(self.key)

    @property
    def chain(self) -> list[str]:
        return [member.broker for member in self.record.chain]

    def broker(self, name: str) -> Broker:
        return self.cluster.brokers[name]

    def incarnation(self, name: str) -> int:
        return self.broker(name).parts.ground.identity.incarnation

    def partition(self, name: str) -> Partition:
        return self.broker(name).partitions[self.key]

    @property
    def controller(self) -> str:
        return msgspec.msgpack.decode(self.store.entries[CONTROLLER].value, type=ControllerKey).broker

    def let_control(self, name: str) -> None:
        key = ControllerKey(name, self.incarnation(name))
        self.store.change({CONTROLLER: encode(key)}, ())
        self.go(0.3)

    def put_record(self, record: ChainRecord) -> None:
        """As if a controller had said so."""
        self.store.change({chain_key(self.key): encode(record)}, ())

    def publish_eagerly(self, producers: int) -> None:
        """Some do not wait for anybody but the head."""
        for number in range(producers):
            self.cluster.process(f"eager{number}").run(self.load.produce(f"e{number}", "head"))

    # --- what is done to it ---------------------------------------------------------------------

    def cut(self, *pairs: tuple[str, str]) -> None:
        for one, other in pairs:
            self.network.cut(one, other)
            self.network.cut(other, one)

    def pause(self, name: str, seconds: float) -> None:
        self.processes[name].paused_until = self.world.now + round(seconds * 1_000_000)

    def hang(self, name: str) -> None:
        """Its logs hang, and the broker itself does not notice by its probe."""
        self.disks[name].hangs = self.disks[name].unnoticed = True

    def faithful(self, name: str, do: Callable[[Any], Awaitable[Any]]) -> Process:
        """A client that reaches only this one broker, and does the same again and again."""
        process = self.cluster.process("faithful")
        for other in self.disks:
            if other != name:
                self.cut((process.name, other))

        async def insist() -> None:
            while True:
                with suppress(StentorError, TimeoutError):
                    async with connect_async(f"stentor://{name}:{PORT}", name=process.name, timeout=2.0) as client:
                        while True:
                            await do(client)
                            await asyncio.sleep(0.02)
                await asyncio.sleep(0.02)

        process.run(insist())
        return process

    def flip(self, name: str) -> None:
        """A bit flips in the copy of a broker that is down, in the middle of it."""
        copy = next(copy for (_, broker, _), copy in self.checker.newest.items() if broker == name)
        segment = copy.partition.log._state.segments[0]
        with segment.path().open("r+b") as file:
            file.seek(segment.size // 2)
            (byte,) = file.read(1)
            file.seek(segment.size // 2)
            file.write(bytes([byte ^ 1]))
        self.disks[name].forget()
        self.checker.excuse(name)

    def shorten(self, name: str) -> None:
        """The disk of a broker that is down broke its word: what was synced since the last checkpoint is gone."""
        copy = next(copy for (_, broker, _), copy in self.checker.newest.items() if broker == name)
        content = load_journal(self.disks[name].directory / JOURNAL_FILE)
        assert content is not None
        floor = max(state.synced_end for *_, state in content.replicas if state.log_id == copy.me.log_id)
        lost = copy.at(floor)
        require(lost is not None and lost.end_offset < self.checker.committed[self.key], "nothing would be lost", floor)
        log = copy.partition.log
        segment = next(found for found in reversed(log._state.segments) if found.base <= floor)
        with segment.path().open("r+b") as file:
            file.truncate(log._scan_until(segment, lost.base_offset).size + 10)
        self.disks[name].forget()
        self.checker.excuse(name)

    def forget_floors(self, name: str) -> None:
        """The journal of a broker that is down knows its logs, but not how far they were."""
        path = self.disks[name].directory / JOURNAL_FILE
        content = load_journal(path)
        assert content is not None
        replicas = [
            (topic, index, msgspec.structs.replace(state, synced_end=0, committed=0))
            for topic, index, state in content.replicas
        ]
        forgetful = msgspec.structs.replace(content, replicas=replicas)
        atomic_write(path, seal(FileKind.JOURNAL, msgspec.msgpack.encode(forgetful), version=1))
        self.checker.forget_floors(name)

    # --- what must hold -------------------------------------------------------------------------

    def longest_gap(self, seconds: float) -> float:
        """For how long nothing was acknowledged, at most."""
        gap = longest = 0.0
        for _ in range(round(seconds / SLICE_S)):
            before = self.checker.acknowledgements
            self.go(SLICE_S)
            gap = gap + SLICE_S if self.checker.acknowledgements == before else 0.0
            longest = max(longest, gap)
        return longest

    def waits_less_than(self, limit_s: float, seconds: float) -> None:
        gap = self.longest_gap(seconds)
        require(gap < limit_s, "publishers waited for too long", gap, self.record)

    def nobody_leaves(self, seconds: float) -> None:
        before = self.record
        self.go(seconds)
        require(before.epoch == self.record.epoch, "a member was removed that is well", before, self.record)


@contextmanager
def scene(seed: int = 1, brokers: int = 3, **wishes: Any) -> Iterator[Scene]:
    one = Scene(seed, brokers, retains="retention_bytes" in wishes)
    with one.cluster.living(), patch.object(inline_sync, "RUN_MIN", NEVER):  # disks are for threads alone
        one.begin(**wishes)
        yield one
