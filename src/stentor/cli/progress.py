"""A progress bar on standard error, for people who wait: nothing in a pipe, nothing for what is quick."""

from __future__ import annotations

import sys
import time
from typing import Any, Final, Self

PATIENCE_S: Final = 0.5
"""What is done sooner needs no bar."""


class InputProgress:
    """How far a long input is."""

    def __init__(self, bytes_total: int | None, unit: str = "messages") -> None:
        self._total = bytes_total
        self._unit = unit
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        # A person who types the input needs no bar below it.
        self._wanted = sys.stderr.isatty() and not (bytes_total is None and sys.stdin.isatty())

    def show(self, count: int, size: int) -> None:
        """Tell how much is done."""
        if not self._wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._started < PATIENCE_S:
                return
            self._begin()
        self._bar.update(self._task, completed=size, count=f"{count:,} {self._unit}")

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import (
            Progress as Bar,
        )

        columns = (
            TextColumn("{task.fields[count]}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task("input", total=self._total, count="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
