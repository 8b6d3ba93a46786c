"""The head of a queue's partition: the pure machine that hands out its jobs, in one epoch.

Rules. An attempt is in the log, committed, before its job is handed out; an end is committed before it is answered.
Who holds jobs has a lease, which is renewed beside the work; before a renewal counts, the chain has confirmed that this
is the head (C30). When a lease is over, the jobs are handed out again. A new head begins all leases in full (C21).
The clock of a single job begins when its holder says that the work has begun, and only if the holder set a limit.

Theory of operation. Requests gather during a turn of the broker's loop. `QueueTurn` decides all of them, as one list of
steps; the broker appends it as one control batch, and with that the state changes (`core.queue`). What follows from it
is told when it is committed:

    JobsWanted, JobsSettled, HolderLeaving … ──QueueTurn──► AppendSteps ──► StepsAppended(end)
                                                            QueueCommitted(end) ──► GiveJobs, AnswerSettled …

Within one turn, requests touch different jobs: a holder has one request of each kind under way, and what one turn gives
back another hands out. Requests are numbered by their holder. One that is asked again, because its answer was lost with
a connection or a head, is answered from the state: nothing is handed out or counted twice.

Fairness. What is there goes to those who have least that they have not begun, up to an even level; nobody holds more
than its share of what a partition may have in flight. If somebody has nothing to do, and others hold jobs that they
have not begun, these are asked to give some back (`AskBack`). A job changes hands only when its holder's return is in
the log, or its lease is over.

Attempts. An attempt counts when its handler begins: its holder says so, without waiting, with what it sends anyway. If
a holder is lost, jobs of which it has not said so are handed out again as if they had not been; but that is remembered.
After `UNBEGUN_MAX` such times a job may be what its holders die of: then it is handed out alone, and begins only once
the word of its holder is committed, so that each further attempt counts. Of holders that say nothing of the kind (older
clients), all attempts count; so do they below the feature level HOLDERS.

Slices (C35). A turn decides about `JOBS_AT_ONCE` jobs and answers `ANSWERS_AT_ONCE` requests; what is left waits for
the next turn, which comes soon while the head is `unfinished`. Holders whose leases are over, or who leave with many
jobs, part in turns of their own, every other one: some of their jobs are handed back each time (`Returned`), and with
the last of them the holder goes (`HolderLeft`). A purge goes on over several turns.

Crowds (S7). One client may have as many holders as all others may still add. When there is no room for a client that
has far fewer than another one, an idle holder of the largest client goes. Nobody loses jobs by that.

Rights (C36). Whoever acts for a holder has shown the secret that the holder has shown first: for what it holds, the log
has its hash; for a holder that holds nothing, this head knows it.

Invariants: no holder is both alive and gone; what waits for a commit is in the order of the log.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from heapq import nsmallest
from itertools import compress, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor.core import queue_events as q
from stentor.core.holders import NOBODY, may_use
from stentor.core.queue_jobs import ALLOWED, REFUSED, Burial, flags_of, kept_flags, pairs, ranges
from stentor.core.queue_ready import JOBS_AT_ONCE, QueueReady
from stentor.core.queue_records import (
    Buried,
    Bury,
    HolderLeft,
    JobBack,
    Purged,
    QueueStep,
    Returned,
    Settled,
    Took,
)
from stentor.errors import InternalError
from stentor.limits import MIB

if TYPE_CHECKING:
    from stentor.core.queue import QueueState
    from stentor.core.queue_events import QueueAnswer, QueueEffect, QueueEvent
    from stentor.core.queue_jobs import Holder

IN_FLIGHT_MAX: Final = 100_000
"""Jobs of one partition that are handed out and not finished; each holder may have its share of them."""

HOLDERS_MAX: Final = 10_000
"""Of one partition."""

BURIED_AT_ONCE_MAX: Final = 100
"""Dead jobs that go into the dead-letter topic as one batch."""

STEPS_BYTES: Final = 4 * MIB
"""About what a turn writes down at most, far below what a batch may have; the rest waits for the next turn."""

LOST_AT_ONCE: Final = JOBS_AT_ONCE // 2
"""How many attempts are ended at once because of time: each says why, and the next turn can hand all of them out."""

PURGED_AT_ONCE: Final = 10_000
"""Jobs with terms that a purge ends in one step: every broker of the chain applies it in one turn of its loop."""

PARTING_AT_ONCE: Final = 200
"""Holders that go in one turn, each with a step of its own, and with requests that are refused."""

ANSWERS_AT_ONCE: Final = 200
"""Requests that are answered in one turn: each answer that brings jobs reads and copies their messages."""

SERVED_AT_ONCE: Final = 500
"""Holders who are given jobs in one turn, each with a step of its own; then those who have least of the others."""

_RANGE_SHARE: Final = 16  # jobs of a range that cost as much as one that is settled by itself

RETRY_S_MAX: Final = 600.0
"""The longest pause before a job is tried again, unless somebody asks for a longer one."""

RECALL_US: Final = 20_000
"""How often it is looked whether somebody has nothing to do while others have jobs in reserve."""

REST_US: Final = 1_000_000
"""A holder that has begun nothing for this long is asked for its last job as well: nobody there may want it."""

_RESTS_MAX: Final = 6  # times that this doubles, to a minute: two that rest would hand a job to and fro

_LOOK_US: Final = 50  # for each holder, so that a crowd of them costs a few hundredths of the time

RECALL_AGAIN_US: Final = 200_000
"""When a holder may be asked again to give jobs back: what it did is in the log by then."""

_STOOD_STILL_US: Final = 500_000  # whoever looks so late did not run in between; it counts as one tick
_TELL_AGAIN_US: Final = 5_000_000  # a burial whose holder asks for more and does not confirm: the answer may be lost
_BURIAL_US: Final = 60_000_000  # after this long another holder may finish a burial, too: its letters are written once
_CLAIM_BYTES: Final = 12  # an offset and a number, in a list
_TICK_US: Final = 100_000  # brokers beat ten times a second
_LOST: Final = "the consumer that had this job was not heard of for as long as its lease"
_TOO_LONG: Final = "the attempt took longer than its consumer allows"
_STUCK: Final = "the message of this job cannot be written again, and the log is to be let go of"
_EXPIRED: Final = "nobody began this job within its ttl"


class QueuePolicy(msgspec.Struct, frozen=True):
    """What a queue's settings say about attempts."""

    lease_us: int = 30_000_000
    attempts_max: int = 5
    retry_us: int = 1_000_000
    holders: bool = True  # the cluster's feature level is HOLDERS: what came with it may be written (C27)
    proves: bool = False  # dead jobs are buried under an id that needs a token, which this broker can give out

    def pause_us(self, attempts: int) -> int:
        """How long a job rests that has failed so often."""
        return min(self.retry_us << min(attempts - 1, 32), int(RETRY_S_MAX * 1_000_000))


