"""A cluster of the product's own brokers, in virtual time."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.virtual.checks import Checker
from tests.virtual.disk import Disk, VirtualThreads, virtual_machine
from tests.virtual.network import Network
from tests.virtual.store import Store
from tests.virtual.world import SECOND, DiedError, Process, World

from stentor.broker import Broker, BrokerConfig
from stentor.client.async_client import AsyncClient, connect_async
from stentor.errors import StorageError

PORT = 7440


class Cluster:
    """Brokers, their disks, the network, the store."""

    def __init__(self, world: World, names: list[str], **settings: Any) -> None:
        self.world = world
        self.network, self.store = Network(world), Store(world)
        self._root = Path(
            tempfile.mkdtemp(prefix="stentor-virtual-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self.disks = {name: Disk(self._root / name) for name in names}
        self.processes: dict[str, Process] = {}
        self.brokers: dict[str, Broker] = {}
        self._settings = settings
        self._graveyard: list[Any] = []
        self.exits: list[str] = []
        self.rates = dict.fromkeys(names, 1.0)  # of their clocks
        self.checker = Checker(self)
        for disk in self.disks.values():
            disk.on_synced = self.checker.file_synced
            disk.on_torn, disk.on_failed = self.checker.file_torn, self.checker.file_failed

    def start(self, name: str, **settings: Any) -> None:
        """A new life of a broker, unless it lives; with other settings, if somebody wants that."""
        if name in self.processes and not self.processes[name].dead:
            return
        self.network.returned(name)
        process = self.process(name)
        self.processes[name] = process
        process.run(self._start(process, {**self._settings, **settings}))

    def process(self, name: str) -> Process:
        """A place to run something in."""
        process = Process(self.world, name)
        self._graveyard.append(process)
        process.loop.network = self.network
        process.rate = self.rates.get(name, 1.0)
        return process

    async def _start(self, process: Process, settings: dict[str, Any]) -> None:
        disk = self.disks[process.name]
        disk.directory.mkdir(exist_ok=True)
        config = BrokerConfig(
            data_directory=str(disk.directory),
            host=process.name,
            port=PORT,
            http=False,
            broker_id=process.name,
            coordination="virtual://",
            metrics_interval_s=0,
            **settings,
        )

        def threads(loop: Any, **plan: Any) -> VirtualThreads:
            return VirtualThreads(process, disk, loop, **plan)

        broker = Broker(
            config,
            clock=process,
            disk_threads=threads,  # type: ignore[arg-type]
            open_store=lambda _: self.store.access(process),
        )
        self.brokers[process.name] = broker
        try:
            await broker.start()
        except StorageError as error:  # it ends, with a sentence; whoever started it starts it again
            self.exits.append(f"{process.name}: {error}")
            process.loop.call_soon(self._ended, process.name)

    def _ended(self, name: str) -> None:
        self.kill(name, power=False)
        self.world.at(self.world.now + SECOND, self.store.house, self.start, name)

    def kill(self, name: str, *, power: bool) -> None:
        """`kill -9`, or the power is cut."""
        process = self.processes.get(name)
        if process is None or process.dead:
            return
        process.dead = True
        broker = self.brokers.pop(name, None)
        self._graveyard.append((process, broker))
        self.network.died(process, silently=power)
        self.disks[name].hangs = self.disks[name].dies = False
        if broker is not None and broker._parts is not None:
            broker.parts.ground.directory.close()  # the system lets go of its lock
        if power:
            self.disks[name].crash(self.world.rng)

    def die(self, name: str) -> None:
        """A broker dies in the middle of what it does, and comes back."""
        self.kill(name, power=False)
        self.world.at(self.world.now + self.world.between(50_000, SECOND), self.store.house, self.start, name)
        raise DiedError

    def power_cut(self, name: str) -> bool:
        """Its power is cut, and whoever asks for that ends what it does; not before there is a lock to let go of."""
        broker = self.brokers.get(name)
        if broker is None or broker._parts is None:
            return False
        self.kill(name, power=True)
        self.world.at(self.world.now + self.world.between(50_000, SECOND), self.store.house, self.start, name)
        return True

    def ready(self) -> bool:
        """Whether all brokers are at work."""
        brokers = self.brokers.values()
        return len(brokers) == len(self.processes) and all(broker.ready for broker in brokers)

    def partitions(self, name: str) -> dict[Any, Any]:
        """What a broker holds; nothing before it has begun."""
        broker = self.brokers.get(name)
        return {} if broker is None or broker._parts is None else broker.partitions

    @property
    def alive(self) -> list[str]:
        return [name for name, process in self.processes.items() if not process.dead]

    def url(self) -> str:
        return "stentor://" + ",".join(f"{name}:{PORT}" for name in self.disks)

    async def client(self, name: str, timeout: float = 30.0) -> AsyncClient:
        return await connect_async(self.url(), name=name, timeout=timeout)

    def go(self, seconds: float, enough: Callable[[], bool] | None = None) -> bool:
        return self.world.run(self.world.now + round(seconds * SECOND), enough)

    @contextmanager
    def living(self) -> Iterator[None]:
        """Brokers and clients run on this machine, and every step of theirs is looked at; then all of it is gone."""
        gc.collect()  # what is left of an earlier run ends before this one, and nothing of this one in the middle of it
        gc.disable()
        try:
            with virtual_machine(self.world, self.disks, self.power_cut), self.checker.watching():
                yield
        finally:
            gc.enable()
            self._close()

    def _close(self) -> None:
        for process in self.processes.values():
            process.dead = True
        self.brokers.clear()
        self._graveyard.clear()
        self.processes.clear()
        shutil.rmtree(self._root)
