"""A table for Clone clients: the three ports of the Clustered Hashmap Protocol.

    ICANHAZ? ──► P       snapshots of this gateway's copy of the table
    KVPUB    ◄── P + 1   each change of the table, and HUGZ
    KVSET    ──► P + 2   changes, made by the head of the table's chain

Sequences are the table's own, so all gateways of a table agree on them, and a client may go from one to another at any
time. There is no primary and no backup: each gateway serves as long as its copy is current. A gateway that cannot ask
the brokers whether it is gives no HUGZ, and its clients turn to another one.

A gateway that starts may have clients already: those of an earlier one at this place, whose sockets connect again by
themselves. They have missed the changes made meanwhile, and would not know it if the next ones came. So it publishes
nothing until clients with a clock (model 6) have turned and asked for a snapshot, here or elsewhere. Then it publishes
the last changes again, with their sequences, for clients without a clock. Everybody else discards what he has.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from typing import TYPE_CHECKING

import zmq

from stentor.client.deadline import Deadline
from stentor.client.table_copy import Overtaken, TableCopy
from stentor.errors import InvalidArgument, StentorError
from stentor.gateways.zmq import bounds, chp
from stentor.gateways.zmq.collector import Collector
from stentor.gateways.zmq.publisher import ClonePublisher
from stentor.gateways.zmq.relay import CollectorRelay, GuardedPort
from stentor.gateways.zmq.snapshots import CurrentCopy, Snapshots
from stentor.gateways.zmq.sockets import bind
from stentor.transport.socket_folder import make_socket_folder

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from zmq.asyncio import Context, Socket

    from stentor.client.async_client import AsyncClient
    from stentor.client.table_copy import TableChange
    from stentor.gateways.zmq.guard import SharedRoom
    from stentor.gateways.zmq.statistics import GatewayStatistics

logger = logging.getLogger(__name__)


class RecentChanges:
    """The last changes of a table with their sequences, oldest first, and no more than are published again."""

    def __init__(self) -> None:
        self._changes: deque[tuple[TableChange, int]] = deque()
        self._bytes = 0

    def add(self, change: TableChange, sequence: int) -> None:
        """Note a change; the oldest ones are let go when there are too many."""
        self._changes.append((change, sequence))
        self._bytes += _size(change)
        while len(self._changes) > bounds.REPLAYED_MAX or self._bytes > bounds.REPLAYED_BYTES_MAX:
            self._take_first()

    def take(self, count: int) -> list[tuple[TableChange, int]]:
        """Return the oldest of them, which are let go; none when all were taken."""
        return [self._take_first() for _ in range(min(count, len(self._changes)))]

    def _take_first(self) -> tuple[TableChange, int]:
        first = self._changes.popleft()
        self._bytes -= _size(first[0])
        return first


def _size(change: TableChange) -> int:
    return 0 if change.new is None else len(change.new.value)


def _kvpub(change: TableChange, sequence: int) -> chp.Frames:
    headers, new = dict(change.headers), change.new
    uuid, properties = headers.get(chp.UUID_HEADER) or b"", headers.get(chp.PROPERTIES_HEADER) or b""
    if not properties and new is not None and new.ttl and not new.session:
        properties = b"ttl=%g\n" % new.ttl  # from now on: a time of day would be of one machine's clock
    value = b"" if new is None else new.value
    return chp.message(chp.wire_key(change.key), sequence, uuid, properties, value)


class CloneServer:
    """One table on three ports."""

    def __init__(
        self,
        client: AsyncClient,
        context: Context,
        table: str,
        counts: GatewayStatistics,
        *,
        three_frames: bool,
        short_sequences: bool,
        silent_s: float,
        room: SharedRoom,
    ) -> None:
        self._client = client
        self._context = context
        self._counts = counts
        self._shape = chp.shape(three_frames=three_frames, short_sequences=short_sequences)
        self._sequence_max = chp.SHORT_SEQUENCE_MAX if short_sequences else None
        self._silent_s = silent_s
        self._recent: RecentChanges | None = (
            RecentChanges()
        )  # None once they are published: then changes go out at once
        self._copy = TableCopy(client._core, table)  # noqa: SLF001 - a gateway is part of the client
        self._collector = Collector(self._copy, counts)
        self._publisher: ClonePublisher | None = None
        self._snapshots: Snapshots | None = None
        self._ports: list[GuardedPort] = []
        self._room = room
        self._collecting: list[Socket] = []
        self._sequence = 0  # of the last KVPUB
        self._directory = ""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, host: str, port: int) -> None:
        """Take a copy of the table, and open the ports."""
        await self._client.create_topic(self._copy.name, kind="table", partitions=1, exist_ok=True)
        self._copy.watchers.append(self._changed)  # from the first row on: the UUIDs of earlier changes are in the log
        await self._copy.open(self._client._core.deadline(None))  # noqa: SLF001 - as above
        if len(self._copy.applied) != 1:
            raise InvalidArgument(
                f"Table {self._copy.name} has {len(self._copy.applied)} partitions; for ZeroMQ it needs one.",
                hint="Only one partition gives all changes one sequence. Make another table with one partition.",
                object=self._copy.name,
            )
        self._check_sequence(self._copy.applied[0])
        self._directory = str(make_socket_folder("stentor-zmq-"))
        asking, publishing = f"{self._directory}/ask", f"{self._directory}/pub"
        self._publisher = ClonePublisher(self._context, f"ipc://{publishing}", self._counts, self._shape)
        self._snapshots = Snapshots(
            self._context, f"ipc://{asking}", CurrentCopy(self._copy), self._counts, self._shape
        )
        room, counts = self._room, self._counts
        await self._listen(GuardedPort(asking, counts, room), host, port)
        await self._listen(GuardedPort(publishing, counts, room, subscribes=True), host, port + 1)
        await self._start_collecting(host, port + 2)

    def _check_sequence(self, sequence: int) -> None:
        if self._sequence_max is not None and sequence > self._sequence_max:
            raise InvalidArgument(
                f"Table {self._copy.name} is at sequence {sequence}; four bytes hold {self._sequence_max}.",
                hint="Copy it into a new table, or use clients that read eight bytes, without --short-sequences.",
                object=self._copy.name,
            )

    async def _listen(self, relay: GuardedPort, host: str, port: int) -> None:
        self._ports.append(relay)
        await relay.start(host, port)

    async def _start_collecting(self, host: str, port: int) -> None:
        paths = f"{self._directory}/sub", f"{self._directory}/pull"
        for kind, path in zip((zmq.SUB, zmq.PULL), paths, strict=True):
            self._collecting.append(bind(self._context, kind, f"ipc://{path}"))
        self._collecting[0].subscribe(b"")
        await self._listen(CollectorRelay(*paths, self._counts, self._room), host, port)

    def work(self) -> list[Coroutine[None, None, None]]:
        """What runs until the gateway ends. The first that ends by itself ends it."""
        assert self._publisher is not None
        assert self._snapshots is not None
        return [
            self._wait_for_failure(),
            self._publisher.follow_subscriptions(),
            self._snapshots.answer(),
            *(self._collector.receive(socket) for socket in self._collecting),
            self._collector.make(),
            self._begin(),
            self._beat(),
        ]

    async def _wait_for_failure(self) -> None:
        """A copy that ended, because somebody deleted the table for example."""
        await self._failed

    def _changed(self, changes: list[TableChange] | Overtaken | StentorError) -> None:
        if isinstance(changes, StentorError):
            if not self._failed.done():
                self._failed.set_exception(changes)
            return
        if isinstance(changes, Overtaken):
            logger.warning("ZeroMQ clients of table %s see what is left: %s", self._copy.name, changes.reason)
            return
        for change in changes:
            self._collector.note(change)
            self._sequence = max(self._sequence, change.version + 1)
            try:
                self._check_sequence(self._sequence)
            except InvalidArgument as error:  # whoever went on would miss changes without a sign of it
                self._changed(error)
                return
            if self._recent is None:
                self._publish(change, self._sequence)
            else:
                self._recent.add(change, self._sequence)

    def _publish(self, change: TableChange, sequence: int) -> None:
        if self._publisher is not None:
            self._publisher.publish(_kvpub(change, sequence))
            self._counts.published += 1

    async def _begin(self) -> None:
        """Stay silent until clients of an earlier gateway have turned, then publish again what others may lack."""
        assert self._recent is not None
        await asyncio.sleep(self._silent_s)
        while taken := self._recent.take(bounds.SNAPSHOT_SLICE):
            for change, sequence in taken:
                self._publish(change, sequence)
            await asyncio.sleep(0)
        self._recent = None
        await asyncio.Event().wait()

    async def _beat(self) -> None:
        """HUGZ every second, as long as the copy is known to be current."""
        assert self._publisher is not None
        loop = asyncio.get_running_loop()
        current_at, due = loop.time(), loop.time()
        while True:
            due = max(due + bounds.HUGZ_INTERVAL_S, loop.time())
            try:
                await self._copy.catch_up(Deadline(max(0.0, due - loop.time())))
                current_at = loop.time()
            except StentorError as error:
                self._copy.check()
                logger.debug("the copy of table %s may be behind: %s", self._copy.name, error)
            await asyncio.sleep(due - loop.time())
            if self._recent is None and loop.time() - current_at <= bounds.CONTACT_S_MAX:
                self._publisher.give_hugz()

    async def close(self) -> None:
        """Close the ports and let go of the table."""
        for each in self._ports:
            await each.close()
        for part in (self._publisher, self._snapshots, *self._collecting):
            if part is not None:
                part.close()
        self._publisher = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
        await self._copy.close()
        if self._failed.done() and not self._failed.cancelled():
            self._failed.exception()  # it has been said, or we close
