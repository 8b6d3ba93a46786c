"""The pictures, one file each, from the rows that were measured. Without matplotlib there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.model import Row

OURS, THEIRS, LIMIT = "#c0392b", "#5d7a9c", "#b8b8b8"


def draw(rows: list[Row], directory: Path) -> list[Path]:
    """Draws every picture that has something to show."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, Callable[[list[Row]], Any]] = {
        "throughput": throughput,
        "batches": batches,
        "single": single,
        "history": history,
        "fanout": fanout,
        "openloop": openloop,
    }
    written = []
    for name, picture in pictures.items():
        figure = picture([row for row in rows if row.samples])
        if figure is not None:
            path = directory / f"{name}.png"
            figure.tight_layout()
            figure.savefig(path, dpi=110)
            written.append(path)
    return written


def colour(row: Row) -> str:
    if row.case.system == "stentor":
        return OURS
    return LIMIT if row.case.variant in {"limit", "native"} else THEIRS


def _dots(axes: Any, rows: list[Row], name: str, title: str) -> None:
    """Medians as dots, with the spread as a line: bars would lie on a logarithmic axis, which has no zero."""
    rows = sorted(rows, key=lambda row: row.median(name) or 0.0)
    medians = [row.median(name) or 0.0 for row in rows]
    spreads = [row.spread(name) or (0.0, 0.0) for row in rows]
    errors = [
        [middle - low for middle, (low, _) in zip(medians, spreads, strict=True)],
        [high - middle for middle, (_, high) in zip(medians, spreads, strict=True)],
    ]
    labels = [f"{row.case.label} ({row.case.variant})" for row in rows]
    axes.errorbar(medians, labels, xerr=errors, fmt="none", ecolor="#333333", linewidth=1)
    axes.scatter(medians, labels, c=[colour(row) for row in rows], s=60, zorder=3)
    for label, middle in zip(labels, medians, strict=True):
        axes.annotate(f"{middle:,.0f}", (middle, label), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xscale("log")
    axes.margins(x=0.15, y=0.08)
    axes.set_title(title)
    axes.grid(axis="x", alpha=0.3)


def _panels(rows: list[Row], name: str, title: str, unit: str) -> Any:
    """One panel of dots per durability class."""
    from matplotlib import pyplot as plt

    classes = [kind for kind in ("fsync", "os", "none") if any(row.case.durability == kind for row in rows)]
    if not classes:
        return None
    figure, panels = plt.subplots(1, len(classes), figsize=(6 * len(classes), 5), squeeze=False)
    for axes, kind in zip(panels[0], classes, strict=True):
        _dots(axes, [row for row in rows if row.case.durability == kind], name, f"{title}, {kind}")
        axes.set_xlabel(unit)
    return figure


def throughput(rows: list[Row]) -> Any:
    chosen = [row for row in rows if row.case.work in {"throughput", "native"} and row.case.partitions == 1]
    if not chosen:
        return None
    size = min(row.case.size for row in chosen)
    batch = max(row.case.batch for row in chosen)
    chosen = [row for row in chosen if (row.case.size, row.case.batch) == (size, batch)]
    return _panels(chosen, "messages_per_second", f"{size} B, batch {batch}", "messages/s")


def batches(rows: list[Row]) -> Any:
    from matplotlib import pyplot as plt

    chosen = [row for row in rows if row.case.work == "throughput" and row.case.partitions == 1]
    chosen = [row for row in chosen if row.case.size == min(other.case.size for other in chosen)]
    if len({row.case.batch for row in chosen}) < 2:
        return None
    figure, panels = plt.subplots(1, 2, figsize=(12, 5), sharey=True)
    for axes, kind in zip(panels, ("fsync", "os"), strict=True):
        lines: dict[str, list[Row]] = {}
        for row in chosen:
            if row.case.durability == kind:
                lines.setdefault(f"{row.case.label} ({row.case.variant})", []).append(row)
        _curves(axes, lines, "batch")
        axes.set_title(f"{chosen[0].case.size} B, {kind}")
        axes.set_xlabel("batch (peers: in flight)")
    panels[0].set_ylabel("messages/s")
    return figure


def fanout(rows: list[Row]) -> Any:
    from matplotlib import pyplot as plt

    chosen = [row for row in rows if row.case.work == "fanout"]
    if not chosen:
        return None
    figure, axes = plt.subplots(figsize=(7, 5))
    lines: dict[str, list[Row]] = {}
    for row in chosen:
        lines.setdefault(f"{row.case.label}, {row.case.durability}", []).append(row)
    _curves(axes, lines, "subscribers")
    axes.set_xlabel("subscribers")
    axes.set_ylabel("deliveries/s")
    return figure


def _curves(axes: Any, lines: dict[str, list[Row]], parameter: str) -> None:
    for label, line in lines.items():
        ordered = sorted(line, key=lambda row: getattr(row.case, parameter))
        axes.plot(
            [getattr(row.case, parameter) for row in ordered],
            [row.rate for row in ordered],
            marker="o",
            label=label,
            linewidth=2.5 if ordered[0].case.system == "stentor" else 1.2,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def single(rows: list[Row]) -> Any:
    chosen = [row for row in rows if row.case.work == "single"]
    chosen = [row for row in chosen if row.case.size == min(other.case.size for other in chosen)]
    return _panels(chosen, "p50_us", "one publish at a time, p50", "µs")


def history(rows: list[Row]) -> Any:
    chosen = [row for row in rows if row.case.work == "history"]
    return _panels(chosen, "messages_per_second", "history of one-message batches", "messages/s")


def openloop(rows: list[Row]) -> Any:
    from matplotlib import pyplot as plt

    chosen = [row for row in rows if row.case.work == "openloop"]
    if not chosen:
        return None
    figure, axes = plt.subplots(figsize=(9, 5))
    for row in chosen:
        label = f"{row.case.label}, {row.case.durability}, {row.case.load:.0%} = {row.rate:,.0f}/s"
        figures = [row.median(name) or 0.0 for name in ("p50_us", "p99_us", "p999_us")]
        axes.plot(("p50", "p99", "p99.9"), figures, marker="o", label=label,
                  linewidth=2.5 if row.case.system == "stentor" else 1.2)  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("µs from due to delivered")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure
