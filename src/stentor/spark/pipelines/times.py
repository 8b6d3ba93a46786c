"""Times that a query asks for, so that it reads only the days of a lake that can hold them.

A lake's folders are days. Spark leaves out folders by conditions on the folders' own columns only, and queries have
conditions on `timestamp`. So the bounds are read from Spark's optimized plan, in which conditions stand directly above
what they are about, and the files of other days are not handed to Spark at all. A condition that is not understood
bounds nothing.

Days are taken two wider on either side: older versions filed messages by the day of the session's time zone, a time
without a zone may be meant in any, and `current_timestamp()` moves on between planning and running.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

DAYS_WIDER: Final = 2
_DAY_US: Final = 86_400_000_000
_DAY_OF_1970: Final = date(1970, 1, 1).toordinal()
_LOW: Final = ("GreaterThan", "GreaterThanOrEqual")
_HIGH: Final = ("LessThan", "LessThanOrEqual")
_MIRRORED: Final = dict(zip((*_LOW, *_HIGH), (*_HIGH, *_LOW), strict=True))
_PASSED: Final = ("Project", "SubqueryAlias", "View")
"""Nodes of a plan that hand rows on one by one: a condition above them may as well stand below."""


class Times(msgspec.Struct, frozen=True):
    """From when to when, in microseconds since 1970; None: without a bound. Rows beyond may come, too."""

    low_us: int | None = None
    high_us: int | None = None

    @classmethod
    def between(cls, start: datetime | None, end: datetime | None) -> Times:
        return cls(*(None if moment is None else _us(moment) for moment in (start, end)))

    @property
    def is_bounded(self) -> bool:
        return self.low_us is not None or self.high_us is not None

    def have(self, day: str) -> bool:
        """Whether a folder of this day, such as 2026-11-15, can hold such a time."""
        try:
            number = date.fromisoformat(day).toordinal() - _DAY_OF_1970
        except ValueError:
            return True
        return (self.low_us is None or number >= self.low_us // _DAY_US - DAYS_WIDER) and (
            self.high_us is None or number <= self.high_us // _DAY_US + DAYS_WIDER
        )

    def both(self, other: Times) -> Times:
        """What has to fulfil this and the other."""
        return Times(
            _best(max, self.low_us, other.low_us),
            _best(min, self.high_us, other.high_us),
        )

    def either(self, other: Times) -> Times:
        """What is enough for this and for the other."""
        return Times(
            None if self.low_us is None or other.low_us is None else min(self.low_us, other.low_us),
            None if self.high_us is None or other.high_us is None else max(self.high_us, other.high_us),
        )


def _us(moment: datetime) -> int:
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _best(choose: Any, one: int | None, other: int | None) -> int | None:
    found = [value for value in (one, other) if value is not None]
    return choose(found) if found else None


# --- Spark's plan -------------------------------------------------------------------------------


def asked_for(frame: DataFrame) -> dict[str, Times]:
    """For each folder `topic=…` that a query reads files of: the times that it can use."""
    made: Any = getattr(frame, "_jdf", None)
    if made is None:
        return {}  # Spark Connect shows no plans
    plan = made.queryExecution().optimizedPlan()
    found: dict[str, Times] = {}
    for part in (plan, *_each(plan.subqueriesAll())):
        for folder, times in _scans(part, []):
            found[folder] = found[folder].either(times) if folder in found else times
    return found


def _scans(node: Any, conditions: list[Any]) -> Iterator[tuple[str, Times]]:
    """The reads of files below a node of a plan, and the bounds of the conditions directly above them."""
    kind = _kind(node)
    if kind == "LogicalRelation" and _kind(node.relation()) == "HadoopFsRelation":
        roots = node.relation().location().rootPaths()
        if roots.nonEmpty():
            yield roots.head().getParent().getParent().getName(), _bounds(node, conditions)
        return
    if kind == "Filter":
        conditions = [*conditions, node.condition()]
    elif kind not in _PASSED or not all(made.deterministic() for made in _each(node.expressions())):
        conditions = []
    for child in _each(node.children()):
        yield from _scans(child, conditions)


def _bounds(relation: Any, conditions: Iterable[Any]) -> Times:
    columns = [column for column in _each(relation.output()) if column.name() == "timestamp"]
    times = Times()
    for condition in conditions:
        for part in _conjuncts(condition):
            for column in columns:
                times = times.both(_bound(part, column))
    return times


def _conjuncts(condition: Any) -> Iterator[Any]:
    if _kind(condition) == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _bound(condition: Any, column: Any) -> Times:
    """What one comparison of the column with a constant says."""
    kind = _kind(condition)
    if kind not in (*_MIRRORED, "EqualTo"):
        return Times()
    left, right = condition.left(), condition.right()
    if _kind(left) == "Literal":
        left, right, kind = right, left, _MIRRORED.get(kind, kind)
    if _kind(right) != "Literal" or right.value() is None:
        return Times()
    is_day = _kind(left) == "Cast" and left.dataType().simpleString() == "date"
    value, type_name = right.value(), right.dataType().simpleString()
    if not column.semanticEquals(left.child() if is_day else left) or type_name != ("date" if is_day else "timestamp"):
        return Times()
    low, high = (value * _DAY_US, (value + 1) * _DAY_US) if is_day else (value, value)
    return Times(None if kind in _HIGH else low, None if kind in _LOW else high)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(items: Any) -> Iterator[Any]:
    iterator = items.iterator()
    while iterator.hasNext():
        yield iterator.next()
