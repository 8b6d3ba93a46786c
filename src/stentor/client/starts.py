"""Where a subscription starts: one position for all partitions, or one for each.

    "earliest"                         all partitions alike, and so with every other word, offset, time and Last(n)
    {0: 17, 2: 5}                      by partition, for one topic
    {"orders.eu": {0: 17, 2: 5}}       by topic and partition, for several topics and patterns
    Position, or a list of them        as `message.position` and `subscription.positions()` give them

Partitions that such a mapping or list does not name are read from their start: one that was added since the positions
were stored holds only messages that nobody has read. Keys may be text, because JSON has no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client.position import Position
from stentor.client.positions import Place, check_position
from stentor.core.names import check_topic_name, is_pattern, matches
from stentor.errors import InvalidArgument, OffsetOutOfRange, PartitionNotFound, TopicReplaced

if TYPE_CHECKING:
    from stentor.wire.messages import TopicRoute

Start = (
    Place
    | Position
    | list[Position]
    | list[str]
    | Mapping[int, Place]
    | Mapping[str, Place]
    | Mapping[str, Mapping[int, Place]]
    | Mapping[str, Mapping[str, Place]]
)
"""Where a subscription or a read starts."""

_HINT = "For example start={0: 17, 2: 5}, start={'orders.eu': {0: 17}}, or start=subscription.positions()."


class Starts:
    """The start of every partition."""

    def __init__(self, start: Any, patterns: list[str]) -> None:
        self._all: Any = "earliest"
        self.named: dict[str, dict[int, Any]] = {}
        """The starts of the partitions that have one of their own, by topic."""
        self.ids: dict[str, int] = {}
        """The ids that topics must have, where they are known."""
        if isinstance(start, Mapping):
            self._take_mapping(start, patterns)
        elif isinstance(start, list | tuple | set | frozenset):
            self._take_positions(start)
        elif isinstance(start, Position) or (isinstance(start, str) and "/" in start):
            self._take_positions([start])
        else:
            check_position(start, "start")
            self._all = start
        for topic in self.named:
            if not any(matches(pattern, topic) for pattern in patterns):
                raise InvalidArgument(
                    f"start names topic {topic}, which {', '.join(patterns)} does not include.",
                    hint="Subscribe to it as well, or leave it out of start.",
                    object=topic,
                )

    def _take_mapping(self, start: Mapping[Any, Any], patterns: list[str]) -> None:
        inner = [isinstance(value, Mapping) for value in start.values()]
        if any(inner) and not all(inner):
            raise InvalidArgument("start mixes topics and partitions.", hint=_HINT)
        if not inner:
            return
        if inner[0]:
            for topic, offsets in start.items():
                self.named[check_topic_name(topic)] = _by_partition(topic, offsets)
        elif len(patterns) != 1 or is_pattern(patterns[0]):
            raise InvalidArgument("start names partitions, but of which of several topics?", hint=_HINT)
        else:
            self.named[patterns[0]] = _by_partition(patterns[0], start)

    def _take_positions(self, positions: Iterable[Any]) -> None:
        for each in positions:
            position = Position.parse(str(each) if isinstance(each, Position) else each)
            offsets = self.named.setdefault(position.topic, {})
            if position.partition in offsets:
                raise InvalidArgument(
                    f"start names {position.topic}/{position.partition} twice.",
                    hint="Keep the lower offset of the two.",
                    object=f"{position.topic}/{position.partition}",
                )
            check_position(position.offset, "start")
            offsets[position.partition] = position.offset
            if position.topic_id is not None and self.ids.setdefault(position.topic, position.topic_id) != (
                position.topic_id
            ):
                raise InvalidArgument(
                    f"start has positions of two topics that were called {position.topic}, one after the other.",
                    hint="Keep those of the later one.",
                    object=position.topic,
                )

    def of(self, topic: str, partition: int) -> Any:
        """Where a partition starts."""
        return self.named.get(topic, {}).get(partition, self._all)

    def names(self, topic: str, partition: int) -> bool:
        """Whether a partition has a start of its own."""
        return partition in self.named.get(topic, {})

    def check_id(self, topic: str, topic_id: int) -> None:
        """Whether the positions are of this very topic."""
        if self.ids.get(topic, topic_id) != topic_id:
            raise TopicReplaced(
                f"Topic {topic} was deleted and made anew since these positions were stored.",
                hint="They say nothing about the new topic; read it with start='earliest'.",
                operation="subscribe",
                object=topic,
            )

    def check(self, route: TopicRoute) -> None:
        """Whether the starts fit a topic as it is."""
        self.check_id(route.name, route.id)
        for partition in self.named.get(route.name, {}):
            if partition >= len(route.partitions):
                raise PartitionNotFound(
                    f"Topic {route.name} has partitions 0 to {len(route.partitions) - 1}; start names {partition}.",
                    hint="Leave it out of start.",
                    operation="subscribe",
                    object=f"{route.name}/{partition}",
                )


def _by_partition(topic: str, offsets: Mapping[Any, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for key, position in offsets.items():
        partition = int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10 else key
        if not _is_partition(partition):
            raise InvalidArgument(f"start: {key!r} is not a partition of {topic}.", hint=_HINT, object=topic)
        name = f"{topic}/{partition}"
        if partition in found:
            raise InvalidArgument(f"start names {name} twice.", hint="Keep the lower offset of the two.", object=name)
        check_position(position, f"start of {name}", name)
        found[partition] = position
    return found


def _is_partition(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def wanted_partitions(partition: Any) -> frozenset[int] | None:
    """The partitions that `partition=` names: one, several, or None for all."""
    if partition is None:
        return None
    several = isinstance(partition, Iterable) and not isinstance(partition, str | bytes | Mapping)
    numbers = list(partition) if several else [partition]
    if not numbers or not all(map(_is_partition, numbers)) or len(numbers) > limits.PARTITIONS_PER_TOPIC_MAX:
        raise InvalidArgument(
            f"partition={partition!r} is neither a partition nor a list of some.",
            hint="Partitions count from 0: partition=1, or partition=[0, 2].",
        )
    return frozenset(numbers)


def out_of_range(name: str, offset: int, start: int, end: int) -> OffsetOutOfRange:
    """A partition does not hold the offset at which it should start."""
    why = "retention has deleted what was before" if offset < start else "it ends there"
    return OffsetOutOfRange(
        f"{name} holds offsets {start} to {end}; {offset} was asked for, and {why}.",
        hint="Start at 'earliest' or 'latest', or at an offset in that range.",
        operation="subscribe",
        object=name,
        start=start,
        end=end,
    )
