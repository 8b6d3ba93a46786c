"""Which messages a worker gets next: order is kept by strands.

Messages that must be handled one after the other are a *strand*: a partition, or some of the keys of one. Workers get
*parcels*, a few messages of one strand. A strand that has a parcel with a worker gives the next one to that one alone,
which handles its parcels in turn. So two messages of a strand are never in work at the same time.

    taken ──► strand a  [m0 m3 m4 …]  ──parcel──► worker 0   [m0 m3]
              strand b  [m1 m2 …]     ──parcel──► worker 1   [m1]
              strand c  [m5 …]        waits for a worker that is free

Without order a partition is a strand too, but one that any number of workers may share.

What is called back or was not come to returns to the front of its strand. It returns latest first, so the order stays.
No clock, no I/O: `client.workers` drives it.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final, Literal
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.client.workers_source import WorkItem

OrderedBy = Literal["key", "partition"]
"""What keeps its order: messages of one key, or all of a partition."""

_STRANDS_PER_WORKER: Final = 16  # of one partition's keys: those that share a strand with a slow one wait for it


class Strand:
    """Messages that wait, in order."""

    __slots__ = ("gone", "in_work", "items", "partition", "shared", "waits")

    def __init__(self, partition: tuple[str, int], *, shared: bool) -> None:
        self.partition = partition
        self.shared = shared  # several workers may have parcels of it
        self.items: list[WorkItem] = []
        self.in_work = 0  # parcels that workers have
        self.waits = False  # it is listed as ready
        self.gone = False  # nobody wants its messages any more


class Parcel:
    """Messages of one strand, with one worker."""

    __slots__ = ("errors", "finished", "left", "messages", "number", "rest", "settled", "started", "strand", "until")

    def __init__(self, number: int, strand: Strand, messages: list[WorkItem]) -> None:
        self.number = number
        self.strand = strand
        self.messages = messages
        self.left: Iterator[WorkItem] = iter(messages)  # what the worker has not begun: one iterator for all who take
        self.finished = 0  # how many the handler has returned from; its worker counts, others look
        self.started = 0  # how many it was called with, if somebody can take them away meanwhile
        self.until = math.inf  # a message may be begun until then without asking, by the clock of `client.certain`
        self.settled = 0  # how many at its beginning were settled while the worker is at the others
        self.rest = 0  # how many at its end were taken back
        self.errors: list[tuple[WorkItem, Exception]] = []  # messages whose handler raised

    @property
    def leased(self) -> bool:
        """Whether somebody else may get these messages when a lease is over."""
        return self.until != math.inf

    @property
    def kept(self) -> list[WorkItem]:
        """Without what was taken back or is settled."""
        if not self.rest and not self.settled:
            return self.messages
        return self.messages[self.settled : len(self.messages) - self.rest]

    def keep_only(self, messages: list[WorkItem]) -> None:
        """Before a worker has it: the others are not to be done any more."""
        self.messages, self.left = messages, iter(messages)

    def take_rest(self) -> int:
        """Take what was not begun, in one step: whoever works on it finds it used up. How many that were."""
        return len(list(self.left))


class WorkPlan:
    """All that waits for a worker."""

    def __init__(self, ordered_by: OrderedBy | None, workers: int) -> None:
        self._ordered_by = ordered_by
        self._workers = workers
        self._per_partition = _STRANDS_PER_WORKER * workers if ordered_by == "key" and workers > 1 else 1
        self._strands: dict[tuple[str, int], list[Strand]] = {}
        self._ready: deque[Strand] = deque()
        self._numbers = count(1)
        self._without_key = 0
        self.waiting = 0  # messages

    def add(self, messages: list[WorkItem]) -> None:
        """Messages of one partition were taken."""
        first = messages[0]
        partition = first.topic, first.partition
        strands = self._strands.get(partition)
        if strands is None:
            shared = self._ordered_by is None
            strands = [Strand(partition, shared=shared) for _ in range(self._per_partition)]
            self._strands[partition] = strands
        self.waiting += len(messages)
        if len(strands) == 1:
            strands[0].items += messages
            self._list(strands[0])
            return
        many = len(strands)
        for message in messages:
            key = message.key
            if key is None:
                self._without_key += 1
                strands[self._without_key % many].items.append(message)
            else:
                strands[crc32(key) % many].items.append(message)
        for strand in strands:
            self._list(strand)

    def _list(self, strand: Strand) -> None:
        if strand.items and not strand.waits and (strand.shared or not strand.in_work):
            strand.waits = True
            self._ready.append(strand)

    def cut(self, size: int, behind: Parcel | None = None) -> Parcel | None:
        """The next parcel of a strand that is free; else of the strand that this worker has a parcel of."""
        while self._ready:
            strand = self._ready.popleft()
            strand.waits = False
            if strand.items and not strand.gone:
                return self._parcel(strand, size)
        if behind is not None and behind.strand.items and not behind.strand.gone:
            return self._parcel(behind.strand, size)
        return None

    def _parcel(self, strand: Strand, size: int) -> Parcel:
        if strand.shared:
            size = min(size, -(-len(strand.items) // self._workers))  # or one worker has all, and the others nothing
        messages = strand.items[:size]
        del strand.items[:size]
        strand.in_work += 1
        self.waiting -= len(messages)
        self._list(strand)
        return Parcel(next(self._numbers), strand, messages)

    def put_back(self, parcel: Parcel, messages: list[WorkItem]) -> list[WorkItem]:
        """Nobody has finished these messages of a parcel: they come first now. Those that nobody wants are returned."""
        strand = parcel.strand
        if strand.gone:
            return messages
        strand.items[:0] = messages
        self.waiting += len(messages)
        self._list(strand)
        return []

    def release(self, parcel: Parcel) -> None:
        """Its worker has it no more."""
        parcel.strand.in_work -= 1
        self._list(parcel.strand)

    def spare(self, topic: str, partition: int, most: int) -> list[WorkItem]:
        """Take out some that wait of a partition, the last ones: others need them."""
        found: list[WorkItem] = []
        for strand in self._strands.get((topic, partition), ()):
            count = min(len(strand.items), most - len(found))
            if count:
                found += strand.items[-count:]
                del strand.items[-count:]
        self.waiting -= len(found)
        return found

    def forget(self, topic: str, partition: int) -> list[WorkItem]:
        """Nobody wants what waits of a partition: what that was."""
        found: list[WorkItem] = []
        for strand in self._strands.pop((topic, partition), ()):
            strand.gone = True
            found += strand.items
            strand.items = []
        self.waiting -= len(found)
        return found

    def forget_all(self) -> list[WorkItem]:
        """The same for all of them."""
        return [message for topic, partition in list(self._strands) for message in self.forget(topic, partition)]
