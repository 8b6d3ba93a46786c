"""Joiners that failed: each is not tried again for a while, and for twice as long each time.

Every try may hold up commits. What counts is a failure in an epoch: a change that is planned once more, because its
outcome was not known, is the same one. A broker that was restarted begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from stentor import limits

if TYPE_CHECKING:
    from stentor.core.records import Key, Member

_FIRST_US: Final = int(limits.JOINER_HELD_OFF_S * 1_000_000)
_LAST_US: Final = int(limits.JOINER_HELD_OFF_S_MAX * 1_000_000)


class _Failure(msgspec.Struct, frozen=True):
    incarnation: int
    epoch: int
    until_us: int
    delay_us: int


class HeldOff:
    """Which brokers are not tried as joiners of which partitions."""

    def __init__(self) -> None:
        self._failures: dict[tuple[Key, str], _Failure] = {}

    def hold(self, key: Key, epoch: int, joining: Member, now_us: int) -> None:
        """It failed in this epoch."""
        before = self._failures.get((key, joining.broker))
        delay_us = _FIRST_US
        if before is not None and before.incarnation == joining.incarnation:
            if before.epoch == epoch:
                return
            delay_us = min(2 * before.delay_us, _LAST_US)
        self._failures[key, joining.broker] = _Failure(joining.incarnation, epoch, now_us + delay_us, delay_us)

    def is_held(self, key: Key, broker: str, incarnation: int | None, now_us: int) -> bool:
        """Whether a life of a broker is held off now."""
        failure = self._failures.get((key, broker))
        return failure is not None and failure.incarnation == incarnation and now_us < failure.until_us

    def forget(self, key: Key, broker: str) -> None:
        """It has become a member."""
        self._failures.pop((key, broker), None)
