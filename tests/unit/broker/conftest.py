"""Brokers in this process and brokers that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stentor import Client
from stentor.testing import LocalBroker, broker
from stentor.testing.etcd import LocalEtcd


@pytest.fixture(scope="module")
def etcd() -> Iterator[LocalEtcd]:
    """A coordination store for brokers of a cluster."""
    with LocalEtcd() as started:
        yield started


@pytest.fixture
def local() -> Iterator[LocalBroker]:
    """A broker for this test alone."""
    with broker() as started:
        yield started


@pytest.fixture
def client(local: LocalBroker) -> Iterator[Client]:
    with local.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def read() -> Callable[..., list[bytes | None]]:
    """The values of a bounded read."""

    def values(client: Client, topic: str, **options: Any) -> list[bytes | None]:
        return [message.value for message in client.read(topic, **options)]

    return values


class ServedBroker:
    """A broker in a process of its own, on a fixed port, that can be killed and started again."""

    def __init__(self, data: Path, *, descriptors: int = 0, http_port: int | None = None, **settings: object) -> None:
        self._data = data
        self._descriptors = descriptors  # how many the process may open; 0: as many as this one
        self._http = ["--no-http"] if http_port is None else ["--http-port", str(http_port)]
        self._flags = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[str] | None = None
        self.log = (data.parent / f"{data.name}.stderr").open("a")

    @property
    def url(self) -> str:
        return f"stentor://127.0.0.1:{self.port}"

    def start(self) -> ServedBroker:
        command = [sys.executable, "-m", "stentor", "serve", "--data", str(self._data), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*self._limited(), *command, *self._http, *self._flags],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "STENTOR_LOG_LEVEL": "warning"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("stentor ready on"), Path(self.log.name).read_text()
        return self

    def _limited(self) -> list[str]:
        if not self._descriptors:
            return []
        return ["/bin/sh", "-c", f'ulimit -n {self._descriptors}; exec "$0" "$@"']

    @property
    def resident_bytes(self) -> int:
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.log.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., ServedBroker]]:
    """Makes brokers in processes of their own; what still runs at the end is killed."""
    made: list[ServedBroker] = []

    def make(name: str = "data", **settings: object) -> ServedBroker:
        made.append(ServedBroker(tmp_path / name, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
