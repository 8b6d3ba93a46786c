"""Two commits beside each other: ``make compare OLD=<commit>``.

The same fixed work runs on the old commit, on the working tree, and on the old commit again, in random order, round
after round. What decides is the CPU time of all processes per message, user and system: rates and latencies of one and
the same commit differ from themselves by a fifth and more on a shared machine, CPU time far less. The second run of the
old commit shows how much: a ratio of new to old means nothing where old to old is as far from 1.

Every round is printed. The programs that do the work are those of this tree; only the `stentor` package under them
changes. So they use the public API as both commits have it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.programs import console, run, spec, work_directory
from bench.systems.stentor import start_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.model import Spec
    from bench.role import Harness

ROOT = Path(__file__).resolve().parents[1]
MARGIN = 1.03
WAIT_S = 120.0
BATCH = 1_000
VALUE_BYTES = 100
#: The ways a round is run in; `again` is the old commit once more.
SIDES = ("old", "new", "again")


@dataclass(frozen=True, slots=True)
class Work:
    """A fixed amount of work, and the roles that do it; the first one begins."""

    roles: tuple[str, ...]
    messages: int
    partitions: int = 1
    copies: int = 1
    """How many processes of each role after the first."""


WORKS: dict[str, Work] = {
    "throughput, 1 partition": Work(("publish_many", "follow"), 1_500_000),
    "throughput, 8 partitions": Work(("publish_many", "follow"), 1_500_000, partitions=8),
    "one publish at a time": Work(("publish_one",), 5_000),
    "one get of a table": Work(("table_gets",), 5_000_000),
    "changes of a table": Work(("table_puts", "table_copy"), 150_000),
    "jobs of a queue": Work(("queue_jobs",), 100_000),
    "messages of a group": Work(("publish_many", "group_member"), 1_000_000, partitions=4),
    "fan-out": Work(("publish_one", "follow"), 3_000, copies=10),
}


# --- roles ------------------------------------------------------------------------------------------


def connected(chosen: Spec) -> Any:
    """Return a client with the topic in place, warmed up."""
    import stentor
    from stentor.wire import bodies

    bodies.arrow()  # clients load it after half a million messages; what is compared is the speed that lasts
    client = stentor.connect(chosen.address, timeout=WAIT_S)
    client.create_topic("compared", partitions=chosen.partitions, exist_ok=True)
    client.create_topic("rows", kind="table", exist_ok=True)
    return client


def counted(harness: Harness, work: Callable[[], object]) -> None:
    """Do the work when everybody is ready, and report the CPU time that it took in this process."""
    harness.say("ready")
    harness.wait()
    began, before = time.perf_counter(), time.process_time()
    work()
    harness.say("done", cpu_s=time.process_time() - before, seconds=time.perf_counter() - began)


def publish_many(chosen: Spec, harness: Harness) -> None:
    """Role: publishes batches at full speed."""
    client = connected(chosen)
    producer = client.producer("compared", batch_messages=BATCH)
    keys = [b"%08d" % number for number in range(BATCH)]
    values = [random.randbytes(VALUE_BYTES) for _ in range(BATCH)]

    def work() -> None:
        for _ in range(chosen.extra["messages"] // BATCH):
            producer.send_many(values, keys)
        producer.flush(WAIT_S)

    counted(harness, work)


def publish_one(chosen: Spec, harness: Harness) -> None:
    """Role: publishes one message at a time, and waits for each."""
    client = connected(chosen)
    client.publish("compared", b"")

    def work() -> None:
        for _ in range(chosen.extra["messages"]):
            client.publish("compared", b"v" * VALUE_BYTES)

    counted(harness, work)


def follow(chosen: Spec, harness: Harness) -> None:
    """Role: reads key and value of every message."""
    client = connected(chosen)
    subscription = client.subscribe("compared", start="latest")

    def work() -> None:
        left = chosen.extra["messages"]
        for message in subscription:
            assert message.value is not None
            assert message.key != b""
            left -= 1
            if not left:
                return

    counted(harness, work)


def group_member(chosen: Spec, harness: Harness) -> None:
    """Role: takes every message as the only member of a group, and commits as it goes."""
    client = connected(chosen)
    group = client.group("members", "compared", start="earliest")

    def work() -> None:
        left = chosen.extra["messages"]
        for message in group:
            assert message.value is not None
            left -= 1
            if not left:
                break
        group.commit()

    counted(harness, work)


def table_gets(chosen: Spec, harness: Harness) -> None:
    """Role: reads keys of a table's copy, one at a time."""
    table = connected(chosen).table("rows")
    table.put_many({f"app/{number}": b"v" * VALUE_BYTES for number in range(1_000)})
    table.sync()

    def work() -> None:
        for number in range(chosen.extra["messages"]):
            assert table.get(f"app/{number % 1_000}")

    counted(harness, work)


def table_puts(chosen: Spec, harness: Harness) -> None:
    """Role: changes keys of a table, many at a time."""
    table = connected(chosen).table("rows")

    def work() -> None:
        for start in range(0, chosen.extra["messages"], BATCH):
            table.put_many({f"app/{number}": b"v" * VALUE_BYTES for number in range(start, start + BATCH)})
        table.put("last", "1")

    counted(harness, work)


