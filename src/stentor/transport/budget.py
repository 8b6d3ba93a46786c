"""The memory that all connections of a broker together may use to receive.

Every connection has a small buffer of its own. A larger one is borrowed here: for a peer at full speed, or for a frame
that is larger than the small one. A loan for a frame is given at once and whole, so that nobody who holds a part waits
for the rest. Who gets none keeps the small buffer; if its frame does not fit there, it is not read from until room
comes back. The smallest wish is served first, so that ordinary batches pass those who announce a lot.

While somebody waits, borrowers give back at the end of their frame, and a frame that arrives too slowly to be whole in
time is closed, the oldest first (`reclaim`). A part is reserved for the other brokers: strangers cannot take it.

Borrowed buffers are mappings of their own. Giving one back gives its memory to the operating system, at once, and a
large frame costs memory only as its bytes arrive.
"""

from __future__ import annotations

import heapq
import itertools
import mmap
from typing import Final, Protocol

import msgspec

from stentor import limits
from stentor.wire.statistics import ReceivingStatistics

_GRACE_S: Final = 1.0  # a frame that began a moment ago is not late yet


class Borrower(Protocol):
    """A connection, as the budget sees it."""

    favoured: bool  # another broker: it may use the reserved part
    bytes_in: int
    frames_in: int

    @property
    def unfinished(self) -> bool:
        """Whether it is read from, and in the middle of a frame."""

    def room_given(self, size: int) -> None:
        """What it waited for is lent to it."""

    def too_slow(self) -> None:
        """Others need the memory that its unfinished frame holds: it is closed."""


class _Loan(msgspec.Struct):
    size: int
    since: float = 0.0  # when this frame was first seen to be unfinished
    frames: int = -1  # which frame that was
    seen_bytes: int = 0  # what the borrower had received by then


class ReceiveBudget:
    """Lends memory to the connections of one broker."""

    def __init__(
        self, bytes_max: int = limits.RECEIVE_BYTES_MAX, reserved_bytes: int = limits.RECEIVE_RESERVED_BYTES
    ) -> None:
        self._bytes_max = bytes_max
        self._reserved_bytes = reserved_bytes
        self._loans: dict[Borrower, _Loan] = {}
        self._waiting: dict[Borrower, int] = {}  # with the number of its wish
        self._wishes: list[
            tuple[bool, int, int, Borrower]
        ] = []  # a heap; those that nobody waits for any more are skipped
        self._numbers = itertools.count()
        self.lent_bytes = 0
        self.closed_frames = 0

    @property
    def contended(self) -> bool:
        """Whether somebody waits: then nobody keeps more than it needs right now."""
        return bool(self._waiting)

    def lend(self, borrower: Borrower, size: int) -> bool:
        """Lend so much instead of what was lent before; False when there is no room."""
        held = self._loans.get(borrower)
        before = 0 if held is None else held.size
        if size > before and size - before > self._room(favoured=borrower.favoured):
            return False
        self.lent_bytes += size - before
        if held is None:
            self._loans[borrower] = _Loan(size)
        else:
            held.size = size
        return True

    def _room(self, *, favoured: bool) -> int:
        return self._bytes_max - self.lent_bytes - (0 if favoured else self._reserved_bytes)

    def wait(self, borrower: Borrower, size: int) -> None:
        """Call `room_given` as soon as so much can be lent."""
        number = self._waiting[borrower] = next(self._numbers)
        heapq.heappush(self._wishes, (not borrower.favoured, size, number, borrower))

    def give_back(self, borrower: Borrower) -> None:
        """The borrower needs nothing any more, and waits for nothing."""
        self._waiting.pop(borrower, None)
        loan = self._loans.pop(borrower, None)
        if loan is not None:
            self.lent_bytes -= loan.size
        while (wish := self._first_wish()) is not None and self.lend(wish[3], wish[1]):
            heapq.heappop(self._wishes)
            del self._waiting[wish[3]]
            wish[3].room_given(wish[1])

    def _first_wish(self) -> tuple[bool, int, int, Borrower] | None:
        """Other brokers first, then the smallest."""
        wishes = self._wishes
        while wishes and self._waiting.get(wishes[0][3]) != wishes[0][2]:
            heapq.heappop(wishes)
        return wishes[0] if wishes else None

    def reclaim(self, now: float) -> None:
        """Called every second: where somebody waits, the oldest frames that arrive too slowly are closed."""
        first = self._first_wish()
        if first is None:
            return
        late = [
            (loan.since, loan.size, number, borrower)
            for number, (borrower, loan) in enumerate(self._loans.items())
            if self._is_late(borrower, loan, now)
        ]
        room = self._room(favoured=not first[0])
        for _, size, _, borrower in sorted(late):
            if room >= first[1]:
                break
            room += size
            self._close(borrower)
        if room < first[1] and self._waiting.keys() >= self._loans.keys():
            self._close(next(iter(self._loans)))  # all hold a part and wait for the rest

    def _close(self, borrower: Borrower) -> None:
        self.closed_frames += 1
        borrower.too_slow()

    @staticmethod
    def _is_late(borrower: Borrower, loan: _Loan, now: float) -> bool:
        """Whether a frame would take longer than it may, at the speed at which it came so far."""
        if borrower.favoured or not borrower.unfinished:
            loan.frames = -1
        elif loan.frames != borrower.frames_in:
            loan.since, loan.frames, loan.seen_bytes = now, borrower.frames_in, borrower.bytes_in
        else:
            elapsed = now - loan.since
            came = borrower.bytes_in - loan.seen_bytes
            return elapsed >= _GRACE_S and came < loan.size * elapsed / limits.PARTIAL_FRAME_S
        return False

    def statistics(self) -> ReceivingStatistics:
        return ReceivingStatistics(
            bytes=self.lent_bytes,
            bytes_max=self._bytes_max,
            loans=len(self._loans),
            waiting=len(self._waiting),
            closed_frames=self.closed_frames,
        )


def borrowed_buffer(size: int) -> mmap.mmap:
    """Memory of its own, that goes back to the operating system when nobody refers to it any more."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
