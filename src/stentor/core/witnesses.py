"""Whose word counts when a chain stands still (C14): a broker whose own link is slow blames those that it starves.

    head ──► middle ──► tail       everything that the middle sends passes slowly
      │        └─ "the tail stands still": it gets nothing
      └─ "the middle stands still": it does not say what it has

The member that comes last in a chain is believed to be the cause, because those before it may only wait for it. But two
things speak against the complainer, which is what they have in common:

    a third broker says, of any chain, that the complainer itself stands still
    another member has just left the same chain by its word, and the next one stands still as well

Whoever is complained about does not count as a third: two brokers that do not reach each other blame each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stentor.core.chain_messages import Complaint
    from stentor.core.records import Key

_MEMORY_US: Final = 3_000_000  # what was said before is over: complaints are repeated while they hold
_TWICE_US: Final = 10_000_000  # a second complaint that comes later is another matter


class Witnesses:
    """Who was said to stand still lately, by whom, and what came of it."""

    def __init__(self) -> None:
        self._against: dict[str, dict[str, int]] = {}  # broker -> who says so -> when
        self._believed: dict[Key, tuple[Complaint, int]] = {}  # by whose word a member left last, and when
        self._wrong: dict[Key, tuple[str, int]] = {}  # who left last for complaining wrongly, and when

    def note(self, complaint: Complaint, now_us: int) -> None:
        """Somebody complains."""
        if complaint.stalls and complaint.by:
            said = self._against.setdefault(complaint.member.broker, {})
            said[complaint.by] = now_us

    def believed(self, key: Key, complaint: Complaint, now_us: int) -> None:
        """A member leaves for it."""
        if complaint.stalls and complaint.by != complaint.member.broker:
            self._believed[key] = complaint, now_us

    def disbelieved(self, key: Key, complaint: Complaint, now_us: int) -> None:
        """The complainer leaves for it."""
        self._wrong[key] = complaint.by, now_us

    def is_doubtful(self, key: Key, broker: str, now_us: int) -> bool:
        """Whether this broker left the chain a moment ago for complaining wrongly: others should join first."""
        wrong, at_us = self._wrong.get(key, ("", 0))
        return wrong == broker and now_us - at_us <= _TWICE_US

    def forget(self, key: Key) -> None:
        """The partition is gone."""
        self._believed.pop(key, None)
        self._wrong.pop(key, None)

    def speak_against(self, key: Key, complaint: Complaint, now_us: int) -> bool:
        """Whether the complainer itself is more likely to be what stands still."""
        if not complaint.stalls:
            return False
        parties = (complaint.by, complaint.member.broker)
        said = self._against.get(complaint.by, {})
        if any(by not in parties and now_us - at_us <= _MEMORY_US for by, at_us in said.items()):
            return True
        before, at_us = self._believed.get(key, (complaint, 0))
        another = before.member.broker not in parties
        return another and before.by == complaint.by and now_us - at_us <= _TWICE_US
