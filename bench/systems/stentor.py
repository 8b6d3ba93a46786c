"""Stentor through its public API, the broker in a process of its own.

    send        stock: `Producer.send`, message by message
    send_many   tuned: `Producer.send_many`, lists of `batch`
    publish     one `Client.publish` at a time;  publish async: the same on `AsyncClient`

`batch` is the producer's `batch_messages`: no batch on the wire or on disk holds more. The consumer
iterates over the subscription and reads key and value of each message. Durability:

    fsync   ack="all" on a topic with flush="always" (both are the defaults)
    os      ack="all" on a topic with flush="interval"
    none    ack="none" on a topic with flush="interval"
"""

from __future__ import annotations

import re
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from bench.model import BenchError
from bench.processes import START_S_MAX, Server
from bench.systems.base import System, event_loop, paused, time_publishes, time_publishes_async

if TYPE_CHECKING:
    from pathlib import Path

    from bench.messages import Pool
    from bench.model import Case, Spec
    from bench.processes import Processes
    from bench.systems.base import Publisher, Reader, Subscriber

WAIT_S = 60.0
FLUSH = {"fsync": "always", "os": "interval", "none": "interval"}
ACK = {"fsync": "all", "os": "all", "none": "none"}


class Stentor(System):
    name = "stentor"

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        return start_broker(directory / "stentor", processes)

    def publisher(self, spec: Spec) -> Publisher:
        return ManyPublisher(spec) if spec.mode == "send_many" else SendPublisher(spec)

    def reader(self, spec: Spec) -> Reader:
        return SubscriptionReader(spec)

    def publish_times(self, spec: Spec, pool: Pool) -> list[int]:
        if spec.mode == "publish async":
            return event_loop(fast=True).run_until_complete(self._times_async(spec, pool))
        client = connect(spec)
        publish, topic = client.publish, spec.topic
        return time_publishes(lambda key, value: publish(topic, value, key=key), pool, spec.seconds)

    async def _times_async(self, spec: Spec, pool: Pool) -> list[int]:
        import stentor

        connect(spec).close()
        async with stentor.connect_async(spec.address) as client:
            publish, topic = client.publish, spec.topic
            return await time_publishes_async(lambda key, value: publish(topic, value, key=key), pool, spec.seconds)

    async def subscriber(self, spec: Spec) -> Subscriber:
        import stentor

        client = await stentor.connect_async(spec.address, timeout=WAIT_S)
        await ensure_topic_async(client, spec)
        subscription = await client.subscribe(spec.topic, start="earliest", timeout=WAIT_S)
        return SubscriptionSubscriber(client, subscription)


def start_broker(
    data: Path,
    processes: Processes,
    port: int = 0,
    arguments: tuple[str, ...] = (),
    within_s: float = START_S_MAX,
) -> Server:
    """`stentor serve` on loopback; returns when it says that it is ready."""
    command = [sys.executable, "-m", "stentor", "serve", "--data", str(data), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--http-port", "0", *arguments]
    process, line = processes.start_announcing("stentor", command, "stentor ready", within_s)
    found = re.search(r"stentor://[^\s,;]+", line)
    if found is None:
        raise BenchError(f"no stentor:// address in {line!r}")
    return Server(found[0], data, process)


def connect(spec: Spec) -> Any:
    """A client, with the topic in place."""
    import stentor
    from stentor.wire import bodies

    bodies.arrow()  # clients load it after half a million messages: what is measured is the speed that lasts
    client = stentor.connect(spec.address, timeout=WAIT_S)
    settings = topic_settings(spec)
    client.create_topic(spec.topic, **settings)
    return client


def topic_settings(spec: Spec) -> dict[str, Any]:
    settings = {"partitions": spec.partitions, "flush": FLUSH[spec.durability], "exist_ok": True}
    if spec.partitions > 1 and spec.system != "stentor":
        settings["replicas"] = 1  # how brokers share the work is what is measured
    return settings


async def ensure_topic_async(client: Any, spec: Spec) -> None:
    await client.create_topic(spec.topic, **topic_settings(spec))


class SendPublisher:
    pause = staticmethod(paused)

    def __init__(self, spec: Spec) -> None:
        self._client = connect(spec)
        self._batch = spec.batch
        self._producer = self._client.producer(spec.topic, ack=ACK[spec.durability], batch_messages=spec.batch)

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        send = self._producer.send
        for key, value in zip(keys, values, strict=True):
            send(value, key)

    def flush(self) -> None:
        self._producer.flush(WAIT_S)


class ManyPublisher(SendPublisher):
    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        batch = self._batch
        if len(keys) <= batch:
            self._producer.send_many(values, keys)
            return
        for start in range(0, len(keys), batch):
            part = slice(start, start + batch)
            self._producer.send_many(values[part], keys[part])


class SubscriptionReader:
    def __init__(self, spec: Spec) -> None:
        self._client = connect(spec)
        self._subscription = self._client.subscribe(spec.topic, start="earliest")
        self._messages = iter(self._subscription)
        self._several = spec.partitions > 1
        self.partitions: list[int] = []

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        add_key, add_value = keys.append, values.append
        if stamps is not None:
            add_stamp, clock = stamps.append, time.monotonic_ns
            for message in islice(self._messages, count):
                add_key(message.key)
                add_value(message.value)
                add_stamp(clock())
        elif self._several:
            add_partition = self.partitions.append
            for message in islice(self._messages, count):
                add_key(message.key)
                add_value(message.value)
                add_partition(message.partition)
        else:
            for message in islice(self._messages, count):
                add_key(message.key)
                add_value(message.value)


class SubscriptionSubscriber:
    def __init__(self, client: Any, subscription: Any) -> None:
        self._client = client
        self._messages = aiter(subscription)

    async def take(self, count: int, keys: list[bytes], values: list[bytes]) -> None:
        async for message in self._messages:
            keys.append(message.key)
            values.append(message.value)
            count -= 1
            if not count:
                break


SYSTEM = Stentor()
