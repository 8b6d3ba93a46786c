"""kill -9 while publishing: ``python -m bench.crash --rounds 50``.

Producers send numbered messages at full speed while the broker is killed and started again on the same
port and data, round after round. A producer notes each message that was acknowledged. A live subscriber
follows through all crashes. At the end the log is read from its start:

    lost        acknowledged, and not in the log
    doubled     in the log twice
    reordered   in the log after a later message of the same producer
    missed      in the log, and not seen by the live subscriber (or seen twice, or out of order)

A message that was not acknowledged may be there or not, but once and in order. Exits 1 on any violation.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from bench.messages import SEQUENCE
from bench.processes import START_S_MAX, Processes, Server, free_port
from bench.programs import console, run, spec
from bench.systems.stentor import connect, start_broker

if TYPE_CHECKING:
    from rich.console import Console

    from bench.model import Spec
    from bench.processes import Role
    from bench.role import Harness

SIZE = 100
LIFE_S = (0.3, 1.2)
FINISH_S_MAX = 120.0
SETTLE_S = 1.0
#: Shorter pauses between acknowledgements are everyday life, not a crash.
GAP_S_MIN = 0.1


@dataclass(slots=True)
class Round:
    """One life of the broker and the restart after it."""

    life_s: float
    restart_s: float


@dataclass(slots=True)
class Outcome:
    """What the final read found of one producer."""

    producer: int
    sent: int
    acknowledged: int
    in_log: int
    lost: int
    doubled: int
    reordered: int
    missed: int
    gaps_s: list[float]
    """Pauses between acknowledgements, one per kill or so."""
    errors: list[str] = field(default_factory=list)

    @property
    def violations(self) -> int:
        return self.lost + self.doubled + self.reordered + self.missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="of the moments of the kills")
    chosen = parser.parse_args()
    seed = chosen.seed if chosen.seed is not None else random.randrange(2**32)
    out = console()
    out.print(f"seed {seed}")
    with run() as (directory, processes):
        rounds, outcomes = torture(directory, processes, chosen.rounds, chosen.producers, random.Random(seed))
    show(rounds, outcomes, out)
    return 1 if any(outcome.violations for outcome in outcomes) else 0


def torture(
    directory: Path, processes: Processes, count: int, producers: int, chance: random.Random
) -> tuple[list[Round], list[Outcome]]:
    data, port = directory / "stentor", free_port()
    server = start_broker(data, processes, port)
    told = spec(server.address, SIZE)
    follower = processes.role("bench.crash:follow", told.with_(extra={"path": str(directory / "follower")}))
    follower.expect("ready", START_S_MAX)
    roles = [
        processes.role(
            "bench.crash:publish",
            told.with_(extra={"number": number, "path": str(directory / f"acked-{number}")}),
        )
        for number in range(producers)
    ]
    for role in roles:
        role.expect("ready", START_S_MAX)
    rounds = []
    for _ in range(count):
        life_s = chance.uniform(*LIFE_S)
        time.sleep(life_s)
        kill(server)
        start = time.monotonic()
        server = start_broker(data, processes, port)
        rounds.append(Round(life_s, time.monotonic() - start))
    time.sleep(SETTLE_S)
    return rounds, verify(told, roles, follower, directory)


def kill(server: Server) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait(START_S_MAX)


def verify(told: Spec, roles: list[Role], follower: Role, directory: Path) -> list[Outcome]:
    """Ends the producers, reads the log from its start and compares."""
    for role in roles:
        role.tell(stop=True)
    reports = [role.expect("done", FINISH_S_MAX) for role in roles]
    log = read_log(told)
    follower.tell(total=len(log))
    follower.expect("done", FINISH_S_MAX)
    seen = np.fromfile(directory / "follower", dtype="<u8").reshape(-1, 2)
    outcomes = []
    for number, report in enumerate(reports):
        acknowledged = np.fromfile(directory / f"acked-{number}", dtype="<u8")
        outcomes.append(judge(number, report, acknowledged, log, seen))
    return outcomes


def read_log(told: Spec) -> np.ndarray:
    """(producer, sequence) of every message in the log, in its order."""
    client = connect(told)
    pairs = [value[:16] for value in (message.value for message in client.read(told.topic, start="earliest"))]
    client.close()
    return np.frombuffer(b"".join(pairs), "<u8").reshape(-1, 2)


def judge(number: int, report: dict[str, Any], acked: np.ndarray, log: np.ndarray, seen: np.ndarray) -> Outcome:
    mine = log[log[:, 0] == number, 1]
    live = seen[seen[:, 0] == number, 1]
    unique = np.unique(mine)
    steps = np.diff(mine.astype(np.int64))
    return Outcome(
        producer=number,
        sent=report["sent"],
        acknowledged=len(acked),
        in_log=len(mine),
        lost=len(np.setdiff1d(acked, unique)),
        doubled=len(mine) - len(unique),
        reordered=int((steps < 0).sum()),
        missed=0 if np.array_equal(mine, live) else max(1, abs(len(mine) - len(live))),
        gaps_s=report["gaps_s"],
        errors=report["errors"],
    )


class Ledger:
    """What one producer sent, and which of it was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.errors: dict[str, int] = {}
        self.gaps_s: list[float] = []
        self._latest = time.monotonic()

    def on_delivery(self, sequence: int, receipt: Any, error: BaseException | None) -> None:
        if error is not None:
            self.note(error)
            return
        assert receipt is not None
        self.acknowledged.append(sequence)
        now = time.monotonic()
        if now - self._latest >= GAP_S_MIN:
            self.gaps_s.append(now - self._latest)
        self._latest = now

    def note(self, error: BaseException) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1


