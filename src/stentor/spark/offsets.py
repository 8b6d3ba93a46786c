"""Where a query stands in its topics, and how the way between two such places is divided among tasks.

Spark keeps a stream's offsets as JSON and compares them as text, so they are always made in one order:

    {"orders": {"id": "8f31…", "offsets": {"0": 120, "1": 98}}}

The id tells a topic from a later one of the same name: what was read of the old says nothing about the new.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import InputPartition

from stentor.core.memory_limits import OFFSETS_RENEWED
from stentor.errors import StentorError, TopicNotFound

if TYPE_CHECKING:
    from stentor.client.admin import TopicOffsets

_ROWS_ACROSS_LOSS: Final = OFFSETS_RENEWED // 2
"""Half of what is set aside for a memory topic at least, beyond what it has given out: where it begins again is further
on than this. No micro-batch has as many messages."""

Place = tuple[str, int]
"""A topic and a partition."""


class TopicPlace(msgspec.Struct, frozen=True):
    """How far a topic is read."""

    id: int
    offsets: dict[int, int]
    # Where partitions of a memory topic began again after all brokers lost it, as far as brokers were asked. What lies
    # below counts for nothing: their offsets went on far above all that there was.
    begins: dict[int, int] = {}


Places = dict[str, TopicPlace]


def places_of(found: dict[str, TopicOffsets]) -> Places:
    """What the brokers answered."""
    return {name: TopicPlace(topic.id, topic.offsets, topic.begins) for name, topic in found.items()}


def to_offset(places: Places) -> dict[str, Any]:
    """As Spark keeps it."""
    return {
        name: {
            "id": f"{places[name].id:016x}",
            "offsets": {str(partition): offset for partition, offset in sorted(places[name].offsets.items())},
        }
        for name in sorted(places)
    }


def from_offset(offset: dict[str, Any]) -> Places:
    """From what Spark kept."""
    return {
        name: TopicPlace(int(topic["id"], 16), {int(key): value for key, value in topic["offsets"].items()})
        for name, topic in offset.items()
    }


class OffsetRange(InputPartition):
    """What one task reads."""

    def __init__(self, topic: str, topic_id: int, partition: int, start: int, end: int) -> None:
        super().__init__(None)
        self.topic, self.topic_id, self.partition = topic, topic_id, partition
        self.start, self.end = start, end

    def __repr__(self) -> str:
        return f"{self.topic}/{self.partition}[{self.start}:{self.end}]"

    @property
    def rows(self) -> int:
        return self.end - self.start


def recreated(topic: str) -> StentorError:
    """The one error that no option turns off: offsets of another topic mean nothing."""
    return TopicNotFound(
        f"Topic {topic} was deleted and created again since this query read it.",
        hint="Its offsets start from 0 again. Start the query with a new checkpoint, and delete the output of the old"
        " topic if you do not want to keep it.",
        object=topic,
    )


def deleted(topic: str) -> StentorError:
    """A topic that was there is no more."""
    return TopicNotFound(
        f"Topic {topic}, which this query reads, was deleted.",
        hint="Set failOnDataLoss to false to continue without it.",
        object=topic,
    )


def check_same(start: Places, end: Places) -> None:
    """A topic of both must be one and the same."""
    for name, topic in end.items():
        if name in start and start[name].id != topic.id:
            raise recreated(name)


def unnamed(start: Places, end: Places) -> list[str]:
    """Topics with partitions that the start does not know: they came later."""
    return [
        name for name, topic in sorted(end.items()) if name not in start or topic.offsets.keys() - start[name].offsets
    ]


def completed(start: Places, earliest: Places) -> Places:
    """A start that also names what came later: from its first offset on."""
    found = dict(start)
    for name, topic in earliest.items():
        known = start[name].offsets if name in start else {}
        found[name] = TopicPlace(topic.id, topic.offsets | known)
    return found


def ranges_between(start: Places, end: Places) -> list[OffsetRange]:
    """All that lies between two places; the start must name everything that the end does."""
    check_same(start, end)
    ranges = []
    for name, topic in sorted(end.items()):
        for partition, stop in sorted(topic.offsets.items()):
            first = start[name].offsets[partition]
            if stop > first:
                ranges.append(OffsetRange(name, topic.id, partition, first, stop))
    return ranges


def lost(start: Places, found: Places) -> list[Place]:
    """Return the partitions whose messages from a start on were lost with the memory of their brokers."""
    return [
        (name, partition)
        for name, topic in sorted(found.items())
        if name in start
        for partition, begins in sorted(topic.begins.items())
        if start[name].offsets.get(partition, begins) < begins
    ]


def lifted(start: Places, found: Places) -> Places:
    """Return a start that is nowhere below the place at which a memory topic began again."""
    moved = dict(start)
    for name, partition in lost(start, found):
        topic, begins = moved[name], found[name].begins[partition]
        moved[name] = TopicPlace(topic.id, topic.offsets | {partition: begins}, topic.begins)
    return moved


def crosses_loss(ranges: list[OffsetRange]) -> bool:
    """Return whether ranges are so large that some may lead over the place at which a memory topic began again."""
    return any(part.rows >= _ROWS_ACROSS_LOSS for part in ranges)


def missing(low: int, end: int, begins: int) -> str:
    """Say how many messages are missing between an end and the first offset that the brokers hold."""
    if end < begins:
        return "an unknown number of messages"  # lost with the memory of the brokers
    return f"{low - end} messages"


def divided(ranges: list[OffsetRange], rows_max: int, pieces_min: int | None) -> list[OffsetRange]:
    """Cut large ranges, so that no task has more than `rows_max` rows and there are enough tasks."""
    rows = sum(part.rows for part in ranges)
    if pieces_min and rows:
        rows_max = min(rows_max, max(1, rows // pieces_min))
    pieces = []
    for part in ranges:
        count = math.ceil(part.rows / rows_max)
        edges = [part.start + part.rows * index // count for index in range(count + 1)]
        for first, last in pairwise(edges):
            pieces.append(OffsetRange(part.topic, part.topic_id, part.partition, first, last))
    return pieces


def limited(start: Places, end: Places, rows_max: int) -> Places:
    """An end that is at most so many rows away, shared among partitions by what each has waiting."""
    waiting: dict[Place, int] = {(part.topic, part.partition): part.rows for part in ranges_between(start, end)}
    total = sum(waiting.values())
    if total <= rows_max:
        return end
    shares = _shares(waiting, rows_max, total)
    return {
        name: TopicPlace(
            topic.id,
            {
                partition: stop - waiting.get((name, partition), 0) + shares.get((name, partition), 0)
                for partition, stop in topic.offsets.items()
            },
        )
        for name, topic in end.items()
    }


def _shares(waiting: dict[Place, int], rows_max: int, total: int) -> dict[Place, int]:
    """In proportion, rounded down; what rounding leaves goes to the first that have more waiting."""
    shares = {place: rows * rows_max // total for place, rows in waiting.items()}
    left = rows_max - sum(shares.values())
    for place, rows in sorted(waiting.items()):
        extra = min(left, rows - shares[place], 1)
        shares[place] += extra
        left -= extra
    return shares
