"""The standard streams of a process: there from the start, and no trouble at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_INPUT, _OUTPUT, _ERROR = range(3)


def open_missing() -> None:
    """Whoever started us may have closed some of them (`>&-`); nothing comes from those, and nothing is kept.

    They must be there: the next file or socket would get the number, and be taken for standard output.
    """
    for number in (_INPUT, _OUTPUT, _ERROR):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere == number:
                os.set_inheritable(nowhere, True)
            else:
                os.dup2(nowhere, number)
                os.close(nowhere)
    sys.stdin = sys.stdin or os.fdopen(_INPUT, "r", encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(_OUTPUT, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_ERROR, "w", encoding="utf-8", closefd=False)


def drop_unwritten() -> None:
    """Output that cannot be written was reported; the interpreter must not try, and complain, once more at its exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def writing_output() -> Iterator[None]:
    """A write to standard output that fails says what it was that could not be written."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise
