"""Telling the heads of partitions how far a recorder has come."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from stentor import limits
from stentor.errors import ConnectionFailed, InvalidArgument, NotHead, NotReady, PartitionNotFound
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.client.core import ClientCore
    from stentor.wire.messages import TopicInfo


async def mark_recorded(core: ClientCore, topic: str, ends: Mapping[int, int], timeout: float | None) -> None:
    """Say it to the head of each partition, again if that changes meanwhile; saying it twice does no harm."""
    for partition, end in ends.items():
        numbers: tuple[object, object] = (partition, end)
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise InvalidArgument(f"Offset {end!r} of partition {partition!r} cannot be marked: both count from 0.")
    deadline = core.deadline(timeout)
    left = dict(ends)
    try:
        async with deadline.bound():
            while True:
                described = await core.call(messages.DescribeTopic(name=topic), deadline)
                left = await _tell_heads(core, described.topic, left)
                if not left:
                    return
                await core.changes(limits.LINK_WATCH_S)
    except TimeoutError as error:
        raise core.late("mark_recorded", deadline.seconds) from error


async def _tell_heads(core: ClientCore, topic: TopicInfo, ends: dict[int, int]) -> dict[int, int]:
    """What could not be said yet."""
    by_head: dict[str, dict[int, int]] = defaultdict(dict)
    for partition, end in ends.items():
        if partition >= len(topic.partitions):
            raise PartitionNotFound(
                f"Topic {topic.name} has {len(topic.partitions)} partitions and no number {partition}.",
                object=topic.name,
            )
        chain = topic.partitions[partition].chain
        by_head[chain[0] if chain else ""][partition] = end
    left: dict[int, int] = {}
    for head, some in by_head.items():
        link = core.links.to(head)
        try:
            if link is None:
                left |= some
            else:
                await link.request(messages.MarkRecorded(topic=topic.name, ends=some))
        except (ConnectionFailed, NotHead, NotReady):
            left |= some
    return left
