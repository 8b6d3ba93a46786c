"""Ten thousand clients that follow a table at one broker: memory of each, and the time until an update has reached all.

The clients are light: they speak the protocol (greeting, one stream from the table's first row, a ping every five
seconds) and keep nothing, so that one machine can hold them. The broker cannot tell. Before the updates begin they are
held for longer than a broker keeps a silent client. An update's time runs from the call of `put` until a client has
read the bytes that bring it.
"""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure import cpu_seconds, resident_bytes
from bench.model import BenchError
from bench.patterns.clone import LOAD_S_MAX
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.patterns.updates import shared
from bench.processes import START_S_MAX
from bench.programs import run
from bench.systems.base import event_loop
from bench.systems.stentor import start_broker
from stentor import limits
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.processes import Processes, Role
    from bench.role import Harness

KEYS = 100
WAVE = 100
"""Connections that are begun at once: a broker's queue of newcomers is not what is measured."""
CONNECT_S_MAX = 600.0
REACH_S_MAX = 120.0
CREDIT_BYTES = 8 << 20
LARGER = 60_000
"""Clients for which memory and time are computed from what was measured."""
SPARE_DESCRIPTORS = 1_000
BEATS_PER_S = 10


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    number = plan.clients
    allow_descriptors(number + SPARE_DESCRIPTORS)
    with run() as (directory, processes):
        arguments = ("--connections-max", str(number + SPARE_DESCRIPTORS))
        broker = start_broker(directory / "stentor", processes, arguments=arguments)
        assert broker.process is not None
        pid = broker.process.pid
        processes.role("bench.patterns.clone:load", told("stentor", broker.address, keys=KEYS)).expect(
            "loaded", LOAD_S_MAX
        )
        before = resident_bytes(pid)
        began = time.monotonic()
        roles = crowd(number, plan.client_processes, broker.address, processes)
        add(rows, "clients", "stentor", "s", time_to_connect=time.monotonic() - began)
        each = (resident_bytes(pid) - before) / number
        add(rows, "clients", "stentor", "B", broker_memory_per_client=each)
        say(f"clients: {number:,} connected in {time.monotonic() - began:.0f} s, {each:,.0f} B each")
        processor = cpu_seconds(pid)
        time.sleep(plan.clients_held_s)
        held = (cpu_seconds(pid) - processor) / plan.clients_held_s
        add(rows, "clients", "stentor", "cores", processor_of_the_broker_while_nothing_happens=held)
        processor = cpu_seconds(pid)
        reached(rows, plan, broker.address, roles)
        spent = (cpu_seconds(pid) - processor) / plan.client_updates / number
        add(rows, "clients", "stentor", "µs", processor_time_of_the_broker_per_delivery=spent * 1e6)
        after = (resident_bytes(pid) - before) / number
        add(rows, "clients", "stentor", "B", broker_memory_per_client_after_updates=after)
        note = f"computed from {number:,} clients"
        add(rows, "clients", "stentor", "B", note, **{f"broker_memory_for_{LARGER}": max(each, after) * LARGER})
        add(rows, "clients", "stentor", "s", note, **{f"processor_time_of_an_update_to_{LARGER}": spent * LARGER})
    return rows


