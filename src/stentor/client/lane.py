"""A lane: one producer's way to one partition — gather, seal, send, wait, send again.

Threads. Applications extend `rows` from any thread; extending a list by a tuple is one step for the
interpreter, so `send` takes no lock. Sealing (rows become a numbered batch) cuts from the front of
the list under the lane's lock, in whichever thread finds the batch full, so that encoding costs no
hand-over. Everything else happens in the client's loop.

Rows are flat, [value, key, value, key, …]: a pair per message would be an object for the garbage
collector to visit. A message with more than a key has an `Extra` in the key's place.

    rows ──seal──► unsent ──dispatch──► on the wire ──answer──► done
                     └────────────── pending (in sequence order) ──┘

A batch is sent at once when nothing is in flight, and gathers while something is: one message
waits for nothing, and load makes batches.

C18: sequences count up by one; sent batches are immutable; after a lost link everything unanswered is
sent again in order; after giving a batch up the lane goes on under the next generation. It also does so, with what is
unanswered, where the log has certainly none of it: in a topic that was made anew, and behind batches that were
acknowledged below `all` and lost with their head.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client.message import Receipt
from stentor.client.outcomes import FailedBatch
from stentor.client.rows import Extra, encode_rows, without
from stentor.client.sent import Sent
from stentor.core.dedupe import ANONYMOUS, SEARCHED
from stentor.errors import (
    ConditionFailed,
    InvalidArgument,
    LimitExceeded,
    NotHead,
    PartitionNotFound,
    PublishError,
    SequenceError,
    StentorError,
    UnknownOutcome,
)
from stentor.wire import batch
from stentor.wire.frames import Ack
from stentor.wire.header import in_epoch

_OVERTAKEN = ("gap", "unknown_producer")
"""Refusals of a batch that came before an earlier one, which was not taken a moment ago; be it the very first."""

if TYPE_CHECKING:
    from stentor.client.link import BrokerLink
    from stentor.client.producer_core import ProducerCore
    from stentor.wire.batch import Encoded


class Lane:
    """The way to one partition."""

    __slots__ = (
        "awake",
        "bytes",
        "done_bytes",
        "gathering_since",
        "generation",
        "link",
        "lock",
        "opened_us",
        "partition",
        "pending",
        "producer",
        "refusal",
        "rows",
        "sealed_bytes",
        "sequence",
        "stalled",
        "unsent",
    )

    def __init__(self, producer: ProducerCore, partition: int) -> None:
        self.producer = producer
        self.partition = partition
        self.rows: list[Any] = []
        self.bytes = 0  # about how much large values are in rows; exact whenever rows is empty
        self.awake = False  # the loop will look at this lane by itself
        self.opened_us = 0  # when the batch that gathers now was begun
        self.gathering_since: float | None = None  # since when its messages were seen to wait; only under the lock
        self.pending: deque[Sent] = deque()
        self.unsent: deque[Sent] = deque()
        self.sealed_bytes = 0  # only changed under the lock
        self.done_bytes = 0  # only changed in the loop
        self.generation: int = producer.sender.generation
        self.sequence = 0
        self.stalled = False  # refused for now; a timer will send again
        self.refusal: StentorError | None = None  # why, if so
        self.lock = threading.Lock()
        self.link: BrokerLink | None = None  # where the last batch went

    # --- sealing: any thread --------------------------------------------------------------------

    def seal(self) -> None:
        """Make a batch of what has gathered, up to the producer's limits."""
        with self.lock:
            self._seal_some()

    def seal_all(self) -> list[Sent]:
        """Make batches of all that has gathered until now; everything that is unanswered then.

        The lock makes it complete: another thread may have taken rows, and not made a batch of them yet.
        """
        with self.lock:
            left = len(self.rows)
            while left > 0:
                left -= self._seal_some()
            return list(self.pending)

    def _seal_some(self) -> int:
        """How long the part of `rows` was that became a batch."""
        rows = self._take()
        if rows:
            self._seal_rows(rows)
        self.opened_us = time.time_ns() // 1000
        self.gathering_since = None
        return len(rows)

    def _seal_rows(self, rows: list[Any]) -> None:
        """Keys and headers are not counted while gathering; if they make a batch too large, halve it."""
        try:
            self._seal(*self._encode(rows))
        except LimitExceeded as error:
            half = len(rows) // 4 * 2
            if half:
                self._seal_rows(rows[:half])
                self._seal_rows(rows[half:])
            else:
                self._fail_rows(rows, error)
        except StentorError as error:
            self._fail_rows(rows, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, its sender must hear of it
            self._fail_rows(rows, InvalidArgument(f"Messages cannot be encoded: {error}.", operation="publish"))

    def _fail_rows(self, rows: list[Any], error: StentorError) -> None:
        """These never became a batch: `flush` must know at once, callbacks are for the loop to call."""
        producer = self.producer
        producer.outcomes.record_failure(FailedBatch(producer.topic, self.partition, len(rows) // 2, error))
        callbacks = [
            extra.on_delivery for extra in rows[1::2] if isinstance(extra, Extra) and extra.on_delivery is not None
        ]
        producer.core.loop.call_soon_threadsafe(self._tell_failure, callbacks, error)

    def _tell_failure(self, callbacks: list[Any], error: StentorError) -> None:
        for callback in callbacks:
            self.producer.call_back(callback, None, error)
        self.producer.progressed()

    def _take(self) -> list[Any]:
        rows, producer = self.rows, self.producer
        count = min(len(rows), 2 * producer.batch_messages)
        if self.bytes > producer.batch_bytes:
            sizes = accumulate(len(value or b"") for value in rows[0:count:2])
            count = 2 * (1 + sum(1 for _ in takewhile(producer.batch_bytes.__gt__, sizes)))
            count = min(count, len(rows))
        taken = rows[:count]
        del rows[:count]
        self.bytes = 0 if not rows else max(0, self.bytes - sum(len(value or b"") for value in taken[0::2]))
        return taken

    def _encode(self, rows: list[Any]) -> tuple[Encoded, list[Any]]:
        producer, opened_us = self.producer, self.opened_us or time.time_ns() // 1000
        return encode_rows(rows, opened_us, extras=producer.extras, compression=producer.compression)

    def add_encoded(self, encoded: Encoded, callbacks: list[Any] | None = None) -> None:
        """A batch that was encoded elsewhere, after everything that gathered before it."""
        while self.rows:
            self.seal()
        with self.lock:
            self._seal(encoded, callbacks or [])

    def _seal(self, encoded: Encoded, callbacks: list[Any]) -> None:
        producer = self.producer
        header = self._address(encoded)
        # Messages that gathered behind a batch that nobody answered have waited already: their time began with `send`.
        began = time.monotonic() if self.gathering_since is None else self.gathering_since
        due = math.inf if producer.awaited else began + producer.timeout
        sent = Sent(self, encoded, header, callbacks, due)
        self.sealed_bytes += sent.size
        self.pending.append(sent)
        self.unsent.append(sent)

    def _address(self, encoded: Encoded) -> bytearray:
        """The header of a batch, with the next number."""
        producer, sequence = self.producer, self.sequence
        self.sequence += 1
        return batch.address(
            encoded,
            topic_id=producer.topic_id,
            partition=self.partition,
            # Without answers nobody would notice a gap in the sequence: ack=none goes unnumbered.
            producer_id=producer.sender.id if producer.ack else ANONYMOUS,
            generation=self.generation,
            sequence=sequence,
        )

    # --- sending: the loop ----------------------------------------------------------------------

    def pump(self) -> None:
        """Send what is sealed; seal what has gathered once nothing is in flight."""
        if self.pending:
            self.dispatch()
        while not self.pending:
            self.awake = False  # before looking at rows: a sender that sees False wakes us again
            if not self.rows:
                return
            self.awake = True
            self.seal()
            self.dispatch()

    def dispatch(self) -> None:
        if self.stalled:
            return
        producer = self.producer
        link = producer.core.routing.head_link(producer.topic, producer.topic_id, self.partition)
        if link is None:
            return
        if link is not self.link:
            self._move(link)
        while self.unsent and self._may_send(self.unsent[0]):
            self._send(link, self.unsent.popleft())

    def _move(self, link: BrokerLink) -> None:
        """Another link leads to the head now: what is unanswered goes over it, in order."""
        self.link = link
        self.producer.introduce(link)
        with self.lock:
            self.unsent = deque(self.pending)

    def reroute(self) -> None:
        """Links or routes changed: use the new way if there is one."""
        producer = self.producer
        link = producer.core.routing.head_link(producer.topic, producer.topic_id, self.partition)
        if link is None:
            return
        if link is not self.link:
            self.stalled = False
        self.dispatch()  # also over the old link: the head may have moved away and back

    def _may_send(self, sent: Sent) -> bool:
        """Never more unanswered than a broker remembers; a new generation only after the old one is through."""
        on_wire = len(self.pending) - len(self.unsent)
        return on_wire < limits.PRODUCER_IN_FLIGHT_BATCHES_MAX and sent.generation == self.pending[0].generation

    def _send(self, link: BrokerLink, sent: Sent) -> None:
        if sent.done or sent.answer is not None:
            return
        sent.doubtful = sent.may_be_in_log
        sent.refused = False
        header = self._header_of(sent) if self.producer.in_memory else sent.header
        sent.attempts += 1
        link.publish(header, sent.encoded.body, self.producer.ack, sent)
        if not self.producer.ack:
            self.producer.after_write(link, sent)

    def _header_of(self, sent: Sent) -> bytearray:
        """Of a batch for a memory topic. One that may have been taken says since when: its log may be gone, and another
        in its place would take it once more.
        """
        if not sent.attempts:
            sent.sent_in = self.producer.epoch_of(self.partition)
        return in_epoch(sent.header, sent.sent_in) if sent.doubtful else sent.header

    def resend(self) -> None:
        """A new link, or the end of a pause: everything unanswered again, in order."""
        self.stalled = False
        with self.lock:
            self.unsent = deque(self.pending)
        self.dispatch()

    # --- answers: the loop ----------------------------------------------------------------------

    def acknowledged(self, sent: Sent, base_offset: int) -> None:
        """A broker has it. Callbacks hear of batches in order: what was in the log before a broker died may be
        recognised sooner than the batch before it, if that was refused for a moment.
        """
        if sent.done or sent.answer is not None:
            return  # given up, or answered on an earlier link
        sent.answer = base_offset
        self.refusal = None
        pending = self.pending
        while pending and pending[0].answer is not None:
            self._conclude(pending.popleft())
        if not pending or self.unsent:
            self.pump()
        self.producer.progressed()

    def _conclude(self, sent: Sent) -> None:
        """Tell everyone who wants to hear of an answered batch."""
        assert sent.answer is not None
        sent.done = True
        self.done_bytes += sent.size
        if sent.answered_refused:
            self._tell_failed(sent, _condition_failed(self.producer.topic))
            return
        producer = self.producer
        producer.outcomes.acknowledged += sent.encoded.count
        for index, callback, timestamp_us in sent.callbacks:
            offset = sent.answer + index if sent.answer >= 0 else -1  # ack=none: nobody said where
            receipt = Receipt(producer.topic, self.partition, offset, timestamp_us)
            producer.call_back(callback, receipt, None)

    def refused(self, sent: Sent, error: StentorError) -> None:
        """Try again later what can be tried again; give up the rest, and all that follows it."""
        if sent.done or sent.answer is not None:
            return
        reason = error.detail.get("reason") if isinstance(error, SequenceError) else None
        if reason in SEARCHED:  # a broker of an older version: it did not look whether this very batch is there (C32)
            self.give_up(sent, _not_looked_for(error))
            return
        gap = reason in _OVERTAKEN
        if gap and self._is_lost(sent, reason):
            self.producer.note_loss(self)
            self.renumber()
            self.dispatch()
            return
        if isinstance(error, NotHead):
            self.producer.core.routing.redirected(self.producer.topic, self.partition, error)
        elif isinstance(error, PartitionNotFound):
            if self.producer.follow():
                return
            error.retriable = self.producer.is_known()  # that broker has not heard of the topic yet
        if error.retriable or (gap and self.pending and self.pending[0] is not sent):
            self.refusal = self.refusal if gap else error
            if not self.stalled:
                self.stalled = True
                self.producer.resend_later(self)
            return
        self.give_up(sent, self.producer.gone(error) if isinstance(error, PartitionNotFound) else error)

    def _is_lost(self, sent: Sent, reason: str | None) -> bool:
        """Whether a batch that was acknowledged below `all` went down with the head that had acknowledged it (C7), or
        all that was acknowledged went down with the memory that held it.

        The oldest unanswered batch then comes behind a gap. Neither it nor a later one is in the log: a head that
        misses the one before has taken none of them. A head that does not know the producer has no such memory.
        """
        producer = self.producer
        if producer.sender.lasting or not self.pending or self.pending[0] is not sent:
            return False
        if producer.ack == Ack.ALL and not producer.in_memory:
            return False
        return reason == "gap" or not any(waiting.doubtful for waiting in self.pending)

    def renumber(self) -> None:
        """What is unanswered goes out anew, under the next generation: the log it was numbered for does not have it.

        Answers that are still on their way are to the old numbers, and are not waited for.
        """
        producer = self.producer
        with self.lock:
            self.generation += 1
            self.sequence = 0
            for sent in self.pending:
                if sent.answer is None:
                    sent.readdress(self._address(sent.encoded))
            self.unsent = deque(self.pending)
            unanswered = set(self.pending)
        producer.core.links.disown(unanswered)
        self.stalled, self.refusal = False, None

    def give_up(self, first: Sent, error: StentorError) -> None:
        """A batch failed for good. What was numbered behind it cannot be taken either; what is before it can."""
        with self.lock:
            numbered = list(self.pending)
            place = numbered.index(first)
            ended = numbered[place:]
            self.pending = deque(numbered[:place])
            self.unsent = deque(sent for sent in self.unsent if sent not in ended)
            if not self.producer.sender.lasting:  # a lasting identity must not go on behind a gap
                self.generation += 1
                self.sequence = 0
            self.stalled = False
        for sent in ended:
            if sent.answer is not None:  # it was in the log before, and has only waited for its turn
                self._conclude(sent)
            else:
                self._fail(sent, self._reason(sent, error, first=sent is first))
        self.pump()
        self.producer.progressed()

    def _fail(self, sent: Sent, reason: StentorError) -> None:
        sent.done = True
        self.done_bytes += sent.size
        self._tell_failed(sent, reason)

    def _tell_failed(self, sent: Sent, reason: StentorError) -> None:
        self.producer.outcomes.record_failure(
            FailedBatch(self.producer.topic, self.partition, sent.encoded.count, reason)
        )
        for _, callback, _ in sent.callbacks:
            self.producer.call_back(callback, None, reason)

    def _reason(self, sent: Sent, error: StentorError, *, first: bool) -> StentorError:
        if sent.may_be_in_log and not isinstance(error, UnknownOutcome):
            return UnknownOutcome(
                f"Whether a batch is in the log is not known; the last word was: {error.message}",
                hint="Read the partition to find out; publishing it again may double it.",
                operation="publish",
            )
        return error if first else _behind(error)

    def note_gathering(self, now: float) -> None:
        """Remember that messages wait to become a batch. Looked at now and then, because `send` has no time for it."""
        with self.lock:
            if self.rows and self.gathering_since is None:
                self.gathering_since = now

    def expire(self, now: float, seconds: float | None = None) -> None:
        """Past its deadline a batch is given up: UnknownOutcome if it may be in the log, else DeadlineExceeded."""
        if self.pending and self.pending[0].deadline <= now:
            sent = self.pending[0]
            self.give_up(sent, self._overdue(seconds or self.producer.timeout, in_doubt=sent.may_be_in_log))

    def _overdue(self, seconds: float, *, in_doubt: bool) -> StentorError:
        """The error for a batch, or a message of it, whose time is over; the last refusal is named as the reason."""
        late = self.producer.core.late("publish", seconds, self.refusal)
        late.object = f"{self.producer.topic}/{self.partition}"
        if not in_doubt:
            late.message += " It was not published."
            return late
        return UnknownOutcome(
            f"{late.message} It was sent, and may be in the log.",
            hint="Read the partition to find out; publishing it again may double it.",
            operation="publish",
            object=late.object,
        )

    # --- messages whose senders wait ------------------------------------------------------------

    def withdraw(self, waiter: object, seconds: float) -> bool:
        """Give up the message that `waiter` waits for, and leave all others on their way; False if it is not here.

        It is answered at once. What is certainly in no log, and on no way to one, is taken out, so that it is never
        published; what may be there is left to be answered for the others, and given up once nobody waits behind it.
        """
        if self._withdraw_row(waiter, seconds):
            return True
        with self.lock:
            pending = list(self.pending)
        for place, sent in enumerate(pending):
            for index, callback, timestamp_us in sent.callbacks:
                if _belongs_to(callback, waiter):
                    self._withdraw_sent(pending, place, (index, callback, timestamp_us), seconds)
                    return True
        return False

    def _withdraw_row(self, waiter: object, seconds: float) -> bool:
        """One that still gathers."""
        with self.lock:  # others only append to `rows` meanwhile
            rows = self.rows
            for place in range(1, len(rows), 2):
                extra = rows[place]
                if isinstance(extra, Extra) and _belongs_to(extra.on_delivery, waiter):
                    break
            else:
                return False
            size = len(rows[place - 1] or b"")
            del rows[place - 1 : place + 1]
            self.bytes = max(0, self.bytes - size) if rows else 0
        late = self.producer.core.late("publish", seconds, self.refusal)
        late.message += " It was not published."
        self.producer.call_back(extra.on_delivery, None, late)
        return True

    def _withdraw_sent(self, pending: list[Sent], place: int, message: tuple[int, Any, int], seconds: float) -> None:
        """One in a sealed batch."""
        sent = pending[place]
        index, callback, timestamp_us = message
        if sent.answer is not None:  # in the log; only its turn had not come
            sent.callbacks = [other for other in sent.callbacks if other[1] is not callback]
            receipt = Receipt(self.producer.topic, self.partition, sent.answer + index, timestamp_us)
            self.producer.call_back(callback, receipt, None)
            return
        # No log takes a batch without the one before it: an answer to a later one says that this one is there.
        behind = pending[place + 1 :]
        in_doubt = sent.may_be_in_log or any(other.answer is not None for other in behind)
        error = self._overdue(seconds, in_doubt=in_doubt)
        if in_doubt:
            sent.callbacks = [other for other in sent.callbacks if other[1] is not callback]
        else:
            self._take_out(pending[:place], sent, behind, index)
        self.producer.call_back(callback, None, error)
        self._give_up_unwanted(error)

    def _give_up_unwanted(self, error: StentorError) -> None:
        """Send a batch no more once nobody waits for it, nor for anything behind it."""
        unwanted = None
        with self.lock:
            pending = list(self.pending)
        for sent in reversed(pending):
            if sent.callbacks or sent.answer is not None:
                break
            unwanted = sent
        if unwanted is not None:
            self.give_up(unwanted, error)

    def _take_out(self, before: list[Sent], sent: Sent, behind: list[Sent], index: int) -> None:
        """Take a message out of a batch that no log has. The rest of it and all behind it go out under the next
        generation: what was numbered behind it cannot be in a log either, and a copy on some way is refused as old.
        """
        again = [sent, *behind]
        with self.lock:
            newer = list(self.pending)[len(before) + len(again) :]  # sealed by another thread meanwhile
            again += newer
            self.generation += 1
            self.sequence = 0
            old_bytes = sent.size
            if sent.apart and sent.encoded.count > 1:
                sent.encoded = without(sent.encoded, sent.header, index, self.producer.compression)
                sent.callbacks = [
                    (other - (other > index), callback, timestamp_us)
                    for other, callback, timestamp_us in sent.callbacks
                    if other != index
                ]
            else:  # it is all that the batch is about
                sent.done = True
                again.remove(sent)
            for each in again:
                each.readdress(self._address(each.encoded))
            self.sealed_bytes += 0 if sent.done else sent.size - old_bytes
            if sent.done:
                self.done_bytes += old_bytes
            self.pending = deque(before + again)
            self.unsent = deque([each for each in self.unsent if each in before] + again)
        self.producer.core.links.disown({sent, *again})
        self.pump()
        self.producer.progressed()


def _belongs_to(callback: Any, waiter: object) -> bool:
    """Whether a callback is a waiter's, or calls it: that of a span does."""
    return callback is waiter or (callback is not None and getattr(callback, "on_delivery", None) is waiter)


def _not_looked_for(error: StentorError) -> UnknownOutcome:
    return UnknownOutcome(
        f"Whether a batch is in the log is not known: {error.message}",
        hint="Upgrade the brokers: newer ones look for the batch in the log. Or read the partition to find out.",
        operation="publish",
    )


def _behind(error: StentorError) -> PublishError:
    kind = UnknownOutcome if isinstance(error, UnknownOutcome) else PublishError
    return kind(f"A batch before this one failed: {error.message}", hint=error.hint, operation="publish")


def _condition_failed(topic: str) -> ConditionFailed:
    return ConditionFailed(
        f"A conditional change of table {topic} was not made: a key is at another version.",
        hint="Read the key again, and decide anew.",
        operation="publish",
        object=topic,
    )
