"""Which messages of a partition are not finished, when they finish in any order: the lowest one is the position.

taken     spans of messages, in order     [100 … 355]  [356 … 611]  …
finished  whole spans vanish; of a span that is half done, the first that is not finished counts
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.client.message import Message


class _Span:
    """Messages that were taken together."""

    __slots__ = ("done", "first", "offsets")

    def __init__(self, offsets: Sequence[int]) -> None:
        self.offsets = offsets
        self.first = 0  # the index of the first that is not finished
        self.done: set[int] = set()  # offsets behind it that are

    def finish(self, offsets: Sequence[int]) -> None:
        """Of these some may be finished already."""
        ours, first = self.offsets, self.first
        if first < len(ours) and offsets[0] == ours[first] and not self.done:
            many = len(offsets)  # the usual case: the next ones, in order
            if offsets[-1] - offsets[0] == many - 1 and ours[first + many - 1] == offsets[-1]:
                self.first += many
                return
        self.done.update(offset for offset in offsets if offset >= (ours[first] if first < len(ours) else offset + 1))
        while self.first < len(ours) and ours[self.first] in self.done:
            self.done.discard(ours[self.first])
            self.first += 1

    @property
    def is_over(self) -> bool:
        return self.first == len(self.offsets)


class Unfinished:
    """The messages of one partition that were taken and are not finished."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._starts: list[int] = []  # the first offset of each
        self.count = 0  # messages of these spans
        self.lowest: int | None = None  # the first offset that is not finished; None: all are. Any thread may look

    def took(self, messages: list[Message]) -> None:
        """They were taken, behind all others."""
        first, last = messages[0].offset, messages[-1].offset
        follow = last - first == len(messages) - 1
        self._spans.append(_Span(range(first, last + 1) if follow else [message.offset for message in messages]))
        self._starts.append(first)
        self.count += len(messages)
        if self.lowest is None:
            self.lowest = first

    def finished_behind(self) -> set[int]:
        """Return the offsets of messages that are finished, although one before them is not."""
        return {offset for span in self._spans for offset in (*span.offsets[: span.first], *span.done)}

    def finish(self, messages: list[Message]) -> None:
        """They are finished. What is not known, or is finished already, counts for nothing."""
        start, many = 0, len(messages)
        while start < many:
            index = bisect_right(self._starts, messages[start].offset) - 1
            if index < 0:
                start += 1
                continue
            span = self._spans[index]
            end = self._starts[index + 1] if index + 1 < len(self._starts) else None
            stop = many
            if end is not None and messages[-1].offset >= end:
                stop = next(place for place in range(start, many) if messages[place].offset >= end)
            known = self._known(span, messages, start, stop)
            if known:
                span.finish(known)
            start = stop
        self._shorten()

    @staticmethod
    def _known(span: _Span, messages: list[Message], start: int, stop: int) -> Sequence[int]:
        first, last = messages[start].offset, messages[stop - 1].offset
        if isinstance(span.offsets, range):
            if last - first == stop - start - 1:
                return range(first, min(last, span.offsets[-1]) + 1)
            return [each.offset for each in messages[start:stop] if each.offset in span.offsets]
        return [each.offset for each in messages[start:stop]]

    def _shorten(self) -> None:
        over = 0
        while over < len(self._spans) and self._spans[over].is_over:
            self.count -= len(self._spans[over].offsets)
            over += 1
        if over:
            del self._spans[:over], self._starts[:over]
        span = self._spans[0] if self._spans else None
        self.lowest = None if span is None else span.offsets[span.first]
