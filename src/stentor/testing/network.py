"""A network of its own for a local cluster, which can be cut anywhere.

    root namespace: clients (.1), etcd (.2) ── bridge ─┬─ veth ─ b0 (.10), in a namespace of its own
                                                       ├─ veth ─ b1 (.11)
                                                       └─ …

A cut drops packets at the broker's side and says nothing to anybody, as a broken switch does: connections stay open
and fall silent. It needs Linux, root, `ip` and `iptables`. Every cluster takes a subnet nobody else has, and what a
killed process left behind is removed by the next one that needs a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stentor.errors import InternalError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CLIENTS: Final = "clients"
ETCD: Final = "etcd"

_SUBNETS: Final = 512
"""198.18.0.0/15 is set apart for tests of networks (RFC 2544): nobody's real network is hidden by it."""

_CLIENTS_HOST: Final = 1
_ETCD_HOST: Final = 2
_FIRST_BROKER_HOST: Final = 10
_COMMAND_S: Final = 20.0
_BRIDGE: Final = re.compile(r"\d+: (stn[0-9a-f]{3}): .*?\\\s+alias stentor (\d+) (\d+)\b")


class Packets(NamedTuple):
    """What a cut drops: all packets from one address to another."""

    sender: str
    receiver: str


def why_no_network() -> str:
    """One sentence why there can be no network here; empty where there can be one."""
    if os.geteuid() != 0:
        return "A separate network needs root, for namespaces and packet filters."
    for program, package in (("ip", "iproute2"), ("iptables", "iptables")):
        if _program(program) is None:
            return f"A separate network needs the program {program}: apt-get install {package}."
    return ""


def require_network() -> None:
    """Skip the test that calls this where there can be no network of its own."""
    import pytest

    if reason := why_no_network():
        pytest.skip(reason)


