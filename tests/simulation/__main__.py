"""Replay seeds, or run many.

python -m tests.simulation SEED [SEED …] [--trace]     replay
python -m tests.simulation --seeds 1000 [--from S]     run a range, in parallel
python -m tests.simulation --campaign --minutes 10     go on where the last campaign stopped
"""

import argparse
import json
import math
import sys
import time
import traceback
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tests.simulation.runner import run_seed, run_seeds

CAMPAIGN = Path(__file__).with_name("campaign.json")
FIRST_OF_CAMPAIGN = 10_000_000  # apart from the seeds of tests
MANY = 1_000_000


def replay(seeds, *, trace):
    failed = 0
    for seed in seeds:
        try:
            done = run_seed(seed, show=print if trace else None)
            print(f"seed {seed}: trace {done.trace:08x}, {done.acknowledged} acknowledged, {done.steps} steps")
        except Exception:  # noqa: BLE001 - a crash of a machine is a finding too
            failed += 1
            traceback.print_exc(limit=-6)
            print(f"seed {seed} fails")
    return failed


def progress_bar():
    columns = [
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]} per second, {task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    console = Console()
    return Progress(*columns, console=console) if console.is_terminal else nullcontext()


def run_many(seeds, *, deadline=float("inf"), on_done=None):
    """Run seeds with a progress bar; returns (seeds run, failed outcomes, acknowledgements)."""
    began, done, acknowledged, failed = time.monotonic(), 0, 0, []
    total = None if math.isfinite(deadline) else len(seeds)
    with progress_bar() as progress:
        show = print if progress is None else progress.console.print
        task = None if progress is None else progress.add_task("", total=total, rate="…", failed=0)
        for outcome in run_seeds(seeds, deadline=deadline):
            done += 1
            acknowledged += outcome.acknowledged
            if outcome.failure:
                failed.append(outcome)
                show(str(outcome))
            if on_done is not None:
                on_done(outcome)
            if progress is not None:
                rate = f"{done / (time.monotonic() - began):.1f}"
                progress.update(task, completed=done, rate=rate, failed=len(failed))
    took = time.monotonic() - began
    print(
        f"{done} seeds, {len(failed)} failed, {acknowledged} acknowledged, {took:.1f} s, {done / took:.1f} per second"
    )
    for outcome in failed:
        print(f"    {outcome.command}")
    return len(failed)


def campaign(minutes):
    """Seeds that nobody has run yet, until the time is over; how far it came is kept in a file."""
    held = json.loads(CAMPAIGN.read_text(encoding="utf-8")) if CAMPAIGN.exists() else {"seeds": 0, "failed": []}

    def on_done(outcome):
        held["seeds"] += 1
        if outcome.failure:
            held["failed"] = sorted({*held["failed"], outcome.seed})

    first = FIRST_OF_CAMPAIGN + held["seeds"]
    try:
        return run_many(range(first, first + MANY), deadline=time.monotonic() + 60 * minutes, on_done=on_done)
    except KeyboardInterrupt:
        print("stopped; the next campaign goes on from here")
        return 0
    finally:
        held["date"] = datetime.now(UTC).date().isoformat()
        CAMPAIGN.write_text(json.dumps(held, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{held['seeds']} seeds so far, failed: {held['failed'] or 'none'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=0, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of them")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--campaign", action="store_true")
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    if options.campaign:
        sys.exit(bool(campaign(options.minutes)))
    if options.seed:
        sys.exit(bool(replay(options.seed, trace=options.trace)))
    sys.exit(bool(run_many(range(options.first, options.first + options.seeds))))


if __name__ == "__main__":
    main()
