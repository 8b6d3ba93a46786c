"""The readers that follow one partition on this broker.

There may be a hundred thousand of them, so what all of them hear of goes in slices of the loop's turns, unless they are
few (C35). A reader that was woken and waits for its turn is in `_woken`; it finds out by itself what there is by then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stentor.broker.partitions.interfaces import Follower, Pumped
    from stentor.broker.slices import Slices
    from stentor.errors import StentorError

FEW: Final = 64
"""So many are served at once: a millisecond. A message for few readers is never behind those of others."""


class Followers:
    """Streams, and those of them that wait for more."""

    def __init__(self, slices: Slices | None = None) -> None:
        """Without `slices`, all are served at once."""
        self.streams: set[Follower] = set()
        self._slices = slices
        self._idle: set[Pumped] = set()  # those that have all there is
        self._woken: set[Pumped] = set()
        self.ended = False  # the partition goes away, and nobody may follow it

    def add(self, stream: Follower) -> None:
        self.streams.add(stream)

    def discard(self, stream: Follower) -> None:
        self.streams.discard(stream)
        self.forget(stream)

    def wait(self, stream: Pumped) -> None:
        """It has all there is; the next commit wakes it."""
        self._idle.add(stream)

    def forget(self, stream: Pumped) -> None:
        """It wants to hear of no more commits."""
        self._idle.discard(stream)
        self._woken.discard(stream)

    def wake(self) -> None:
        """More is committed."""
        idle, self._idle = self._idle, set()
        if self._slices is None or len(idle) <= FEW:
            for stream in idle:
                stream.pump()
            return
        self._woken |= idle
        self._slices.begin("waking readers", (partial(self._pump, stream) for stream in idle))

    def _pump(self, stream: Pumped) -> None:
        if stream in self._woken:
            self._woken.discard(stream)
            stream.pump()

    def fail_all(self, error: StentorError) -> None:
        """Everyone is told why they cannot follow it here any more (C25)."""
        self._fail(list(self.streams), error)

    def fail_beyond(self, end: int, error: StentorError) -> None:
        """Those who have seen more than there will be."""
        self._fail([stream for stream in self.streams if stream.cursor.position > end], error)

    def _fail(self, streams: list[Follower], error: StentorError) -> None:
        """Nothing is pushed to them from now on, also where they hear of it later."""
        if self._slices is None or len(streams) <= FEW:
            for stream in streams:
                stream.fail(error)
            return
        for stream in streams:
            stream.stop()
        self._slices.begin("ending streams", (partial(stream.fail, error) for stream in streams))

    def copies_below(self, offset: int) -> list[Follower]:
        """Those that keep the latest of each key, and have not read up to an offset."""
        return [stream for stream in self.streams if stream.cursor.copies and stream.cursor.position < offset]

    def end(self, error: StentorError) -> None:
        """The partition goes away."""
        self.ended = True
        self.fail_all(error)
