"""A real etcd, a store of each kind behind one face, a proxy that misbehaves, and waiting."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
import uvloop

from stentor.coordination import EmbeddedStore
from stentor.coordination.etcd import open_etcd
from stentor.errors import InvalidArgument
from stentor.ports import Resync
from stentor.testing.etcd import LocalEtcd, find_etcd

WAIT_S = 15.0


def run(story):
    """Run a test's story in the loop that brokers use."""

    async def bounded():
        async with asyncio.timeout(40):
            await story

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


async def until(condition, what="the condition", seconds=WAIT_S):
    """The first true value of `condition`; fails when the deadline passes."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {seconds:g} s")
        await asyncio.sleep(0.005)
    return value


class Follower:
    """Somebody who watches a prefix and keeps a map of it, as a broker does."""

    def __init__(self, watch):
        self.events = []
        self.known = {}
        self.ended = False
        self._task = asyncio.ensure_future(self._follow(watch))

    async def _follow(self, watch):
        async for event in watch:
            self.events.append(event)
            if isinstance(event, Resync):
                self.known = {entry.key: entry.value for entry in event.entries}
            else:
                self.known.update((entry.key, entry.value) for entry in event.put)
                for key in event.deleted:
                    self.known.pop(key, None)
        self.ended = True

    @property
    def revisions(self):
        return [event.revision for event in self.events]

    @property
    def resyncs(self):
        return [event for event in self.events if isinstance(event, Resync)]

    async def knows(self, known, seconds=WAIT_S):
        await until(lambda: self._task.done() or self.known == known, f"{self.known} -> {known}", seconds)
        if self._task.done():
            self._task.result()
            pytest.fail("the watch ended")

    async def stop(self):
        self._task.cancel()
        await asyncio.wait({self._task})


class Proxy:
    """A way to an etcd that can swallow answers and cut connections."""

    def __init__(self, endpoint):
        self._host, _, self._port = endpoint.rpartition(":")
        self._writers = set()
        self._tasks = set()
        self.swallowing = False  # requests pass, answers do not
        self.swallowed = 0
        self.connections = 0

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        return self

    async def _serve(self, reader, writer):
        self.connections += 1
        there, back = await asyncio.open_connection(self._host, int(self._port))
        self._writers |= {writer, back}
        self._tasks.add(asyncio.current_task())
        await asyncio.gather(self._pump(reader, back, answers=False), self._pump(there, writer, answers=True))

    async def _pump(self, reader, writer, *, answers):
        try:
            while data := await reader.read(1 << 16):
                if answers and self.swallowing:
                    self.swallowed += 1
                else:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self):
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self):
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(endpoint):
    proxy = await Proxy(endpoint).start()
    try:
        yield proxy
    finally:
        await proxy.close()


def ask_etcd(endpoint, path, token="", **request):
    """What an administrator asks of etcd."""
    headers = {"Authorization": token} if token else {}
    posted = urllib.request.Request(f"http://{endpoint}{path}", json.dumps(request).encode(), headers)
    with urllib.request.urlopen(posted, timeout=WAIT_S) as answer:
        return json.load(answer)


class Embedded:
    """The embedded store, with a file that is a variable."""

    kind = "embedded"

    def __init__(self):
        self.saved = None
        self.stores = []

    def _save(self, data):
        self.saved = data

    def open(self, **options):
        self.stores.append(EmbeddedStore(self.saved, self._save, **options))
        return self.stores[-1]

    def forget_history(self, revision):
        for store in self.stores:
            store._history.clear()


class Etcd:
    """A store on the etcd of these tests, below a prefix of its own."""

    kind = "etcd"

    def __init__(self, local):
        self.endpoint = local.endpoints[0]
        self.prefix = f"/stentor/{uuid4().hex}"
        self.stores = []

    def open(self, endpoints="", **options):
        self.stores.append(open_etcd(f"etcd://{endpoints or self.endpoint}{self.prefix}", **options))
        return self.stores[-1]

    def forget_history(self, revision):
        ask_etcd(self.endpoint, "/v3/kv/compaction", revision=str(revision))


@pytest.fixture(scope="session")
def local_etcd():
    try:
        find_etcd()
    except InvalidArgument as error:
        pytest.skip(str(error))
    with LocalEtcd() as local:
        yield local


def _told(stores, story):
    async def whole():
        try:
            await story
        finally:
            for store in stores.stores:
                await store.close()

    run(whole())


@pytest.fixture(params=["embedded", "etcd"])
def stores(request):
    """Opens stores on the same keys; both kinds keep the same contract."""
    return Embedded() if request.param == "embedded" else Etcd(request.getfixturevalue("local_etcd"))


@pytest.fixture
def etcd_stores(local_etcd):
    return Etcd(local_etcd)


@pytest.fixture
def tell():
    """Run a story; close what it opened."""
    return _told


@pytest.fixture
def follow():
    return Follower


@pytest.fixture
def eventually():
    return until


@pytest.fixture
def proxy_to():
    return proxied


@pytest.fixture
def administrate():
    return ask_etcd
