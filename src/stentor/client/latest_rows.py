"""A table's log as Arrow: the changes by key, and what is left of them, which is the latest row of each key.

    log of a partition ──batches──► changes ──► LatestRows ──► one row per key, in the order of versions
                                       └──────► or as they are: the table's change feed

A snapshot goes through a log once, from its beginning. It holds the rows that are the latest so far, and the changes
that came since it last looked. When those are as many as the rows, it drops what was overtaken. So it needs about
three times the memory of what it finds in the partition, and PENDING_BYTES, however long the log is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stentor.client.tables import offsets
from stentor.errors import DecodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PENDING_BYTES: Final = 32 << 20
PENDING_ROWS: Final = 1 << 18
"""Changes that wait until it is worth looking for those that were overtaken."""
JOINED_BYTES: Final = 8 << 20
JOINED_ROWS: Final = 65_536
"""Smaller batches are joined: each costs something, however few rows it has."""
THERE: Final = "there"
"""The column that says whether the key is there after the change; false: it was deleted."""


def changes(found: Iterable[tuple[int, Any]], *, subtree: str = "", values: bool = True) -> Iterator[Any]:
    """Batches of one partition, each with its first offset, as rows: key, version, timestamp, there, and the value.

    Small batches are joined. One that lost rows comes in parts whose offsets follow each other.
    """
    for gathered in _gathered(found):
        rows = _rows(gathered, values=values)
        if subtree:
            rows = rows.filter(pc.starts_with(rows.column("key"), subtree))
        if rows.num_rows:
            yield rows


def _gathered(found: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    gathered: list[tuple[int, Any]] = []
    rows = size = 0
    for first, batch in found:
        gathered.append((first, batch))
        rows += batch.num_rows
        size += batch.get_total_buffer_size()  # nbytes takes as long as decoding the batch
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield gathered
            gathered, rows, size = [], 0, 0
    if gathered:
        yield gathered


def _rows(gathered: list[tuple[int, Any]], *, values: bool) -> Any:
    value = _one([batch.column("value") for _, batch in gathered])
    columns = {
        "key": _text(_one([batch.column("key") for _, batch in gathered]), gathered[0][0]),
        "version": _one([offsets(first, count) for first, count in _runs(gathered)]),
        "timestamp": _one([batch.column("timestamp") for _, batch in gathered]),
        THERE: pc.is_valid(value),
    }
    return pa.RecordBatch.from_pydict(columns | {"value": value} if values else columns)


def _runs(gathered: list[tuple[int, Any]]) -> list[tuple[int, int]]:
    """(first offset, rows) of batches that follow each other."""
    runs: list[tuple[int, int]] = []
    for first, batch in gathered:
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + batch.num_rows)
        else:
            runs.append((first, batch.num_rows))
    return runs


def _one(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _text(keys: Any, first: int) -> Any:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DecodeFailed(
            f"A key of the rows from offset {first} on is not UTF-8.", hint="Read the topic's messages instead."
        ) from error


def joined(batches: Iterable[Any]) -> Iterator[Any]:
    """The same rows in fewer batches, where they are small."""
    gathered: list[Any] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield pa.concat_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.concat_batches(gathered)


class LatestRows:
    """The latest row of each key, of all changes that were added, from the first one of a log on, in their order."""

    def __init__(self) -> None:
        self._batches: list[Any] = []  # in the order of versions; the first ones have each key once
        self._kept = (0, 0)  # rows and bytes of those
        self._pending = (0, 0)  # rows and bytes of the others

    def add(self, batch: Any) -> None:
        """Take a batch of changes."""
        self._batches.append(batch)
        rows, size = self._pending
        self._pending = rows + batch.num_rows, size + batch.get_total_buffer_size()
        if self._pending[0] > max(PENDING_ROWS, self._kept[0]) or self._pending[1] > max(PENDING_BYTES, self._kept[1]):
            self._reduce()

    def batches(self) -> list[Any]:
        """One row per key that is there, in the order of versions."""
        self._reduce()
        return self._batches

    def _reduce(self) -> None:
        if not self._pending[0]:
            return
        versions = _last_versions(self._batches)
        self._batches = list(joined(_only(self._batches, versions)))
        rows = sum(batch.num_rows for batch in self._batches)
        self._kept = rows, sum(batch.get_total_buffer_size() for batch in self._batches)
        self._pending = 0, 0


def _last_versions(batches: list[Any]) -> Any:
    """The version of each key's last row, also of keys that it deletes, in order."""
    keys = pa.Table.from_batches([batch.select(["key", "version"]) for batch in batches])
    found = keys.group_by("key").aggregate([("version", "max")]).column("version_max")
    return found.combine_chunks().sort()


def _only(batches: Iterable[Any], versions: Any) -> Iterator[Any]:
    """Rows with these versions whose key is there.

    Rows were added from the first of a log on. So a row that deletes a key can go together with those before it.
    """
    for batch in batches:
        first, last = batch.column("version")[0].as_py(), batch.column("version")[-1].as_py()
        begin = bisect_left(versions, first, key=_number)
        end = bisect_right(versions, last, lo=begin, key=_number)
        is_last = pc.is_in(batch.column("version"), value_set=versions.slice(begin, end - begin))
        rows = batch.filter(pc.and_(is_last, batch.column(THERE)))
        if rows.num_rows:
            yield rows


def _number(scalar: Any) -> int:
    return int(scalar.as_py())