def allow_descriptors(wanted: int) -> None:
    """Of this process and its children; above the hard limit only as root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        raise BenchError(f"{wanted:,} files must be open at once; the limit is {hard:,}")


def crowd(number: int, ways: int, address: str, processes: Processes) -> list[Role]:
    """All clients, connected, in so many processes."""
    roles = []
    for index, share in enumerate(shared(number, ways)):
        # An address for each: the system has some 28,000 ports for one.
        spec = told("stentor", address, clients=share, local=f"127.0.0.{index + 1}")
        roles.append(processes.role("bench.patterns.clients:hold", spec))
    for role in roles:
        role.expect("connected", CONNECT_S_MAX)
    return roles


def reached(rows: list[Row], plan: Plan, address: str, roles: list[Role]) -> None:
    """Updates, one after the other: each when the one before has reached everybody."""
    import stentor as library

    missing = 0
    with library.connect(address, timeout=REACH_S_MAX) as client, client.table("table") as table:
        for turn in range(plan.client_updates):
            began = time.monotonic()
            version = table.put("user/now", f"{turn}").version
            for role in roles:
                role.tell(version=version)
            times = np.concatenate([role.expect("reached", REACH_S_MAX + START_S_MAX)["at"] for role in roles]) - began
            missing = max(missing, plan.clients - len(times))
            p50, p99 = np.percentile(times, (50, 99))
            add(rows, "clients", "stentor", "ms", reached_p50=float(p50) * 1e3, reached_p99=float(p99) * 1e3)
            add(rows, "clients", "stentor", "ms", reached_all=float(times.max()) * 1e3)
    add(rows, "clients", "stentor", "clients", clients=plan.clients, clients_not_reached=missing)


# --- the processes that hold clients ----------------------------------------------------------------


class Light(asyncio.Protocol):
    """One client: it reads one stream, and keeps nothing but how far it is and since when."""

    __slots__ = ("_buffer", "_crowd", "_transport")

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        hello = messages.Hello(version_min=1, version_max=1, name="light", features=list(frames.FEATURES))
        transport.write(frames.frame(Kind.HELLO, 0, messages.encode(hello)))

    def data_received(self, received: bytes) -> None:
        buffer = self._buffer + received if self._buffer else received
        position, end = 0, len(buffer)
        while end - position >= frames.HEADER_BYTES:
            length, kind, _, _, correlation = frames.HEADER.unpack_from(buffer, position)
            body = position + frames.HEADER_BYTES
            if end - body < length:
                break
            self._frame(kind, correlation, buffer, body)
            position = body + length
        self._buffer = buffer[position:]

    def ping(self) -> None:
        self._transport.write(frames.frame(Kind.PING, 2, b""))

    def _frame(self, kind: int, correlation: int, buffer: bytes, position: int) -> None:
        if kind == Kind.DELIVER:
            self._crowd.delivered(self, frames.DELIVERY.unpack_from(buffer, position)[-1])
        elif kind == Kind.WELCOME:
            wish = messages.OpenStream(topic_id=self._crowd.topic_id, partition=0, start=0, credit=CREDIT_BYTES)
            self._transport.write(frames.frame(Kind.OPEN_STREAM, 1, messages.encode(wish)))
        elif kind == Kind.PING:
            self._transport.write(frames.frame(Kind.PONG, correlation, b""))
        elif kind in {Kind.ERROR, Kind.STREAM_ENDED, Kind.GOODBYE}:
            self._crowd.failures.append(f"a client got {Kind(kind).name}: {buffer[position : position + 200]!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self._crowd.failures.append(f"a client lost its connection: {error}")


class Crowd:
    """The clients of one process, and when each had what."""

    def __init__(self, topic_id: int) -> None:
        self.topic_id = topic_id
        self.offsets: dict[Light, int] = {}
        self.times: dict[Light, float] = {}
        self.failures: list[str] = []
        self._moved = asyncio.Event()

    def delivered(self, client: Light, offset: int) -> None:
        self.offsets[client] = offset
        self.times[client] = time.monotonic()
        self._moved.set()

    async def beat(self) -> None:
        """Every client pings as a real one does; they take turns."""
        turn = 0
        while True:
            for client in list(self.offsets)[turn :: round(limits.HEARTBEAT_S * BEATS_PER_S)]:
                client.ping()
            turn = (turn + 1) % round(limits.HEARTBEAT_S * BEATS_PER_S)
            await asyncio.sleep(1 / BEATS_PER_S)

    async def until(self, offset: int, number: int, limit_s: float) -> None:
        """Until so many have everything below an offset, or time is up."""
        deadline = time.monotonic() + limit_s
        while sum(have >= offset for have in self.offsets.values()) < number and time.monotonic() < deadline:
            if self.failures:
                raise BenchError(self.failures[0])
            self._moved.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), 1.0)
            await asyncio.sleep(0.02)


def hold(spec: Spec, harness: Harness) -> None:
    """Role: connects its share of the clients, and says when an update had reached each."""
    event_loop(fast=True).run_until_complete(_hold(spec, harness))


async def _hold(spec: Spec, harness: Harness) -> None:
    import stentor as library

    async with library.connect_async(spec.address) as client:
        found = await client.describe_topic(spec.topic)
    number, crowd = spec.extra["clients"], Crowd(found.id)
    host, _, port = spec.address.rpartition("//")[2].rpartition(":")
    loop = asyncio.get_running_loop()
    beating = loop.create_task(crowd.beat())
    for begun in range(0, number, WAVE):
        wave = min(WAVE, number - begun)
        local = (spec.extra["local"], 0)
        await asyncio.gather(
            *(loop.create_connection(lambda: Light(crowd), host, int(port), local_addr=local) for _ in range(wave))
        )
        await crowd.until(KEYS, begun + wave, CONNECT_S_MAX)
    harness.say("connected")
    while not beating.done():
        version = (await asyncio.to_thread(harness.wait))["version"]
        await crowd.until(version + 1, number, REACH_S_MAX)
        harness.say("reached", at=[crowd.times[each] for each, offset in crowd.offsets.items() if offset > version])
