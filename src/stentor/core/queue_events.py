"""Events and effects of the head of a queue's partition (`core.queue_head`).

Who asks for something has a ticket, by which the answer finds it. Jobs with their attempts stand in flat lists:
[offset, attempt, …]; ranges of first attempts: [first, count, …].
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stentor.core.queue_jobs import pairs
from stentor.core.queue_records import QueueStep

# --- events ---------------------------------------------------------------------------------------


class JobsWanted(msgspec.Struct, frozen=True):
    """A holder asks for jobs; it is answered when there are some."""

    ticket: int
    holder: bytes
    number: int  # of the request: one that is asked again has the same
    jobs_max: int
    shown: bytes = b""  # the hash of the asker's secret (C36), as in all events below
    reports: bool = False  # it says which of its jobs have begun


class GivenBack(msgspec.Struct, frozen=True):
    """A job that its holder did not finish."""

    offset: int
    attempt: int
    delay_us: int | None = None  # before it is tried again; none: by the rule of the queue
    counted: bool = True  # the attempt began
    dead: bool = False  # it shall not be tried again
    why: str = ""
    trace: str = ""


class JobsSettled(msgspec.Struct, frozen=True):
    """A holder is done with jobs, or gives them back. No job is named twice."""

    ticket: int
    holder: bytes
    sequence: int  # of the request: one that is asked again has the same
    first: list[int] = []  # finished by their first attempts: ranges
    later: list[int] = []  # finished by other attempts
    back: list[GivenBack] = []
    shown: bytes = b""
    begun: list[int] = []  # jobs and attempts whose handlers have begun

    def claims(self) -> list[int]:
        """All jobs and attempts that it speaks of. Logs rely on their order (`queue_jobs.kept_flags`)."""
        firsts = [
            each for first, count in pairs(self.first) for offset in range(first, first + count) for each in (offset, 1)
        ]
        return [
            *firsts,
            *self.later,
            *self.begun,
            *(each for back in self.back for each in (back.offset, back.attempt)),
        ]


class HolderHeard(msgspec.Struct, frozen=True):
    """A holder is there. The chain has confirmed, after it was heard, that this is its head (C30)."""

    ticket: int
    holder: bytes
    limits: list[tuple[int, int, int]] = []  # jobs that it works on, their attempts, and how many µs each may take
    shown: bytes = b""


class HolderLeaving(msgspec.Struct, frozen=True):
    """A holder says goodbye. What it holds and has not given back, it never heard of."""

    ticket: int
    holder: bytes
    shown: bytes = b""


class RecallAwaited(msgspec.Struct, frozen=True):
    """A holder wants to hear when it should give jobs back that it has not begun, because others have none."""

    ticket: int
    holder: bytes
    shown: bytes = b""


class JobsBuried(msgspec.Struct, frozen=True):
    """Dead jobs are in the dead-letter topic."""

    ticket: int
    number: int
    shown: bytes = b""
    left: list[int] = []  # but these cannot get there: something else stands under their numbers


class PurgeJobs(msgspec.Struct, frozen=True):
    """An operator wants all jobs to end that nobody holds."""

    ticket: int


class JobsStuck(msgspec.Struct, frozen=True):
    """Jobs that wait, and of which the log cannot be let go: they cannot be appended again."""

    offsets: list[int]


class AskerGone(msgspec.Struct, frozen=True):
    """Whoever waited for jobs, or to be asked for some, does not any more."""

    ticket: int
    holder: bytes


class QueueTurn(msgspec.Struct, frozen=True):
    """The end of a turn of the loop: decide what gathered."""

    committed: int
    wall_us: int  # by the clock that stamps batches


class StepsAppended(msgspec.Struct, frozen=True):
    """The steps of the last AppendSteps are in the log, which ends here."""

    end: int


class StepsRefused(msgspec.Struct, frozen=True):
    """They are not."""


class QueueCommitted(msgspec.Struct, frozen=True):
    """Everything below this offset is committed."""

    end: int


class QueueTick(msgspec.Struct, frozen=True):
    """Some time passed."""

    counts: bool = True  # holders could be heard meanwhile


QueueEvent = (
    JobsWanted
    | JobsSettled
    | HolderHeard
    | HolderLeaving
    | RecallAwaited
    | JobsBuried
    | PurgeJobs
    | JobsStuck
    | AskerGone
    | QueueTurn
    | StepsAppended
    | StepsRefused
    | QueueCommitted
    | QueueTick
)

# --- effects --------------------------------------------------------------------------------------


class AppendSteps(msgspec.Struct, frozen=True):
    """Append a control batch with these steps, then report StepsAppended or StepsRefused."""

    steps: list[QueueStep]


class GiveBurial(msgspec.Struct, frozen=True):
    """Dead jobs to put into the dead-letter topic."""

    number: int
    offsets: list[int]
    proven: bool = False  # under an id that needs a token
    series: int = 0  # which of the partition's


class GiveJobs(msgspec.Struct, frozen=True):
    """Answer a request for jobs: the attempts have begun, and that is committed."""

    ticket: int
    fresh: list[int]  # ranges of first attempts
    noted: list[int]  # other jobs,
    attempts: list[int]  # and which attempts these are
    used: bool = True  # the number of the request is used up
    burial: GiveBurial | None = None
    fence: int = 0  # grows with each hand-over of a job
    left_us: list[int] = []  # for each of the noted: it must begin within this time; 0: whenever. Empty: all of these
    alone: bool = False  # the only job may kill its worker: it begins once its holder's word for that is committed


class AnswerSettled(msgspec.Struct, frozen=True):
    """Answer a settlement: all of it is committed, but for jobs that were not the holder's own any more."""

    ticket: int
    refused: list[int]


class AnswerHeard(msgspec.Struct, frozen=True):
    """The lease is renewed. These attempts took too long, and were ended."""

    ticket: int
    overdue: list[int]


class AskBack(msgspec.Struct, frozen=True):
    """Others have nothing to do: this holder should give back so many jobs that it has not begun."""

    ticket: int
    count: int


class AnswerDone(msgspec.Struct, frozen=True):
    """What was asked for is committed."""

    ticket: int


class RefuseAsker(msgspec.Struct, frozen=True):
    """Why something cannot be. lost: the lease is over; unheard: there is none yet; overtaken: a later request of the
    same holder came; full: there are too many holders, or too many of one client; not_now: the log took nothing, ask
    again; other: it is another's, who has shown another secret (C36).
    """

    ticket: int
    why: Literal["lost", "unheard", "overtaken", "full", "not_now", "other"]


QueueAnswer = GiveJobs | AnswerSettled | AnswerHeard | AskBack | AnswerDone | RefuseAsker
QueueEffect = AppendSteps | QueueAnswer
