"""One stream: a partition pushed to one reader, live from the tail cache or from history.

The cursor machine (`core.flow`) says what may be pushed; this performs it on a connection and a log.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from stentor import limits
from stentor.broker.partitions.lag import ON_TIME, ReaderLag
from stentor.core.flow import Cursor
from stentor.wire import frames, messages, sparse
from stentor.wire.frames import Kind
from stentor.wire.header import appended_at_us

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections import OrderedDict

    from stentor.broker.partitions.partition import Partition
    from stentor.errors import StentorError
    from stentor.ports import Clock
    from stentor.transport.connection import Connection

_PREFIX_BYTES = frames.DELIVERY.size
_REMOVED_MAX = 2**32 - 1  # what the field holds; no delivery covers more
_PUSHES_PER_TURN = 4  # then the loop looks at others


class Reading(Protocol):
    """The client's session, as its streams see it."""

    loop: AbstractEventLoop
    connection: Connection
    clock: Clock
    streams: dict[int, ReaderStream]
    blocked: OrderedDict[ReaderStream, None]
    history_bytes: int

    @property
    def has_room(self) -> bool: ...
    @property
    def reads_alone(self) -> bool: ...
    @property
    def client(self) -> tuple[str, str]: ...

    def pump_blocked(self) -> None: ...


class ReaderStream:
    """A reader's cursor on one partition."""

    def __init__(self, session: Reading, stream_id: int, partition: Partition, cursor: Cursor) -> None:
        self.session = session
        self.id = stream_id
        self.partition = partition
        self.cursor = cursor
        self.closed = False
        self._stopped = False  # closed, and its reader has not heard why yet
        self._scheduled = False
        self._told = -1  # the commit point the reader heard of last
        self._appended_at_us = session.clock.now_us()  # of what was pushed last; before that, of the wish
        partition.followers.add(self)

    def pump(self) -> None:
        """Push what can be pushed; then wait for commits, credit, the socket or the disk."""
        cursor, partition = self.cursor, self.partition
        for _ in range(_PUSHES_PER_TURN):
            if self.closed:
                return
            if cursor.finished():
                self._finish()
                return
            committed = partition.committed
            if not cursor.wants(committed):
                if cursor.position >= committed:
                    partition.followers.wait(self)
                return
            if not self.session.has_room:
                self.session.blocked[self] = None
                return
            found = partition.tail.take(cursor.position, committed, limits.DELIVERY_BYTES)
            if found is None:
                self._read_history(committed)
                return
            self._push(*found)
        self._pump_later()

    def _pump_later(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.session.loop.call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._scheduled = False
        self.pump()

    def _push(self, chunks: list[bytes], next_offset: int, size: int) -> None:
        cursor, removed = self.cursor, 0
        if cursor.position < self.partition.compaction.newest.offset:  # C23: who gets less than there was, hears of it
            removed = sparse.removed(chunks, cursor.position, cursor.end)
        self._write(chunks, next_offset, size, next_offset - cursor.position, appended_at_us(chunks[0]), removed)

    def _write(self, chunks: list[bytes], next_offset: int, size: int, messages: int, at_us: int, removed: int) -> None:
        self._send(chunks, next_offset, size, removed)
        self.partition.traffic.went_out(messages, size)
        self._appended_at_us = at_us
        self.cursor.pushed(next_offset, size, at_us)

    def _send(self, chunks: list[bytes], next_offset: int, size: int, removed: int) -> None:
        partition = self.partition
        committed = self._told = partition.committed
        prefix = frames.HEADER.pack(_PREFIX_BYTES + size, Kind.DELIVER, 0, 0, self.id) + frames.DELIVERY.pack(
            committed, partition.replica.epoch, min(removed, _REMOVED_MAX), next_offset
        )
        self.session.connection.write([prefix, *chunks])

    # --- history --------------------------------------------------------------------------------

    def _read_history(self, committed: int) -> None:
        self.cursor.start_reading()
        # Clients check every batch they get, so what this broker wrote itself need not be read twice.
        size = self._history_bytes()
        self.session.history_bytes += size
        read = partial(self.partition.log.read, self.cursor.position, committed, size, trusted=True)
        self.partition.reads.submit(read, partial(self._history_read, size))

    def _history_bytes(self) -> int:
        """Large reads for who waits for nothing else on this connection, as far as it has credit."""
        if not self.session.reads_alone:
            return limits.DELIVERY_BYTES
        return max(limits.DELIVERY_BYTES, min(limits.HISTORY_BYTES, self.cursor.credit))

    def _history_read(self, size: int, found: Any, error: StentorError | None) -> None:
        self.cursor.reading = False
        self.session.history_bytes -= size
        if self.closed:
            pass
        elif error is not None:
            self.fail(self.partition.read_failed(error))
        else:
            if found.next_offset > self.cursor.position:
                self._push([found.data], found.next_offset, len(found.data))
            self.pump()
        self.session.pump_blocked()

    # --- the reader's wishes --------------------------------------------------------------------

    def grant(self, size: int) -> None:
        self.cursor.grant(size)
        self.pump()

    def tell_state(self) -> None:
        """Let the reader know how far the partition is, also when it is not being pushed to (C25)."""
        committed = self.partition.committed
        if committed != self._told and not self.closed and self.session.connection.writable:
            self._told = committed
            state = frames.STREAM_STATE.pack(committed, self.partition.replica.epoch)
            self.session.connection.send(Kind.STREAM_STATE, self.id, state)

    def lag(self) -> ReaderLag:
        """How far its reader is behind; a bounded read is not behind, it reads what it asked for."""
        cursor = self.cursor
        messages_behind = 0 if cursor.end is not None else self.partition.committed - cursor.taken
        if messages_behind <= 0:
            return ON_TIME
        since_us = cursor.untaken_since_us
        # What is not even pushed is about as old as what was pushed last.
        age_us = self.session.clock.now_us() - (self._appended_at_us if since_us is None else since_us)
        return ReaderLag(messages_behind, max(0, age_us) / 1e6)

    @property
    def client(self) -> tuple[str, str]:
        """Name and address of the reader."""
        return self.session.client

    # --- the end --------------------------------------------------------------------------------

    def _finish(self) -> None:
        self.close()
        ended = messages.StreamEnded(next_offset=self.cursor.position)
        self.session.connection.send(Kind.STREAM_ENDED, self.id, messages.encode(ended))

    def stop(self) -> None:
        """Push nothing more; `fail` or `close` follows soon."""
        if not self.closed:
            self.closed = self._stopped = True

    def fail(self, error: StentorError) -> None:
        """End the stream and tell the reader why."""
        if self.closed and not self._stopped:
            return
        self.close()
        error.object = error.object or self.partition.name
        ended = messages.StreamEnded(next_offset=self.cursor.position, failure=messages.failure(error, "subscribe"))
        self.session.connection.send(Kind.STREAM_ENDED, self.id, messages.encode(ended))

    def close(self) -> None:
        self.closed, self._stopped = True, False
        self.partition.followers.discard(self)
        self.session.blocked.pop(self, None)
        self.session.streams.pop(self.id, None)
