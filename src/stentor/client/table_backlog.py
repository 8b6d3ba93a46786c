"""What waits for somebody who watches a table, and what was before it in the log.

    the log below the copy's sequence ──Past──► changes from `start` on, read as they are taken
    the copy, as it follows           ──Backlog──► changes since the watch began, kept until they are taken

A backlog is bounded. Up to its limit it keeps every change. Beyond it, a watcher has fallen behind, and the changes of
each key become one: as the key was before the first of them, and as it is after the last, at the place of the first.
So what waits is never more than the keys that changed, no key waits for ever behind others, and whoever applies all of
it arrives at the same table. Once everything is taken, every change is kept again.

A compaction may overtake the copy itself: what it has removed nobody can tell any more. How much that was is counted
with the next change that is told, so no watcher misses changes without hearing of it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Literal

import msgspec

from stentor.client.table_changes import terms_of
from stentor.client.table_copy import TableChange, TableEntry, TableSequence, entry_of
from stentor.errors import InvalidArgument, SlowSubscriber
from stentor.wire import table_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stentor.client.message import Message

OnSlowWatch = Literal["merge", "raise"]
"""What a watch does when more changes wait than its limit."""


def check_limit(limit: object) -> None:
    """How many changes may wait is a number."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidArgument(f"limit={limit!r} is no number of changes.", hint="Use a whole number above zero.")


class Backlog:
    """Changes that wait for one watcher."""

    def __init__(self, taken: TableSequence, limit: int, on_slow: OnSlowWatch) -> None:
        check_limit(limit)
        if on_slow not in ("merge", "raise"):
            raise InvalidArgument(f"on_slow={on_slow!r} is unknown.", hint="Use 'merge' or 'raise'.")
        self._limit = limit
        self._on_slow = on_slow
        self._taken = list(taken)  # for each partition the offset after the last change that was taken
        self._each: deque[TableChange] = deque()
        self._merged: OrderedDict[str, tuple[int, TableChange]] = OrderedDict()  # with the version of the first
        # Changes that a compaction took before anybody was told of them: the next one that comes says so, and the next
        # one that is taken.
        self._removed = self._removed_before = 0

    def add(self, changes: Iterable[TableChange]) -> None:
        """More of them; SlowSubscriber when that is too much for a watcher who wants it so."""
        if not self._merged:
            self._each.extend(self._counted(changes))
            if len(self._each) <= self._limit:
                return
            if self._on_slow == "raise":
                self._each.clear()
                raise SlowSubscriber(
                    f"More than {self._limit} changes of a table wait for this watcher.",
                    hint="Read the table and watch it anew; take changes faster, raise limit, or use on_slow='merge'.",
                    operation="watch",
                )
            changes, self._each = self._each, deque()
            self._removed_before += sum(change.skipped for change in changes)  # no key's own yet: those come by merging
            changes = [msgspec.structs.replace(change, skipped=0) if change.skipped else change for change in changes]
        for change in changes:
            self._merge(change)

    def overtaken(self, removed: int, why: str, *, before: bool = False) -> None:
        """A compaction removed so many changes, at most, of any keys, before they came to the copy. What comes next
        counts them, or, if they lie before all that waits, what is taken next; SlowSubscriber for a watcher who wants
        it so.
        """
        if self._on_slow == "raise":
            raise SlowSubscriber(
                why, hint="Read the table and watch it again, or use on_slow='merge'.", operation="watch"
            )
        if before or not self._each:
            self._removed_before += removed
        else:
            self._removed += removed

    def _counted(self, changes: Iterable[TableChange]) -> Iterator[TableChange]:
        for change in changes:
            removed, self._removed = self._removed, 0
            yield _with_skipped(change, removed) if removed else change

    def _merge(self, change: TableChange) -> None:
        waiting = self._merged.get(change.key)
        if waiting is None:
            self._merged[change.key] = (change.version, change)
            return
        first, before = waiting
        if before.old is None and change.new is None:
            del self._merged[change.key]  # it was not there, and is not there
            return
        skipped = before.skipped + change.skipped + 1
        both = msgspec.structs.replace(change, old=before.old, skipped=skipped)
        self._merged[change.key] = (first, both)

    def take(self) -> TableChange | None:
        """The next one, if any waits."""
        if self._each:
            change = self._each.popleft()
        elif self._merged:
            _, (_, change) = self._merged.popitem(last=False)
        else:
            return None
        return self.passed(change)

    def passed(self, change: TableChange) -> TableChange:
        """The watcher has a change: returns it, as it is told."""
        self._taken[change.partition] = max(self._taken[change.partition], change.version + 1)
        removed, self._removed_before = self._removed_before, 0
        return _with_skipped(change, removed) if removed else change

    def sequence(self, *, waiting: bool) -> TableSequence:
        """Before which everything was taken; `waiting`: what waits here is what comes next."""
        found = list(self._taken)
        seen: set[int] = set()
        for partition, first in self._firsts() if waiting else ():
            if partition not in seen:
                seen.add(partition)
                found[partition] = first
                if len(seen) == len(found):
                    break
        return tuple(found)

    def _firsts(self) -> Iterator[tuple[int, int]]:
        yield from ((change.partition, change.version) for change in self._each)
        yield from ((change.partition, first) for first, change in self._merged.values())


def _with_skipped(change: TableChange, more: int) -> TableChange:
    return msgspec.structs.replace(change, skipped=change.skipped + more)


class Past:
    """Rows of the log, from its beginning on, as the changes between two sequences."""

    def __init__(self, start: TableSequence, until: TableSequence, subtree: str) -> None:
        self._start = start
        self._subtree = subtree
        self._entries: dict[str, TableEntry] = {}
        self.until = until
        self.read = False  # some of it was
        self.missing = 0  # changes after the start, at most, that compactions removed; of some keys nobody knows `old`

    def change(self, row: Message) -> TableChange | None:
        """What a row changed, if that is wanted."""
        self.read = True
        partition, offset = row.partition, row.offset
        if offset >= self.until[partition]:
            return None  # the copy tells of it
        key = (row.key or b"").decode(errors="replace")
        if not key.startswith(self._subtree):
            return None
        old, new, terms = self._entries.pop(key, None), None, terms_of(row.headers)
        if row.value is not None:
            new = self._entries[key] = entry_of(key, row, terms)
        if offset < self._start[partition] or (old is None and new is None and not self.missing):
            return None
        expired = terms.why == table_rows.EXPIRED
        return TableChange(key, old, new, offset, partition, expired=expired, headers=row.headers or ())
