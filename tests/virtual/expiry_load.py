"""Keys that expire in a simulated cluster: their owners, what these were promised, and what must hold of it.

Each key has one owner, which puts it with a ttl, touches it, or puts it as its own until the owner dies. A promise is
an acknowledged put or touch: the key stays for its ttl from when that was asked for; or what `holds` says. When a head
appended a delete is seen at the head itself, and whether that delete counts is in the log at the end (C21).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from tests.virtual.table_load import written_batches
from tests.virtual.world import SECOND

from stentor.broker.partitions.expiring import Expiring, table_of
from stentor.broker.partitions.partition import Partition
from stentor.errors import StentorError
from stentor.wire import batch as wire_batch
from stentor.wire import table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.virtual.cluster import Cluster
    from tests.virtual.table_load import Archive
    from tests.virtual.world import Process

    from stentor.client.table import AsyncTable
    from stentor.client.table_copy import TableEntry
    from stentor.storage.log import PartitionLog
    from stentor.wire.header import BatchHeader

EXPIRING = "expiring"
TTLS = (0.5, 1.0, 3.0)
GRACES = (1.0, 2.0, 4.0)
SLOWEST = 0.95  # of a ttl by the world's clock: those of brokers run up to three hundredths too fast
LATE_S = 3.0  # beats, a commit, and clocks that run slowly


class Promise(NamedTuple):
    """A key is there at least until then."""

    version: int
    asked: int
    until: int
    by: str


class Promises:
    """What clients were told of keys, and when heads let them go."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world, self.require = cluster, cluster.world, cluster.world.require
        self.made: dict[str, list[Promise]] = defaultdict(list)
        self._appended: dict[tuple[int, int], int] = {}  # when, by offset and epoch

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every delete of every head, and look at the machines after every tick."""
        publish, tick, look = Partition.publish, Expiring.tick, Expiring._look

        def published(partition: Partition, view: memoryview, header: BatchHeader, *more: Any) -> None:
            if partition.topic == EXPIRING and not header.producer_id:
                self._appended[partition.log.end, partition.replica.epoch] = self.world.now
            publish(partition, view, header, *more)

        def ticked(expiring: Expiring) -> None:
            tick(expiring)
            expiring.check_invariants()

        def looked(expiring: Expiring, timed: Any) -> None:
            try:
                look(expiring, timed)
            except Exception as error:
                self.require(False, "keys cannot expire", repr(error))  # noqa: FBT003 - it does not hold
                raise

        with (
            patch.object(Partition, "publish", published),
            patch.object(Expiring, "tick", ticked),
            patch.object(Expiring, "_look", looked),
        ):
            yield

    def stays(self, entry: TableEntry, asked: int, by: str) -> None:
        """An acknowledged put or touch."""
        assert entry.ttl is not None
        until = asked + round(entry.ttl * SLOWEST * SECOND)
        self.made[entry.key].append(Promise(entry.version, asked, until, by))

    def holds(self, entry: TableEntry, seconds: float) -> None:
        """What an owner was told."""
        until = self.world.now + round(seconds * SECOND)
        self.made[entry.key].append(Promise(entry.version, self.world.now, until, "holds"))

    def compare(self, log: PartitionLog, archive: Archive) -> dict[str, int]:
        """The log against the promises; the versions of what is there at the end."""
        state: dict[str, int] = {}
        for offset, epoch, key, value, terms in read_rows(log, archive):
            if terms.why == table_rows.EXPIRED:
                self.require(state.get(key) == terms.condition, "another version expired", key, terms, state.get(key))
                self._check(key, terms.condition, self._appended.get((offset, epoch)))
            state.pop(key, None)
            if value is not None:
                state[key] = offset
        return state

    def _check(self, key: str, version: int | None, when: int | None) -> None:
        self.require(when is not None, "somebody else than the head let a key expire", key, version)
        for promise in self.made[key]:
            early = promise.version == version and when is not None and promise.asked <= when < promise.until
            self.require(not early, "a key expired early", key, promise, when)


def read_rows(log: PartitionLog, archive: Archive) -> Iterator[tuple[int, int, str, bytes | None, table_rows.Terms]]:
    """The rows that count, as heads wrote them: the offset and epoch of the batch of deletes, or of the row itself."""
    for offset, epoch, header, body in written_batches(log, archive):
        _, keys, values, headers = wire_batch.body_columns(header, body)
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            terms = table_rows.terms(None if headers is None else headers[number])
            if not header.refused:
                yield offset + (0 if terms.why else number), epoch, (key or b"").decode(), value, terms


class ExpiryLoad:
    """Owners of keys, until they are told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world, self.require = cluster, cluster.world, cluster.world.require
        self.promises = Promises(cluster)
        self.stopping = False
        self.outstanding: dict[str, int] = defaultdict(int)
        self.tables: dict[str, AsyncTable] = {}  # of those who live
        self._processes: dict[str, Process] = {}
        self._born = 0
        self._numbers = 0

    # --- owners ---------------------------------------------------------------------------------

    def employ(self, count: int) -> None:
        for _ in range(count):
            name = f"owner{self._born}"
            self._born += 1
            self._processes[name] = self.cluster.process(name)
            self._processes[name].run(self._live(name))

    def kill_one(self) -> None:
        """An owner dies, with all that it was about to do; another one is born."""
        name = self.world.rng.choice(sorted(self._processes))
        process = self._processes.pop(name)
        process.dead = True
        self.cluster.network.died(process, silently=self.world.rng.random() < 0.5)
        self.tables.pop(name, None)
        self.outstanding.pop(name, None)
        self.employ(1)

    async def _live(self, name: str) -> None:
        rng = self.world.rng
        client = None
        while client is None or name not in self.tables:
            try:
                client = client or await self.cluster.client(name)
                self.tables[name] = await client.table(EXPIRING)
            except StentorError:
                await asyncio.sleep(0.1)
        table = self.tables[name]
        while not self.stopping:
            self.outstanding[name] += 1
            with suppress(StentorError):
                await self._one(name, table)
            self.outstanding[name] -= 1
            self.look(name)
            await asyncio.sleep(rng.choice([0.02, 0.1, 0.4]))

    def look(self, name: str) -> None:
        """What an owner is told of its own keys."""
        table = self.tables[name]
        for key in sorted(table._copy.leases.own):
            entry = table.entry(key)
            if entry is not None and (seconds := table.holds(key)) > 0:
                self.promises.holds(entry, seconds)

    async def _one(self, name: str, table: AsyncTable) -> None:
        rng = self.world.rng
        what, timeout = rng.random(), rng.choice([1.0, 5.0, 20.0])
        key = f"{name}/{rng.randrange(3)}"
        entry, asked = table.entry(key), self.world.now
        self._numbers += 1
        value = str(self._numbers)
        if what < 0.25:
            self.promises.stays(await table.put(key, value, ttl=rng.choice(TTLS), timeout=timeout), asked, "put")
        elif what < 0.35:
            await table.put_many({f"{name}/{number}": value for number in range(3)}, ttl=1.0, timeout=timeout)
        elif what < 0.4:
            await table.put(key, value, timeout=timeout)
        elif what < 0.45:
            await table.delete(key, timeout=timeout)
        elif what < 0.8 and entry is not None and entry.ttl is not None and not entry.session:
            await table.touch(key, timeout=timeout)
            if table.entry(key) == entry:
                self.promises.stays(entry, asked, "touch")
        elif what < 0.9:
            grace = rng.choice(GRACES)
            put = await table.put(key, value, ephemeral=True, grace=grace, timeout=timeout)
            self.promises.stays(put, asked, "put")

    # --- at the end -----------------------------------------------------------------------------

    def settled(self) -> bool:
        """Nothing is under way, and only those keys are left that stay, or whose owner lives."""
        if self.world.steps % 50 or any(self.outstanding.values()):
            return False
        living = {table._copy.leases._session for table in self.tables.values()} - {b""}
        return all(
            entry.ttl is None or entry.session in living for table in self.tables.values() for entry in table.entries()
        )

    def compare(self, partitions: list[Partition], archive: Archive) -> None:
        """What the log says against promises and copies; all members know the same leases."""
        for name in sorted(self.tables):
            self.look(name)
        state = self.promises.compare(partitions[0].log, archive)
        leases = [table_of(partition).leases for partition in partitions]  # type: ignore[union-attr]
        self.require(all(each == leases[0] for each in leases), "members know different leases", leases)
        for name, table in self.tables.items():
            held = {entry.key: entry.version for entry in table.entries()}
            self.require(held == state, "a copy differs from the log", name, held, state)
            for key, own in table._copy.leases.own.items():
                self.require(state.get(key) == own.entry.version, "an owner has what is not there", name, key)
