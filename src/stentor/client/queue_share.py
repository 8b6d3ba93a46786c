"""How many jobs of a partition a consumer holds: few at first, then as many as it does in AHEAD_S.

What a consumer holds and has not begun, nobody else works on. So the first one that comes to a full queue must not take
all of it; and one whose jobs are quick must not wait for each of them. How long a job takes is known only from what
this very consumer did: the share doubles at most from one answer to the next, and shrinks at once.
"""

from __future__ import annotations

from typing import Final

AHEAD_S: Final = 0.5
"""Work that is held: long beside the way to a broker and a commit, short beside the patience of others."""

FIRST: Final = 2
"""Before anything is known: one job in work, and the next one at hand."""


class JobShare:
    """Of one partition. In the client's loop."""

    def __init__(self, most: int) -> None:
        self.most = most  # as the application allows
        self.now = min(FIRST, most)
        self._pinned = False  # whoever runs handlers knows better how long these take
        self._had: int | None = None  # jobs that were held
        self._at = 0.0  # then

    def allow(self, most: int) -> bool:
        """Hold at most this many, as the application wants; return whether that changes what is held now."""
        before, self.most = self.now, most
        self.now = min(max(self.now, FIRST), most) if not self._pinned else min(FIRST, most)
        self._pinned = False
        return self.now != before

    def pin(self, count: int) -> bool:
        """Hold exactly this many; return whether that is a change."""
        changed, self.now, self._pinned = self.now != count, count, True
        return changed

    def want(self, held: int, waiting: int) -> None:
        """All that is held has begun, and some callers wait for a job: one for each of them may be held as well."""
        if not self._pinned:
            self.now = max(self.now, min(held + waiting, self.most))

    def came(self, held: int, now: float) -> None:
        """Jobs came, and so many are held now."""
        self._had, self._at = held, now

    def went(self, held: int, now: float) -> None:
        """Some of them were finished; so many are left."""
        gone = 0 if self._had is None else self._had - held
        if gone <= 0 or self._pinned or not self.most:
            return
        each_s = max((now - self._at) / gone, 1e-6)
        self.now = max(1, min(FIRST + int(AHEAD_S / each_s), 2 * self.now, self.most))
        self._had, self._at = held, now