def publish(told: Spec, harness: Harness) -> None:
    """Role: sends numbered messages until told to stop; what was not acknowledged is never sent again."""
    import stentor

    number, padding = told.extra["number"], bytes(told.size - 16)
    client, ledger, sequence = connect(told), Ledger(), 0
    producer = client.producer(told.topic)
    harness.say("ready")
    stop = deque[dict[str, Any]]()
    harness.on_command(stop.append)
    while not stop:
        value = SEQUENCE.pack(number) + SEQUENCE.pack(sequence) + padding
        try:
            producer.send(value, b"%d" % number, on_delivery=partial(ledger.on_delivery, sequence))
        except stentor.StentorError as error:
            ledger.note(error)
            producer = client.producer(told.topic)
        sequence += 1
    try:
        producer.flush(FINISH_S_MAX / 2)
    except stentor.StentorError as error:
        ledger.note(error)
    np.array(ledger.acknowledged, dtype="<u8").tofile(told.extra["path"])
    errors = [f"{count} × {name}" for name, count in ledger.errors.items()]
    harness.say("done", sent=sequence, gaps_s=ledger.gaps_s, errors=errors)


def follow(told: Spec, harness: Harness) -> None:
    """Role: the live subscriber; told the total, it waits for that many and writes what it saw."""
    import stentor

    subscription = connect(told).subscribe(told.topic, start="earliest")
    harness.say("ready")
    told_totals = deque[dict[str, Any]]()
    harness.on_command(told_totals.append)
    seen: list[bytes] = []
    deadline = float("inf")
    while not (told_totals and len(seen) >= told_totals[0]["total"]) and time.monotonic() < deadline:
        try:
            seen.append(subscription.get(timeout=0.5).value[:16])
        except stentor.DeadlineExceeded:
            # Quiet for a while after the total is known: what is missing now will not come.
            if told_totals and deadline == float("inf"):
                deadline = time.monotonic() + FINISH_S_MAX / 4
    Path(told.extra["path"]).write_bytes(b"".join(seen))
    harness.say("done")


def show(rounds: list[Round], outcomes: list[Outcome], out: Console) -> None:
    restarts = sorted(one.restart_s for one in rounds)
    out.print(
        f"{len(rounds)} kills; restart to ready: median {restarts[len(restarts) // 2]:.2f} s, "
        f"worst {restarts[-1]:.2f} s"
    )
    table = Table(title="After kill -9")
    names = (
        "producer",
        "sent",
        "acked",
        "in log",
        "lost",
        "doubled",
        "reordered",
        "missed live",
        "gap s p50 / worst",
        "errors",
    )
    for name in names:
        table.add_column(name, justify="left" if name == "errors" else "right")
    for one in outcomes:
        figures = (
            one.producer,
            one.sent,
            one.acknowledged,
            one.in_log,
            one.lost,
            one.doubled,
            one.reordered,
            one.missed,
        )
        cells = [f"{figure:,}" for figure in figures]
        style = "red" if one.violations else "green"
        table.add_row(
            *cells,
            f"{median(one.gaps_s or [0.0]):.2f} / {max(one.gaps_s, default=0.0):.2f}",
            ", ".join(one.errors),
            style=style,
        )
    out.print(table)


if __name__ == "__main__":
    sys.exit(main())
