"""A real HAProxy before the brokers of a local cluster, with the configuration that `stentor lb-config` writes."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stentor.errors import DeadlineExceeded, InternalError, InvalidArgument
from stentor.http.balancer import render
from stentor.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.http.balancer import Backend

_START_S: Final = 20.0
_STOP_S: Final = 10.0
_LOG_BYTES: Final = 1000


def why_no_haproxy() -> str:
    """One sentence why there is no HAProxy here; empty where there is one."""
    return "" if _program() else "There is no haproxy on this machine: apt-get install haproxy."


def require_haproxy() -> None:
    """Skip the test that calls this where there is no HAProxy."""
    import pytest

    if reason := why_no_haproxy():
        pytest.skip(reason)


def _program() -> str | None:
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/sbin:/usr/local/sbin")


class LocalHaproxy:
    """One HAProxy on a free port of this machine; started again, it has the same port."""

    def __init__(self, name: str, directory: Path, *, host: str = "127.0.0.1") -> None:
        if reason := why_no_haproxy():
            raise InvalidArgument(reason)
        self.name = name
        self.host = host
        self.port = 0
        self._file = directory / f"{name}.cfg"
        self._log_file = directory / f"{name}.log"
        self._processes: list[subprocess.Popen[bytes]] = []  # the last serves, those before end with their connections

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return bool(self._processes) and self._processes[-1].poll() is None

    @property
    def pid(self) -> int:
        if not self._processes:
            raise InvalidArgument(f"{self.name} is not running.")
        return self._processes[-1].pid

    def start(self, brokers: Sequence[Backend]) -> None:
        """Start it before these brokers; if it runs, it takes them on without letting go of a connection."""
        self.port = self.port or free_ports(1, self.host)[0]
        self._file.write_text(render("haproxy", brokers, host=self.host, port=self.port), encoding="utf-8")
        command = [_program() or "haproxy", "-db", "-f", str(self._file)]
        if self.running:
            command += ["-sf", str(self.pid)]
        self._processes = [process for process in self._processes if process.poll() is None]
        with self._log_file.open("ab") as log:
            self._processes.append(
                subprocess.Popen(  # noqa: S603 - the program that was asked for
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )
        self._await_connections()

    def _await_connections(self) -> None:
        deadline = time.monotonic() + _START_S
        pause = threading.Event()
        while True:
            if not self.running:
                said = self._log_file.read_text(encoding="utf-8", errors="replace")[-_LOG_BYTES:]
                raise InternalError(f"HAProxy did not start: {' '.join(said.split())}")
            try:
                socket.create_connection((self.host, self.port), timeout=1.0).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(f"HAProxy accepted no connection within {_START_S:g} s.") from None
                pause.wait(0.02)
            else:
                return

    def kill(self) -> None:
        """End it at once, with all connections through it."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait(_STOP_S)
        self._processes.clear()
