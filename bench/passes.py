"""Sending and reading passes: what the producer and consumer processes of all works have in common."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count as numbers
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.messages import Checker, Pool

if TYPE_CHECKING:
    from bench.model import Spec
    from bench.systems.base import Publisher, Reader


def pool_of(spec: Spec) -> Pool:
    return Pool(spec.size, spec.unit, spec.seed)


def send_pass(publisher: Publisher, pool: Pool, spec: Spec, *, units: int = 0, seconds: float = 0.0) -> dict[str, Any]:
    """Sends a pass of `units`, or as many as start within `seconds`, and waits for the last acknowledgement."""
    endless = pool.units(spec.unit)
    cpu = time.process_time()
    start = time.monotonic_ns()
    end = start + int(seconds * 1e9)
    keys, values = next(endless)
    for number in numbers(1):
        if number == units or (not units and time.monotonic_ns() >= end):
            break
        publisher.send(keys, values)
        keys, values = next(endless)
    total = number * spec.unit
    publisher.send(keys, [*values[:-1], pool.last(total)])
    publisher.flush()
    return {
        "count": total,
        "start_ns": start,
        "end_ns": time.monotonic_ns(),
        "cpu_s": time.process_time() - cpu,
    }


@dataclass(slots=True)
class Reading:
    """What a consumer saw of one pass, verified."""

    count: int
    end_ns: int
    cpu_s: float
    stamps: list[np.ndarray] = field(default_factory=list)

    def to_event(self) -> dict[str, Any]:
        return {"count": self.count, "end_ns": self.end_ns, "cpu_s": self.cpu_s}


def read_pass(reader: Reader, pool: Pool, spec: Spec) -> Reading:
    """Takes and verifies a pass, a chunk at a time, until its last message was seen and the count agrees."""
    checker = Checker(pool, spec.partitions)
    kept: list[np.ndarray] = []
    cpu = time.process_time()
    while not checker.finished:
        keys: list[bytes] = []
        values: list[bytes] = []
        stamps: list[int] | None = [] if spec.stamped else None
        reader.take(spec.chunk, keys, values, stamps)
        checker.take(keys, values, reader.partitions)
        reader.partitions.clear()
        if stamps is not None:
            kept.append(np.array(stamps, dtype=np.int64))
    return Reading(checker.count, time.monotonic_ns(), time.process_time() - cpu, kept)
