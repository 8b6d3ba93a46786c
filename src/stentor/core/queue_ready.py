"""Which jobs of a partition are handed out next, at its head and nowhere else.

    noted jobs ──due──► ready: by priority, then by offset ─┐
    fresh jobs, by offset, from `scan` on ──────────────────┴──► take

A fresh job has priority 0. Where jobs of one key are done one after the other (`KeyOrder`), a job whose key is busy
waits for it, and those of other keys pass it by.

This is an index of `core.queue.QueueState`, made anew by every new head. It may name jobs that are gone: what a job is
now is looked up when its turn comes. What was taken and is not in the log yet is remembered until it is.

Each turn has `room` for so many jobs that are looked at one by one. When it is used up, nothing more is handed out in
this turn. While there is `news` that was not looked at, nothing is: an urgent job, or an earlier one of a key, may be
in it.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from stentor.core.queue import FRESH, QueueState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.core.queue_jobs import NotedJob

KEYS_WAITING_MAX: Final = 100_000
"""Jobs that wait for their keys; with more, a partition hands out nothing new until some of these keys are free."""


_GONE_MIN: Final = 1_000  # entries of jobs that are gone, before they are looked for

_COUNTED_MAX: Final = 4_096  # offsets that are looked at one by one to say how many jobs there are

JOBS_AT_ONCE: Final = 1_000
"""Jobs that a turn looks at one by one, or says something of: about 10 ms of the loop; the next turn goes on (C35). Of
fresh jobs, which stand next to each other, it may hand out as many as there are.
"""

_NEWS_SHARE: Final = 4  # jobs that changed, and cost as much to look at as one that is handed out

EXPIRED_AT_ONCE: Final = JOBS_AT_ONCE // 2
"""Jobs that are found too late in one turn; with more, nothing is handed out before these are written down."""


class KeyOrder:
    """Which keys are in work, and who waits for them."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._busy: dict[int, int] = {}  # the hash of a key: the job that has it
        self._keys: dict[int, int] = {}  # and the other way round
        self._waiting: dict[int, deque[int]] = {}
        self.waiting = 0
        self.free: deque[int] = deque()  # fresh jobs that waited, and whose turn it is
        for offset in state.held():
            self._busy[state.key_hash(offset)] = offset
        for offset, job in sorted(state.jobs.items()):
            if job.holder or (job.attempts and not job.dead):  # it is in work; or it failed, and parks its key
                self._busy[state.key_hash(offset)] = offset
        self._busy.pop(0, None)
        self._keys = {offset: key for key, offset in self._busy.items()}

    def begins(self, offset: int) -> bool:
        """Whether a job may begin now; otherwise it waits for its key."""
        key = self._state.key_hash(offset)
        if not key or self._busy.setdefault(key, offset) == offset:
            if key:
                self._keys[offset] = key
            return True
        self._waiting.setdefault(key, deque()).append(offset)
        self.waiting += 1
        return False

    def ended(self, offset: int) -> int | None:
        """A job is no more, or will not be tried again; who was waiting for its key, and still is."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        waiting = self._waiting.get(key)
        while waiting:
            self.waiting -= 1
            following = waiting.popleft()
            if self._waits(following):
                self._busy[key] = following
                self._keys[following] = key
                return following
        self._waiting.pop(key, None)
        del self._busy[key]
        return None

    def _waits(self, offset: int) -> bool:
        """Whether a job is still there, and nobody's."""
        job = self._state.jobs.get(offset)
        return self._state.mark(offset) == FRESH if job is None else not (job.holder or job.dead)


