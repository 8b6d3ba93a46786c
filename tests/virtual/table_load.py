"""A table of a simulated cluster, its clients, and what must hold of it.

Clients hold copies and change few keys, with and without conditions. Every attempt is recorded with its outcome. At the
end the log says what really happened, in which order: a version is an offset. It is read from the disks, and replayed
here by a few lines that share nothing with the product's.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.virtual.copies import READ_BYTES

from stentor.errors import ConditionFailed, DeadlineExceeded, StentorError, UnknownOutcome
from stentor.wire import batch as wire_batch
from stentor.wire import header as batch_header
from stentor.wire import sparse, table_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from tests.virtual.cluster import Cluster

    from stentor.broker.partitions.partition import Partition
    from stentor.client.table import AsyncTable
    from stentor.core.horizon import Horizon
    from stentor.storage.log import PartitionLog

TABLE = "table"
KEYS = ("a", "b", "c")
COUNTER = "n"
PADDING = 300  # so that logs have several segments

ABSENT = -1
Row = tuple[str, bytes | None, int | None]  # key, value or None, condition or None


class Attempt:
    """One change that a client asked for."""

    def __init__(self, client: str, rows: tuple[Row, ...], began: int) -> None:
        self.client, self.rows, self.began = client, rows, began
        self.outcome = "unknown"  # ok, refused: its conditions did not hold, failed: it is nowhere
        self.ended: int | None = None
        self.version: int | None = None

    def __repr__(self) -> str:
        shown = [(key, value and value.rstrip(b"."), condition) for key, value, condition in self.rows]
        return f"{self.client} {shown} {self.outcome} {self.version} [{self.began}, {self.ended}]"


class Watched:
    """What a watcher was told."""

    def __init__(self, client: str, start: int) -> None:
        self.client, self.start = client, start  # the sequence at which it began
        self.told: list[tuple[int, int]] = []  # the version of each change, and how many it said to have skipped

    def misses(self, sets: list[int]) -> tuple[int, int, int] | None:
        """Where it was told of fewer changes than were made, and not that any are missing: the version, how many are,
        and how many it had heard of.
        """
        seen, skipped, made = 0, 0, 0
        written = iter([version for version in sets if version >= self.start])
        known = set(sets)
        for version, more in self.told:
            seen, skipped = seen + (version in known), skipped + more
            made += sum(1 for _ in takewhile(version.__ne__, written)) + 1 if version in known else 0
            if made - seen > skipped:
                return version, made - seen, skipped
        return None


class Logged(NamedTuple):
    """A batch of the table's log."""

    offset: int
    rows: tuple[Row, ...]
    refused: bool


Archive = dict[tuple[int, int], tuple[Any, bytes]]
"""Every batch that a head appended, by epoch and offset: its header and its body."""


def written_batches(log: PartitionLog, archive: Archive) -> Iterator[tuple[int, int, Any, bytes]]:
    """All that the log ever held, as its heads wrote it: compactions may have taken some of it since. The offset,
    epoch, header and body of each batch that is not for brokers.
    """
    offset, epochs = log.start, log.epochs()
    while offset < log.end:
        epoch = max((first, epoch) for epoch, first in epochs if first <= offset)[1]
        header, body = archive[epoch, offset]
        if not header.control:
            yield offset, epoch, header, body
        offset = header.end_offset


def written(log: PartitionLog, archive: Archive) -> list[Logged]:
    """The same, as changes."""
    found = []
    for offset, _, header, body in written_batches(log, archive):
        _, keys, values, headers = wire_batch.body_columns(header, body)
        conditions = [_condition(named) for named in headers or [None] * header.count]
        names = [(key or b"").decode() for key in keys]
        rows = tuple(zip(names, values, conditions, strict=True))
        found.append(Logged(offset, rows, header.refused))
    return found


