"""A whole broker on free ports, in a thread of this process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.broker import load_config
from stentor.client.sync_client import Client
from stentor.errors import InternalError
from stentor.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.broker import Broker
    from stentor.wire.messages import BrokerInfo

_START_S = 30.0


class LocalBroker:
    """A broker that can be started, stopped and started again on the same data and ports."""

    def __init__(self, data: str | Path | None = None, **settings: Any) -> None:
        self._temporary = data is None
        self.data_directory = Path(tempfile.mkdtemp(prefix="stentor-") if data is None else data)
        self._settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 0,
            "http_port": 0,
            "http": False,
            "metrics_interval_s": 0,
        }
        self._settings.update(settings)
        self.info: BrokerInfo | None = None
        self._node: Node | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._errors: list[BaseException] = []

    @property
    def url(self) -> str:
        """What clients connect to."""
        assert self.info is not None, "the broker is not running"
        return f"stentor://{self.info.address}"

    @property
    def http_url(self) -> str:
        """Where HTTP is served (start it with http=True)."""
        assert self.info is not None, "the broker is not running"
        return f"http://{self.info.http_address}"

    @property
    def inner(self) -> Broker:
        """The broker itself, for tests that look inside."""
        assert self._node is not None
        return self._node.broker

    def client(self, **options: Any) -> Client:
        """A client connected to it."""
        return Client(self.url, **options)

    def start(self) -> LocalBroker:
        """Start it, or start it again; raises what the broker raised."""
        started = threading.Event()
        self._errors.clear()
        self._thread = threading.Thread(target=self._run, args=(started,), name="stentor-broker", daemon=True)
        self._thread.start()
        if not started.wait(_START_S):
            raise InternalError(f"The test broker did not start within {_START_S:g} s.")
        if self._errors:
            self._thread.join()
            raise self._errors[0]
        return self

    def _run(self, started: threading.Event) -> None:
        try:
            import uvloop

            factory: Any = uvloop.new_event_loop
        except ImportError:
            factory = None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            config = load_config({**self._settings, "data_directory": str(self.data_directory)})
            self._node = Node(config)
            self.info = await self._node.start()
            # The same ports again after a restart, so that clients find it.
            self._settings["port"] = self._node.broker.port
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._errors.append(error)
            started.set()
            return
        started.set()
        await self._stop.wait()
        await self._node.stop()

    def stop(self) -> None:
        """Stop it gracefully; the data stays until the end of the context."""
        if self._thread is not None and self._loop is not None and self._stop is not None:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None

    def cleanup(self) -> None:
        self.stop()
        if self._temporary:
            shutil.rmtree(self.data_directory, ignore_errors=True)


@contextmanager
def broker(data: str | Path | None = None, **settings: Any) -> Iterator[LocalBroker]:
    """A real broker on a free port, with its data in a temporary directory unless `data` is given."""
    local = LocalBroker(data, **settings)
    try:
        yield local.start()
    finally:
        local.cleanup()
