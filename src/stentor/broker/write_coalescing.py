"""The end of a turn of the loop: what happened in it leaves together, in few writes.

A write to a socket wakes a process, which costs more than the Python around it. So nothing that goes to other
brokers is written where it arises: feeds gather batches first, then each connection writes what it has in one
piece, and only then the loop may wait for a disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class WriteCoalescing:
    """What is to be done at the end of this turn of the loop; the same work once, however often it is asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scheduled = False
        self._gather: dict[Callable[[], None], None] = {}
        self._send: dict[Callable[[], None], None] = {}
        self._wait: dict[Callable[[], None], None] = {}

    def gather(self, work: Callable[[], None]) -> None:
        """First: collect what is to be sent."""
        self._put(self._gather, work)

    def send(self, work: Callable[[], None]) -> None:
        """Then: write it."""
        self._put(self._send, work)

    def wait(self, work: Callable[[], None]) -> None:
        """Last: what may keep the loop for a while."""
        self._put(self._wait, work)

    def _put(self, queue: dict[Callable[[], None], None], work: Callable[[], None]) -> None:
        queue[work] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        try:
            self._run(self._gather)
            self._run(self._send)
            if self._wait:
                self._run(self._wait)
                self._run(self._send)  # what the disk now has is what others wait for
        finally:
            self._scheduled = False
            if self._gather or self._send or self._wait:
                self._schedule()

    @staticmethod
    def _run(queue: dict[Callable[[], None], None]) -> None:
        """Only what is there now: what it brings about is for the next turn."""
        for work in list(queue):
            del queue[work]
            work()
