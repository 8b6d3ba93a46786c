"""Where deliveries wait for the tasks that take them."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stentor.client.deadline import Deadline


class AsyncInbox:
    """A queue for the tasks of one loop, put to from that loop.

    Who waits is woken, looks again, and takes what is there without awaiting in between: a task that is
    cancelled has taken nothing, and lets the next one look instead.
    """

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def put(self, item: Any) -> None:
        self.items.append(item)
        self.wake()

    def wake(self) -> None:
        """Let one of those who wait look again."""
        while self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def wake_all(self) -> None:
        while self._waiting:
            self.wake()

    async def changed(self, deadline: Deadline) -> None:
        """Wait until it may be worth looking again; TimeoutError when the deadline comes first."""
        woken = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            async with deadline.bound():
                await woken
        except BaseException:
            if woken.done() and not woken.cancelled():
                self.wake()
            else:
                with suppress(ValueError):  # `wake` met it, and passed it over
                    self._waiting.remove(woken)
            raise
