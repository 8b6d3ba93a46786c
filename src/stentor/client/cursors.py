"""Named cursors: moved by the heads of a topic's partitions, listed with how far behind each is."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.core.names import check_cursor_name
from stentor.errors import (
    ConnectionFailed,
    CoordinationUnavailable,
    InvalidArgument,
    NotHead,
    NotReady,
    PartitionNotFound,
    StentorError,
)
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.client.core import ClientCore
    from stentor.wire.messages import TopicInfo

    Asking = Callable[[dict[int, int]], messages.MoveCursor | messages.MarkRecorded]

_START = datetime(1970, 1, 1, tzinfo=UTC)


class CursorInfo(msgspec.Struct, frozen=True):
    """A named cursor of a topic."""

    name: str
    positions: dict[int, int]  # by partition: everything below this offset is done with
    lag: dict[int, int]  # by partition: committed messages that are not
    moved_by: str  # the name of whoever moved it last
    moved_at: datetime


async def move_cursor(
    core: ClientCore, topic: str, name: str, positions: Mapping[int, int], *, back: bool, timeout: float | None
) -> None:
    """Move a cursor."""
    check_cursor_name(name)

    def request(some: dict[int, int]) -> messages.MoveCursor:
        return messages.MoveCursor(topic=topic, name=name, positions=some, back=back)

    await _move(core, topic, positions, request, timeout, "move_cursor")


async def mark_recorded(core: ClientCore, topic: str, ends: Mapping[int, int], timeout: float | None) -> None:
    """Move the recorder's cursor, in words that older brokers know too."""

    def request(some: dict[int, int]) -> messages.MarkRecorded:
        return messages.MarkRecorded(topic=topic, ends=some)

    await _move(core, topic, ends, request, timeout, "mark_recorded")


async def _move(
    core: ClientCore,
    topic: str,
    positions: Mapping[int, int],
    request: Asking,
    timeout: float | None,
    operation: str,
) -> None:
    """Say it to the head of each partition, again if that changes meanwhile; saying it twice does no harm."""
    for partition, offset in positions.items():
        numbers: tuple[object, object] = (partition, offset)
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise InvalidArgument(f"Offset {offset!r} of partition {partition!r} cannot be: both count from 0.")
    deadline = core.deadline(timeout)
    left = dict(positions)
    refusal: StentorError | None = None
    try:
        async with deadline.bound():
            while True:
                described = await core.call(messages.DescribeTopic(name=topic), deadline)
                left, refusal = await _tell_heads(core, described.topic, left, request)
                if not left:
                    return
                await core.changes(limits.LINK_WATCH_S)
    except TimeoutError as error:
        raise core.late(operation, deadline.seconds, refusal) from error


async def _tell_heads(
    core: ClientCore, topic: TopicInfo, positions: dict[int, int], request: Asking
) -> tuple[dict[int, int], StentorError | None]:
    """What could not be said yet, and why."""
    by_head: dict[str, dict[int, int]] = defaultdict(dict)
    for partition, offset in positions.items():
        if partition >= len(topic.partitions):
            raise PartitionNotFound(
                f"Topic {topic.name} has {len(topic.partitions)} partitions and no number {partition}.",
                object=topic.name,
            )
        chain = topic.partitions[partition].chain
        by_head[chain[0] if chain else ""][partition] = offset
    left: dict[int, int] = {}
    refusal: StentorError | None = None
    for head, some in by_head.items():
        link = core.links.to(head)
        try:
            if link is None:
                left |= some
            else:
                await link.request(request(some))
        except (ConnectionFailed, CoordinationUnavailable, NotHead, NotReady) as error:
            left |= some
            refusal = error
    return left, refusal


def with_lag(cursors: list[messages.CursorState], topic: TopicInfo) -> list[CursorInfo]:
    """Cursors as people see them."""
    return [
        CursorInfo(
            cursor.name,
            cursor.positions,
            {
                each.partition: max(0, each.committed - max(each.start, cursor.positions.get(each.partition, 0)))
                for each in topic.partitions
            },
            cursor.moved_by,
            _START + timedelta(microseconds=cursor.moved_at_us),
        )
        for cursor in cursors
    ]
