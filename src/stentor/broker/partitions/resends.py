"""Batches that a partition no longer remembers are looked for in its log, beside the loop (C32).

One search at a time per partition, in slices, in the threads that read history. Its result covers everything that
the producer wrote under that generation, so that a producer which sends a thousand old batches again costs one search.
Whoever waits for a search is not read from meanwhile: a stranger cannot ask for many at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from stentor import limits
from stentor.core import refusals
from stentor.core import replica_events as r
from stentor.core.dedupe import Resend

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

    from stentor.broker.disk_threads import DiskThreads
    from stentor.broker.partitions.interfaces import Sender
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEffect, ReplicaEvent
    from stentor.errors import StentorError
    from stentor.storage.earlier import Earlier
    from stentor.storage.memory_log import AnyLog


class _Result(msgspec.Struct):
    """What a search found, and for which question."""

    log: AnyLog
    epoch: int  # a later one may have cut the log
    producer_id: int
    generation: int
    before: int
    is_final: bool  # the generation was an old one already, and gets no more batches
    found: dict[int, Earlier]


class Searched(Protocol):
    """The partition whose log is searched."""

    log: AnyLog
    loop: AbstractEventLoop
    reads: DiskThreads

    @property
    def replica(self) -> Replica: ...

    def step(self, event: ReplicaEvent) -> None: ...
    def read_failed(self, error: StentorError) -> StentorError: ...
    def perform_one(self, effect: ReplicaEffect) -> None: ...


class Resends:
    """The searches of one partition."""

    def __init__(self, partition: Searched) -> None:
        self._partition = partition
        self._waiting: deque[tuple[r.Find, Sender, int]] = deque()  # with the epoch in which it was asked
        self._result: _Result | None = None
        self._searching = False
        self._forget: TimerHandle | None = None
        self.searches = 0

    def find(self, find: r.Find, sender: Sender) -> None:
        """Answer a publish once it is known whether the log has it."""
        if len(self._waiting) >= limits.PRODUCER_SEARCHES_WAITING_MAX:
            self._refuse(find, refusals.busy_searching())
            return
        sender.hold()
        self._waiting.append((find, sender, self._partition.replica.epoch))
        if not self._searching:
            self._next()

    def _next(self) -> None:
        """Answer everyone whom the last result answers; begin a search for the first whom it does not."""
        while self._waiting:
            find, sender, epoch = self._waiting[0]
            is_current = epoch == self._partition.replica.epoch
            if is_current and not self._is_answered_by(self._result, find):
                self._search(find)
                return
            self._waiting.popleft()
            self._conclude(find, epoch)
            sender.release()

    def _is_answered_by(self, result: _Result | None, find: r.Find) -> bool:
        publish, partition = find.publish, self._partition
        if result is None or result.log is not partition.log or result.epoch != partition.replica.epoch:
            return False
        if (result.producer_id, result.generation) != (publish.producer_id, publish.generation):
            return False
        if result.is_final or publish.sequence in result.found:
            return True
        # More may have been forgotten since, or the generation has become an old one.
        return result.before >= partition.replica.dedupe.remembered_from(publish.producer_id)

    def _search(self, find: r.Find) -> None:
        partition, publish = self._partition, find.publish
        before = partition.replica.dedupe.remembered_from(publish.producer_id)
        search = partition.log.search(publish.producer_id, publish.generation, before)
        is_final = find.error.detail["reason"] == "old_generation"
        who = (publish.producer_id, publish.generation)
        result = _Result(partition.log, partition.replica.epoch, *who, before, is_final, search.found)
        self._searching = True
        self.searches += 1

        def looked(over: bool | None, error: StentorError | None) -> None:
            if over is False and error is None and partition.log is result.log:
                partition.reads.submit(search.go_on, looked)
                return
            if error is not None:
                partition.read_failed(error)
            self._searching = False
            self._keep(result if partition.log is result.log else None)
            self._next()

        partition.reads.submit(search.go_on, looked)

    def _keep(self, result: _Result | None) -> None:
        self._result = result
        if self._forget is not None:
            self._forget.cancel()
        self._forget = self._partition.loop.call_later(limits.PRODUCER_SEARCH_KEPT_S, self._drop)

    def _drop(self) -> None:
        self._forget = None
        if not self._waiting:
            self._result = None

    def _conclude(self, find: r.Find, epoch: int) -> None:
        publish, partition = find.publish, self._partition
        if partition.replica.epoch != epoch:
            self._refuse(find, refusals.not_active())  # what was found may have been cut off since
            return
        assert self._result is not None
        known = self._result.found.get(publish.sequence)
        if known is None or known.checksum != publish.checksum:
            self._refuse(find, refusals.not_found(find.error))
        else:
            resend = Resend(known.base_offset, known.end_offset, known.appended_at_us, known.refused)
            partition.step(msgspec.structs.replace(publish, known=resend))

    def _refuse(self, find: r.Find, error: StentorError) -> None:
        self._partition.perform_one(r.Refuse(find.publish.ticket, error))
