"""The jobs of a queue's partition: a state that is derived from its log (`core.derived`).

Every message of a queue is a job. What becomes of it stands in control batches of the same log, as steps of the head
(`core.queue_records`), so whoever replaces the head knows all that it knew.

Layout. A byte for every offset from the first job that has not ended to the log's end:

    marks    E E B H H E N F F F F F F E F F F …       E ended, or no job      H held, by its first attempt
             │                 │                       F fresh, never tried    B held, and its handler has begun
             base              first job that nobody took                      N noted: `jobs` has the rest

    numbers  0 0 7 7 4 …     who has, or had, the attempt: numbers of holders, up to the last job that was taken
    hashes   8 bytes each    of keys, only where two jobs of one key may not be in work at once

So jobs that are taken and finished in ranges cost a few steps in C for each range, and the first that is open is found
among a million at the speed of memory. Only jobs that are late, urgent, limited in time, or have failed are objects.

Views. This is the applied view: the head decides on it, and tells nobody before what it looked at is committed. Of the
committed view only one number is kept, the first job that has not ended (`committed_first`): retention must not delete
what a new head may find unfinished. After a cut the state is derived again, from the snapshot of the last segment.

Invariants: every noted offset has a job and no other has one; marks reach to the log's end; a holder's count is the
number of jobs that it holds.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.core import queue_jobs
from stentor.core import queue_records as r
from stentor.core.queue_jobs import Burial, Hand, Holder, NotedJob, QueueSnapshot, UniqueNames, decode_snapshot, pairs
from stentor.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stentor.core.records import Batch

FRESH: Final = 0
ENDED: Final = 1
HELD: Final = 2
NOTED: Final = 3
BEGUN: Final = 4

_TRIM_MIN: Final = 65_536  # ended jobs at the front, before they are forgotten: seldom, since others move then
_BLOCKS: Final = tuple(bytes([ENDED]) * size for size in (65_536, 1_024))
_OPEN: Final = re.compile(b"[^\x01]")
_TAKEN: Final = re.compile(b"[^\x00]")
_WORK: Final = re.compile(b"[\x02\x04]")
_HELD_STRETCH: Final = re.compile(b"[\x02\x04]+|\x03")  # first attempts next to each other, or a job with more to note
_HAND_SPARE: Final = 16_384  # offsets that a hand may name in vain, beyond as many as its holder holds
_SPARE: Final = 32  # numbers that are kept of a holder in vain, beyond twice as many as it holds (S7)


_SAMPLE_BYTES: Final = 65_536  # of what may be compressed

_TIME_US_MAX: Final = 2**62
"""No time is later: what is said in bytes may be, and a sum of two such times must fit into a snapshot."""


def _packed(data: bytes) -> bytes:
    """Return something long for a snapshot, which the loop waits for. Hashes of many keys do not get smaller, and to
    find that out for all of them takes a tenth of a second (C35): whoever unpacks this does not see the difference.
    """
    sample = data[:_SAMPLE_BYTES]
    return zlib.compress(data, 1 if 2 * len(zlib.compress(sample, 1)) < len(sample) else 0)


def _time(us: int) -> int:
    return min(max(us, 0), _TIME_US_MAX)


class QueueState:
    """The jobs of one partition: a `core.derived.DerivedState`."""

    name: Final = "queue"
    wants_bodies: Final = True
    undoes: Final = False  # what a range of jobs was before is not kept; the log is read again from its last segment on
    vital: Final = True
    came_later: Final = False

    def __init__(
        self,
        steps: Callable[[bytes | memoryview], Iterable[r.QueueStep | None]],
        terms: Callable[[Batch, bytes | memoryview], Iterable[tuple[int, r.JobTerms | None]]],
        hashes: Callable[[Batch, bytes | memoryview], list[int] | None] | None = None,
    ) -> None:
        """`hashes`: of the keys of a batch, where jobs of one key are done one after the other; 0: no key. All three
        say None for what cannot be read, and raise nothing because of bytes.
        """
        self._steps = steps
        self._terms = terms
        self._hashes_of = hashes
        self.news: deque[int] | None = None  # offsets of noted jobs that changed, if somebody wants to hear of them
        self.committed_first = 0  # every job below has ended, and that is committed
        self._firsts: deque[tuple[int, int]] = deque()  # (end offset of a batch, the first open job after it)
        self.skipped = 0  # records that could not be applied, or only in part, since this copy was opened
        self._begin(0)

    def _begin(self, base: int) -> None:
        self._base = base
        self._first = base  # no open job is below
        self._marks = bytearray()
        self._numbers = array("I")
        self._hashes = array("Q")
        self.jobs: dict[int, NotedJob] = {}
        self._waiting: dict[int, int] = {}  # of these: how many nobody holds, by their attempts
        self._working: dict[int, int] = {}  # and how many somebody holds; the dead are in neither
        self.holders: dict[bytes, Holder] = {}
        self.gone: OrderedDict[bytes, Holder] = OrderedDict()  # in the order in which they left
        self._by_number: dict[int, Holder] = {}
        self._hands: dict[int, Hand] = {}  # by the same numbers
        self._holders_bytes = 0  # about the memory of all holders
        self._lighter: set[int] = set()  # numbers of holders that have let go of jobs in the step that is applied
        self._last_number = 0
        self.dead: OrderedDict[int, None] = OrderedDict()  # jobs that wait to be buried, in order
        self.burial: Burial | None = None
        self.burials = 0
        self.series = 0  # which of the partition's producer ids the next burial is published under
        self._unique = UniqueNames({})
        self.finished = self.died = 0  # jobs, since the log began
        self._torn = False  # this copy of the log is damaged
        self._fence = 0  # where the steps are that are being applied

    # --- questions ------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The log's end."""
        return self._base + len(self._marks)

    @property
    def ordered(self) -> bool:
        """Whether two jobs of one key are never in work at once."""
        return self._hashes_of is not None

    def first_open(self) -> int:
        """The first job that has not ended; the log's end if there is none."""
        marks, place = self._marks, max(0, self._first - self._base)
        for block in _BLOCKS:
            size = len(block)
            while marks.startswith(block, place):
                place += size
        self._first = self.next_open(self._base + place)
        return self._first

    def next_open(self, offset: int) -> int:
        """The first job from an offset on that has not ended; the log's end if there is none."""
        found = _OPEN.search(self._marks, max(0, offset - self._base))
        return self.end if found is None else self._base + found.start()

    def next_fresh(self, offset: int, end: int) -> int:
        """The first job from an offset on, below an end, that was never tried; -1: there is none."""
        found = self._marks.find(FRESH, max(0, offset - self._base), max(0, end - self._base))
        return -1 if found < 0 else self._base + found

    def fresh_run(self, offset: int, end: int) -> int:
        """Where the run of fresh jobs ends that begins at an offset."""
        found = _TAKEN.search(self._marks, offset - self._base, end - self._base)
        return min(end, self.end) if found is None else self._base + found.start()

    def fresh_between(self, offset: int, end: int) -> int:
        """Return how many jobs from an offset on, below an end, were never tried."""
        return self._marks.count(FRESH, max(0, offset - self._base), max(0, end - self._base))

    def noted_below(self, end: int, first: int = 0) -> Iterator[int]:
        """The jobs below an offset that are more than a byte, in order. Nothing may change meanwhile."""
        place = max(0, first - self._base, self._first - self._base) - 1
        stop = max(0, end - self._base)
        while (place := self._marks.find(NOTED, place + 1, stop)) >= 0:
            yield self._base + place

    def purge_end(self, first: int, end: int, most: int) -> int:
        """Return up to where a purge that comes from an offset may go if it ends this many jobs with terms."""
        for offset in self.noted_below(end, first):
            if not self.jobs[offset].holder:
                if not most:
                    return offset
                most -= 1
        return end

    def key_hash(self, offset: int) -> int:
        """Of a job's key; 0 without one."""
        return self._hashes[offset - self._base]

    def mark(self, offset: int) -> int:
        """What a job is."""
        place = offset - self._base
        return self._marks[place] if 0 <= place < len(self._marks) else ENDED

    def attempts(self, offset: int) -> int:
        """Return how many attempts of a job count, the one that is under way among them."""
        job = self.jobs.get(offset)
        return job.attempts if job is not None else int(self.mark(offset) in (HELD, BEGUN))

    def has_begun(self, offset: int) -> bool:
        """Return whether the holder of a job has said that its handler has begun."""
        job = self.jobs.get(offset)
        return job.begun if job is not None else self.mark(offset) == BEGUN

    def holds(self, holder: Holder, offset: int, attempt: int) -> bool:
        """Whether this very attempt is the one that counts, and the holder's own."""
        return self.holder_at(offset, attempt) == holder.number

    def holder_at(self, offset: int, attempt: int) -> int:
        """The number of who has this attempt; 0: it is not one that counts."""
        job = self.jobs.get(offset)
        if job is not None:
            return job.holder if job.attempts == attempt else 0
        return self._numbers[offset - self._base] if attempt == 1 and self.mark(offset) in (HELD, BEGUN) else 0

    def holds_run(self, holder: Holder, first: int, count: int) -> bool:
        """The same for first attempts of jobs next to each other."""
        place = first - self._base
        if place < 0 or self._held_in(place, count) != count:
            return False
        return self._numbers[place : place + count] == array("I", [holder.number]) * count

    def held(self) -> Iterator[int]:
        """The jobs that are held by their first attempts."""
        place = -1
        while (found := _WORK.search(self._marks, place + 1)) is not None:
            place = found.start()
            yield self._base + place

    def held_by(self, holder: Holder) -> Iterator[int]:
        """The jobs that somebody holds, in the order of the log. Nothing may change meanwhile."""
        for first, count in self._runs_of(holder):
            yield from range(first, first + count)

    def _runs_of(self, holder: Holder) -> Iterator[tuple[int, int]]:
        """Yield the jobs that somebody holds as first and count, in the order of the log.

        Who works quickly holds many jobs next to each other: a stretch of them is one comparison.
        """
        base, marks, numbers, number = self._base, self._marks, self._numbers, holder.number
        following = base  # nothing below is looked at again
        for first, count in sorted(pairs(list(self._hands[number].runs))):
            place, end = max(first, following) - base, first + count - base
            while place < end and (found := _HELD_STRETCH.search(marks, place, end)) is not None:
                begin, place = found.span()
                if marks[begin] == NOTED:
                    if self.jobs[base + begin].holder == number:
                        yield base + begin, 1
                elif numbers[begin:place] == array("I", [number]) * (place - begin):
                    yield base + begin, place - begin
                else:
                    yield from ((base + each, 1) for each in range(begin, place) if numbers[each] == number)
            following = max(following, first + count)

    def uses(self, name: bytes, now_us: int) -> bool:
        """Whether the name of a unique job is in use."""
        return self._unique.until.get(name, 0) > now_us

    def _held_in(self, place: int, count: int) -> int:
        """How many of some marks are those of jobs in their first attempts. Nearly always none has begun that ends."""
        found = self._marks.count(HELD, place, place + count)
        return found if found == count else found + self._marks.count(BEGUN, place, place + count)

    def statistics(self) -> dict[str, int]:
        """How many jobs there are, of every kind."""
        return {
            "waiting": self._marks.count(FRESH) + sum(self._waiting.values()),
            "held": sum(holder.held for holder in self.holders.values()),
            "tried": sum(count for attempts, count in self._waiting.items() if attempts),
            "dead": len(self.dead) + (0 if self.burial is None else len(self.burial.offsets)),
            "holders": len(self.holders),
            "finished": self.finished,
            "died": self.died,
        }

    @property
    def memory(self) -> int:
        """About how many bytes of memory the jobs take that have not ended, and who works on them."""
        arrays = len(self._marks) + 4 * len(self._numbers) + 8 * len(self._hashes)
        jobs = queue_jobs.NOTED_BYTES * len(self.jobs) + queue_jobs.NAME_BYTES * len(self._unique.until)
        return arrays + jobs + self._holders_bytes

    def dying(self, attempts_max: int) -> int:
        """Return how many jobs die if the attempt that comes, or is under way, fails."""
        noted = sum(count for attempts, count in self._waiting.items() if attempts + 1 >= attempts_max)
        noted += sum(count for attempts, count in self._working.items() if attempts >= attempts_max)
        first = attempts_max == 1
        return noted + (sum(map(self._marks.count, (FRESH, HELD, BEGUN))) if first else 0)

    # --- derived from the log -------------------------------------------------------------------

    def allows(self, batch: Batch, body: bytes | memoryview) -> bool:
        """Whether no name of a unique job is in use. The header's time is that at which it would be appended."""
        names = [terms.unique for _, terms in self._terms(batch, body) if terms is not None and terms.unique]
        now_us = batch.appended_at_us
        return len(set(names)) == len(names) and not any(self.uses(name, now_us) for name in names)

    def apply(self, batch: Batch, body: bytes | memoryview) -> None:
        """A batch is in the log now."""
        span = batch.end_offset - batch.base_offset
        if batch.base_offset != self.end:
            self._skip_to(batch.base_offset)
        self._marks.extend(bytes([ENDED]) * span if batch.passed_over else bytes(span))
        now_us = _time(batch.appended_at_us)
        if self._hashes_of is not None:
            self._hashes.extend([0] * span if batch.passed_over else self._found_hashes(batch, body, span))
        if batch.control:
            if batch.generation == r.QUEUE:
                self._fence = batch.base_offset
                for step in self._steps(body):
                    self._apply_whole(step, now_us)
                self._trim()
        elif not batch.passed_over:
            for index, terms in self._terms(batch, body):
                if terms is None or index >= span:
                    self.skipped += 1
                else:
                    self._note(batch.base_offset + index, terms, now_us)
        first = self.first_open()
        if first != (self._firsts[-1][1] if self._firsts else self.committed_first):
            self._firsts.append((batch.end_offset, first))

    def _found_hashes(self, batch: Batch, body: bytes | memoryview, span: int) -> list[int]:
        """Of the keys of a batch, one for each offset."""
        assert self._hashes_of is not None
        found = self._hashes_of(batch, body)
        if found is None or len(found) != span:
            self.skipped += 1
            return [0] * span
        return found

    def _skip_to(self, offset: int) -> None:
        """This copy of the log is damaged, and what it should have before is not there."""
        missing = offset - self.end
        assert missing > 0
        self._torn = True
        self._marks.extend(bytes([ENDED]) * missing)
        if self._hashes_of is not None:
            self._hashes.extend([0] * missing)

    def commit(self, end: int) -> None:
        """Everything below this offset is committed."""
        firsts = self._firsts
        while firsts and firsts[0][0] <= end:
            self.committed_first = firsts.popleft()[1]

    def cut(self, end: int) -> None:
        """Never asked: it is derived again."""

    def _tell(self, offset: int) -> None:
        if self.news is not None:
            self.news.append(offset)

    def _note(self, offset: int, terms: r.JobTerms, now_us: int) -> None:
        """A job with terms."""
        if terms.unique:
            self._unique.use(terms.unique, now_us + terms.unique_us, now_us)
        if terms.origin >= 0:
            self._move(terms.origin, offset)
            return
        due_us = terms.at_us or (now_us + terms.delay_us if terms.delay_us else 0)
        expires_us = now_us + terms.ttl_us if terms.ttl_us else 0
        if due_us or expires_us or terms.priority:
            job = NotedJob(due_us=due_us, pause_us=terms.delay_us, priority=terms.priority, expires_us=expires_us)
            self._put(offset, job)

    def _tally(self, job: NotedJob, step: int) -> None:
        """Count a job that is noted as it is now; uncount it before it changes. There may be a million (C35)."""
        if job.dead:
            return
        counts = self._working if job.holder else self._waiting
        count = counts.get(job.attempts, 0) + step
        if count:
            counts[job.attempts] = count
        else:
            del counts[job.attempts]

    def _put(self, offset: int, job: NotedJob) -> None:
        """Note a job; one that was noted before is not counted now."""
        self.jobs[offset] = job
        self._tally(job, 1)
        self._marks[offset - self._base] = NOTED
        self._tell(offset)

    def _move(self, origin: int, offset: int) -> None:
        """A job was appended again, so that its old place need not be kept; unless it ended or began meanwhile."""
        job = self.jobs.get(origin)
        if job is None or job.holder or job.dead:
            self._marks[offset - self._base] = ENDED
            return
        self._end(origin)
        self._put(offset, job)

    # --- steps ----------------------------------------------------------------------------------

    def _apply_whole(self, step: r.QueueStep | None, now_us: int) -> None:
        """Whatever a step says, the rest of the log counts (C33): of what speaks of jobs that cannot be, that is left
        out. Behind damage, a step may speak of what is not there (K2).
        """
        if step is None:
            self.skipped += 1
            return
        if self._torn or not self._fits(step):
            self.skipped += not self._torn
            step = queue_jobs.without_missing(
                step,
                range(self._base, self.end),
                self.jobs,
                is_fresh=lambda offset: self.mark(offset) == FRESH,
                is_open=lambda offset: self.mark(offset) != ENDED,
            )
        self._apply(step, now_us)
        while self._lighter:
            self._shorten(self._lighter.pop())

    def _fits(self, step: r.QueueStep) -> bool:
        """Whether all jobs that a step speaks of are there. Every step of a head that works does."""
        match step:
            case r.Took(_, _, fresh, noted):
                return self._has_runs(fresh) and all(map(self.jobs.__contains__, noted))
            case r.Settled(_, _, done, back):
                return self._has_runs(done) and all(self._has(each.offset) for each in back)
            case r.Returned(back) | r.HolderLeft(_, back):
                return all(self._has(each.offset) for each in back)
            case r.Bury(_, _, offsets):
                return all(map(self.jobs.__contains__, offsets))
        return True

    def _has(self, offset: int) -> bool:
        return self._base <= offset < self.end

    def _has_runs(self, runs: list[int]) -> bool:
        """Whether ranges of offsets lie between the first job and the log's end."""
        base, end = self._base, self.end
        return len(runs) % 2 == 0 and all(
            base <= first and 0 <= count <= end - first for first, count in zip(runs[::2], runs[1::2], strict=True)
        )

    def _apply(self, step: r.QueueStep, now_us: int) -> None:
        match step:
            case r.Took():
                self._took(step)
            case r.Settled():
                self._settled(step, now_us)
            case r.Returned(back):
                for each in back:
                    self._back(each, now_us)
            case r.HolderLeft():
                self._left(step, now_us)
            case r.Bury(holder, number, offsets, secret, proven, series):
                for offset in offsets:
                    self.dead.pop(offset, None)
                self.burials = max(self.burials, number)
                self.burial = Burial(number, offsets, holder, secret, proven, series)
                self._holder(holder, secret)
            case r.Buried(number, left):
                self._buried(number, set(left))
            case r.Purged(until):
                self._purge(until)

    def _holder(self, name: bytes, secret: bytes = b"") -> Holder:
        holder = self.holders.get(name)
        if holder is None:
            self._last_number += 1
            holder = self.holders[name] = self._by_number[self._last_number] = Holder(self._last_number)
            self._hands[self._last_number] = Hand()
            self._weigh(holder)
        if secret:
            holder.secret = secret
        return holder

    def _weigh(self, holder: Holder) -> None:
        """Count the memory of a holder that has changed."""
        hand = self._hands[holder.number]
        size = holder.size + hand.runs.itemsize * len(hand.runs)
        self._holders_bytes += size - hand.size
        hand.size = size

    def _shorten(self, number: int) -> None:
        """Forget most of what a holder got and holds no more: whoever gives back what it gets leaves nothing behind."""
        holder = self._by_number.get(number)
        if holder is None:
            return
        hand, most = self._hands[number], 2 * max(0, holder.held) + _SPARE
        if len(holder.noted) > most:
            noted = zip(holder.noted, holder.attempts, strict=False)
            kept = [each for each in noted if self.holder_at(*each) == number]
            holder.noted, holder.attempts = [offset for offset, _ in kept], [attempt for _, attempt in kept]
        if len(holder.fresh) // 2 > most:
            given = (offset for first, count in pairs(holder.fresh) for offset in range(first, first + count))
            holder.fresh = queue_jobs.ranges([offset for offset in given if self.holder_at(offset, 1) == number])
        if len(hand.runs) // 2 > most:
            hand.replace(list(self._runs_of(holder)))
        self._weigh(holder)

    def _took(self, step: r.Took) -> None:
        holder, base, marks = self._holder(step.holder, step.secret), self._base, self._marks
        hand = self._hands[holder.number]
        holder.reports, holder.fence = step.reports, self._fence
        holder.taken, holder.fresh, holder.noted, holder.attempts = step.number, step.fresh, step.noted, []
        for first, count in pairs(step.fresh):
            place = first - base
            marks[place : place + count] = bytes([HELD]) * count
            self._number(place, count, holder.number)
            holder.held += count
            hand.add(first, count)
        for offset in step.noted:
            job = self.jobs[offset]
            self._tally(job, -1)
            job.attempts += 1
            job.holder, job.begun = holder.number, False
            self._tally(job, 1)
            holder.attempts.append(job.attempts)
            holder.held += 1
            hand.add(offset, 1)
            self._number(offset - base, 1, holder.number)
        if hand.span > 2 * holder.held + _HAND_SPARE:
            hand.replace(list(self._runs_of(holder)))
        self._weigh(holder)

    def _number(self, place: int, count: int, number: int) -> None:
        missing = place + count - len(self._numbers)
        if missing > 0:
            self._numbers.frombytes(bytes(missing * self._numbers.itemsize))
        if count == 1:
            self._numbers[place] = number
        else:
            self._numbers[place : place + count] = array("I", [number]) * count

    def _settled(self, step: r.Settled, now_us: int) -> None:
        holder = self._holder(step.holder)
        holder.settled, holder.refused, holder.lost = step.sequence, step.refused, step.lost
        self._lighter.add(holder.number)
        marks, base = self._marks, self._base
        for offset in step.begun:
            self._begun(offset)
        for first, count in pairs(step.done):
            place = first - base
            if self._held_in(place, count) == count:
                holder.begun -= marks.count(BEGUN, place, place + count)
                marks[place : place + count] = bytes([ENDED]) * count
                holder.held -= count
                self.finished += count
                continue
            for offset in range(first, first + count):
                self._end(offset)
                self.finished += 1
        for each in step.back:
            self._back(each, now_us)
            self.jobs[each.offset].unbegun = 0  # its holder lives, and has had it

    def _begun(self, offset: int) -> None:
        """The handler of an attempt has begun: it counts, whatever becomes of its holder."""
        job = self.jobs.get(offset)
        if job is not None:
            if job.holder and not job.begun:
                job.begun = True
                holder = self._by_number.get(job.holder)
                if holder is not None:
                    holder.begun += 1
        elif self.mark(offset) == HELD:
            place = offset - self._base
            self._marks[place] = BEGUN
            holder = self._by_number.get(self._numbers[place])
            if holder is not None:
                holder.begun += 1

    def _let_go(self, number: int, *, begun: bool) -> None:
        """A holder has a job no more."""
        holder = self._by_number.get(number)
        if holder is not None:  # else it left, and said nothing of this job: no head does that
            holder.held -= 1
            holder.begun -= begun
            self._lighter.add(number)

    def _end(self, offset: int) -> None:
        """A job is no more."""
        place, job = offset - self._base, self.jobs.pop(offset, None)
        mark = self._marks[place]
        if mark in (HELD, BEGUN):
            self._let_go(self._numbers[place], begun=mark == BEGUN)
        elif job is not None and job.holder:
            self._let_go(job.holder, begun=job.begun)
        self._marks[place] = ENDED
        if job is not None:
            self._tally(job, -1)
            self._tell(offset)

    def _back(self, back: r.JobBack, now_us: int) -> None:
        place, job = back.offset - self._base, self.jobs.get(back.offset)
        if job is None:
            job, mark = NotedJob(), self._marks[place]
            if mark in (HELD, BEGUN):
                job.attempts, job.holder, job.begun = 1, self._numbers[place], mark == BEGUN
        else:
            self._tally(job, -1)
        if job.holder:
            self._let_go(job.holder, begun=job.begun)
            job.holder, job.begun = 0, False
            job.attempts -= not back.counted
            job.unbegun += back.lost
        job.pause_us = _time(back.pause_us)
        job.due_us = now_us + job.pause_us if job.pause_us else 0
        if back.why:
            job.history = (*job.history[1 - queue_jobs.HISTORY_MAX :], (now_us, back.why))
        if back.dead:
            job.dead, job.trace = True, back.trace if len(self.dead) < queue_jobs.TRACES_MAX else ""
            self.dead[back.offset] = None
        self._put(back.offset, job)

    def _left(self, step: r.HolderLeft, now_us: int) -> None:
        for each in step.back:
            self._back(each, now_us)
        holder = self.holders.get(step.holder)
        if holder is None:
            return
        for offset in list(self.held_by(holder)) if self._torn or holder.held else ():  # it does not say of these
            self._back(r.JobBack(offset), now_us)
        self._holders_bytes -= self._hands[holder.number].size
        del self.holders[step.holder], self._by_number[holder.number], self._hands[holder.number]
        holder.fresh, holder.noted, holder.attempts = [], [], []
        self.gone[step.holder] = holder
        self._holders_bytes += holder.size
        if len(self.gone) > queue_jobs.GONE_MAX:
            self._holders_bytes -= self.gone.popitem(last=False)[1].size
        if self.burial is not None and self.burial.holder == step.holder:
            self.burial = msgspec.structs.replace(self.burial, holder=b"")

    def _buried(self, number: int, left: set[int]) -> None:
        if self.burial is None or self.burial.number != number:
            return
        for offset in reversed(self.burial.offsets):
            if offset in left and offset in self.jobs:
                self.dead[offset] = None
                self.dead.move_to_end(offset, last=False)
                continue
            if offset in self.jobs:
                self._end(offset)
            self.died += 1
        self.series = max(self.series, self.burial.series + bool(left))
        self.burial = None

    def _purge(self, until: int) -> None:
        marks, base = self._marks, self._base
        stop = max(0, min(until - base, len(marks)))
        marks[:stop] = marks[:stop].replace(bytes([FRESH]), bytes([ENDED]))
        # Of all jobs with terms, a step of a purge ends a part. Their marks say which, unless a record that no head
        # writes has changed some (C33).
        agree = marks.count(NOTED) == len(self.jobs)
        noted = self.noted_below(until) if agree else (offset for offset in self.jobs if offset < until)
        for offset in [offset for offset in noted if not self.jobs[offset].holder]:
            if self.burial is None or offset not in self.burial.offsets:
                self.dead.pop(offset, None)
                self._end(offset)

    def _trim(self) -> None:
        """Forget the jobs at the front that have ended."""
        count = self.first_open() - self._base
        if count < _TRIM_MIN or 2 * count < len(self._numbers):
            return
        del self._marks[:count]
        del self._numbers[:count]
        if self._hashes:
            del self._hashes[:count]
        self._base += count

    # --- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> bytes | None:
        """As of the log's end. Its size is bounded by the jobs that have not ended, some bits each."""
        taken = QueueSnapshot(
            1,
            self._base,
            _packed(bytes(self._marks)),
            _packed(self._numbers.tobytes()),
            _packed(self._hashes.tobytes()),
            self.jobs,
            self.holders,
            self.gone,
            self._last_number,
            list(self.dead),
            self.burial,
            self.burials,
            self._unique.until,
            [self.finished, self.died, int(self._torn)],
            self.series,
        )
        return msgspec.msgpack.encode(taken)

    def restore(self, snapshot: bytes | None) -> None:
        """Back to a snapshot; None is a queue without jobs."""
        self._firsts.clear()
        if snapshot is None:
            self._begin(0)
            self.committed_first = 0
            return
        try:
            found = decode_snapshot(snapshot)
            marks, numbers, hashes = (zlib.decompress(part) for part in (found.marks, found.numbers, found.hashes))
            self._begin(found.base)
            self._marks = bytearray(marks)
            self._numbers.frombytes(numbers)
            self._hashes.frombytes(hashes)
            self.finished, self.died, torn = found.counts
            self._torn = bool(torn)
        except (msgspec.MsgspecError, zlib.error, ValueError) as error:
            raise CorruptData(f"A snapshot of a queue cannot be read: {error}.") from error
        self.jobs, self.holders, self.gone = found.jobs, found.holders, OrderedDict(found.gone)
        alive = [job for job in self.jobs.values() if not job.dead]
        self._waiting = dict(Counter(job.attempts for job in alive if not job.holder))
        self._working = dict(Counter(job.attempts for job in alive if job.holder))
        self._by_number = {holder.number: holder for holder in self.holders.values()}
        try:
            self._find_hands()
        except IndexError as error:
            raise CorruptData("A snapshot of a queue has jobs in work, and not whose.") from error
        self._last_number = found.last_number
        self.dead = OrderedDict.fromkeys(found.dead)
        self.burial, self.burials, self.series = found.burial, found.burials, found.series
        self._unique = UniqueNames(found.unique)
        self.committed_first = 0  # a snapshot may be ahead of the commit point
        self._firsts.append((self.end, self.first_open()))

    def _find_hands(self) -> None:
        """Who has which jobs: it follows from the rest."""
        self._hands = {number: Hand() for number in self._by_number}
        numbers = [(offset, self._numbers[offset - self._base]) for offset in self.held()]
        numbers += sorted((offset, job.holder) for offset, job in self.jobs.items() if job.holder)
        for offset, number in numbers:
            if number in self._hands:  # of a damaged copy, it may be missing
                self._hands[number].add(offset, 1)
        self._holders_bytes = sum(holder.size for holder in self.gone.values())
        for holder in self.holders.values():
            self._weigh(holder)

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        if self._torn or self.skipped:
            return
        marks, base = self._marks, self._base
        assert len(self._numbers) <= len(marks)
        assert self.jobs.keys() == {base + place for place, mark in enumerate(marks) if mark == NOTED}
        alive = [job for job in self.jobs.values() if not job.dead]
        assert self._waiting == Counter(job.attempts for job in alive if not job.holder)
        assert self._working == Counter(job.attempts for job in alive if job.holder)
        held = dict.fromkeys(self._by_number, 0)
        begun = held.copy()
        for place, mark in enumerate(marks):
            if mark in (HELD, BEGUN):
                held[self._numbers[place]] += 1
                begun[self._numbers[place]] += mark == BEGUN
        for job in self.jobs.values():
            if job.holder:
                held[job.holder] += 1
                begun[job.holder] += job.begun
                assert not job.dead
            else:
                assert not job.begun
        assert all(holder.held == held[holder.number] for holder in self.holders.values())
        assert all(holder.begun == begun[holder.number] for holder in self.holders.values())
        assert all(holder.held == len(list(self.held_by(holder))) for holder in self.holders.values())
        buried = set() if self.burial is None else set(self.burial.offsets)
        assert {offset for offset, job in self.jobs.items() if job.dead} == self.dead.keys() | buried
        assert self.committed_first <= self.first_open()
