"""The lanes of one producer: which of them a message goes to, how much may be under way, flush.

`ProducerCore` lives in the client's loop; `Producer` and `AsyncProducer` are its faces. Partitioning: a message
with a key goes to partition CRC-32(key) mod n (the zlib/IEEE CRC, so any language and Spark's `crc32` agree); one
without a key goes to the partition whose turn it is. A turn ends when its batch is sealed, or has some messages: the
next partition begins to gather then, and once all of them do, each gets one message at a time. So a burst is spread
although its first batches are still on their way, and under load all batches grow as large as one alone would.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from stentor import limits
from stentor.client.deadline import Deadline
from stentor.client.identity import sender_of
from stentor.client.lane import Lane
from stentor.client.outcomes import Outcomes
from stentor.client.room import Room
from stentor.errors import Closed, DeadlineExceeded, InvalidArgument, StentorError
from stentor.wire import bodies, queue_rows
from stentor.wire.arrow_message import COMPRESSIONS
from stentor.wire.frames import Ack

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.core import ClientCore
    from stentor.client.identity import ProducerIdentity
    from stentor.client.link import BrokerLink
    from stentor.client.message import Receipt
    from stentor.client.options import AckLevel, Compression, ProducerStatistics
    from stentor.client.selectors import Partitioner
    from stentor.client.sent import Sent
    from stentor.wire.messages import TopicRoute

    OnDelivery = Callable[["Receipt | None", "StentorError | None"], None]

logger = logging.getLogger(__name__)

_TURN_ROWS = 2 * limits.PRODUCER_TURN_MESSAGES  # rows are flat: value and key


def parse_ack(ack: object) -> int:
    """The level that a word names."""
    try:
        return Ack[ack.upper()]  # type: ignore[attr-defined]
    except (KeyError, AttributeError):
        raise InvalidArgument(
            f"ack={ack!r} is not an acknowledgement level.", hint="Use 'none', 'head', 'quorum' or 'all'."
        ) from None


# How many rows the heads of a kind of topic take in one batch, without headers and with some.
_ANY_ROWS: Final = limits.BATCH_MESSAGES_MAX, limits.BATCH_MESSAGES_MAX
_ROWS_MAX: Final = {
    "table": (limits.TABLE_BATCH_ROWS_MAX, limits.TABLE_BATCH_TERMS_ROWS_MAX),
    "queue": (queue_rows.BATCH_KEYS_MAX, queue_rows.BATCH_HEADERS_MAX),
}


def _check_batches(compression: object, batch_messages: object, batch_bytes: object) -> None:
    if (compression or "") not in COMPRESSIONS:
        raise InvalidArgument(f"compression={compression!r} is unknown.", hint="Use 'lz4', 'zstd' or None.")
    if compression:
        bodies.arrow("Compression")
    if not (
        _is_up_to(limits.BATCH_MESSAGES_MAX, batch_messages) and _is_up_to(limits.BATCH_BYTES_MAX // 2, batch_bytes)
    ):
        raise InvalidArgument(
            f"batch_messages={batch_messages!r} or batch_bytes={batch_bytes!r} is out of bounds.",
            hint=f"At most {limits.BATCH_MESSAGES_MAX} messages and {limits.BATCH_BYTES_MAX // 2} bytes.",
        )


def _is_up_to(most: int, number: object) -> bool:
    return isinstance(number, int) and 1 <= number <= most


class _Flush:
    """Somebody who waits for the batches that were sealed when they came, and for no later ones."""

    def __init__(self, waited_for: list[Sent], over: asyncio.Future[None]) -> None:
        self._waited_for = waited_for
        self.over = over

    def look(self) -> None:
        """Each batch is looked at until it is done, and then never again."""
        while self._waited_for and self._waited_for[-1].done:
            self._waited_for.pop()
        if not self._waited_for and not self.over.done():
            self.over.set_result(None)


class ProducerCore:
    """The lanes of one producer."""

    def __init__(
        self,
        core: ClientCore,
        route: TopicRoute,
        *,
        ack: AckLevel = "all",
        compression: Compression | None = None,
        batch_messages: int = limits.PRODUCER_BATCH_MESSAGES,
        batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
        buffer_bytes: int = limits.PRODUCER_BUFFER_BYTES,
        timeout: float | None = None,
        keep_failures: bool = True,
        awaited: bool = False,
        partitioner: Partitioner | None = None,
        identity: str | None = None,
        secret: str | None = None,
        generation: int = 0,
    ) -> None:
        _check_batches(compression, batch_messages, batch_bytes)
        self.core = core
        self.topic = route.name
        self.topic_id = route.id
        self.ack = parse_ack(ack)
        self.compression = compression or ""
        self.schema_id = 0  # the version of the topic's schema that its batches are of, if they hold rows
        # Of Arrow data, without headers and with some.
        self.batch_rows_max, self.batch_headed_max = _ROWS_MAX.get(route.settings.kind, _ANY_ROWS)
        self.batch_messages = min(batch_messages, self.batch_headed_max)
        self.batch_bytes = batch_bytes
        self.timeout = core.seconds(timeout)
        self.sender = sender_of(core.drawn_ids, route.name, identity, secret, generation)
        self.extras = False  # some row carried headers, a time or a callback; from then on all may
        self.lanes = [Lane(self, index) for index in range(len(route.partitions))]
        self.partitioner = partitioner
        self.turn = secrets.randbelow(len(self.lanes))  # so that short-lived producers spread as well
        self.closing = False  # nothing new is taken
        self.closed = False
        self.awaited = awaited  # somebody waits for each message, and gives it up (`client.awaited`)
        self.outcomes = Outcomes(keep_failures=keep_failures and not awaited)
        self.room = Room(self.lanes, buffer_bytes)
        self._flushes: list[_Flush] = []
        core.link_listeners.add(self._relinked)
        core.route_listeners.add(self._rerouted)
        core.closers.add(self.close)
        self._expiry = core.loop.call_later(limits.PRODUCER_EXPIRE_S, self._expire)

    # --- lanes: any thread ----------------------------------------------------------------------

    @property
    def single(self) -> Lane | None:
        """The only lane, if there is no other."""
        return self.lanes[0] if len(self.lanes) == 1 else None

    def lane_for(self, key: bytes | None, partition: int | None) -> Lane:
        if partition is not None:
            return self._named_lane(partition)
        if self.partitioner is not None:
            return self.lane_for(key, self.partitioner(key, len(self.lanes)))
        if key is not None:
            return self.lanes[crc32(key) % len(self.lanes)]
        return self.keyless_lane()

    def keyless_lane(self) -> Lane:
        """Whose turn it is. Threads may disagree for a moment, which costs nothing but an even spread."""
        lanes, turn = self.lanes, self.turn
        lane = lanes[turn % len(lanes)]
        if 0 < len(lane.rows) < _TURN_ROWS:
            return lane
        self.turn = turn = turn + 1
        return lanes[turn % len(lanes)]

    def _named_lane(self, partition: int) -> Lane:
        try:
            if 0 <= partition < len(self.lanes):
                return self.lanes[partition]
        except TypeError:  # no number at all
            pass
        raise InvalidArgument(f"Topic {self.topic} has partitions 0 to {len(self.lanes) - 1}; {partition!r} was named.")

    def add_waiter(self, wake: Callable[[], None]) -> None:
        """`wake` is called in the loop when there may be room again."""
        self.room.add_waiter(wake)
        self.core.loop.call_soon_threadsafe(self.progressed)  # in case there is room already

    def late_send(self) -> StentorError:
        """The error of a sender that found no room for more in time; what it sent is the producer's by then."""
        error = self.core.late("send", self.timeout)
        error.message += " The message was taken: flush() says whether it was published."
        return error

    def check_open(self) -> None:
        self.core.check_open()
        if self.closing:
            raise Closed(f"This producer for {self.topic} is closed.")

    # --- the loop -------------------------------------------------------------------------------

    def progressed(self) -> None:
        """Something was answered: wake senders and flushes that waited for it."""
        self.room.look()
        for flush in self._flushes:
            flush.look()

    def _relinked(self, link: BrokerLink) -> None:  # noqa: ARG002
        self._rerouted()

    def _rerouted(self) -> None:
        if not self.follow():
            for lane in self.lanes:
                lane.reroute()

    def follow(self) -> bool:
        """Go on in a topic that was deleted and made anew, with all that is unanswered; whether there is one.

        Not under a lasting identity, which is about one log, and not where keys would move to other partitions.
        """
        route = self.core.routes.get(self.topic)
        if route is None or route.id == self.topic_id or not self._fits(route):
            return False
        logger.warning("Topic %s was deleted and made anew; unacknowledged messages go to the new one.", self.topic)
        self.topic_id = route.id
        for lane in self.lanes:
            lane.renumber()
        for lane in self.lanes:
            lane.pump()
        return True

    def _fits(self, route: TopicRoute) -> bool:
        return not self.sender.lasting and len(route.partitions) == len(self.lanes)

    def gone(self, error: StentorError) -> StentorError:
        """What to do about a topic that is not there any more."""
        route = self.core.routes.get(self.topic)
        if route is None:
            error.hint = f"Topic {self.topic} was deleted; this producer goes on once it is made again."
        elif route.id != self.topic_id:
            error.hint = f"Topic {self.topic} was deleted and made anew, with other partitions; make a new producer."
            if self.sender.lasting:
                error.hint = f"Topic {self.topic} was deleted and made anew; make a new producer for it."
        return error

    @property
    def in_memory(self) -> bool:
        """Whether the topic is lost with the brokers that hold it."""
        route = self.core.routes.get(self.topic)
        return route is not None and route.settings.durability == "memory"

    def epoch_of(self, partition: int) -> int:
        """Of a partition's chain, as far as this client knows."""
        route = self.core.routes.get(self.topic)
        return 0 if route is None else route.partitions[partition].epoch

    def note_loss(self, lane: Lane) -> None:
        if self.in_memory:
            logger.warning(
                "%s/%d was lost with the brokers that held it in memory; what follows is not affected.",
                self.topic,
                lane.partition,
            )
            return
        logger.warning(
            "%s/%d lost messages that a head had acknowledged before it failed; those that follow are not affected."
            " Only ack='all' outlives a head.",
            self.topic,
            lane.partition,
        )

    def introduce(self, link: BrokerLink) -> None:
        """Before the first batch on a link: show that it may send under its id."""
        if self.sender.token is not None and self.ack:
            link.use_producer(self.sender.id, self.sender.token)

    def send_as(self, sender: ProducerIdentity) -> None:
        """Send under another id than its own, before anything is sent."""
        self.core.drawn_ids.give_back(self.topic, self.sender, self.sender.generation)
        self.sender = sender
        for lane in self.lanes:
            lane.generation = sender.generation

    def is_known(self) -> bool:
        """Whether a cluster has this very topic: then a broker that does not know it will soon."""
        route = self.core.routes.get(self.topic)
        return len(self.core.links.brokers) > 1 and route is not None and route.id == self.topic_id

    def resend_later(self, lane: Lane) -> None:
        self.core.loop.call_later(limits.PRODUCER_RESEND_S, lane.resend)

    def after_write(self, link: BrokerLink, sent: Any) -> None:
        """ack=none: done when handed to the socket, at the socket's pace."""
        link.when_writable(lambda: sent.published(-1, 0, 0))

    def _expire(self) -> None:
        now = time.monotonic()
        for lane in self.lanes:
            lane.note_gathering(now)
        self._give_up_due(now)
        if not self.closed:
            self._expiry = self.core.loop.call_later(limits.PRODUCER_EXPIRE_S, self._expire)

    def call_back(self, callback: OnDelivery, receipt: Receipt | None, error: StentorError | None) -> None:
        try:
            callback(receipt, error)
        except Exception:
            logger.exception("an on_delivery callback raised")

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is answered, whatever is sent meanwhile; raise for what failed."""
        limit = self.timeout if timeout is None else self.core.seconds(timeout)
        waited_for = []
        for lane in self.lanes:
            waited_for += lane.seal_all()
            lane.dispatch()
        flush = _Flush(waited_for, self.core.loop.create_future())
        flush.look()
        self._flushes.append(flush)
        try:
            await asyncio.wait_for(flush.over, limit)
        except TimeoutError as error:
            self._give_up_due(time.monotonic() + 2 * limits.PRODUCER_EXPIRE_S)
            self.outcomes.raise_failures(self.topic)
            raise self.core.late("flush", limit) from error
        finally:
            self._flushes.remove(flush)
        self.outcomes.raise_failures(self.topic)

    def _give_up_due(self, now: float, seconds: float | None = None) -> None:
        for lane in self.lanes:
            lane.expire(now, seconds)

    def withdraw(self, waiter: object, seconds: float) -> None:
        """Give up a message whose sender waits no longer, if it is not answered yet (`Lane.withdraw`)."""
        any(lane.withdraw(waiter, seconds) for lane in self.lanes)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, take nothing more, flush what was sent meanwhile, then let go.

        What is not answered within the time is given up; PublishError (.failed) for all that was not acknowledged.
        """
        if self.closed:
            return
        deadline = self.core.ending if timeout is None else None
        if deadline is None:
            deadline = Deadline(self.timeout if timeout is None else timeout)
        try:
            await self.flush(deadline.left())
            self.closing = True
            await self.flush(deadline.left())
        except DeadlineExceeded as error:
            self.discard(deadline.seconds)
            self.outcomes.raise_failures(self.topic)
            raise self.core.late("close", deadline.seconds) from error
        finally:
            self.discard()

    def discard(self, seconds: float | None = None) -> None:
        """Let go at once; whoever still waits for an answer is told that none will come."""
        was_closed, self.closing, self.closed = self.closed, True, True
        self._give_up_due(float("inf"), seconds)
        self._expiry.cancel()
        if not was_closed:
            self.core.drawn_ids.give_back(self.topic, self.sender, max(lane.generation for lane in self.lanes))
        self.core.link_listeners.discard(self._relinked)
        self.core.route_listeners.discard(self._rerouted)
        self.core.closers.discard(self.close)

    def statistics(self) -> ProducerStatistics:
        return {
            "topic": self.topic,
            "messages_acknowledged": self.outcomes.acknowledged,
            "messages_failed": self.outcomes.failed,
            "outstanding_bytes": self.room.outstanding_bytes(),
            "in_flight_batches": sum(len(lane.pending) for lane in self.lanes),
            "gathering_messages": sum(len(lane.rows) for lane in self.lanes) // 2,
        }
