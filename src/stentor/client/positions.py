"""Positions: where a subscription or a read starts and ends. The same words everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from stentor.errors import InvalidArgument
from stentor.wire.messages import FindOffset

if TYPE_CHECKING:
    Position = "str | int | datetime | timedelta | Last"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Last(msgspec.Struct, frozen=True):
    """The last n messages of each partition."""

    count: int


def to_microseconds(moment: datetime) -> int:
    """A datetime as microseconds since 1970; one without a zone is local time, as Python has it."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def check_position(position: object, name: str) -> None:
    """Say early what is wrong with a position."""
    if isinstance(position, bool) or not isinstance(position, str | int | datetime | timedelta | Last):
        raise _wrong(position, name)
    if isinstance(position, str) and position not in ("earliest", "latest", "now"):
        raise _wrong(position, name)
    if isinstance(position, int) and position < 0:
        raise _wrong(position, name)
    if isinstance(position, Last) and position.count < 0:
        raise _wrong(position, name)


def _wrong(position: object, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name}={position!r} is not a position.",
        hint="Use 'earliest', 'latest', an offset, a datetime, a timedelta such as timedelta(hours=-1), or Last(n).",
    )


def find_request(position: object, topic_id: int, partition: int, now_us: int) -> FindOffset | int:
    """The request that turns a position into an offset; an offset is one already."""
    if isinstance(position, int):
        return position
    if isinstance(position, Last):
        return FindOffset(topic_id=topic_id, partition=partition, last=position.count)
    if isinstance(position, datetime):
        timestamp_us = max(0, to_microseconds(position))
        return FindOffset(topic_id=topic_id, partition=partition, timestamp_us=timestamp_us)
    if isinstance(position, timedelta):
        timestamp_us = max(0, now_us + position // timedelta(microseconds=1))
        return FindOffset(topic_id=topic_id, partition=partition, timestamp_us=timestamp_us)
    return FindOffset(topic_id=topic_id, partition=partition, at="earliest" if position == "earliest" else "latest")
