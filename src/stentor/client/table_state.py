"""Whether a copy of a table is behind, as far as its client can know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from stentor.client.reader import Reader

CopyCondition = Literal["current", "catching up", "cut off"]


class CopyState(msgspec.Struct, frozen=True):
    """How a copy of a table stands.

    `condition` is "current" if it has everything that its brokers said is committed, "catching up" if it does not, and
    "cut off" if no broker feeds it: then nobody knows how far it is behind.
    """

    condition: CopyCondition
    behind: int  # committed changes that it does not have, as last heard
    age_s: float  # how many seconds ago it was last known to be current; 0.0 if it is
    since: datetime | None = None  # when that was; None if it is

    def __str__(self) -> str:
        return self.condition if self.since is None else f"{self.condition} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


def state_of(readers: list[Reader], applied: list[int], current_at: float, now: float, *, whole: bool) -> CopyState:
    """Of a copy whose partitions have these readers; `current_at`: when it was last known to be current."""
    behind = sum(max(0, reader.committed - applied[reader.partition]) for reader in readers)
    silent = [lost_at for reader in readers if (lost_at := reader.silent_since()) is not None]
    if not silent and not behind and whole:
        return CopyState("current", 0, 0.0)
    if silent and not behind:
        current_at = max(current_at, min(silent))  # it was current until then
    age_s = max(0.0, now - current_at)
    since = datetime.now(UTC) - timedelta(seconds=age_s)
    return CopyState("cut off" if silent else "catching up", behind, age_s, since)
