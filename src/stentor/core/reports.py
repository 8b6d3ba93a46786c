"""What brokers have told the controller about their replicas: everything once, then what changed.

Reports of one broker are numbered. Changes count only if the report before them was heard: what was missed might be
what matters. A report of everything that comes late, because it went another way, does not replace newer ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stentor.core.chain_messages import ReplicaReport
    from stentor.core.records import Key


class ReportBook:
    """The newest report of every broker."""

    def __init__(self) -> None:
        self.lives: dict[str, int] = {}  # which life of a broker has said what it holds
        self._numbers: dict[str, int] = {}  # of its last report that was heard
        self._reports: dict[str, dict[Key, ReplicaReport]] = {}  # by broker

    def of(self, key: Key, broker: str) -> ReplicaReport | None:
        """What a broker holds of a partition."""
        reports = self._reports.get(broker)
        return None if reports is None else reports.get(key)

    def everything(
        self, sender: str, incarnation: int, reports: Mapping[Key, ReplicaReport], number: int
    ) -> list[Key] | None:
        """What is not among it, the broker does not hold. Of whom there is news; None: it is overtaken."""
        if number and self.lives.get(sender) == incarnation and number <= self._numbers.get(sender, 0):
            return None
        self.lives[sender], self._numbers[sender] = incarnation, number
        known = self._reports.setdefault(sender, {})
        for key in [key for key in known if key not in reports]:
            del known[key]
        return _noted(known, reports)

    def changes(
        self, sender: str, incarnation: int, reports: Mapping[Key, ReplicaReport], gone: Iterable[Key], number: int
    ) -> list[Key] | None:
        """What is different since the report before. Of whom there is news; None: that report was missed."""
        if self.lives.get(sender) != incarnation or self._numbers.get(sender) != number - 1:
            return None
        self._numbers[sender] = number
        known = self._reports[sender]
        for key in gone:
            known.pop(key, None)
        return _noted(known, reports)


def _noted(known: dict[Key, ReplicaReport], reports: Mapping[Key, ReplicaReport]) -> list[Key]:
    news = [key for key, report in reports.items() if known.get(key) != report]
    for key in news:
        known[key] = reports[key]
    return news
