"""A table: the latest version of every key, derived from a topic's log; on it the head decides conditional changes.

A row of a table's log sets a key, or deletes it when it has no value. The offset of the row is the key's *version*. A
batch of rows may come with conditions: some keys must be at a version, or absent. The head looks at the applied view,
so that two conditional changes in flight are decided one after the other. All rows of a batch take effect, or none: a
batch whose conditions do not hold is written too, with a mark, as an outcome without effect. So its sequence leaves no
gap, a resend gets the same answer after a failover, and whoever reads the log decides nothing (C20).

Values are not kept here: they are in the log. A table has no snapshot; it is derived from the log's first batch on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from stentor.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.core.records import Batch

ABSENT: Final = -1
"""As a version: the key is not there."""


class KeyChange(NamedTuple):
    """What one row does to a key."""

    key: bytes
    deletes: bool
    condition: int | None = None  # the version at which the key must be


class TableState:
    """The keys of one partition of a table: a `core.derived.DerivedState`."""

    name: Final = "table"
    wants_bodies: Final = True
    undoes: Final = True
    vital: Final = True

    def __init__(self, changes: Callable[[Batch, bytes | memoryview], Iterable[KeyChange]]) -> None:
        self._changes = changes
        self._committed: dict[bytes, int] = {}
        # What is not committed. A mark is the offset of a row that sets its key, or ~offset of one that deletes it.
        self._pending: deque[tuple[int, list[tuple[bytes, int]]]] = deque()  # end offset of a batch; keys and marks
        self._applied: dict[bytes, int] = {}  # the newest mark of each key among those

    # --- deciding -------------------------------------------------------------------------------

    def version(self, key: bytes) -> int:
        """Of the applied view."""
        mark = self._applied.get(key)
        return self._committed.get(key, ABSENT) if mark is None else max(mark, ABSENT)

    def committed_version(self, key: bytes) -> int:
        return self._committed.get(key, ABSENT)

    def allows(self, batch: Batch, body: bytes | memoryview) -> bool:
        """Whether all conditions of a batch hold; each row sees those before it."""
        seen: dict[bytes, int] = {}
        for change in self._changes(batch, body):
            if change.condition is not None:
                version = seen.get(change.key)
                if change.condition != (self.version(change.key) if version is None else version):
                    return False
            seen[change.key] = ABSENT if change.deletes else batch.base_offset  # no condition names a version to come
        return True

    # --- derived from the log -------------------------------------------------------------------

    def apply(self, batch: Batch, body: bytes | memoryview) -> None:
        """A batch is in the log now."""
        if batch.refused:
            return
        offset, made = batch.base_offset, []
        for change in self._changes(batch, body):
            mark = ~offset if change.deletes else offset
            made.append((change.key, mark))
            self._applied[change.key] = mark
            offset += 1
        self._pending.append((batch.end_offset, made))

    def commit(self, end: int) -> None:
        """Everything below this offset is committed."""
        pending, committed, applied = self._pending, self._committed, self._applied
        while pending and pending[0][0] <= end:
            for key, mark in pending.popleft()[1]:
                if mark < 0:
                    committed.pop(key, None)
                else:
                    committed[key] = mark
                if applied.get(key) == mark:
                    del applied[key]

    def cut(self, end: int) -> None:
        """The log ends here now."""
        while self._pending and self._pending[-1][0] > end:
            self._pending.pop()
        self._applied = {key: mark for _, made in self._pending for key, mark in made}

    def snapshot(self) -> bytes | None:
        """None: the log is its own snapshot."""
        return None

    def restore(self, snapshot: bytes | None) -> None:
        """The empty table."""
        if snapshot is not None:
            raise CorruptData("A snapshot of a table was found; this version keeps none.")
        self._committed, self._applied = {}, {}
        self._pending.clear()

    def statistics(self) -> dict[str, int]:
        return {"keys": len(self._committed)}

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        newest = {key: mark for _, made in self._pending for key, mark in made}
        assert self._applied == newest
