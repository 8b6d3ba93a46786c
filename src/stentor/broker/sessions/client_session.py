"""A client's connection: publishes, streams and requests."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from stentor import limits
from stentor.broker.cluster import schemas
from stentor.broker.long_requests import LongRequests, encoding
from stentor.broker.loop_watch import LoopWatch, Measured
from stentor.broker.partitions.followers import FEW
from stentor.broker.partitions.interfaces import Request
from stentor.broker.partitions.lag import lag_of
from stentor.broker.services.desk import ServiceDesk
from stentor.broker.sessions.batch_session import BatchSession
from stentor.broker.sessions.inline_sync import InlineSync
from stentor.broker.sessions.reader_stream import ReaderStream
from stentor.broker.sessions.subtree_stream import SubtreeStream
from stentor.broker.slices import Slices
from stentor.core import group_limits, queue_limits
from stentor.core.dedupe import LASTING, lasting_id
from stentor.core.flow import Cursor
from stentor.errors import (
    Closed,
    InternalError,
    InvalidArgument,
    LimitExceeded,
    ProducerNotProven,
    ProtocolError,
    StentorError,
)
from stentor.security.permissions import Action, Permissions, Principal
from stentor.transport.turns import REQUEST_S, Turns
from stentor.wire import batch, frames, messages, queue_rows, table_rows
from stentor.wire.frames import Ack, Kind
from stentor.wire.group_messages import CommitTransaction
from stentor.wire.header import HEADER_BYTES, check_header
from stentor.wire.queue_messages import QueueDescribed

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.partitions.partition import Partition
    from stentor.broker.partitions.serving import Serving
    from stentor.broker.sessions.session import Caller, Reception
    from stentor.core.replica_events import Answer
    from stentor.ports import Clock
    from stentor.transport.connection import Connection
    from stentor.wire.header import BatchHeader

logger = logging.getLogger(__name__)

_PUBLISH: Final = int(Kind.PUBLISH)
_PUBLISHED: Final = int(Kind.PUBLISHED)
_ASK: Final = int(Kind.ASK)
_TRANSACTION: Final = int(Kind.TRANSACTION)
_REPLY: Final = int(Kind.REPLY)
_TOPICS_REMEMBERED_MAX: Final = 100  # shown to people, who look for a few


_LARGE: Final = (
    messages.BrokerList,
    messages.ClientList,
    messages.CursorList,
    messages.GroupDescribed,
    messages.GroupList,
    QueueDescribed,
    messages.Statistics,
    messages.TopicDescribed,
    messages.TopicList,
)
"""Answers that are encoded in slices. A route table is not: no change of routes may be sent before it, and most of it
is encoded when it is made."""


class Desk(Protocol):
    """Who answers requests."""

    async def serve(self, client: ClientSession, request: Any) -> Any: ...


class ClientServices(msgspec.Struct, frozen=True):
    """What a client's session needs of its broker."""

    serving: Serving
    desk: Desk
    permissions: Permissions
    inline_sync: InlineSync
    has_few_sessions: Callable[[], bool]  # then a reader of history may have more at once
    services: ServiceDesk
    turns: Turns
    watch: LoopWatch
    slices: Slices
    long_requests: LongRequests


