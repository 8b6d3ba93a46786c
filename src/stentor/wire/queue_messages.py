"""Control messages about the jobs of queues. All of them go to the head of the partition that they name.

A consumer is known by the id of its holder, which it chooses. Requests that change something are numbered: one whose
answer was lost is asked again with the same number, and is answered from the log (`core.queue_head`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stentor.core.queue_records import DELAY_S_MAX, TRACE_CHARACTERS_MAX, WHY_CHARACTERS_MAX
from stentor.wire.topic_settings import U32, U63

HOLDER_BYTES = 16
JOBS_TAKEN_MAX = 10_000
"""Jobs that one request may ask for."""

JOBS_SETTLED_MAX = 5_000
"""Ranges, or single jobs, that one request may settle: they must fit a control message. In ranges there may be twice as
many jobs: all of them may be refused, and the log says so."""

WAIT_MS_MAX = 60_000
"""A request for jobs that finds none waits so long at most."""

Holder16 = Annotated[bytes, msgspec.Meta(min_length=HOLDER_BYTES, max_length=HOLDER_BYTES)]
_Numbers = Annotated[list[U63], msgspec.Meta(max_length=2 * JOBS_SETTLED_MAX)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""Of a request of a consumer: 0 stands for none yet."""

Why = Annotated[str, msgspec.Meta(max_length=WHY_CHARACTERS_MAX)]
Trace = Annotated[str, msgspec.Meta(max_length=TRACE_CHARACTERS_MAX)]


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plain value inside a message."""


class _OfPartition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """A request about one partition of a queue."""

    topic_id: U63
    partition: U32


class _Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """An answer."""


class RenewJobs(_OfPartition, frozen=True):
    """A holder is there; the first one begins its lease. Answer: JobsRenewed."""

    holder: Holder16
    limits: Annotated[list[tuple[U63, U63, U63]], msgspec.Meta(max_length=2_000)] = []  # job, attempt, milliseconds


class JobsRenewed(_Answer, frozen=True):
    """The lease is renewed, from when the request was sent."""

    lease_ms: int
    overdue: list[int] = []  # jobs and attempts that took longer than their limits, and are not the holder's any more
    recalls: bool = False  # AwaitRecall is known, by all brokers of the cluster
    dead: bool = False  # jobs wait for somebody who puts them into the dead-letter topic


class TakeJobs(_OfPartition, frozen=True):
    """A holder asks for jobs. Answer: JobsTaken, when there are some, or with none after a while."""

    holder: Holder16
    number: Number  # counts up when an answer says that it is used
    jobs_max: Annotated[int, msgspec.Meta(ge=0, le=JOBS_TAKEN_MAX)]  # none: it only wants to bury dead ones
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 20_000
    known: Annotated[list[U63], msgspec.Meta(max_length=2)] = []  # a range of messages that need not be sent
    reports: bool = False  # the holder says which jobs have begun: if it is lost, the others count as never handed out


class DeadJob(_Value, frozen=True):
    """A job that is dead, and how that came."""

    offset: int
    attempts: int
    history: list[tuple[int, str]] = []  # when attempts failed, in µs since 1970, and why
    trace: str = ""  # of the last one


class BurialTask(_Value, frozen=True):
    """Dead jobs that this holder shall put into the dead-letter topic, as one batch; then ConfirmBurial."""

    number: int
    jobs: list[DeadJob]
    token: bytes = b""  # of the producer id to do so under; none: the id that everybody knows
    returns: bool = False  # ConfirmBurial.left is known, by all brokers of the cluster


class JobsTaken(_Answer, frozen=True):
    """Jobs whose attempts have begun. Their messages are in the batches, as far as these reach."""

    used: bool = False  # the number of the request is used up
    fresh: list[int] = []  # ranges of first attempts: first, count
    noted: list[int] = []  # other jobs,
    attempts: list[int] = []  # and which attempts these are
    burial: BurialTask | None = None
    batches: bytes = b""
    fence: int = 0  # grows with each hand-over of a job
    left_ms: list[int] = []  # of the noted ones: they must begin within this time; 0: whenever. Empty: all of these
    waited_ms: int = 0  # with left_ms: from when the request came to when that was looked at
    alone: bool = (
        False  # workers have died of this job, perhaps: it begins once SettleJobs has said so, and is answered
    )


class FetchJobs(_OfPartition, frozen=True):
    """The messages of some jobs. Answer: JobBatches, perhaps not with all of them."""

    ranges: _Numbers


class JobBatches(_Answer, frozen=True):
    """Batches as they are stored, or with fewer messages; there may be others beside those asked for."""

    batches: bytes


class JobReturn(_Value, frozen=True):
    """A job that was not finished."""

    offset: U63
    attempt: U32
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=DELAY_S_MAX * 1_000)] | None = (
        None  # before it is tried again; none: as the queue's settings say
    )
    counted: bool = True  # the attempt began
    dead: bool = False  # it shall not be tried again
    why: Why = ""
    trace: Trace = ""


class SettleJobs(_OfPartition, frozen=True):
    """Jobs are finished, or given back. Answer: SettledJobs, once that is committed."""

    holder: Holder16
    sequence: Number  # counts up with every request
    first: _Numbers = []  # finished by their first attempts: ranges, rising
    later: _Numbers = []  # finished by other attempts: job, attempt
    begun: _Numbers = []  # not finished, and their handlers have begun: job, attempt
    back: Annotated[list[JobReturn], msgspec.Meta(max_length=JOBS_SETTLED_MAX)] = []


class SettledJobs(_Answer, frozen=True):
    """All of it is committed, but for these jobs and attempts: they are not the holder's any more."""

    refused: list[int] = []


