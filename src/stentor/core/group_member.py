"""A member's side of a group: what it holds, and until when it may.

`core.group_coordinator` is the other side, and says how a partition changes hands. A member begins to read what an
answer lists; it stops reading what a newer answer does not list, commits how far it has come, and lets go. It takes
only the answer to the heartbeat that it sent last.

Its lease ends by its own clock: so long after it *sent* the last heartbeat that was answered, or GROUP_GRACE_S after it
lost its link to the coordinator; a bit less, because clocks differ (GROUP_OWN_SHARE). Then it reads nothing any more,
until an answer says that it still owns something.

Invariant: what a member holds was listed in an answer, and its lease has not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.core import group_limits
from stentor.core.group_coordinator import NOTHING_SEEN

if TYPE_CHECKING:
    from stentor.core.groups import Generation
    from stentor.core.records import Key


class GroupMembership:
    """One life of a member: from joining until it is gone. Whoever joins again takes another id."""

    def __init__(self, member: str, silence_s: float) -> None:
        self.member = member
        self.seen: tuple[int, int] = NOTHING_SEEN
        self.holding: dict[Key, Generation] = {}  # what it reads, and since which generation it is the owner
        self.lease_ends: float | None = None  # None: it holds nothing yet
        self._silence_s = silence_s
        self.number = 0  # of the last heartbeat
        self._sent_at = 0.0
        self._listed: dict[Key, Generation] = {}

    def sent(self, now: float) -> None:
        """A heartbeat goes out."""
        self.number += 1
        self._sent_at = now

    def answered(self, number: tuple[int, int], listed: dict[Key, Generation] | None) -> None:
        """The answer to the last heartbeat. None: it lists what the last one did."""
        self.seen = number
        self.lease_ends = self._sent_at + self._silence_s * group_limits.GROUP_OWN_SHARE
        if listed is not None:
            self._listed = listed

    @property
    def gained(self) -> dict[Key, Generation]:
        """What it owns and does not hold yet."""
        return {key: since for key, since in self._listed.items() if key not in self.holding}

    @property
    def asked_back(self) -> list[Key]:
        """What it holds and should let go of."""
        return [key for key, since in self.holding.items() if self._listed.get(key) != since]

    def take(self, key: Key) -> None:
        """It begins to read a partition that it gained."""
        self.holding[key] = self._listed[key]

    def let_go(self, key: Key) -> None:
        """It reads it no more; the next heartbeat says so."""
        self.holding.pop(key, None)

    def link_lost(self, now: float) -> None:
        """Its coordinator may count from now on, too."""
        if self.lease_ends is not None:
            self.lease_ends = min(self.lease_ends, now + group_limits.GROUP_GRACE_S * group_limits.GROUP_OWN_SHARE)

    def has_ended(self, now: float) -> bool:
        """Whether its lease has; then it has let go of everything."""
        if self.lease_ends is None or now < self.lease_ends:
            return False
        self.lease_ends, self.seen = None, NOTHING_SEEN  # the next answer lists everything anew
        self.holding, self._listed = {}, {}
        return True