def _program(name: str) -> str | None:
    """Where a program of the system is; the PATH of a user often lacks the folders of root's."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _try(*command: str) -> tuple[str, str]:
    """What a command printed, and why it failed."""
    program = _program(command[0])
    done = subprocess.run(  # noqa: S603 - a program of the system with our own arguments
        [program or command[0], *command[1:]], capture_output=True, text=True, timeout=_COMMAND_S, check=False
    )
    failure = " ".join((done.stderr or done.stdout or str(done.returncode)).split()) if done.returncode else ""
    return done.stdout, failure


def _run(*command: str) -> str:
    output, failure = _try(*command)
    if failure:
        raise InternalError(f"The network of the cluster: `{' '.join(command)}` failed: {failure}")
    return output


class Network:
    """One bridge, and a namespace for each broker. Names are those of brokers, `clients` and `etcd`."""

    def __init__(self) -> None:
        self._number = -1
        self._hosts: dict[str, int] = {CLIENTS: _CLIENTS_HOST, ETCD: _ETCD_HOST}
        self._cuts: set[Packets] = set()
        self._slow: set[str] = set()

    # --- life -----------------------------------------------------------------------------------

    def start(self, prefer: int = 0) -> None:
        """Take a subnet that is free, `prefer` if it is, and make the bridge."""
        if reason := why_no_network():
            raise InvalidArgument(reason)
        remove_left_behind()
        self._number = self._claim(prefer)
        try:
            self._make_bridge()
        except BaseException:
            self.remove()
            raise

    @property
    def started(self) -> bool:
        return self._number >= 0

    def _claim(self, prefer: int) -> int:
        """Whoever makes the bridge of that name has the subnet: the kernel lets only one do it."""
        for step in range(_SUBNETS):
            number = (prefer + step) % _SUBNETS
            _, failure = _try("ip", "link", "add", _bridge(number), "type", "bridge")
            if not failure:
                return number
            if "exists" not in failure:
                raise InvalidArgument(f"This machine cannot create network bridges: {failure}")
        raise InvalidArgument(f"All {_SUBNETS} subnets for tests are in use.")

    def _make_bridge(self) -> None:
        bridge = _bridge(self._number)
        _run("ip", "link", "set", bridge, "alias", f"stentor {os.getpid()} {_process_namespace()}")
        # The first address is the one that clients are seen with; etcd listens on the second.
        for host in (_CLIENTS_HOST, _ETCD_HOST):
            _run("ip", "address", "add", f"{self._address(host)}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")

    def add(self, name: str) -> None:
        """A namespace for a broker, connected to the bridge."""
        if name in self._hosts:
            return
        index = len(self._hosts) - 2
        namespace, outside = self.namespace(name), f"{_bridge(self._number)}-{index}"
        address = self._address(_FIRST_BROKER_HOST + index)
        self._hosts[name] = _FIRST_BROKER_HOST + index
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", outside, "master", _bridge(self._number), "up")
        _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Remove all of it; what is not there is not missed."""
        if self.started:
            _remove(self._number)
            self._number = -1
            self._cuts.clear()

    # --- places ---------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[str]:
        return [name for name in self._hosts if name not in {CLIENTS, ETCD}]

    def namespace(self, name: str) -> str:
        return f"{_bridge(self._number)}-{name}"

    def prefix(self, name: str) -> list[str]:
        """What to put before a command so that it runs in a broker's namespace, as the same process."""
        return [_program("ip") or "ip", "netns", "exec", self.namespace(name)]

    def address(self, name: str) -> str:
        """The address of a broker, of `clients` or of `etcd`."""
        if name not in self._hosts:
            raise InvalidArgument(f"There is no {name!r} in this network, only {', '.join(self._hosts)}.")
        return self._address(self._hosts[name])

    def _address(self, host: int) -> str:
        return f"198.{18 + (self._number >> 8)}.{self._number & 255}.{host}"

    # --- cuts -----------------------------------------------------------------------------------

    @property
    def cuts(self) -> list[tuple[str, str]]:
        """What is cut now: what the first sends does not reach the second."""
        return sorted((cut.sender, cut.receiver) for cut in self._cuts)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Drop everything between two; `one_way`: only what `a` sends to `b`."""
        self.address(a), self.address(b)
        if a == b or {a, b} <= {CLIENTS, ETCD}:
            raise InvalidArgument(f"There is nothing to cut between {a} and {b}.")
        self._drop(a, b)
        if not one_way:
            self._drop(b, a)

    def _drop(self, sender: str, receiver: str) -> None:
        if Packets(sender, receiver) in self._cuts:
            return
        if receiver in {CLIENTS, ETCD}:
            # They live in the machine's own namespace, whose filters are not ours to change.
            rule, where = ["OUTPUT", "-d", self.address(receiver)], sender
        else:
            rule, where = ["INPUT", "-s", self.address(sender)], receiver
        self._filter(where, "-A", *rule, "-j", "DROP")
        self._cuts.add(Packets(sender, receiver))

    def _filter(self, name: str, *arguments: str) -> None:
        _run("ip", "netns", "exec", self.namespace(name), _program("iptables") or "iptables", "-w", *arguments)

    def isolate(self, name: str, *, from_etcd: bool = True, from_clients: bool = True) -> None:
        """Cut a broker from all others, and from etcd and clients unless told otherwise."""
        others = [each for each in self.brokers if each != name]
        others += [ETCD] if from_etcd else []
        others += [CLIENTS] if from_clients else []
        for other in others:
            self.cut(name, other)

    def partition(self, groups: Iterable[Iterable[str]]) -> None:
        """Cut every group from every other. Whoever is in no group still reaches all."""
        for one, other in combinations([tuple(group) for group in groups], 2):
            for a in one:
                for b in other:
                    if not {a, b} <= {CLIENTS, ETCD}:
                        self.cut(a, b)

    def ring(self, names: Sequence[str] | None = None) -> None:
        """Each broker reaches only its two neighbours; etcd and clients reach all."""
        names = list(names or self.brokers)
        for (i, a), (j, b) in combinations(enumerate(names), 2):
            if j - i not in {1, len(names) - 1}:
                self.cut(a, b)

    def slow(self, name: str, bits_per_s: int) -> None:
        """Let what a broker sends through at this rate; what is too much waits, and is dropped after a while."""
        queue = ["root", "tbf", "rate", f"{bits_per_s}bit", "burst", "8kb", "latency", "2s"]
        _run("tc", "-n", self.namespace(name), "qdisc", "replace", "dev", "eth0", *queue)
        self._slow.add(name)

    def heal(self) -> None:
        """Everyone reaches everyone again, as fast as ever."""
        for name in self.brokers:
            self._filter(name, "-F")
        for name in self._slow:
            _try("tc", "-n", self.namespace(name), "qdisc", "delete", "dev", "eth0", "root")
        self._slow.clear()
        self._cuts.clear()

    def __repr__(self) -> str:
        return f"<Network {self._address(0)}/24: {', '.join(self._hosts)}>"


def _bridge(number: int) -> str:
    return f"stn{number:03x}"


def _process_namespace() -> int:
    """Where a process id means what we think it means."""
    return Path("/proc/self/ns/pid").stat().st_ino


def remove_left_behind() -> None:
    """Remove the networks of processes that are gone without having done it."""
    shown = _run("ip", "-oneline", "link", "show", "type", "bridge")
    for bridge, owner, namespace in _BRIDGE.findall(shown):
        if int(namespace) == _process_namespace() and not Path(f"/proc/{owner}").exists():
            _remove(int(bridge[3:], 16))


def _remove(number: int) -> None:
    """The bridge last: as long as it is there, nobody else takes the subnet."""
    bridge = _bridge(number)
    for line in _try("ip", "netns", "list")[0].splitlines():
        namespace = line.split()[0]
        if namespace.startswith(f"{bridge}-"):
            _try("ip", "netns", "delete", namespace)
    # The veth pairs go with their namespaces, unless a process is still in one.
    shown, _ = _try("ip", "-oneline", "link", "show", "type", "veth")
    for name in re.findall(rf"\d+: ({bridge}-\d+)@", shown):
        _try("ip", "link", "delete", name)
    _try("ip", "link", "delete", bridge)
