"""Where cursors are, for retention: what the head of a partition knows of the cursors that its topic waits for.

The head of a partition passes every move on, and so knows where a cursor is from the first one on. A new head does not
know it, and asks; until it knows, nothing is deleted. What was known in an earlier epoch counts no more: another head
may have moved the cursor back meanwhile.

Below the feature level of cursors the store says how far recorders are; nobody writes that any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.core.cursors import RECORDER
from stentor.core.names import CURSORS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.ports import Clock


class Asked(msgspec.Struct, frozen=True):
    """When a cursor was asked for: what the answer is good for."""

    epoch: int  # of the partition
    stored: bool  # the store had something to say, which is taken over without passing here


class _Known(msgspec.Struct, frozen=True):
    """A position, as it was told."""

    asked: Asked
    at: int  # the commit point of the cursor's own partition
    position: int


class CursorPositions:
    """The cursors that the partitions of this broker wait for."""

    def __init__(
        self, clock: Clock, catalogue: Catalogue, partitions: Mapping[Key, Partition], *, enabled: Callable[[], bool]
    ) -> None:
        self._clock = clock
        self._catalogue = catalogue
        self._partitions = partitions
        self._enabled = enabled  # whether every broker of the cluster knows cursors (C27)
        self._known: dict[tuple[Key, str], _Known] = {}
        self._wanted: dict[tuple[int, str], None] = {}  # topics and cursors to ask for
        self._asked_at: dict[tuple[int, str], float] = {}

    # --- questions, in any thread ---------------------------------------------------------------

    def position(self, key: Key, name: str) -> int | None:
        """Everything of a partition below this offset is done with; None while that is not known, and asked for."""
        found = self._find(key, name)
        if found is None:
            self._wanted[key[0], name] = None
        return found

    def _find(self, key: Key, name: str) -> int | None:
        stored = self._catalogue.recorded.get(key, (0, 0))[0] if name == RECORDER else 0
        if not self._enabled():
            return stored if name == RECORDER else None
        if CURSORS_TOPIC not in self._catalogue.topics:
            return stored
        known = self._known.get((key, name))
        if known is None or known.asked != self._now(key):
            return None
        return max(known.position, stored)

    def _now(self, key: Key) -> Asked | None:
        partition = self._partitions.get(key)
        return None if partition is None else Asked(partition.replica.epoch, key in self._catalogue.recorded)

    def look_again(self, key: Key, name: str) -> None:
        """Messages wait for a cursor: see now and then whether it has moved in another way."""
        wish = key[0], name
        if self._clock.monotonic() - self._asked_at.get(wish, 0.0) > limits.CURSOR_REFRESH_S:
            self._wanted[wish] = None

    def unknown(self, topic_id: int) -> list[tuple[int, str]]:
        """Cursors of a topic that people are shown, and that are not known here."""
        missing: dict[tuple[int, str], None] = {}
        for key in self.led(topic_id):
            for name in self._partitions[key].settings.waits_for or (RECORDER,):
                if self._find(key, name) is None:
                    missing[topic_id, name] = None
        return list(missing)

    def shown(self, key: Key) -> int:
        """What people are shown: the lowest position that retention waits for, else how far recorders are."""
        partition = self._partitions.get(key)
        names = (partition.settings.waits_for if partition is not None else ()) or (RECORDER,)
        return min(self._find(key, name) or 0 for name in names)

    # --- answers, in the loop -------------------------------------------------------------------

    def led(self, topic_id: int) -> dict[Key, Asked]:
        """The partitions of a topic that this broker leads: called before a cursor of it is asked for."""
        topic = self._catalogue.by_id.get(topic_id)
        asked: dict[Key, Asked] = {}
        for key in () if topic is None else topic.keys:
            partition, now = self._partitions.get(key), self._now(key)
            if now is not None and partition is not None and partition.replica.position.is_head:
                asked[key] = now
        return asked

    def learn(self, name: str, positions: dict[int, int], at: int, led: dict[Key, Asked]) -> None:
        """A cursor is there, as its head says: `at` tells which of two answers is newer."""
        for key, asked in led.items():
            known = self._known.get((key, name))
            if known is not None and known.asked == asked and known.at > at:
                del self._known[key, name]  # answers overtook each other, or its log was cut: ask again
            elif self._waits(key, name):
                self._known[key, name] = _Known(asked, at, positions.get(key[1], 0))

    def _waits(self, key: Key, name: str) -> bool:
        """Whether anybody here looks at this cursor: the others take no memory."""
        partition = self._partitions.get(key)
        return partition is not None and (name == RECORDER or name in partition.settings.waits_for)

    def wanted(self) -> list[tuple[int, str]]:
        """What to ask for; said once."""
        if not self._wanted:
            return []
        wanted, self._wanted = self._wanted, {}
        now = self._clock.monotonic()
        for wish in list(wanted):
            self._asked_at[wish] = now
        return list(wanted)

    def tidy(self) -> None:
        """Forget what is about partitions that are not here any more."""
        for key, name in [known for known in self._known if known[0] not in self._partitions]:
            del self._known[key, name]
        for wish in [wish for wish in self._asked_at if wish[0] not in self._catalogue.by_id]:
            del self._asked_at[wish]
