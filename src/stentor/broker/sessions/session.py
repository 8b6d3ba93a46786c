"""One client's connection, on the broker's side.

A session starts ungreeted: it takes one small HELLO within HANDSHAKE_S or is closed. From then on it
serves publishes, streams and control requests. Answers gather during a read and leave in one write.
Another broker is greeted only once it has proved who it is; until then nothing that it says counts.
Whatever a client sends, the worst outcome is a typed refusal and a closed connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.broker.cluster import schemas
from stentor.broker.cluster.greeting import Arrival, check_relayable, listener_of
from stentor.broker.partitions.lag import lag_of
from stentor.broker.partitions.partition import Partition, Request
from stentor.broker.sessions.inline_sync import SMALL_BYTES
from stentor.broker.sessions.reader_stream import ReaderStream
from stentor.broker.sessions.relay import Relay
from stentor.core.dedupe import LASTING, lasting_id
from stentor.core.flow import Cursor
from stentor.core.names import printable
from stentor.errors import (
    Closed,
    InternalError,
    LimitExceeded,
    NotReady,
    OffsetOutOfRange,
    PeerRefused,
    ProducerNotProven,
    ProtocolError,
    StentorError,
    VersionMismatch,
)
from stentor.transport.connection import Connection
from stentor.wire import batch, frames, messages
from stentor.wire.frames import Kind
from stentor.wire.header import check_header
from stentor.wire.peer import DATA

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.broker import Broker

logger = logging.getLogger(__name__)

_PUBLISH: Final = int(Kind.PUBLISH)
_PUBLISHED: Final = int(Kind.PUBLISHED)
_REQUESTS_UNDER_WAY_MAX: Final = 64
_TOPICS_REMEMBERED_MAX: Final = 100


class Session:
    """The owner of one client connection."""

    def __init__(self, broker: Broker, listener: str = "") -> None:
        self.broker = broker
        self.listener = listener  # which one the client came in by
        self.loop = broker.loop
        self.connection = Connection(self, body_bytes_max=limits.UNGREETED_BODY_BYTES_MAX, budget=broker.receiving)
        self.name = ""
        self.library = ""
        self.greeted = False
        self.ended = False
        self.connected_at_us = broker.clock.now_us()
        self.streams: dict[int, ReaderStream] = {}
        self.blocked: dict[ReaderStream, None] = {}  # streams that wait for room, in turn
        self.history_bytes = 0  # being read for this client
        self.watches_routes = False
        self.peer = ""  # the other broker, if it is one
        self.proven_by = b""  # the secret by which it proved that; empty if an older version was taken at its word
        self._purpose = ""  # what that broker connected for
        self._arrival: Arrival | None = None  # a broker that has not proved itself yet
        self._relay: Relay | None = None  # the way to another broker, if this client wants that one
        self.publishing: dict[str, None] = {}
        self._answers: list[bytes] = []
        self._reading = False  # frames of one read are being handled
        self._publishes = 0  # how many of them were publishes; a large batch counts twice
        self._deferred: list[Partition] = []  # partitions whose sync waits for the end of the read
        self._answers_scheduled = False
        self._producers: set[int] = set()  # lasting producer ids that this client may send under
        self._tasks: set[asyncio.Task[None]] = set()
        self._responding = asyncio.Lock()  # one answer to a request is encoded at a time
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._holds = 0
        self._discarding = False
        self._seen_bytes = 0
        self._seen_frames = 0
        self._seen_taken = 0  # bytes that the client's side has taken from us
        self._started = broker.clock.monotonic()
        self._silent_since = self._frame_since = self._deaf_since = self._started

    # --- connection -----------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:  # noqa: ARG002
        self.broker.guests.started(self)

    def disconnected(self, error: Exception | None) -> None:  # noqa: ARG002
        self.ended = True
        if self._relay is not None:
            self.broker.guests.relays -= 1
            self._relay.close()
        for stream in list(self.streams.values()):
            stream.close()
        for task in self._tasks:
            task.cancel()
        self.broker.session_ended(self)

    def refused(self, error: StentorError) -> None:
        """The client broke the protocol: say so once, and close."""
        self.broker.strangers.info("client %s (%s) refused: %s", self.name or "?", self.connection.address, error)
        self.broker.guests.refusals += 1
        self._flush_answers()
        self.connection.send(Kind.ERROR, 0, messages.encode(messages.failure(error, "connection")))
        self.connection.close()
        self.connection.closed = True

    def writable_changed(self, writable: bool) -> None:
        # A client that does not read its answers is not read from either: no queue grows.
        if self._relay is not None:
            self._relay.client_writable(writable=writable)
            return
        if writable:
            self._has_room.set()
            self.release()
            self.pump_blocked()
        else:
            self._has_room.clear()
            self.hold()

    @property
    def has_room(self) -> bool:
        """Whether more may be pushed: neither the socket nor what is being read for it holds too much."""
        return self.connection.writable and self.history_bytes < limits.HISTORY_BYTES

    def pump_blocked(self) -> None:
        """Streams that waited go on, as many as there is room for."""
        while self.blocked and self.has_room:
            stream = next(iter(self.blocked))
            del self.blocked[stream]
            stream.pump()

    def hold(self) -> None:
        """Stop reading from this client; holds are counted."""
        self._holds += 1
        if self._holds == 1:
            self.connection.pause_reading()

    def release(self) -> None:
        self._holds = max(0, self._holds - 1)
        if not self._holds:
            self._silent_since = self._frame_since = self.broker.clock.monotonic()
            self.connection.resume_reading()

    def discard(self) -> None:
        """Read on, and take nothing: a socket that is closed over unread bytes may lose its last words."""
        self._discarding = True
        self._holds = 0
        self.connection.resume_reading()

    def sweep(self, now: float) -> None:
        """Called every second: close what is half-open, stuck in a frame, deaf or silent."""
        connection = self.connection
        self._note_progress(now)
        if now - self._deaf_since > limits.SILENCE_S:
            self.drop_deaf(f"it has not read for {limits.SILENCE_S:g} s")
        elif connection.unsent_bytes > limits.UNSENT_BYTES_MAX:
            self.drop_deaf(f"it does not read {connection.unsent_bytes} bytes")
        elif connection.closed:
            pass  # refused already; the reason is on its way out
        elif not self.greeted and now - self._started > limits.HANDSHAKE_S:
            self.refused(ProtocolError(f"No greeting within {limits.HANDSHAKE_S:g} s."))
        elif now - self._frame_since > limits.PARTIAL_FRAME_S:
            self.refused(ProtocolError(f"A frame did not arrive whole within {limits.PARTIAL_FRAME_S:g} s."))
        elif now - self._silent_since > limits.SILENCE_S:
            self.refused(ProtocolError(f"Nothing was heard for {limits.SILENCE_S:g} s."))
        else:
            for stream in self.streams.values():
                stream.tell_state()

    @property
    def deaf_since(self) -> float:
        """When it last took something, or had taken everything."""
        return self._deaf_since

    def excuse(self, now: float) -> None:
        """The broker itself stood still: what the client did meanwhile is not known yet."""
        self._started = self._silent_since = self._frame_since = self._deaf_since = now

    def _note_progress(self, now: float) -> None:
        connection = self.connection
        if connection.bytes_in != self._seen_bytes:
            self._seen_bytes, self._silent_since = connection.bytes_in, now
        if connection.frames_in != self._seen_frames or not connection.mid_frame:
            self._seen_frames, self._frame_since = connection.frames_in, now
        if self._holds or connection.starved:
            self._silent_since = self._frame_since = now  # the silence is our doing
        connection.rest()
        unsent = connection.unsent_bytes
        taken = connection.bytes_out - unsent
        if taken != self._seen_taken or not unsent:
            self._seen_taken, self._deaf_since = taken, now

    def close(self) -> None:
        """Say goodbye and close once everything is sent."""
        self._flush_answers()
        self.connection.send(Kind.GOODBYE, 0)
        self.connection.close()

    # --- frames ---------------------------------------------------------------------------------

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        if self._discarding:
            return
        self._reading = True
        if self._relay is not None:
            self._relay.forward(kind, flags, correlation, body)
        elif not self.greeted:
            self._greet(kind, body)
        elif kind == _PUBLISH:
            self._publish(flags, correlation, body)
        else:
            handler = _HANDLERS.get(kind)
            if handler is None:
                raise ProtocolError(f"A client may not send {Kind(kind).name} here.")
            if len(body) > limits.CONTROL_BODY_BYTES_MAX and not self.peer:
                raise LimitExceeded(
                    f"A control message has {len(body)} bytes; the limit is {limits.CONTROL_BODY_BYTES_MAX}."
                )
            handler(self, correlation, body)

    def _ping(self, correlation: int, _: memoryview) -> None:
        self._answers.append(frames.frame(Kind.PONG, correlation))

    def _pong(self, _: int, __: memoryview) -> None:
        """A sign of life is all it is."""

    def _close_stream(self, stream_id: int, _: memoryview) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.close()

    def _goodbye(self, _: int, __: memoryview) -> None:
        self._flush_answers()
        self.connection.close()

    def read_finished(self) -> None:
        self._reading = False
        if self._publishes:
            self._finish_publishes()
        self._flush_answers()

    def defer_sync(self, partition: Partition) -> bool:
        """Whether a partition's sync may wait for the end of this read, to be done in the loop."""
        if self._reading and self.broker.lone.is_lone(self):
            self._deferred.append(partition)
            return True
        return False

    def _finish_publishes(self) -> None:
        """One small batch in a read, again and again, and nobody else: a lone publisher."""
        lone = self.broker.lone
        lone.note(self, single=self._publishes == 1)
        self._publishes = 0
        deferred, self._deferred = self._deferred, []
        in_loop = len(deferred) == 1 and lone.is_lone(self)
        for partition in deferred:
            if not in_loop:
                partition.sync_deferred(in_loop=False)
            elif partition.feed is None:
                self._sync_in_loop(partition)
            else:
                self.broker.turn.wait(partial(self._sync_in_loop, partition))  # the successor's batches leave first

    def _sync_in_loop(self, partition: Partition) -> None:
        began = self.broker.clock.monotonic()
        partition.sync_deferred(in_loop=True)
        self.broker.lone.synced((self.broker.clock.monotonic() - began) * 1e6)

    def _flush_answers(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self.connection.write(answers)

    def _answer_soon(self, answer: bytes) -> None:
        """Answers that come outside a read leave together at the end of this turn of the loop."""
        self._answers.append(answer)
        if not self._answers_scheduled:
            self._answers_scheduled = True
            self.loop.call_soon(self._answers_due)

    def _answers_due(self) -> None:
        self._answers_scheduled = False
        self._flush_answers()

    def _greet(self, kind: int, body: memoryview) -> None:
        if self._arrival is not None:
            self._prove(self._arrival, kind, body)
            return
        if kind != Kind.HELLO:
            raise ProtocolError("The first frame of a connection must be HELLO.")
        hello: messages.Hello = messages.decode(body, messages.Hello)
        version = min(hello.version_max, frames.PROTOCOL_VERSION)
        if version < max(hello.version_min, frames.PROTOCOL_VERSION_MIN):
            raise VersionMismatch(
                f"The client speaks protocol {hello.version_min} to {hello.version_max}, this broker"
                f" {frames.PROTOCOL_VERSION_MIN} to {frames.PROTOCOL_VERSION}.",
                hint="Upgrade the older of the two.",
            )
        self.name, self.library = _shown(hello.name), _shown(hello.library)
        if not hello.broker:
            self.broker.guests.greeted(self)
        if hello.target not in ("", self.broker.broker_id):
            check_relayable(hello)
            self._welcomed()
            self._relay = Relay(self, self.broker.address_of(hello.target), hello)
            self.broker.guests.relays += 1
            return
        self.listener = listener_of(self.broker, hello, self.listener)
        arrival = Arrival(self.broker, hello) if hello.broker else None
        known = (*frames.FEATURES, *(frames.PEER_FEATURES if arrival is not None else ()))
        features: list[str] = [feature for feature in known if feature in hello.features]
        welcome = messages.Welcome(version=version, broker=self.broker.info(self.listener), features=features)
        if arrival is None:
            self._welcomed()
        else:
            self._arrival = arrival
            welcome = arrival.challenge(welcome)
        self._answers.append(frames.frame(Kind.WELCOME, 0, messages.encode(welcome)))
        if arrival is not None and not arrival.proves:
            self._arrived(arrival)
            self.broker.trust.tell_unproven(arrival.name)

    def _welcomed(self) -> None:
        self.greeted = True
        self.connection.body_bytes_max = limits.FRAME_BODY_BYTES_MAX

    def _prove(self, arrival: Arrival, kind: int, body: memoryview) -> None:
        if kind != Kind.PROVE:
            raise PeerRefused(f"Broker {arrival.name} must prove who it is before it says anything else.")
        self.proven_by = arrival.proven_by(body)
        self._arrived(arrival)

    def _arrived(self, arrival: Arrival) -> None:
        arrival.check_registered()
        self._arrival, self.peer, self._purpose = None, arrival.name, arrival.purpose
        self._welcomed()
        self.broker.guests.proved(self)
        self.broker.cluster.peer_arrived(arrival.name)

    def _heard(self, _: int, body: memoryview) -> None:
        self._check_peer()
        if self.broker.cluster.member is None:
            return  # it has not joined yet, and says nothing either
        try:
            self.broker.cluster.heard(self.peer, body)
        except (StentorError, struct.error):
            raise
        except Exception as error:
            raise self._puzzled(error) from error

    def _replicate(self, _: int, body: memoryview) -> None:
        self._check_peer()
        if self._purpose != DATA:
            raise ProtocolError("Batches go over a connection for data.")
        self._publishes += 1 if len(body) <= SMALL_BYTES else 2
        try:
            self.broker.cluster.replicate(self.peer, body, self)
        except (StentorError, struct.error):
            raise
        except Exception as error:
            raise self._puzzled(error) from error

    def _puzzled(self, error: Exception) -> StentorError:
        """What another broker says may be nonsense that nobody thought of: that ends its connection, no more."""
        logger.error("what broker %s said could not be done", self.peer, exc_info=error)
        return InternalError(f"{type(error).__name__}: {error}")

    def _check_peer(self) -> None:
        if not self.peer:
            raise ProtocolError("Only brokers may say this.")
        if self.peer not in self.broker.catalogue.brokers:
            raise PeerRefused(f"Broker {self.peer} is not registered any more.")

    # --- publishing -----------------------------------------------------------------------------

    def _publish(self, flags: int, correlation: int, body: memoryview) -> None:
        try:
            header = check_header(body)
            if header.producer_id >= LASTING and header.producer_id not in self._producers:
                raise _not_proven(header.producer_id)
            partition = self.broker.partition(header.topic_id, header.partition)
            batch.validate(body, header)
            if (header.schema_id or partition.schemas) and not 0 < header.schema_id <= partition.schemas:
                raise schemas.refusal(partition.topic, partition.schemas, header.schema_id)
        except StentorError as error:
            self.fail(correlation, error, "publish")
            return
        if partition.topic not in self.publishing and len(self.publishing) < _TOPICS_REMEMBERED_MAX:
            self.publishing[partition.topic] = None
        if not self.broker.cluster.confirmed:
            self.fail(correlation, self.broker.cut_off(), "publish", partition.name)
            return
        self._publishes += 1 if len(body) <= SMALL_BYTES else 2
        partition.publish(body, header, Request(self, correlation), flags & 3)

    def published(self, correlation: int, base_offset: int, epoch: int, appended_at_us: int) -> None:
        """Answer a publish; the caller flushes once it has no more answers."""
        answer = frames.PUBLISHED.pack(base_offset, epoch, appended_at_us)
        self._answers.append(frames.frame(_PUBLISHED, correlation, answer))

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
        partition = self.broker.partition(wish.topic_id, wish.partition)
        self.broker.check_serves(partition)
        self.broker.waiting.check_stream(partition, wish.start, wish.end)
        start, committed = partition.log.start, partition.committed
        if committed < wish.seen < wish.start:  # this member is behind, and cannot know where the messages end (C24)
            raise NotReady(
                f"{partition.name} is known to be committed up to {committed} here; the client has seen {wish.seen}.",
                hint="Ask another member, or again in a moment.",
                object=partition.name,
            )
        if not start <= wish.start <= max(committed, wish.seen):
            raise OffsetOutOfRange(
                f"{partition.name} holds offsets {start} to {committed}; {wish.start} was asked for.",
                hint="Start at 'earliest' or 'latest', or at an offset in that range.",
                object=partition.name,
                start=start,
                end=committed,
            )
        stream = ReaderStream(self, stream_id, partition, Cursor(wish.start, wish.end, wish.credit))
        self.streams[stream_id] = stream
        stream.pump()

    def _credit(self, stream_id: int, body: memoryview) -> None:
        if len(body) != frames.CREDIT.size:
            raise ProtocolError("A CREDIT frame has the wrong size.")
        stream = self.streams.get(stream_id)
        if stream is not None:  # a stream that ended meanwhile is no fault of the client
            stream.grant(frames.CREDIT.unpack(body)[0])

    # --- control requests -----------------------------------------------------------------------

    def _request(self, correlation: int, body: memoryview) -> None:
        try:
            request = messages.decode(body, messages.Request)
            if isinstance(request, messages.UseProducer):  # at once: publishes may follow in the same read
                self._answers.append(frames.frame(Kind.RESPONSE, correlation, messages.encode(self._use(request))))
                return
            if len(self._tasks) >= _REQUESTS_UNDER_WAY_MAX:
                raise LimitExceeded(
                    f"{_REQUESTS_UNDER_WAY_MAX} requests are under way.", hint="Wait for their answers."
                )
        except StentorError as error:
            self.fail(correlation, error, "request")
            return
        task = self.loop.create_task(self._serve(correlation, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _use(self, request: messages.UseProducer) -> messages.Done:
        producer_id = lasting_id(request.token)
        if len(self._producers) >= limits.PRODUCERS_PER_CONNECTION_MAX and producer_id not in self._producers:
            raise LimitExceeded(
                f"This connection sends for {len(self._producers)} lasting producers; that is the limit.",
                hint="Open another client for more of them.",
            )
        self._producers.add(producer_id)
        return messages.Done()

    async def _serve(self, correlation: int, request: Any) -> None:
        operation = type(request).__name__
        try:
            response = await self.broker.serve_request(self, request)
        except StentorError as error:
            self.fail(correlation, error, operation)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a bug of ours must not look like silence
            logger.exception("request %s failed", operation)
            self.fail(correlation, InternalError(f"{type(error).__name__}: {error}"), operation)
        else:
            await self._respond(correlation, response)

    async def _respond(self, correlation: int, response: Any) -> None:
        """Encode an answer when the client takes it: what it asked for and does not read costs no copy."""
        async with self._responding:
            await self._has_room.wait()
            self._answer_soon(frames.frame(Kind.RESPONSE, correlation, messages.encode(response)))
            if len(self._answers[-1]) > limits.WRITE_BUFFER_BYTES_MAX:
                self._flush_answers()  # so that the next one waits for it

    def routes_changed(self, change: bytes) -> None:
        if self.watches_routes and not self.ended:
            if self.connection.unsent_bytes > limits.UNSENT_BYTES_MAX:
                self.drop_deaf("it does not read what changes")  # it asks for everything when it is back
                return
            self._answer_soon(frames.frame(Kind.ROUTES, 0, change))

    def drop_deaf(self, reason: str) -> None:
        """A client that does not read holds too much memory; it would not hear why either."""
        self.broker.strangers.info("client %s (%s) is dropped: %s", self.name or "?", self.connection.address, reason)
        self.broker.guests.refusals += 1
        self.connection.abort()

    def going_away(self) -> None:
        """The broker stops: streams end with a reason that tells clients to come back."""
        for stream in list(self.streams.values()):
            stream.fail(Closed("The broker is stopping.", hint="Clients reconnect by themselves when it is back."))

    def info(self) -> messages.ClientInfo:
        lag = lag_of(self.streams.values())
        return messages.ClientInfo(
            name=self.name,
            address=self.connection.address,
            library=self.library,
            connected_at_us=self.connected_at_us,
            publishing=list(self.publishing),
            subscriptions=sorted({stream.partition.topic for stream in self.streams.values()}),
            bytes_in=self.connection.bytes_in,
            bytes_out=self.connection.bytes_out,
            lag=lag.messages,
            lag_s=round(lag.seconds, 3),
        )


def _shown(name: str) -> str:
    """A client's name as people see it, in logs and tables."""
    return printable(name)[: limits.CLIENT_NAME_CHARACTERS_MAX]


def _not_proven(producer_id: int) -> ProducerNotProven:
    return ProducerNotProven(
        f"This connection has not shown the token of producer {producer_id:x}, and may not send under its id.",
        hint="Make the producer with the identity and the secret that it had before.",
    )


_HANDLERS: Final[dict[int, Callable[[Session, int, memoryview], None]]] = {
    Kind.PING: Session._ping,  # noqa: SLF001 - the table is part of the class
    Kind.PONG: Session._pong,  # noqa: SLF001
    Kind.CREDIT: Session._credit,  # noqa: SLF001
    Kind.REQUEST: Session._request,  # noqa: SLF001
    Kind.OPEN_STREAM: Session._open_stream,  # noqa: SLF001
    Kind.CLOSE_STREAM: Session._close_stream,  # noqa: SLF001
    Kind.GOODBYE: Session._goodbye,  # noqa: SLF001
    Kind.PEER: Session._heard,  # noqa: SLF001
    Kind.REPLICATE: Session._replicate,  # noqa: SLF001
}
