"""A link: one client's connection to one broker, from handshake to the last frame.

Lives in the client's loop. Requests and publishes are matched to their answers by correlation id;
streams by the id they were opened with. When the link breaks, every waiter is told at once, and the
owner decides what to send again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from stentor import limits
from stentor._version import __version__
from stentor.errors import ConnectionFailed, InvalidArgument, ProtocolError, StentorError
from stentor.transport.connection import Connection
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable


_DELIVER = int(Kind.DELIVER)
_PUBLISH = int(Kind.PUBLISH)
_PUBLISHED = int(Kind.PUBLISHED)
_JOINED_BYTES_MAX = 4096  # a small body is cheaper to copy than to write beside its header


class StreamSink(Protocol):
    """Who takes a stream's deliveries."""

    def delivered(self, body: memoryview) -> None: ...
    def state(self, committed: int, epoch: int) -> None: ...
    def ended(self, ended: messages.StreamEnded) -> None: ...


class PublishSink(Protocol):
    """Who takes a publish's answer."""

    def published(self, base_offset: int, epoch: int, appended_at_us: int) -> None: ...
    def failed(self, error: StentorError) -> None: ...


class BrokerLink:
    """One greeted connection."""

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.connection = Connection(self, buffer_bytes=limits.CLIENT_READ_BUFFER_BYTES)
        self.broker: messages.BrokerInfo | None = None
        self.features: list[str] = []  # what the broker knows as well
        self.alive = False
        self.relayed = False  # it goes through another broker
        self.opened = False  # there was a socket
        self.gone = False  # there is none any more
        self.on_lost: Callable[[BrokerLink, StentorError], None] = lambda *_: None
        self.on_routes: Callable[[messages.RouteChange], None] = lambda _: None
        self._loop = loop
        self._welcome: asyncio.Future[messages.Welcome] = loop.create_future()
        self._correlations = 0
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._publishes: dict[int, PublishSink] = {}
        self._streams: dict[int, StreamSink] = {}
        self._producers: set[int] = set()  # ids whose tokens were shown
        self._writable_waiters: list[Callable[[], None]] = []
        self._lost: StentorError | None = None
        self._seen_bytes = 0
        self._heard_at = loop.time()
        self._asked_at: float | None = None  # when it was pinged and has said nothing since
        self._heartbeat: asyncio.TimerHandle | None = None

    # --- life -----------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls, address: str, name: str, timeout: float, target: str = "", made: list[BrokerLink] | None = None
    ) -> BrokerLink:
        """Connect and greet, within the time; through the broker there to another one, if a target is named."""
        loop = asyncio.get_running_loop()
        link = cls(address, loop)
        link.relayed = bool(target)
        if made is not None:
            made.append(link)
        host, _, port = address.rpartition(":")
        why = "it did not answer in time"
        try:
            async with asyncio.timeout(timeout) as patience:
                await link._dial(host.strip("[]"), int(port))
                if not target:
                    why = f"it takes connections but says nothing for {limits.HANDSHAKE_S:g} s, unlike a broker"
                    patience.reschedule(min(patience.when() or 0.0, loop.time() + limits.HANDSHAKE_S))
                hello = messages.Hello(
                    version_min=frames.PROTOCOL_VERSION_MIN,
                    version_max=frames.PROTOCOL_VERSION,
                    name=name,
                    library=f"stentor-python {__version__}",
                    features=list(frames.FEATURES),
                    target=target,
                )
                link.connection.send(Kind.HELLO, 0, messages.encode(hello))
                welcome = await link._welcome
                link._check_lost()  # it may have broken after the greeting, before anybody could be told
        except TimeoutError as error:
            link.connection.abort()
            raise _unreachable(address, why) from error
        except OSError as error:
            link.connection.abort()
            raise _unreachable(address, error.strerror or str(error)) from error
        except ValueError as error:  # a name that no resolver takes, a port that is no number
            link.connection.abort()
            if isinstance(error, StentorError):
                raise
            raise _unreachable(address, f"it is not an address ({error})") from error
        except BaseException:
            link.connection.abort()
            raise
        link.broker = welcome.broker
        link.features = welcome.features
        link.alive = True
        link._beat()
        return link

    async def _dial(self, host: str, port: int) -> None:
        try:
            await self._loop.create_connection(lambda: self.connection, host, port)
        except BaseException:
            self.gone = True  # an attempt given up in its last moment is closed without a word by uvloop
            raise

    def _beat(self) -> None:
        """Ping a quiet broker; give up on a silent one."""
        now = self._loop.time()
        if self.connection.bytes_in != self._seen_bytes:
            self._seen_bytes, self._heard_at = self.connection.bytes_in, now
        if now - self._heard_at > limits.SILENCE_S:
            self._lose(_unreachable(self.address, f"nothing was heard for {limits.SILENCE_S:g} s"))
            self.connection.abort()
            return
        self.connection.send(Kind.PING, 0)
        self._heartbeat = self._loop.call_later(limits.HEARTBEAT_S, self._beat)

    def excuse(self, seconds: float) -> None:
        """So much of its silence was the client's own."""
        self._heard_at += seconds
        if self._asked_at is not None:
            self._asked_at += seconds

    def look(self, *, impatient: bool) -> None:
        """Called often where there are other brokers: ping one that is quiet, leave one that stays so."""
        now = self._loop.time()
        if self.connection.bytes_in != self._seen_bytes:
            self._seen_bytes, self._heard_at, self._asked_at = self.connection.bytes_in, now, None
        elif not impatient:
            self._asked_at = None
        elif self._asked_at is not None:
            if now - self._asked_at > limits.LINK_SILENCE_S - limits.LINK_WATCH_S:
                self._lose(_unreachable(self.address, f"nothing was heard for {now - self._heard_at:.1f} s"))
                self.connection.abort()
        elif now - self._heard_at >= (limits.LINK_WATCH_S if self._is_wanted() else limits.LINK_IDLE_S):
            self._asked_at = now
            self.connection.send(Kind.PING, 0)

    def _is_wanted(self) -> bool:
        """Whether somebody waits for something of it."""
        return bool(self._publishes or self._requests or self._streams)

    def give_way(self) -> None:
        """Another link to the same broker takes its place: whoever used this one is told."""
        self._lose(_unreachable(self.address, "another connection took its place"))
        self.connection.close()

    def close(self) -> None:
        """Say goodbye; what is written is still sent."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self.alive = False
        self.on_lost = lambda *_: None
        self.connection.send(Kind.GOODBYE, 0)
        self.connection.close()

    # --- asking ---------------------------------------------------------------------------------

    def _next(self) -> int:
        self._correlations += 1
        return self._correlations

    async def request(self, message: Any) -> Any:
        """Send a control request and wait for its answer; the caller sets the deadline."""
        self.check()
        body = _encoded(message)
        correlation = self._next()
        answer = self._requests[correlation] = self._loop.create_future()
        self.connection.send(Kind.REQUEST, correlation, body)
        try:
            return await answer
        finally:
            self._requests.pop(correlation, None)

    def use_producer(self, producer_id: int, token: bytes) -> None:
        """Show a producer's token, once. Frames stay in order: what it publishes may follow without waiting."""
        if producer_id not in self._producers and frames.LASTING_PRODUCERS in self.features:
            self._producers.add(producer_id)
            self.connection.send(Kind.REQUEST, self._next(), messages.encode(messages.UseProducer(token=token)))

    def publish(self, header: bytes | bytearray, body: bytes | memoryview, ack: int, sink: PublishSink) -> None:
        """Send a batch; the sink hears of its fate."""
        correlation = self._next()
        if ack:
            self._publishes[correlation] = sink
        prefix = frames.HEADER.pack(len(header) + len(body), _PUBLISH, ack, 0, correlation) + header
        if len(body) <= _JOINED_BYTES_MAX:
            self.connection.write((prefix + body,))
        else:
            self.connection.write((prefix, body))

    def disown(self, sinks: set[Any]) -> None:
        """Whatever is answered to what these have published, they do not hear of it."""
        self._publishes = {key: sink for key, sink in self._publishes.items() if sink not in sinks}

    def when_writable(self, wake: Callable[[], None]) -> None:
        """Call back once the socket takes more."""
        if self.connection.writable:
            self._loop.call_soon(wake)
        else:
            self._writable_waiters.append(wake)

    def open_stream(self, wish: messages.OpenStream, sink: StreamSink) -> int:
        stream_id = self._next()
        self._streams[stream_id] = sink
        self.connection.send(Kind.OPEN_STREAM, stream_id, messages.encode(wish))
        return stream_id

    def grant(self, stream_id: int, size: int) -> None:
        if stream_id in self._streams:
            self.connection.send(Kind.CREDIT, stream_id, frames.CREDIT.pack(size))

    def close_stream(self, stream_id: int) -> None:
        if self._streams.pop(stream_id, None) is not None and self.alive:
            self.connection.send(Kind.CLOSE_STREAM, stream_id)

    def check(self) -> None:
        """Raise why the link is lost, if it is."""
        self._check_lost()
        if not self.alive:
            raise ConnectionFailed(f"The connection to {self.address} is closed.")

    def _check_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    # --- what the connection reports ------------------------------------------------------------

    def connected(self, connection: Connection) -> None:  # noqa: ARG002
        self.opened = True

    def read_finished(self) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        if writable:
            waiting, self._writable_waiters = self._writable_waiters, []
            for wake in waiting:
                wake()

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:  # noqa: ARG002
        if kind == _DELIVER:
            sink = self._streams.get(correlation)
            if sink is not None:
                sink.delivered(body)
        elif kind == _PUBLISHED:
            publish = self._publishes.pop(correlation, None)
            if publish is not None:
                publish.published(*frames.PUBLISHED.unpack(body))
        else:
            self._control_frame(kind, correlation, body)

    def _control_frame(self, kind: int, correlation: int, body: memoryview) -> None:
        handler = _HANDLERS.get(kind)
        if handler is not None:  # frames that a client never gets are ignored: the broker may be newer
            handler(self, correlation, body)

    def _response(self, correlation: int, body: memoryview) -> None:
        waiting = self._requests.get(correlation)
        if waiting is not None and not waiting.done():
            waiting.set_result(messages.decode(body, messages.Response))

    def _failure(self, correlation: int, body: memoryview) -> None:
        self._error(correlation, messages.raised(messages.decode(body, messages.Failure)))

    def _stream_state(self, correlation: int, body: memoryview) -> None:
        stream = self._streams.get(correlation)
        if stream is not None and len(body) == frames.STREAM_STATE.size:
            stream.state(*frames.STREAM_STATE.unpack(body))

    def _stream_ended(self, correlation: int, body: memoryview) -> None:
        stream = self._streams.pop(correlation, None)
        if stream is not None:
            stream.ended(messages.decode(body, messages.StreamEnded))

    def _routes(self, _: int, body: memoryview) -> None:
        self.on_routes(messages.decode(body, messages.RouteChange))

    def _welcomed(self, _: int, body: memoryview) -> None:
        if not self._welcome.done():
            self._welcome.set_result(messages.decode(body, messages.Welcome))

    def _ping(self, correlation: int, _: memoryview) -> None:
        self.connection.send(Kind.PONG, correlation)

    def _goodbye(self, _: int, __: memoryview) -> None:
        self._lose(_unreachable(self.address, "the broker is stopping"))
        self.connection.close()

    def _error(self, correlation: int, error: StentorError) -> None:
        publish = self._publishes.pop(correlation, None)
        waiting = self._requests.get(correlation)
        if publish is not None:
            publish.failed(error)
        elif waiting is not None and not waiting.done():
            waiting.set_exception(error)
        elif correlation == 0:
            self._lose(error)
            self.connection.close()

    def refused(self, error: StentorError) -> None:
        self._lose(ProtocolError(f"The broker at {self.address} broke the protocol: {error.message}"))
        self.connection.abort()

    def disconnected(self, error: Exception | None) -> None:
        self.gone = True
        self._lose(_unreachable(self.address, str(error) if error else "the connection was closed"))

    def _lose(self, error: StentorError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        was_alive, self.alive = self.alive, False
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for waiting in (self._welcome, *self._requests.values()):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # the waiter may be gone; then nobody needs to hear of it
        self._publishes.clear()
        self._streams.clear()
        if was_alive:
            self.on_lost(self, error)


def _encoded(message: Any) -> bytes:
    try:
        return messages.encode(message)
    except (TypeError, OverflowError) as error:
        raise InvalidArgument(f"{type(message).__name__} cannot be sent: {error}.") from error


def _unreachable(address: str, why: str) -> ConnectionFailed:
    return ConnectionFailed(
        f"The broker at {address} cannot be reached: {why}.",
        hint="Is it running? Start one with `stentor serve`, or name another with --url or STENTOR_URL.",
        operation="connect",
        object=address,
    )


_HANDLERS: Final[dict[int, Callable[[BrokerLink, int, memoryview], None]]] = {
    Kind.RESPONSE: BrokerLink._response,  # noqa: SLF001 - the table is part of the class
    Kind.ERROR: BrokerLink._failure,  # noqa: SLF001
    Kind.STREAM_STATE: BrokerLink._stream_state,  # noqa: SLF001
    Kind.STREAM_ENDED: BrokerLink._stream_ended,  # noqa: SLF001
    Kind.ROUTES: BrokerLink._routes,  # noqa: SLF001
    Kind.WELCOME: BrokerLink._welcomed,  # noqa: SLF001
    Kind.PING: BrokerLink._ping,  # noqa: SLF001
    Kind.GOODBYE: BrokerLink._goodbye,  # noqa: SLF001
}
