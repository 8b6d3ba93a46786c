"""Ten thousand updates a second that reach fifty copies: the rate, the time from an update to each copy, and whether
all copies are the same in the end.

One process updates random keys by a producer, so many every ten milliseconds. Others hold copies, each with a client
of its own. Every millisecond they note how far each copy is. An update's latency runs from when it was due until a copy
was seen to have it, so it includes up to a millisecond of waiting to be looked at. In the end every copy waits for the
sequence of the last update; then all must hold what the updates made.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure import cpu_seconds
from bench.model import BenchError
from bench.patterns import data
from bench.patterns.clone import LOAD_S_MAX
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.processes import START_S_MAX
from bench.programs import run
from bench.systems.base import event_loop
from bench.systems.stentor import start_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.role import Harness

KEYS = 10_000
TICK_S = 0.01
LOOK_S = 0.001
WAIT_S = 120.0
WARM_UP_S = 1.0
"""The first updates meet cold code, and do not count."""


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        first = told("stentor", broker.address, keys=KEYS)
        processes.role("bench.patterns.clone:load", first).expect("loaded", LOAD_S_MAX)
        shares = shared(plan.copies, plan.copy_processes)
        followers = [
            processes.role("bench.patterns.updates:follow", told("stentor", broker.address, copies=share))
            for share in shares
        ]
        for follower in followers:
            follower.expect("ready", START_S_MAX + WAIT_S)
        writer = processes.role(
            "bench.patterns.updates:update",
            told("stentor", broker.address, rate=plan.updates_per_s, seconds=plan.updates_s),
        )
        assert broker.process is not None
        pids = {"broker": [broker.process.pid], "copies": [follower.process.pid for follower in followers]}
        before = {role: sum(map(cpu_seconds, some)) for role, some in pids.items()}
        done = writer.expect("updated", START_S_MAX + plan.updates_s + WAIT_S)
        for follower in followers:
            follower.tell(sequence=done["sequence"])
        found = [follower.expect("followed", WAIT_S + START_S_MAX) for follower in followers]
        spent = {role: sum(map(cpu_seconds, some)) - before[role] for role, some in pids.items()}
        differing = sum(digest != done["digest"] for each in found for digest in each["digests"])
        times = np.concatenate([latencies(done["due"], seen) for each in found for seen in each["seen"]])
        say(f"updates: {done['updates']:,} updates to {plan.copies} copies")
        add(rows, "updates", "stentor", "1/s", rate_held=done["rate"], rate_asked_for=plan.updates_per_s)
        p50, p99 = np.percentile(times, (50, 99))
        add(rows, "updates", "stentor", "ms", latency_p50=float(p50) * 1e3, latency_p99=float(p99) * 1e3)
        add(rows, "updates", "stentor", "s", processor_time_of_the_broker=spent["broker"])
        add(rows, "updates", "stentor", "s", processor_time_of_the_copies=spent["copies"])
        add(rows, "updates", "stentor", "copies", copies_that_differ=differing, copies=plan.copies)
    return rows


def shared(number: int, ways: int) -> list[int]:
    """A number in so many parts that are as equal as can be."""
    return [number // ways + (index < number % ways) for index in range(min(ways, number))]


def latencies(due: list[tuple[int, float]], seen: list[tuple[int, float]]) -> np.ndarray:
    """Seconds from when each tick's updates were due until a copy had the last of them.

    `due` has the offset after the last update of each tick with its time, `seen` the offsets that a copy was at.
    """
    ends, times = np.array([end for end, _ in due]), np.array([at for _, at in due])
    offsets, looks = np.array([offset for offset, _ in seen]), np.array([at for _, at in seen])
    first = np.searchsorted(offsets, ends)
    if first.max() >= len(offsets):
        raise BenchError(f"a copy ended at {offsets[-1]}, and the updates at {ends[-1]}")
    result: np.ndarray = looks[first] - times
    return result


def digest(table: Mapping[str, bytes]) -> int:
    """A checksum of all keys and values, in the order of the keys."""
    found = 0
    for key in sorted(table):
        found = zlib.crc32(table[key], zlib.crc32(key.encode(), found))
    return found


# --- the process that updates -----------------------------------------------------------------------


def update(spec: Spec, harness: Harness) -> None:
    """Role: updates random keys at a rate, and says what the table must hold in the end."""
    import stentor as library

    rate, seconds = spec.extra["rate"], spec.extra["seconds"]
    each, chance = max(1, round(rate * TICK_S)), random.Random(3)
    state = {data.key_of(number): data.value_of(number) for number in range(KEYS)}
    with library.connect(spec.address, timeout=WAIT_S) as client, client.producer(spec.topic) as producer:
        due: list[tuple[int, float]] = []
        number = KEYS
        began = time.monotonic()
        warm = began + WARM_UP_S
        while (tick := began + (number - KEYS) / rate) < warm + seconds:
            time.sleep(max(0.0, tick - time.monotonic()))
            keys = [data.key_of(chance.randrange(KEYS)) for _ in range(each)]
            values = [data.value_of(number + index) for index in range(each)]
            producer.send_many(values, [key.encode() for key in keys])
            state.update(zip(keys, values, strict=True))
            number += each
            if tick >= warm:
                due.append((number, tick))
        producer.flush(WAIT_S)
        spent = time.monotonic() - began
    updates = number - KEYS
    harness.say("updated", sequence=[number], due=due, updates=updates, rate=updates / spent, digest=digest(state))


# --- the processes that follow ----------------------------------------------------------------------


def follow(spec: Spec, harness: Harness) -> None:
    """Role: some copies, each with its own client and connection."""
    event_loop(fast=True).run_until_complete(_follow(spec, harness))


async def _follow(spec: Spec, harness: Harness) -> None:
    import stentor as library

    tables: list[Any] = []
    for _ in range(spec.extra["copies"]):
        client = await library.connect_async(spec.address, timeout=WAIT_S)
        tables.append(await client.table(spec.topic).__aenter__())
    seen: list[list[tuple[int, float]]] = [[] for _ in tables]
    looking = asyncio.create_task(look(tables, seen))
    harness.say("ready")
    sequence = tuple((await asyncio.to_thread(harness.wait))["sequence"])
    await asyncio.gather(*(table.wait(sequence, timeout=WAIT_S) for table in tables))
    await asyncio.sleep(10 * LOOK_S)
    looking.cancel()
    harness.say("followed", digests=[digest(table) for table in tables], seen=seen)


async def look(tables: list[Any], seen: list[list[tuple[int, float]]]) -> None:
    """Notes whenever a copy is further."""
    last = [-1] * len(tables)
    while True:
        now = time.monotonic()
        for index, table in enumerate(tables):
            (offset,) = table.sequence
            if offset != last[index]:
                last[index] = offset
                seen[index].append((offset, now))
        await asyncio.sleep(LOOK_S)
