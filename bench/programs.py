"""What the three programs about one broker (memory, recovery, crash) share."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bench.model import Spec
from bench.processes import Processes, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
RESULTS = HERE / "results"
BATCH = 1000
WIDE = 140


def work_directory() -> Path:
    """On the disk under test, never in memory."""
    return Path(os.environ.get("STENTOR_BENCH_DIR") or HERE / ".work")


@contextmanager
def run() -> Iterator[tuple[Path, Processes]]:
    """A directory and the processes of one program; SIGTERM ends it as cleanly as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with scratch(work_directory()) as directory, Processes(directory) as processes:
        yield directory, processes


def spec(address: str, size: int, durability: str = "fsync", **extra: Any) -> Spec:
    """What the roles of these programs are told; all of them speak to Stentor."""
    return Spec(
        system="stentor",
        mode="send_many",
        variant="tuned",
        durability=durability,
        address=address,
        size=size,
        batch=BATCH,
        chunk=BATCH,
        unit=BATCH,
        partitions=1,
        seconds=0.0,
        seed=7,
        extra=extra,
    )


def console() -> Console:
    """The terminal, or a page wide enough for the tables."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)
