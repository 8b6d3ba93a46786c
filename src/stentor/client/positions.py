"""Positions: where a subscription or a read starts and ends. The same words everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from stentor.errors import InvalidArgument
from stentor.wire.header import OFFSET_MAX
from stentor.wire.messages import FindOffset

Word = Literal["earliest", "latest", "now"]
"""The positions that have a name; the last two mean the same."""

Stale = Literal["refuse", "allow"]
"""Whether a position may be one that the brokers are not certain of: refuse it, or take what they know."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AHEAD_MAX = timedelta(days=9_999 * 366)  # no time that a datetime can show is further away


class Last(msgspec.Struct, frozen=True):
    """The last n messages of each partition."""

    count: int


Place = Word | int | datetime | timedelta | Last
"""Where to start or end: a word, an offset, a moment, a time from now, or the last messages."""


def to_microseconds(moment: datetime) -> int:
    """A datetime as microseconds since 1970; one without a zone is local time, as Python has it."""
    try:
        return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{moment} is outside of the years 1 to 9999 in UTC.") from error


def check_position(position: object, name: str, what: str = "") -> None:
    """Say early what is wrong with a position; `what` is the partition that it is for."""
    if isinstance(position, str):
        right = position in ("earliest", "latest", "now")
    elif isinstance(position, datetime):
        to_microseconds(position)  # it says itself what is wrong
        return
    elif isinstance(position, timedelta):
        right = position <= _AHEAD_MAX
    else:
        count = position.count if isinstance(position, Last) else position
        right = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= OFFSET_MAX
    if not right:
        raise _wrong(position, name, what)


def _wrong(position: object, name: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name}={position!r} is not a position.",
        hint="Use 'earliest', 'latest', an offset, a datetime, a timedelta such as timedelta(hours=-1), or Last(n).",
        object=what,
    )


def find_request(
    position: object, topic_id: int, partition: int, now_us: int, *, stale: bool = False
) -> FindOffset | int:
    """The request that turns a position into an offset; an offset is one already."""
    if isinstance(position, int):
        return position
    wish = FindOffset(topic_id=topic_id, partition=partition, stale=stale)
    if isinstance(position, Last):
        return msgspec.structs.replace(wish, last=position.count)
    if isinstance(position, datetime):
        return msgspec.structs.replace(wish, timestamp_us=max(0, to_microseconds(position)))
    if isinstance(position, timedelta):
        return msgspec.structs.replace(wish, timestamp_us=max(0, now_us + position // timedelta(microseconds=1)))
    return msgspec.structs.replace(wish, at="earliest" if position == "earliest" else "latest")
