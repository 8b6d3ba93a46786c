"""What a replica knows of those after it: its successor, everyone down to the tail, and the tail's joiner.

All of it was heard in the present epoch (C5): what an older epoch said counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stentor import limits

if TYPE_CHECKING:
    from stentor.core.peers import Up

NEVER: Final = -1


class Below:
    """The state of the link downwards."""

    def __init__(self) -> None:
        self.fed: int | None = None  # the successor's attempt that is being fed
        self.forget(0)

    def forget(self, now_us: int) -> None:
        """A new epoch begins."""
        self.durable: list[int] = []  # of everyone after this replica; empty until the tail was heard
        self.committed = 0
        self.told = (NEVER, NEVER)  # what the successor was told last: durable, start
        self.since_us = now_us  # when the successor last said something, or had nothing to say
        self.joint = False
        self._joint_below = False  # as the successor says of the tail
        self._joint_from = NEVER
        self._linked_end = NEVER
        self.joiner_changed()

    def joiner_changed(self) -> None:
        """The tail has another joiner, or none."""
        self.joiner = NEVER  # up to where it is on disk
        self._linked_end = NEVER
        self.told = (NEVER, NEVER)
        self.told_ready = False

    def asked(self, end: int, now_us: int) -> None:
        """The successor asks to be fed; one that asks again and again without getting further gets no more time."""
        if end != self._linked_end:
            self._linked_end, self.since_us = end, now_us

    def heard(self, up: Up, now_us: int, *, at_tail: bool) -> None:
        """The successor says how far it and everyone after it are; at the tail that is the joiner."""
        self.since_us = now_us
        if at_tail:
            self.joiner = max(self.joiner, up.durable[0])
            return
        self._joint_below = up.joint
        before = self.durable or up.durable
        self.durable = [max(pair) for pair in zip(before, up.durable, strict=True)]
        self.committed = max(self.committed, up.committed)

    def reached(self, *, at_tail: bool) -> int:
        """Up to where the successor is on disk."""
        if at_tail:
            return self.joiner
        return self.durable[0] if self.durable else NEVER

    # --- joint mode (C11) -----------------------------------------------------------------------

    def consider_joint(self, end: int, durable: int) -> None:
        """Near the end of the log, commit nothing without the joiner any more."""
        if not self.joint and self.joiner >= 0 and end - self.joiner <= limits.JOIN_LAG_MESSAGES:
            # Whatever was committed so far is on this disk, known to be committed or not.
            self.joint, self._joint_from = True, durable

    @property
    def waits_for_joiner(self) -> bool:
        """Whether the tail answers for a joiner, so that nobody between can be blamed for standing still."""
        return self.joint or self._joint_below

    @property
    def joiner_is_ready(self) -> bool:
        """Whether the joiner holds everything that is committed."""
        return self.joint and self.joiner >= self._joint_from

    # --- complaints (C14, C15) ------------------------------------------------------------------

    def complaint(self, now_us: int) -> str:
        """What is wrong with a successor that does not have everything; empty while it has time."""
        quiet_s = (now_us - self.since_us) / 1_000_000
        if self.fed is None:
            return "cannot be linked" if quiet_s > limits.LINK_QUIET_S else ""
        return "stands still" if quiet_s > limits.REPLICA_STALL_S else ""
