"""Tables, JSON and a standard output that is live and binary-safe."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FLUSH_INTERVAL_S: Final = 0.05
"""How long a message may sit in the output buffer: too short for a person to notice, long enough for speed."""

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
    """Standard output for messages: buffered for speed, yet never more than a moment old.

    A subscription may fall silent after any message, so a thread flushes what was written. The buffer
    has its own lock; nothing else is shared.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._stream = sys.stdout.buffer
        self._dirty = threading.Event()
        self._ended = threading.Event()
        self._flusher = threading.Thread(target=self._flush_often, name="stentor-output", daemon=True)

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self._dirty.set()

    def _flush_often(self) -> None:
        while not self._ended.is_set():
            self._dirty.wait()
            self._dirty.clear()
            # A closed pipe is reported to whoever writes next, not to this thread.
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()
            self._ended.wait(FLUSH_INTERVAL_S)

    def __enter__(self) -> Self:
        self._flusher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._dirty.set()
        self._flusher.join()
        self._stream.flush()
