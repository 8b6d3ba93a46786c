"""A real cluster on this machine: an etcd, brokers in processes of their own, and the means to break them.

from stentor.testing import cluster

with cluster(brokers=3) as c, c.client() as client:
    client.publish("orders", "hello")
    c.kill(c.head("orders"))
    client.publish("orders", "still here")

With `network=True` (as root) every broker has a network namespace of its own, and links between brokers, clients and
etcd can be cut or made slow: `cut`, `isolate`, `partition`, `ring`, `slow`, `heal`. With `disk_bytes=…` (as root) every
broker has a small disk of its own that can be filled: `fill_disk`, `free_disk`. `hang_disk` and `release_disk` need
`strace`.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from stentor.client.sync_client import Client
from stentor.errors import DeadlineExceeded, InternalError, InvalidArgument
from stentor.http.balancer import Backend
from stentor.testing.disks import Disk, HangingSyncs
from stentor.testing.etcd import LocalEtcd
from stentor.testing.haproxy import LocalHaproxy
from stentor.testing.network import CLIENTS, ETCD, Network
from stentor.transport.address import Address
from stentor.wire.statistics import from_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_START_S: Final = 30.0
_STOP_S: Final = 20.0
_LOG_LINES: Final = 8


class BrokerProcess:
    """One `stentor serve`."""

    def __init__(self, name: str, directory: Path, settings: dict[str, Any], prefix: list[str], host: str) -> None:
        self.name = name
        self.directory = directory
        self.log_file = directory.with_suffix(".log")
        self.port = 0
        self.http_port = 0
        self.host = host
        self.settings = settings
        self._prefix = prefix
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise InvalidArgument(f"Broker {self.name} is not running.")
        return self._process.pid

    def launch(self) -> None:
        """Start it on the ports it had before, so that everyone finds it again."""
        if self.running:
            return
        command = [*self._prefix, sys.executable, "-m", "stentor", "serve", *_flags(self.settings)]
        command += ["--data", str(self.directory), "--host", self.host]
        command += ["--port", str(self.port), "--http-port", str(self.http_port)]
        with self.log_file.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603

    def wait_ready(self) -> None:
        """Until it says that it is ready."""
        assert self._process is not None
        assert self._process.stdout is not None
        said, _, _ = select.select([self._process.stdout], [], [], _START_S)
        if not said:
            raise DeadlineExceeded(f"Broker {self.name} was not ready within {_START_S:g} s: {self.last_words()}")
        line = self._process.stdout.readline()
        if "stentor ready" not in line:
            raise InternalError(f"Broker {self.name} did not start: {self.last_words()}")
        words = line.split()
        self.port = Address.parse(words[3].removeprefix("stentor://")).port
        if words[4].startswith("http://"):
            self.http_port = Address.parse(words[4].removeprefix("http://")).port

    def last_words(self) -> str:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(lines[-_LOG_LINES:])

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _flags(settings: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for setting, value in settings.items():
        flag = setting.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags += [f"--{flag}", str(value)]
    return flags


class LocalCluster:
    """Brokers b0, b1, … and their etcd, in processes of this machine."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        etcd: int = 1,
        data: str | Path | None = None,
        network: bool = False,
        haproxy: int = 0,
        zones: Sequence[str] = (),
        port: int = 0,
        settings: dict[str, Any] | None = None,
        disk_bytes: int = 0,
        etcd_arguments: tuple[str, ...] = (),
    ) -> None:
        self._temporary = data is None
        self.directory = Path(tempfile.mkdtemp(prefix="stentor-cluster-") if data is None else data)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.etcd = LocalEtcd(members=etcd, data=self.directory / "etcd", arguments=etcd_arguments)
        self._count = brokers
        self._zones = zones
        self._port = port  # of the first broker; HTTP has the next one, and so on; 0: free ones
        self._settings = {"metrics_interval_s": 0, **(settings or {})}
        self._network = Network() if network else None
        self.brokers: dict[str, BrokerProcess] = {}
        self._disk_bytes = disk_bytes  # of each broker's own disk; 0: all share that of the machine
        self._disks: dict[str, Disk] = {}
        self._hanging: dict[str, HangingSyncs] = {}
        self.balancers = [LocalHaproxy(f"haproxy-{index}", self.directory) for index in range(haproxy)]

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start etcd and all brokers, and wait until they are ready."""
        try:
            if self._network is not None and not self._network.started:
                # The same data gets the same addresses again, if nobody else has them.
                self._network.start(prefer=zlib.crc32(str(self.directory.resolve()).encode()))
                self.etcd.move(self._network.address(ETCD))
            self.etcd.start()
            for index in range(len(self.brokers), self._count):
                self._make(index)
            for broker in self.brokers.values():
                broker.launch()
            for broker in self.brokers.values():
                broker.wait_ready()
            for broker in self.brokers.values():
                self._wait_until_all_hear(broker)
            self._start_balancers()
        except BaseException:
            self.cleanup()
            raise
        return self

    def _wait_until_all_hear(self, broker: BrokerProcess) -> None:
        """A topic made before brokers have found each other would be placed on those that had."""
        with Client(broker.address, name="stentor.testing") as client:
            self.wait_for(lambda: _all_heard(client, len(self.brokers)), _START_S, f"all brokers to hear {broker.name}")

    def zone(self, index: int) -> str:
        """The zone of a broker: they take turns."""
        return self._zones[index % len(self._zones)] if self._zones else ""

    def _make(self, index: int) -> BrokerProcess:
        name = f"b{index}"
        settings = {"coordination": self.etcd.url, "broker_id": name, **self._settings}
        if zone := self.zone(index):
            settings["zone"] = zone
        prefix, host = [], "127.0.0.1"
        if self._network is not None:
            self._network.add(name)
            prefix, host = self._network.prefix(name), self._network.address(name)
        if self._disk_bytes:
            self._disks[name] = Disk(self.directory / name, self._disk_bytes)
            self._disks[name].mount()
        process = BrokerProcess(name, self.directory / name, settings, prefix, host)
        if self._port:
            process.port, process.http_port = self._port + 2 * index, self._port + 2 * index + 1
        self.brokers[name] = process
        return process

    def _start_balancers(self, *, all_of_them: bool = True) -> None:
        """Start those that do not run, and let those that do know all brokers."""
        brokers = [Backend(each.host, each.port, each.http_port) for each in self.brokers.values()]
        for balancer in self.balancers:
            if balancer.running and not all_of_them:
                continue
            if self._network is not None:
                balancer.host = self._network.address(CLIENTS)
            balancer.start(brokers)

    def stop(self) -> None:
        """Stop everything gracefully; the data stays."""
        for balancer in self.balancers:
            balancer.kill()
        for broker in self.brokers.values():
            if broker.running:
                broker.signal(signal.SIGCONT)
                broker.signal(signal.SIGTERM)
        for broker in self.brokers.values():
            broker.wait(_STOP_S)
        self.etcd.stop()

    def cleanup(self) -> None:
        """Stop everything and remove what is temporary."""
        for name in list(self._hanging):
            self.release_disk(name)
        for balancer in self.balancers:
            balancer.kill()
        for broker in self.brokers.values():
            if broker.running:
                broker.signal(signal.SIGKILL)
            broker.wait(_STOP_S)
        self.etcd.cleanup()
        if self._network is not None:
            self._network.remove()
        for disk in self._disks.values():
            disk.remove()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    # --- what tests need ------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where clients begin: at the load balancers if there are any, else at all brokers."""
        if self.balancers:
            return "stentor://" + ",".join(balancer.address for balancer in self.balancers)
        return self.direct_url

    @property
    def direct_url(self) -> str:
        """All brokers; clients need only one of them that answers."""
        return "stentor://" + ",".join(broker.address for broker in self.brokers.values())

    def client(self, **options: Any) -> Client:
        return Client(self.url, **options)

    def asking(self) -> Client:
        """A client for questions about the cluster, whatever stands before it."""
        return Client(self.direct_url, name="stentor.testing")

    def chain(self, topic: str, partition: int = 0) -> list[str]:
        """The chain of a partition, head first."""
        with self.asking() as client:
            return list(client.describe_topic(topic).partitions[partition].chain)

    def head(self, topic: str, partition: int = 0) -> str:
        return self.chain(topic, partition)[0]

    def tail(self, topic: str, partition: int = 0) -> str:
        return self.chain(topic, partition)[-1]

    def controller(self) -> str:
        """Who changes chains now."""
        with self.asking() as client:
            cluster = from_map(client.statistics()).cluster
            return "" if cluster is None else cluster.controller

    def wait_for(self, holds: Callable[[], bool], timeout: float = 30.0, what: str = "the cluster") -> None:
        """Wait for a condition, with a deadline."""
        deadline = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"Waited {timeout:g} s for {what}.")
            time.sleep(0.05)

    def wait_for_chain(self, topic: str, length: int, partition: int = 0, timeout: float = 30.0) -> None:
        """Wait until a partition has so many members again."""
        self.wait_for(lambda: len(self.chain(topic, partition)) == length, timeout, f"{length} replicas of {topic}")

    # --- breaking -------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """End it at once (SIGKILL)."""
        self.brokers[name].signal(signal.SIGKILL)
        self.brokers[name].wait(_STOP_S)

    def pause(self, name: str) -> None:
        """SIGSTOP: alive for the kernel, silent for everyone else."""
        self.brokers[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.brokers[name].signal(signal.SIGCONT)

    def terminate(self, name: str) -> None:
        """A graceful stop, as in a rolling restart."""
        self.brokers[name].signal(signal.SIGTERM)
        self.brokers[name].wait(_STOP_S)

    def restart(self, name: str, **settings: Any) -> None:
        """Start a broker that is not running, on its old ports and data; with other settings, if any are named. One
        that is None has its default again.
        """
        self.brokers[name].settings |= settings
        self.brokers[name].launch()
        self.brokers[name].wait_ready()

    def add(self) -> str:
        """One more broker."""
        broker = self._make(len(self.brokers))
        broker.launch()
        broker.wait_ready()
        self._start_balancers()
        return broker.name

    def mend(self) -> None:
        """Whatever was broken: cuts are healed, who is paused goes on, who is dead runs again."""
        if self._network is not None:
            self._network.heal()
        self.mend_disks()
        for index in range(len(self.etcd.endpoints)):
            self.etcd.resume(index)
        self.etcd.start()
        for broker in self.brokers.values():
            if broker.running:
                broker.signal(signal.SIGCONT)
            else:
                self.restart(broker.name)
        self.restart_haproxy()

    def fill_disk(self, name: str) -> None:
        """Leave no byte free on a broker's own disk."""
        self._disks[name].fill()

    def free_disk(self, name: str) -> None:
        """Make room again."""
        self._disks[name].free()

    def hang_disk(self, name: str) -> None:
        """From now on no sync of a broker comes to an end."""
        if name not in self._hanging:
            self._hanging[name] = HangingSyncs(self.brokers[name].pid)

    def release_disk(self, name: str) -> None:
        """They go on."""
        if (hanging := self._hanging.pop(name, None)) is not None:
            hanging.release()

    def mend_disks(self) -> None:
        """All of them have room, and none hangs."""
        for name in self.brokers:
            self.release_disk(name)
            if name in self._disks:
                self.free_disk(name)

    def kill_haproxy(self, index: int = 0) -> None:
        """End a load balancer at once, with all connections through it."""
        self.balancers[index].kill()

    def restart_haproxy(self) -> None:
        """Start the load balancers that were killed, on their old ports."""
        self._start_balancers(all_of_them=False)

    # --- cutting the network --------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The network between brokers, `clients` and `etcd`, of a cluster made with `network=True`."""
        if self._network is None:
            raise InvalidArgument(
                "This cluster uses the machine's own network, which cannot be cut.",
                hint="Start it with network=True.",
            )
        return self._network

    @property
    def cuts(self) -> list[tuple[str, str]]:
        """Who does not hear whom: what the first sends does not reach the second."""
        return [] if self._network is None else self._network.cuts

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Let nothing through between two of them; `one_way`: nothing that `a` sends to `b`."""
        self.network.cut(a, b, one_way=one_way)

    def isolate(self, name: str, *, from_etcd: bool = True, from_clients: bool = True) -> None:
        """Cut a broker from all others, from clients and from etcd."""
        self.network.isolate(name, from_etcd=from_etcd, from_clients=from_clients)

    def partition(self, groups: Iterable[Iterable[str]]) -> None:
        """Cut groups of brokers, `clients` and `etcd` from each other; whoever is in none reaches all."""
        self.network.partition(groups)

    def ring(self) -> None:
        """Each broker reaches only its two neighbours; clients and etcd reach all."""
        self.network.ring()

    def slow(self, name: str, bits_per_s: int) -> None:
        """Let everything that a broker sends through at this rate only."""
        self.network.slow(name, bits_per_s)

    def heal(self) -> None:
        """End all cuts, and make slow links fast again; there are none without a network of its own."""
        if self._network is not None:
            self._network.heal()


def _all_heard(client: Client, count: int) -> bool:
    states = client.brokers()
    return len(states) >= count and all(state.view == "heard" for state in states) and any(s.controller for s in states)


@contextmanager
def cluster(brokers: int = 3, **options: Any) -> Iterator[LocalCluster]:
    """A real cluster with its data in a temporary directory; see LocalCluster for what it can do."""
    with LocalCluster(brokers, **options) as local:
        yield local
