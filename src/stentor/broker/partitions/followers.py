"""The readers that follow one partition on this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.broker.partitions.interfaces import Follower, Pumped
    from stentor.errors import StentorError


class Followers:
    """Streams, and those of them that wait for more."""

    def __init__(self) -> None:
        self.streams: set[Follower] = set()
        self._idle: set[Pumped] = set()  # those that have all there is
        self.ended = False  # the partition goes away, and nobody may follow it

    def add(self, stream: Follower) -> None:
        self.streams.add(stream)

    def discard(self, stream: Follower) -> None:
        self.streams.discard(stream)
        self._idle.discard(stream)

    def wait(self, stream: Pumped) -> None:
        """It has all there is; the next commit wakes it."""
        self._idle.add(stream)

    def forget(self, stream: Pumped) -> None:
        """It wants to hear of no more commits."""
        self._idle.discard(stream)

    def wake(self) -> None:
        """More is committed."""
        idle, self._idle = self._idle, set()
        for stream in idle:
            stream.pump()

    def fail_all(self, error: StentorError) -> None:
        """Everyone is told why they cannot follow it here any more (C25)."""
        for stream in list(self.streams):
            stream.fail(error)

    def fail_beyond(self, end: int, error: StentorError) -> None:
        """Those who have seen more than there will be."""
        for stream in list(self.streams):
            if stream.cursor.position > end:
                stream.fail(error)

    def copies_below(self, offset: int) -> list[Follower]:
        """Those that keep the latest of each key, and have not read up to an offset."""
        return [stream for stream in self.streams if stream.cursor.copies and stream.cursor.position < offset]

    def end(self, error: StentorError) -> None:
        """The partition goes away."""
        self.ended = True
        self.fail_all(error)