class QueueReady:
    """The jobs of one partition that can be handed out."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        state.news = deque(state.jobs)
        self._room = JOBS_AT_ONCE  # jobs that this turn may look at
        self._scan = state.first_open()  # no fresh job is below, but those that wait for their keys
        self._due: list[tuple[int, int]] = []  # heaps: (time, offset)
        self._ready: list[tuple[int, int]] = []  # (-priority, offset)
        self._uncommitted: list[int] = []
        self._rests: dict[int, int] = {}  # until when jobs are not handed out
        self._now_us = 0
        self._taken: set[int] = set()  # noted jobs that are given away, which is not in the log yet
        self._order = KeyOrder(state) if state.ordered else None
        self.expired: list[int] = []  # jobs that nobody began in time; for the head to write down

    def refresh(self, committed: int, wall_us: int, now_us: int) -> None:
        """Look at what changed, and at what is due by now, as far as one turn may. Pauses are counted by a clock that
        never jumps.
        """
        due, news = self._due, self._news
        self._now_us, self._room = now_us, JOBS_AT_ONCE
        changed = min(len(news), 2 * JOBS_AT_ONCE)
        self._room -= changed // _NEWS_SHARE
        for _ in range(changed):
            self._classify(news.popleft(), wall_us)
        if len(due) > 2 * len(self._rests) + _GONE_MIN:  # most of them are gone, or have moved
            due[:] = [(until_us, offset) for offset, until_us in self._rests.items() if until_us > now_us]
            heapify(due)
        while self._room > 0 and due and due[0][0] <= now_us:
            self._room -= 1
            self._push(heappop(due)[1])
        while self._room > 0 and self._uncommitted and self._uncommitted[0] < committed:
            self._room -= 1
            self._push(heappop(self._uncommitted))

    @property
    def _news(self) -> deque[int]:
        news = self._state.news
        assert news is not None  # there is a head
        return news

    @property
    def unfinished(self) -> bool:
        """Whether the turn ended before everything was looked at: the next one should come soon."""
        return self._room <= 0 or bool(self._news)

    @property
    def room(self) -> int:
        """How many jobs may be handed out one by one in this turn."""
        return 0 if self._news else max(0, self._room)

    def spend(self, jobs: int) -> None:
        """Note that the turn has looked at jobs elsewhere."""
        self._room -= jobs

    def _classify(self, offset: int, wall_us: int) -> None:
        job = self._state.jobs.get(offset)
        self._rests.pop(offset, None)
        if job is None or job.dead:
            self._free_key(offset)
            return
        if job.holder:
            return
        rest_us = job.due_us - wall_us
        if job.pause_us:
            rest_us = min(rest_us, job.pause_us)
        if rest_us > 0:
            self._rests[offset] = self._now_us + rest_us
            heappush(self._due, (self._now_us + rest_us, offset))
        else:
            self._push(offset)

    def _push(self, offset: int) -> None:
        job = self._state.jobs.get(offset)
        if job is not None:
            heappush(self._ready, (-job.priority, offset))

    @property
    def next_due_us(self) -> int | None:
        """When the next job is due that is not yet."""
        return self._due[0][0] if self._due else None

    def available(self, committed: int) -> int:
        """About how many jobs could be taken: not fewer than there are; and if there are few, about so many."""
        free = 0 if self._order is None else len(self._order.free)
        near = min(committed, self._scan + _COUNTED_MAX)  # steps stand between jobs: those do not count
        fresh = self._state.fresh_between(self._scan, near) + max(0, committed - near)
        return fresh + len(self._ready) + free

    def take(self, wanted: int, committed: int, wall_us: int) -> tuple[list[int], list[int]]:
        """The next jobs: ranges of fresh ones, and others. One that must be alone is."""
        fresh: list[int] = []
        noted: list[int] = []
        state = self._state
        while wanted > 0 and self.room:
            urgent = self._next_noted(committed, wall_us)
            self._room -= urgent is None
            if len(self.expired) >= EXPIRED_AT_ONCE or not self.room:
                break
            first = self._next_fresh(committed)
            if urgent is not None and (urgent[0] < 0 or first < 0 or urgent[1] < first):
                alone = state.jobs[urgent[1]].alone
                if alone and (fresh or noted):
                    break
                heappop(self._ready)
                if self._may_begin(urgent[1]):
                    self._taken.add(urgent[1])
                    noted.append(urgent[1])
                    wanted -= 1
                    if alone:
                        break
            elif first < 0:
                break
            elif self._order is not None:
                wanted -= self._take_in_order(first, fresh)
            else:
                stop = min(committed, first + wanted, committed if urgent is None else urgent[1])
                self._scan = state.fresh_run(first, stop)
                fresh += first, self._scan - first
                wanted -= self._scan - first
        return fresh, noted

    def _next_fresh(self, committed: int) -> int:
        order = self._order
        if order is not None:
            while self._room > 0 and order.free and self._state.mark(order.free[0]) != FRESH:
                self._room -= 1
                self._free_key(order.free.popleft())  # it was purged
            if order.free:
                return order.free[0] if self._room > 0 else -1
            if order.waiting >= KEYS_WAITING_MAX:
                return -1
        found = self._state.next_fresh(self._scan, committed)
        if found < 0:
            self._scan = max(self._scan, committed)
        return found

    def _take_in_order(self, offset: int, fresh: list[int]) -> int:
        order = self._order
        assert order is not None
        if order.free and order.free[0] == offset:
            order.free.popleft()
        else:
            self._scan = offset + 1
            if not order.begins(offset):
                return 0
        fresh += offset, 1
        return 1

    def _may_begin(self, offset: int) -> bool:
        return self._order is None or self._order.begins(offset)

    def _next_noted(self, committed: int, wall_us: int) -> tuple[int, int] | None:
        """The first of the ready ones that still is."""
        ready = self._ready
        while ready and self._room > 0 and len(self.expired) < EXPIRED_AT_ONCE:
            offset = ready[0][1]
            job = self._state.jobs.get(offset)
            self._room -= 1
            if job is None or not self._is_ready(offset, job, wall_us):
                heappop(ready)
            elif offset >= committed:
                heappop(ready)
                heappush(self._uncommitted, offset)
            else:
                return ready[0]
        return None

    def _is_ready(self, offset: int, job: NotedJob, wall_us: int) -> bool:
        if job.holder or job.dead or offset in self._taken or self._rests.get(offset, 0) > self._now_us:
            return False
        if job.expires_us and not job.attempts and job.expires_us <= wall_us:
            self._taken.add(offset)
            self.expired.append(offset)
            return False
        return True

    def ended(self, offsets: Iterable[int]) -> None:
        """Steps are in the log that end these jobs: who waited for their keys may begin."""
        if self._order is not None:
            for offset in offsets:
                self._free_key(offset)

    def _free_key(self, offset: int) -> None:
        following = None if self._order is None else self._order.ended(offset)
        if self._order is None or following is None:
            return
        job = self._state.jobs.get(following)
        if job is None:
            self._order.free.append(following)
        else:
            heappush(self._ready, (-job.priority, following))

    def give_up(self, offset: int) -> bool:
        """Hand a job out no more; False if somebody has it, or it is gone."""
        job = self._state.jobs.get(offset)
        if job is None or job.holder or job.dead or offset in self._taken:
            return False
        self._taken.add(offset)
        return True

    def applied(self) -> None:
        """All that was taken is in the log."""
        self._taken.clear()

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        for heap in (self._due, self._ready):
            assert not heap or heap[0] == min(heap)
