"""The three tables, the verdicts and `latest.json`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.compare import LATENCY_WORKS, PASS, SHORT, advantage, counterpart, figure, verdicts
from bench.model import DURABILITIES
from bench.works import WORKS

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from bench.model import Row

TABLES = (
    ("stock", ("stock",), "Stock Python clients"),
    ("tuned", ("tuned",), "Tuned Python clients"),
    ("ceilings", ("native", "limit"), "Ceilings: native tools and the limits of the machine"),
)
COLUMNS = ("work", "system", "durable", "bytes", "batch", "", "messages/s", "min – max", "p50 µs", "p99 µs",
           "p99.9 µs", "CPU s/M p+b+c", "disk B", "stentor", "ours ÷ theirs")  # fmt: skip
LEFT = {"work", "system", "durable", ""}
ROLES = ("producer", "broker", "consumer")


def show(rows: list[Row], console: Console) -> None:
    for _, variants, title in TABLES:
        chosen = [row for row in rows if row.case.variant in variants]
        if chosen:
            console.print(table(title, chosen, rows))
    console.print(legend())
    console.print(verdict_table(rows))
    for row in rows:
        for failure in dict.fromkeys([*row.failures, row.not_available]):
            if failure:
                kind = "not available" if row.not_available else "failed"
                console.print(f"[red]{kind}:[/] {row.case.work} {row.case.label} {row.case.durability}: {failure}")


def table(title: str, chosen: list[Row], rows: list[Row]) -> Table:
    """Lost rows first, worst first; then the rest in the order of the works."""
    made = Table(title=title, title_style="bold", pad_edge=False)
    for name in COLUMNS:
        made.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    ratios = {id(row): ratio_of(row, rows) for row in chosen}
    lost = [row for row in chosen if (ratios[id(row)] or 1.0) < 1.0]
    lost.sort(key=lambda row: ratios[id(row)] or 0.0)
    rest = [row for row in chosen if row not in lost]
    for row in lost:
        made.add_row(*cells(row, rows), style="red")
    made.add_section()
    for row in rest:
        made.add_row(*cells(row, rows), style="bold" if row.case.system == "stentor" else None)
    return made


def ratio_of(row: Row, rows: list[Row]) -> float | None:
    return None if row.case.system == "stentor" else advantage(counterpart(row, rows), row)


def cells(row: Row, rows: list[Row]) -> list[str]:
    case = row.case
    batch = f"{case.batch:,}" if case.batch else "–"
    start = [case.work, case.label, case.durability, f"{case.size:,}", batch, particulars(row)]
    if row.not_available or not row.samples:
        reason = "not available" if row.not_available else "failed"
        return [*start, reason, *[""] * (len(COLUMNS) - 7)]
    spread = row.spread("p50_us" if case.work in LATENCY_WORKS else "messages_per_second")
    ours = None if case.system == "stentor" else counterpart(row, rows)
    ratio = ratio_of(row, rows)
    return [
        *start,
        number(row.rate),
        f"{number(spread[0])} – {number(spread[1])}" if spread else "",
        number(row.median("p50_us")),
        number(row.median("p99_us")),
        number(row.median("p999_us")),
        cpu(row),
        number(row.median("disk_bytes_per_message")),
        number(figure(ours)) if ours else "",
        f"{ratio:,.2f}" if ratio is not None else "",
    ]


def particulars(row: Row) -> str:
    case = row.case
    parts = [case.note] if case.note else []
    if case.partitions > 1:
        parts.append(f"{case.partitions} part.")
    if case.subscribers:
        parts.append(f"{case.subscribers:,} subs.")
    if case.load:
        parts.append(f"{case.load:.0%} load")
    return ", ".join(parts)


def number(value: float | None) -> str:
    """Three digits are what repetitions on one machine can stand for."""
    if value is None:
        return ""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if value >= factor * 0.9995:
            return f"{value / factor:.3g}{unit}" if value < factor * 999.5 else f"{value / factor:,.0f}{unit}"
    return f"{value:.3g}"


def cpu(row: Row) -> str:
    by_role = row.cpu()
    return "+".join(number(by_role[role]) for role in ROLES if role in by_role)


def legend() -> str:
    classes = " · ".join(f"[bold]{name}[/] {meaning}" for name, meaning in DURABILITIES.items())
    works = " · ".join(f"[bold]{name}[/] {work.TITLE}" for name, work in WORKS.items())
    return (
        f"works: {works}\ndurable: {classes}\n"
        "ours ÷ theirs: messages/s of the same work in the same durability class, or their p50 ÷ our p50 "
        "(single, openloop): below 1 we lose. CPU: seconds per million messages of producer + broker + "
        "consumer. min – max: of messages/s, or of p50 for single and openloop."
    )


def verdict_table(rows: list[Row]) -> Table:
    made = Table(title="Targets", title_style="bold", pad_edge=False)
    for name in ("target", "durable", "bytes", "ours", "best of theirs", "required", "measured", "verdict"):
        made.add_column(name, justify="right" if name in {"bytes", "required", "measured"} else "left")
    styles = {PASS: "green", SHORT: "red"}
    for verdict in verdicts(rows):
        made.add_row(
            verdict.target,
            verdict.durability,
            f"{verdict.size:,}",
            verdict.ours,
            verdict.theirs,
            f"{verdict.required:.2f}",
            f"{verdict.measured:,.2f}" if verdict.measured is not None else "–",
            verdict.outcome,
            style=styles.get(verdict.outcome),
        )
    return made


def write_json(rows: list[Row], facts: dict[str, Any], settings: dict[str, Any], directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "latest.json"
    document = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts,
        "settings": settings,
        "rows": [row.to_json() for row in rows],
        "verdicts": [verdict.to_json() for verdict in verdicts(rows)],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
