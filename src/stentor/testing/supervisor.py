"""`python -m stentor.testing.supervisor`: keeps a local cluster running and does what it is told through a socket.

`stentor cluster` starts it and talks to it. What it is told to start is one JSON argument; it answers with one JSON
line on standard output, `{"ready": …}` or `{"error": …}`. Then it takes requests on a Unix socket, a JSON line each
way, until it is told to go down, gets SIGTERM, or (if it is attached) whoever started it is gone.

    cluster.json in the data directory     where the socket is, and which processes there are
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stentor.errors import InvalidArgument, StentorError
from stentor.testing.cluster import LocalCluster
from stentor.testing.network import CLIENTS, ETCD
from stentor.transport.socket_folder import make_socket_folder

if TYPE_CHECKING:
    from collections.abc import Callable

STATE_FILE: Final = "cluster.json"
_REQUEST_S: Final = 5.0
_REQUEST_BYTES_MAX: Final = 64 * 1024
_PAUSED: Final = {"T", "t"}


class Supervisor:
    """One local cluster, and everything that can be done to it from outside."""

    def __init__(self, cluster: LocalCluster, *, attached: bool, network: bool) -> None:
        self._cluster = cluster
        self._network = network
        self._attached = attached
        self._ended = False
        self._folder = make_socket_folder("stentor-control-")
        self._requests: dict[str, Callable[..., Any]] = {
            "status": self.state,
            "kill": self._kill,
            "pause": self._pause,
            "resume": self._resume,
            "restart": self._restart,
            "add": self._add,
            "drain": self._drain,
            "cut": self._cut,
            "heal": self._heal,
            "down": self._down,
        }

    # --- life -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Start the cluster, serve requests, stop it gracefully."""
        control = socket.socket(socket.AF_UNIX)
        try:
            self._cluster.start()
            control.bind(str(self._folder / "control"))
            control.listen()
            self._write_state()
            _say({"ready": self.state()})
            self._serve(control)
        finally:
            control.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(KeyboardInterrupt):  # told to stop twice: then at once
                self._cluster.stop()
            self._cluster.cleanup()
            (self._cluster.directory / STATE_FILE).unlink(missing_ok=True)

    def _serve(self, control: socket.socket) -> None:
        watched: list[Any] = [control, sys.stdin] if self._attached else [control]
        while not self._ended:
            heard, _, _ = select.select(watched, [], [])
            if sys.stdin in heard:
                return  # whoever started it is gone
            connection, _ = control.accept()
            with connection, suppress(OSError):
                connection.settimeout(_REQUEST_S)
                answer = self._answer(connection)
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        try:
            with connection.makefile("rb") as lines:
                request = json.loads(lines.readline(_REQUEST_BYTES_MAX))
            done = self._requests[request.pop("do")](**request)
            self._write_state()
        except (StentorError, OSError) as error:
            return {"error": str(error), "usage": isinstance(error, InvalidArgument)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": f"This is not a request: {error!r}.", "usage": True}
        return {"done": done}

    def _write_state(self) -> None:
        file = self._cluster.directory / STATE_FILE
        new = file.with_suffix(".new")
        new.write_text(json.dumps(self.state(), indent=2) + "\n", encoding="utf-8")
        new.replace(file)

    def state(self) -> dict[str, Any]:
        """Everything about the processes; what the brokers know is asked of them."""
        cluster = self._cluster
        return {
            "pid": os.getpid(),
            "control": str(self._folder / "control"),
            "data": str(cluster.directory),
            "url": cluster.url,
            "direct_url": cluster.direct_url,
            "brokers": [
                {
                    "name": broker.name,
                    "address": broker.address,
                    "http_address": f"{broker.host}:{broker.http_port}" if broker.http_port else "",
                    "zone": cluster.zone(index),
                    **_process(broker.pid if broker.running else 0),
                }
                for index, broker in enumerate(cluster.brokers.values())
            ],
            "warning": cluster.etcd.warning,
            "etcd": [
                {"name": f"etcd-{index}", "address": address, **_process(cluster.etcd.pid(index))}
                for index, address in enumerate(cluster.etcd.endpoints)
            ],
            "haproxy": [
                {"name": each.name, "address": each.address, **_process(each.pid if each.running else 0)}
                for each in cluster.balancers
            ],
            "network": self._network,
            "cuts": cluster.cuts,
        }

    # --- requests -------------------------------------------------------------------------------

    def _find(self, name: str) -> tuple[str, int]:
        """Which kind of process has this name, and which of its kind it is."""
        cluster = self._cluster
        kinds = {
            "broker": list(cluster.brokers),
            "etcd": [f"etcd-{index}" for index in range(len(cluster.etcd.endpoints))],
            "haproxy": [balancer.name for balancer in cluster.balancers],
        }
        for kind, names in kinds.items():
            if name in names:
                return kind, names.index(name)
        known = ", ".join(name for names in kinds.values() for name in names)
        raise InvalidArgument(f"There is no {name!r} in this cluster, only {known}.")

    def _running(self, name: str) -> int:
        """The process of this name, which must be there."""
        self._find(name)
        state = self.state()
        [found] = [each for kind in ("brokers", "etcd", "haproxy") for each in state[kind] if each["name"] == name]
        if found["state"] == "dead":
            raise InvalidArgument(f"{name} is not running.", hint=f"`stentor cluster restart {name}` starts it.")
        return int(found["pid"])

    def _kill(self, name: str) -> None:
        self._running(name)
        kind, index = self._find(name)
        if kind == "broker":
            self._cluster.kill(name)
        elif kind == "etcd":
            self._cluster.etcd.kill(index)
        else:
            self._cluster.kill_haproxy(index)

    def _pause(self, name: str) -> None:
        os.kill(self._running(name), signal.SIGSTOP)

    def _resume(self, name: str) -> None:
        os.kill(self._running(name), signal.SIGCONT)

    def _restart(self, name: str) -> None:
        """A graceful stop if it runs, and a start with the same data and ports."""
        kind, index = self._find(name)
        cluster = self._cluster
        if kind == "broker":
            if cluster.brokers[name].running:
                cluster.resume(name)
                cluster.terminate(name)
            cluster.restart(name)
        elif kind == "etcd":
            cluster.etcd.kill(index)
            cluster.etcd.start()
        else:
            cluster.kill_haproxy(index)
            cluster.restart_haproxy()

    def _add(self) -> str:
        return self._cluster.add()

    def _drain(self, name: str, draining: bool = True) -> None:
        if self._find(name)[0] != "broker":
            raise InvalidArgument(f"{name} is not a broker; only brokers hold replicas.")
        with self._cluster.asking() as client:
            client.drain_broker(name, draining=draining)

    def _cut(self, a: str, b: str, one_way: bool = False) -> None:
        self._require_network()
        for name in (a, b):
            if name not in {CLIENTS, ETCD} and self._find(name)[0] != "broker":
                raise InvalidArgument(f"{name} cannot be cut off by itself.", hint="Use a broker, clients or etcd.")
        self._cluster.cut(a, b, one_way=one_way)

    def _heal(self) -> None:
        self._require_network()
        self._cluster.heal()

    def _require_network(self) -> None:
        if not self._network:
            raise InvalidArgument(
                "The brokers of this cluster use the machine's own network, which cannot be cut.",
                hint="Start it with `stentor cluster up --network`, as root.",
            )

    def _down(self) -> None:
        self._ended = True


def _process(pid: int) -> dict[str, Any]:
    """A process as people see it: running, paused or dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        state = "Z"
    if pid == 0 or state in {"Z", "X"}:
        return {"pid": None, "state": "dead"}
    return {"pid": pid, "state": "paused" if state in _PAUSED else "running"}


def _say(answer: dict[str, Any]) -> None:
    """The one line for whoever started this; it may be gone already."""
    with suppress(OSError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> int:
    """Run until told otherwise."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = json.loads(sys.argv[1])
    attached = wanted.pop("attached")
    try:
        Supervisor(LocalCluster(**wanted), attached=attached, network=wanted["network"]).run()
    except StentorError as error:
        _say({"error": str(error), "usage": isinstance(error, InvalidArgument)})
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
