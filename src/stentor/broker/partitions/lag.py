"""How far subscribers are behind, as the broker knows it: by the credit that they gave back.

What was sent is not yet taken: it may wait in a socket, or in the client for an application that is slow. A client
grants credit for what its application took, at least every CREDIT_TOLD_S, so what was pushed and not granted again is
not taken. That is exact to a delivery, and to the second by which a client tells it late.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from stentor import limits
from stentor.wire.statistics import LaggingSubscriber

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.core.flow import Cursor


class ReaderLag(msgspec.Struct, frozen=True):
    """How far one reader is behind."""

    messages: int  # committed, and not taken by the application
    seconds: float  # since the first of them was appended


class Lagging(Protocol):
    """A reader that may be behind."""

    cursor: Cursor

    @property
    def client(self) -> tuple[str, str]:
        """Name and address, for people."""
        ...

    def lag(self) -> ReaderLag: ...


ON_TIME: Final = ReaderLag(0, 0.0)


def lag_of(streams: Iterable[Lagging]) -> ReaderLag:
    """Of one client: all the messages, and the longest wait."""
    found = [stream.lag() for stream in streams]
    return ReaderLag(sum(lag.messages for lag in found), max((lag.seconds for lag in found), default=0.0))


class PartitionLag:
    """How far the subscribers of one partition are behind, found out some subscribers at a time."""

    __slots__ = ("messages_max", "messages_sum", "seconds_max")

    def __init__(self, lags: Iterable[ReaderLag] = ()) -> None:
        self.messages_max = self.messages_sum = 0
        self.seconds_max = 0.0
        for lag in lags:
            self.add(lag)

    def add(self, lag: ReaderLag) -> None:
        """One more subscriber."""
        self.messages_max = max(self.messages_max, lag.messages)
        self.messages_sum += lag.messages
        self.seconds_max = max(self.seconds_max, lag.seconds)


class MostBehind:
    """The subscribers that are furthest behind, found a partition at a time."""

    def __init__(self) -> None:
        self._found: list[tuple[int, float, str, int, Lagging]] = []

    def look_at(self, topic: str, partition: int, lags: Iterable[tuple[Lagging, ReaderLag]]) -> None:
        """Followers of one partition."""
        behind = [(lag.messages, lag.seconds, topic, partition, stream) for stream, lag in lags if lag.messages]
        if behind:
            self._found = nlargest(limits.LAGGING_TOLD_MAX, self._found + behind, key=lambda each: each[:2])

    def statistics(self) -> list[LaggingSubscriber]:
        return [
            LaggingSubscriber(
                client=stream.client[0],
                address=stream.client[1],
                topic=topic,
                partition=partition,
                taken=stream.cursor.taken,
                lag=messages,
                lag_s=round(seconds, 3),
            )
            for messages, seconds, topic, partition, stream in self._found
        ]
