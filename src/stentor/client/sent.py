"""A sealed batch on its way: immutable bytes, and what is known of its fate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stentor.errors import StentorError, UnknownOutcome
from stentor.wire.frames import Ack

if TYPE_CHECKING:
    from stentor.client.lane import Lane
    from stentor.wire.batch import Encoded


class Sent:
    """A sealed batch: immutable bytes, and who wants to hear of it."""

    __slots__ = (
        "answer",
        "answered_refused",
        "apart",
        "attempts",
        "callbacks",
        "deadline",
        "done",
        "doubtful",
        "encoded",
        "generation",
        "header",
        "lane",
        "refused",
        "sent_in",
    )

    def __init__(self, lane: Lane, encoded: Encoded, header: bytearray, callbacks: list[Any], deadline: float) -> None:
        self.lane = lane
        self.encoded = encoded
        self.header = header
        self.callbacks = callbacks
        self.apart = len(callbacks) == encoded.count  # each message has its own; else one may stand for all of them
        self.deadline = deadline
        self.generation = lane.generation
        self.attempts = 0
        self.refused = False  # the last attempt was answered: not taken
        self.doubtful = False  # an earlier attempt never was
        self.sent_in = 0  # of a memory topic: the epoch that its chain was known to have at the first attempt
        self.answer: int | None = None  # where it is in the log, once a broker has said so
        self.answered_refused = False  # there it has no effect: its conditions did not hold
        self.done = False  # and its callbacks know

    def readdress(self, header: bytearray) -> None:
        """It begins anew, in another log or under another number."""
        self.header = header
        self.generation = self.lane.generation
        self.attempts = 0
        self.refused = self.doubtful = False

    @property
    def may_be_in_log(self) -> bool:
        """A refusal of a resend says nothing about an earlier copy that nobody answered (C6)."""
        return self.doubtful or (self.attempts > 0 and not self.refused)

    @property
    def size(self) -> int:
        return len(self.header) + len(self.encoded.body)

    def published(self, base_offset: int, epoch: int, appended_at_us: int, *, refused: bool = False) -> None:  # noqa: ARG002
        self.answered_refused = refused
        lane, producer = self.lane, self.lane.producer
        if producer.ack == Ack.ALL and base_offset >= 0:  # committed: no member may tell us less from now on (C24)
            producer.core.seen.saw(producer.topic_id, lane.partition, base_offset + self.encoded.count, epoch)
        lane.acknowledged(self, base_offset)

    def failed(self, error: StentorError) -> None:
        self.refused = True
        self.doubtful = self.doubtful or isinstance(error, UnknownOutcome)
        self.lane.refused(self, error)
