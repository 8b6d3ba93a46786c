"""A table: the latest version of every key, derived from a topic's log; on it the head decides conditional changes.

A row of a table's log sets a key, or deletes it when it has no value. The offset of the row is the key's *version*. A
batch of rows may come with conditions: some keys must be at a version, or absent. The head looks at the applied view,
so that two conditional changes in flight are decided one after the other. All rows of a batch take effect, or none: a
batch whose conditions do not hold is written too, with a mark, as an outcome without effect. So its sequence leaves no
gap, a resend gets the same answer after a failover, and whoever reads the log decides nothing (C20).

A row may come with a *lease*: its key goes by itself after some time, unless it is touched or put again, and may belong
to a client's session. What the log says of leases is here; time is `core.expiry`'s.

Values are not kept here: they are in the log. A table has no snapshot; it is derived from the log's first batch on.
"""

from __future__ import annotations

from collections import deque
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from stentor import limits
from stentor.core.holders import NOBODY
from stentor.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.core.records import Batch

TTL_S_MAX: Final = 3_660 * 86_400
"""How long a key may stay without being touched: ten years; what should stay longer needs no ttl."""

GRACE_S: Final = 10.0
"""How long an ephemeral key outlives its owner, unless the owner says otherwise."""

GRACE_S_MIN: Final = 1.0
"""The shortest grace: a client that must find a new head needs about as long."""

SESSION_BYTES: Final = 16
"""A session is a random number that nobody else draws."""

ABSENT: Final = -1
"""As a version: the key is not there."""

_TO_COME: Final = -2
"""As a version: of a row whose batch has no offset yet. No condition can name it."""


Owner = tuple[bytes, bytes]
"""A session, and the hash of its client's secret: both, so that an id which others read in a log opens nothing."""


class KeyChange(NamedTuple):
    """What one row does to a key."""

    key: bytes
    deletes: bool
    condition: int | None = None  # the version at which the key must be
    ttl_us: int = 0  # how long it stays without being touched; 0: for ever
    session: bytes = b""  # the client's session that it belongs to, if it does
    holder: bytes = NOBODY  # whose that is: nobody else keeps it alive (C36)


class KeyLease(NamedTuple):
    """How long a key stays without being touched. Most keys have none."""

    version: int  # of the row that said so
    ttl_us: int
    session: bytes  # empty: it belongs to nobody
    holder: bytes = NOBODY

    @property
    def owner(self) -> Owner:
        """Who keeps it alive."""
        return self.session, self.holder


