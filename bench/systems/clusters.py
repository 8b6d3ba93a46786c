"""Clusters on this machine: Stentor with an etcd and 1 to 3 brokers, NATS JetStream with three nodes.

    stentor1, stentor2, stentor3   so many brokers; as many replicas, unless the mode says `spread`
    nats3                          three nodes, R3, file storage

All processes share the machine's cores: what is measured is the work that replication costs, and not what three
machines could do.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.measure import cpu_seconds, disk_bytes
from bench.model import BenchError
from bench.processes import START_S_MAX, Server, free_port
from bench.systems.nats import Nats
from bench.systems.stentor import Stentor

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from bench.model import Case
    from bench.processes import Processes

NODES = ("n0", "n1", "n2")

CONFIGURATION = """
server_name: {name}
host: 127.0.0.1
port: {port}
write_deadline: "60s"
max_pending: 1GB
jetstream {{
  store_dir: "{data}"
  {sync}
}}
cluster {{
  name: bench
  host: 127.0.0.1
  port: {peer_port}
  routes: [{routes}]
}}
"""


@dataclass(slots=True)
class Nodes(Server):
    """Several processes that are one server."""

    pids: list[int] = field(default_factory=list)

    def cpu_s(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def disk_bytes(self) -> int:
        return disk_bytes(self.data) if self.data else 0


class StentorCluster(Stentor):
    """Brokers and an etcd in processes of their own."""

    def __init__(self, brokers: int) -> None:
        self.name = f"stentor{brokers}"
        self._brokers = brokers

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        from stentor.testing import LocalCluster

        cluster = LocalCluster(self._brokers, data=directory / "stentor", settings={"http": False})
        processes.at_exit(cluster.cleanup)
        cluster.start()
        pids = [broker.pid for broker in cluster.brokers.values()]
        return Nodes(cluster.url, directory / "stentor", None, pids)


class NatsCluster(Nats):
    """Three nodes, every message on all three."""

    name = "nats3"

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        ports = {name: (free_port(), free_port()) for name in NODES}
        routes = ", ".join(f'"nats://127.0.0.1:{peer_port}"' for _, peer_port in ports.values())
        started: list[subprocess.Popen[bytes]] = []
        for name, (port, peer_port) in ports.items():
            configuration = directory / f"{name}.conf"
            text = CONFIGURATION.format(
                name=name,
                port=port,
                peer_port=peer_port,
                data=directory / "nats" / name,
                routes=routes,
                sync="sync_interval: always" if case.durability == "fsync" else "",
            )
            configuration.write_text(text)
            started.append(processes.start_listening(f"nats-{name}", [self._program(), "-c", str(configuration)], port))
        address = f"nats://127.0.0.1:{ports['n0'][0]}"
        asyncio.run(_until_ready(address))
        return Nodes(address, directory / "nats", None, [process.pid for process in started])


async def _until_ready(address: str) -> None:
    """The nodes elect a leader before streams can be made."""
    import nats

    deadline = time.monotonic() + START_S_MAX
    client: Any = await nats.connect(address)
    try:
        while time.monotonic() < deadline:
            try:
                context = client.jetstream(timeout=2)
                await context.add_stream(name="READY", subjects=["ready"], storage="file", num_replicas=3)
                await context.delete_stream("READY")
            except Exception:  # noqa: BLE001 - nats-py has many
                await asyncio.sleep(0.2)
            else:
                return
        raise BenchError("the NATS cluster did not become ready")
    finally:
        await client.close()


SYSTEMS = {
    "stentor1": StentorCluster(1),
    "stentor2": StentorCluster(2),
    "stentor3": StentorCluster(3),
    "nats3": NatsCluster(),
}
