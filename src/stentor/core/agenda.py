"""Which partitions the controller is to look at: all of them have their turn, a bounded number at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stentor import limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.core.records import Key

_LATER_US: Final = int(limits.PEER_HEARTBEAT_S * 1_000_000)


class Agenda:
    """Partitions to be looked at, in rounds: who comes during a round is in the next one."""

    def __init__(self) -> None:
        self._due: set[Key] = set()
        self._round: list[Key] = []  # those whose turn is next, the first one last
        self._later: set[Key] = set()
        self._later_us = 0  # not before

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, key: Key) -> None:
        self._due.add(key)

    def update(self, keys: Iterable[Key]) -> None:
        self._due.update(keys)

    def discard(self, key: Key) -> None:
        self._due.discard(key)

    def later(self, key: Key) -> None:
        """Look at it again, but not at once: nothing tells when it is time."""
        self._later.add(key)

    def recall(self, now_us: int) -> None:
        """What was put off is due again, with every tick; the more it is, the less often."""
        if now_us >= self._later_us:
            self._due |= self._later
            self._later_us = now_us + _LATER_US * (1 + len(self._later) // limits.PLANNED_PARTITIONS_MAX)
            self._later.clear()

    def take(self) -> list[Key]:
        """The next ones, in order: as many as one turn of the loop may look at."""
        taken: list[Key] = []
        while self._due and len(taken) < limits.PLANNED_PARTITIONS_MAX:
            if not self._round:
                self._round = sorted(self._due, reverse=True)
            key = self._round.pop()
            if key in self._due:
                self._due.discard(key)
                taken.append(key)
        return taken
