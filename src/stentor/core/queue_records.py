"""What the head of a queue's partition writes into its log: steps, and what a message may say about its job.

A control batch holds the steps of one turn of the head's loop. Only the head appends steps, after it has looked at all
that the log says; so whoever reads them applies them as they are. Offsets stand in flat lists: ranges as
[first, count, …], jobs with their attempts as [offset, attempt, …].

Fields at the ends of steps that have a default came with the feature level HOLDERS, and are written from that on (C27).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

QUEUE: Final = 2
"""The kind of control batch (`core.horizon` has the other)."""

WHY_CHARACTERS_MAX: Final = 500
"""Of what a job says about its last failure while it waits to be tried again."""

TRACE_CHARACTERS_MAX: Final = 8_000
"""Of the traceback that goes with a job to its dead letters."""

PRIORITY_MAX: Final = 9
"""Priorities are 0, the usual one, to 9, the most urgent."""

DELAY_S_MAX: Final = 10 * 365 * 86_400
"""A job that is due later is a mistake."""


class JobTerms(NamedTuple):
    """What a message says about its job, beside its key and value."""

    delay_us: int = 0  # due so long after it was appended
    at_us: int = 0  # due then
    priority: int = 0
    ttl_us: int = 0  # not begun so long after it was appended, it is dead
    unique: bytes = b""  # the hash of a name that nobody else may use
    unique_us: int = 0  # for so long
    origin: int = -1  # by the head: the same job, which was at this offset


class JobBack(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The end of an attempt that did not finish its job, or of a job that was never tried."""

    offset: int
    pause_us: int = 0  # it is handed out again after this; 0: at once
    counted: bool = True  # the attempt counts; one that never began does not
    dead: bool = False  # it is not tried again
    why: str = ""
    trace: str = ""
    lost: bool = False  # its holder was lost, and had not said that its handler had begun


class Took(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A holder gets jobs. This begins an attempt of each."""

    holder: bytes
    number: int  # of the request that this answers
    fresh: list[int]  # ranges of jobs that were never tried
    noted: list[int]  # other jobs
    secret: bytes = b""  # the hash of its holder's secret (C36)
    reports: bool = False  # it says which of its jobs have begun: the others do not count if it is lost


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A holder is done with jobs, or gives them back."""

    holder: bytes
    sequence: int  # of the request that this answers
    done: list[int]  # ranges
    back: list[JobBack]
    refused: list[int]  # jobs and attempts that are not the holder's any more; from HOLDERS on, `lost` instead
    begun: list[int] = []  # jobs whose handlers have begun
    lost: bytes = b""  # which claims of the request are refused (`queue_jobs.kept_flags`); empty: none


class Returned(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Attempts that took too long, and jobs whose time was over before anybody began them."""

    back: list[JobBack]


class HolderLeft(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A holder said goodbye, or its lease is over."""

    holder: bytes
    back: list[JobBack]


class Bury(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A holder puts these dead jobs into the dead-letter topic, as one batch under this number."""

    holder: bytes
    number: int
    offsets: list[int]
    secret: bytes = b""  # the hash of its holder's secret (C36)
    proven: bool = False  # it is published under an id that needs a token, whoever does it
    series: int = 0  # which of the ids of the partition that is


class Buried(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """They are there."""

    number: int
    left: list[int] = []  # but these are not, and never will be under the id that they had: others come under another


class Purged(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """All jobs below an offset that nobody holds end, by order of an operator."""

    until: int


QueueStep = Took | Settled | Returned | HolderLeft | Bury | Buried | Purged
