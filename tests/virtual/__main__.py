"""Run seeds: the product's own brokers and clients in virtual time.

python -m tests.virtual SEED [SEED …] [--log]       replay some, with what everyone logs
python -m tests.virtual --seeds 1000 [--from S]     run a range, on all cores; --cursors: with clients that move cursors
python -m tests.virtual --seeds 1000 --compaction   with the log of a table compacted all the time
python -m tests.virtual --seeds 1000 --groups       with a consumer group that reads, too
python -m tests.virtual --seeds 1000 --transactions with a consumer group that sends something out, too
python -m tests.virtual --seeds 1000 --requests     with requests and their responders, too
python -m tests.virtual --seeds 1000 --memory       with a topic that is kept in memory
python -m tests.virtual --seeds 1000 --queues       with a work queue, too
python -m tests.virtual --campaign --minutes 10     go on where the last campaign stopped
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.virtual.runner import FailedError, Run, prepare
from tests.virtual.seeds import Outcome, run_seeds
from tests.virtual.world import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

CAMPAIGN = Path(__file__).with_name("campaign.json")
FIRST_OF_CAMPAIGN = 100_000  # apart from the seeds of tests
MANY = 1_000_000


class _Log(logging.Handler):
    """In virtual time, and by process."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._world = run.world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        who = world.current.name if world.current is not None else "-"
        print(f"{world.now / SECOND:.4f} {who} {record.levelname[0]} {record.name} {record.getMessage()}")


def replay(seeds: list[int], *, log: bool, **layout: bool) -> int:
    failed = 0
    for seed in seeds:
        run = Run(seed, **layout)
        logging.getLogger().handlers[:] = [_Log(run)] if log else [logging.NullHandler()]
        try:
            run.run()
            print(f"seed {seed}: trace {run.world.trace:08x}, {run.load.sent} messages, {run.world.steps} steps")
        except FailedError as error:
            failed += 1
            print(error, flush=True)
    return failed


def progress_bar() -> Any:
    columns = [
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]} per second, {task.fields[failed]} failed"),
        TimeElapsedColumn(),
    ]
    console = Console()
    return Progress(*columns, console=console) if console.is_terminal else nullcontext()


def run_many(
    seeds: range,
    *,
    processes: int,
    deadline: float = float("inf"),
    on_done: Callable[[Outcome], None] = lambda _: None,
    **layout: bool,
) -> int:
    """Run seeds with a progress bar; returns how many failed."""
    began, done, sent, failed = time.monotonic(), 0, 0, []
    total = None if math.isfinite(deadline) else len(seeds)
    with progress_bar() as progress:
        show = print if progress is None else progress.console.print
        task = None if progress is None else progress.add_task("", total=total, rate="…", failed=0)
        for outcome in run_seeds(seeds, processes=processes, deadline=deadline, **layout):
            done += 1
            sent += outcome.sent
            if outcome.failure:
                failed.append(outcome)
                show(str(outcome))
            on_done(outcome)
            if progress is not None:
                rate = f"{done / (time.monotonic() - began):.1f}"
                progress.update(task, completed=done, rate=rate, failed=len(failed))
    took = time.monotonic() - began
    print(f"{done} seeds, {len(failed)} failed, {sent} messages, {took:.1f} s, {done / took:.2f} per second")
    for outcome in failed:
        print(f"    {outcome.command}")
    return len(failed)


def campaign(minutes: float, processes: int) -> int:
    """Seeds that nobody has run yet, until the time is over; how far it came is kept in a file."""
    held = json.loads(CAMPAIGN.read_text(encoding="utf-8")) if CAMPAIGN.exists() else {"seeds": 0, "failed": []}

    def on_done(outcome: Outcome) -> None:
        held["seeds"] += 1
        if outcome.failure:
            held["failed"] = sorted({*held["failed"], outcome.seed})

    first = FIRST_OF_CAMPAIGN + held["seeds"]
    deadline = time.monotonic() + 60 * minutes
    try:
        return run_many(range(first, first + MANY), processes=processes, deadline=deadline, on_done=on_done)
    except KeyboardInterrupt:
        print("stopped; the next campaign goes on from here")
        return 0
    finally:
        held["date"] = datetime.now(UTC).date().isoformat()
        CAMPAIGN.write_text(json.dumps(held, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{held['seeds']} seeds so far, failed: {held['failed'] or 'none'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=0, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of them")
    parser.add_argument("--log", action="store_true", help="show what everyone logs, in virtual time")
    parser.add_argument("--cursors", action="store_true", help="let some clients move named cursors")
    parser.add_argument("--positions", action="store_true", help="let some clients go on from positions they kept")
    parser.add_argument("--expiry", action="store_true", help="let keys of a table expire, and their owners die")
    parser.add_argument("--compaction", action="store_true", help="compact the log of a table all the time")
    parser.add_argument("--memory", action="store_true", help="keep the topic in memory")
    parser.add_argument("--queues", action="store_true", help="let workers work on a queue, too")
    parser.add_argument("--groups", action="store_true", help="let a consumer group read, too")
    parser.add_argument("--transactions", action="store_true", help="let it send something out, in transactions")
    parser.add_argument("--requests", action="store_true", help="let clients ask and answer requests")
    parser.add_argument("--campaign", action="store_true", help="seeds that nobody has run yet")
    parser.add_argument("--minutes", type=float, default=10, help="how long a campaign goes on")
    parser.add_argument("--processes", type=int, default=0, help="how many at a time; 0 means one per core")
    wishes = parser.parse_args()
    prepare("tests.virtual", log=wishes.log)
    layouts = ("cursors", "positions", "expiry", "compaction", "groups", "transactions", "requests", "queues", "memory")
    layout = {name: True for name in layouts if getattr(wishes, name)}
    if wishes.campaign:
        return bool(campaign(wishes.minutes, wishes.processes))
    if wishes.seed:
        return bool(replay(wishes.seed, log=wishes.log, **layout))
    seeds = range(wishes.first, wishes.first + wishes.seeds)
    return bool(run_many(seeds, processes=wishes.processes, **layout))


if __name__ == "__main__":
    sys.exit(main())