def table_copy(chosen: Spec, harness: Harness) -> None:
    """Role: follows a table until its last key is there."""
    table = connected(chosen).table("rows")

    def work() -> None:
        for change in table.watch():
            if change.key == "last":
                return

    counted(harness, work)


def queue_jobs(chosen: Spec, harness: Harness) -> None:
    """Role: puts jobs, then takes and acknowledges them one by one."""
    jobs = chosen.extra["messages"]
    with connected(chosen) as client, client.queue("jobs") as queue:

        def work() -> None:
            queue.put_many([b"v" * VALUE_BYTES] * jobs, timeout=WAIT_S)
            for _ in range(jobs):
                queue.ack(queue.get(timeout=WAIT_S), wait=False)
            while queue.statistics()["held"]:
                time.sleep(0.0005)

        counted(harness, work)


# --- one run ----------------------------------------------------------------------------------------


@contextmanager
def package_of(tree: Path) -> Iterator[None]:
    """Let child processes import `stentor` from this tree."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tree / "src")
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def one_run(tree: Path, work: Work) -> tuple[float, float]:
    """Return CPU and elapsed time per message in µs, of the work on one tree, broker and clients together."""
    with package_of(tree), run() as (directory, processes):
        server = start_broker(directory / "stentor", processes)
        chosen = replace(spec(server.address, VALUE_BYTES, messages=work.messages), partitions=work.partitions)
        roles = [processes.role(f"bench.versions:{name}", chosen) for name in work.roles[1:] * work.copies]
        for role in roles:
            role.expect("ready", WAIT_S)
        roles.append(processes.role(f"bench.versions:{work.roles[0]}", chosen))
        roles[-1].expect("ready", WAIT_S)
        before = server.cpu_s()
        for role in roles:
            role.tell(command="go")
        done = [role.expect("done", WAIT_S) for role in roles]
        spent = server.cpu_s() - before + sum(one["cpu_s"] for one in done)
    return 1e6 * spent / work.messages, 1e6 * max(one["seconds"] for one in done) / work.messages


def old_tree(commit: str) -> Path:
    """Return a checkout of the commit, made if it is not there yet."""
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", commit], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode:
        sys.exit(f"{commit} is no commit of this repository.")
    tree = work_directory() / f"tree-{found.stdout.strip()}"
    if not tree.exists():
        tree.mkdir(parents=True)
        packed = subprocess.Popen(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=packed.stdout, check=True)
        packed.wait()
    return tree


# --- all runs ---------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.versions", description=__doc__)
    parser.add_argument("old", help="the commit to compare this tree with")
    parser.add_argument("--pairs", type=int, default=20, help="rounds of old, new and old again (20)")
    parser.add_argument("--only", action="append", choices=list(WORKS), help="this work; repeatable")
    parser.add_argument("--seed", type=int, default=7, help="of the order inside each round")
    chosen = parser.parse_args()
    tree = old_tree(chosen.old)
    trees = {"old": tree, "again": tree, "new": ROOT}
    names = chosen.only or list(WORKS)
    cpu: dict[str, dict[str, list[float]]] = {name: {side: [] for side in SIDES} for name in names}
    elapsed: dict[str, dict[str, list[float]]] = {name: {side: [] for side in SIDES} for name in names}
    order = random.Random(chosen.seed)
    for turn in range(chosen.pairs):
        for name in names:
            for side in order.sample(SIDES, len(SIDES)):
                spent, waited = one_run(trees[side], WORKS[name])
                cpu[name][side].append(spent)
                elapsed[name][side].append(waited)
            line = ", ".join(f"{side} {cpu[name][side][-1]:.3f}" for side in SIDES)
            print(f"{turn + 1:3} {name}: CPU µs a message: {line}", flush=True)
    return shown(cpu, elapsed)


def shown(cpu: dict[str, dict[str, list[float]]], elapsed: dict[str, dict[str, list[float]]]) -> int:
    """Print medians and ratios; return 1 if a work costs more CPU than the margin allows, else 0."""
    table = Table("work", "old", "new", "new ÷ old", "old ÷ old", "elapsed new ÷ old", "elapsed old ÷ old", "")
    missed = 0
    for name, sides in cpu.items():
        ratio, noise = ratio_of(sides["new"], sides["old"], sides["again"]), ratio_of(sides["again"], sides["old"])
        worse = ratio > MARGIN
        missed += worse
        table.add_row(
            name,
            f"{median(sides['old']):.3f}",
            f"{median(sides['new']):.3f}",
            f"{ratio:.3f}",
            f"{noise:.3f}",
            f"{ratio_of(elapsed[name]['new'], elapsed[name]['old']):.2f}",
            f"{ratio_of(elapsed[name]['again'], elapsed[name]['old']):.2f}",
            f"more than {MARGIN}" if worse else "",
        )
    console().print(table)
    return 1 if missed else 0


def ratio_of(these: list[float], *those: list[float]) -> float:
    """Return the median, over the rounds, of this side's figure divided by the mean of the others'."""
    return median(this * len(those) / sum(others) for this, *others in zip(these, *those, strict=True))


if __name__ == "__main__":
    sys.exit(main())
