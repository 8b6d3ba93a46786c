"""What Java and Spark's workers write to standard error: errors are shown, notes and warnings of Java are not.

Java writes some lines before any setting of Spark's logs holds, and workers that are ended with a session may begin a
traceback. Both write to the descriptor that they inherit. So Java is started with a pipe in its place, and a thread
hands on what a person can use.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

STDERR: Final = 2
_NOISE: Final = (b"WARNING: ", b"NOTE: ")
"""How lines of Java itself begin; Spark's own begin with the time."""


class Filter:
    """Hands on what processes write that were started meanwhile, until it is told that they end."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._shown = os.dup(STDERR)
        self._ending = False

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Processes that are started here, and theirs, write to the filter."""
        os.dup2(self._writing, STDERR)
        os.close(self._writing)
        thread = threading.Thread(target=self._hand_on, name="stderr", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.dup2(self._shown, STDERR)

    def end(self) -> None:
        """What comes from now on is of no use: they are being ended."""
        self._ending = True

    def _hand_on(self) -> None:
        with os.fdopen(self._reading, "rb") as lines:
            for line in lines:
                if not self._ending and not line.startswith(_NOISE):
                    os.write(self._shown, line)
