"""Topic names and patterns.

A name is dotted segments of letters, digits, `-` and `_` (`orders.eu`). A pattern may have `*` for
exactly one segment, and `>` as its last segment for one or more. Matching is by whole segments: a
pattern on `orders` says nothing about `orders2` (S3). Names that start with `_` are internal; those that start
with `_stentor.` belong to the brokers, and clients may only read them. Names of cursors are made as those of topics.

Names of clients are free, and shown to people: control characters in them would write log lines and move cursors.
"""

from __future__ import annotations

import re
from typing import Final

from stentor import limits
from stentor.core import group_limits
from stentor.errors import InvalidArgument

CURSORS_TOPIC: Final = "_stentor.cursors"
"""The internal topic that named cursors are derived from."""

RECORDER: Final = "recorder"
"""The cursor that recorders move, and that topics with `keep_unrecorded` wait for."""

_RESERVED: Final = "_stentor."

_SHOWN: Final = 50  # characters of a wrong name that an error repeats

_SEGMENT = re.compile(r"[A-Za-z0-9_-]+\Z")


def printable(text: str) -> str:
    """A text that a stranger chose, fit for a log or a terminal: what is not printable is escaped."""
    if text.isprintable():
        return text
    escaped = (letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return "".join(escaped)


def check_topic_name(name: str) -> str:
    """Return the name, or say what is wrong with it."""
    if not isinstance(name, str):
        raise InvalidArgument(f"A topic name must be text, not {type(name).__name__}.")
    if not name or len(name) > limits.TOPIC_NAME_CHARACTERS_MAX:
        raise InvalidArgument(
            f"The topic name has {len(name)} characters; it needs 1 to {limits.TOPIC_NAME_CHARACTERS_MAX}.",
            object=name[:50],
        )
    for segment in name.split("."):
        if not _SEGMENT.match(segment):
            raise InvalidArgument(
                f"{name!r} is not a topic name.",
                hint="Use dotted segments of letters, digits, '-' and '_', such as orders.eu.",
                object=name,
            )
    return name


def is_reserved(name: str) -> bool:
    """Whether a topic is the brokers' own."""
    return name.startswith(_RESERVED)


def check_cursor_name(name: str) -> str:
    """Return the name, or say what is wrong with it."""
    if not isinstance(name, str):
        raise InvalidArgument(f"The name of a cursor must be text, not {type(name).__name__}.")
    fits = 0 < len(name) <= limits.TOPIC_NAME_CHARACTERS_MAX
    if not fits or not all(_SEGMENT.match(segment) for segment in name.split(".")):
        raise InvalidArgument(
            f"{name[:50]!r} is not the name of a cursor.",
            hint=f"Use up to {limits.TOPIC_NAME_CHARACTERS_MAX} letters, digits, '-', '_' and '.', such as recorder.",
            object=name[:50],
        )
    return name


def check_member_id(member: str) -> str:
    """Return the id of a member of a group, or say what is wrong with it."""
    most = group_limits.GROUP_MEMBER_ID_CHARACTERS_MAX
    if not 0 < len(member) <= most or not (member.isascii() and member.isprintable()):
        raise InvalidArgument(
            f"{printable(member[:_SHOWN])!r} is not the id of a member of a group: it has {len(member)} characters.",
            hint=f"Draw an id of 1 to {most} ASCII characters that can be printed, such as 16 hexadecimal digits.",
        )
    return member


def check_label(what: str, text: str) -> str:
    """Return a name that a client chose and that is kept, made fit to print; or say that it is too long then."""
    shown = printable(text)
    if len(shown) > limits.CLIENT_NAME_CHARACTERS_MAX:
        raise InvalidArgument(
            f"The {what} takes {len(shown)} characters to print; the limit is {limits.CLIENT_NAME_CHARACTERS_MAX}.",
            hint="Use letters, digits and punctuation.",
            object=shown[:_SHOWN],
        )
    return shown


def check_group_name(name: str) -> str:
    """Return the name, or say what is wrong with it. A group's positions are the cursors of its name."""
    check_cursor_name(name)
    if name == RECORDER:
        raise InvalidArgument(
            f"A group cannot be called {RECORDER}: recorders move the cursor of that name.",
            hint="Choose another name, such as billing.",
            object=name,
        )
    return name


def is_pattern(text: str) -> bool:
    """Whether the text names possibly many topics."""
    return "*" in text or ">" in text


def check_pattern(pattern: str) -> str:
    """Return the pattern (a plain name is one too), or say what is wrong with it."""
    if not isinstance(pattern, str):
        raise InvalidArgument(f"A topic pattern must be text, not {type(pattern).__name__}.")
    segments = pattern.split(".")
    plain = [s for s in segments[:-1] if s != "*"] + ([] if segments[-1] in ("*", ">") else segments[-1:])
    if len(pattern) > limits.TOPIC_NAME_CHARACTERS_MAX or any(not _SEGMENT.match(s) for s in plain):
        raise InvalidArgument(
            f"{pattern!r} is not a topic pattern.",
            hint="Use a topic name in which '*' stands for one segment and a final '>' for the rest,"
            " such as orders.* or orders.>.",
            object=pattern,
        )
    return pattern


def matches(pattern: str, name: str, *, internal: bool = False) -> bool:
    """Whether a pattern covers a topic name; internal topics only when asked for, or named from their start."""
    wanted, given = pattern.split("."), name.split(".")
    if not internal and given[0].startswith("_") and wanted[0] in ("*", ">"):
        return False
    for index, segment in enumerate(wanted):
        if segment == ">" and index == len(wanted) - 1:
            return len(given) > index
        if index >= len(given) or (segment not in ("*", given[index])):
            return False
    return len(wanted) == len(given)
