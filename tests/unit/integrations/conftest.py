"""A broker, an application of a framework as a module of its own, and real workers of it as processes."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import stentor
from stentor.testing import broker

SOURCE = Path(stentor.__file__).parents[1]


@pytest.fixture(scope="module")
def shared():
    with broker() as local:
        yield local


@pytest.fixture
def client(shared):
    with shared.client() as connected:
        yield connected


@pytest.fixture
def name():
    return f"tasks-{uuid.uuid4().hex[:8]}"


class Workplace:
    """A folder with an application in it, whose tasks note what they do; and the workers that run there."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self.folder = folder
        self.module = f"app_{uuid.uuid4().hex[:8]}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{folder}{os.pathsep}{SOURCE}",
            "URL": url,
            "QUEUE": name,
            "NOTES": str(folder / "notes"),
            "GO": str(folder / "go"),
        }

    def write(self, text: str) -> None:
        (self.folder / f"{self.module}.py").write_text(_NOTING + text)

    def load(self, monkeypatch: pytest.MonkeyPatch) -> object:
        """The same application in this process."""
        for key in ("URL", "QUEUE", "NOTES", "GO"):
            monkeypatch.setenv(key, self.environment[key])
        monkeypatch.syspath_prepend(str(self.folder))
        return __import__(self.module)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"worker-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self.processes.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes], how: int = signal.SIGKILL) -> None:
        """The worker and all its children, or the worker alone if it is asked to."""
        try:
            if how == signal.SIGKILL:
                os.killpg(process.pid, how)
            else:
                process.send_signal(how)
        except ProcessLookupError:
            pass
        process.wait(30)

    def start_until(self, done: Callable[[], bool], *arguments: str) -> int:
        """Start a worker again whenever it dies, until all is done. Returns how many died."""
        deadline = time.monotonic() + 60
        died = 0
        worker = self.start(*arguments)
        while not done():
            assert time.monotonic() < deadline, "it is not done"
            if worker.poll() is not None:
                died += 1
                self.stop(worker)  # whatever children are left
                worker = self.start(*arguments)
            with suppress(subprocess.TimeoutExpired):
                worker.wait(0.1)
        self.stop(worker)
        return died

    def notes(self) -> list[str]:
        """What tasks noted, in order."""
        path = Path(self.environment["NOTES"])
        return path.read_text().split() if path.exists() else []

    def go(self) -> None:
        """Let the tasks that wait for it end."""
        Path(self.environment["GO"]).touch()

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("worker-*.log")))


_NOTING = """
import os
import time

def note(text):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(text + "\\n")

def wait_for_go():
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
"""


@pytest.fixture
def workplace(tmp_path, shared, name):
    place = Workplace(tmp_path, shared.url, name)
    yield place
    for process in place.processes:
        place.stop(process)
    print(place.logs())  # pytest shows it if the test failed


@pytest.fixture
def letters(client):
    """The dead letters of a queue, as soon as there are any."""
    return lambda queue, count=1: [
        message for _, message in zip(range(count), client.subscribe(f"{queue}.dead", start="earliest"), strict=False)
    ]