class AwaitRecall(_OfPartition, frozen=True):
    """A holder waits to be asked for jobs that it has not begun. Answer: JobsRecalled, at the latest after a while."""

    holder: Holder16
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 20_000


class JobsRecalled(_Answer, frozen=True):
    """Others have nothing to do: the holder should give back so many jobs, if it has so many that have not begun."""

    count: int = 0


class LeaveQueue(_OfPartition, frozen=True):
    """A holder wants nothing more, and holds nothing that it knows of. Answer: Done."""

    holder: Holder16


class ConfirmBurial(_OfPartition, frozen=True):
    """Dead jobs are in the dead-letter topic. Answer: Done."""

    number: U63
    left: _Numbers = []  # but these are not, nor can be under that producer id: they shall get another one


class PurgeQueue(_OfPartition, frozen=True):
    """End all jobs that nobody holds. Answer: Done."""


class DescribeQueue(_OfPartition, frozen=True):
    """What is in a partition of a queue. Answer: QueueDescribed."""

    jobs_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 0  # how many jobs to describe, the first ones


class JobState(_Value, frozen=True):
    """A job that has not ended."""

    offset: int
    state: str  # waiting, delayed, held, dead
    attempts: int = 0
    due_us: int = 0
    priority: int = 0
    why: str = ""  # the last failure
    unbegun: int = 0  # consumers that were lost with it before they had begun it


class QueueDescribed(_Answer, frozen=True):
    """A partition of a queue, as of an offset that is committed."""

    head: str
    waiting: int = 0  # jobs that nobody holds, the late ones among them
    held: int = 0
    tried: int = 0  # of those that wait: which have failed
    dead: int = 0  # on their way to the dead-letter topic
    consumers: int = 0
    finished: int = 0
    died: int = 0
    jobs: list[JobState] = []
    dying: int = 0  # waiting or held, and dead if the attempt that comes or is under way fails


QueueRequest = (
    RenewJobs
    | TakeJobs
    | FetchJobs
    | SettleJobs
    | AwaitRecall
    | LeaveQueue
    | ConfirmBurial
    | PurgeQueue
    | DescribeQueue
)
QueueResponse = JobsRenewed | JobsTaken | JobBatches | SettledJobs | JobsRecalled | QueueDescribed
