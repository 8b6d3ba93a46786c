"""Jobs as applications see them: a message of a queue, and what becomes of it."""

from __future__ import annotations

import math
import traceback
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from stentor.core.queue_records import DELAY_S_MAX, TRACE_CHARACTERS_MAX, WHY_CHARACTERS_MAX
from stentor.errors import InvalidArgument, LeaseLost
from stentor.wire.queue_rows import own_headers
from stentor.work_errors import HandlerError

if TYPE_CHECKING:
    from datetime import datetime

    from stentor.client.message import Message
    from stentor.wire.rows import Headers

HELD: Final = 0
SETTLED: Final = 1
LOST: Final = 2


class JobPort(Protocol):
    """What ties a job to its partition."""

    holder: bytes

    def owns(self, holder: bytes, until: float = math.inf) -> bool:
        """Whether the lease of this id is not over, nor the time of an attempt."""

    def may_begin(self, job: Job) -> bool:
        """Whether the lease is certain, by a clock that counts suspension, and the job may begin without asking."""

    def begin(self, job: Job, limit_s: float) -> None:
        """The work on a job begins, and may take so long."""

    def limit(self, job: Job, seconds: float) -> None:
        """The work on a job may take so long from now on."""

    def certain_until(self, job: Job) -> float:
        """Until when a job may begin without asking."""

    def is_expired(self, job: Job) -> bool:
        """Whether its ttl is over, and nobody has begun it."""

    async def sure(self, job: Job) -> bool:
        """Ask before a job begins whether it may."""

    def finish(self, job: Job) -> None:
        """A job is done."""

    def give_back(
        self,
        job: Job,
        *,
        delay_ms: int | None = None,
        counted: bool = True,
        dead: bool = False,
        why: str = "",
        trace: str = "",
    ) -> None:
        """A job is not done."""

    async def settled(self, job: Job) -> None:
        """Until what was said about a job is committed."""


class Job(msgspec.Struct, eq=False):
    """One attempt at one job. It belongs to its consumer until it is settled, or its lease is over."""

    message: Message
    attempt: int
    """Which attempt this is; the first is 1."""

    port: JobPort
    """What ties it to its partition; for its consumer, as all that follows."""

    holder: bytes = b""
    """The id under which its consumer got it."""

    fence: int = 0
    """A number that grows each time that this job is handed out. A store that remembers the largest can refuse whoever
    comes with a smaller one: another consumer has had the job since. 0 if the brokers do not say it."""

    begin_by: float = math.inf
    """By when its work must begin, because of its ttl; by the clock of `client.certain`, as the next."""

    until: float = math.inf
    """Until when the work on it may take."""

    extended_until: float = 0.0
    """Until when its handler has asked for more time; workers do not call it late before that."""

    alone: bool = False
    """Whether its consumer asks before it begins: others were lost with it."""

    begun: bool = False
    """Whether its handler has begun, or somebody got it by `get`."""

    told: bool = False
    """Whether the head was told that."""

    state: int = HELD
    """Whether it was settled, or lost."""

    @property
    def key(self) -> bytes | None:
        """The key of its message."""
        return self.message.key

    @property
    def value(self) -> bytes | None:
        """The value of its message."""
        return self.message.value

    @property
    def headers(self) -> Headers:
        """The headers of its message, without those that are the queue's own."""
        headers = self.message.headers
        return own_headers(headers) if headers else headers

    @property
    def queue(self) -> str:
        """The queue that it is from."""
        return self.message.topic

    @property
    def topic(self) -> str:
        """The same: a queue is a topic, so a handler of messages can handle jobs."""
        return self.message.topic

    @property
    def partition(self) -> int:
        """The partition of the queue that it is in."""
        return self.message.partition

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return self.message.offset

    @property
    def timestamp(self) -> datetime:
        """When it was put."""
        return self.message.timestamp

    @property
    def is_held(self) -> bool:
        """Whether it is this consumer's, and not settled."""
        return self.state == HELD and self.port.owns(self.holder, self.until)

    def __repr__(self) -> str:
        return f"Job({self.queue}/{self.partition}@{self.offset} attempt={self.attempt} value={self.value!r:.60})"

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self.state == SETTLED

    # --- for the consumer -----------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it is neither settled nor known to be lost."""
        return self.state == HELD

    def settle(self) -> None:
        """It is being settled. LeaseLost if it was before, or is not this consumer's any more."""
        if self.state == HELD and self.port.owns(self.holder, self.until):
            self.state = SETTLED
            return
        if self.state == SETTLED:
            raise LeaseLost(
                f"Job {self.queue}/{self.partition}@{self.offset} was acknowledged or given back before.",
                hint="Settle each job once.",
                object=self.queue,
            )
        raise lost(self)

    def lose(self) -> None:
        """It is another's now."""
        self.state = LOST


def lost(job: Job) -> LeaseLost:
    """What is said about a job that is another's."""
    return LeaseLost(
        f"Attempt {job.attempt} of job {job.queue}/{job.partition}@{job.offset} is not this consumer's any more.",
        hint="The job is handed out again. Whatever its handler did may be done twice.",
        object=job.queue,
    )


def as_delay_ms(delay: object, what: str = "delay") -> int | None:
    """A pause in seconds; None: by the rule of the queue."""
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= DELAY_S_MAX:
        raise InvalidArgument(
            f"{what}={delay!r} is not a pause.", hint=f"Use a number of seconds from 0 to {DELAY_S_MAX}."
        )
    return round(delay * 1_000)


def text_of(error: object) -> str:
    """What an error says, whatever that is: it may be no Unicode, as names of files are, or raise an error itself."""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - it is the handler's own class
        text = f"<{type(broken).__name__} while it was asked what it says>"
    return sendable(text)


def sendable(text: str) -> str:
    """A text that can be sent."""
    return text.encode("utf-8", "backslashreplace").decode()


def reason_of(error: Any) -> tuple[str, str]:
    """Why an attempt failed, and its traceback: as long as a job may say it."""
    if error is None:
        return "", ""
    if not isinstance(error, BaseException):
        return text_of(error)[:WHY_CHARACTERS_MAX], ""
    if isinstance(error, HandlerError):  # what was raised in a worker process, as it was there
        kind, text, trace = (str(error.detail.get(each, "")) for each in ("kind", "text", "traceback"))
        return f"{kind}: {text}"[:WHY_CHARACTERS_MAX], trace[-TRACE_CHARACTERS_MAX:]
    why = f"{type(error).__name__}: {text_of(error)}"[:WHY_CHARACTERS_MAX]
    return why, sendable("".join(traceback.format_exception(error)))[-TRACE_CHARACTERS_MAX:]
