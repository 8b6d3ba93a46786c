"""Many seeds, in parallel processes."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tests.virtual.runner import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 4  # seeds that a process takes at a time


class Outcome(NamedTuple):
    """What a seed gave."""

    seed: int
    failure: str = ""
    sent: int = 0
    layout: tuple[str, ...] = ()  # what was there beside what chance chose, such as "cursors"

    @property
    def command(self) -> str:
        return f"python -m tests.virtual {self.seed} --log{''.join(f' --{name}' for name in self.layout)}"

    def __str__(self) -> str:
        return f"{self.failure}\n    replay it with: {self.command}"


def try_seed(seed: int, **layout: bool) -> Outcome:
    """One seed; what it finds is in the outcome."""
    run = Run(seed, **layout)
    try:
        run.run()
    except Exception as error:  # noqa: BLE001 - a crash of the harness is a finding too
        return Outcome(seed, f"{type(error).__name__}: {error}", run.load.sent, tuple(layout))
    return Outcome(seed, "", run.load.sent, tuple(layout))


def _try_seeds(seeds: list[int], layout: dict[str, bool]) -> list[Outcome]:
    return [try_seed(seed, **layout) for seed in seeds]


def run_seeds(seeds: range, *, processes: int = 0, deadline: float = float("inf"), **layout: bool) -> Iterator[Outcome]:
    """Outcomes as they come, of every seed, or of as many as were begun before the deadline."""
    processes = processes or os.cpu_count() or 1
    chunks = (list(seeds[start : start + CHUNK]) for start in range(0, len(seeds), CHUNK))
    with _pool(processes) as pool:
        under_way = [pool.submit(_try_seeds, chunk, layout) for chunk in islice(chunks, 2 * processes)]
        while under_way:
            yield from under_way.pop(0).result()
            chunk = next(chunks, None) if time.monotonic() < deadline else None
            if chunk is not None:
                under_way.append(pool.submit(_try_seeds, chunk, layout))


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(processes)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
