import io
import os
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

from stentor.cli.app import run
from stentor.testing import broker


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever runs the tests in the background has Ctrl-C ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def running_broker():
    with broker(http=True) as local:
        yield local


@pytest.fixture
def cli(running_broker, monkeypatch, capsys):
    """Runs a command line in this process, against a real broker."""
    monkeypatch.setenv("STENTOR_URL", running_broker.url)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("STENTOR_DEBUG", raising=False)

    def call(*arguments: str, stdin: bytes | str = b"") -> Outcome:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        capsys.readouterr()
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def client(running_broker):
    with running_broker.client() as connected:
        yield connected


@pytest.fixture
def shell(running_broker):
    """Runs a command line as a process of its own, the way a person does."""
    started = []

    def start(*arguments: str, **settings) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "STENTOR_URL": running_broker.url, **settings.pop("environment", {})}
        process = subprocess.Popen(
            [sys.executable, "-m", "stentor", *arguments],
            env=environment,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
