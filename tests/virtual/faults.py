"""What can go wrong, by chance."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.virtual.world import SECOND

from stentor.errors import StorageError

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster


class Faults:
    """One fault after the other; each ends by itself after a while."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.done: list[str] = []
        # A copy that was cut by a loss of power, and another one whose disk failed, are for an operator together (C13).
        hard = self.world.rng.choice([[self.fail_sync], [self.power, self.power, self.power_everywhere]])
        self._kinds = [
            *hard, self.kill, self.kill, self.pause, self.cut, self.cut_one_way, self.isolate, self.store_away,
            self.store_cut, self.lost_answers, self.hang, self.fill, self.slow, self.clock, self.restart,
        ]  # fmt: skip

    def one(self) -> None:
        self.world.rng.choice(self._kinds)()

    def note(self, *what: object) -> None:
        self.done.append(f"{self.world.now / SECOND:.3f} " + " ".join(map(str, what)))

    def some(self) -> str:
        return self.world.rng.choice(list(self.cluster.disks))

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
        for name in self.cluster.disks:
            self._down(name, power=True)

    def _down(self, name: str, *, power: bool) -> None:
        self.note("power" if power else "kill", name)
        self.cluster.kill(name, power=power)
        self.later(0.05, 3.0, self._up, name)

    def _up(self, name: str) -> None:
        if self.cluster.processes[name].dead:
            self.note("start", name)
            self.cluster.start(name)

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
        one, other = self.world.rng.sample(list(self.cluster.disks), 2)
        self.note("cut", one, other)
        self.cluster.network.cut(one, other)
        self.cluster.network.cut(other, one)
        self.later(0.3, 4.0, self.cluster.network.heal)

    def cut_one_way(self) -> None:
        one, other = self.world.rng.sample(list(self.cluster.disks), 2)
        self.note("cut one way", one, other)
        self.cluster.network.cut(one, other)
        self.later(0.3, 4.0, self.cluster.network.heal)

    def isolate(self) -> None:
        name = self.some()
        self.note("isolate", name)
        self.cluster.network.isolate(name, list(self.cluster.disks))
        self.later(0.3, 4.0, self.cluster.network.heal)

    def slow(self) -> None:
        self.note("slow network")
        self.cluster.network.delay_us = (2_000, 60_000)
        self.later(0.3, 3.0, self._fast)

    def _fast(self) -> None:
        from tests.virtual.network import DELAY_US

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

    def store_cut(self) -> None:
        name = self.some()
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
        self.cluster.disks[name].hangs = self.cluster.disks[name].full = False

    # --- the end --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything is well again; failed logs need an operator's restart."""
        self.note("heal")
        self.cluster.network.heal()
        self._fast()
        self._store_back()
        for name in self.cluster.disks:
            self._mend(name)
            self.cluster.disks[name].fails = False
            process = self.cluster.processes[name]
            process.paused_until = 0
            process.clock_ahead_us = 0
            if any(partition.replica.failed for partition in self.cluster.partitions(name).values()):
                self.cluster.kill(name, power=False)
            self._up(name)
