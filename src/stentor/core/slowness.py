"""Which member of a chain is slow, and how long it stays away (C14).

Every publish waits for the slowest disk of its chain. Brokers say with each heartbeat how long their syncs take, and
whether every one of them took longer than a second for five seconds. Such a member leaves if

    its neighbours are ten times as fast    the median of their mean times is below a tenth of its own
    somebody is not slow                    where all take longer than a second, leaving helps nobody
    it is the only one                      the slowest goes; another may only once that one is back

It comes back after a pause that doubles each time, and is forgotten once it was well for as long as the pause.

Where each sync takes longer than `REPLICA_STALL_S`, members seem to stand still, or to be unable to write. So brokers
also say for how long a write waits for their disk at this moment, and nobody leaves for standing still as long as the
others do. One that stands still for some times as long hangs, and has to go.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from stentor import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stentor.core.records import Key, Member

_SLOW_US: Final = int(limits.SYNC_SLOW_S * 1_000_000)
_WINDOW_US: Final = int(limits.SYNC_SLOW_FOR_S * 1_000_000)
_SECONDS: Final = int(limits.SYNC_SLOW_FOR_S)
_FIRST_US: Final = int(limits.SLOW_PAUSE_S * 1_000_000)
_LAST_US: Final = int(limits.SLOW_PAUSE_S_MAX * 1_000_000)


class SyncPace(msgspec.Struct, frozen=True):
    """How long the syncs of a broker took in the last seconds, by its own word."""

    mean_us: int = 0  # 0: there were none, or the broker is older than this rule
    slow: bool = False  # for SYNC_SLOW_FOR_S each of them took longer than SYNC_SLOW_S
    waits_us: int = 0  # for how long the oldest write under way has waited for the disk
    stalls: bool = False  # the disk counts as taking no writes only because one has waited for so long

    @property
    def longest_us(self) -> int:
        """The longer of what syncs took, and what the one under way takes."""
        return max(self.mean_us, self.waits_us)


class SyncUnderWay(Protocol):
    """A sync that has no end yet."""

    began_us: int | None  # None until a thread takes it up


class SyncTimes:
    """The syncs of one broker in the last seconds."""

    def __init__(self) -> None:
        self._seconds = [-1] * _SECONDS  # which second each place is about
        self._counts = [0] * _SECONDS
        self._sums = [0] * _SECONDS
        self._slow_since_us: int | None = None  # when the first sync began of those that were all slow
        self._ended_us = 0  # when the last one ended
        self._under_way: dict[SyncUnderWay, None] = {}  # in the order in which threads take them up

    def begins(self, sync: SyncUnderWay) -> None:
        """A sync waits for a thread."""
        self._under_way[sync] = None

    def is_over(self, sync: SyncUnderWay) -> None:
        """It came to an end, or failed."""
        self._under_way.pop(sync, None)

    def note(self, began_us: int, ended_us: int) -> None:
        """A sync came to its end."""
        second = ended_us // 1_000_000
        place = second % _SECONDS
        if self._seconds[place] != second:
            self._seconds[place], self._counts[place], self._sums[place] = second, 0, 0
        self._counts[place] += 1
        self._sums[place] += ended_us - began_us
        if ended_us - began_us <= _SLOW_US:
            self._slow_since_us = None
        elif self._slow_since_us is None or began_us - self._ended_us > _WINDOW_US:
            self._slow_since_us = began_us
        self._ended_us = ended_us

    def pace(self, now_us: int) -> SyncPace:
        """Return what a heartbeat says of them."""
        first = now_us // 1_000_000 - _SECONDS
        recent = [place for place in range(_SECONDS) if self._seconds[place] > first]
        count = sum(self._counts[place] for place in recent)
        oldest = next(iter(self._under_way), None)
        began_us = None if oldest is None else oldest.began_us
        waits_us = 0 if began_us is None else max(0, now_us - began_us)
        if not count:
            return SyncPace(waits_us=waits_us)
        since = self._slow_since_us
        return SyncPace(
            sum(self._sums[place] for place in recent) // count,
            since is not None and now_us - since >= _WINDOW_US,
            waits_us,
        )


def slowest(members: Iterable[Member], paces: Mapping[str, SyncPace]) -> Member | None:
    """Return the member that holds up all others; None if nobody does, or if all are slow."""
    known = {member: paces[member.broker] for member in members if paces.get(member.broker, SyncPace()).mean_us}
    if not any(pace.mean_us <= _SLOW_US for pace in known.values()):
        return None
    slow = [member for member, pace in known.items() if pace.slow and _stands_out(member, known)]
    return max(slow, key=lambda member: known[member].mean_us, default=None)


def is_as_slow_as_all(
    member: Member, members: Iterable[Member], paces: Mapping[str, SyncPace], *, for_us: int | None = None
) -> bool:
    """Return whether a member that has stood still `for_us` does what the disks of all members do (None: for as long as
    its own write waits); then its leaving helps nobody.
    """
    own = paces.get(member.broker, SyncPace())
    others = [paces.get(other.broker, SyncPace()).longest_us for other in members if other != member]
    fastest_us = min(others, default=0)
    if min(own.longest_us, fastest_us) <= _SLOW_US:
        return False
    return (own.waits_us if for_us is None else for_us) <= limits.STALL_TIMES * fastest_us


def _stands_out(member: Member, known: Mapping[Member, SyncPace]) -> bool:
    others = [pace.mean_us for other, pace in known.items() if other != member]
    return bool(others) and known[member].mean_us > limits.SYNC_SLOW_TIMES * median(others)


class _Pause(msgspec.Struct, frozen=True):
    until_us: int
    length_us: int


class SlowBrokers:
    """Brokers that left chains for being slow, and when each may come back. A new controller knows of none."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}
        self._left: dict[Key, str] = {}  # who left a chain last

    def leaves(self, key: Key, broker: str, now_us: int) -> None:
        """It leaves a chain. All chains that it leaves before the end of its pause are one matter."""
        self._left[key] = broker
        before = self._pauses.get(broker)
        if before is not None and now_us < before.until_us:
            return
        length_us = _FIRST_US
        if before is not None and now_us - before.until_us < before.length_us:
            length_us = min(2 * before.length_us, _LAST_US)
        self._pauses[broker] = _Pause(now_us + length_us, length_us)

    def is_away(self, broker: str, now_us: int) -> bool:
        """Whether its pause is not over."""
        pause = self._pauses.get(broker)
        return pause is not None and now_us < pause.until_us

    def another_left(self, key: Key, now_us: int) -> bool:
        """Whether a chain lacks a slow member already."""
        broker = self._left.get(key)
        return broker is not None and self.is_away(broker, now_us)

    def forget(self, key: Key) -> None:
        """The partition is gone."""
        self._left.pop(key, None)
