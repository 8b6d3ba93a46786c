"""What tests of a running broker share: a raw connection that says whatever it is told to, and waiting."""

from __future__ import annotations

import gc
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from stentor.wire import batch, frames, messages
from stentor.wire.frames import Kind

WAIT_S = 15.0
STEP_CPU_S_MAX = 0.2
"""C35: no step of a broker's loop is ever longer."""

SPARK_IN_OTHER_PROCESSES = {
    "test_exactly_once.py",
    "test_killed_brokers.py",
    "test_ledger.py",
    "test_runs.py",
    "test_standalone.py",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` the tests of a file stay together; those that share the one Spark session all do."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            shared = file.startswith("tests/spark/") and Path(file).name not in SPARK_IN_OTHER_PROCESSES
            return "spark" if shared else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of Spark take longest together: they begin first, in one process, beside all the others."""
    items.sort(key=lambda item: "spark" not in item.path.parts)


def _wait_until(condition: Callable[[], Any], what: str = "the condition", seconds: float = WAIT_S) -> Any:
    """The first true value of `condition`; fails when the deadline passes."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {seconds:g} s")
        pause.wait(0.005)


@pytest.fixture(scope="session")
def long_steps() -> Iterator[list[str]]:
    """Steps of brokers in this process that took more of the processor than C35 allows, as they come.

    The garbage collector does not count: here it walks over what all tests have left behind.
    """
    from stentor.broker.loop_watch import LoopWatch

    found: list[str] = []
    count = LoopWatch._count
    collecting: dict[int, float] = {}  # by thread: since when it collects,
    collected: Counter[int] = Counter()  # and what it has spent so since its last step

    def note_collection(phase: str, _: object) -> None:
        thread, spent = threading.get_ident(), time.thread_time()
        if phase == "start":
            collecting[thread] = spent
        else:
            collected[thread] += spent - collecting.pop(thread, spent)

    def noted(self: LoopWatch, late_s: float, now: float, cpu_s: float) -> None:
        own_s = cpu_s - collected.pop(threading.get_ident(), 0.0)
        if own_s > STEP_CPU_S_MAX and self._cpu_s is time.thread_time:  # not one whose clock a test made
            found.append(f"{own_s * 1000:.0f} ms by {self._whose(late_s, cpu_s)}")
        count(self, late_s, now, cpu_s)

    gc.callbacks.append(note_collection)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LoopWatch, "_count", noted)
        yield found
    gc.callbacks.remove(note_collection)


@pytest.fixture(autouse=True)
def _no_loop_is_held(long_steps: list[str]) -> Iterator[None]:
    """Fail a test that made a broker in this process hold its loop; processor time counts, so other work does not."""
    long_steps.clear()
    yield
    assert not long_steps, f"a broker's loop was held (C35): {', '.join(long_steps)}"


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return _wait_until


class RawConnection:
    """A socket that speaks frames only when asked to."""

    def __init__(self, url: str, *, receive_buffer: int | None = None) -> None:
        host, _, port = url.removeprefix("stentor://").rpartition(":")
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT_S)
        self.socket.connect((host, int(port)))
        self._received = b""
        self._correlation = 0

    # --- saying ---------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, kind: int, correlation: int = 0, body: bytes = b"", flags: int = 0) -> None:
        self.send_bytes(frames.frame(kind, correlation, body, flags))

    def greet(self, **fields: Any) -> Self:
        """HELLO, and the WELCOME that answers it."""
        hello = {"version_min": 1, "version_max": frames.PROTOCOL_VERSION, "name": "raw"}
        self.send(Kind.HELLO, 0, messages.encode(messages.Hello(**{**hello, **fields})))
        kind, _, body = self.receive()
        assert kind == Kind.WELCOME, messages.decode(body, messages.Failure)
        return self

    def ask(self, request: Any) -> Any:
        """The answer to a control request; a refusal is raised."""
        self._correlation += 1
        self.send(Kind.REQUEST, self._correlation, messages.encode(request))
        body = self.answer_to(self._correlation, Kind.RESPONSE)
        return messages.decode(body, messages.Response)

    def publish(
        self,
        topic_id: int,
        values: list[bytes],
        *,
        partition: int = 0,
        producer_id: int = 0,
        generation: int = 0,
        sequence: int = 0,
        ack: int = frames.Ack.ALL,
        now_us: int = 1_700_000_000_000_000,
    ) -> int:
        """Publish one batch and return its correlation id."""
        encoded = batch.encode_at(now_us, [None] * len(values), values)
        place = {"partition": partition, "producer_id": producer_id, "generation": generation, "sequence": sequence}
        return self.publish_encoded(topic_id, encoded, ack=ack, **place)

    def publish_encoded(
        self,
        topic_id: int,
        encoded: batch.Encoded,
        *,
        partition: int = 0,
        producer_id: int = 0,
        generation: int = 0,
        sequence: int = 0,
        ack: int = frames.Ack.ALL,
    ) -> int:
        """Publish what is encoded already, as no client of ours would perhaps; return its correlation id."""
        header = batch.address(
            encoded,
            topic_id=topic_id,
            partition=partition,
            producer_id=producer_id,
            generation=generation,
            sequence=sequence,
        )
        self._correlation += 1
        self.send(Kind.PUBLISH, self._correlation, bytes(header) + bytes(encoded.body), ack)
        return self._correlation

    def published(self, correlation: int) -> int:
        """The base offset that a publish was answered with; a refusal is raised."""
        offset, _, _ = frames.PUBLISHED.unpack(self.answer_to(correlation, Kind.PUBLISHED))
        return offset

    # --- hearing --------------------------------------------------------------------------------

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame: (kind, correlation, body); EOFError when the broker closed."""
        length, kind, _, reserved, correlation = frames.HEADER.unpack(self._take(frames.HEADER_BYTES))
        assert kind in frames.KINDS
        assert reserved == 0
        return kind, correlation, self._take(length)

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            try:
                piece = self.socket.recv(1 << 16)
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError
            self._received += piece
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def answer_to(self, correlation: int, kind: int) -> bytes:
        while True:
            found, answered, body = self.receive()
            if answered == correlation and found == Kind.ERROR:
                raise messages.raised(messages.decode(body, messages.Failure))
            if (found, answered) == (kind, correlation):
                return body

    def refusal(self) -> messages.Failure | None:
        """Read to the end of the connection; the reason the broker gave, if it gave one."""
        reason = None
        try:
            while True:
                kind, correlation, body = self.receive()
                if kind == Kind.ERROR and correlation == 0:
                    reason = messages.decode(body, messages.Failure)
        except EOFError:
            return reason

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def raw() -> Iterator[Callable[..., RawConnection]]:
    """Opens raw connections to a broker's URL; all are closed at the end."""
    opened: list[RawConnection] = []

    def connect(url: str, **options: Any) -> RawConnection:
        opened.append(RawConnection(url, **options))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes file systems of a given size in MiB; skips where that is not allowed."""
    mounted: list[Path] = []

    def mount(mebibytes: int) -> Path:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path)], check=False, capture_output=True
        )
        if done.returncode:
            pytest.skip("mounting a file system needs root")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
