"""Request and answer between two Python processes, through a server: the time of one, and how many a second.

stentor          `await client.request(…)`, answered by `client.serve` with a coroutine
stentor threads  `client.request(…)`, answered by `client.serve` with a function in a thread
nats core        `await client.request(…)` of nats-py, answered by a subscription
redis lists      LPUSH of the request and BRPOP of the answer by redis-py with hiredis, answered the other way round

The async clients run on uvloop. Values have 100 bytes. One at a time: the next request is made when the answer to the
one before is there. Many at a time: a caller keeps so many under way. Every answer is compared with its request.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.model import BenchError, NotAvailableError
from bench.patterns.clone import started
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.processes import START_S_MAX
from bench.programs import run
from bench.systems import nats, redis
from bench.systems.base import event_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.role import Harness

WAYS = ("stentor", "stentor threads", "nats core", "redis lists")
TOPIC = "svc.echo"
WARM_UP = 500
WAIT_S = 60.0
UNDER_WAY = 1_000
SIZE = 100


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    with run() as (directory, processes):
        addresses = {}
        for system in ("stentor", "nats", "redis"):
            if plan.wants(system):
                try:
                    addresses[system] = started(system, directory, processes).address
                except NotAvailableError as reason:
                    rows.append(Row("requests", system, "median", "µs", note=f"not available: {reason}"))
        for _ in range(plan.repetitions):
            for way in WAYS:
                address = addresses.get(way.split()[0])
                if address is None:
                    continue
                answering = processes.role("bench.patterns.requests:answer", told(way, address))
                answering.expect("serving", START_S_MAX)
                spec = told(way, address, requests=plan.requests)
                asking = processes.role("bench.patterns.requests:ask", spec)
                found = asking.expect("asked", START_S_MAX + WAIT_S * 2)
                add(rows, "requests", way, "µs", median=found["p50"], p99=found["p99"])
                if found["rate"]:
                    add(rows, "requests", way, "1/s", f"{UNDER_WAY:,} under way", requests_a_second=found["rate"])
                for role in (asking, answering):
                    role.process.kill()
                    role.process.wait()
        say("requests: done")
    return rows


# --- the process that answers ---------------------------------------------------------------------


def answer(spec: Spec, harness: Harness) -> None:
    """Role: answers every request with its own value."""
    if spec.system == "redis lists":
        client = redis.connect(spec)
        client.delete(TOPIC, f"{TOPIC}.answers")
        harness.say("serving")
        while True:
            _, value = client.brpop(TOPIC)
            client.lpush(f"{TOPIC}.answers", value)
    elif spec.system == "stentor threads":
        import stentor as library

        with (
            library.connect(spec.address) as connected,
            connected.serve(TOPIC, lambda request: request.value) as service,
        ):
            harness.say("serving")
            service.wait()
    else:
        event_loop(fast=True).run_until_complete(_answer(spec, harness))


async def _answer(spec: Spec, harness: Harness) -> None:
    if spec.system == "nats core":
        client = await nats.connect(spec)

        async def respond(message: Any) -> None:
            await message.respond(message.data)

        await client.subscribe(TOPIC, cb=respond)
        await client.flush()
        harness.say("serving")
        await asyncio.Event().wait()
    import stentor as library

    async def echo(request: Any) -> bytes:
        value: bytes = request.value
        return value

    async with (
        library.connect_async(spec.address) as connected,
        connected.serve(TOPIC, echo, concurrency=100) as service,
    ):
        harness.say("serving")
        await service.wait()


# --- the process that asks ------------------------------------------------------------------------


def ask(spec: Spec, harness: Harness) -> None:
    """Role: asks one at a time, then many at a time where the client can."""
    if spec.system == "redis lists":
        client = redis.connect(spec)

        def through_lists(value: bytes) -> bytes:
            client.lpush(TOPIC, value)
            answered: bytes = client.brpop(f"{TOPIC}.answers")[1]
            return answered

        times = clocked(through_lists, spec.extra["requests"])
        harness.say("asked", rate=0.0, **summary(times))
    elif spec.system == "stentor threads":
        import stentor as library

        with library.connect(spec.address, timeout=WAIT_S) as connected:
            times = clocked(lambda value: connected.request(TOPIC, value).value, spec.extra["requests"])
        harness.say("asked", rate=0.0, **summary(times))
    else:
        event_loop(fast=True).run_until_complete(_ask(spec, harness))


async def _ask(spec: Spec, harness: Harness) -> None:
    call: Callable[[bytes], Awaitable[bytes]]
    if spec.system == "nats core":
        client = await nats.connect(spec)

        async def call(value: bytes) -> bytes:
            data: bytes = (await client.request(TOPIC, value, timeout=WAIT_S)).data
            return data

    else:
        import stentor as library

        connected = await library.connect_async(spec.address, timeout=WAIT_S)

        async def call(value: bytes) -> bytes:
            return (await connected.request(TOPIC, value)).value  # type: ignore[return-value]

    number, times = spec.extra["requests"], []
    for index in range(WARM_UP + number):
        value = value_of(index)
        began = time.perf_counter_ns()
        found = await call(value)
        times.append(time.perf_counter_ns() - began)
        check(found, value)
    rate = await _many(call, number)
    harness.say("asked", rate=rate, **summary(times[WARM_UP:]))


async def _many(call: Callable[[bytes], Awaitable[bytes]], number: int) -> float:
    """Requests a second, with so many under way."""
    numbers = iter(range(number))

    async def one_after_the_other() -> None:
        for index in numbers:
            check(await call(value_of(index)), value_of(index))

    began = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(UNDER_WAY)))
    return number / (time.perf_counter() - began)


def clocked(call: Callable[[bytes], Any], number: int) -> list[int]:
    times = []
    for index in range(WARM_UP + number):
        value = value_of(index)
        began = time.perf_counter_ns()
        found = call(value)
        times.append(time.perf_counter_ns() - began)
        check(found, value)
    return times[WARM_UP:]


def value_of(index: int) -> bytes:
    return f"{index}".encode().ljust(SIZE, b".")


def check(found: Any, value: bytes) -> None:
    if found != value:
        raise BenchError(f"{value[:10]!r} was answered with {found!r}")


def summary(times: list[int]) -> dict[str, float]:
    """In microseconds."""
    p50, p99 = np.percentile(times, (50, 99))
    return {"p50": float(p50) / 1e3, "p99": float(p99) / 1e3}
