"""Turns: how the connections of a broker share its loop (C35).

What has arrived on a connection is handled for a slice of time, not to its end. Whoever has frames left waits for its
next slice, and is not read from meanwhile; so the loop comes by its timers, its peers and everyone else every few
milliseconds, however fast somebody sends.

    a read ──► is there time in this turn? ──yes──► a slice ──► frames left? ──no──► read on
                        │ no                                        │ yes
                        ▼                                           ▼
                     those who wait, whoever has used least of the loop first ──► the next turn

A connection that was idle counts as having used as much as those who are being served, less one slice. It has no credit
for the time in which it was away, and is served before everybody who sends without a pause. Other brokers wait for
nobody: what they say keeps chains and elections alive.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SLICE_S: Final = 0.002
"""What one connection gets at a time. A single frame may take longer, and is the last of its slice."""

SLICE_MIN_S: Final = 0.0005
"""The same while many wait, so that each of them comes by soon; and by how much more than the others one may have used.
Without that bound, whoever had the loop to itself for a while would wait until all others have had as much.
"""

TURN_S: Final = 0.008
"""What all connections get in one turn of the loop; half of it goes to those who wait, the rest to new reads. With what
else a turn does it stays well below the 50 ms of C35, and parking is rare enough to cost nothing."""

REQUEST_S: Final = 0.0001
"""What a request counts for when it is begun: it is answered after the slice, in a task of its own."""

_NOTED_S: Final = 0.005  # a shorter slice is nobody's long step


class Guest(Protocol):
    """A connection, as its turns see it."""

    favoured: bool  # another broker: it does not wait
    closed: bool
    used_s: float  # of the loop

    def take_turn(self) -> bool:
        """Handle frames until `Turns.until`; return whether whole ones are left that want to be handled."""

    def park(self) -> None:
        """Read no more until the next slice."""

    def whose(self) -> str:
        """Return whose connection it is, for people."""


class Turns:
    """The time of one loop, shared among connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float],
        note: Callable[[float, Callable[[], str]], None] = lambda _, __: None,
    ) -> None:
        """`note` hears of slices that took long, and whose they were."""
        self._loop = loop
        self._note = note
        self._waiting: list[tuple[bool, float, int, Guest]] = []  # a heap: other brokers, then who used least
        self._number = 0
        self._begun = False  # this turn; its end is scheduled
        self._turn_ends = self._round_ends = 0.0  # for all, and for those who wait
        self._served_s = 0.0  # what those who are served now have used
        self._charged_s = 0.0  # what is to be done later for the one who is served now
        self.now = now
        self.until = 0.0  # when the slice that is under way ends
        self.parked = 0  # slices after which frames were left

    # --- what connections call ------------------------------------------------------------------

    def arrived(self, guest: Guest) -> None:
        """Frames have arrived: handle them now, or when it is this connection's turn."""
        now = self.now()
        if not self._begun:
            self._begin(now)
        # Those who are served at once may be far ahead of those who wait, so the first of these says how much is usual.
        usual_s = self._waiting[0][1] if self._waiting else self._served_s
        if guest.used_s < usual_s - SLICE_S:
            guest.used_s = usual_s - SLICE_S
        elif guest.used_s > usual_s + SLICE_MIN_S:
            guest.used_s = usual_s + SLICE_MIN_S
        if guest.favoured or (now < self._turn_ends and (not self._waiting or guest.used_s < self._waiting[0][1])):
            self._serve(guest, now, self._turn_ends)
        else:
            self.wait(guest)

    def wait(self, guest: Guest) -> None:
        """It has frames left."""
        guest.park()
        self._number += 1
        heappush(self._waiting, (not guest.favoured, guest.used_s, self._number, guest))
        if not self._begun:
            self._begin(self.now())

    def charge(self, seconds: float) -> None:
        """The frame that is being handled makes work for later in this turn, which is its connection's as well."""
        self._charged_s += seconds
        self.until -= seconds
        self._turn_ends -= seconds
        self._round_ends -= seconds

    # --- the turn -------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._begun = True
        self._turn_ends, self._round_ends = now + TURN_S, now + TURN_S / 2
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """A new turn begins with those who wait."""
        self._begun = False
        if not self._waiting:
            return
        now = self.now()
        self._begin(now)
        while self._waiting and now < self._round_ends:
            guest = heappop(self._waiting)[3]
            if not guest.closed:
                self._serve(guest, now, self._round_ends)
                now = self.now()

    def _serve(self, guest: Guest, now: float, ends: float) -> None:
        self._served_s = max(self._served_s, guest.used_s)
        if guest.favoured:
            self.until = now + SLICE_S
        else:
            slice_s = max(SLICE_MIN_S, min(SLICE_S, TURN_S / (len(self._waiting) + 1))) if self._waiting else SLICE_S
            self.until = min(ends, now + slice_s)
        self._charged_s = 0.0
        left = guest.take_turn()
        took = self.now() - now
        guest.used_s += took + self._charged_s
        if took > _NOTED_S:
            self._note(took, guest.whose)
        if left and not guest.closed:
            self.parked += 1
            self.wait(guest)
