"""Long columns of Python objects, made a piece at a time.

To make or copy a million objects, C code takes a tenth of a second in which no other thread runs, not even that of a
broker's loop (C35). Between two pieces Python lets others run.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

PIECE: Final = 16_384
"""Rows that are handled at once: one to three milliseconds."""


def spans(count: int) -> Iterator[tuple[int, int]]:
    """Return where pieces begin and end."""
    return ((start, min(start + PIECE, count)) for start in range(0, count, PIECE))


def listed(values: Sequence[T]) -> list[T]:
    """Return a list of them."""
    if len(values) <= PIECE:
        return list(values)
    found: list[T] = []
    for start, end in spans(len(values)):
        found.extend(values[start:end])
    return found


def chosen(values: Sequence[T], wanted: Sequence[bool]) -> list[T]:
    """Return those that are wanted."""
    if len(values) <= PIECE:
        return list(compress(values, wanted))
    found: list[T] = []
    for start, end in spans(len(values)):
        found.extend(compress(values[start:end], wanted[start:end]))
    return found