class ClientSession(BatchSession):
    """The owner of one client's connection."""

    def __init__(
        self,
        connection: Connection,
        caller: Caller,
        reception: Reception,
        clock: Clock,
        services: ClientServices,
    ) -> None:
        super().__init__(connection, caller, reception, clock, services.inline_sync)
        self.clock = clock
        self.streams: dict[int, ReaderStream] = {}
        self.blocked: OrderedDict[ReaderStream, None] = OrderedDict()  # streams that wait for room, in turn
        self.history_bytes = 0  # being read for this client
        self.watches_routes = False
        self.on_left: list[Callable[[], None]] = []  # called when the client closes its connection
        self._serving = services.serving
        self._desk = services.desk
        self._permissions = services.permissions
        self._has_few_sessions = services.has_few_sessions
        self._services = services.services
        self._turns = services.turns
        self._watch = services.watch
        self._slices = services.slices
        self._long_requests = services.long_requests
        self._telling = False  # all its streams, how far their partitions are
        self._publishing: dict[str, None] = {}  # topics that this client has published to
        self._producers: set[int] = set()  # lasting producer ids that this client may send under
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls: set[asyncio.Task[None]] = set()  # requests that wait for news
        self._transactions: set[asyncio.Task[None]] = set()
        self.searching = asyncio.Lock()  # a message by its time: one at a time
        self._responding = asyncio.Lock()  # one answer to a request is encoded at a time
        self._has_room = asyncio.Event()
        self._has_room.set()

    # --- frames ---------------------------------------------------------------------------------

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        if self._discarding:
            return
        self._reading = True
        if kind == _PUBLISH:
            self._publish(flags, correlation, body)
            return
        if kind == _ASK:
            self._services.asked(self, flags, correlation, body)
            return
        if kind == _REPLY:
            self._services.replied(self, flags, correlation, body)
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ProtocolError(f"A client may not send {Kind(kind).name} here.")
        most = group_limits.TRANSACTION_REQUEST_BYTES_MAX if kind == _TRANSACTION else limits.CONTROL_BODY_BYTES_MAX
        if len(body) > most:
            raise LimitExceeded(f"A control message has {len(body)} bytes; the limit is {most}.")
        handler(self, correlation, body)

    def writable_changed(self, writable: bool) -> None:
        super().writable_changed(writable)
        self._services.writable_changed(self, writable)
        if writable:
            self._has_room.set()
            self.pump_blocked()
        else:
            self._has_room.clear()

    def disconnected(self, error: Exception | None) -> None:
        self._end_streams()
        for task in (*self._tasks, *self._polls, *self._transactions):
            task.cancel()
        self._services.gone(self)
        if self.connection.left:
            for tell in self.on_left:
                tell()
        super().disconnected(error)

    # --- publishing -----------------------------------------------------------------------------

    def _publish(self, flags: int, correlation: int, body: memoryview) -> None:
        try:
            header = check_header(body)
            if header.producer_id >= LASTING and header.producer_id not in self._producers:
                raise _not_proven(header.producer_id)
            partition = self._serving.partition(header.topic_id, header.partition)
            self._permissions.check(self.caller.principal, Action.PUBLISH, partition.topic)
            batch.validate(body, header)
            if (header.schema_id or partition.schemas) and not 0 < header.schema_id <= partition.schemas:
                raise schemas.refusal(partition.topic, partition.schemas, header.schema_id)
            _check_rows(self._serving, partition, header, body[HEADER_BYTES:], self.caller.holder)
            partition.check_memory()
            if header.conditional and flags & 3 != Ack.ALL:
                raise InvalidArgument(
                    "A conditional change is decided by what is committed: it needs ack=all.", object=partition.topic
                )
        except StentorError as error:
            self.fail(correlation, error, "publish")
            return
        if partition.topic not in self._publishing and len(self._publishing) < _TOPICS_REMEMBERED_MAX:
            self._publishing[partition.topic] = None
        self._syncs.note(len(body))
        partition.publish(body, header, Request(self, correlation), flags & 3)

    def published(self, correlation: int, answer: Answer) -> None:
        """Answer a publish; the caller flushes once it has no more answers."""
        packed = frames.PUBLISHED.pack(answer.base_offset, answer.epoch, answer.appended_at_us)
        self._answers.append(frames.frame(_PUBLISHED, correlation, packed, flags=int(answer.refused)))

    def flush(self) -> None:
        """Send what is answered; during a read its end does that."""
        if not self._reading:
            self._flush_answers()

    def fail(self, correlation: int, error: StentorError, operation: str, what: str = "") -> None:
        """Answer a request with an error."""
        if what and not error.object:
            error.object = what
        failure = messages.encode(messages.failure(error, operation))
        self._answer_soon(frames.frame(Kind.ERROR, correlation, failure))

    # --- streams --------------------------------------------------------------------------------

    def _open_stream(self, stream_id: int, body: memoryview) -> None:
        try:
            self._start_stream(stream_id, messages.decode(body, messages.OpenStream))
        except StentorError as error:
            ended = messages.StreamEnded(next_offset=0, failure=messages.failure(error, "subscribe"))
            self._answers.append(frames.frame(Kind.STREAM_ENDED, stream_id, messages.encode(ended)))

    def _start_stream(self, stream_id: int, wish: messages.OpenStream) -> None:
        if stream_id in self.streams:
            raise ProtocolError(f"Stream {stream_id} is open already.")
        if len(self.streams) >= limits.STREAMS_PER_CONNECTION_MAX:
            raise LimitExceeded(
                f"This connection has {len(self.streams)} streams; the limit is {limits.STREAMS_PER_CONNECTION_MAX}.",
                hint="Close subscriptions, or open another client.",
            )
        partition = self._serving.check_stream(wish)
        self._permissions.check(self.caller.principal, Action.READ, partition.topic)
        self._permissions.check_records(partition.topic)
        cursor = Cursor(wish.start, wish.end, wish.credit, copies=wish.copies)
        stream = self.streams[stream_id] = self._stream(stream_id, partition, cursor, wish.subtree)
        stream.pump()

    def _stream(self, stream_id: int, partition: Partition, cursor: Cursor, subtree: str) -> ReaderStream:
        if not subtree:
            return ReaderStream(self, stream_id, partition, cursor)
        if partition.settings.kind != "table":
            raise InvalidArgument(
                f"Topic {partition.topic} is no table, and has no subtrees.",
                hint="Read it without a subtree.",
                object=partition.topic,
            )
        return SubtreeStream(self, stream_id, partition, cursor, subtree)

    def _credit(self, stream_id: int, body: memoryview) -> None:
        if len(body) != frames.CREDIT.size:
            raise ProtocolError("A CREDIT frame has the wrong size.")
        stream = self.streams.get(stream_id)
        if stream is not None:  # a stream that ended meanwhile is no fault of the client
            stream.grant(frames.CREDIT.unpack(body)[0])

    def _close_stream(self, stream_id: int, _: memoryview) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.close()

    @property
    def has_room(self) -> bool:
        """Whether more may be pushed: neither the socket nor what is being read for it holds too much."""
        return self.connection.writable and self.history_bytes < limits.HISTORY_BYTES

    @property
    def reads_alone(self) -> bool:
        """Whether nobody here waits for news beside what a reader catches up on, and few others are served."""
        streams = self.streams
        if len(streams) > limits.HISTORY_STREAMS_MAX or not self._has_few_sessions():
            return False
        return len(streams) <= 1 or all(stream.cursor.end is not None for stream in streams.values())

    def pump_blocked(self) -> None:
        """Streams that waited go on, as many as there is room for."""
        while self.blocked and self.has_room:
            self.blocked.popitem(last=False)[0].pump()

    def swept(self) -> None:
        """Tell the reader how far its partitions are; while it still hears of the last time, that will do."""
        if len(self.streams) <= FEW:
            for stream in self.streams.values():
                stream.tell_state()
        elif not self._telling:
            self._telling = True
            streams = list(self.streams.values())
            # One call at a time: thousands of them at once would make the garbage collector walk over all there is.
            telling = (stream.tell_state for stream in streams)
            self._slices.begin("telling readers how far partitions are", telling, self._told)

    def _told(self) -> None:
        self._telling = False

    def _end_streams(self) -> None:
        """Nothing is pushed from now on; that partitions forget the streams may take a moment."""
        streams = list(self.streams.values())
        for stream in streams:
            stream.stop()
        self._slices.begin("ending streams", (stream.close for stream in streams))

    # --- requests -------------------------------------------------------------------------------

    def _request(self, correlation: int, body: memoryview) -> None:
        try:
            request = messages.decode(body, messages.Request)
            if isinstance(request, messages.UseProducer):  # at once: publishes may follow in the same read
                self._answers.append(frames.frame(Kind.RESPONSE, correlation, messages.encode(self._use(request))))
                return
            if isinstance(request, messages.POLLS):
                self._begin(self._polls, queue_limits.POLLS_UNDER_WAY_MAX, correlation, request)
            else:
                self._begin(self._tasks, limits.REQUESTS_UNDER_WAY_MAX, correlation, request)
        except StentorError as error:
            self.fail(correlation, error, "request")

    def _begin(self, tasks: set[asyncio.Task[None]], most: int, correlation: int, request: Any) -> None:
        if len(tasks) >= most:
            raise LimitExceeded(f"{most} requests are under way.", hint="Wait for their answers.")
        self._turns.charge(REQUEST_S)
        serving = self._serve(tasks, correlation, request)
        task = self.loop.create_task(Measured(self._watch, serving, partial(self._asked, request)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)  # also if it is cancelled before it begins

    def _asked(self, request: Any) -> str:
        """Return who asked what, for people."""
        return f"client {self.caller.name} at {self.connection.address} ({type(request).__name__})"

    def _use(self, request: messages.UseProducer) -> messages.Done:
        producer_id = lasting_id(request.token)
        if len(self._producers) >= limits.PRODUCERS_PER_CONNECTION_MAX and producer_id not in self._producers:
            raise LimitExceeded(
                f"This connection sends for {len(self._producers)} lasting producers; that is the limit.",
                hint="Open another client for more of them.",
            )
        self._producers.add(producer_id)
        return messages.Done()

    async def _serve(self, tasks: set[asyncio.Task[None]], correlation: int, request: Any) -> None:
        operation = type(request).__name__
        try:
            response = await self._desk.serve(self, request)
        except StentorError as error:
            self.fail(correlation, error, operation)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a bug of ours must not look like silence
            logger.exception("request %s failed", operation)
            self.fail(correlation, InternalError(f"{type(error).__name__}: {error}"), operation)
        else:
            await self._respond(correlation, response)
        finally:  # not when the loop comes to it: the client may have the answer before, and ask for more
            tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _respond(self, correlation: int, response: Any) -> None:
        """Encode an answer when the client takes it: what it asked for and does not read costs no copy."""
        async with self._responding:
            await self._has_room.wait()
            if isinstance(response, _LARGE):
                body = await self._long_requests.walk(self._responding, encoding(response))  # in a line of its own
            else:
                body = messages.encode(response)
            self._answer_soon(frames.frame(Kind.RESPONSE, correlation, body))
            if len(self._answers[-1]) > limits.WRITE_BUFFER_BYTES_MAX:
                self._flush_answers()  # so that the next one waits for it

    @property
    def client(self) -> tuple[str, str]:
        """Name and address, for people."""
        return self.caller.name, self.connection.address

    # --- requests to responders -----------------------------------------------------------------

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.caller.principal

    @property
    def holder(self) -> bytes:
        """The hash of the secret that it showed (C36)."""
        return self.caller.holder

    @property
    def takes_more(self) -> bool:
        """Whether its socket is not full."""
        return self.connection.writable

    def pass_on(self, frame: bytes) -> None:
        """A request or an answer for this client."""
        if self.connection.unsent_bytes > limits.UNSENT_BYTES_MAX:
            self.drop_deaf("it does not read its requests and answers")
            return
        self.connection.write((frame,))  # the event loop gathers what one turn writes

    # --- routes ---------------------------------------------------------------------------------

    @property
    def listener(self) -> str:
        return self.caller.listener

    def routes_changed(self, change: bytes) -> None:
        """Tell the client, if it wants to hear of it."""
        if self.watches_routes and not self.ended:
            if self.connection.unsent_bytes > limits.UNSENT_BYTES_MAX:
                self.drop_deaf("it does not read what changes")  # it asks for everything when it is back
                return
            self._answer_soon(frames.frame(Kind.ROUTES, 0, change))

    # --- the end, and what others see -----------------------------------------------------------

    def going_away(self) -> None:
        """The broker stops: streams end with a reason that tells clients to come back."""
        for stream in list(self.streams.values()):  # at once: what comes after GOODBYE is not sent
            stream.fail(Closed("The broker is stopping.", hint="Clients reconnect by themselves when it is back."))

    @property
    def stream_count(self) -> int:
        return len(self.streams)

    def info(self) -> messages.ClientInfo:
        lag = lag_of(self.streams.values())
        return msgspec.structs.replace(
            super().info(),
            publishing=list(self._publishing),
            subscriptions=sorted({stream.partition.topic for stream in self.streams.values()}),
            lag=lag.messages,
            lag_s=round(lag.seconds, 3),
        )


def _check_rows(serving: Serving, partition: Partition, header: BatchHeader, rows: memoryview, shown: bytes) -> None:
    """Whether messages are what the kind of their topic asks for."""
    kind = partition.settings.kind
    if kind == "table":
        table_rows.check(header, rows, partition.topic, serving.holder(shown))
        if header.timed:
            serving.check_timed(partition.topic)
    elif kind == "queue":
        queue_rows.check(header, rows, partition.topic, ordered=partition.settings.ordered_by == "key")
    elif header.conditional or header.timed:
        raise _no_table(partition.topic)
    elif partition.settings.compacted:
        table_rows.check_keys(header, rows, partition.topic)


def _no_table(topic: str) -> InvalidArgument:
    return InvalidArgument(
        f"Topic {topic} is no table; its messages can neither come with conditions nor expire.",
        hint="Make tables with client.create_topic(name, kind='table').",
        object=topic,
    )


def _not_proven(producer_id: int) -> ProducerNotProven:
    return ProducerNotProven(
        f"This connection has not shown the token of producer {producer_id:x}, and may not send under its id.",
        hint="Make the producer with the identity and the secret that it had before.",
    )


def _transaction(session: ClientSession, correlation: int, body: memoryview) -> None:
    try:
        request = messages.decode(body, CommitTransaction)
        most = group_limits.TRANSACTIONS_UNDER_WAY_MAX
        session._begin(session._transactions, most, correlation, request)  # noqa: SLF001 - a method, but for its place
    except StentorError as error:
        session.fail(correlation, error, "transaction")


def _ask_credit(session: ClientSession, correlation: int, body: memoryview) -> None:
    session._services.credited(session, correlation, body)  # noqa: SLF001 - the same


def _ask_cancel(session: ClientSession, correlation: int, _: memoryview) -> None:
    session._services.cancelled(session, correlation)  # noqa: SLF001


_HANDLERS: Final[dict[int, Callable[[ClientSession, int, memoryview], None]]] = {
    Kind.PING: ClientSession._ping,  # noqa: SLF001 - the table is part of the class
    Kind.PONG: ClientSession._pong,  # noqa: SLF001
    Kind.CREDIT: ClientSession._credit,  # noqa: SLF001
    Kind.REQUEST: ClientSession._request,  # noqa: SLF001
    Kind.TRANSACTION: _transaction,
    Kind.OPEN_STREAM: ClientSession._open_stream,  # noqa: SLF001
    Kind.CLOSE_STREAM: ClientSession._close_stream,  # noqa: SLF001
    Kind.ASK_CREDIT: _ask_credit,
    Kind.ASK_CANCEL: _ask_cancel,
    Kind.GOODBYE: ClientSession._goodbye,  # noqa: SLF001
}
