"""Runs the cases: repetitions interleaved, samples kept, failures recorded instead of raised.

Repetition 1 of every case runs before repetition 2 of any, each time in another order, so that a slow
minute of the machine falls on all systems alike.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.model import BenchError, NotAvailableError, Options, Row
from bench.processes import Processes, Server, scratch
from bench.systems import system
from bench.works import WORKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from bench.model import Case

FAILURES_MAX = 2


@dataclass(slots=True)
class Bench:
    """What a work needs to run a case."""

    options: Options
    closed_loop_rates: dict[str, float] = field(default_factory=dict)
    """Closed-loop rates that the open loop has measured, by system and durability."""

    @contextmanager
    def server(self, case: Case) -> Iterator[tuple[Server, Processes]]:
        """A fresh server of the case's system in a fresh directory; both are gone afterwards."""
        with scratch(self.options.work_directory) as directory, Processes(directory) as processes:
            yield system(case.system).start(case, directory, processes), processes


def choose(names: tuple[str, ...], options: Options) -> list[Case]:
    cases = [case for name in names for case in WORKS[name].cases(options)]
    if options.systems is None:
        return cases
    return [case for case in cases if case.system in options.systems]


def run_all(cases: list[Case], options: Options, console: Console) -> list[Row]:
    """Every case, `repetitions` times. Ctrl-C ends the run early; what was measured is kept."""
    bench = Bench(options)
    rows = [Row(case) for case in cases]
    end = time.monotonic() + (options.budget_s or float("inf"))
    with progress(console) as bar:
        task = bar.add_task("", total=len(rows) * options.repetitions)
        try:
            for number, row in schedule(rows, options):
                if time.monotonic() > end:
                    console.print("[yellow]time is up: some rows have fewer repetitions[/]")
                    break
                bar.update(task, description=f"{number}/{options.repetitions} {describe(row.case)}")
                run_one(row, bench)
                bar.advance(task)
        except KeyboardInterrupt:
            console.print("[yellow]interrupted: reporting what was measured[/]")
    return rows


def schedule(rows: list[Row], options: Options) -> Iterator[tuple[int, Row]]:
    """All rows once in random order, then all again."""
    order = random.Random(options.seed)
    for number in range(options.repetitions):
        for row in order.sample(rows, len(rows)):
            yield number + 1, row


def progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def run_one(row: Row, bench: Bench) -> None:
    """One repetition; a row that is not available or fails twice is not tried again."""
    if row.not_available or len(row.failures) >= FAILURES_MAX:
        return
    try:
        row.samples.append(WORKS[row.case.work].run(row.case, bench))
    except NotAvailableError as reason:
        row.not_available = str(reason)
    except (BenchError, OSError) as error:
        row.failures.append(str(error))


def describe(case: Case) -> str:
    parts = [case.work, case.label, case.durability, f"{case.size} B", f"batch {case.batch}"]
    if case.partitions > 1:
        parts.append(f"{case.partitions} partitions")
    if case.subscribers:
        parts.append(f"{case.subscribers} subscribers")
    if case.load:
        parts.append(f"{case.load:.0%} load")
    return " · ".join(parts)
