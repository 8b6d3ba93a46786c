"""What applications pass in, checked, and as the bytes that travel: `str` is UTF-8 wherever bytes go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stentor.client.positions import to_microseconds
from stentor.errors import InvalidArgument
from stentor.wire.batch import check_headers, header_bytes

if TYPE_CHECKING:
    from stentor.wire.rows import Headers

_SECONDS_MAX = 1e9  # thirty years: what timers and locks everywhere take, so that infinity is a time as well


def as_bytes(value: Any, what: str) -> bytes | None:
    """Bytes stay, text becomes UTF-8, None stays None; anything else is the caller's to encode."""
    if value is None or value.__class__ is bytes:
        return value
    if isinstance(value, str):
        return _utf8(value, what)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(
        f"A {what} must be bytes, str or None, not {type(value).__name__}.",
        hint="Encode it yourself, or use client.topic(name, type=...) for typed values.",
    )


def as_headers(headers: Any) -> Headers | None:
    """A mapping or pairs as a list of (key, value)."""
    if headers is None:
        return None
    try:
        pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    except TypeError as error:
        raise InvalidArgument("Headers must be a mapping, or pairs of key and value.") from error
    check_headers(len(pairs), 0)
    try:
        found = [(_header_key(key), as_bytes(value, "header value")) for key, value in pairs]
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument("Headers must be a mapping, or pairs of key and value.") from error
    check_headers(len(found), header_bytes(found))
    return found


def _header_key(key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidArgument(f"A header's key must be text, not {type(key).__name__}.")
    _utf8(key, "header's key")
    return key


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"A {what} is not valid text: {error}.") from error


def as_seconds(timeout: object) -> float:
    """Return how long a call may take; InvalidArgument for what is no number, below zero, or NaN."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidArgument(
            f"timeout={timeout!r} is not a number of seconds.",
            hint="Use a number above zero; 0 waits for nothing, and None is the default of the call.",
        )
    return min(timeout, _SECONDS_MAX)


def allows_stale(stale: object) -> bool:
    """Whether a position may be one that the brokers are not certain of (C30)."""
    if stale not in ("refuse", "allow"):
        raise InvalidArgument(f"stale={stale!r} is unknown.", hint="Use 'refuse' or 'allow'.")
    return stale == "allow"


def check_topics(topics: object) -> None:
    """One topic or pattern, or several; each is looked at by whoever uses it."""
    if not isinstance(topics, str | list | tuple | set | frozenset):
        raise InvalidArgument(
            f"Topics are text, or a list of text, not {type(topics).__name__}.", hint='For example "orders.*".'
        )


def check_limit(limit: object) -> None:
    """How many messages to read at most; None is all of them."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidArgument(f"limit={limit!r} is not a number of messages.", hint="Use 0 or more, or None for all.")


def as_timestamp_us(timestamp: Any) -> int | None:
    """A datetime, or microseconds since 1970."""
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        timestamp = to_microseconds(timestamp)
    if not isinstance(timestamp, int) or isinstance(timestamp, bool) or not 0 <= timestamp <= 253_402_300_799_999_999:
        raise InvalidArgument(f"timestamp={timestamp!r} is not a time.", hint="Use a datetime from 1970 to 9999.")
    return timestamp
