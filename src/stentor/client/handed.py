"""How far a batch has been handed out, although nobody counts.

Messages of a batch go to the application through iterators of C, which share what they iterate: the number of those
that are left is the only trace of what was taken. Looking at it takes no part in the taking, from any thread.

     messages ──► [m0  m1  m2 │ m3  m4]     left: 2, so the next offset is that of m3
"""

from __future__ import annotations

from operator import length_hint
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.client.message import Message
    from stentor.client.reader import Reader


class HandedRun:
    """Messages that are handed out one after the other, all of one partition."""

    __slots__ = ("_left", "_source", "messages")

    def __init__(self, messages: Iterator[Message], source: list[Message] | range, left: Iterator[object]) -> None:
        self.messages = messages
        """What hands them out."""
        self._source = source  # the messages, or their offsets
        self._left = left  # an iterator over the source, which `messages` uses up

    def next_offset(self) -> int:
        """The offset behind the last message that was handed out; at the beginning, that of the first."""
        source = self._source
        index = len(source) - length_hint(self._left)
        following = source[index] if index < len(source) else None
        if following is not None:
            return following if isinstance(following, int) else following.offset
        last = source[-1]
        return 1 + (last if isinstance(last, int) else last.offset)


class Handed:
    """How far the partition at hand has been handed out: a run of messages, or a place that does not move."""

    __slots__ = ("_floor", "_run", "reader")

    def __init__(self, reader: Reader, floor: int, run: HandedRun | None = None) -> None:
        self.reader = reader
        self._floor = floor  # nothing below it was asked for
        self._run = run

    def next_offset(self) -> int:
        """The offset behind the last message that somebody was handed."""
        return self._floor if self._run is None else max(self._floor, self._run.next_offset())
