"""The interfaces that the broker needs from the outside world, so that tests can stand in for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Mapping


class Clock(Protocol):
    """Where time comes from."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class Entry(msgspec.Struct, frozen=True):
    """A key of the coordination store."""

    key: str
    value: bytes
    revision: int  # of the change that wrote it; grows with every change of the store


class Swap(msgspec.Struct, frozen=True):
    """What became of a compare-and-swap."""

    succeeded: bool
    revision: int  # the store's revision after it


class Range(msgspec.Struct, frozen=True):
    """All keys below a prefix, as they were together at one revision."""

    entries: list[Entry]  # in the order of their keys
    revision: int  # the store's, at that read: a watch goes on from here

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Changed(msgspec.Struct, frozen=True):
    """One change of the store, as far as it is below the watched prefix."""

    revision: int
    put: list[Entry]
    deleted: list[str]


class Resync(msgspec.Struct, frozen=True):
    """The changes in between are not known: this is all there is now, and whatever else was known is gone."""

    entries: list[Entry]
    revision: int  # lower than one seen before: the store was restored from a backup


class StoreRoom(msgspec.Struct, frozen=True):
    """How full a store is that takes no more changes when it is."""

    revision: int  # the store's
    bytes: int  # its size on disk, of the member where it is largest
    bytes_in_use: int  # those of them that are not free for other changes
    quota: int = 0  # the size at which it takes no more; 0: it does not say
    alarm: bool = False  # it was full, and takes nothing until an operator clears that


class CoordinationStatistics(msgspec.Struct, frozen=True):
    """How the way to the store is."""

    kind: str  # "embedded" or "etcd"
    endpoint: str  # who is asked first; empty for the embedded store
    available: bool  # the last question was answered
    requests: int  # sent, with those that were tried again
    failures: int  # of these, without a usable answer
    watches: int  # open now
    reconnects: int  # of watches, after their stream broke
    resyncs: int  # times a watch had to read everything


class CoordinationStore(Protocol):
    """Hard cluster state: a small map with revisions. Never on the message path (D5).

    A store that can be full has a quota: `has_quota`. Only such a one is asked for its room, or compacted.

    Every call ends within the store's deadline, in a result or in an error:
    `CoordinationUnavailable` (nothing was changed; try again), `CoordinationRefused`, and for a swap
    also `UnknownSwap`. Leases give no exclusion, revisions do: what must have one owner is compared.
    """

    @property
    def has_quota(self) -> bool: ...

    async def get(self, key: str) -> Entry | None: ...

    async def range(self, prefix: str) -> Range: ...

    async def swap(
        self, *, expect: Mapping[str, int], put: Mapping[str, bytes], delete: tuple[str, ...] = (), lease: int = 0
    ) -> Swap:
        """Apply all changes if every expected key has that revision (0: absent); else none.

        The put keys live as long as `lease` does (0: until they are deleted). At most
        COORDINATION_SWAP_OPERATIONS_MAX comparisons, and as many changes.
        """
        ...

    async def lease(self, ttl_s: int) -> int:
        """A new lease. The store may grant a little more than it was asked for, never less."""
        ...

    async def keep_alive(self, lease: int) -> float:
        """Start its time again; the seconds it has now. `LeaseExpired` if it is gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """End it, and delete its keys. One that is gone already is no error."""
        ...

    def watch(self, prefix: str, revision: int) -> AsyncGenerator[Changed | Resync, None]:
        """Every change after `revision`, in order, until it is closed or the store is.

        It never ends by itself: it connects again by itself, from where it was.
        """
        ...

    async def room(self) -> StoreRoom:
        """How full it is."""
        ...

    async def is_shared(self, kinds: Collection[str]) -> bool:
        """Return whether it holds keys of others, or does not say. Ours: these, and all below those that end in /."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget what keys were before a revision. Those who follow from before it get a `Resync`."""
        ...

    def statistics(self) -> CoordinationStatistics: ...

    async def close(self) -> None:
        """End all watches. Calls after this raise `Closed`."""
        ...
