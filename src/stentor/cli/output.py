"""Tables, JSON and a standard output that is live and binary-safe."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from stentor.cli.standard import writing_output
from stentor.core.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WRITE_INTERVAL_S: Final = 0.05
"""How long a message may wait to be written: too short for a person to notice, long enough for speed."""

PIECE_BYTES: Final = 256 * 1024

_GAP: Final = "  "
_NOT_ASCII: Final = re.compile(r"[^\n -~]")


def print_json(value: Any) -> None:
    """Print a value, or a structure of the client library, as indented JSON."""
    import msgspec

    print(_NOT_ASCII.sub(_escaped, json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)))


def _escaped(found: re.Match[str]) -> str:
    """JSON escapes what a terminal would obey only below U+0020; there is more of it above."""
    letter = found[0]
    return letter if letter.isprintable() else json.dumps(letter)[1:-1]


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print aligned columns; the headings named in `right` are of numbers."""
    for line in table_lines(headings, rows, right):
        print(line)


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> list[str]:
    """The lines of a table: never wrapped or cut, so that grep and awk work on them; nothing in them moves a cursor."""
    cells = [list(headings), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        )
        lines.append(_GAP.join(padded).rstrip())
    return lines


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    pairs = [(name, printable(str(value))) for name, value in facts]
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{name.ljust(width)}{_GAP}{value}".rstrip())


class LiveOutput:
    """Standard output for messages: written in large pieces for speed, yet never more than a moment old.

    A subscription may fall silent after any message, so a thread writes out what has gathered. The pieces are large
    because every write to a pipe lets go of the interpreter, and getting it back from the client's thread costs far
    more than the write.

    The thread also finds out that nothing can be written any more: the disk is full, or nobody reads the pipe. It calls
    `on_failure`, so that whoever waits for messages that may never come is woken; the error is raised by the next
    write, or at the end.
    """

    def __init__(self, on_failure: Callable[[], None] | None = None) -> None:
        sys.stdout.flush()
        self._stream = sys.stdout.buffer
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._gathered: list[bytes] = []
        self._size = 0
        self._failure: OSError | None = None
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_often, name="stentor-output", daemon=True)

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._gathered.append(data)
            self._size += len(data)
            if self._size >= PIECE_BYTES:
                self._write_out()

    def _write_out(self) -> None:
        """Write what has gathered; the caller holds the lock."""
        rest = memoryview(b"".join(self._gathered))
        self._gathered.clear()
        self._size = 0
        with writing_output():
            while rest:  # without a buffer of Python's own, a write may take only a part
                rest = rest[self._stream.write(rest) :]
            self._stream.flush()

    def _write_often(self) -> None:
        poll = _hang_up_poll(self._stream)
        while not self._ended.wait(WRITE_INTERVAL_S):
            try:
                with self._lock:
                    self._write_out()
                if poll is not None and poll.poll(0):
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            except OSError as error:
                self._failure = error
                if self._on_failure is not None:
                    self._on_failure()
                return

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        self._writer.join()
        with contextlib.suppress(OSError) if kind is KeyboardInterrupt else contextlib.nullcontext():
            if self._failure is not None:
                raise self._failure
            with self._lock:
                self._write_out()


def _hang_up_poll(stream: Any) -> select.poll | None:
    """Reports when nobody reads the pipe any more: a subscription that is silent would not find out by writing."""
    try:
        number = stream.fileno()
    except (OSError, AttributeError):  # not a file of the system
        return None
    poll = select.poll()
    poll.register(number, 0)
    return poll
