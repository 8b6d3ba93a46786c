"""Whose word counts when a chain stands still (C14): a broker whose own link is slow blames those that it starves.

    head ──► middle ──► tail       everything that the middle sends passes slowly
      │        └─ "the tail stands still": it gets nothing
      └─ "the middle stands still": it does not say what it has

The member that comes last in a chain is believed to be the cause, because those before it may only wait for it. But if
a third broker says, of any chain, that the complainer itself stands still, the complainer is what both have in common.
Whoever is complained about does not count as a third: two brokers that do not reach each other blame each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stentor.core.chain_messages import Complaint

_MEMORY_US: Final = 3_000_000


class Witnesses:
    """Who was said to stand still lately, and by whom."""

    def __init__(self) -> None:
        self._against: dict[str, dict[str, int]] = {}  # broker -> who says so -> when

    def note(self, complaint: Complaint, now_us: int) -> None:
        if complaint.stalls and complaint.by:
            said = self._against.setdefault(complaint.member.broker, {})
            said[complaint.by] = now_us

    def speak_against(self, complaint: Complaint, now_us: int) -> bool:
        """Whether a third broker says that the complainer itself stands still."""
        if not complaint.stalls:
            return False
        parties = (complaint.by, complaint.member.broker)
        said = self._against.get(complaint.by, {})
        return any(by not in parties and now_us - at_us <= _MEMORY_US for by, at_us in said.items())
