"""The way out: connections to others, and how long to wait before the next attempt.

Everybody who opens a connection dials here, so addresses are read in one way and every attempt has a deadline. Pauses
are drawn by chance, so that those who lost the same broker do not all come back in the same moment.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

from stentor import limits
from stentor.transport.address import Address

if TYPE_CHECKING:
    from collections.abc import Callable

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def dial(
    loop: asyncio.AbstractEventLoop, address: str | Address, factory: Callable[[], P], deadline: float | None
) -> P:
    """Open a connection before the deadline, a time of the loop; None leaves it to the caller.

    InvalidArgument for what is no address, TimeoutError at the deadline, OSError as the system says.
    """
    where = Address.parse(address) if isinstance(address, str) else address
    async with asyncio.timeout_at(deadline):
        _, protocol = await loop.create_connection(factory, where.host, where.port)
    return protocol


def jittered_s(least_s: float, most_s: float) -> float:
    """A pause between the two, by chance."""
    return random.uniform(least_s, most_s)  # noqa: S311 - jitter, not a secret


class Backoff:
    """Pauses before the next attempt: each is drawn from a span, which begins at zero and doubles (full jitter)."""

    __slots__ = ("_first_s", "_span_s")

    def __init__(self, first_s: float = limits.RECONNECT_DELAY_S) -> None:
        self._first_s = first_s  # the first span; with 0 the first attempt is made at once
        self._span_s = first_s

    def reset(self) -> None:
        """An attempt was a success: begin with the first span again."""
        self._span_s = self._first_s

    def slow_down(self) -> None:
        """Nothing will come of it soon: go on with the longest span."""
        self._span_s = limits.RECONNECT_DELAY_S_MAX

    def next_s(self, least_span_s: float = 0.0) -> float:
        """The next pause; its span is this long at least."""
        span_s = max(self._span_s, least_span_s)
        self._span_s = min(max(2 * self._span_s, limits.RECONNECT_DELAY_S), limits.RECONNECT_DELAY_S_MAX)
        return jittered_s(0, span_s)
