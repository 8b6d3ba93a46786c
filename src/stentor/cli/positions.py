"""Positions as people type them, in `--start`, `--end` and `--at`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from stentor.cli.quantities import read_duration
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor.client.positions import Place, Word

WORDS: Final[tuple[Word, ...]] = ("earliest", "latest", "now")

SYNTAX: Final = "earliest, latest, now, an offset, 2026-01-31T12:00, -1h, '15m ago' or last:100"

_LAST: Final = r"last:(\d+)"


def parse_position(text: str, option: str) -> Place:
    """The position that a text means; a date without a zone is local time."""
    text = text.strip()
    for word in WORDS:
        if text.lower() == word:
            return word
    if text.isascii() and text.isdigit():
        return int(text)
    if match := re.fullmatch(_LAST, text.lower(), re.ASCII):
        from stentor import Last

        return Last(int(match[1]))
    found = _ago(text) or _moment(text)
    if found is None:
        raise InvalidArgument(f"{option} {text!r} is not a position.", hint=_hint(text))
    return found


def check_order(start: Place, end: Place) -> None:
    """Refuse a start behind the end, where both are offsets or both are times."""
    now = datetime.now(UTC)
    first, last = (now + each if isinstance(each, timedelta) else each for each in (start, end))
    if (isinstance(first, int) and isinstance(last, int) and first > last) or (
        isinstance(first, datetime) and isinstance(last, datetime) and first.astimezone(UTC) > last.astimezone(UTC)
    ):
        raise InvalidArgument("--start is after --end.", hint="Swap them, or leave one out.")


def _ago(text: str) -> timedelta | None:
    """`-1h` and `1h ago`, as a negative duration."""
    if text.startswith("-"):
        duration = read_duration(text[1:])
    elif text.lower().endswith("ago"):
        duration = read_duration(text[:-3])
    else:
        return None
    return None if duration is None else -duration


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _hint(text: str) -> str:
    if read_duration(text) is not None:
        return f"For a time in the past write -{text} or '{text} ago'."
    if text.startswith("-") and text[1:].isdigit():
        return f"For the newest {text[1:]} messages write last:{text[1:]}."
    return f"Use {SYNTAX}."


def parse_moment(text: str, option: str) -> datetime:
    """A position that is a time: a date, or so long ago."""
    position = parse_position(text, option)
    if isinstance(position, timedelta):
        return datetime.now(UTC) + position
    if isinstance(position, datetime):
        return position.astimezone(UTC)
    raise InvalidArgument(f"{option} {text!r} is not a time.", hint="Use 2026-01-31T12:00 or -1h.")
