"""Start-up times: ``python -m bench.recovery --gigabytes 10``.

Fills a log, kills the broker with SIGKILL in the middle of writing, and times the restart: to the ready
line, and to the first message read from the end and from the start of the log. Beside it: an empty start,
and ``stentor --help``. The log is in the page cache, as it is after a crash of the process; after a crash
of the machine reads come from disk.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.measure import disk_bytes
from bench.messages import Pool
from bench.model import BenchError
from bench.processes import START_S_MAX, Processes, Server, environment_with_root
from bench.programs import console, run, spec
from bench.systems.stentor import ManyPublisher, start_broker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

    from bench.model import Spec
    from bench.role import Harness

SIZE = 1000
FILL_S_MAX = 600.0
HELP_RUNS = 5
HELP_S_TARGET = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--topic-durability", dest="durability", choices=("fsync", "os"), default="os")
    chosen = parser.parse_args()
    with run() as (directory, processes):
        times = {"stentor --help (best of 5)": help_time(), **empty_start(directory, processes)}
        log_bytes = fill_and_kill(directory, processes, chosen.gigabytes, chosen.durability)
        times |= restart(directory, processes)
    show(times, log_bytes, console())
    return 0


def clocked(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.monotonic()
    result = action()
    return time.monotonic() - start, result


def help_time() -> float:
    command = [sys.executable, "-m", "stentor", "--help"]
    environment = environment_with_root()
    return min(
        clocked(lambda: subprocess.run(command, check=True, capture_output=True, env=environment, timeout=60))[0]
        for _ in range(HELP_RUNS)
    )


def empty_start(directory: Path, processes: Processes) -> dict[str, float]:
    elapsed_s, server = clocked(lambda: start_broker(directory / "empty", processes))
    kill(server)
    return {"start, empty": elapsed_s}


def kill(server: Server) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait(START_S_MAX)


def fill_and_kill(directory: Path, processes: Processes, gigabytes: float, durability: str) -> int:
    """Writes the log; the kill comes while the producer is still sending."""
    server = start_broker(directory / "filled", processes)
    writer = processes.role("bench.recovery:fill", spec(server.address, SIZE, durability, gigabytes=gigabytes))
    writer.expect("filled", START_S_MAX + FILL_S_MAX)
    kill(server)
    writer.process.kill()
    return disk_bytes(directory / "filled")


def fill(told: Spec, harness: Harness) -> None:
    """Role: writes what is asked, says so, and goes on writing until it is killed."""
    pool = Pool(told.size, told.unit, told.seed)
    publisher = ManyPublisher(told)
    written = 0
    said = False
    for keys, values in pool.units(told.unit):
        publisher.send(keys, values)
        written += sum(map(len, values))
        if not said and written >= told.extra["gigabytes"] * 1e9:
            publisher.flush()
            harness.say("filled")
            said = True


def restart(directory: Path, processes: Processes) -> dict[str, float]:
    import stentor

    ready_s, server = clocked(lambda: start_broker(directory / "filled", processes))
    connect_s, client = clocked(lambda: stentor.connect(server.address, timeout=START_S_MAX))
    last_s, _ = clocked(lambda: first(client.read("bench", start=stentor.Last(1))))
    first_s, _ = clocked(lambda: first(client.read("bench", start="earliest", limit=1)))
    client.close()
    return {
        "restart after kill -9, to the ready line": ready_s,
        "connect": connect_s,
        "read the last message": last_s,
        "read the first message": first_s,
        "restart to the first message read": ready_s + connect_s + last_s,
    }


def first(history: Any) -> Any:
    for message in history:
        return message
    raise BenchError("the log is empty after the restart")


def show(times: dict[str, float], log_bytes: int, out: Console) -> None:
    table = Table(title=f"Start-up with a log of {log_bytes / 1e9:.1f} GB")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    for what, elapsed_s in times.items():
        late = what.startswith("stentor --help") and elapsed_s > HELP_S_TARGET
        table.add_row(what, f"{elapsed_s:.3f}", style="red" if late else None)
    out.print(table)


if __name__ == "__main__":
    sys.exit(main())
