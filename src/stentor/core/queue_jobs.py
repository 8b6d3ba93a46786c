"""What a queue's state is made of: jobs that are more than a byte, who holds them, and how all of it is kept."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.core import queue_records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence


UNIQUE_MAX: Final = 1_000_000
"""Names of unique jobs that one partition remembers; beyond it the oldest are forgotten before their time."""

FORGOTTEN_AT_ONCE: Final = 16
"""Names that go when another one comes, if their time is over: more than come, so that they all go in the end, and few
enough that no single job pays for the names of an hour (C35)."""

NOTED_BYTES: Final = 400
"""About the memory of a job that is an object, with its place in the dictionary and in the head's index."""

NAME_BYTES: Final = 220
"""About the memory of the name of a unique job."""

HOLDER_BYTES: Final = 1_000
"""About the memory of a holder that has nothing, with what its head knows of it."""

_NUMBER_BYTES: Final = 40  # in a list

ALLOWED: Final = ord("0")
REFUSED: Final = ord("1")

HISTORY_MAX: Final = 5
"""Failures of a job that are remembered, the last ones."""

GONE_MAX: Final = 1_000
"""Holders that left and are remembered: one that comes back late is told what became of its last request."""


UNBEGUN_MAX: Final = 2
"""Holders that may be lost with a job that had not begun, before it is looked at more closely: one is killed by chance
now and then; a job that kills its worker at once does it every time.
"""

TRACES_MAX: Final = 1_000
"""Dead jobs that wait to be buried with their tracebacks; of more, which nobody can bury, only the reasons are kept."""


class UniqueNames:
    """The names of unique jobs, each with the time until which no other job may have it."""

    def __init__(self, until: dict[bytes, int]) -> None:
        # Not a plain dict: to find the first key of one whose front was deleted takes as long as it once was.
        self.until = OrderedDict(until)

    def use(self, name: bytes, until_us: int, now_us: int) -> None:
        """Note that a name is used, and forget the oldest ones whose time is over, some at a time."""
        until = self.until
        until[name] = until_us
        until.move_to_end(name)
        for _ in range(FORGOTTEN_AT_ONCE):
            oldest = next(iter(until))
            if until[oldest] > now_us and len(until) <= UNIQUE_MAX:
                return
            del until[oldest]
            if not until:
                return


class NotedJob(msgspec.Struct, array_like=True, gc=False):
    """A job that is not fresh and not held by its first attempt.

    There may be a million, and none refers to itself: the garbage collector, which would stop the loop to look at all
    of them, need not know of any (C35).
    """

    attempts: int = 0
    holder: int = 0  # the number of who has it; 0: nobody
    due_us: int = 0  # not before
    pause_us: int = 0  # nor later than this after somebody knew of it: clocks of brokers may be wrong; 0: then exactly
    priority: int = 0
    expires_us: int = 0  # not begun by then it is dead; 0: it has time
    dead: bool = False
    history: tuple[tuple[int, str], ...] = ()  # when attempts failed, and why
    trace: str = ""  # of the last failure, if it is dead
    begun: bool = False  # the handler of this attempt has begun, as its holder says
    unbegun: int = 0  # holders that were lost with it before they said so, since one gave it back

    @property
    def alone(self) -> bool:
        """Whether it may be what its holders died of: it is handed out alone, and begins once that is committed."""
        return self.unbegun >= UNBEGUN_MAX


class Hand:
    """Where the jobs are that a holder took, as runs of offsets; some of these it holds no more."""

    __slots__ = ("runs", "size", "span")

    def __init__(self) -> None:
        self.size = 0  # about the memory of its holder, as it was counted last
        self.runs = array("q")  # [first, count, …]
        self.span = 0  # offsets in them

    def add(self, first: int, count: int) -> None:
        """Note that the holder took jobs next to each other."""
        runs = self.runs
        if runs and runs[-2] + runs[-1] == first:
            runs[-1] += count
        else:
            runs.extend((first, count))
        self.span += count

    def replace(self, runs: Iterable[tuple[int, int]]) -> None:
        """Forget what the holder holds no more: these are left, as first and count, in the order of the log."""
        self.runs, self.span = array("q"), 0
        for first, count in runs:
            self.add(first, count)


