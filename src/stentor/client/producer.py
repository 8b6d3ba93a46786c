"""Producers as applications use them: self-batching senders to one topic, sync and async.

Both turn arguments into rows of a lane; the lanes themselves are `ProducerCore`'s.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Self, cast
from zlib import crc32

from stentor import limits
from stentor.client.arrow import tables
from stentor.client.convert import as_bytes, as_headers, as_timestamp_us
from stentor.client.help import explained
from stentor.client.identity import by_partition
from stentor.client.lane import Lane
from stentor.client.rows import Extra
from stentor.errors import InvalidArgument, LimitExceeded, StentorError
from stentor.wire import batch
from stentor.wire.batch import check_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stentor.client.options import HeadersLike, ProducerStatistics, TimestampLike
    from stentor.client.producer_core import OnDelivery, ProducerCore
    from stentor.wire.batch import Encoded

logger = logging.getLogger(__name__)

_UNSENT_MAX = 4  # sealed batches that may wait for an answer to wake the loop
_ON_WIRE_MIN = 2  # below this the broker might run dry


class _ProducerFace:
    """What the sync and the async producer share: turning arguments into rows."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._single = core.single
        self._lanes = core.lanes
        self._hashed = core.partitioner is None
        self._batch_bytes = core.batch_bytes
        self._batch_messages = core.batch_messages
        self._rows_max = 2 * core.batch_messages  # rows are flat: value and key
        self._small_bytes = core.batch_bytes // core.batch_messages  # a batch of these cannot be too large
        self._post: Callable[[Callable[[], None]], Any] = core.core.loop.call_soon_threadsafe

    @property
    def topic(self) -> str:
        """The topic that it sends to."""
        return self._core.topic

    def statistics(self) -> ProducerStatistics:
        """Counts since the producer was made."""
        return self._core.statistics()

    def _wake(self, lane: Lane) -> None:
        self._core.check_open()
        lane.awake = True
        lane.opened_us = time.time_ns() // 1000
        self._post(lane.pump)

    def _seal(self, lane: Lane) -> bool:
        """Seal a full batch in this thread; whether the sender must wait now."""
        self._core.check_open()
        lane.seal()
        self._sealed(lane)
        return self._core.room.is_full()

    def _sealed(self, lane: Lane) -> None:
        """Let the loop send what was sealed; not for every batch, since each wake-up costs a thread switch.

        While batches are on the wire, their answers wake the loop anyway.
        """
        lane.awake = True
        unsent = len(lane.unsent)
        if unsent >= _UNSENT_MAX or len(lane.pending) - unsent < _ON_WIRE_MIN:
            self._post(lane.pump)

    def _offer(
        self, value: Any, key: Any, headers: Any, timestamp: Any, partition: int | None, on_delivery: Any
    ) -> bool:
        """The general path of `send`, without waiting; whether the sender must wait now.

        For `publish` that is: whoever waits for the answer of a message waits long enough.
        """
        if type(value) is not bytes:
            value = as_bytes(value, "value")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        check_message(key, value)
        lane = self._single
        if lane is None or partition is not None:
            lane = self._core.lane_for(key, partition)
        if headers is None and timestamp is None and on_delivery is None:
            lane.rows.extend((value, key))
        else:
            self._core.extras = True
            named = None if headers is None else as_headers(headers)
            time_us = None if timestamp is None else as_timestamp_us(timestamp)
            lane.rows.extend((value, Extra(key, named, time_us, on_delivery)))
        if value is not None and len(value) > self._small_bytes:
            lane.bytes += len(value)
        if lane.bytes >= self._batch_bytes or len(lane.rows) >= self._rows_max:
            return self._seal(lane)
        if not lane.awake:
            self._wake(lane)
        return False

    def _offer_many(self, values: Sequence[bytes], keys: Sequence[bytes | None] | None, partition: int | None) -> Any:
        """Yield after each sealed batch whether the sender must wait now."""
        core = self._core
        if not hasattr(values, "__len__"):
            raise InvalidArgument(f"Values are a list of bytes, not {type(values).__name__}.")
        if keys is None:
            keys = [None] * len(values)
        elif len(keys) != len(values):
            raise InvalidArgument(f"{len(values)} values came with {len(keys)} keys.")
        lane = self._single if partition is None else core.lane_for(None, partition)
        if lane is None:
            yield from self._offer_keyed(values, keys)
            return
        step = self._batch_messages
        for start in range(0, len(values), step):
            part, part_keys = values, keys
            if len(values) > step:
                part, part_keys = values[start : start + step], keys[start : start + step]
            core.check_open()
            try:
                encoded = batch.encode_at(time.time_ns() // 1000, part_keys, part, compression=core.compression)
            except (StentorError, TypeError):
                # Too large together, or something odd among them: message by message finds out which.
                for value, key in zip(part, part_keys, strict=True):
                    yield self._offer(value, key, None, None, lane.partition, None)
                continue
            lane.add_encoded(encoded)
            self._sealed(lane)
            yield core.room.is_full()

    def _offer_keyed(self, values: Sequence[bytes], keys: Sequence[bytes | None]) -> Any:
        """Many messages for several partitions: sorted by key hash first, then lane by lane."""
        lanes = self._lanes
        if not self._hashed or not set(map(type, keys)) | set(map(type, values)) <= {bytes}:
            for value, key in zip(values, keys, strict=True):
                yield self._offer(value, key, None, None, None, None)
            return
        step, count = self._batch_messages, len(lanes)
        for start in range(0, len(values), step):
            rows: list[list[Any]] = [[] for _ in lanes]
            part, part_keys = values[start : start + step], keys[start : start + step]
            hashes = map(crc32, cast("Sequence[bytes]", part_keys))
            for row, hashed in zip(zip(part, part_keys, strict=True), hashes, strict=True):
                rows[hashed % count].extend(row)
            for lane, some in zip(lanes, rows, strict=True):
                if some:
                    yield self._extend(lane, some)

    def _extend(self, lane: Lane, rows: list[Any]) -> bool:
        """Add rows to a lane; whether the sender must wait now."""
        sizes = list(map(len, rows))
        # All at once: one by one would take longer than what else is done for a message.
        if max(sizes) > min(self._small_bytes, limits.MESSAGE_KEY_BYTES_MAX):
            for value, key in zip(rows[0::2], rows[1::2], strict=True):
                check_message(key, value)
        lane.rows.extend(rows)
        lane.bytes += sum(sizes[0::2])
        if lane.bytes >= self._batch_bytes or len(lane.rows) >= self._rows_max:
            return self._seal(lane)
        if not lane.awake:
            self._wake(lane)
        return False

    def _offer_batch(self, data: Any, partition: int | None, on_delivery: OnDelivery | None = None) -> Any:
        """Yield after each sealed batch whether the sender must wait now."""
        core = self._core
        now_us = time.time_ns() // 1000
        arrow = tables()
        parts = [(part.nbytes, arrow.conform(part, now_us)) for part in arrow.as_batches(data)]
        before = 0
        for _, part in parts:  # before anything is sent
            arrow.check_sizes(part, rows_before=before)
            before += part.num_rows
        for size, part in parts:
            most = core.batch_rows_max if part.column(3).null_count == part.num_rows else core.batch_headed_max
            rows_max = max(1, min(most, int(part.num_rows * core.batch_bytes * 2 / max(1, size))))
            for start in range(0, part.num_rows, rows_max):
                for index, rows in by_partition(part.slice(start, rows_max), core, partition):
                    lane = core.lanes[index]
                    for encoded in _encoded(rows, core.compression, core.schema_id):
                        core.check_open()
                        callbacks = [] if on_delivery is None else [(0, on_delivery, now_us)]
                        lane.add_encoded(encoded, callbacks)
                        self._sealed(lane)
                        yield core.room.is_full()


def _encoded(rows: Any, compression: str, schema_id: int) -> Iterator[Encoded]:
    """Rows as one batch, or as several where a few large messages among small ones make it too large.

    Rows that fit are never cut elsewhere than before: a lasting producer must send the same batches again.
    """
    try:
        if rows.num_rows == 1 or rows.nbytes <= limits.BATCH_BYTES_MAX:  # compressed or not: readers expand it
            yield batch.encode_arrow(rows, compression=compression, schema_id=schema_id)
            return
    except LimitExceeded:
        if rows.num_rows == 1:
            raise
    half = rows.num_rows // 2
    yield from _encoded(rows.slice(0, half), compression, schema_id)
    yield from _encoded(rows.slice(half), compression, schema_id)


def _call(work: Callable[[], None]) -> None:
    work()


@explained("Producer")
class Producer(_ProducerFace):
    """A self-batching sender. Thread-safe. Use as a context manager: leaving it flushes."""

    def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a message over; waits only while too much is unacknowledged."""
        lane = self._single
        if lane is None and self._hashed:
            if type(key) is bytes:
                lane = self._lanes[crc32(key) % len(self._lanes)]
            elif key is None and partition is None:
                lane = self._core.keyless_lane()
        if (
            lane is None
            or type(value) is not bytes
            or (key is not None and type(key) is not bytes)
            or headers is not None
            or timestamp is not None
            or partition is not None
            or on_delivery is not None
        ):
            chosen = partition if lane is None or partition is not None else lane.partition  # it has had its turn
            self._send_carefully(value, key, headers, timestamp, chosen, on_delivery)
            return
        # Everyone's ordinary message: every nanosecond here is paid a million times.
        rows = lane.rows
        size = len(value)
        if size > self._small_bytes:
            check_message(key, value)
            lane.bytes += size
        rows.extend((value, key))
        if len(rows) < self._rows_max and lane.bytes < self._batch_bytes:
            if not lane.awake:
                self._wake(lane)
        elif self._seal(lane):
            self._wait_for_room()

    def _send_carefully(self, *message: Any) -> None:
        if self._offer(*message):
            self._wait_for_room()

    def send_many(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int | None = None,
    ) -> None:
        """Hand many messages over in one call: the fastest way for lists of bytes."""
        for must_wait in self._offer_many(values, keys, partition):
            if must_wait:
                self._wait_for_room()

    def send_batch(self, data: Any, *, partition: int | None = None, on_delivery: OnDelivery | None = None) -> None:
        """Hand a pyarrow Table or RecordBatch over."""
        for must_wait in self._offer_batch(data, partition, on_delivery):
            if must_wait:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        if self._core.core.in_own_thread():
            return  # called from a callback: the loop cannot wait for itself
        room = threading.Event()
        self._core.add_waiter(room.set)
        if not room.wait(self._core.timeout):
            raise self._core.late_send()
        self._core.check_open()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; PublishError (.failed) for what was not."""
        self._core.check_open()
        self._core.core.check_caller()
        self._core.core.wait_for(self._core.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush and let go. What is not acknowledged within the time is given up: PublishError (.failed) says what it
        was. In a forked child it does nothing: the messages are the parent's.
        """
        client = self._core.core
        if client.forked:
            return
        client.check_caller()
        if not self._core.closed and not client.closed:
            client.wait_for(self._core.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except StentorError:
            logger.warning("messages were not acknowledged while another error ended the producer")


@explained("Producer", asynchronous=True)
class AsyncProducer(_ProducerFace):
    """The same for `async` code, in one loop."""

    def __init__(self, core: ProducerCore) -> None:
        super().__init__(core)
        self._post = _call  # we are in the loop already

    async def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a message over; waits only while too much is unacknowledged."""
        if self._offer(value, key, headers, timestamp, partition, on_delivery):
            await self._wait_for_room()

    async def send_many(
        self, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, *, partition: int | None = None
    ) -> None:
        """Hand many messages over in one call: the fastest way for lists of bytes."""
        for must_wait in self._offer_many(values, keys, partition):
            if must_wait:
                await self._wait_for_room()

    async def send_batch(
        self, data: Any, *, partition: int | None = None, on_delivery: OnDelivery | None = None
    ) -> None:
        """Hand a pyarrow Table or RecordBatch over."""
        for must_wait in self._offer_batch(data, partition, on_delivery):
            if must_wait:
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._core.core.check_loop()
        room = asyncio.Event()
        self._core.add_waiter(room.set)
        try:
            await asyncio.wait_for(room.wait(), self._core.timeout)
        except TimeoutError as error:
            raise self._core.late_send() from error

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; PublishError (.failed) for what was not."""
        self._core.core.check_loop()
        self._core.check_open()
        await self._core.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush and let go. What is not acknowledged within the time is given up: PublishError (.failed) says what it
        was. In a forked child it does nothing: the messages are the parent's.
        """
        if self._core.core.forked:
            return
        self._core.core.check_loop()
        await self._core.close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.close()
            return
        try:
            await self.close()
        except StentorError:
            logger.warning("messages were not acknowledged while another error ended the producer")