def held_rows(log: PartitionLog) -> list[tuple[int, str, bytes | None]]:
    """What is on the disk: offset, key, value."""
    found: list[tuple[int, str, bytes | None]] = []
    offset = log.start
    while offset < log.end:
        part = log.read(offset, log.end, READ_BYTES)
        for place, length, *_ in batch_header.extents(part.data):
            header = batch_header.check_header(part.data, place)
            rows = sparse.rows_of(header, part.data[place + batch_header.HEADER_BYTES : place + length])
            names = [(key or b"").decode() for key in rows.keys]
            found += zip(rows.offsets, names, rows.values, strict=True)
        if part.next_offset <= offset:
            break
        offset = part.next_offset
    return found


def _condition(headers: Any) -> int | None:
    for name, value in headers or ():
        if name == table_rows.CONDITION:
            return int.from_bytes(value, "little", signed=True)
    return None


def all_rows(batches: list[Logged]) -> list[tuple[int, str, bytes | None]]:
    """Of batches that have an effect: offset, key, value."""
    return [
        (offset, key, value)
        for batch in batches
        if not batch.refused
        for offset, (key, value, _) in enumerate(batch.rows, batch.offset)
    ]


def folded(rows: list[tuple[int, str, bytes | None]], at: int) -> dict[str, int]:
    """The version of each key at an offset."""
    found: dict[str, int] = {}
    for offset, key, value in rows:
        if offset >= at:
            break
        found.pop(key, None)
        if value is not None:
            found[key] = offset
    return found


