"""A table of ten million keys: what it costs the broker and a client.

The broker's memory is its resident memory less that of the same broker before the table was made, at its worst: while
the table is loaded, and from the start of a second broker process on the same data until after it is ready. The client
clones the table; its peak is compared with what the finished copy takes, so that a clone that held everything twice
would show.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from bench.measure import resident_bytes
from bench.patterns import data
from bench.patterns.clone import CLONE_S_MAX, LOAD_S_MAX, LOOKED_AT, clone_stentor, peak_bytes, resident, verify
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.processes import START_S_MAX
from bench.programs import run
from bench.systems.stentor import start_broker

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.role import Harness

SAMPLE_S = 0.1
RESTART_S_MAX = 1200.0


class Peak:
    """The largest resident memory of a process, looked at ten times a second."""

    def __init__(self, pid: Callable[[], int | None]) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.bytes = 0

    def _look(self) -> None:
        while not self._done.wait(SAMPLE_S):
            pid = self._pid()
            if pid is not None:
                self.bytes = max(self.bytes, resident_bytes(pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    keys = plan.large_keys
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        first = broker.process
        assert first is not None
        idle = resident_bytes(first.pid)
        with Peak(lambda: first.pid) as loading:
            role = processes.role("bench.patterns.clone:load", told("stentor", broker.address, keys=keys))
            seconds = role.expect("loaded", LOAD_S_MAX)["seconds"]
        say(f"large: {keys:,} keys loaded in {seconds:.0f} s, {loading.bytes / 1e6:,.0f} MB at most")
        add(rows, "large", "stentor", "B", broker_memory_while_loading=loading.bytes - idle, idle_broker=idle)
        add(rows, "large", "stentor", "s", time_to_load=seconds)
        role.process.kill()
        first.send_signal(signal.SIGTERM)
        first.wait(RESTART_S_MAX)
        began, known = time.monotonic(), len(processes.pids)
        with Peak(lambda: processes.pids[-1] if len(processes.pids) > known else None) as restarting:
            again = start_broker(directory / "stentor", processes, within_s=RESTART_S_MAX)
            seconds = time.monotonic() - began
            time.sleep(2 * SAMPLE_S)
        say(f"large: ready again after {seconds:.0f} s, {restarting.bytes / 1e6:,.0f} MB at most")
        add(rows, "large", "stentor", "B", broker_memory_after_a_restart=restarting.bytes - idle)
        add(rows, "large", "stentor", "s", time_to_restart=seconds)
        role = processes.role("bench.patterns.large:clone", told("stentor", again.address, keys=keys))
        role.expect("ready", START_S_MAX)
        role.tell(go=True)
        found = role.expect("cloned", CLONE_S_MAX)
        add(rows, "large", "stentor", "s", time_to_clone=found["seconds"])
        add(rows, "large", "stentor", "B", client_memory_per_key=found["bytes_per_key"])
        add(rows, "large", "stentor", "times", client_peak_of_its_final_size=found["peak_ratio"])
    return rows


def clone(spec: Spec, harness: Harness) -> None:
    """Role: clones the table, and says how much memory it ever had."""
    keys = spec.extra["keys"]
    wanted = {data.key_of(number): data.value_of(number) for number in data.sample(keys, LOOKED_AT, 1)}
    before = resident()
    harness.say("ready")
    harness.wait()
    began = time.monotonic()
    copy = clone_stentor(spec)
    verify(copy, keys, wanted)
    seconds = time.monotonic() - began
    final, peak = resident() - before, peak_bytes() - before
    harness.say("cloned", seconds=seconds, bytes_per_key=final / keys, peak_ratio=peak / final)
