"""Tables, JSON and a standard output that is live and binary-safe."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FLUSH_INTERVAL_S: Final = 0.05
"""How long a message may sit in the output buffer: too short for a person to notice, long enough for speed."""

BUFFER_BYTES: Final = 256 * 1024

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

    A subscription may fall silent after any message, so a thread flushes what was written. The buffer has its own
    lock; the only other thing shared is one flag. The buffer is large because every write to a pipe lets go of the
    interpreter, and getting it back from the client's thread costs far more than the write.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        stream = sys.stdout.buffer
        # With PYTHONUNBUFFERED the stream is the raw file itself; in tests it is neither.
        raw = stream if isinstance(stream, io.RawIOBase) else getattr(stream, "raw", None)
        self._own = None if raw is None else io.BufferedWriter(raw, BUFFER_BYTES)
        self._stream = self._own or stream
        self._written = False
        self._ended = threading.Event()
        self._flusher = threading.Thread(target=self._flush_often, name="stentor-output", daemon=True)

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self._written = True

    def _flush_often(self) -> None:
        while not self._ended.wait(FLUSH_INTERVAL_S):
            if self._written:
                self._written = False
                # A closed pipe is reported to whoever writes next, not to this thread.
                with contextlib.suppress(OSError, ValueError):
                    self._stream.flush()

    def __enter__(self) -> Self:
        self._flusher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._flusher.join()
        try:
            self._stream.flush()
        finally:
            if self._own is not None:
                self._own.detach()  # or it would close standard output when it goes
