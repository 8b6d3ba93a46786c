"""What retention has found in a partition whose messages wait for a cursor."""

from __future__ import annotations


class RetentionWait:
    """Written by retention, in its thread; read by whoever shows it."""

    __slots__ = ("kept", "overrun")

    def __init__(self) -> None:
        self.kept = 0  # messages that are past retention, and wait
        self.overrun = 0  # messages that were let go although the cursor has not passed them, until it is beyond them

    def nothing(self) -> None:
        """The topic waits for nobody."""
        self.kept = self.overrun = 0

    def found(self, *, passed: int, due: int, before: int, start: int) -> None:
        """A round of retention: the cursor is at `passed`, all below `due` may go, and the log began at `before` and
        begins at `start` now.
        """
        self.kept = max(0, due - max(start, passed))
        if passed >= start:
            self.overrun = 0
        else:
            self.overrun += max(0, start - max(before, passed))
