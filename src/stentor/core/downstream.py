"""What a replica knows of those after it: its successor, everyone down to the tail, and the tail's joiner.

All of it was heard in the present epoch (C5): what an older epoch said counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stentor import limits

if TYPE_CHECKING:
    from stentor.core.chain_messages import Up

NEVER: Final = -1
_UNHEARD_US: Final = 300_000  # by then all others do not hear it either, if it is silent for all of them


class Downstream:
    """The state of the link downwards."""

    def __init__(self) -> None:
        self.fed: int | None = None  # the successor's attempt that is being fed
        self.forget(0)

    def forget(self, now_us: int) -> None:
        """A new epoch begins."""
        self.durable: list[int] = []  # of everyone after this replica; empty until the tail was heard
        self.committed = 0
        self.told = (NEVER, NEVER)  # what the successor was told last: durable, start
        self.held = NEVER  # what the successor itself has on disk
        self.since_us = now_us  # when the successor last got further, or had nothing to do
        self._owed: tuple[int, int] | None = None  # an offset that it lacks, and since when
        self._unheard_us: int | None = None  # since when it has not been heard
        self.joint = False
        self._joint_below = False  # as the successor says of the tail
        self._joint_from = NEVER
        self._linked_end = NEVER
        self._state_position = 0  # up to where the successor took the derived state
        self.joiner_changed()

    def joiner_changed(self) -> None:
        """The tail has another joiner, or none."""
        self.joiner = NEVER  # up to where it is on disk
        self.held = NEVER
        self._owed = None
        self._linked_end = NEVER
        self._state_position = 0
        self.told = (NEVER, NEVER)
        self.told_ready = False

    def asked(self, end: int, now_us: int) -> None:
        """The successor asks to be fed; one that asks again and again without getting further gets no more time."""
        if end != self._linked_end:
            self._linked_end, self.since_us = end, now_us

    def takes_state(self, position: int, now_us: int) -> None:
        """The successor gets the derived state before it can begin its log anew."""
        if position > self._state_position:
            self._state_position, self.since_us = position, now_us

    def heard(self, up: Up, now_us: int, *, at_tail: bool) -> None:
        """The successor says how far it and everyone after it are; at the tail that is the joiner."""
        if not up.joint or len(up.durable) > 1:  # else it answers for its joiner too, and says by `Held` what it has
            self.holds(up.durable[0], now_us)
        if at_tail:
            self.joiner = max(self.joiner, up.durable[0])
            return
        self._joint_below = up.joint
        before = self.durable or up.durable
        self.durable = [max(pair) for pair in zip(before, up.durable, strict=True)]
        self.committed = max(self.committed, up.committed)

    def holds(self, end: int, now_us: int) -> None:
        """What the successor itself has on disk: only that gives it more time."""
        if end > self.held:
            self.held, self.since_us = end, now_us

    # --- joint mode (C11) -----------------------------------------------------------------------

    def consider_joint(self, end: int, durable: int) -> None:
        """Near the end of the log, commit nothing without the joiner any more; it has shown that it can write."""
        proven = self.joiner > self._linked_end or self.joiner >= end
        if not self.joint and self.joiner >= 0 and proven and end - self.joiner <= limits.JOIN_LAG_MESSAGES:
            # Whatever was committed so far is on this disk, known to be committed or not.
            self.joint, self._joint_from = True, durable

    @property
    def waits_for_joiner(self) -> bool:
        """Whether the tail answers for a joiner, too."""
        return self.joint or self._joint_below

    @property
    def joiner_is_ready(self) -> bool:
        """Whether the joiner holds everything that is committed."""
        return self.joint and self.joiner >= self._joint_from

    # --- complaints (C14, C15, C31) -------------------------------------------------------------

    def excuse(self, awake_since_us: int) -> None:
        """What others did while this broker stood still it does not know (C15)."""
        self.since_us = max(self.since_us, awake_since_us)
        if self._owed is not None:
            self._owed = self._owed[0], max(self._owed[1], awake_since_us)

    def complaint(self, now_us: int, wanted: int, *, unheard: bool, joins: bool) -> str:
        """What is wrong with a successor that should have everything up to `wanted`; empty while it has time."""
        if not unheard:
            self._unheard_us = None
        elif self._unheard_us is None:
            self._unheard_us = now_us
        elif now_us - self._unheard_us >= _UNHEARD_US:
            return "is not heard"
        if self.has_all(wanted):
            self.since_us, self._owed = now_us, None
            return ""
        quiet_s = (now_us - self.since_us) / 1_000_000
        if self.fed is None:
            return "cannot be linked" if quiet_s > limits.LINK_QUIET_S else ""
        if quiet_s > (limits.JOINT_STALL_S if self.joint else limits.REPLICA_STALL_S):
            return "stands still"
        if joins and not self.joint:
            return ""  # it is being filled, and nobody waits for it
        slow_s = limits.JOINT_SLOW_S if self.joint else limits.REPLICA_SLOW_S
        return "is too slow" if self._lags_s(now_us, wanted) > slow_s else ""

    def has_all(self, wanted: int) -> bool:
        """Whether there is nothing that the successor lacks."""
        return self.fed is not None and self.held >= wanted

    def _lags_s(self, now_us: int, wanted: int) -> float:
        """For how long at least it has lacked something."""
        if self._owed is None or self.held >= self._owed[0]:
            self._owed = wanted, now_us
        return (now_us - self._owed[1]) / 1_000_000
