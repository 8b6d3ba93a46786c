"""Tables, JSON and a standard output that is live and binary-safe."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WRITE_INTERVAL_S: Final = 0.05
"""How long a message may wait to be written: too short for a person to notice, long enough for speed."""

PIECE_BYTES: Final = 256 * 1024

_GAP: Final = "  "


def print_json(value: Any) -> None:
    """Print a value, or a structure of the client library, as indented JSON."""
    import msgspec

    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print aligned columns; the headings named in `right` are of numbers."""
    for line in table_lines(headings, rows, right):
        print(line)


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> list[str]:
    """The lines of a table: never wrapped or cut, so that grep and awk work on them."""
    cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
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
    pairs = [(name, str(value)) for name, value in facts]
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{name.ljust(width)}{_GAP}{value}".rstrip())


class LiveOutput:
    """Standard output for messages: written in large pieces for speed, yet never more than a moment old.

    A subscription may fall silent after any message, so a thread writes out what has gathered. The pieces are large
    because every write to a pipe lets go of the interpreter, and getting it back from the client's thread costs far
    more than the write.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._stream = sys.stdout.buffer
        self._lock = threading.Lock()
        self._gathered: list[bytes] = []
        self._size = 0
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_often, name="stentor-output", daemon=True)

    def write(self, data: bytes) -> None:
        with self._lock:
            self._gathered.append(data)
            self._size += len(data)
            if self._size >= PIECE_BYTES:
                self._write_out()

    def _write_out(self) -> None:
        """Write what has gathered; the caller holds the lock."""
        rest = memoryview(b"".join(self._gathered))
        self._gathered.clear()
        self._size = 0
        while rest:  # without a buffer of Python's own, a write may take only a part
            rest = rest[self._stream.write(rest) :]
        self._stream.flush()

    def _write_often(self) -> None:
        while not self._ended.wait(WRITE_INTERVAL_S):
            # A closed pipe is reported to whoever writes next, not to this thread.
            with self._lock, contextlib.suppress(OSError):
                self._write_out()

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._writer.join()
        with self._lock:
            self._write_out()