class TableState:
    """The keys of one partition of a table: a `core.derived.DerivedState`."""

    name: Final = "table"
    wants_bodies: Final = True
    undoes: Final = True
    vital: Final = True
    came_later: Final = False

    def __init__(
        self,
        changes: Callable[[Batch, bytes | memoryview], Iterable[KeyChange]],
        offsets: Callable[[Batch, bytes | memoryview], Iterable[int]] = lambda batch, _: count(batch.base_offset),
    ) -> None:
        self._changes = changes
        self._offsets = offsets  # of the rows of a batch: one that was compacted has fewer than it covers
        self._committed: dict[bytes, int] = {}
        # What is not committed. A mark is the offset of a row that sets its key, or ~offset of one that deletes it.
        self._pending: deque[tuple[int, list[tuple[bytes, int]]]] = deque()  # end offset of a batch; keys and marks
        self._applied: dict[bytes, int] = {}  # the newest mark of each key among those
        self.leases: dict[bytes, KeyLease] = {}  # of the committed view
        self._coming: dict[int, KeyLease] = {}  # by version: of rows that are not committed
        self._end = 0  # below this offset, everything is committed
        self.news: dict[bytes, None] | None = None  # keys whose lease changed, in order, if somebody counts their time

    # --- deciding -------------------------------------------------------------------------------

    def version(self, key: bytes) -> int:
        """Of the applied view."""
        mark = self._applied.get(key)
        return self._committed.get(key, ABSENT) if mark is None else max(mark, ABSENT)

    def committed_version(self, key: bytes) -> int:
        return self._committed.get(key, ABSENT)

    def lease(self, key: bytes) -> KeyLease | None:
        """Of the applied view."""
        mark = self._applied.get(key)
        return self.leases.get(key) if mark is None else self._coming.get(mark)

    def allows(self, batch: Batch, body: bytes | memoryview) -> bool:
        """Whether all conditions of a batch hold; each row sees those before it."""
        seen: dict[bytes, int] = {}
        for change in self._changes(batch, body):
            if change.condition is not None:
                version = seen.get(change.key)
                if change.condition != (self.version(change.key) if version is None else version):
                    return False
            seen[change.key] = ABSENT if change.deletes else _TO_COME
        return True

    # --- derived from the log -------------------------------------------------------------------

    def apply(self, batch: Batch, body: bytes | memoryview) -> None:
        """A batch is in the log now."""
        if batch.passed_over:
            return
        made = []
        for offset, change in zip(self._offsets(batch, body), self._changes(batch, body), strict=False):
            mark = ~offset if change.deletes else offset
            made.append((change.key, mark))
            self._applied[change.key] = mark
            if change.ttl_us and not change.deletes:
                self._coming[offset] = KeyLease(offset, change.ttl_us, change.session, change.holder)
        self._pending.append((batch.end_offset, made))
        self.take_over(2 * len(made))  # so what is committed and not taken over gets less, however much comes

    def commit(self, end: int) -> None:
        """Everything below this offset is committed. A sync may commit a million rows: some are taken over now, others
        later (`take_over`). Until then the applied view knows them, and times of their leases have not begun.
        """
        self._end = end
        self.take_over(limits.TABLE_COMMIT_ROWS)

    def take_over(self, rows: int = limits.TABLE_COMMIT_ROWS) -> None:
        """Put so many rows that are committed into the committed view: whole batches, one at least."""
        pending, committed, applied = self._pending, self._committed, self._applied
        leased = bool(self._coming or self.leases)
        while pending and pending[0][0] <= self._end and rows > 0:
            made = pending.popleft()[1]
            rows -= len(made)
            for key, mark in made:
                if mark < 0:
                    committed.pop(key, None)
                else:
                    committed[key] = mark
                if applied.get(key) == mark:
                    del applied[key]
                if leased:
                    self._commit_lease(key, mark)

    def _commit_lease(self, key: bytes, mark: int) -> None:
        lease = self._coming.pop(mark, None)
        before = self.leases.pop(key, None)
        if lease is not None:
            self.leases[key] = lease
        if self.news is not None and lease is not before:
            self.news[key] = None

    def cut(self, end: int) -> None:
        """The log ends here now."""
        self._end = min(self._end, end)
        while self._pending and self._pending[-1][0] > end:
            for _, mark in self._pending.pop()[1]:
                self._coming.pop(mark, None)
        self._applied = {key: mark for _, made in self._pending for key, mark in made}

    def snapshot(self) -> bytes | None:
        """None: the log is its own snapshot."""
        return None

    def restore(self, snapshot: bytes | None) -> None:
        """The empty table."""
        if snapshot is not None:
            raise CorruptData("A snapshot of a table was found; this version keeps none.")
        self._committed, self._applied, self.leases, self._coming = {}, {}, {}, {}
        self._pending.clear()
        self._end = 0

    def statistics(self) -> dict[str, int]:
        return {"keys": len(self._committed)}

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        newest = {key: mark for _, made in self._pending for key, mark in made}
        assert self._applied == newest
        assert all(before < after for (before, _), (after, _) in pairwise(self._pending))
        assert all(self._committed.get(key) == lease.version for key, lease in self.leases.items())
        assert self._coming.keys() <= {mark for _, made in self._pending for _, mark in made}
