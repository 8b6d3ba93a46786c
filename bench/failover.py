"""How long publishing stands still when a broker fails: ``python -m bench.failover``.

Acknowledged publishes flow at a steady rate while one broker is killed, paused or cut off, again and again. Reported
is the longest time between two acknowledgements of one partition, from the fault until everything is whole again:

    gap      from the fault until the broker comes back: the failover
    rejoin   from then on: what its return costs

    head, middle, tail    the broker's place in the measured partition
    controller            the broker that changes chains, not the head of the measured partition
    head+controller       one broker that is both

Some faults leave a broker alive and of no use (only for our own system; JetStream is compared by the first three):

    hang     its disk finishes no sync any more
    full     its disk has no room
    link     it and its predecessor in the chain do not reach each other; everybody else reaches both
    store    it is the controller and is cut off from etcd alone; half a second later the head is killed
    slow     everything that it sends passes at 256 kbit/s

The same on three nodes of NATS JetStream: a stream with three replicas in files, synced before the acknowledgement,
where the head is the stream's leader. Both systems run in network namespaces, so that a cut is a cut: packets
vanish, and nobody is told.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from rich.table import Table

from bench.failover_nats import NatsNodes
from bench.failover_stentor import StentorBrokers
from bench.measure import machine_facts
from bench.model import BenchError, NotAvailableError
from bench.plots import OURS, THEIRS
from bench.programs import RESULTS, console, run
from stentor.testing.disks import why_no_disks, why_no_hanging
from stentor.testing.network import why_no_network

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

STEADY_S = 0.5
"""Acknowledgements must flow without a gap for this long before a fault, and after it."""
FAILOVER_S_MAX = 30.0
WHOLE_S_MAX = 60.0
OWN_DISK_BYTES = 512 << 20
HOLD_S = 1.5
"""A fault lasts at least this long after publishing goes on: a broker that comes back at once would hide something."""
TARGETS = {
    "kill": (0.5, 1.5),
    "pause": (1.5, 3.0),
    "cut": (1.5, 3.0),
    "hang": (3.0, 3.0),
    "full": (1.5, 3.0),
    "link": (1.5, 3.0),
    "store": (3.0, 3.0),
    "slow": (3.0, 6.0),
}
"""Median and worst, in seconds. A disk that hangs is waited for REPLICA_STALL_S, a controller without its store for
RESIGN_S, a member that is merely slow for REPLICA_SLOW_S."""


@dataclass(slots=True, frozen=True)
class Aim:
    """Whom a fault hits, and which partition shows it."""

    victim: str
    partition: int


class Subject(Protocol):
    """A system whose brokers fail."""

    name: str
    partitions: int

    def __enter__(self) -> Any: ...
    def __exit__(self, *_: object) -> None: ...
    def aim(self, target: str) -> Aim | None: ...
    def strike(self, fault: str, victim: str) -> None: ...
    def mend(self, fault: str, victim: str) -> None: ...
    def is_whole(self) -> bool: ...
    def measured(self, partition: int) -> list[int]: ...
    def acknowledged(self, partition: int) -> list[float]: ...
    def suspicions(self) -> int: ...


@dataclass(slots=True)
class Row:
    """One kind of fault on one kind of broker."""

    system: str
    fault: str
    target: str
    partitions: int
    gaps_s: list[float] = field(default_factory=list)
    rejoins_s: list[float] = field(default_factory=list)
    suspicions: int = 0
    """Brokers that were suspected by others although nothing was done to them."""
    failures: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        gaps, rejoins = self.gaps_s or [float("nan")], self.rejoins_s or [float("nan")]
        return {
            **asdict(self),
            "repetitions": len(self.gaps_s),
            "gap_s_p50": round(median(gaps), 3),
            "gap_s_max": round(max(gaps), 3),
            "rejoin_s_p50": round(median(rejoins), 3),
            "rejoin_s_max": round(max(rejoins), 3),
        }


def longest_gap(subject: Subject, aim: Aim, since: float, until: float) -> float:
    """Over the partitions that are watched: the longest time without an acknowledgement that touches the window."""
    worst = 0.0
    for partition in subject.measured(aim.partition):
        times = [at for at in subject.acknowledged(partition) if at <= until]
        if not times or times[-1] < since:
            return until - (times[-1] if times else since)
        worst = max([worst, *(after - before for before, after in pairwise(times) if after >= since)])
    return worst


def wait(holds: Any, limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise BenchError(f"waited {limit_s:g} s for {what}")
        time.sleep(0.05)


def flowing(subject: Subject, aim: Aim, since: float) -> bool:
    """Whether every watched partition is acknowledged again, and has been for a while."""
    now = time.monotonic()
    if now - since < STEADY_S:
        return False
    allowed = STEADY_S / 2 if len(subject.measured(aim.partition)) == 1 else STEADY_S
    return all(
        (times := [at for at in subject.acknowledged(partition)[-1000:] if at > now - STEADY_S])
        and max(after - before for before, after in pairwise([now - STEADY_S, *times, now])) < allowed
        for partition in subject.measured(aim.partition)
    )


def once(subject: Subject, fault: str, target: str, row: Row) -> None:
    """One fault from a whole system to a whole system."""
    wait(subject.is_whole, WHOLE_S_MAX, "a whole system")
    aim = subject.aim(target)
    if aim is None:
        raise BenchError(f"no broker is {target} of anything")
    wait(lambda: flowing(subject, aim, 0.0), WHOLE_S_MAX, "a steady flow")
    struck = time.monotonic()
    subject.strike(fault, aim.victim)
    try:
        wait(lambda: flowing(subject, aim, struck), FAILOVER_S_MAX, "acknowledgements after the fault")
        wait(lambda: time.monotonic() - struck > HOLD_S, HOLD_S + 1, "the fault to last")
    finally:
        mended = time.monotonic()
        row.gaps_s.append(longest_gap(subject, aim, struck, mended))
        subject.mend(fault, aim.victim)
    wait(subject.is_whole, WHOLE_S_MAX, "a whole system")
    wait(lambda: flowing(subject, aim, mended), FAILOVER_S_MAX, "a steady flow")
    row.rejoins_s.append(longest_gap(subject, aim, mended, time.monotonic()))
    row.suspicions += subject.suspicions()


def measure(subject: Subject, plan: list[tuple[str, str, int]], out: Console) -> list[Row]:
    """Repetitions of all kinds take turns, so that a slow minute of the machine hits all alike."""
    rows = [Row(subject.name, fault, target, subject.partitions) for fault, target, _ in plan]
    with subject:
        for turn in range(max((count for *_, count in plan), default=0)):
            for row, (fault, target, count) in zip(rows, plan, strict=True):
                if turn >= count:
                    continue
                try:
                    once(subject, fault, target, row)
                except BenchError as error:
                    row.failures.append(str(error))
                    out.print(f"[red]{subject.name} {fault} {target}: {error}[/]")
            out.print(f"{subject.name}, {subject.partitions} partitions: turn {turn + 1}", style="dim")
    return rows


def plan_for(repetitions: int, fewer: int, faults: list[str]) -> list[tuple[str, str, int]]:
    plan = [(fault, "head", repetitions) for fault in faults]
    others = ("middle", "tail", "controller", "head+controller")
    elsewhere = faults if fewer > 1 else ["kill"]  # a quick run has no time for all
    return plan + [(fault, target, fewer) for target in others for fault in elsewhere]


def plan_for_useless(repetitions: int, faults: list[str]) -> list[tuple[str, str, int]]:
    """Faults that leave a broker alive; on the places in the chain where they differ."""
    everywhere = ("head", "middle", "tail")
    places = {"hang": everywhere, "full": everywhere, "link": everywhere[1:], "store": everywhere[:1]}
    places["slow"] = everywhere[:2]
    return [(fault, target, repetitions) for fault in faults for target in places.get(fault, ("middle",))]


def judged(row: Row) -> str:
    """Only our own rows have a target; the large cluster is held to the same."""
    if row.system != "stentor" or not row.gaps_s:
        return ""
    p50, worst = TARGETS[row.fault]
    return "met" if median(row.gaps_s) <= p50 and max(row.gaps_s) <= worst else "missed"


def show(rows: list[Row], out: Console) -> None:
    table = Table(title="Publishing stands still, seconds")
    names = ("system", "partitions", "fault", "target", "n", "p50", "worst", "rejoin p50", "rejoin worst",
             "false suspicions", "target met")  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name in {"system", "fault", "target"} else "right")
    for row in rows:
        found = row.summary()
        figures = [f"{found[name]:.2f}" for name in ("gap_s_p50", "gap_s_max", "rejoin_s_p50", "rejoin_s_max")]
        verdict = judged(row)
        table.add_row(
            *(row.system, f"{row.partitions}", row.fault, row.target, f"{len(row.gaps_s)}", *figures),
            f"{row.suspicions}",
            verdict + (f" ({len(row.failures)} failed)" if row.failures else ""),
            style="red" if verdict == "missed" or row.failures else None,
        )
    out.print(table)


def write(rows: list[Row], directory: Path) -> None:
    content = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine_facts(directory),
        "rows": [row.summary() for row in rows],
    }
    (directory / "failover.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draw(rows, directory)


def draw(rows: list[Row], directory: Path) -> None:
    """Every repetition is a dot, the median a line; without matplotlib there is no picture."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in reversed(rows) if row.gaps_s]
    labels = [f"{row.system} {row.fault} {row.target}, {row.partitions} p." for row in shown]
    figure, axes = plt.subplots(figsize=(9, 0.45 * len(shown) + 1.5))
    for label, row in zip(labels, shown, strict=True):
        colour = OURS if row.system == "stentor" else THEIRS
        axes.scatter(row.gaps_s, [label] * len(row.gaps_s), c=colour, s=24, alpha=0.6)
        axes.scatter([median(row.gaps_s)], [label], c="#333333", marker="|", s=160, zorder=3)
    axes.set_xscale("log")
    axes.set_xlabel("seconds without an acknowledgement (line: median)")
    axes.set_title("Publishing stands still while a broker fails")
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(directory / "failover.png", dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument(
        "--repetitions", type=int, default=30, help="of each fault of the head; a third of it elsewhere"
    )
    parser.add_argument("--quick", action="store_true", help="three repetitions, in at most four minutes")
    parser.add_argument("--partitions", type=int, default=300, help="of the large topic; 0: without it")
    parser.add_argument("--no-peers", action="store_true", help="without NATS")
    parser.add_argument("--peer-repetitions", type=int, help="of each fault of a peer; without it as many as of ours")
    chosen = parser.parse_args()
    repetitions = 3 if chosen.quick else chosen.repetitions
    fewer = 1 if chosen.quick else max(1, repetitions // 3)
    out = console()
    reason = why_no_network()
    if reason:
        out.print(f"No cuts: {reason}")
    faults = ["kill", "pause"] if reason else ["kill", "pause", "cut"]
    rows: list[Row] = []
    with run() as (directory, processes):
        useless = [] if reason else ["link", "store", "slow"]
        useless += [] if why_no_hanging() else ["hang"]
        plan = plan_for(repetitions, fewer, faults) + plan_for_useless(fewer, useless)
        subjects: list[tuple[Subject, list[tuple[str, str, int]]]] = [
            (StentorBrokers(directory, 3, network=not reason), plan),
        ]
        if not why_no_disks():
            own_disks = StentorBrokers(directory, 3, network=not reason, disk_bytes=OWN_DISK_BYTES)
            subjects.append((own_disks, plan_for_useless(fewer, ["full"])))
        if not chosen.no_peers:
            nodes = NatsNodes(directory, processes, network=not reason)
            peers = chosen.peer_repetitions or repetitions
            subjects.append((nodes, [(fault, "head", peers) for fault in faults]))
        if chosen.partitions:
            large = StentorBrokers(directory, chosen.partitions, network=not reason)
            subjects.append((large, [(fault, "head", fewer) for fault in faults]))
        for subject, plan in subjects:
            try:
                rows += measure(subject, plan, out)
            except NotAvailableError as error:
                out.print(f"{subject.name}: not available: {error}")
    show(rows, out)
    write(rows, RESULTS)
    return 1 if any("missed" in judged(row) or row.failures for row in rows if row.system == "stentor") else 0


if __name__ == "__main__":
    sys.exit(main())
