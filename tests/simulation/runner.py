"""Runs seeds: one, or many in parallel processes."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from tests.simulation.cluster import Cluster

from stentor import limits

CHUNK = 4  # seeds that a process takes at a time


@dataclass(frozen=True)
class Outcome:
    """What a seed gave."""

    seed: int
    failure: str = ""
    trace: int = 0
    acknowledged: int = 0
    steps: int = 0

    @property
    def command(self):
        return f"python -m tests.simulation {self.seed}"

    def __str__(self):
        return f"seed {self.seed} fails: {self.failure[:400]}\n    replay it with: {self.command}"


def run_seed(seed, **options):
    """One seed; raises what it finds."""
    with _joiners_far_behind(seed):
        cluster = Cluster(seed, **options)
        trace = cluster.run()
    return Outcome(seed, "", trace, cluster.acknowledgements, cluster.world.steps)


@contextmanager
def _joiners_far_behind(seed):
    """In every eleventh seed joiners are filled for a while before the tail waits for them, as with long logs."""
    usual = limits.JOIN_LAG_MESSAGES
    limits.JOIN_LAG_MESSAGES = 3 if seed % 11 == 0 else usual
    try:
        yield
    finally:
        limits.JOIN_LAG_MESSAGES = usual


def try_seed(seed):
    """One seed; what it finds is in the outcome."""
    try:
        return run_seed(seed)
    except Exception as error:  # noqa: BLE001 - a crash of a machine is a finding too
        return Outcome(seed, f"{type(error).__name__}: {error}")


def _try_seeds(seeds):
    return [try_seed(seed) for seed in seeds]


def run_seeds(seeds, *, processes=None, deadline=float("inf")) -> Iterator[Outcome]:
    """Outcomes as they come, of every seed, or of as many as were begun before the deadline."""
    processes = processes or os.cpu_count() or 1
    seeds = list(seeds)
    chunks = iter([seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)])
    with _pool(processes) as pool:
        under_way = [pool.submit(_try_seeds, chunk) for chunk in islice(chunks, 2 * processes)]
        while under_way:
            yield from under_way.pop(0).result()
            chunk = next(chunks, None) if time.monotonic() < deadline else None
            if chunk is not None:
                under_way.append(pool.submit(_try_seeds, chunk))


@contextmanager
def _pool(processes):
    pool = ProcessPoolExecutor(processes)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
