"""What can go wrong, by chance: each seed draws what it prefers."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from tests.virtual.network import DELAY_US
from tests.virtual.workload import TOPIC
from tests.virtual.world import SECOND

from stentor.broker.catalogue import CONTROLLER, decode_broker
from stentor.core.membership import ControllerKey
from stentor.errors import StentorError, StorageError
from stentor.storage.journal import load_journal
from stentor.storage.segment import LOG_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.virtual.cluster import Cluster

    from stentor.client.async_client import AsyncClient
    from stentor.core.records import ChainRecord

OFTEN = 2
KINDS = {
    "kill": OFTEN, "bounce": 1, "head": 1, "head_bounces": 1, "tail": 1, "joiner": 1, "controller": 1,
    "restart": 1, "pause": OFTEN, "clock": 1,
    "cut": 1, "cut_one_way": 1, "pair": 1, "isolate": 1, "split": 1, "ring": 1, "broken": 1, "slow": 1,
    "store_away": 1, "store_cut": 1, "lost_answers": 1, "compacted": 1, "leases": 1,
    "hang": 1, "hang_unnoticed": 1, "slow_disk": 1, "fill": 1, "fill_all": 1,
    "add": 1, "drain": 1, "factor": 1,
}  # fmt: skip
HARD = [
    {"fail_sync": 1},
    {"power": OFTEN, "power_everywhere": 1, "power_in_sync": 1},
    {"power": 1, "power_everywhere": 1, "power_in_sync": 1, "fail_sync": 1},
    # Apart from those: a copy that was torn, and another one that is gone, are for an operator who knows more.
    {"wipe": 1, "flip": 1, "shorten": 1, "old_directory": OFTEN},
]


class Faults:
    """One fault after the other; each ends by itself after a while."""

    def __init__(self, cluster: Cluster, *, factor: int = 3, favour: tuple[str, ...] = ()) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.done: list[str] = []
        rng = self.world.rng
        self._factor = factor
        self._drained: set[str] = set()
        self._copies: dict[str, Path] = {}  # of data directories
        self._asked_for = 0
        weights = {**KINDS, **rng.choice(HARD)}
        self._kinds = {kind: weight * rng.choice([0, 1, 1, 3]) for kind, weight in weights.items()}
        if favour:
            self._kinds = dict.fromkeys(favour, 1)
        if not any(self._kinds.values()):
            self._kinds["kill"] = 1
        cluster.checker.dies_between = 0.0 if favour else rng.choice([0.0, 0.0, 0.0002, 0.001])

    def one(self) -> None:
        (kind,) = self.world.rng.choices(list(self._kinds), list(self._kinds.values()))
        getattr(self, kind)()

    def note(self, *what: object) -> None:
        self.done.append(f"{self.world.now / SECOND:.3f} " + " ".join(map(str, what)))

    def some(self) -> str:
        return self.world.rng.choice(list(self.cluster.processes))

    def record(self) -> ChainRecord | None:
        """Of any partition."""
        checker = self.cluster.checker
        return checker.record(self.world.rng.choice(checker.keys())) if checker.keys() else None

    def later(self, low_s: float, high_s: float, call: object, *args: object) -> None:
        after = round(self.world.rng.uniform(low_s, high_s) * SECOND)
        self.world.at(self.world.now + after, self.cluster.store.house, call, *args)  # type: ignore[arg-type]

    # --- processes ------------------------------------------------------------------------------

    def kill(self) -> None:
        self._down(self.some(), power=False)

    def power(self) -> None:
        self._down(self.some(), power=True)

    def power_everywhere(self) -> None:
        self.note("power everywhere")
        for name in list(self.cluster.processes):
            self._down(name, power=True)

    def power_in_sync(self) -> None:
        """The power is cut when something is written and not synced."""
        name = self.some()
        self.note("power in the next sync", name)
        self.cluster.disks[name].dies = True

    def bounce(self) -> None:
        """Down and up again before anybody notices."""
        self._down(self.some(), power=False, soon=True)

    def head(self) -> None:
        if (record := self.record()) is not None:
            self._down(record.chain[0].broker, power=False)

    def head_bounces(self) -> None:
        if (record := self.record()) is not None:
            self._down(record.chain[0].broker, power=False, soon=True)

    def tail(self) -> None:
        if (record := self.record()) is not None:
            self._down(record.chain[-1].broker, power=False)

    def joiner(self) -> None:
        record = self.record()
        if record is not None and record.joining is not None:
            self._down(record.joining.broker, power=False, soon=True)

    def controller(self) -> None:
        self._down(self._controller(), power=False)

    def _controller(self) -> str:
        held = self.cluster.store.entries.get(CONTROLLER)
        return self.some() if held is None else msgspec.msgpack.decode(held.value, type=ControllerKey).broker

    def _down(self, name: str, *, power: bool, soon: bool = False) -> None:
        self.note("power" if power else "kill", name)
        self.cluster.kill(name, power=power)
        self.later(*((0.0, 0.05) if soon else (0.05, 3.0)), self._up, name)

    def _up(self, name: str) -> None:
        process = self.cluster.processes.get(name)
        if process is not None and process.dead:
            self.note("start", name)
            self.cluster.start(name)

    def add(self) -> None:
        """A broker that was not there before."""
        fresh = [name for name in self.cluster.disks if name not in self.cluster.processes]
        if fresh:
            self.note("add", fresh[0])
            self.cluster.start(fresh[0])

    def restart(self) -> None:
        """A graceful stop, and a new start."""
        name = self.some()
        broker, process = self.cluster.brokers.get(name), self.cluster.processes[name]
        if broker is None or not broker.ready or process.dead:
            return
        self.note("stop", name)

        async def stop() -> None:
            with suppress(StorageError):  # a disk that fails now has lost nothing that was promised
                await broker.stop()
            process.loop.call_soon(self._stopped, name)

        process.run(stop())

    def _stopped(self, name: str) -> None:
        self.cluster.kill(name, power=False)
        self.later(0.05, 1.0, self._up, name)

    def pause(self) -> None:
        name, seconds = self.some(), self.world.rng.choice([0.2, 0.8, 1.5, 4.0])
        self.note("pause", name, seconds)
        self.cluster.processes[name].paused_until = self.world.now + round(seconds * SECOND)

    def clock(self) -> None:
        name, ahead = self.some(), self.world.rng.choice([-3600, -5, 5, 3600]) * SECOND
        self.note("clock", name, ahead)
        self.cluster.processes[name].clock_ahead_us = ahead

    # --- the network ----------------------------------------------------------------------------

    def cut(self) -> None:
        one, other = self.world.rng.sample(list(self.cluster.processes), 2)
        self.note("cut", one, other)
        self.cluster.network.cut(one, other)
        self.cluster.network.cut(other, one)
        self.later(0.3, 4.0, self.cluster.network.heal)

    def cut_one_way(self) -> None:
        one, other = self.world.rng.sample(list(self.cluster.processes), 2)
        self.note("cut one way", one, other)
        self.cluster.network.cut(one, other)
        self.later(0.3, 4.0, self.cluster.network.heal)

    def isolate(self) -> None:
        name = self.some()
        self.note("isolate", name)
        self.cluster.network.isolate(name, list(self.cluster.disks))
        self.later(0.3, 4.0, self.cluster.network.heal)

    def pair(self) -> None:
        """Two neighbours of a chain do not reach each other, and everybody else reaches both."""
        record = self.record()
        if record is not None and len(record.chain) > 1:
            place = self.world.rng.randrange(len(record.chain) - 1)
            one, other = (member.broker for member in record.chain[place : place + 2])
            self.note("cut", one, other)
            self._cut_all([(one, other)])

    def split(self) -> None:
        names = list(self.cluster.processes)
        left = [name for name in names if self.world.rng.random() < 0.5]
        self.note("split off", *left)
        self._cut_all([(one, other) for one in left for other in names if other not in left])

    def ring(self) -> None:
        """Everyone reaches only its neighbours."""
        names = list(self.cluster.processes)
        self.note("ring")
        self._cut_all(
            [(one, other) for place, one in enumerate(names) for other in names[place + 2 : len(names) - (place == 0)]]
        )

    def _cut_all(self, pairs: list[tuple[str, str]]) -> None:
        for one, other in pairs:
            self.cluster.network.cut(one, other)
            self.cluster.network.cut(other, one)
        self.later(0.3, 4.0, self.cluster.network.heal)

    def broken(self) -> None:
        """Connections break, and can be made again at once."""
        one, other = self.world.rng.sample(list(self.cluster.processes), 2)
        self.note("break", one, other)
        self.cluster.network.break_between(one, other)

    def slow(self) -> None:
        self.note("slow network")
        self.cluster.network.delay_us = (2_000, 60_000)
        self.later(0.3, 3.0, self._fast)

    def _fast(self) -> None:
        self.cluster.network.delay_us = DELAY_US

    # --- the store ------------------------------------------------------------------------------

    def store_away(self) -> None:
        self.note("store away")
        self.cluster.store.away = True
        self.later(0.3, 5.0, self._store_back)

    def _store_back(self) -> None:
        store = self.cluster.store
        store.away, store.loses_answers = False, 0.0
        store.cut.clear()
        store.news()

    def compacted(self) -> None:
        self.note("store compacted")
        self.cluster.store.compacted = self.cluster.store.revision

    def leases(self) -> None:
        """One liveness key lapses, or all of them do: the store was paused."""
        names = self.world.rng.choice([[self.some()], list(self.cluster.processes)])
        self.note("leases lapse", *names)
        for name in names:
            self.cluster.store.lapse(name)

    def store_cut(self) -> None:
        """One broker does not reach it; the controller rather than others."""
        name = self.world.rng.choice([self.some(), self._controller()])
        self.note("store cut", name)
        self.cluster.store.cut.add(name)
        self.later(0.3, 5.0, self._store_back)

    def lost_answers(self) -> None:
        self.note("store loses answers")
        self.cluster.store.loses_answers = 0.3
        self.later(0.3, 5.0, self._store_back)

    # --- disks ----------------------------------------------------------------------------------

    def hang(self) -> None:
        name = self.some()
        self.note("disk hangs", name)
        self.cluster.disks[name].hangs = True
        self.later(0.3, 4.0, self._mend, name)

    def hang_unnoticed(self) -> None:
        """Its logs hang, and a small write beside them does not."""
        self.hang()
        for disk in self.cluster.disks.values():
            disk.unnoticed = disk.hangs

    def slow_disk(self) -> None:
        name = self.some()
        self.note("slow disk", name)
        self.cluster.disks[name].slow = 20
        self.later(0.3, 4.0, self._mend, name)

    def fill_all(self) -> None:
        """Disks fill up together."""
        self.note("all disks full")
        for name in self.cluster.processes:
            self.cluster.disks[name].full = self.world.rng.random() < 0.8
            self.later(0.3, 4.0, self._mend, name)

    def fill(self) -> None:
        name = self.some()
        self.note("disk full", name)
        self.cluster.disks[name].full = True
        self.later(0.3, 4.0, self._mend, name)

    def fail_sync(self) -> None:
        name = self.some()
        self.note("a sync fails", name)
        self.cluster.disks[name].fails = True

    def _mend(self, name: str) -> None:
        disk = self.cluster.disks[name]
        disk.hangs = disk.unnoticed = disk.full = False
        disk.slow = 1

    # --- disks that lose something while their brokers are down, while others have it ----------

    def _losing(self, what: str, name: str | None = None) -> str | None:
        """A broker that is down now, and may lose what it has."""
        name = name or self.some()
        if not self.cluster.checker.may_lose(name):
            return None
        self._down(name, power=False)
        self.note(what, name)
        self.cluster.checker.excuse(name)
        return name

    def wipe(self) -> None:
        """A disk is replaced by an empty one."""
        if (name := self._losing("wipe")) is not None:
            self._replace_directory(name, None)

    def flip(self) -> None:
        """A bit flips in a log."""
        if (name := self._losing("flip a bit")) is not None:
            rng, disk = self.world.rng, self.cluster.disks[name]
            if files := disk.files(LOG_SUFFIX):
                with open(rng.choice(files), "r+b") as file:  # noqa: PTH123 - by its name
                    used = len(file.read().rstrip(b"\0"))
                    place = rng.randrange(used)
                    file.seek(place)
                    (byte,) = file.read(1)
                    file.seek(place)
                    file.write(bytes([byte ^ 1 << rng.randrange(8)]))

    def shorten(self) -> None:
        """A file is cut off far below what was known to be on disk."""
        if (name := self._losing("shorten")) is not None:
            disk = self.cluster.disks[name]
            content = load_journal(disk.directory / "replicas")
            known = {} if content is None else {(topic, index): state for topic, index, state in content.replicas}
            for (key, broker, log_id), copy in self.cluster.checker.newest.items():
                state = known.get(key)
                if copy.in_memory:
                    continue
                if broker == name and state is not None and state.log_id == log_id and len(copy.batches) > 1:
                    segment = copy.partition.log._state.segments[-1]
                    held = copy.between(segment.base, segment.end)
                    if held and held[len(held) * 3 // 4].end_offset <= state.synced_end and segment.path().exists():
                        with segment.path().open("r+b") as file:
                            file.truncate(segment.size // 2)
                        disk.forget()

    def old_directory(self) -> None:
        """A data directory comes back from a copy."""
        name = self.some()
        directory = self.cluster.disks[name].directory
        if name not in self._copies:
            self._down(name, power=False)
            self.note("copy", name)
            if directory.exists():
                self._copies[name] = directory.with_name(f"copy-of-{name}")
                shutil.copytree(directory, self._copies[name])
        elif self._losing("old directory", name) is not None:
            self._replace_directory(name, self._copies[name])

    def _replace_directory(self, name: str, by: Path | None) -> None:
        directory = self.cluster.disks[name].directory
        if directory.exists():
            shutil.rmtree(directory)
        if by is not None:
            shutil.copytree(by, directory)
        self.cluster.disks[name].forget()
        self.cluster.checker.forget_journal(name)

    # --- operators ------------------------------------------------------------------------------

    def drain(self) -> None:
        name = self.some()
        self._drained ^= {name}
        self.note("drain" if name in self._drained else "drain no more", name)
        self._ask(lambda client, draining=name in self._drained: client.drain_broker(name, draining=draining))

    def factor(self) -> None:
        """A topic gets one replica more, or as many as it had."""
        replicas = self.world.rng.choice([self._factor, min(self._factor + 1, len(self.cluster.processes))])
        self.note("replicas", replicas)
        self._ask(lambda client: client.alter_topic(TOPIC, replicas=replicas))

    def _ask(self, what: Callable[[AsyncClient], Awaitable[Any]]) -> None:
        """Somebody asks for it once."""

        async def ask() -> None:
            with suppress(StentorError):
                async with await self.cluster.client("operator", timeout=2.0) as client:
                    await what(client)

        self.cluster.process("operator").run(ask())

    # --- the end --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything is well again; failed logs need an operator's restart."""
        self.note("heal")
        self.cluster.checker.dies_between = 0.0
        self.cluster.network.heal()
        self._fast()
        self._store_back()
        for name, disk in self.cluster.disks.items():
            disk.mend()
            process = self.cluster.processes.get(name)
            if process is None:
                self.cluster.start(name)
                continue
            process.paused_until = 0
            process.clock_ahead_us = 0
            if any(partition.replica.failed for partition in self.cluster.partitions(name).values()):
                self.cluster.kill(name, power=False)
            self._up(name)
        self.cluster.process("operator").run(self._undrain())

    async def _undrain(self) -> None:
        """Whatever became of what was asked for before; an operator looks again for a while."""
        for _ in range(10):
            for name in self._draining():
                with suppress(StentorError):
                    async with await self.cluster.client("operator", timeout=2.0) as client:
                        await client.drain_broker(name, draining=False)
            await asyncio.sleep(0.5)

    def _draining(self) -> list[str]:
        records = (decode_broker(found.value) for found in self.cluster.store.range("brokers/").entries)
        return [record.id for record in records if record.draining]
