"""What a slow subscriber costs the fast ones beside it: their p99, without it and with it, under each policy.

One process publishes so many messages of 4 kB a second. Others hold a hundred subscriptions, each with a client of its
own, which note when each message came. A slow subscriber takes 50 ms for each message, so it falls behind for as long
as it is there: it catches up, skips, or raises and subscribes again. Times with and without it alternate in one run,
and the p99 beside it is compared with that of the time just before.
"""

from __future__ import annotations

import asyncio
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.model import BenchError
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.patterns.updates import shared
from bench.processes import START_S_MAX
from bench.programs import run
from bench.systems.base import event_loop
from bench.systems.stentor import start_broker

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.role import Harness

POLICIES = ("catch_up", "skip", "raise")
MAX_LAG = 50
SLOW_S = 0.05
BEHIND_S_MIN = 0.3
"""Else it was not slow, and proves nothing."""
SETTLE_S = 1.5
"""How long it falls behind before its time begins."""
WAIT_S = 60.0
_SENT = struct.Struct("<d")
_FILL = bytes(4_000)


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        fast = [
            processes.role("bench.patterns.slow:follow", told("stentor", broker.address, subscribers=share))
            for share in shared(plan.fast_subscribers, plan.copy_processes)
        ]
        for each in fast:
            each.expect("ready", START_S_MAX + WAIT_S)
        slow = processes.role("bench.patterns.slow:lag", told("stentor", broker.address))
        slow.expect("ready", START_S_MAX)
        feed = processes.role("bench.patterns.slow:feed", told("stentor", broker.address, rate=plan.slow_rate))
        feed.expect("feeding", START_S_MAX)
        time.sleep(SETTLE_S * 2)
        times: list[tuple[str, float, float]] = []
        for _ in range(plan.repetitions):
            for policy in POLICIES:
                for now in ("", policy):
                    slow.tell(policy=now)
                    behind = slow.expect("changed", WAIT_S)["behind"]
                    if now == "" and times and behind < BEHIND_S_MIN:
                        raise BenchError(f"the slow subscriber was only {behind:.2f} s behind")
                    time.sleep(SETTLE_S)
                    began = time.monotonic()
                    time.sleep(plan.slow_s)
                    times.append((now, began, time.monotonic()))
        feed.process.kill()
        found = []
        for each in fast:
            each.tell(times=[(began, ended) for _, began, ended in times])
            found.append(each.expect("followed", WAIT_S))
        latencies = [np.concatenate([each["latencies"][index] for each in found]) for index in range(len(times))]
        p99 = [float(np.percentile(some, 99)) for some in latencies]
        for index in range(0, len(times), 2):
            policy, without, beside = times[index + 1][0], p99[index], p99[index + 1]
            add(rows, "slow", "stentor", "ms", p99_without_it=without * 1e3)
            add(rows, "slow", "stentor", "ms", "", **{f"p99_beside_{policy}": beside * 1e3})
            add(rows, "slow", "stentor", "times", "", **{f"p99_ratio_of_{policy}": beside / without})
        say(f"slow: {plan.fast_subscribers} fast subscribers, {plan.slow_rate} messages a second")
    return rows


# --- the process that publishes ---------------------------------------------------------------------


def feed(spec: Spec, harness: Harness) -> None:
    """Role: publishes at a steady rate, each message with the time at which it was due."""
    import stentor as library

    with library.connect(spec.address, timeout=WAIT_S) as client, client.producer(spec.topic) as producer:
        harness.say("feeding")
        due, step = time.monotonic(), 1 / spec.extra["rate"]
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            producer.send(_SENT.pack(due) + _FILL)
            due += step


# --- the processes that keep up ---------------------------------------------------------------------


def follow(spec: Spec, harness: Harness) -> None:
    """Role: some subscribers, each with a connection of its own."""
    event_loop(fast=True).run_until_complete(_follow(spec, harness))


async def _follow(spec: Spec, harness: Harness) -> None:
    import stentor as library

    seen: list[tuple[float, float]] = []
    tasks = []
    for _ in range(spec.extra["subscribers"]):
        client = await library.connect_async(spec.address, timeout=WAIT_S)
        subscription = await client.subscribe(spec.topic).__aenter__()
        tasks.append(asyncio.create_task(_note(subscription, seen)))
    harness.say("ready")
    times = (await asyncio.to_thread(harness.wait))["times"]
    for task in tasks:
        task.cancel()
    sent = np.array([each for each, _ in seen])
    late = np.array([came - each for each, came in seen])
    harness.say("followed", latencies=[late[(sent >= began) & (sent < ended)].tolist() for began, ended in times])


async def _note(subscription: Any, seen: list[tuple[float, float]]) -> None:
    async for message in subscription:
        (sent,) = _SENT.unpack_from(message.value)
        seen.append((sent, time.monotonic()))


# --- the process that does not ----------------------------------------------------------------------


def lag(spec: Spec, harness: Harness) -> None:
    """Role: a subscriber that is too slow, under the policy it is told."""
    event_loop(fast=True).run_until_complete(_lag(spec, harness))


async def _lag(spec: Spec, harness: Harness) -> None:
    import stentor as library

    client = await library.connect_async(spec.address, timeout=WAIT_S)
    harness.say("ready")
    task: asyncio.Task[None] | None = None
    behind = [0.0]
    while True:
        policy = (await asyncio.to_thread(harness.wait))["policy"]
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        task = asyncio.create_task(_fall_behind(library, client, spec.topic, policy, behind)) if policy else None
        harness.say("changed", behind=behind[0])


async def _fall_behind(library: Any, client: Any, topic: str, policy: str, behind: list[float]) -> None:
    """Notes how old a message was at most when it came to it."""
    behind[0] = 0.0
    options = {} if policy == "catch_up" else {"max_lag": MAX_LAG}
    while True:
        with suppress(library.SlowSubscriber):
            async with client.subscribe(topic, on_slow=policy, **options) as subscription:
                async for message in subscription:
                    await asyncio.sleep(SLOW_S)
                    behind[0] = max(behind[0], time.monotonic() - _SENT.unpack_from(message.value)[0])
