"""The collector's port: changes that clients want, made in the table.

    relay (port P + 2) ──► SUB or PULL ──► queue ──► batches ──► the head of the table's chain

A client that has two servers may publish each change to both. So two gateways get the same change, known by its UUID,
and it must be made once. The UUID goes into the row as a header, and each gateway remembers the UUIDs of the rows that
it has seen. A change is made on the condition that its key is still as this gateway knows it. If the other gateway was
faster, the condition fails; this gateway catches up, finds the UUID, and lets the change go.

After a few tries the change is made without a condition: a key that others change all the time must not hold it up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from stentor import limits
from stentor.client.deadline import Deadline
from stentor.client.table_leases import NewLease
from stentor.core.table import ABSENT
from stentor.errors import ConditionFailed, StentorError
from stentor.gateways.zmq import bounds, chp
from stentor.transport.sparing import SparingLog

if TYPE_CHECKING:
    from zmq.asyncio import Socket

    from stentor.client.table_copy import TableChange, TableCopy
    from stentor.gateways.zmq.statistics import GatewayStatistics
    from stentor.wire.rows import Headers

logger = logging.getLogger(__name__)


class Collector:
    """Makes what KVSET asks for, once."""

    def __init__(self, copy: TableCopy, counts: GatewayStatistics) -> None:
        self._copy = copy
        self._counts = counts
        self._queue: asyncio.Queue[chp.WantedChange] = asyncio.Queue(bounds.CHANGES_PER_BATCH_MAX)
        self._held: chp.WantedChange | None = None  # taken from the queue, for the next batch
        self._uuids: OrderedDict[bytes, None] = OrderedDict()
        self._dropped = SparingLog(logger, time.monotonic)

    def note(self, change: TableChange) -> None:
        """A change is in the table."""
        for name, value in change.headers:
            if name == chp.UUID_HEADER and value:
                self._uuids[value] = None
                if len(self._uuids) > bounds.UUIDS_REMEMBERED:
                    self._uuids.popitem(last=False)

    async def receive(self, socket: Socket) -> None:
        """Take what clients send, for ever; who sends too fast waits."""
        while True:
            frames = await socket.recv_multipart()
            try:
                change = chp.parse_kvset(frames)
            except chp.BadFrames as wrong:
                self._counts.bad_frames += 1
                self._dropped.warning("a change of a client was dropped: %s", wrong)
                continue
            await self._queue.put(change)

    async def make(self) -> None:
        """Make changes as they come, for ever."""
        while True:
            await self._make(await self._gather())

    async def _gather(self) -> list[chp.WantedChange]:
        """What waits, and each key once: so many changes of one key are so many rows, in their order."""
        first, self._held = self._held or await self._queue.get(), None
        found, size = {first.key: first}, len(first.value or b"")
        while len(found) < bounds.CHANGES_PER_BATCH_MAX and not self._queue.empty():
            following = self._queue.get_nowait()
            size += len(following.value or b"")
            if following.key in found or size > bounds.CHANGE_BYTES_PER_BATCH_MAX:
                self._held = following
                break
            found[following.key] = following
        return list(found.values())

    async def _make(self, changes: list[chp.WantedChange]) -> None:
        deadline = Deadline(bounds.CHANGE_S)
        tries = 0
        while changes := self._unknown(changes):
            tries += 1
            try:
                await self._commit(changes, deadline, conditional=tries <= bounds.CONDITIONAL_TRIES_MAX)
            except ConditionFailed:
                await self._catch_up(deadline)
            except StentorError as error:
                self._copy.check()
                if not error.retriable and len(changes) > 1:
                    await self._make_each(changes)
                    return
                if not error.retriable or deadline.has_passed():
                    self._counts.changes_lost += len(changes)
                    logger.warning("%d changes were not made: %s", len(changes), error)
                    return
                await asyncio.sleep(limits.PRODUCER_RESEND_S)
            else:
                self._counts.changes += len(changes)
                return

    async def _make_each(self, changes: list[chp.WantedChange]) -> None:
        """One of them is refused: the others are not to blame."""
        for change in changes:
            await self._make([change])

    async def _catch_up(self, deadline: Deadline) -> None:
        """Whoever was faster is in the copy then; if the brokers do not answer, the next try says so."""
        try:
            await self._copy.catch_up(deadline)
        except StentorError:
            self._copy.check()

    def _unknown(self, changes: list[chp.WantedChange]) -> list[chp.WantedChange]:
        """Those that no other gateway has made."""
        left = [change for change in changes if change.uuid not in self._uuids]
        self._counts.duplicates += len(changes) - len(left)
        return left

    async def _commit(self, changes: list[chp.WantedChange], deadline: Deadline, *, conditional: bool) -> None:
        rows = {change.key: change.value for change in changes}
        named = {change.key: headers for change in changes if (headers := _headers(change))}
        conditions = {change.key: self._version(change.key) for change in changes if change.uuid and conditional}
        await self._copy.change(rows, conditions, deadline, more_headers=named)

    def _version(self, key: str) -> int:
        entry = self._copy.entries.get(key)
        return ABSENT if entry is None else entry.version


def _headers(change: chp.WantedChange) -> Headers:
    headers: Headers = []
    if change.uuid:
        headers.append((chp.UUID_HEADER, change.uuid))
    if change.properties:
        headers.append((chp.PROPERTIES_HEADER, change.properties))
    if change.ttl_s is not None and change.value is not None:
        headers += NewLease(change.ttl_s).headers()
    return headers
