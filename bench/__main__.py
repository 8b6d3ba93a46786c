"""``python -m bench``: the comparison of one broker with its peers and with the machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import plots, report
from bench.compare import SHORT, verdicts
from bench.measure import machine_facts
from bench.model import Options
from bench.runner import choose, describe, run_all
from bench.systems import NAMES
from bench.works import WORKS

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WIDE = 200
#: Leaves time for the last run and the pictures within three minutes.
QUICK_BUDGET_S = 165.0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size, one batch, two short repetitions: ≤ 3 minutes")
    parser.add_argument("--only", metavar="WORK", action="append", choices=list(WORKS), help="this work; repeatable")
    parser.add_argument("--system", metavar="NAME", action="append", choices=NAMES, help="this system; repeatable")
    parser.add_argument("--sizes", metavar="BYTES", type=int, nargs="+", help="value sizes (multiples of 4)")
    parser.add_argument("--batches", metavar="N", type=int, nargs="+", choices=(1, 10, 100, 1000))
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--seconds", type=float, help="sending time of one run")
    parser.add_argument("--list", action="store_true", help="list what would run, and stop")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    return parser.parse_args(arguments)


def options_of(chosen: argparse.Namespace) -> Options:
    quick = chosen.quick
    return Options(
        quick=quick,
        repetitions=chosen.repetitions or (2 if quick else 3),
        seconds=chosen.seconds or (0.7 if quick else 2.0),
        sizes=tuple(chosen.sizes or ((100,) if quick else (100, 1000, 10_000))),
        batches=tuple(chosen.batches or ((1000,) if quick else (1, 10, 100, 1000))),
        systems=tuple(chosen.system) if chosen.system else None,
        # Not the system's temporary directory: that may live in memory, where a sync costs nothing.
        budget_s=QUICK_BUDGET_S if quick else None,
        work_directory=Path(os.environ.get("STENTOR_BENCH_DIR") or HERE / ".work"),
    )


def settings_of(options: Options) -> dict[str, Any]:
    return {
        "quick": options.quick,
        "repetitions": options.repetitions,
        "seconds": options.seconds,
        "sizes": options.sizes,
        "batches": options.batches,
        "seed": options.seed,
    }


def main() -> int:
    chosen = parse()
    options = options_of(chosen)
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    cases = choose(tuple(chosen.only or WORKS), options)
    if chosen.list:
        for case in cases:
            console.print(describe(case), f"[dim]({case.variant})[/]")
        console.print(f"{len(cases)} rows × {options.repetitions} repetitions")
        return 0
    # A polite kill gets the same clean end as Ctrl-C: servers stopped, directories removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    facts = machine_facts(options.work_directory)
    console.print(headline(facts))
    rows = run_all(cases, options, console)
    report.show(rows, console)
    report.write_json(rows, facts, settings_of(options), RESULTS)
    plots.draw(rows, RESULTS)
    console.print("written:", *sorted(path.name for path in RESULTS.iterdir()), f"in {RESULTS.name}/")
    missed = any(verdict.outcome == SHORT for verdict in verdicts(rows))
    return 1 if chosen.strict and missed else 0


def headline(facts: dict[str, Any]) -> str:
    sync = facts["fdatasync"]
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['file_system']}, Python "
        f"{facts['python']}, load {facts['load_before']:.1f}; "
        f"fdatasync p50 {sync['p50_us']:.0f} µs, p99 {sync['p99_us']:.0f} µs"
    )


if __name__ == "__main__":
    sys.exit(main())
