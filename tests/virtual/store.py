"""A coordination store in virtual time, with revisions, leases and watches, that can be away or cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from stentor.errors import CoordinationUnavailable, LeaseExpired, UnknownSwap
from stentor.ports import Changed, CoordinationStatistics, Entry, Range, Resync, Swap

if TYPE_CHECKING:
    from tests.virtual.world import Process, World

DELAY_US = (200, 4_000)
ANSWER_S = 3.0


class Store:
    """What etcd would hold."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self.history: list[Changed] = []
        self.away = False
        self.cut: set[str] = set()
        self.loses_answers = 0.0  # how often a swap is made and its answer lost
        self.compacted = 0  # changes up to this revision are not known any more
        self.on_change: Callable[[str, Entry | None, bytes, Process | None], None] | None = None
        self._leases: dict[int, tuple[int, int, set[str]]] = {}  # lease -> (ends at, how long, keys)
        self._watchers: dict[StoreAccess, None] = {}
        self._lease_numbers = 0
        self.house = _house(world)
        self._expire()

    def access(self, process: Process) -> StoreAccess:
        return StoreAccess(self, process)

    def reachable(self, process: Process) -> bool:
        return not self.away and process.name not in self.cut

    # --- the state ------------------------------------------------------------------------------

    def change(self, put: Mapping[str, bytes], delete: Any, lease: int = 0, by: Process | None = None) -> None:
        """By a broker, or by whoever plays with the store itself."""
        if self.on_change is not None:
            for key, value in put.items():
                self.on_change(key, self.entries.get(key), value, by)
        deleted = [key for key in delete if key in self.entries]
        if not put and not deleted:
            return
        self.revision += 1
        for key in deleted:
            del self.entries[key]
        for key, value in put.items():
            self.entries[key] = Entry(key, value, self.revision)
            for _, _, keys in self._leases.values():
                keys.discard(key)
            if lease:
                self._leases[lease][2].add(key)
        self.history.append(Changed(self.revision, [self.entries[key] for key in put], deleted))
        for watcher in self._watchers:
            self.world.at(self.world.now + self.world.between(*DELAY_US), watcher.process, watcher.moved)

    def range(self, prefix: str) -> Range:
        found = [entry for key, entry in self.entries.items() if key.startswith(prefix)]
        return Range(sorted(found, key=lambda entry: entry.key), self.revision)

    def swap(self, expect: Mapping[str, int], put: Mapping[str, bytes], delete: Any, lease: int, by: Process) -> Swap:
        for key, revision in expect.items():
            held = self.entries.get(key)
            if (0 if held is None else held.revision) != revision:
                return Swap(succeeded=False, revision=self.revision)
        if lease and lease not in self._leases:
            raise LeaseExpired("The lease is gone.")
        self.change(put, delete, lease, by)
        return Swap(succeeded=True, revision=self.revision)

    def keep(self) -> tuple[int, dict[str, Entry]]:
        """A backup."""
        return self.revision, dict(self.entries)

    def restore(self, kept: tuple[int, dict[str, Entry]]) -> None:
        """It is what it was then, and knows nothing of what came after."""
        self.revision, self.entries = kept[0], dict(kept[1])
        del self.history[self.revision :]
        self.news()

    # --- leases ---------------------------------------------------------------------------------

    def new_lease(self, ttl_s: int) -> int:
        self._lease_numbers += 1
        self._leases[self._lease_numbers] = (self.world.now + ttl_s * 1_000_000, ttl_s, set())
        return self._lease_numbers

    def renew(self, lease: int) -> float:
        if lease not in self._leases:
            raise LeaseExpired("The lease is gone.")
        _, ttl_s, keys = self._leases[lease]
        self._leases[lease] = (self.world.now + ttl_s * 1_000_000, ttl_s, keys)
        return float(ttl_s)

    def end_lease(self, lease: int) -> None:
        found = self._leases.pop(lease, None)
        if found is not None:
            self.change({}, sorted(found[2]))

    def lapse(self, broker: str) -> None:
        """A broker's liveness key goes, whatever it did to keep it."""
        key = f"live/{broker}"
        for lease in [lease for lease, held in self._leases.items() if key in held[2]]:
            self.end_lease(lease)

    def _expire(self) -> None:
        if not self.away:
            for lease in [lease for lease, held in self._leases.items() if held[0] < self.world.now]:
                self.end_lease(lease)
        self.world.at(self.world.now + 500_000, self.house, self._expire)

    def watch(self, access: StoreAccess) -> None:
        self._watchers[access] = None

    def unwatch(self, access: StoreAccess) -> None:
        self._watchers.pop(access, None)

    def news(self) -> None:
        """It can be reached again: watches look."""
        for watcher in self._watchers:
            self.world.at(self.world.now + self.world.between(*DELAY_US), watcher.process, watcher.moved)


