"""A stream of a table's subtree: only rows whose keys are in it are sent.

Batches are filtered on their way to the reader. Those that are more than a little, or expand to more, are filtered in a
thread, and in pieces: others read history there, too. A delivery says how far it goes, so offsets that were left out
are no gap. Where nothing is left, nothing is sent at once. After a moment an empty delivery tells the reader how far it
is, unless rows that came meanwhile have told it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.broker.sessions.reader_stream import ReaderStream, Reading
from stentor.errors import StentorError
from stentor.wire.header import appended_at_us
from stentor.wire.subtree import Filtering, is_small

if TYPE_CHECKING:
    import asyncio

    from stentor.broker.partitions.partition import Partition
    from stentor.core.flow import Cursor
    from stentor.wire.subtree import SubtreePart

_AT_ONCE_BYTES: Final = 16 * 1024  # filtered in the loop: it takes less than handing it to a thread
_TOLD_AFTER_S: Final = 0.05  # how late a reader hears that changes elsewhere in the table were none of its own


class SubtreeStream(ReaderStream):
    """A reader's cursor on the rows of one subtree."""

    def __init__(self, session: Reading, stream_id: int, partition: Partition, cursor: Cursor, subtree: str) -> None:
        self._subtree = subtree.encode()
        self._telling: asyncio.TimerHandle | None = None
        self._told_offset = cursor.position  # how far the reader knows that it is
        self._removed = 0  # messages that a compaction took, of which the reader has not heard
        super().__init__(session, stream_id, partition, cursor)

    def _push(self, chunks: list[bytes], next_offset: int, size: int) -> None:
        at_us = appended_at_us(chunks[0])
        filtering = Filtering(chunks, self._subtree, self.cursor.position)
        if size <= _AT_ONCE_BYTES and is_small(chunks, _AT_ONCE_BYTES):
            try:
                found = filtering.go_on()
            except StentorError as error:
                self.fail(self.partition.read_failed(error))
                return
            assert found is not None, "little is filtered in one piece"
            self._push_kept(next_offset, at_us, found)
            return
        self.cursor.start_reading()
        self.session.history_bytes += size
        self._filter(filtering, next_offset, at_us, size)

    def _filter(self, filtering: Filtering, next_offset: int, at_us: int, size: int) -> None:
        self.partition.reads.submit(filtering.go_on, partial(self._filtered, filtering, next_offset, at_us, size))

    def _history_bytes(self) -> int:
        """Filtering is work, and a thread that works slows the loop down: never more than one push at a time."""
        return limits.DELIVERY_BYTES

    def _filtered(
        self, filtering: Filtering, next_offset: int, at_us: int, size: int, found: Any, error: StentorError | None
    ) -> None:
        if found is None and error is None and not self.closed:
            self._filter(filtering, next_offset, at_us, size)
            return
        self.cursor.reading = False
        self.session.history_bytes -= size
        if self.closed:
            pass
        elif error is not None:
            self.fail(self.partition.read_failed(error))
        else:
            self._push_kept(next_offset, at_us, found)
            self.pump()
        self.session.pump_blocked()

    def _push_kept(self, next_offset: int, at_us: int, found: SubtreePart) -> None:
        self._removed += found.removed
        if found.parts:
            self._told_offset = next_offset
            size = sum(map(len, found.parts))
            self._write(found.parts, next_offset, size, found.rows, at_us, self._take_removed())
            return
        self.cursor.pushed(next_offset, 0, at_us)
        self.cursor.grant(0)
        if self._telling is None:
            self._telling = self.session.loop.call_later(_TOLD_AFTER_S, self._tell)

    def _tell(self) -> None:
        """Nothing of what came was for this reader, which must know that it has everything all the same."""
        self._telling = None
        position = self.cursor.position
        if self.closed or position == self._told_offset:
            return
        if not self.session.connection.writable:
            self._telling = self.session.loop.call_later(_TOLD_AFTER_S, self._tell)
            return
        self._told_offset = position
        self._send([], position, 0, self._take_removed())

    def _take_removed(self) -> int:
        removed, self._removed = self._removed, 0
        return removed

    def close(self) -> None:
        super().close()
        if self._telling is not None:
            self._telling.cancel()
