"""The tables of figures in the README, from the files that the benchmarks wrote: no number is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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

PEERS: Final = {
    "redis": "Redis Streams",
    "rabbitmq": "RabbitMQ quorum queue",
    "nats": "NATS work queue",
    "celery": "Celery on Redis",
    "nats core": "NATS core",
    "redis lists": "Redis lists",
}
SLOW: Final = tuple(f"p99 ratio of {policy}" for policy in ("catch up", "skip", "raise", "disconnect"))


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


def patterns() -> str:
    """Tables: the copy of a client, against asking a server."""
    found = _load("patterns.json")
    plans = {work: run["plan"] for work, run in found["runs"].items()}
    values = {(row["work"], row["system"], row["figure"]): row["value"] for row in found["rows"]}
    lines = ["| | Stentor | Redis | NATS KV |", "|---|---|---|---|"]
    for work, figure, words, shown in (
        ("clone", "time", "a new client has copied {clone_keys:,} keys after", _seconds),
        ("get", "time of a get", "reading a key takes", _nanoseconds),
        ("large", "broker memory while loading", "memory of the broker for {large_keys:,} keys, while loading", _bytes),
        ("large", "broker memory after a restart", "the same after a restart", _bytes),
        ("large", "client memory per key", "memory of a client for each key", _bytes),
        ("updates", "rate held", "updates that reach {copies} copies, each second", _number),
        ("updates", "latency p50", "an update is in a copy after, median", _milliseconds),
        ("updates", "latency p99", "the same, 99 % within", _milliseconds),
        ("faults", "updates lost", "acknowledged updates lost while brokers fail", _number),
        ("faults", "updates applied twice", "updates applied twice", _number),
        ("clients", "broker memory per client", "memory of the broker for each of {clients:,} clients", _bytes),
        ("clients", "reached p50", "an update has reached half of them after", _milliseconds),
        ("clients", "reached all", "the same for all of them", _milliseconds),
    ):
        if work in plans:
            cells = [_best(values, work, system, figure, shown) for system in ("stentor", "redis", "nats")]
            lines.append(f"| {words.format(**plans[work])} | {' | '.join(cells)} |")
    lines += _busy(found["runs"], ("clone", "get", "large", "updates", "faults", "clients"))
    return "\n".join(lines) + "\n"


def _busy(runs: dict[str, Any], works: Iterable[str]) -> list[str]:
    busy = [work for work in works if work in runs and runs[work]["busy"]]
    said = f"Other work kept the machine busy during these: {', '.join(busy)}. Their times are too long."
    return ["", said] if busy else []


def sharing() -> str:
    """Queues, tasks, requests and workers, each beside those that do the same in the same run."""
    found = _load("patterns.json")
    values = {(row["work"], row["system"], row["figure"]): row["value"] for row in found["rows"]}
    lines = ["| | Stentor | others |", "|---|---|---|"]
    for work, figure, words, shown in SHARING:
        peers = sorted(
            (value, PEERS[system])
            for (of, system, what), value in values.items()
            if (of, what) == (work, figure) and system in PEERS
        )
        others = ", ".join(f"{name} {shown(value)}" for value, name in peers)
        lines.append(f"| {words} | {shown(values[work, 'stentor', figure])} | {others} |")
    ratios = [value for (of, _, what), value in values.items() if of == "slow" and what in SLOW]
    words = "99 % of messages reach 100 subscribers within: beside a slow one ÷ without it"
    lines.append(f"| {words} | {min(ratios):.2f} to {max(ratios):.2f} | |")
    lines += _busy(found["runs"], ("queue", "tasks", "requests", "workers", "slow"))
    return "\n".join(lines) + "\n"


def _best(values: dict[Any, Any], work: str, system: str, figure: str, shown: Callable[[float], str]) -> str:
    """A system has several ways; the best of them counts."""
    found = [
        value
        for (of, name, what), value in values.items()
        if (of, name.split(maxsplit=1)[0], what) == (work, system, figure) and value is not None
    ]
    return shown(min(found)) if found else ""


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _milliseconds(value: float) -> str:
    return f"{value:.2g} ms" if value < 100 else f"{value:,.0f} ms"


def _nanoseconds(value: float) -> str:
    return f"{value:,.0f} ns" if value < 1000 else f"{value / 1000:,.0f} µs"


def _microseconds(value: float) -> str:
    return f"{value:.1f} µs" if value < 20 else f"{value:,.0f} µs"


def _job(value: float) -> str:
    return _microseconds(value / 1000)


def _rate(value: float) -> str:
    return f"{value / 1e6:.1f} M/s" if value >= 1e6 else f"{value / 1e3:.0f} k/s"


def _times(value: float) -> str:
    return f"{value:.2f} ×"


def _bytes(value: float) -> str:
    if value < 1000:
        return f"{value:.0f} B"
    return f"{value / 1e3:.0f} kB" if value < 1e6 else f"{value / 1e9:.2f} GB"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _gap(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not measured"
    return f"{row['gap_s_p50']:.2f} s, worst of {row['repetitions']}: {row['gap_s_max']:.2f} s"


def weight() -> str:
    """What installations weigh, and what starting them costs."""
    from bench.weight import table

    return table(_load("weight.json")) + "\n"


def attacks() -> str:
    """How long attacks hold a broker's loop, and what a neighbour notices."""
    lines = [
        "| attack | p99.9 of steps | longest step | longest by processor time | publish p99 before | beside it |",
        "|---|---|---|---|---|---|",
    ]
    for found in _load("attacks.json")["attacks"]:
        steps = (f"≤ {found[name]:.0f} ms" for name in ("step_p999_ms", "step_longest_ms", "cpu_longest_ms"))
        publishes = (f"{found[name]:.1f} ms" for name in ("p99_before_ms", "p99_during_ms"))
        lines.append(f"| {found['attack']} | {' | '.join(steps)} | {' | '.join(publishes)} |")
    return "\n".join([*lines, ""])


SHARING: Final = (
    ("queue", "time of a job", "a job of a queue, taken and acknowledged by itself", _job),
    ("tasks", "time of a task", "a task of `stentor work`, two processes", _job),
    ("requests", "median", "a request and its answer, one at a time, median", _microseconds),
    ("requests", "requests a second", "requests, 1,000 under way", _rate),
    ("workers", "one by one", "messages of a group through `run`, a handler that does nothing", _rate),
    ("workers", "in batches", "the same in batches", _rate),
    ("workers", "gain of a second process", "a handler that computes: two processes against one", _times),
)
