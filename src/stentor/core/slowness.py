"""Which member of a chain is slow, and how long it stays away (C14).

Every publish waits for the slowest disk of its chain. Brokers say with each heartbeat how long their syncs take, and
whether every one of them took longer than a second for five seconds. Such a member leaves if

    its neighbours are ten times as fast    the median of their mean times is below a tenth of its own
    somebody is not slow                    where all take longer than a second, leaving helps nobody
    it is the only one                      the slowest goes; another may only once that one is back

It comes back after a pause that doubles each time, and is forgotten once it was well for as long as the pause.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

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


class SyncTimes:
    """The syncs of one broker in the last seconds."""

    def __init__(self) -> None:
        self._seconds = [-1] * _SECONDS  # which second each place is about
        self._counts = [0] * _SECONDS
        self._sums = [0] * _SECONDS
        self._slow_since_us: int | None = None  # when the first sync began of those that were all slow
        self._ended_us = 0  # when the last one ended

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
        if not count:
            return SyncPace()
        since = self._slow_since_us
        return SyncPace(
            sum(self._sums[place] for place in recent) // count,
            since is not None and now_us - since >= _WINDOW_US,
        )


def slowest(members: Iterable[Member], paces: Mapping[str, SyncPace]) -> Member | None:
    """Return the member that holds up all others; None if nobody does, or if all are slow."""
    known = {member: paces[member.broker] for member in members if paces.get(member.broker, SyncPace()).mean_us}
    if not any(pace.mean_us <= _SLOW_US for pace in known.values()):
        return None
    slow = [member for member, pace in known.items() if pace.slow and _stands_out(member, known)]
    return max(slow, key=lambda member: known[member].mean_us, default=None)


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