class Holder(msgspec.Struct, array_like=True):
    """Who works on jobs: one consumer, from joining to leaving."""

    number: int
    held: int = 0  # jobs
    taken: int = 0  # the number of its last request for jobs that was answered,
    fresh: list[int] = []  # and what it got: ranges of first attempts,
    noted: list[int] = []  # other jobs,
    attempts: list[int] = []  # and which attempts those were
    settled: int = 0  # the number of its last request that ended jobs,
    refused: list[int] = []  # and jobs that were not its own any more, if it was settled below the level HOLDERS
    secret: bytes = b""  # the hash of what its owner shows (C36); empty: it was made without one
    reports: bool = False  # it says which jobs have begun
    begun: int = 0  # of those that it holds: which have
    fence: int = 0  # where the step is that handed out what it got last
    lost: bytes = b""  # `kept_flags` of its last request that ended jobs; empty: nothing was refused

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        numbers = len(self.fresh) + len(self.noted) + len(self.attempts) + len(self.refused)
        return HOLDER_BYTES + _NUMBER_BYTES * numbers + len(self.lost)


class Burial(msgspec.Struct, frozen=True, array_like=True):
    """Dead jobs on their way into the dead-letter topic."""

    number: int
    offsets: list[int]
    holder: bytes
    secret: bytes = b""  # of the last holder that it was given to, as a hash
    proven: bool = False  # it is published under an id that needs a token
    series: int = 0  # which of the ids of the partition that is


class QueueSnapshot(msgspec.Struct, array_like=True):
    """All of a queue's state; what is long is compressed."""

    version: int
    base: int
    marks: bytes
    numbers: bytes
    hashes: bytes
    jobs: dict[int, NotedJob]
    holders: dict[bytes, Holder]
    gone: dict[bytes, Holder]
    last_number: int
    dead: list[int]
    burial: Burial | None
    burials: int
    unique: dict[bytes, int]
    counts: list[int]
    series: int = 0


_decoder = msgspec.msgpack.Decoder(QueueSnapshot)  # made here, under the import lock: logs are opened in threads


def decode_snapshot(snapshot: bytes) -> QueueSnapshot:
    """A snapshot as it was taken; msgspec's errors if it is none."""
    return _decoder.decode(snapshot)


def kept_flags(flags: bytes | bytearray) -> bytes:
    """Return a digit for each claim, ALLOWED or REFUSED, as a bit each.

    Who asks again says again what it claimed, so a bit is enough. As numbers, which anybody can choose, the claims of
    one request would take a megabyte in each broker of the chain (S7).
    """
    return int(b"1" + flags, 2).to_bytes(len(flags) // 8 + 1)  # the first one says where they begin


def flags_of(kept: bytes) -> str:
    """Return the digits that `kept_flags` was given. Whatever a log holds stands for some."""
    return f"{int.from_bytes(kept):b}"[1:]


def pairs(flat: list[int]) -> Iterable[tuple[int, int]]:
    """[first, count, …] as pairs."""
    ends = iter(flat)
    return zip(ends, ends, strict=True)


def ranges(offsets: Sequence[int]) -> list[int]:
    """Rising offsets as [first, count, …]."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:  # no gap, as most often
        return [offsets[0], len(offsets)]
    found: list[int] = []
    for offset in offsets:
        if found and offset == found[-2] + found[-1]:
            found[-1] += 1
        else:
            found += offset, 1
    return found


def without_missing(
    step: r.QueueStep,
    within: range,
    jobs: Container[int],
    *,
    is_fresh: Callable[[int], bool],
    is_open: Callable[[int], bool],
) -> r.QueueStep:
    """What a step says of jobs that are there: noted ones, fresh ones, and all that have not ended."""

    def runs(numbers: list[int], counts: Callable[[int], bool]) -> list[int]:
        known: set[int] = set()
        for first, count in zip(numbers[::2], numbers[1::2], strict=False):  # the number of a last pair may be missing
            known.update(filter(counts, range(max(first, within.start), min(first + count, within.stop))))
        return ranges(sorted(known))

    def back(given: list[r.JobBack]) -> list[r.JobBack]:
        return [each for each in given if is_open(each.offset)]

    replace = msgspec.structs.replace
    match step:
        case r.Took():
            noted = [offset for offset in step.noted if offset in jobs]
            return replace(step, fresh=runs(step.fresh, is_fresh), noted=noted)
        case r.Settled():
            begun = [offset for offset in step.begun if is_open(offset)]
            return replace(step, done=runs(step.done, is_open), back=back(step.back), begun=begun)
        case r.Returned() | r.HolderLeft():
            return replace(step, back=back(step.back))
        case r.Bury():
            return replace(step, offsets=[offset for offset in step.offsets if offset in jobs])
    return step
