"""A state that records of a log are folded into, one after the other (`core.derived`).

Two views. *Applied* goes to the log's end: heads decide on it, snapshots are taken of it. *Committed* is what is told
to anybody. Between the two lie the records that a cut may take away, in the order of the log. Values of a view never
change: the views share them.

Invariant: the applied view is the committed one with the records between them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import msgspec

from stentor.errors import CorruptData, FormatTooNew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.core.records import Batch

R = TypeVar("R")
K = TypeVar("K")
V = TypeVar("V")


class _Version(msgspec.Struct, array_like=True):
    version: int


_versions = msgspec.msgpack.Decoder(_Version)  # made here, under the import lock: logs are opened in several threads


class Folded(Generic[R, K, V]):
    """What such states share; each says what a record does to a view."""

    name: ClassVar[str]
    wants_bodies: Final = True
    undoes: Final = True

    def __init__(self, read: Callable[[bytes | memoryview], Iterable[R]]) -> None:
        """`read` gives the records of a batch, by its body; nothing for one that it does not understand."""
        self._read = read
        self._committed: dict[K, V] = {}
        self._applied: dict[K, V] = {}
        self._pending: deque[tuple[int, tuple[R, ...]]] = deque()  # not committed, by the end of their batch

    @staticmethod
    def fold(view: dict[K, V], record: R) -> None:
        """A view after one more record."""
        raise NotImplementedError

    def apply(self, batch: Batch, body: bytes | memoryview) -> None:
        """A batch is in the log now."""
        records = tuple(self._read(body))
        for record in records:
            self._take(record)
        if records:
            self._pending.append((batch.end_offset, records))

    def _take(self, record: R) -> None:
        self.fold(self._applied, record)

    def allows(self, _: Batch, __: bytes | memoryview) -> bool:
        """It has no conditions: the head looks before it appends."""
        return True

    def commit(self, end: int) -> None:
        """Everything below this offset is committed."""
        while self._pending and self._pending[0][0] <= end:
            for record in self._pending.popleft()[1]:
                self.fold(self._committed, record)

    def cut(self, end: int) -> None:
        """The log ends here now: what was not committed is undone."""
        while self._pending and self._pending[-1][0] > end:
            self._pending.pop()
        self._applied = self._folded()

    def _begin_with(self, view: dict[K, V]) -> None:
        """A snapshot's view; all of it is committed."""
        self._committed, self._applied = view, dict(view)
        self._pending.clear()

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        ends = [end for end, _ in self._pending]
        assert ends == sorted(ends)
        assert self._applied == self._folded()

    def _folded(self) -> dict[K, V]:
        view = dict(self._committed)
        for _, records in self._pending:
            for record in records:
                self.fold(view, record)
        return view


def read_snapshot(snapshot: bytes, decoder: msgspec.msgpack.Decoder[Any], known: int, what: str) -> Any:
    """A snapshot that begins with its version; CorruptData or FormatTooNew if this version cannot read it."""
    try:
        version = _versions.decode(snapshot).version
        found = decoder.decode(snapshot) if version <= known else None
    except msgspec.MsgspecError as error:
        raise CorruptData(f"A snapshot of {what} cannot be read: {error}.") from error
    if found is None:
        raise FormatTooNew(
            f"A snapshot of {what} has version {version}; this broker knows versions up to {known}.",
            hint="Start the newer Stentor that wrote it.",
        )
    return found
