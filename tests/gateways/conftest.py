"""A broker, and gateways that run in threads beside it."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
from contextlib import ExitStack

import pytest
from tests.gateways.chp_client import ChpClient

from stentor.gateways.zmq.gateway import GatewayOptions, ZmqGateway
from stentor.testing import broker

_numbers = itertools.count()


def free_port_run(count=5):
    """The first of some ports in a row at which nobody listens."""
    while True:
        first = random.SystemRandom().randint(15_000, 32_000)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first


class RunningGateway:
    """A gateway in a thread of this process."""

    def __init__(self, url, **options):
        self.port = options.pop("port", None) or free_port_run()
        options.setdefault("silent_s", 0.0)  # nobody was here before
        self.options = GatewayOptions(url=url, port=self.port, **options)
        self.ended = None
        self.heard = False
        self._started = threading.Event()
        self._stop = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with ZmqGateway(self.options) as self.gateway:
                self._started.set()
                running = asyncio.ensure_future(self.gateway.run())
                stopping = asyncio.ensure_future(self._stop.wait())
                await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
                running.cancel()
                stopping.cancel()
                (self.ended, _) = await asyncio.gather(running, stopping, return_exceptions=True)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.ended = error
        finally:
            self._started.set()

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(15)
        if self.ended is not None:
            self._thread.join()
            raise self.ended
        return self

    def __exit__(self, *_):
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(15)
        assert not self._thread.is_alive()
        assert self.heard or isinstance(self.ended, asyncio.CancelledError), self.ended

    def join(self):
        """Wait until it ends by itself; why."""
        self._thread.join(15)
        assert not self._thread.is_alive()
        self.heard = True
        return self.ended

    @property
    def counts(self):
        return self.gateway.statistics()

    def chp(self, *args, **options):
        return ChpClient(self.port, *args, **options)


@pytest.fixture(scope="module")
def shared():
    with broker() as local:
        yield local


@pytest.fixture
def client(shared):
    with shared.client() as connected:
        yield connected


@pytest.fixture
def table_name():
    return f"config-{next(_numbers)}"


@pytest.fixture
def gateway(shared, table_name):
    with RunningGateway(shared.url, table=table_name) as running:
        yield running


@pytest.fixture
def table(gateway, client, table_name):
    with client.table(table_name) as opened:
        yield opened
