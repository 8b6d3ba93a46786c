"""A partition's replica: the pure machine that assigns offsets, commits and answers.

Rules kept here (SAFETY.md): C5 commit = on disk at every member; C7 ack levels are places in the
chain; C18 producers' sequences. A single broker is a chain of one: its head is its tail, so
`durable_1`, the offset through which the head is on disk, is the commit point.

Theory of operation. `step(event, now_us)` returns effects, in the order in which they must be
performed. A publish is admitted in two steps so that a full disk never costs an offset (K5):

    Publish ──► Append(base offset, epoch, time) ──performed──► Appended ──► [Sync]
                                            └─────refused by the disk──► nothing happened
    Durable(end) ──► Committed(end), Answer(ticket …) for all that waited for it

`Durable` is reported by the log: after a successful sync for topics with flush=always, at once for
flush=interval, which says so.

Invariants: committed <= durable <= end; answers go out in offset order; a waiting answer's end
is above the commit point.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from stentor.core.dedupe import Dedupe, Resend
from stentor.errors import InternalError, NotReady, SequenceError, StentorError, UnknownOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

# --- events -------------------------------------------------------------------------------------


class Publish(msgspec.Struct, frozen=True, gc=False):
    """A client's batch, validated, wants an offset."""

    ticket: int  # names the request in effects
    ack: int  # wire.frames.Ack
    count: int
    producer_id: int
    generation: int
    sequence: int
    checksum: int


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The batch of the last Append effect is in the log file."""

    publish: Publish
    append: Append


class Durable(msgspec.Struct, frozen=True, gc=False):
    """The log is on disk up to (not including) this offset."""

    end: int


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The log takes no more writes (K3): what waits has an unknown outcome."""

    reason: str


Event = Publish | Appended | Durable | Fail

# --- effects ------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True, gc=False):
    """Write the batch at this offset, with these stamps, then report Appended."""

    base_offset: int
    epoch: int
    appended_at_us: int


class Sync(msgspec.Struct, frozen=True, gc=False):
    """Bring the log to disk, then report Durable."""


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Readers may see everything below this offset."""

    end: int


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The publish reached its ack level."""

    ticket: int
    base_offset: int
    epoch: int
    appended_at_us: int


class Refuse(msgspec.Struct, frozen=True):
    """The publish was not taken, or its outcome is unknown."""

    ticket: int
    error: StentorError


Effect = Append | Sync | Committed | Answer | Refuse


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A publish that is in the log but has not reached its ack level."""

    end: int
    answer: Answer


class Replica:
    """One member of one partition's chain."""

    def __init__(
        self, *, epoch: int, chain: Sequence[str], end: int, committed: int, dedupe: Dedupe, failed: str = ""
    ) -> None:
        self.epoch = epoch
        self.chain = tuple(chain)
        self.end = end
        self.durable = end
        self.committed = committed
        self.dedupe = dedupe
        self.failed = failed
        self._waiting: deque[_Waiting] = deque()
        self._syncing = False

    def step(self, event: Event, now_us: int) -> list[Effect]:
        """Take an event, return what must be done."""
        match event:
            case Publish():
                return [self._publish(event, now_us)]
            case Appended():
                return self._appended(event)
            case Durable():
                return self._durable(event.end)
            case Fail():
                return self._fail(event.reason)
        raise InternalError(f"Unknown event {event!r}.")

    def _publish(self, event: Publish, now_us: int) -> Effect:
        if self.failed:
            return Refuse(event.ticket, self._not_ready())
        try:
            resend = self.dedupe.check(event.producer_id, event.generation, event.sequence, event.checksum)
        except SequenceError as error:
            return Refuse(event.ticket, error)
        if resend is not None:
            return self._answer_resend(event, resend)
        return Append(self.end, self.epoch, now_us)

    def _answer_resend(self, event: Publish, resend: Resend) -> Effect:
        """A resend is answered like the original: once it has reached its level (C18)."""
        answer = Answer(event.ticket, resend.base_offset, self.epoch, resend.appended_at_us)
        if resend.end_offset <= self.durable:
            return answer
        self._wait(_Waiting(resend.end_offset, answer))
        return Sync()

    def _wait(self, waiting: _Waiting) -> None:
        """Keep the queue in offset order; a resend waits among those of its own offset."""
        position = len(self._waiting)
        while position and self._waiting[position - 1].end > waiting.end:
            position -= 1
        self._waiting.insert(position, waiting)

    def _appended(self, event: Appended) -> list[Effect]:
        publish, append = event.publish, event.append
        assert append.base_offset == self.end
        self.end = append.base_offset + publish.count
        self.dedupe.record(
            publish.producer_id,
            publish.generation,
            publish.sequence,
            publish.checksum,
            append.base_offset,
            self.end,
            append.appended_at_us,
        )
        if publish.ack:
            answer = Answer(publish.ticket, append.base_offset, append.epoch, append.appended_at_us)
            self._waiting.append(_Waiting(self.end, answer))
        if self._syncing:
            return []
        self._syncing = True
        return [Sync()]

    def _durable(self, end: int) -> list[Effect]:
        self.durable = max(self.durable, end)
        self._syncing = False
        effects: list[Effect] = []
        if self.durable > self.committed:
            self.committed = self.durable
            effects.append(Committed(self.committed))
        waiting = self._waiting
        while waiting and waiting[0].end <= self.durable:
            effects.append(waiting.popleft().answer)
        if self.end > self.durable:
            self._syncing = True
            effects.append(Sync())
        return effects

    def _fail(self, reason: str) -> list[Effect]:
        self.failed = reason
        refused: list[Effect] = [Refuse(w.answer.ticket, self._unknown()) for w in self._waiting]
        self._waiting.clear()
        return refused

    def _not_ready(self) -> NotReady:
        return NotReady(
            f"This partition takes no writes: {self.failed}",
            hint="Reads go on. Mend the disk; a start with --unclean then takes writes again.",
        )

    def _unknown(self) -> StentorError:
        return UnknownOutcome(
            f"Whether the batch is in the log is not known: {self.failed}",
            hint="Read the partition to find out; publishing it again may double it.",
        )

    def statistics(self) -> dict[str, int | str]:
        return {
            "epoch": self.epoch,
            "end": self.end,
            "durable": self.durable,
            "committed": self.committed,
            "waiting": len(self._waiting),
            "failed": self.failed,
        }

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        assert self.committed <= self.durable <= self.end
        ends = [waiting.end for waiting in self._waiting]
        assert ends == sorted(ends)
        assert not ends or ends[0] > self.committed
        self.dedupe.check_invariants()
