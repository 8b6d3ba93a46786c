"""The deadline of a call: made once, when the call is made, and handed to every step of it."""

from __future__ import annotations

import asyncio
import time

from stentor.client.convert import as_seconds


class Deadline:
    """A moment, and the number of seconds that the caller allowed; without a number it never comes."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = 0.0 if seconds is None else as_seconds(seconds)
        self._at = None if seconds is None else time.monotonic() + self.seconds

    def left(self) -> float | None:
        """The seconds until then, never below zero; None if it never comes."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def left_of(self, seconds: float) -> float:
        """So many seconds, or what is left if that is less."""
        left = self.left()
        return seconds if left is None else min(seconds, left)

    def has_passed(self) -> bool:
        return self.left() == 0.0

    def bound(self) -> asyncio.Timeout:
        """For `async with`: TimeoutError when it comes before the block is through."""
        return asyncio.timeout(self.left())
