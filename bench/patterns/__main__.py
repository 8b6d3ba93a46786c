"""Runs the works that are wanted, shows what came out against the targets, and writes results/patterns.json."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import fields, replace
from importlib import import_module
from typing import TYPE_CHECKING

from rich.table import Table

import bench.patterns as works
from bench.measure import raise_file_limit
from bench.model import BenchError
from bench.patterns import rows as found
from bench.patterns.plan import QUICK, Plan
from bench.programs import RESULTS, console

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from bench.patterns.rows import Row

WORKS = ("clone", "get", "large", "updates", "faults", "clients", "requests", "workers", "queue", "tasks", "slow")
SYSTEMS = ("stentor", "redis", "nats", "rabbitmq", "celery")


def chosen_plan(arguments: argparse.Namespace) -> Plan:
    """The sizes of the command line; those that are not named are the usual ones."""
    plan = QUICK if arguments.quick else Plan()
    changes = {name: value for name, value in vars(arguments).items() if value is not None}
    known = {each.name for each in fields(Plan)} - {"systems"}
    plan = replace(plan, **{name: value for name, value in changes.items() if name in known})
    return replace(plan, systems=tuple(arguments.system or ()))


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.patterns", description=works.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, in a few minutes")
    parser.add_argument("--only", action="append", choices=WORKS, help="this work; may be given again")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="the same for systems")
    for each in fields(Plan):
        if each.name != "systems":
            kind = float if isinstance(each.default, float) else int
            parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, help=f"without it {each.default}")
    return parser.parse_args(words)


def show(rows: list[Row], out: Console) -> bool:
    """The figures, then the targets; whether all of these are met."""
    table = Table(title="Patterns")
    for name in ("work", "system", "figure", "value", "unit", "spread", "n", "note"):
        table.add_column(name, justify="right" if name in {"value", "n"} else "left")
    for row in rows:
        facts = row.as_dict()
        spread = f"{facts['low']:,} – {facts['high']:,}" if row.samples else ""
        value = f"{facts['value']:,}" if row.samples else "not available"
        table.add_row(row.work, row.system, row.figure, value, row.unit, spread, str(len(row.samples)), row.note)
    out.print(table)
    judged = [(target, target.judge(rows)) for target in found.TARGETS]
    for target, verdict in judged:
        if verdict is not None:
            words, met = verdict
            colour = "[green]met[/]" if met else "[red]missed[/]"
            out.print(f"{colour}  {target.work}: {target.figure}: {words}")
    return all(verdict is None or verdict[1] for _, verdict in judged)


def main() -> int:
    arguments = parsed()
    plan, out = chosen_plan(arguments), console()
    raise_file_limit()
    load_before = os.getloadavg()[0]
    if load_before > found.LOAD_QUIET:
        out.print(f"[red]The machine is busy: its load is {load_before:.1f}. These figures are no claims.[/]")
    rows: list[Row] = []
    failed = False
    for name in arguments.only or WORKS:
        began = time.monotonic()
        measure: Callable[[Plan, Callable[[str], None]], list[Row]] = import_module(f"bench.patterns.{name}").measure
        try:
            rows += measure(plan, lambda text: out.print(text, style="dim"))
        except BenchError as error:
            failed = True
            out.print(f"[red]{name}: {error}[/]")
        out.print(f"{name}: {time.monotonic() - began:.0f} s")
    met = show(rows, out)
    if rows:
        RESULTS.mkdir(parents=True, exist_ok=True)
        found.write(rows, RESULTS / "patterns.json", load_before, plan)
    return 0 if met and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
