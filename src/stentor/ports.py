"""The interfaces that the broker needs from the outside world, so that tests can stand in for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class CoordinationStore(Protocol):
    """Hard cluster state: a small map with revisions. Never on the message path (D5)."""

    async def get(self, key: str) -> Entry | None: ...

    async def range(self, prefix: str) -> list[Entry]: ...

    async def swap(self, *, expect: Mapping[str, int], put: Mapping[str, bytes], delete: tuple[str, ...] = ()) -> Swap:
        """Apply all changes if every expected key has that revision (0: absent); else none."""
        ...

    async def close(self) -> None: ...
