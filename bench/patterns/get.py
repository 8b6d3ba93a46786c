"""One key at a time: from a copy of the table, and from Redis by the fastest of its clients that has a GET.

stentor          `table[key]` and `table.get(key)`
redis hiredis    `client.get(key)` of redis-py with hiredis, over loopback
redis bare       hiredis on a socket of our own
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.model import BenchError, NotAvailableError
from bench.patterns import data
from bench.patterns.clone import CLONE_S_MAX, LOAD_S_MAX, clone_stentor, started
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.programs import run
from bench.systems import redis, redis_bare

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.role import Harness

GETS = {"stentor": 200_000, "redis hiredis": 5_000, "redis bare": 10_000}


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    with run() as (directory, processes):
        addresses = {}
        for system in ("stentor", "redis"):
            if plan.wants(system):
                try:
                    server = started(system, directory, processes)
                except NotAvailableError as reason:
                    rows.append(Row("get", system, "time of a get", "ns", note=f"not available: {reason}"))
                    continue
                addresses[system] = server.address
                spec = told(system, server.address, keys=plan.get_keys)
                processes.role("bench.patterns.clone:load", spec).expect("loaded", LOAD_S_MAX)
        for turn in range(plan.repetitions):
            for system in GETS:
                address = addresses.get(system.split()[0])
                if address is not None:
                    role = processes.role(
                        "bench.patterns.get:get", told(system, address, keys=plan.get_keys, turn=turn)
                    )
                    add(rows, "get", system, "ns", time_of_a_get=role.expect("got", CLONE_S_MAX)["nanoseconds"])
                    role.process.kill()
                    role.process.wait()
        say("get: done")
    return rows


def get(spec: Spec, harness: Harness) -> None:
    """Role: reads random keys one by one."""
    numbers = data.sample(spec.extra["keys"], GETS[spec.system], spec.extra["turn"])
    keys: list[Any] = [data.key_of(number) for number in numbers]
    expected = [data.value_of(number) for number in numbers]
    if spec.system == "stentor":
        table = clone_stentor(spec)
        spent = max(clocked(table.get, keys, expected), clocked(table.__getitem__, keys, expected))
    elif spec.system == "redis bare":
        connection = redis_bare.Connection(spec)

        def bare(key: bytes) -> Any:
            connection.send(connection.pack(("GET", key)))
            return connection.receive()

        spent = clocked(bare, [key.encode() for key in keys], expected)
    else:
        spent = clocked(redis.connect(spec).get, [key.encode() for key in keys], expected)
    harness.say("got", nanoseconds=spent)


def clocked(read: Callable[[Any], Any], keys: list[Any], expected: list[bytes]) -> float:
    """Nanoseconds of one read; what was read is compared afterwards."""
    for key in keys[:1000]:
        read(key)
    began = time.perf_counter_ns()
    found = [read(key) for key in keys]
    spent = time.perf_counter_ns() - began
    if found != expected:
        raise BenchError("a key holds another value")
    return spent / len(keys)
