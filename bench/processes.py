"""Starting, telling, and always stopping the processes of a run.

Servers are plain child processes. Roles (producer, consumer ...) are ``python -m bench.role``; they and
the harness talk in lines of JSON over stdin and stdout, and a role ends by itself when its stdin closes,
so none outlives a harness that was killed.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, TYPE_CHECKING, Any, Self

from bench.measure import cpu_seconds, disk_bytes
from bench.model import BenchError, NotAvailableError, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_S_MAX = 30.0
STOP_S_MAX = 5.0
ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A directory for one run on the disk under test, gone afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(mkdtemp(prefix="run-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(slots=True)
class Server:
    """A started system: where it listens, what it runs, where it writes."""

    address: str
    data: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    def cpu_s(self) -> float:
        return cpu_seconds(self.process.pid) if self.process else 0.0

    def disk_bytes(self) -> int:
        return disk_bytes(self.data) if self.data else 0


@dataclass(slots=True)
class Processes:
    """Every process of one run; leaving the context stops them all, whatever happened."""

    directory: Path
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _at_exit: list[Callable[[], None]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            stop(process)
        for work in self._at_exit:
            work()

    @property
    def pids(self) -> list[int]:
        """Of all that were started, in order."""
        return [process.pid for process in self._running]

    def at_exit(self, work: Callable[[], None]) -> None:
        """Something else that must be stopped at the end."""
        self._at_exit.append(work)

    def log_path(self, name: str) -> Path:
        return self.directory / f"{name}.{len(self._running)}.log"

    def start(self, name: str, command: list[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Starts a server whose output goes to a log in the run's directory."""
        with self.log_path(name).open("wb") as log:
            settings.setdefault("stdout", log)
            try:
                # Its own session: Ctrl-C reaches the harness alone, which then stops everything in order.
                process = subprocess.Popen(command, stderr=log, start_new_session=True, **settings)
            except FileNotFoundError as error:
                msg = f"{command[0]} is not installed"
                raise NotAvailableError(msg) from error
        self._running.append(process)
        return process

    def start_listening(self, name: str, command: list[str], port: int, **settings: Any) -> subprocess.Popen[bytes]:
        """Starts a server and waits until its port accepts a connection."""
        log = self.log_path(name)
        process = self.start(name, command, stdin=subprocess.DEVNULL, **settings)
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise BenchError(f"{name} ended with {process.returncode}: {tail(log)}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
                return process
            time.sleep(0.02)
        raise BenchError(f"{name} did not listen within {START_S_MAX} s: {tail(log)}")

    def start_announcing(
        self, name: str, command: list[str], prefix: str, within_s: float = START_S_MAX
    ) -> tuple[subprocess.Popen[bytes], str]:
        """Starts a server and waits for the line on its stdout that begins with `prefix`."""
        log = self.log_path(name)
        environment = environment_with_root()
        process = self.start(name, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        lines = _lines_of(process.stdout)
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                line = lines.get(timeout=min(left, 1.0))
                if line is None:
                    raise BenchError(f"{name} ended before it was ready: {tail(log)}")
                if line.startswith(prefix):
                    return process, line
        raise BenchError(f"{name} was not ready within {within_s} s: {tail(log)}")

    def role(self, function: str, spec: Spec) -> Role:
        """Starts a process that runs `module:function`."""
        kind = function.rpartition(".")[2]
        log = self.log_path(kind)
        process = self.start(
            kind,
            [sys.executable, "-m", "bench.role", function, spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_with_root(),
        )
        return Role(kind, process, log)


def environment_with_root() -> dict[str, str]:
    """The environment of child processes: `bench` importable from anywhere, output unbuffered."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it started, at once: its data directory goes too, so there is nothing to save."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S_MAX)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def tail(path: Path, characters: int = 600) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")[-characters:].strip()
    return ""


def _lines_of(stream: IO[bytes]) -> queue.Queue[str | None]:
    """A queue of the stream's lines, `None` at its end: the only way to read lines with a deadline."""
    lines: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        with suppress(ValueError, OSError):
            for line in stream:
                lines.put(line.decode(errors="replace").rstrip())
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    return lines


class Role:
    """The harness's end of a role process."""

    def __init__(self, kind: str, process: subprocess.Popen[bytes], log: Path) -> None:
        assert process.stdout is not None
        self.kind = kind
        self.process = process
        self._log = log
        self._lines = _lines_of(process.stdout)

    def tell(self, **message: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise BenchError(f"{self.kind} is gone: {tail(self._log)}") from error

    def drain(self) -> list[dict[str, Any]]:
        """What the role has said and nobody has read yet; does not wait."""
        said = []
        with suppress(queue.Empty):
            while line := self._lines.get_nowait():
                said.append(json.loads(line))
        return said

    def expect(self, event: str, timeout: float) -> dict[str, Any]:
        """The next line of the role, which must be `event`."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise BenchError(f"{self.kind}: no {event!r} within {timeout:.0f} s") from None
        if line is None:
            self.process.wait(STOP_S_MAX)
            raise BenchError(f"{self.kind} ended before {event!r}: {tail(self._log)}")
        message: dict[str, Any] = json.loads(line)
        if message["event"] == "not available":
            raise NotAvailableError(message["reason"])
        if message["event"] != event:
            raise BenchError(f"{self.kind} said {message}, not {event!r}")
        return message
