"""Where logs may begin (C23): at an offset that a head chose, and told; never above what is committed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from stentor.core.chain_messages import Down

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.virtual.copies import Copy

    from stentor.core import replica_events as r
    from stentor.core.records import Key
    from stentor.core.replica import Replica

Place = tuple["Key", str, int]  # a partition, a broker, a log


class Starts:
    """What heads chose, and what each copy was told."""

    def __init__(self, require: Callable[..., None]) -> None:
        self._require = require
        self._chosen: dict[Key, int] = defaultdict(int)  # the highest that any head chose
        self._told: dict[Place, int] = defaultdict(int)  # the highest that a copy may begin at

    def retained(self, copy: Copy, before: int, start: int) -> None:
        """A log let go of what is too old or too much: that is for the head."""
        if start == before:
            return
        self._require(copy.partition.replica.position.is_head, "not the head, and lets messages go", copy.place, start)
        self._chosen[copy.key] = max(self._chosen[copy.key], start)
        self._hear(copy, start)

    def begun(self, copy: Copy, start: int) -> None:
        """A memory topic begins anew, where its record says."""
        self._chosen[copy.key] = max(self._chosen[copy.key], start)
        self._hear(copy, start)

    def received(self, copy: Copy, event: r.Received) -> None:
        """A member hears of the head's start from the one before it."""
        if type(event.message) is Down and _is_predecessor(copy.partition.replica, event.sender, event.message.epoch):
            self._hear(copy, event.message.start)

    def reset(self, copy: Copy, start: int) -> None:
        """A log begins anew, where the one before it begins."""
        self._hear(copy, start)

    def _hear(self, copy: Copy, start: int) -> None:
        place = copy.key, copy.me.broker, copy.me.log_id
        self._told[place] = max(self._told[place], start)

    def check(self, copy: Copy, committed: int) -> None:
        start = copy.partition.log.start
        if not start:
            return
        told = self._told[copy.key, copy.me.broker, copy.me.log_id]
        self._require(start <= committed, "a log begins above what is committed", copy.place, start, committed)
        self._require(start <= told, "a log begins above what its member was told", copy.place, start, told)
        chosen = self._chosen[copy.key]
        self._require(start <= chosen, "a log begins above what any head chose", copy.place, start, chosen)


def _is_predecessor(replica: Replica, sender: str, epoch: int) -> bool:
    before = replica.position.predecessor
    return before is not None and before.broker == sender and epoch == replica.epoch
