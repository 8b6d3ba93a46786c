"""The lone publisher: when one client publishes one small batch at a time, it waits for every switch.

Group commit in a thread serves many publishers well: one sync covers them all. A lone publisher that
waits for each answer gains nothing from it and pays two thread switches. So after a run of such
publishes the sync is done in the loop itself. Anyone else who publishes, two batches in one read, a large
batch, or one slow sync ends that at once: the loop must never wait for a disk while others need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stentor.broker.sessions.session import Session

RUN_MIN: Final = 16
"""So many publishes, one at a time, by one client and no other, before it counts as alone."""

SMALL_BYTES: Final = 16 * 1024
"""A larger batch takes the disk too long."""

SYNC_US_MAX: Final = 10_000
PENALTY: Final = 200
"""A sync slower than this in the loop sends the publisher back to the threads for so many publishes."""


class InlineSync:
    """Who publishes alone, if anyone."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._run = 0
        self.syncs = 0  # how many were done in the loop

    def note(self, session: Session, *, single: bool) -> None:
        """A read of this session held publishes: one small batch, or more than that."""
        if session is self._session and single:
            self._run += 1
        else:
            self._session = session
            self._run = min(self._run, 0)

    def is_lone(self, session: Session) -> bool:
        return session is self._session and self._run >= RUN_MIN

    def synced(self, took_us: float) -> None:
        """A sync was done in the loop."""
        self.syncs += 1
        if took_us > SYNC_US_MAX:
            self._run = -PENALTY
