"""The tables of figures in the README, from the files that the benchmarks wrote: no number is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[1] / "bench" / "results"

SPEED: Final = (
    ("end to end ≥ 1/3 of the bare-socket copier", "end to end, against a bare-socket copier of the same bytes"),
    ("≥ 1.2 × packed Redis", "end to end, against Redis with 1,000 messages packed by hand into an entry"),
    ("history of one-message batches ≥ the best peer", "history of one-message batches, against the best peer"),
    ("one publish at a time: p50 ≤ the best peer", "one publish at a time, the best peer's median ÷ ours"),
    ("≥ 20 × the best stock client, ours by send()", "end to end by `send()`, against the best stock client"),
    ("≥ 20 × the best stock client, ours by any call", "end to end by `send_many()`, against the same"),
    ("≥ 3 × the best tuned one, unpacked", "end to end, against the best tuned client, unpacked"),
)
COLUMNS: Final = ((100, "fsync"), (100, "os"), (1000, "fsync"), (10_000, "fsync"))
FAULTS: Final = {"kill": "killed (`kill -9`)", "pause": "paused (SIGSTOP)", "cut": "cut off from the network"}
USELESS: Final = {
    "hang": "its disk finishes no sync",
    "full": "its disk is full",
    "link": "it and its predecessor do not reach each other",
    "store": "it is killed while the controller does not reach etcd",
    "slow": "what it sends passes at 256 kbit/s",
}


def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def speed() -> str:
    """Ours ÷ theirs, target by target."""
    measured = {(v["target"], v["size"], v["durability"]): v for v in _load("latest.json")["verdicts"]}
    lines = [
        "| ours ÷ theirs, per message API | 100 B fsynced | 100 B not synced | 1 KB fsynced | 10 KB fsynced | wanted |",
        "|---|---|---|---|---|---|",
    ]
    for target, words in SPEED:
        found = [measured.get((target, *column)) for column in COLUMNS]
        cells = [f"{v['measured']:.3g}" if v is not None and v["measured"] else "" for v in found]
        required = next(v["required"] for v in measured.values() if v["target"] == target)
        lines.append(f"| {words} | {' | '.join(cells)} | {required:.2g} |")
    return "\n".join(lines) + "\n"


def replicas() -> str:
    """Three replicas beside JetStream R3: messages/s at full speed, and the median of one publish at a time."""
    rows = _load("latest.json")["rows"]
    lines = ["| three replicas | messages/s | one publish, median |", "|---|---|---|"]
    for system, durability, words in (
        ("stentor3", "fsync", "Stentor, synced on all three"),
        ("nats3", "os", "JetStream R3, not synced"),
        ("nats3", "fsync", "JetStream R3, synced"),
    ):
        mine = [row for row in rows if (row["system"], row["durability"]) == (system, durability)]
        rate = max(row["messages_per_second"] for row in mine if row["work"] == "replicated")
        median = min(row["p50_us"] for row in mine if row["work"] == "replicated single")
        lines.append(f"| {words} | {rate / 1000:,.0f} k | {median / 1000:.2f} ms |")
    return "\n".join(lines) + "\n"


def scaling() -> str:
    """Brokers and partitions on the same two cores."""
    rows = [row for row in _load("latest.json")["rows"] if row["work"] == "scaling"]
    lines = ["| brokers, one replica each | partitions | messages/s |", "|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["system"], row["parameters"]["partitions"])):
        rate = row["messages_per_second"] / 1e6
        lines.append(f"| {row['system'].removeprefix('stentor')} | {row['parameters']['partitions']} | {rate:.2f} M |")
    return "\n".join(lines) + "\n"


def failover() -> str:
    """How long publishing stands still when the head fails."""
    rows = {
        (row["system"], row["fault"], row["partitions"]): row
        for row in _load("failover.json")["rows"]
        if row["target"] == "head"
    }
    lines = [
        "| the head of the chain is | Stentor | Stentor, 300 partitions | NATS JetStream R3 |",
        "|---|---|---|---|",
    ]
    for fault, words in FAULTS.items():
        cells = [_gap(rows.get(key)) for key in (("stentor", fault, 3), ("stentor", fault, 300), ("nats", fault, 1))]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def useless() -> str:
    """The same for brokers that are alive and of no use."""
    rows = [row for row in _load("failover.json")["rows"] if row["fault"] in USELESS]
    lines = ["| a broker of a chain is alive, but | its place | Stentor |", "|---|---|---|"]
    lines += [f"| {USELESS[row['fault']]} | {row['target']} | {_gap(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def spark() -> str:
    """Topics as tables: Stentor's rows per second, and what part of the others' they are."""
    found = _load("spark.json")
    rates = {(row["work"], row["system"]): row["rows_per_second"] for row in found["rows"]}
    lines = ["| | rows/s | Stentor ÷ this |", "|---|---|---|"]
    for (work, system), rate in rates.items():
        ratio = "" if system == "stentor" else f"{rates[work, 'stentor'] / rate:.2f}"
        lines.append(f"| {work}, {system} | {rate / 1e6:.2f} M | {ratio} |")
    latency = found["stream_latency"]
    lines.append(f"| a stream, publish to sink: median | {latency['p50_ms']:.0f} ms | |")
    lines.append(f"| the same: 99 % within | {latency['p99_ms']:.0f} ms | |")
    return "\n".join(lines) + "\n"


def _gap(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not measured"
    return f"{row['gap_s_p50']:.2f} s, worst of {row['repetitions']}: {row['gap_s_max']:.2f} s"


def weight() -> str:
    """What installations weigh, and what starting them costs."""
    from bench.weight import table

    return table(_load("weight.json")) + "\n"
