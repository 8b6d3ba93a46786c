"""The snapshot port: a client asks for a subtree and gets each of its keys, then how far that goes.

A snapshot is of one moment, and has everything that was committed when the client asked: one that comes from another
gateway never gets less than it had there. Each is sent by a task of its own, so that a slow client holds up nobody
else. A full queue is waited for: a snapshot that lacks a key and ends as if it were whole would be wrong for ever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import zmq

from stentor.client.deadline import Deadline
from stentor.errors import StentorError
from stentor.gateways.zmq import bounds, chp
from stentor.gateways.zmq.sockets import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zmq.asyncio import Context

    from stentor.client.table_copy import TableCopy
    from stentor.gateways.zmq.statistics import GatewayStatistics

logger = logging.getLogger(__name__)


class CurrentCopy:
    """Waits until a copy is current. Clients that ask at the same time share one question to the brokers."""

    def __init__(self, copy: TableCopy) -> None:
        self.copy = copy
        self._asking = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None  # the question that has not begun
        self._questions: set[asyncio.Task[None]] = set()

    async def catch_up(self) -> None:
        """Until the copy has everything that is committed by now."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask())
            self._questions.add(self._next)
            self._next.add_done_callback(self._questions.discard)
        await asyncio.shield(self._next)

    async def _ask(self) -> None:
        """As often as it takes: a client that is never answered does not ask again for ever."""
        async with self._asking:
            self._next = None
            while True:
                try:
                    await self.copy.catch_up(Deadline(bounds.CONTACT_S_MAX))
                except StentorError:
                    self.copy.check()
                    await asyncio.sleep(bounds.SNAPSHOT_PAUSE_S)
                else:
                    return

    def close(self) -> None:
        for task in self._questions:
            task.cancel()


class Snapshots:
    """Answers ICANHAZ?."""

    def __init__(
        self,
        context: Context,
        endpoint: str,
        current: CurrentCopy,
        counts: GatewayStatistics,
        shape: Callable[[chp.Frames], chp.Frames],
    ) -> None:
        self._socket = bind(context, zmq.ROUTER, endpoint)
        self._current = current
        self._counts = counts
        self._shape = shape
        self._sending: dict[bytes, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(bounds.SNAPSHOTS_MAX)

    async def answer(self) -> None:
        """Take requests, for ever."""
        while True:
            client, *frames = await self._socket.recv_multipart()
            try:
                subtree = chp.parse_icanhaz(frames)
            except chp.BadFrames as wrong:
                self._counts.bad_frames += 1
                logger.info("a request for a snapshot was dropped: %s", wrong)
                continue
            self._begin(client, subtree)

    def _begin(self, client: bytes, subtree: bytes) -> None:
        """A client that asks again gets everything again: it may have lost what it had."""
        before = self._sending.pop(client, None)
        if before is not None:
            before.cancel()
            self._counts.snapshots_dropped += 1
        if len(self._sending) >= bounds.SNAPSHOT_REQUESTS_MAX:
            self._counts.snapshots_dropped += 1
            return
        task = asyncio.get_running_loop().create_task(self._send_all(client, subtree))
        self._sending[client] = task
        task.add_done_callback(lambda done: self._ended(client, done))

    def _ended(self, client: bytes, task: asyncio.Task[None]) -> None:
        if self._sending.get(client) is task:
            del self._sending[client]
        if not task.cancelled() and task.exception() is not None:
            self._counts.snapshots_dropped += 1
            logger.info("a snapshot was dropped: %s", task.exception())

    async def _send_all(self, client: bytes, subtree: bytes) -> None:
        await self._current.catch_up()
        async with self._turns:
            for count, frames in enumerate(self._messages(subtree)):
                await self._send(client, self._shape(frames))
                if count % bounds.SNAPSHOT_SLICE == bounds.SNAPSHOT_SLICE - 1:
                    await asyncio.sleep(0)
            self._counts.snapshots += 1

    def _messages(self, subtree: bytes) -> Iterator[chp.Frames]:
        copy = self._current.copy
        copy.check()
        with copy.lock:
            entries, sequence = list(copy.entries.values()), copy.applied[0]
        for entry in entries:
            key = chp.wire_key(entry.key)
            if key.startswith(subtree) and entry.value:  # to a client of this protocol, no value is no key
                yield chp.message(key, entry.version + 1, b"", b"", entry.value)
        yield chp.message(chp.KTHXBAI, sequence, b"", b"", subtree)

    async def _send(self, client: bytes, frames: chp.Frames) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + bounds.SNAPSHOT_STALLED_S
        while True:
            try:
                await self._socket.send_multipart([client, *frames], zmq.NOBLOCK)
            except zmq.Again:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(bounds.SNAPSHOT_PAUSE_S)
            else:
                return

    def close(self) -> None:
        for task in self._sending.values():
            task.cancel()
        self._current.close()
        self._socket.close()
