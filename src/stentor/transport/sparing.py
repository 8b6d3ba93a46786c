"""Log lines that strangers can cause: so many a second, and how many more there were (S7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.core.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable


class SparingLog:
    """A logger for what strangers do. One line per event, each made safe to print, until there are too many."""

    def __init__(self, logger: logging.Logger, seconds: Callable[[], float]) -> None:
        self._logger = logger
        self._seconds = seconds
        self._began = 0.0
        self._lines = 0
        self._left_out = 0

    def info(self, message: str, *details: Any) -> None:
        self._log(logging.INFO, message % details)

    def warning(self, message: str, *details: Any) -> None:
        self._log(logging.WARNING, message % details)

    def _log(self, level: int, line: str) -> None:
        self.tick()
        self._lines += 1
        if self._lines <= limits.STRANGER_LOG_LINES_PER_S:
            self._logger.log(level, "%s", printable(line))
        else:
            self._left_out += 1

    def tick(self) -> None:
        """Called now and then: when a second is over, say what was left out of it."""
        now = self._seconds()
        if now - self._began < 1.0:
            return
        if self._left_out:
            self._logger.info("... and %d more like this", self._left_out)
        self._began, self._lines, self._left_out = now, 0, 0
