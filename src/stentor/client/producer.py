"""Producers: self-batching senders to one topic.

`ProducerCore` holds the lanes and lives in the client's loop; `Producer` and `AsyncProducer` are its
faces. Partitioning: a message with a key goes to partition CRC-32(key) mod n (the zlib/IEEE CRC, so
any language and Spark's `crc32` agree); one without a key goes to the partition whose turn it is,
changing with every batch.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from stentor import limits
from stentor.client.convert import as_bytes, as_headers, as_timestamp_us
from stentor.client.identity import by_partition, lasting_id
from stentor.client.lane import Extra, FailedBatch, Lane
from stentor.client.tables import as_batches, conform
from stentor.errors import Closed, InvalidArgument, PublishError, StentorError
from stentor.wire import arrow_body, batch
from stentor.wire.batch import check_message
from stentor.wire.frames import Ack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stentor.client.core import ClientCore
    from stentor.client.link import Link
    from stentor.client.message import Receipt
    from stentor.client.selectors import Partitioner
    from stentor.wire.messages import TopicRoute

    OnDelivery = Callable[["Receipt | None", "StentorError | None"], None]

logger = logging.getLogger(__name__)

_EXPIRE_S = 0.25
_RESEND_S = 0.1
_FAILURES_KEPT_MAX = 1_000
_UNSENT_MAX = 4  # sealed batches that may wait for an answer to wake the loop
_ON_WIRE_MIN = 2  # below this the broker might run dry


def parse_ack(ack: str) -> int:
    """The level that a word names."""
    try:
        return Ack[ack.upper()]
    except (KeyError, AttributeError):
        raise InvalidArgument(
            f"ack={ack!r} is not an acknowledgement level.", hint="Use 'none', 'head', 'quorum' or 'all'."
        ) from None


class ProducerCore:
    """The lanes of one producer."""

    def __init__(
        self,
        core: ClientCore,
        route: TopicRoute,
        *,
        ack: str = "all",
        compression: str | None = None,
        batch_messages: int = limits.PRODUCER_BATCH_MESSAGES,
        batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
        buffer_bytes: int = limits.PRODUCER_BUFFER_BYTES,
        timeout: float | None = None,
        keep_failures: bool = True,
        partitioner: Partitioner | None = None,
        identity: str | None = None,
        generation: int = 0,
    ) -> None:
        if (compression or "") not in arrow_body.COMPRESSIONS:
            raise InvalidArgument(f"compression={compression!r} is unknown.", hint="Use 'lz4', 'zstd' or None.")
        if not 1 <= batch_messages <= limits.BATCH_MESSAGES_MAX or not 1 <= batch_bytes <= limits.BATCH_BYTES_MAX // 2:
            raise InvalidArgument(
                f"batch_messages={batch_messages} or batch_bytes={batch_bytes} is out of bounds.",
                hint=f"At most {limits.BATCH_MESSAGES_MAX} messages and {limits.BATCH_BYTES_MAX // 2} bytes.",
            )
        self.core = core
        self.topic = route.name
        self.topic_id = route.id
        self.ack = parse_ack(ack)
        self.compression = compression or ""
        self.batch_messages = batch_messages
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self.timeout = core.timeout if timeout is None else timeout
        self.lasting = identity is not None
        self.producer_id = secrets.randbits(62) + 1 if identity is None else lasting_id(identity)
        self.generation = generation
        self.extras = False  # some row carried headers, a time or a callback; from then on all may
        self.lanes = [Lane(self, index) for index in range(len(route.partitions))]
        self.partitioner = partitioner
        self.single = self.lanes[0] if len(self.lanes) == 1 else None
        self.turn = 0
        self.closed = False
        self.failures: list[FailedBatch] = []
        self._failures_max = _FAILURES_KEPT_MAX if keep_failures else 0
        self.messages_acknowledged = 0
        self.messages_failed = 0
        self._waiters: list[Callable[[], None]] = []
        self._flushes: list[asyncio.Future[None]] = []
        core.link_listeners.add(self._relinked)
        core.route_listeners.add(self._rerouted)
        core.closers.add(self.close)
        self._expiry = core.loop.call_later(_EXPIRE_S, self._expire)

    # --- lanes: any thread ----------------------------------------------------------------------

    def lane_for(self, key: bytes | None, partition: int | None) -> Lane:
        if partition is not None:
            if not 0 <= partition < len(self.lanes):
                raise InvalidArgument(
                    f"Topic {self.topic} has partitions 0 to {len(self.lanes) - 1}; {partition} was named."
                )
            return self.lanes[partition]
        if self.partitioner is not None:
            return self.lane_for(key, self.partitioner(key, len(self.lanes)))
        if key is not None:
            return self.lanes[crc32(key) % len(self.lanes)]
        lane = self.lanes[self.turn % len(self.lanes)]
        if len(lane.rows) >= 2 * (self.batch_messages - 1):
            self.turn += 1  # keyless messages stay together until their batch is full
        return lane

    def outstanding_bytes(self) -> int:
        return sum(lane.sealed_bytes - lane.done_bytes for lane in self.lanes)

    def is_full(self) -> bool:
        """Whether senders must wait (back-pressure)."""
        return self.outstanding_bytes() >= self.buffer_bytes or any(
            len(lane.pending) >= limits.PRODUCER_IN_FLIGHT_BATCHES_MAX for lane in self.lanes
        )

    def add_waiter(self, wake: Callable[[], None]) -> None:
        """`wake` is called in the loop when there may be room again."""
        self._waiters.append(wake)
        self.core.loop.call_soon_threadsafe(self.progressed)  # in case there is room already

    def check_open(self) -> None:
        self.core.check_open()
        if self.closed:
            raise Closed(f"This producer for {self.topic} is closed.")

    # --- the loop -------------------------------------------------------------------------------

    def progressed(self) -> None:
        """Something was answered: wake senders and flushes that waited for it."""
        if self._waiters and not self._still_full():
            waiters, self._waiters = self._waiters, []
            for wake in waiters:
                wake()
        if self._flushes and self.is_idle():
            flushes, self._flushes = self._flushes, []
            for flush in flushes:
                if not flush.done():
                    flush.set_result(None)

    def _still_full(self) -> bool:
        """Senders sleep until half is free, so that they do not wake for every answer."""
        return self.outstanding_bytes() > self.buffer_bytes // 2 or any(
            len(lane.pending) > limits.PRODUCER_IN_FLIGHT_BATCHES_MAX // 2 for lane in self.lanes
        )

    def is_idle(self) -> bool:
        return not any(lane.pending or lane.rows for lane in self.lanes)

    def _relinked(self, link: Link) -> None:  # noqa: ARG002
        self._rerouted()

    def _rerouted(self) -> None:
        for lane in self.lanes:
            lane.reroute()

    def is_known(self) -> bool:
        """Whether a cluster has this very topic: then a broker that does not know it will soon."""
        route = self.core.routes.get(self.topic)
        return len(self.core.links.brokers) > 1 and route is not None and route.id == self.topic_id

    def resend_later(self, lane: Lane) -> None:
        self.core.loop.call_later(_RESEND_S, lane.resend)

    def after_write(self, link: Link, sent: Any) -> None:
        """ack=none: done when handed to the socket, at the socket's pace."""
        link.when_writable(lambda: sent.published(-1, 0, 0))

    def _expire(self) -> None:
        self._give_up_due(time.monotonic())
        if not self.closed:
            self._expiry = self.core.loop.call_later(_EXPIRE_S, self._expire)

    def record_failure(self, failure: FailedBatch) -> None:
        self.messages_failed += failure.count
        if len(self.failures) < self._failures_max:
            self.failures.append(failure)

    def call_back(self, callback: OnDelivery, receipt: Receipt | None, error: StentorError | None) -> None:
        try:
            callback(receipt, error)
        except Exception:
            logger.exception("an on_delivery callback raised")

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is answered; raise for what failed."""
        for lane in self.lanes:
            while lane.rows:
                lane.seal()
            lane.dispatch()
        if not self.is_idle():
            waiting = self.core.loop.create_future()
            self._flushes.append(waiting)
            limit = self.timeout if timeout is None else timeout
            try:
                await asyncio.wait_for(waiting, limit)
            except TimeoutError as error:
                self._give_up_due(time.monotonic() + 2 * _EXPIRE_S)
                self.raise_failures()
                raise self.core.late("flush", limit) from error
        self.raise_failures()

    def _give_up_due(self, now: float) -> None:
        for lane in self.lanes:
            lane.expire(now)

    def raise_failures(self) -> None:
        if self.failures:
            failed, self.failures = self.failures, []
            count = sum(batch.count for batch in failed)
            first = failed[0].error
            raise PublishError(
                f"{count} messages to {self.topic} were not acknowledged: {first.message}",
                hint=first.hint,
                operation="publish",
                object=self.topic,
                failed=failed,
            )

    async def close(self) -> None:
        """Flush, then let go."""
        if self.closed:
            return
        try:
            await self.flush()
        finally:
            self.discard()

    def discard(self) -> None:
        """Let go at once; whoever still waits for an answer is told that none will come."""
        self.closed = True
        self._give_up_due(float("inf"))
        self._expiry.cancel()
        self.core.link_listeners.discard(self._relinked)
        self.core.route_listeners.discard(self._rerouted)
        self.core.closers.discard(self.close)

    def statistics(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "messages_acknowledged": self.messages_acknowledged,
            "messages_failed": self.messages_failed,
            "outstanding_bytes": self.outstanding_bytes(),
            "in_flight_batches": sum(len(lane.pending) for lane in self.lanes),
            "gathering_messages": sum(len(lane.rows) for lane in self.lanes) // 2,
        }


class _Face:
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
        return self._core.topic

    @property
    def refusal(self) -> StentorError | None:
        """Why messages wait to be taken, if a broker says so."""
        return next((lane.refusal for lane in self._lanes if lane.refusal is not None), None)

    def statistics(self) -> dict[str, Any]:
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
        return self._core.is_full()

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
        """The general path of `send`; whether the sender must wait now."""
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
            yield core.is_full()

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
            for value, key in zip(values[start : start + step], keys[start : start + step], strict=True):
                rows[crc32(key or b"") % count] += value, key
            for lane, some in zip(lanes, rows, strict=True):
                if some:
                    yield self._extend(lane, some)

    def _extend(self, lane: Lane, rows: list[Any]) -> bool:
        """Add rows to a lane; whether the sender must wait now."""
        for value, key in zip(rows[0::2], rows[1::2], strict=True):
            check_message(key, value)
        lane.rows.extend(rows)
        lane.bytes += sum(map(len, rows[0::2]))
        if lane.bytes >= self._batch_bytes or len(lane.rows) >= self._rows_max:
            return self._seal(lane)
        if not lane.awake:
            self._wake(lane)
        return False

    def _offer_batch(self, data: Any, partition: int | None, on_delivery: OnDelivery | None = None) -> Any:
        """Yield after each sealed batch whether the sender must wait now."""
        core = self._core
        now_us = time.time_ns() // 1000
        for part in as_batches(data):
            rows_max = max(1, int(part.num_rows * core.batch_bytes * 2 / max(1, part.nbytes)))
            for start in range(0, part.num_rows, rows_max):
                conformed = conform(part.slice(start, rows_max), now_us)
                for index, rows in by_partition(conformed, core, partition):
                    lane = core.lanes[index]
                    core.check_open()
                    callbacks = [] if on_delivery is None else [(0, on_delivery, now_us)]
                    lane.add_encoded(batch.encode_arrow(rows, compression=core.compression), callbacks)
                    self._sealed(lane)
                    yield core.is_full()


def _call(work: Callable[[], None]) -> None:
    work()


class Producer(_Face):
    """A self-batching sender. Thread-safe. Use as a context manager: leaving it flushes."""

    def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        timestamp: Any = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a message over; returns at once unless too much is unacknowledged.

        `on_delivery(receipt, error)` is called in the client's thread; keep it short.
        """
        lane = self._single
        if lane is None and self._hashed and type(key) is bytes:
            lane = self._lanes[crc32(key) % len(self._lanes)]
        if (
            lane is None
            or type(value) is not bytes
            or (key is not None and type(key) is not bytes)
            or headers is not None
            or timestamp is not None
            or partition is not None
            or on_delivery is not None
        ):
            if self._offer(value, key, headers, timestamp, partition, on_delivery):
                self._wait_for_room()
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
        """Hand a pyarrow Table or RecordBatch over: column value, and key, timestamp, headers.

        `on_delivery` is called once for every batch it becomes, with the receipt of that batch's first message.
        """
        for must_wait in self._offer_batch(data, partition, on_delivery):
            if must_wait:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        if self._core.core.in_own_thread():
            return  # called from a callback: the loop cannot wait for itself
        room = threading.Event()
        self._core.add_waiter(room.set)
        if not room.wait(self._core.timeout):
            raise self._core.core.late("send", self._core.timeout)
        self._core.check_open()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; PublishError (.failed) for what was not."""
        self._core.check_open()
        self._core.core.check_caller()
        asyncio.run_coroutine_threadsafe(self._core.flush(timeout), self._core.core.loop).result()

    def close(self) -> None:
        """Flush and let go."""
        self._core.core.check_caller()
        if not self._core.closed and not self._core.core.closed:
            asyncio.run_coroutine_threadsafe(self._core.close(), self._core.core.loop).result()

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


class AsyncProducer(_Face):
    """The same for `async` code, in one loop."""

    def __init__(self, core: ProducerCore) -> None:
        super().__init__(core)
        self._post = _call  # we are in the loop already

    async def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        timestamp: Any = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a message over; waits only when too much is unacknowledged."""
        if self._offer(value, key, headers, timestamp, partition, on_delivery):
            await self._wait_for_room()

    async def send_many(
        self, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, *, partition: int | None = None
    ) -> None:
        """Hand many messages over in one call."""
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
        room = asyncio.Event()
        self._core.add_waiter(room.set)
        try:
            await asyncio.wait_for(room.wait(), self._core.timeout)
        except TimeoutError as error:
            raise self._core.core.late("send", self._core.timeout) from error

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged."""
        self._core.check_open()
        await self._core.flush(timeout)

    async def close(self) -> None:
        """Flush and let go."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