class TableLoad:
    """Clients of the table, until they are told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world, self.require = cluster, cluster.world, cluster.world.require
        self.stopping = False
        self.outstanding = 0
        self.attempts: list[Attempt] = []
        self.counted: list[int] = []  # what additions returned
        self.uncounted = 0  # additions whose outcome is not known
        self.acknowledged = 0  # every change below this offset was acknowledged, or lies before one that was
        self.copies: dict[str, AsyncTable] = {}
        self._shown: dict[int, tuple[str, bytes]] = {}  # by version: what any copy showed
        self.watched: list[Watched] = []
        self._numbers = 0

    # --- clients --------------------------------------------------------------------------------

    async def work(self, name: str) -> None:
        """Open a copy, change the table for a while, and begin anew; the last copy stays open."""
        client = await self._client(name)
        rng = self.world.rng
        while True:
            before = self.acknowledged
            try:
                table = await client.table(TABLE)
            except StentorError:
                await asyncio.sleep(0.1)
                continue
            self._has(name, table, before)
            self.copies[name] = table
            self._record(name, table)
            asyncio.get_running_loop().create_task(self._watch(name, table))
            for _ in range(rng.choice([3, 20, 200])):
                if self.stopping:
                    return
                with suppress(StentorError):
                    await self._one(name, table)
                await asyncio.sleep(rng.choice([0.005, 0.05, 0.2]))
            del self.copies[name]
            await table.close()

    async def _client(self, name: str) -> Any:
        while True:
            try:
                return await self.cluster.client(name)
            except StentorError:
                await asyncio.sleep(0.1)

    async def _one(self, name: str, table: AsyncTable) -> None:
        rng = self.world.rng
        key, what, timeout = rng.choice(KEYS), rng.random(), rng.choice([1.0, 5.0, 20.0])
        entry = table.entry(key)
        if what < 0.3:
            await self._add(table, timeout)
        elif what < 0.5:
            await self._settle(table.put(key, self._value(name), timeout=timeout))
        elif what < 0.7 and entry is not None:
            await self._settle(table.put(key, self._value(name), if_version=entry.version, timeout=timeout))
        elif what < 0.8:
            await self._settle(table.put(key, self._value(name), if_absent=True, timeout=timeout))
        elif what < 0.85 and entry is not None:
            await self._settle(table.delete(key, if_version=entry.version, timeout=timeout))
        elif what < 0.9:
            await self._settle(table.delete(key, timeout=timeout))
        elif what < 0.95:
            value = self._value(name)
            await self._settle(table.put_many({key: None, "by": value, "too": value}, timeout=timeout))
        else:
            before = self.acknowledged
            await table.sync(timeout=timeout)
            self._has(name, table, before)

    def _value(self, name: str) -> bytes:
        self._numbers += 1
        return f"{name}:{self._numbers}".encode().ljust(self.world.rng.choice([0, PADDING]), b".")

    async def _settle(self, change: Awaitable[Any]) -> None:
        self.outstanding += 1
        try:
            await change
        finally:
            self.outstanding -= 1

    async def _add(self, table: AsyncTable, timeout: float) -> None:
        self.outstanding += 1
        try:
            self.counted.append(await table.add(COUNTER, timeout=timeout))
        except StentorError:
            self.uncounted += 1
            raise
        finally:
            self.outstanding -= 1

    def _record(self, name: str, table: AsyncTable) -> None:
        """See every attempt of a copy to change the table, those of `add` too."""
        copy = table._copy
        change = copy.change

        async def recorded(
            rows: dict[str, bytes | None], conditions: dict[str, int], deadline: Any, lease: Any = None
        ) -> list[int]:
            wanted = tuple((key, value, conditions.get(key)) for key, value in rows.items())
            attempt = Attempt(name, wanted, self.world.now)
            self.attempts.append(attempt)
            try:
                versions = await change(rows, conditions, deadline, lease)
            except StentorError as error:
                attempt.outcome = _outcome(error)
                raise
            else:
                attempt.outcome, attempt.version = "ok", versions[0]
                self.acknowledged = max(self.acknowledged, versions[-1] + 1)
                self._has(name, table, versions[-1] + 1)
                return versions
            finally:
                attempt.ended = self.world.now

        copy.change = recorded  # type: ignore[method-assign, assignment]

    def _has(self, name: str, table: AsyncTable, end: int) -> None:
        """A copy has what was acknowledged before it was asked for, and its own changes."""
        self.require(table.sequence[0] >= end, "a copy lacks what was acknowledged", name, table.sequence, end)

    async def _watch(self, name: str, table: AsyncTable) -> None:
        """Every change once, in order: each begins where the one before it ended."""
        watch = table.watch()
        self.watched.append(watched := Watched(name, watch.sequence[0]))
        state = {entry.key: entry for entry in table.entries()}
        newest = max((entry.version for entry in state.values()), default=-1)
        with suppress(StentorError):
            async for change in watch:
                key, new = change.key, change.new
                watched.told.append((change.version, change.skipped))
                self.require(state.get(key) == change.old, "a watcher misses a change", name, change, state.get(key))
                if new is None:
                    del state[key]
                    continue
                self.require(new.version > newest, "a watcher sees a change again", name, change, newest)
                newest, state[key] = new.version, new
                shown = self._shown.setdefault(new.version, (key, new.value))
                self.require(shown == (key, new.value), "two copies show two things", name, change, shown)
                committed = self.cluster.checker.committed_of(0, TABLE)
                self.require(new.version < committed, "a copy has what is not committed", name, change, committed)

    # --- at the end -----------------------------------------------------------------------------

    def caught_up(self, end: int) -> bool:
        return all(table.sequence[0] == end for table in self.copies.values())

    def compare(self, members: Sequence[Partition], archive: Archive) -> None:
        """What the log says against what clients were told, and against what their copies hold. Members compact their
        logs each by itself, and each must give the same table.
        """
        batches = written(members[0].log, archive)
        for member in members:
            self._check_compacted(member.log, batches, member.compaction.horizon)
        self._check_watched([offset for offset, _, value in all_rows(batches) if value is not None])
        state = self._replay(batches)
        places = self._place(batches)
        self._check_order(places)
        self._check_counter(state)
        for name, table in self.copies.items():
            self.require(table._copy.failure is None, "a copy failed", name, table._copy.failure)
            held = {entry.key: (entry.version, entry.value) for entry in table.entries()}
            self.require(held == state, "a copy differs from the log", name, held, state)

    def _check_watched(self, sets: list[int]) -> None:
        """C23: a watcher that misses changes is informed. Of deletions of what it never saw it need not hear."""
        for watched in self.watched:
            missed = watched.misses(sets)
            self.require(missed is None, "a watcher misses changes and is not informed", watched.client, missed)

    def _check_compacted(self, log: PartitionLog, batches: list[Logged], horizon: Horizon) -> None:
        """C23: what is on the disk gives, at every offset from the horizon on, what the whole log gives."""
        rows, held = all_rows(batches), held_rows(log)
        everything = {row[0]: row for row in rows}
        self.require(all(everything.get(row[0]) == row for row in held), "the log has what nobody wrote", held)
        last = {key: (offset, key, value) for offset, key, value in rows if offset < horizon.offset}
        for row in last.values():
            kept = row in held or (row[2] is None and row[0] < horizon.deletions_until)
            self.require(kept, "a compaction took the last of a key", row, horizon)
        for at in range(horizon.offset, log.end + 1):
            whole, compacted = folded(rows, at), folded(held, at)
            self.require(whole == compacted, "a compaction took too much", at, horizon, whole, compacted)

    def _replay(self, batches: list[Logged]) -> dict[str, tuple[int, bytes]]:
        """The table by definition; on the way every decision of every head is made again."""
        state: dict[str, tuple[int, bytes]] = {}
        for batch in batches:
            held = all(
                condition is None or state.get(key, (ABSENT,))[0] == condition for key, _, condition in batch.rows
            )
            now = {key: state.get(key) for key, *_ in batch.rows}
            self.require(held or batch.refused, "a change was made against its condition", batch, now)
            self.require(not held or not batch.refused, "a change was refused that could be made", batch, now)
            for offset, (key, value, _) in enumerate(() if batch.refused else batch.rows, batch.offset):
                state.pop(key, None)
                if value is not None:
                    state[key] = offset, value
        return state

    def _place(self, batches: list[Logged]) -> list[tuple[int, Attempt]]:
        """Where each attempt is whose outcome is known. Those that look alike are counted: deletes have no value."""
        at = {batch.offset: batch for batch in batches}
        written = Counter((batch.rows, batch.refused) for batch in batches)
        tried: dict[Any, Counter[str]] = defaultdict(Counter)
        places = []
        for attempt in self.attempts:
            tried[attempt.rows][attempt.outcome] += 1
            if attempt.outcome == "ok":
                assert attempt.version is not None
                found = at.get(attempt.version)
                right = found is not None and found.rows == attempt.rows and not found.refused
                self.require(right, "an acknowledged change is not in the log", attempt, found)
                places.append((attempt.version, attempt))
        unique = {batch.rows: batch.offset for batch in batches if written[batch.rows, batch.refused] == 1}
        places += [
            (unique[attempt.rows], attempt)
            for attempt in self.attempts
            if attempt.outcome == "refused" and attempt.rows in unique and sum(tried[attempt.rows].values()) == 1
        ]
        for rows, outcomes in tried.items():
            made, refused, unknown = written[rows, False], written[rows, True], outcomes["unknown"]
            fits = (
                outcomes["ok"] <= made <= outcomes["ok"] + unknown
                and outcomes["refused"] <= refused <= outcomes["refused"] + unknown
                and made + refused <= outcomes["ok"] + outcomes["refused"] + unknown
            )
            self.require(fits, "the log has not what clients were told", rows, made, refused, outcomes)
        strange = [rows for rows, _ in written if rows not in tried]
        self.require(not strange, "the log has what nobody asked for", strange[:1])
        return sorted(places, key=lambda place: place[0])

    def _check_order(self, places: list[tuple[int, Attempt]]) -> None:
        """What began after the end of something else is behind it."""
        latest: Attempt | None = None
        for offset, attempt in places:
            if latest is not None:
                assert attempt.ended is not None
                self.require(attempt.ended >= latest.began, "changes in the wrong order", offset, attempt, latest)
            if latest is None or attempt.began > latest.began:
                latest = attempt

    def _check_counter(self, state: dict[str, tuple[int, bytes]]) -> None:
        count = int(state[COUNTER][1]) if COUNTER in state else 0
        least, most = len(self.counted), len(self.counted) + self.uncounted
        self.require(least <= count <= most, "additions were lost or made twice", count, least, most)
        self.require(len(set(self.counted)) == least, "two additions had the same result", sorted(self.counted))


def _outcome(error: StentorError) -> str:
    if isinstance(error, ConditionFailed):
        return "refused"
    return "unknown" if isinstance(error, UnknownOutcome | DeadlineExceeded) else "failed"
