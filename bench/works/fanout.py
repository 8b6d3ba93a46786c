"""Fan-out: one publisher, 1 to 1,000 live subscribers, each an asyncio client with its own connection.

Deliveries per second over all subscribers, from the first send until the slowest subscriber has verified
its last message. The number of messages grows pass by pass until a pass takes long enough; the last pass
counts. So no system is drowned: the next pass starts when the last one has arrived everywhere.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bench.measure import raise_file_limit
from bench.messages import Checker, Pool
from bench.model import Case, Sample, Spec
from bench.passes import pool_of, send_pass
from bench.processes import START_S_MAX
from bench.systems import system
from bench.systems.base import event_loop

if TYPE_CHECKING:
    from bench.model import Options
    from bench.processes import Role
    from bench.role import Harness
    from bench.runner import Bench
    from bench.systems.base import Subscriber

TITLE = "deliveries to many subscribers"
SUBSCRIBERS_QUICK = (100,)
SUBSCRIBERS_FULL = (1, 10, 100, 1000)
ONE_PROCESS_MAX = 10
PASS_S_MAX = 120.0
GROWTH_MAX = 20.0
CONNECTS_AT_ONCE = 20

WAYS = (
    ("stentor", "send_many", "tuned", "os"),
    ("stentor", "send_many", "tuned", "none"),
    ("redis", "hiredis", "tuned", "os"),
    ("redis", "pubsub", "tuned", "none"),
    ("nats", "core", "tuned", "none"),
)


def cases(options: Options) -> list[Case]:
    counts = SUBSCRIBERS_QUICK if options.quick else SUBSCRIBERS_FULL
    return [
        Case("fanout", name, mode, variant, durability, 100, 100, subscribers=count)
        for count in counts
        for name, mode, variant, durability in WAYS
    ]


def run(case: Case, bench: Bench) -> Sample:
    raise_file_limit()
    with bench.server(case) as (server, processes):
        spec = Spec.of(case, server.address, bench.options)
        groups = [
            processes.role(f"{__name__}:subscribe", spec.with_(subscribers=share)) for share in shares(case.subscribers)
        ]
        for group in groups:
            group.expect("subscribed", START_S_MAX + PASS_S_MAX)
        publisher = processes.role(f"{__name__}:publish", spec)
        publisher.expect("ready", START_S_MAX)
        units = 1
        # The first pass only proves that every subscriber is there.
        one_pass(publisher, groups, units)
        while True:
            messages, elapsed_s = one_pass(publisher, groups, units)
            if elapsed_s >= spec.seconds * 0.7:
                break
            growth = min(GROWTH_MAX, max(1.5, spec.seconds / elapsed_s))
            units = int(units * growth) + 1
    deliveries = messages * case.subscribers
    return Sample(messages=deliveries, messages_per_second=deliveries / elapsed_s)


def shares(subscribers: int) -> list[int]:
    """One process for few subscribers, two for many: the machine under test has at least two cores."""
    if subscribers <= ONE_PROCESS_MAX:
        return [subscribers]
    return [subscribers // 2, subscribers - subscribers // 2]


def one_pass(publisher: Role, groups: list[Role], units: int) -> tuple[int, float]:
    publisher.tell(units=units)
    sent = publisher.expect("sent", PASS_S_MAX)
    ends = [group.expect("verified", PASS_S_MAX)["end_ns"] for group in groups]
    return sent["count"], (max(ends) - sent["start_ns"]) / 1e9


def publish(spec: Spec, harness: Harness) -> None:
    """Role: sends passes of the size it is told."""
    pool = pool_of(spec)
    publisher = system(spec.system).publisher(spec)
    harness.say("ready")
    while True:
        units = harness.wait()["units"]
        harness.say("sent", **send_pass(publisher, pool, spec, units=units))


def subscribe(spec: Spec, harness: Harness) -> None:
    """Role: hosts many subscribers in one loop and reports each pass that all of them have verified."""
    raise_file_limit()
    event_loop(fast=True).run_until_complete(_host(spec, harness))


async def _host(spec: Spec, harness: Harness) -> None:
    pool = pool_of(spec)
    driver = system(spec.system)
    gate = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def connected() -> Subscriber:
        async with gate:
            return await driver.subscriber(spec)

    subscribers = await asyncio.gather(*[connected() for _ in range(spec.subscribers)])
    harness.say("subscribed")
    while True:
        await asyncio.gather(*[_follow(subscriber, pool, spec.chunk) for subscriber in subscribers])
        harness.say("verified", end_ns=time.monotonic_ns())


async def _follow(subscriber: Subscriber, pool: Pool, chunk: int) -> None:
    checker = Checker(pool)
    while not checker.finished:
        keys: list[bytes] = []
        values: list[bytes] = []
        await subscriber.take(chunk, keys, values)
        checker.take(keys, values)