def _house(world: World) -> Process:
    from tests.virtual.world import Process

    return Process(world, "store")


class StoreAccess:
    """One process's way to the store: a `CoordinationStore`."""

    def __init__(self, store: Store, process: Process) -> None:
        self._store, self.process = store, process
        self._moved: asyncio.Event | None = None

    async def _way(self) -> None:
        """There, or not within the deadline."""
        await asyncio.sleep(self._store.world.between(*DELAY_US) / 1_000_000)
        if not self._store.reachable(self.process):
            await asyncio.sleep(ANSWER_S)
            raise CoordinationUnavailable("The store does not answer.")

    async def _back(self) -> bool:
        await asyncio.sleep(self._store.world.between(*DELAY_US) / 1_000_000)
        return self._store.reachable(self.process)

    async def get(self, key: str) -> Entry | None:
        await self._way()
        found = self._store.entries.get(key)
        await self._answer()
        return found

    async def range(self, prefix: str) -> Range:
        await self._way()
        found = self._store.range(prefix)
        await self._answer()
        return found

    async def _answer(self) -> None:
        if not await self._back():
            await asyncio.sleep(ANSWER_S)
            raise CoordinationUnavailable("The store does not answer.")

    async def swap(
        self, *, expect: Mapping[str, int], put: Mapping[str, bytes], delete: tuple[str, ...] = (), lease: int = 0
    ) -> Swap:
        await self._way()
        swap = self._store.swap(expect, put, delete, lease, self.process)
        if not await self._back() or self._store.world.rng.random() < self._store.loses_answers:
            await asyncio.sleep(ANSWER_S)
            raise UnknownSwap("The answer was lost.")
        return swap

    async def lease(self, ttl_s: int) -> int:
        await self._way()
        lease = self._store.new_lease(ttl_s)
        await self._answer()
        return lease

    async def keep_alive(self, lease: int) -> float:
        await self._way()
        left = self._store.renew(lease)
        await self._answer()
        return left

    async def revoke(self, lease: int) -> None:
        await self._way()
        self._store.end_lease(lease)
        await self._answer()

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Changed | Resync, None]:
        self._moved = asyncio.Event()
        self._store.watch(self)
        try:
            while True:
                while self._store.reachable(self.process) and revision != self._store.revision:
                    if revision < self._store.compacted or revision > self._store.revision:
                        found = self._store.range(prefix)
                        revision = found.revision
                        yield Resync(found.entries, found.revision)
                        continue
                    change = self._store.history[revision]
                    revision = change.revision
                    put = [entry for entry in change.put if entry.key.startswith(prefix)]
                    deleted = [key for key in change.deleted if key.startswith(prefix)]
                    if put or deleted:
                        yield Changed(revision, put, deleted)
                await self._moved.wait()
                self._moved.clear()
        finally:
            self._store.unwatch(self)

    def moved(self) -> None:
        if self._moved is not None:
            self._moved.set()

    has_quota = False

    def statistics(self) -> CoordinationStatistics:
        return CoordinationStatistics("virtual", "", True, 0, 0, 0, 0, 0)  # noqa: FBT003

    async def close(self) -> None: ...
