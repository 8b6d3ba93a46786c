"""Log lines of the client on standard error, for commands that run on after something went wrong."""

from __future__ import annotations

import logging
import sys


class LogLines(logging.Handler):
    """Prints warnings and errors as sentences of this command, with their tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one; a line of progress may be there, without its end."""
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{clear}stentor: {self.format(record)}", file=sys.stderr, flush=True)


def print_warnings() -> None:
    """Print them from now on."""
    logger = logging.getLogger("stentor")
    if not any(isinstance(handler, LogLines) for handler in logger.handlers):
        logger.addHandler(LogLines(logging.WARNING))
