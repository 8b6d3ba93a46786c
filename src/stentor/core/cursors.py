"""Named cursors: how far somebody has come in a topic, by partition; who moved it last, and when.

A cursor belongs to a topic and has a name (`recorder`). All cursors are state derived from an internal topic
(`core.derived`): a move is a message in it, and the head of that message's partition decides.

    Moved      the cursor is at these positions now; a position never goes back unless the record says so
    Forgotten  the cursor is gone, or all cursors of a topic that was deleted

Limits are judged on the applied view; the committed one is what is told to anybody (`core.folded`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec

from stentor.core.folded import Folded, read_snapshot
from stentor.core.names import RECORDER as RECORDER  # noqa: PLC0414 - used as cursors.RECORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_VERSION: Final = 1

RECOVERY: Final = "unclean recovery"
"""Who moves cursors back when a log was cut: the brokers themselves. No client can name itself so there."""


class Moved(msgspec.Struct, frozen=True, tag="moved", tag_field="type", omit_defaults=True):
    """Somebody has come this far."""

    topic_id: int
    name: str
    positions: dict[int, int]  # by partition: everything below this offset is done with
    by: str = ""  # who says so
    at_us: int = 0  # when, by the clock of the head that took it
    back: bool = False  # positions may go back: an operator's reset, or a log that was cut


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten", tag_field="type", omit_defaults=True):
    """A cursor is gone."""

    topic_id: int
    name: str = ""  # empty: all cursors of the topic, which was deleted


CursorRecord = Moved | Forgotten


class CursorsOf(msgspec.Struct, frozen=True, tag="of", tag_field="type"):
    """A question: all cursors of these topics."""

    topic_ids: list[int]


class NamedCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a cursor is."""

    positions: dict[int, int]
    moved_by: str
    moved_at_us: int


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    cursors: list[tuple[str, int, NamedCursor]]


_decoder = msgspec.msgpack.Decoder(_Snapshot)  # made here, under the import lock: logs are opened in several threads

_View = dict[tuple[str, int], NamedCursor]


class Cursors(Folded[CursorRecord, tuple[str, int], NamedCursor]):
    """The cursors of one partition of the internal topic: a `core.derived.DerivedState`."""

    name = "cursors"
    vital: Final = True  # retention would delete, and consumers begin anew, by what is missing
    came_later: Final = False

    def __init__(self, read: Callable[[bytes | memoryview], Iterable[CursorRecord]]) -> None:
        super().__init__(read)
        self._size = 0  # of the applied view

    @staticmethod
    def fold(view: _View, record: CursorRecord) -> None:
        """A view after one more record."""
        _fold(view, record)

    # --- questions ------------------------------------------------------------------------------

    def get(self, name: str, topic_id: int) -> NamedCursor | None:
        """A cursor, as it is committed."""
        return self._committed.get((name, topic_id))

    def keys(self) -> list[tuple[str, int]]:
        """Return the names of all cursors, each with its topic, as they are committed."""
        return list(self._committed)

    def of_topic(self, topic_id: int) -> dict[str, NamedCursor]:
        """All cursors of a topic, as they are committed."""
        return {name: cursor for (name, topic), cursor in self._committed.items() if topic == topic_id}

    def named(self, name: str) -> dict[int, NamedCursor]:
        """The cursors of one name, by topic, as they are committed."""
        return {topic: cursor for (each, topic), cursor in self._committed.items() if each == name}

    def topics(self) -> set[int]:
        """Topics that have cursors here, or will have when everything is committed."""
        return {topic_id for _, topic_id in self._applied}

    def topics_held(self) -> set[int]:
        """Return these, and those that have some as long as not everything is committed."""
        return self.topics() | {topic_id for _, topic_id in self._committed}

    def is_news(self, record: CursorRecord) -> bool:
        """Whether a record would change anything, or something of its cursor is not committed yet."""
        if any(_concern(record, pending) for _, records in self._pending for pending in records):
            return True
        before = _concerned(self._committed, record)
        return _after(before, record) != before

    @property
    def size(self) -> int:
        """How many cursors and positions there are, by all that the log says."""
        return self._size

    def names(self) -> set[str]:
        """Return the names of all cursors, by all that the log says."""
        return {name for name, _ in self._applied}

    def size_with(self, record: CursorRecord) -> int:
        """How many cursors and positions there would be with a record: what memory and snapshots grow with."""
        before = _concerned(self._applied, record)
        return self._size + _size(_after(before, record)) - _size(before)

    # --- derived from the log -------------------------------------------------------------------

    def _take(self, record: CursorRecord) -> None:
        self._size = self.size_with(record)
        super()._take(record)

    def cut(self, end: int) -> None:
        """The log ends here now: what was not committed is undone."""
        super().cut(end)
        self._size = _size(self._applied)

    def snapshot(self) -> bytes:
        """The applied view."""
        rows = [(name, topic_id, cursor) for (name, topic_id), cursor in sorted(self._applied.items(), key=_key)]
        return msgspec.msgpack.encode(_Snapshot(_VERSION, rows))

    def restore(self, snapshot: bytes | None) -> None:
        """Back to a snapshot; all of it is committed."""
        rows = [] if snapshot is None else read_snapshot(snapshot, _decoder, _VERSION, "cursors").cursors
        self._begin_with({(name, topic_id): cursor for name, topic_id, cursor in rows})
        self._size = _size(self._applied)

    def statistics(self) -> dict[str, int]:
        """How many there are."""
        return {"cursors": len(self._committed), "size": self._size, "pending": len(self._pending)}

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        super().check_invariants()
        assert self._size == _size(self._applied)


def partition_of(name: str, partitions: int) -> int:
    """The partition of the internal topic that a cursor of this name lives in, whatever topic it belongs to."""
    return crc32(name.encode()) % partitions


def _size(view: _View) -> int:
    """Cursors and positions, counted together: one without positions takes memory too."""
    return sum(len(cursor.positions) + 1 for cursor in view.values())


def _concerned(view: _View, record: CursorRecord) -> _View:
    """The part of a view that a record is about."""
    if record.name:
        key = (record.name, record.topic_id)
        return {key: view[key]} if key in view else {}
    return {key: cursor for key, cursor in view.items() if key[1] == record.topic_id}


def _after(view: _View, record: CursorRecord) -> _View:
    """A copy of a view, with one more record."""
    changed = dict(view)
    _fold(changed, record)
    return changed


def _fold(view: _View, record: CursorRecord) -> None:
    """A view after one more record. Cursors themselves never change: views share them."""
    if isinstance(record, Forgotten):
        for key in _concerned(view, record):
            del view[key]
        return
    key = (record.name, record.topic_id)
    known = view.get(key)
    positions = {} if known is None else known.positions
    moved = {
        partition: offset
        for partition, offset in record.positions.items()
        if partition not in positions
        or offset > positions[partition]
        or (record.back and offset != positions[partition])
    }
    if moved or known is None:
        view[key] = NamedCursor({**positions, **moved}, record.by, record.at_us)


def _concern(one: CursorRecord, other: CursorRecord) -> bool:
    """Whether two records are about the same cursor."""
    return one.topic_id == other.topic_id and (not one.name or not other.name or one.name == other.name)


def _key(item: tuple[tuple[str, int], NamedCursor]) -> tuple[str, int]:
    return item[0]
