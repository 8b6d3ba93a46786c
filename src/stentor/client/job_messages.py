"""The messages of a consumer's jobs, out of the batches that a head sends.

A head sends whole batches, so messages come along that this consumer has not been handed as jobs. It most often gets
the next ones of these with its next request, which says that it has them: then they are neither sent nor decoded again.

    answer     [ 0 … 499 │ 500 … 999 ]        wanted: 0 … 499     ahead: 500 … 999
    request    known=[500, 500]
    answer     nothing                        wanted: 500 … 999, from what is ahead

They are kept only while the same connection leads to the head, without an error in between: whoever else is asked may
know better what is in the log.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.client.decode import decode_messages
from stentor.errors import CorruptData, LimitExceeded
from stentor.wire import bodies
from stentor.wire.header import extents

if TYPE_CHECKING:
    from stentor.client.message import Message

logger = logging.getLogger(__name__)

_UNREADABLE: Final = (CorruptData, LimitExceeded, ValueError)

AHEAD_BYTES_MAX: Final = 1 * limits.MIB
"""Of answers from which messages are kept, and of the values that are, for each partition."""

_offset: Final = attrgetter("offset")


class JobMessages:
    """Messages of one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._ahead: list[Message] = []  # their offsets have no gap
        self._link: object = None
        self.unreadable: list[range] = []  # offsets of batches that were sent, and cannot be decoded

    def ask(self, link: object) -> None:
        """The head is asked by this connection."""
        if link is not self._link:
            self._link = link
            self._ahead = []

    def forget(self) -> None:
        """Keep nothing."""
        self._ahead = []

    @property
    def known(self) -> list[int]:
        """What need not be sent: the first offset, and how many."""
        return [self._ahead[0].offset, len(self._ahead)] if self._ahead else []

    def find(self, batches: bytes, first: int, end: int) -> list[Message]:
        """The messages between two offsets, as far as they are there, in the order of the log."""
        found = self._ahead
        if batches:
            found = self._decoded(batches, first)
            if self._ahead and found:
                follows = found[0].offset == self._ahead[-1].offset + 1
                found = self._ahead + found if follows else _in_order(self._ahead + found)
        begin, stop = bisect_left(found, first, key=_offset), bisect_left(found, end, key=_offset)
        ahead = found[stop:]
        self._ahead = ahead if not batches or _is_kept(batches, ahead) else []
        return found[begin:stop]

    def _decoded(self, batches: bytes, first: int) -> list[Message]:
        with bodies.uncounted():  # handing out and settling a job costs thirty times as much
            try:
                return self._messages(batches, first)
            except _UNREADABLE:
                return self._readable(batches, first)

    def _messages(self, batches: bytes, first: int) -> list[Message]:
        found: list[Message] = []
        for run in decode_messages(batches, self._topic, self._partition, first, None):
            found += run.messages
        return found

    def _readable(self, batches: bytes, first: int) -> list[Message]:
        """The messages of those batches that can be decoded: one that cannot be must not keep the others."""
        found: list[Message] = []
        for position, length, base, end in extents(batches):
            try:
                found += self._messages(batches[position : position + length], first)
            except _UNREADABLE as error:
                logger.error("jobs %d to %d of queue %s: %s", base, end - 1, self._topic, error)  # noqa: TRY400
                self.unreadable.append(range(base, end))
        return found


def _in_order(messages: list[Message]) -> list[Message]:
    """Each of them once: what is fetched may be there already, and come with others around it."""
    by_offset = dict(zip(map(_offset, messages), messages, strict=True))
    return [by_offset[offset] for offset in sorted(by_offset)]


def _is_kept(batches: bytes, ahead: list[Message]) -> bool:
    """Whether messages have no gap, and are not too large."""
    if not ahead or ahead[-1].offset - ahead[0].offset != len(ahead) - 1 or len(batches) > AHEAD_BYTES_MAX:
        return False
    return sum([len(message.value or b"") + len(message.key or b"") for message in ahead]) <= AHEAD_BYTES_MAX
