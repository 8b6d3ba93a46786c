"""Redis streams by redis-py: one entry per message (`XADD topic * key value`), read with `XREAD COUNT 1000`.

    pure      stock: redis-py as it is without the hiredis package, pipelines of `batch`
    hiredis   tuned: the C parser, and commands that skip redis-py's argument checks
    bare      tuned: hiredis alone, without redis-py (see redis_bare.py)
    packed    tuned: hiredis, and `batch` messages packed as MessagePack (msgspec) in one entry
    pubsub    fan-out only: PUBLISH / SUBSCRIBE, nothing kept

The key is the name of the entry's only field: the smallest entry that carries key and value.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

from bench.model import BenchError, NotAvailableError
from bench.processes import Server, free_port
from bench.systems.base import System, paused, time_publishes
from bench.systems.redis_bare import BLOCK_MS, READ_COUNT, BarePublisher, BareReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.messages import Pool
    from bench.model import Case, Spec
    from bench.processes import Processes
    from bench.systems.base import Publisher, Reader, Subscriber

APPENDFSYNC = {"fsync": "always", "os": "everysec", "none": "no"}


class Redis(System):
    name = "redis"

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        program = shutil.which("redis-server")
        if program is None:
            raise NotAvailableError("redis-server is not installed")
        data = directory / "redis"
        data.mkdir()
        port = free_port()
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(data),
            "appendonly": "yes" if case.durability != "none" else "no",
            "appendfsync": APPENDFSYNC[case.durability],
            "save": "",
            # A rewrite in the middle would charge one run with the work of another.
            "auto-aof-rewrite-percentage": "0",
            "client-output-buffer-limit": "pubsub 0 0 0",
        }
        command = [program]
        for name, value in settings.items():
            command += [f"--{name}", *(value.split() if name.startswith("client") else [value])]
        return Server(f"127.0.0.1:{port}", data, processes.start_listening(self.name, command, port))

    def publisher(self, spec: Spec) -> Publisher:
        kinds: dict[str, Callable[[Spec], Publisher]] = {
            "packed": PackedPublisher,
            "pubsub": ChannelPublisher,
            "bare": BarePublisher,
        }
        return kinds.get(spec.mode, EntryPublisher)(spec)

    def reader(self, spec: Spec) -> Reader:
        kinds: dict[str, Callable[[Spec], Reader]] = {"packed": PackedReader, "bare": BareReader}
        return kinds.get(spec.mode, EntryReader)(spec)

    def publish_times(self, spec: Spec, pool: Pool) -> list[int]:
        client, topic = connect(spec), spec.topic
        return time_publishes(lambda key, value: client.xadd(topic, {key: value}), pool, spec.seconds)

    async def subscriber(self, spec: Spec) -> Subscriber:
        if spec.mode == "pubsub":
            return await PubsubSubscriber.connected(spec)
        return await StreamSubscriber.connected(spec)

    def native(self, case: Case, server: Server, seconds: float) -> float:
        """`redis-benchmark` adding entries of the same size, pipelined; nobody reads them."""
        program = shutil.which("redis-benchmark")
        if program is None:
            raise NotAvailableError("redis-benchmark is not installed")
        rate, requests = 0.0, 20_000
        for _ in range(2):
            rate = self._benchmark(program, case, server, requests)
            requests = max(20_000, int(rate * seconds))
        return rate

    def _benchmark(self, program: str, case: Case, server: Server, requests: int) -> float:
        port = server.address.rpartition(":")[2]
        pipeline = ["-c", "1", "-P", str(case.batch), "-n", str(requests)]
        entry = ["XADD", "bench", "*", "0123abcd", "x" * case.size]
        command = [program, "-h", "127.0.0.1", "-p", port, *pipeline, "--csv", *entry]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        # CSV: "test","rps","avg_latency_ms", ... ; the test's name holds the command, without commas.
        last = done.stdout.strip().splitlines()[-1:]
        if done.returncode or not last:
            raise BenchError(f"redis-benchmark failed: {done.stderr or done.stdout}")
        return float(last[0].split('","')[1].strip('"'))


def address_of(spec: Spec) -> dict[str, Any]:
    host, _, port = spec.address.rpartition(":")
    return {"host": host, "port": int(port), "socket_timeout": 60.0}


def connect(spec: Spec) -> Any:
    """A client with the parser that the mode stands for."""
    import redis
    from redis.connection import ConnectionPool

    if spec.mode == "pure":
        # What redis-py itself falls back to when hiredis is not there.
        from redis._parsers import _RESP2Parser

        pool = ConnectionPool(parser_class=_RESP2Parser, protocol=2, **address_of(spec))
    else:
        import hiredis  # noqa: F401 - a missing hiredis makes the row "not available"

        pool = ConnectionPool(protocol=2, **address_of(spec))
    return redis.Redis(connection_pool=pool)


class EntryPublisher:
    """Pipelines of `batch` XADDs; a pipeline of one is a plain XADD."""

    pause = staticmethod(paused)

    def __init__(self, spec: Spec) -> None:
        self._client = connect(spec)
        self._topic = spec.topic
        self._batch = spec.batch
        self._stock = spec.variant == "stock"

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        if self._batch == 1:
            for key, value in zip(keys, values, strict=True):
                self._client.xadd(self._topic, {key: value})
            return
        for start in range(0, len(keys), self._batch):
            pipeline = self._client.pipeline(transaction=False)
            part = slice(start, start + self._batch)
            if self._stock:
                for key, value in zip(keys[part], values[part], strict=True):
                    pipeline.xadd(self._topic, {key: value})
            else:
                for key, value in zip(keys[part], values[part], strict=True):
                    pipeline.execute_command("XADD", self._topic, "*", key, value)
            pipeline.execute()

    def flush(self) -> None:
        """Nothing is outstanding: `execute` waited for the replies."""


class ChannelPublisher:
    """Pipelines of `batch` PUBLISHes."""

    pause = staticmethod(paused)

    def __init__(self, spec: Spec) -> None:
        self._client = connect(spec)
        self._topic = spec.topic
        self._batch = spec.batch

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        for start in range(0, len(keys), self._batch):
            pipeline = self._client.pipeline(transaction=False)
            part = slice(start, start + self._batch)
            for key, value in zip(keys[part], values[part], strict=True):
                pipeline.execute_command("PUBLISH", self._topic, key + value)
            pipeline.execute()

    def flush(self) -> None:
        """Nothing is outstanding."""


class PackedPublisher:
    """One entry per `batch` messages."""

    pause = staticmethod(paused)

    def __init__(self, spec: Spec) -> None:
        import msgspec

        self._client = connect(spec)
        self._encode = msgspec.msgpack.Encoder().encode
        self._topic = spec.topic
        self._batch = spec.batch

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        for start in range(0, len(keys), self._batch):
            part = slice(start, start + self._batch)
            blob = self._encode((keys[part], values[part]))
            self._client.execute_command("XADD", self._topic, "*", b"b", blob)

    def flush(self) -> None:
        """Nothing is outstanding."""


class EntryReader:
    """XREAD from the start, blocking at the end."""

    def __init__(self, spec: Spec) -> None:
        self._client = connect(spec)
        self._topic = spec.topic
        self._position: bytes | str = "0"
        self._entries: list[tuple[bytes, dict[bytes, bytes]]] = []
        self.partitions: list[int] = []

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        add_key, add_value = keys.append, values.append
        while count:
            part = self._next(count)
            for _, fields in part:
                for key, value in fields.items():
                    add_key(key)
                    add_value(value)
            if stamps is not None:
                # The whole reply was handed over in one call, so its messages share one time.
                stamps.extend([time.monotonic_ns()] * len(part))
            count -= len(part)

    def _next(self, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        while not self._entries:
            reply = self._client.xread({self._topic: self._position}, count=READ_COUNT, block=BLOCK_MS)
            if reply:
                self._entries = reply[0][1]
                self._position = self._entries[-1][0]
        part, self._entries = self._entries[:count], self._entries[count:]
        return part


class PackedReader:
    """XREAD of packed entries, each unpacked into its messages."""

    def __init__(self, spec: Spec) -> None:
        import msgspec

        self._client = connect(spec)
        self._decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes]]).decode
        self._topic = spec.topic
        # As many entries as make about the same number of messages as an unpacked read.
        self._count = max(1, READ_COUNT // spec.batch) * 4
        self._position: bytes | str = "0"
        self._blobs: list[bytes] = []
        self._messages: tuple[list[bytes], list[bytes]] = ([], [])
        self.partitions: list[int] = []

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        add_key, add_value = keys.append, values.append
        while count:
            some_keys, some_values = self._next(count)
            for key, value in zip(some_keys, some_values, strict=True):
                add_key(key)
                add_value(value)
            if stamps is not None:
                stamps.extend([time.monotonic_ns()] * len(some_keys))
            count -= len(some_keys)

    def _next(self, count: int) -> tuple[list[bytes], list[bytes]]:
        if not self._messages[0]:
            while not self._blobs:
                self._blobs = self._read()
            self._messages = self._decode(self._blobs.pop())
        keys, values = self._messages
        self._messages = (keys[count:], values[count:])
        return keys[:count], values[:count]

    def _read(self) -> list[bytes]:
        reply = self._client.xread({self._topic: self._position}, count=self._count, block=BLOCK_MS)
        if not reply:
            return []
        entries = reply[0][1]
        self._position = entries[-1][0]
        return [fields[b"b"] for _, fields in reversed(entries)]


class StreamSubscriber:
    """A redis.asyncio client that follows the stream."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._position: bytes | str = "0"
        self._entries: list[tuple[bytes, dict[bytes, bytes]]] = []

    @classmethod
    async def connected(cls, spec: Spec) -> StreamSubscriber:
        from redis import asyncio

        client = asyncio.Redis(**address_of(spec), single_connection_client=True, protocol=2)
        await client.ping()
        return cls(client, spec.topic)

    async def take(self, count: int, keys: list[bytes], values: list[bytes]) -> None:
        while count:
            while not self._entries:
                reply = await self._client.xread({self._topic: self._position}, count=READ_COUNT, block=BLOCK_MS)
                if reply:
                    self._entries = reply[0][1]
                    self._position = self._entries[-1][0]
            part, self._entries = self._entries[:count], self._entries[count:]
            for _, fields in part:
                for key, value in fields.items():
                    keys.append(key)
                    values.append(value)
            count -= len(part)


class PubsubSubscriber:
    """A redis.asyncio client on a channel; the key is the first eight bytes of the payload."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    @classmethod
    async def connected(cls, spec: Spec) -> PubsubSubscriber:
        from redis import asyncio

        client = asyncio.Redis(**address_of(spec), protocol=2)
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        await pubsub.subscribe(spec.topic)
        await pubsub.get_message(timeout=10.0)
        return cls(pubsub)

    async def take(self, count: int, keys: list[bytes], values: list[bytes]) -> None:
        while count:
            message = await self._pubsub.get_message(timeout=BLOCK_MS / 1000)
            if message is not None:
                data = message["data"]
                keys.append(data[:8])
                values.append(data[8:])
                count -= 1


SYSTEM = Redis()