class _Parting:
    """A holder that goes, with its jobs."""

    __slots__ = ("counted", "left", "refused", "telling", "why")

    def __init__(self, *, counted: bool, why: str) -> None:
        self.counted = counted  # attempts that began
        self.why = why
        self.left: deque[int] | None = None  # jobs that it may still hold; None: they were not looked for yet
        self.refused: list[int] = []  # tickets of requests that come to nothing
        self.telling: list[int] = []  # tickets of whoever wants to hear when it is gone


class QueueHead:
    """The head of one partition, in one epoch."""

    def __init__(self, state: QueueState, policy: QueuePolicy) -> None:
        self._state = state
        self.policy = policy
        self._ready = QueueReady(state)
        self._wanted: dict[bytes, q.JobsWanted] = {}  # by holder: each has one such request
        self._again: set[bytes] = set()  # of these: who asks for what it got before
        self._settling: dict[bytes, q.JobsSettled] = {}
        self._leaving: dict[bytes, q.HolderLeaving] = {}
        self._parting: OrderedDict[bytes, _Parting] = OrderedDict()
        self._parts_next = True  # the next turn is theirs
        self._more = False  # the last turn has left requests for the next one
        self._end = 0  # everything below is committed, as far as this head heard
        self._buried: list[q.JobsBuried] = []
        self._purging: list[q.PurgeJobs] = []
        self._purging_now: list[q.PurgeJobs] = []  # whose purge has begun
        self._purged, self._purge_until = 0, 0  # up to where it is done, and goes
        self._stuck: list[int] = []  # jobs that cannot be kept
        self._appending: list[QueueAnswer] | None = None  # what to tell when the steps under way are committed
        self._ending: list[int] = []  # jobs that those steps end
        self._told: deque[tuple[int, list[QueueAnswer]]] = deque()  # by the log's end that must be committed
        self._counted_us = 0
        self._at_us: int | None = None
        self._heard: dict[bytes, int] = dict.fromkeys(state.holders, 0)
        self._secrets: dict[bytes, bytes] = {}  # of those that were heard: the hashes of what they showed first
        self._crowds: Counter[bytes] = Counter()  # by such a hash: how many holders have it
        self._room_us = 0  # when it is worth looking for holders who make room
        for name, holder in state.holders.items():
            self._bind(name, holder.secret)
        self._heeding: dict[bytes, q.RecallAwaited] = {}  # by holder: who wants to hear when others need jobs
        self._recalled_us: dict[bytes, int] = {}  # when it was asked for some
        self._rested: dict[bytes, tuple[int, int]] = {}  # since when it begins nothing, and how often it was asked then
        self._recall_us = 0  # when it was looked at last
        self._limits: dict[int, tuple[int, int]] = {}  # job: attempt, and when it has taken too long
        self._overdue: dict[bytes, list[int]] = {}  # by holder: jobs and attempts that were taken from it
        self._burying = (0, b"", 0)  # which burial was told to whom, and when
        self._buried_since = (0, b"", 0)  # which burial has whom for its holder, and since when others ask for it

    @property
    def waits(self) -> bool:
        """Whether somebody waits for jobs, or for a decision."""
        asked = self._wanted or self._settling or self._leaving or self._buried or self._purging
        return bool(asked or self._stuck or self._parting or self._purging_now)

    @property
    def unfinished(self) -> bool:
        """Whether the last turn left something that the next one can do at once."""
        if self._appending is not None:
            return False
        return self._more or self._owes or self._ready.unfinished or bool(self._parting)

    @property
    def _owes(self) -> bool:
        """Whether something is committed, and was not told yet."""
        return bool(self._told) and self._told[0][0] <= self._end

    @property
    def may_recall(self) -> bool:
        """Whether somebody waits for jobs, and somebody else can be asked for some."""
        return bool(self._wanted and self._heeding)

    @property
    def next_due_us(self) -> int | None:
        """When the next job is due that is not yet, by the clock of `step`, if somebody waits for one."""
        return self._ready.next_due_us if self._wanted else None

    # --- events ---------------------------------------------------------------------------------

    def step(self, event: QueueEvent, now_us: int) -> list[QueueEffect]:  # noqa: C901, PLR0911, PLR0912 - one case per event
        """Take an event, return what must be done. `now_us` is of a clock that never jumps."""
        match event:
            case q.QueueTurn():
                return self._turn(event, now_us)
            case q.QueueCommitted(end):
                return self._committed(end)
            case q.StepsAppended(end):
                return self._appended(end)
            case q.StepsRefused():
                return self._not_appended()
            case q.JobsWanted():
                return self._want(event)
            case q.JobsSettled():
                return self._ask_once(self._settling, event)
            case q.HolderLeaving():
                return self._ask_once(self._leaving, event)
            case q.HolderHeard():
                return self._hear(event, now_us)
            case q.RecallAwaited():
                return self._heed(event)
            case q.JobsBuried():
                return self._bury(event)
            case q.PurgeJobs():
                self._purging.append(event)
                return []
            case q.JobsStuck(offsets):
                self._stuck += offsets
                return []
            case q.AskerGone(ticket, holder):
                for waiting in (self._wanted, self._heeding):
                    if holder in waiting and waiting[holder].ticket == ticket:
                        del waiting[holder]
                return []
            case q.QueueTick():
                return self._tick(event, now_us)
        raise InternalError(f"Unknown event {event!r}.")

    # --- rights (C36) ---------------------------------------------------------------------------

    def _bind(self, name: bytes, secret: bytes) -> None:
        """A holder has shown a secret, as a hash. The first one counts."""
        before = self._secrets.get(name)
        if before is None or (before == NOBODY and secret):
            if before is not None:
                self._crowds[before] -= 1
            self._secrets[name] = secret
            self._crowds[secret] += 1

    def _unbind(self, name: bytes) -> None:
        secret = self._secrets.pop(name, None)
        if secret is not None:
            self._crowds[secret] -= 1
            if not self._crowds[secret]:
                del self._crowds[secret]

    def _is_owner(self, name: bytes, shown: bytes) -> bool:
        """Whether somebody who showed this may act for a holder."""
        if not self.policy.holders:
            return True
        holder = self._state.holders.get(name) or self._state.gone.get(name)
        kept = NOBODY if holder is None else holder.secret
        return may_use(kept or self._secrets.get(name, NOBODY), shown)

    def _is_lost(self, name: bytes) -> bool:
        """Whether a holder is gone, or about to go."""
        return name in self._state.gone or name in self._parting

    def _is_crowded(self, secret: bytes) -> bool:
        """Whether there is no room for another holder of a client: one client has at most as many as others may add."""
        return self._crowds[secret] >= HOLDERS_MAX - len(self._heard)

    def _makes_room(self, secret: bytes) -> bool:
        """Let somebody go who holds no job, of the client that has most consumers, for one that has far fewer: else
        whoever connects a few times, as another client each time, keeps everybody out.
        """
        largest, most = max(self._crowds.items(), key=itemgetter(1), default=(NOBODY, 0))
        if most <= 2 * (self._crowds[secret] + 1) or self._counted_us < self._room_us:
            return False
        for name, shown in self._secrets.items():
            if shown == largest and name in self._heard and not self._held(name):
                self._let_part(name, counted=True, why=_LOST)
                return True
        self._room_us = self._counted_us + _TICK_US  # all are at work: it is not looked at for each who asks
        return False

    def _bury(self, event: q.JobsBuried) -> list[QueueEffect]:
        burial = self._state.burial
        if event.left and not self.policy.holders:  # not all brokers know of such an end (C27)
            return [q.RefuseAsker(event.ticket, "not_now")]
        if burial is not None and self.policy.holders and event.number == burial.number:
            kept = burial.secret or self._secrets.get(burial.holder, NOBODY)
            if not may_use(kept, event.shown):
                return [q.RefuseAsker(event.ticket, "other")]
        self._buried.append(event)
        return []

    # --- who asks -------------------------------------------------------------------------------

    def _want(self, event: q.JobsWanted) -> list[QueueEffect]:
        if not self._is_owner(event.holder, event.shown):
            return [q.RefuseAsker(event.ticket, "other")]
        if self._is_lost(event.holder):
            return [q.RefuseAsker(event.ticket, "lost")]
        if event.holder not in self._heard:
            return [q.RefuseAsker(event.ticket, "unheard")]
        holder = self._state.holders.get(event.holder)
        if holder is not None and event.number < holder.taken:
            return [q.RefuseAsker(event.ticket, "overtaken")]
        if holder is not None and event.number == holder.taken:
            self._again.add(event.holder)
        before = self._wanted.pop(event.holder, None)
        self._wanted[event.holder] = event
        return [] if before is None else [q.RefuseAsker(before.ticket, "overtaken")]

    def _heed(self, event: q.RecallAwaited) -> list[QueueEffect]:
        if not self._is_owner(event.holder, event.shown):
            return [q.RefuseAsker(event.ticket, "other")]
        if event.holder not in self._heard:
            return [q.RefuseAsker(event.ticket, "lost" if self._is_lost(event.holder) else "unheard")]
        before = self._heeding.get(event.holder)
        self._heeding[event.holder] = event
        return [] if before is None else [q.RefuseAsker(before.ticket, "overtaken")]

    def _ask_once(self, waiting: dict[bytes, Any], event: q.JobsSettled | q.HolderLeaving) -> list[QueueEffect]:
        if not self._is_owner(event.holder, event.shown):
            return [q.RefuseAsker(event.ticket, "other")]
        before = waiting.get(event.holder)
        waiting[event.holder] = event
        return [] if before is None else [q.RefuseAsker(before.ticket, "overtaken")]

    # --- a turn ---------------------------------------------------------------------------------

    def _turn(self, turn: q.QueueTurn, now_us: int) -> list[QueueEffect]:
        """Decide what waits, as much as there is room for. Nothing, while steps are on their way into the log."""
        if self._appending is not None:
            return []
        self._ready.refresh(turn.committed, turn.wall_us, now_us)
        self._end, self._more = max(self._end, turn.committed), False
        if self._purging or self._purging_now:
            return self._purge()
        if self._parting and self._parts_next:
            return self._part()
        self._parts_next = True
        steps: list[QueueStep] = []
        telling: list[QueueAnswer] = []
        ending: list[int] = []
        at_once: list[QueueEffect] = []
        if self._stuck:
            given_up = [each for each in self._stuck if self._ready.give_up(each)]
            self._stuck = []
            if given_up:
                steps.append(Returned([JobBack(each, counted=False, dead=True, why=_STUCK) for each in given_up]))
        room = self._settle_all(steps, telling, ending, at_once)
        if room > 0:
            self._hand_out(turn, steps, telling, room // _CLAIM_BYTES)
        if self._ready.expired:
            dead = [JobBack(offset, counted=False, dead=True, why=_EXPIRED) for offset in self._ready.expired]
            steps.append(Returned(dead))
            self._ready.expired = []
        if not steps:
            if telling:
                self._told.append((self._state.end, telling))
            return at_once + self._committed(turn.committed) + self._recall(turn.committed, now_us)
        self._appending, self._ending = telling, ending
        return [*at_once, q.AppendSteps(steps)]

    def _settle_all(
        self, steps: list[QueueStep], telling: list[QueueAnswer], ending: list[int], at_once: list[QueueEffect]
    ) -> int:
        """Decide who is done with jobs, or leaves; how many bytes of steps there is still room for."""
        room, jobs = STEPS_BYTES, JOBS_AT_ONCE
        for name in list(self._settling):
            if room <= 0 or jobs <= 0:
                self._more = True
                break
            if (leaving := self._leaving.pop(name, None)) is not None:
                at_once.append(q.RefuseAsker(leaving.ticket, "overtaken"))
            settling = self._settling.pop(name)
            room -= _size(settling)
            jobs -= _weight(settling)
            step, answer = self._settle(settling, ending)
            steps += () if step is None else (step,)
            telling.append(answer)
        for name in list(self._leaving):
            if jobs <= 0:
                self._more = True
                break
            jobs -= 1 + self._held(name)
            ticket = self._leaving.pop(name).ticket
            if jobs < 0 or name in self._parting:
                self._let_part(name, counted=False).telling.append(ticket)
                continue
            steps += self._left(name, counted=False)
            telling.append(q.AnswerDone(ticket))
        self._ready.spend((JOBS_AT_ONCE - max(0, jobs)) // 2)  # who asks for jobs comes by half of a turn at least
        for buried in self._buried:
            if self._state.burial is not None and self._state.burial.number == buried.number:
                left = sorted(set(buried.left) & set(self._state.burial.offsets))
                steps.append(Buried(buried.number, left))  # else they are there since an earlier request
            telling.append(q.AnswerDone(buried.ticket))
        self._buried = []
        return room

    def _purge(self) -> list[QueueEffect]:
        """A purge has turns of its own: other steps beside it would speak of jobs that it ends."""
        state = self._state
        if not self._purging_now:
            self._purging_now, self._purging = self._purging, []
            self._purged, self._purge_until = 0, state.end
        self._purged = state.purge_end(self._purged, self._purge_until, PURGED_AT_ONCE)
        if self._purged < self._purge_until:
            self._appending, self._more = [], True
        else:
            self._appending = [q.AnswerDone(asked.ticket) for asked in self._purging_now]
            self._purging_now = []
        return [q.AppendSteps([Purged(self._purged)])]

    # --- holders that go ------------------------------------------------------------------------

    def _let_part(self, name: bytes, *, counted: bool, why: str = "") -> _Parting:
        """A holder is no more; its jobs are handed back in the turns to come."""
        parting = self._parting.get(name)
        if parting is None:
            parting = self._parting[name] = _Parting(counted=counted, why=why)
        for waiting in (self._wanted, self._heeding):
            if (asked := waiting.pop(name, None)) is not None:
                parting.refused.append(asked.ticket)
        self._forget(name)
        return parting

    def _part(self) -> list[QueueEffect]:
        """Some of the holders that go, or some of the jobs of one. No other steps are beside these: they would speak of
        the same jobs.
        """
        self._parts_next = False
        refusals: list[QueueEffect] = []
        steps: list[QueueStep] = []
        telling: list[QueueAnswer] = []
        room = LOST_AT_ONCE
        for name in list(islice(self._parting, PARTING_AT_ONCE)):
            if room <= 0:
                break
            parting = self._parting[name]
            refusals += [q.RefuseAsker(ticket, "lost") for ticket in parting.refused]
            parting.refused = []
            back = self._handed_back(name, parting, room)
            room -= 1 + len(back)
            if parting.left:
                steps.append(Returned(back))
                break
            del self._parting[name]
            if name in self._state.holders:
                steps.append(HolderLeft(name, back))
            telling += [q.AnswerDone(ticket) for ticket in parting.telling]
        if not steps:
            self._told.append((self._state.end, telling))
            return refusals + self._committed(self._end)
        self._appending = telling
        return [*refusals, q.AppendSteps(steps)]

    def _handed_back(self, name: bytes, parting: _Parting, most: int) -> list[JobBack]:
        """The next jobs of a holder that goes; some may have been settled meanwhile, or have taken too long."""
        state, holder = self._state, self._state.holders.get(name)
        if holder is None:
            parting.left = None
            return []
        if parting.left is None:
            parting.left = deque(state.held_by(holder))
        back: list[JobBack] = []
        while parting.left and len(back) < most:
            offset = parting.left.popleft()
            if state.holds(holder, offset, state.attempts(offset)):
                back.append(self._lost_job(holder, offset, counted=parting.counted, why=parting.why))
        return back

    def _appended(self, end: int) -> list[QueueEffect]:
        """The steps are in the log, and in the state."""
        assert self._appending is not None
        self._told.append((end, self._appending))
        self._appending = None
        self._ready.applied()
        self._ready.ended(self._ending)
        self._ending = []
        return []

    def _not_appended(self) -> list[QueueEffect]:
        """Nothing happened; whoever asked asks again. What was taken out of the index is found anew."""
        telling, self._appending, self._ending = self._appending or [], None, []
        telling += [q.AnswerDone(asked.ticket) for asked in self._purging_now]
        given_up, self._parting, self._purging_now = self._parting, OrderedDict(), []
        for parting in given_up.values():
            telling += [q.AnswerDone(ticket) for ticket in (*parting.refused, *parting.telling)]
        self._ready, self._more = QueueReady(self._state), False  # who asked asks again; nothing is tried at once
        self._burying = (0, b"", 0)
        for name, holder in self._state.holders.items():  # one that was about to end is there still, and ends later
            self._heard.setdefault(name, self._counted_us)
            self._bind(name, holder.secret)
        return [q.RefuseAsker(effect.ticket, "not_now") for effect in telling]

    def _committed(self, end: int) -> list[QueueEffect]:
        """Tell what is committed, some at a time."""
        self._end = max(self._end, end)
        effects: list[QueueEffect] = []
        while self._owes and len(effects) < ANSWERS_AT_ONCE:
            log_end, telling = self._told[0]
            if len(effects) + len(telling) <= ANSWERS_AT_ONCE:
                effects += self._told.popleft()[1]
                continue
            most = ANSWERS_AT_ONCE - len(effects)
            effects += telling[:most]
            self._told[0] = log_end, telling[most:]
        return effects

    # --- settling -------------------------------------------------------------------------------

    def _settle(self, asked: q.JobsSettled, ending: list[int]) -> tuple[QueueStep | None, q.AnswerSettled]:
        """The step, and what to tell once all that was looked at is committed."""
        state, name = self._state, asked.holder
        holder = state.holders.get(name) or state.gone.get(name)
        if holder is not None and asked.sequence == holder.settled:
            return None, q.AnswerSettled(asked.ticket, holder.refused or _refused(asked, flags_of(holder.lost)))
        if holder is None or name in state.gone or asked.sequence < holder.settled:
            return None, q.AnswerSettled(asked.ticket, asked.claims())
        if asked.first or asked.later or asked.begun:
            self._rested.pop(name, None)
        done, flags = self._finished(holder, asked)
        if state.ordered:
            ending += [offset for first, count in pairs(done) for offset in range(first, first + count)]
        begun = []
        for offset, attempt in pairs(asked.begun):
            own = state.holds(holder, offset, attempt)
            flags.append(ALLOWED if own else REFUSED)
            if own and self.policy.holders and not state.has_begun(offset):
                begun.append(offset)
        back = []
        for each in asked.back:
            own = state.holds(holder, each.offset, each.attempt)
            flags.append(ALLOWED if own else REFUSED)
            if own:
                back.append(self._given_back(each))
        refused = _refused(asked, flags.decode()) if REFUSED in flags else []
        answer = q.AnswerSettled(asked.ticket, refused)
        if not self.policy.holders:
            return Settled(name, asked.sequence, done, back, refused), answer
        lost = kept_flags(flags) if refused else b""
        return Settled(name, asked.sequence, done, back, [], begun, lost), answer

    def _finished(self, holder: Holder, asked: q.JobsSettled) -> tuple[list[int], bytearray]:
        """Ranges of jobs that are finished, and for each claim whether it was the holder's own."""
        holds = self._state.holds
        done: list[int] = []
        flags = bytearray()
        for first, count in pairs(asked.first):
            if self._state.holds_run(holder, first, count):
                done += first, count
                flags += bytes([ALLOWED]) * count
                continue
            for offset in range(first, first + count):
                own = holds(holder, offset, 1)
                flags.append(ALLOWED if own else REFUSED)
                if own:
                    done += offset, 1
        for offset, attempt in pairs(asked.later):
            own = holds(holder, offset, attempt)
            flags.append(ALLOWED if own else REFUSED)
            if own:
                done += offset, 1
        return done, flags

    def _given_back(self, given: q.GivenBack) -> JobBack:
        attempts = self._state.attempts(given.offset)
        if not given.counted:
            return JobBack(given.offset, counted=False, why=given.why)
        if given.dead or attempts >= self.policy.attempts_max:
            return JobBack(given.offset, dead=True, why=given.why, trace=given.trace)
        pause_us = self.policy.pause_us(attempts) if given.delay_us is None else given.delay_us
        return JobBack(given.offset, pause_us, why=given.why)

    def _left(self, name: bytes, *, counted: bool, why: str = "") -> list[QueueStep]:
        """A holder is no more: its jobs are handed out again."""
        self._wanted.pop(name, None)
        self._forget(name)
        holder = self._state.holders.get(name)
        if holder is None:
            return []
        held = list(self._state.held_by(holder))
        return [HolderLeft(name, [self._lost_job(holder, offset, counted=counted, why=why) for offset in held])]

    def _forget(self, name: bytes) -> None:
        """Drop what is known of a holder beside the log."""
        for known in (self._heard, self._overdue, self._recalled_us, self._rested):
            known.pop(name, None)
        self._unbind(name)

    def _lost_job(self, holder: Holder, offset: int, *, counted: bool, why: str) -> JobBack:
        """What becomes of a job whose holder goes."""
        state = self._state
        if counted and holder.reports and self.policy.holders and not state.has_begun(offset):
            return JobBack(offset, counted=False, lost=True)
        dead = counted and state.attempts(offset) >= self.policy.attempts_max
        return JobBack(offset, counted=counted, dead=dead, why=why)

    # --- handing out ----------------------------------------------------------------------------

    def _held(self, name: bytes) -> int:
        """How many jobs somebody holds."""
        holder = self._state.holders.get(name)
        return 0 if holder is None else holder.held

    def _reserve(self, name: bytes) -> int:
        """How many jobs somebody holds and has not begun, as far as it says."""
        holder = self._state.holders.get(name)
        return 0 if holder is None else holder.held - holder.begun

    def _hand_out(self, turn: q.QueueTurn, steps: list[QueueStep], telling: list[QueueAnswer], room: int) -> None:
        state, waiting = self._state, self._wanted
        share = max(1, IN_FLIGHT_MAX // max(1, len(self._heard)))
        buries = (not state.dead and state.burial is None) or any(isinstance(step, Buried) for step in steps)
        served = self._served_first(turn, all_of_them=not buries)
        # To count what there is takes as long as to hand it out, and who is alone may have all of it.
        level = self._level(served, self._ready.available(turn.committed)) if len(served) > 1 else 0
        count, some_left = 0, True
        for name in served:
            if count == SERVED_AT_ONCE or self._ready.unfinished:
                self._more = True
                break
            self._again.discard(name)
            asked = waiting[name]
            given = self._given_before(asked, turn.wall_us)
            if given is None:
                most = min(asked.jobs_max, share - self._held(name), room)
                if name is not served[-1]:  # that one may have what others left
                    most = min(most, level - self._reserve(name))
                most = most if some_left else 0
                fresh, noted = self._ready.take(most, turn.committed, turn.wall_us) if most > 0 else ([], [])
                some_left = some_left and (bool(fresh or noted) or most <= 0)
                if fresh or noted:
                    if not self._held(name):
                        self._rested[name] = self._counted_us, self._rested.get(name, (0, 0))[1]
                    room -= sum(fresh[1::2]) + len(noted)
                    steps.append(self._took(asked, fresh, noted))
                    attempts = [state.attempts(offset) + 1 for offset in noted]
                    given = self._giving(asked, fresh, noted, attempts, turn.wall_us)
            burial = None if buries else self._burial(asked, steps)
            buries = buries or burial is not None
            if given is not None or burial is not None:
                del waiting[name]
                count += 1
                given = given or q.GiveJobs(asked.ticket, [], [], [], used=False)
                telling.append(msgspec.structs.replace(given, burial=burial))

    def _served_first(self, turn: q.QueueTurn, *, all_of_them: bool) -> list[bytes]:
        """Those who wait and may get something: whoever asks again, then those who hold least."""
        waiting = self._wanted
        again = [name for name in self._again if name in waiting]
        self._again.intersection_update(again)
        if all_of_them or len(waiting) == 1:
            return list(dict.fromkeys((*again, *sorted(waiting, key=self._reserve))))
        wanting = [name for name, asked in waiting.items() if asked.jobs_max]
        most = min(len(wanting), self._ready.available(turn.committed))
        return list(dict.fromkeys((*again, *nsmallest(most, wanting, key=self._reserve))))

    def _level(self, names: list[bytes], available: int) -> int:
        """Return up to how many jobs that it has not begun each of these may have, so that what there is goes to those
        who have least.
        """
        reserves = sorted(self._reserve(name) for name in names)
        total = available
        for count, reserve in enumerate(reserves, 1):
            total += reserve
            level = -(-total // count)
            if count == len(reserves) or level <= reserves[count]:
                return level
        return 0

    def _took(self, asked: q.JobsWanted, fresh: list[int], noted: list[int]) -> Took:
        if not self.policy.holders:
            return Took(asked.holder, asked.number, fresh, noted)
        return Took(asked.holder, asked.number, fresh, noted, self._secrets.get(asked.holder, NOBODY), asked.reports)

    def _giving(
        self, asked: q.JobsWanted, fresh: list[int], noted: list[int], attempts: list[int], wall_us: int, fence: int = 0
    ) -> q.GiveJobs:
        """The answer that hands out jobs: how long those with a ttl have, and whether one must be alone."""
        jobs = self._state.jobs
        told = [jobs[offset] for offset in noted]
        left = [
            max(1, job.expires_us - wall_us) if job.expires_us and attempt == 1 else 0
            for job, attempt in zip(told, attempts, strict=True)
        ]
        alone = any(job.alone for job in told)
        if not any(left):
            left = []
        return q.GiveJobs(
            asked.ticket, fresh, noted, attempts, fence=fence or self._state.end, left_us=left, alone=alone
        )

    # --- asking for jobs back -------------------------------------------------------------------

    def _recall(self, committed: int, now_us: int) -> list[QueueEffect]:
        """Ask those who hold jobs that they have not begun for some, if others wait and have fewer."""
        pause_us = max(RECALL_US, _LOOK_US * (len(self._heeding) + len(self._wanted)))
        if not (self._heeding and self._wanted) or now_us - self._recall_us < pause_us:
            return []
        if self._ready.available(committed):  # they are about to get those
            return []
        self._recall_us = now_us
        wanting = [name for name, asked in self._wanted.items() if asked.jobs_max]
        reserves = {name: self._reserve(name) for name in {**dict.fromkeys(wanting), **self._heeding}}
        level = sum(reserves.values()) // max(1, len(reserves))
        lacking = sum(
            max(level - reserves[name], int(not self._held(name))) for name in wanting if reserves[name] <= level
        )
        empty = sum(not reserves[name] for name in wanting)
        effects: list[QueueEffect] = []
        for name in sorted(self._heeding, key=reserves.__getitem__, reverse=True) if empty or lacking else ():
            spare = self._spare(name, level, lacking, empty)
            if spare <= 0 or now_us - self._recalled_us.get(name, -RECALL_AGAIN_US) < RECALL_AGAIN_US:
                continue
            self._recalled_us[name] = now_us
            effects.append(q.AskBack(self._heeding.pop(name).ticket, spare))
            lacking, empty = max(0, lacking - spare), max(0, empty - spare)
        return effects

    def _spare(self, name: bytes, level: int, lacking: int, empty: int) -> int:
        """How many jobs somebody is asked for, when so many lack to an even level, and so many others have none."""
        reserve = self._reserve(name)
        if not reserve or self._held(name) > reserve:  # it is at work
            return min(lacking, reserve - level)
        since_us, times = self._rested.setdefault(name, (self._counted_us, 0))
        if self._counted_us - since_us < REST_US << min(times, _RESTS_MAX):  # it is about to begin one of them
            return min(lacking, reserve - max(1, level))
        self._rested[name] = self._counted_us, times + 1
        return min(max(lacking, empty), reserve)

    def _given_before(self, asked: q.JobsWanted, wall_us: int) -> q.GiveJobs | None:
        """The answer to a request that was decided before, perhaps by an earlier head: the jobs that are still so."""
        holder = self._state.holders.get(asked.holder)
        if holder is None or asked.number != holder.taken:
            return None
        holds = self._state.holds
        offsets = (offset for first, count in pairs(holder.fresh) for offset in range(first, first + count))
        fresh = ranges([offset for offset in offsets if holds(holder, offset, 1)])
        self._ready.spend((len(fresh) // 2 + sum(fresh[1::2])) // _RANGE_SHARE + len(holder.noted))
        kept = [pair for pair in zip(holder.noted, holder.attempts, strict=True) if holds(holder, *pair)]
        noted, attempts = [offset for offset, _ in kept], [attempt for _, attempt in kept]
        return self._giving(asked, fresh, noted, attempts, wall_us, holder.fence)

    def _burial(self, asked: q.JobsWanted, steps: list[QueueStep]) -> q.GiveBurial | None:
        """Dead jobs that this holder shall put into the dead-letter topic, if there are some; one burial at a time."""
        state, burial, name = self._state, self._state.burial, asked.holder
        secret = self._secrets.get(name, NOBODY) if self.policy.holders else NOBODY
        proves = self.policy.holders and self.policy.proves and asked.reports
        if burial is not None and burial.holder == name:
            number, told, at_us = self._burying
            was_told = (number, told) == (burial.number, name) and self._counted_us - at_us < _TELL_AGAIN_US
            if was_told and asked.jobs_max:  # else it leaves, and asks for nothing but this
                return None
        elif burial is not None and (not burial.holder or self._is_overdue(burial)):
            # Under the same id as before, or its letters would be written twice: not by an older client, if it needs
            # a token.
            if burial.proven and not proves:
                return None
            steps.append(Bury(name, burial.number, burial.offsets, secret, burial.proven, burial.series))
        elif burial is None and state.dead:
            # The id without a token may be what was spoiled, and an older client could not say that it is.
            if state.series and not proves:
                return None
            offsets = list(islice(state.dead, BURIED_AT_ONCE_MAX))
            burial = Burial(state.burials + 1, offsets, name, proven=proves, series=state.series)
            steps.append(Bury(name, burial.number, offsets, secret, proves, state.series))
        else:
            return None
        self._burying = burial.number, name, self._counted_us
        return q.GiveBurial(burial.number, burial.offsets, burial.proven, burial.series)

    def _is_overdue(self, burial: Burial) -> bool:
        """Whether a burial has had the same holder for long, while others wait: else one that is heard of and does
        nothing would keep dead jobs from being put aside for as long as it likes (C36).
        """
        number, holder, since_us = self._buried_since
        if (number, holder) != (burial.number, burial.holder):
            self._buried_since = burial.number, burial.holder, self._counted_us
            return False
        return self._counted_us - since_us >= _BURIAL_US

    # --- time -----------------------------------------------------------------------------------

    def _count(self, now_us: int) -> None:
        """Time counts while this broker runs: whoever was held up with it had no chance to be heard (C15)."""
        passed = 0 if self._at_us is None else now_us - self._at_us
        self._counted_us += passed if passed <= _STOOD_STILL_US else _TICK_US
        self._at_us = now_us

    def _hear(self, event: q.HolderHeard, now_us: int) -> list[QueueEffect]:
        """A holder is there; the chain has confirmed that it was heard by the head."""
        self._count(now_us)
        state, name = self._state, event.holder
        if not self._is_owner(name, event.shown):
            return [q.RefuseAsker(event.ticket, "other")]
        if self._is_lost(name):
            return [q.RefuseAsker(event.ticket, "lost")]
        if name not in self._heard and self._is_crowded(event.shown) and not self._makes_room(event.shown):
            return [q.RefuseAsker(event.ticket, "full")]
        self._bind(name, event.shown)
        self._heard[name] = self._counted_us
        holder = state.holders.get(name)
        for offset, attempt, limit_us in event.limits:
            if holder is not None and state.holds(holder, offset, attempt):
                known, until_us = self._limits.get(offset, (0, 0))  # an extension never shortens
                until_us = until_us if known == attempt else 0
                self._limits[offset] = attempt, max(until_us, self._counted_us + limit_us)
        return [q.AnswerHeard(event.ticket, self._overdue.pop(name, []))]

    def _tick(self, tick: q.QueueTick, now_us: int) -> list[QueueEffect]:
        """Leases that are over end; so do attempts that take too long. Not while holders could not be heard."""
        if not tick.counts or self._appending is not None:
            self._at_us = now_us
            return []
        self._count(now_us)
        for name in self._over():
            self._let_part(name, counted=True, why=_LOST)
        steps = self._overtime()
        if not steps:
            return []
        self._appending = []
        return [q.AppendSteps(steps)]

    def _over(self) -> list[bytes]:
        """Holders whose leases are over; some of them, if there are many."""
        begun_us = self._counted_us - self.policy.lease_us
        return list(islice((name for name, heard in self._heard.items() if heard < begun_us), LOST_AT_ONCE))

    def _overtime(self) -> list[QueueStep]:
        """Attempts that took longer than their holders allow."""
        back = []
        state, limits = self._state, self._limits
        if len(limits) > 2 * sum(holder.held for holder in state.holders.values()) + LOST_AT_ONCE:
            self._limits = limits = {job: each for job, each in limits.items() if state.holder_at(job, each[0])}
        names: dict[int, bytes] = {}
        for offset, (attempt, _) in [each for each in limits.items() if each[1][1] <= self._counted_us]:
            del limits[offset]
            names = names or {holder.number: name for name, holder in state.holders.items()}
            name = names.get(state.holder_at(offset, attempt))
            if name is not None:
                if name in self._heard:
                    self._overdue.setdefault(name, []).extend((offset, attempt))
                dead = attempt >= self.policy.attempts_max
                pause_us = 0 if dead else self.policy.pause_us(attempt)
                back.append(JobBack(offset, pause_us, dead=dead, why=_TOO_LONG))
                if len(back) == LOST_AT_ONCE:
                    break
        return [Returned(back)] if back else []

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        assert not self._state.gone.keys() & self._state.holders.keys()
        ends = [end for end, _ in self._told]
        assert ends == sorted(ends)
        self._ready.check_invariants()


def _weight(asked: q.JobsSettled) -> int:
    """About how much work a settlement is, in jobs that are settled by themselves."""
    return (
        len(asked.first) // 2
        + sum(asked.first[1::2]) // _RANGE_SHARE
        + (len(asked.later) // 2 + len(asked.begun) // 2 + len(asked.back))
    )


def _refused(asked: q.JobsSettled, flags: str) -> list[int]:
    """Return the claims of a settlement that are refused."""
    if not flags:
        return []
    claims = asked.claims()
    missing = len(claims) // 2 - len(flags)  # whoever says more than it said before had none of that
    chosen = [flag == chr(REFUSED) for flag in flags] + [True] * missing
    return [each for pair in compress(pairs(claims), chosen) for each in pair]


def _size(asked: q.JobsSettled) -> int:
    """About what a settlement takes in the log, if it is refused."""
    claims = sum(asked.first[1::2]) + len(asked.later)
    return claims * _CLAIM_BYTES + sum(64 + 4 * (len(back.why) + len(back.trace)) for back in asked.back)
