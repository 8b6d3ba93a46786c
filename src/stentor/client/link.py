"""A link: one client's connection to one broker, from handshake to the last frame.

Lives in the client's loop. Requests and publishes are matched to their answers by correlation id;
streams by the id they were opened with. When the link breaks, every waiter is told at once, and the
owner decides what to send again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor._version import __version__
from stentor.client.link_asks import ASK_KINDS, LinkAsks
from stentor.client.pulse import Pulse
from stentor.client.waiting import Waiting, fail
from stentor.core import group_limits
from stentor.errors import ConnectionFailed, InvalidArgument, ProtocolError, StentorError
from stentor.transport.address import Address
from stentor.transport.connection import Connection
from stentor.transport.dial import dial
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.waiting import PublishSink, StreamSink

_DELIVER = int(Kind.DELIVER)
_PUBLISH = int(Kind.PUBLISH)
_PUBLISHED = int(Kind.PUBLISHED)
_JOINED_BYTES_MAX = 4096  # a small body is cheaper to copy than to write beside its header


class NotAsked(ConnectionFailed):
    """The link was lost before a request was sent: nothing happened, and any request may be asked again."""


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
        self.lost_at = 0.0  # when it was lost, by the loop's clock
        self.on_lost: Callable[[BrokerLink, StentorError], None] = lambda *_: None
        self.on_routes: Callable[[messages.RouteChange], None] = lambda _: None
        self._loop = loop
        self._welcome: asyncio.Future[messages.Welcome] = loop.create_future()
        self._waiting = Waiting()
        self.asks = LinkAsks(self.connection)
        self._pulse = Pulse(self, loop)
        self._producers: set[int] = set()  # ids whose tokens were shown
        self._writable_waiters: list[Callable[[], None]] = []
        self._lost: StentorError | None = None
        # Members that share it take turns. Half: transactions that were given up may still be under way at the broker.
        self.transacting = asyncio.Semaphore(max(1, group_limits.TRANSACTIONS_UNDER_WAY_MAX // 2))

    # --- life -----------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        address: str,
        name: str,
        timeout: float,
        target: str = "",
        made: list[BrokerLink] | None = None,
        holder: bytes = b"",
    ) -> BrokerLink:
        """Connect and greet, within the time; through the broker there to another one, if a target is named."""
        try:
            where = Address.parse(address)
        except InvalidArgument as error:  # a broker may advertise it; whoever looks for one goes on to the next
            raise _unreachable(address, "it is not an address") from error
        loop = asyncio.get_running_loop()
        link = cls(address, loop)
        link.relayed = bool(target)
        if made is not None:
            made.append(link)
        why = "it did not answer in time"
        try:
            async with asyncio.timeout(timeout) as patience:
                await link._dial(where)
                if not target:
                    why = f"it takes connections but says nothing for {limits.HANDSHAKE_S:g} s, unlike a broker"
                    patience.reschedule(min(patience.when() or 0.0, loop.time() + limits.HANDSHAKE_S))
                link.connection.send(Kind.HELLO, 0, messages.encode(_hello(name, target, holder)))
                welcome = await link._welcome
                link._check_lost()  # it may have broken after the greeting, before anybody could be told
        except TimeoutError as error:
            link.connection.abort()
            raise _unreachable(address, why) from error
        except OSError as error:
            link.connection.abort()
            raise _unreachable(address, error.strerror or str(error)) from error
        except BaseException:
            link.connection.abort()
            raise
        link.broker = welcome.broker
        link.features = welcome.features
        link.alive = True
        link._pulse.beat()
        return link

    async def _dial(self, address: Address) -> None:
        try:
            await dial(self._loop, address, lambda: self.connection, None)
        except BaseException:
            self.gone = True  # an attempt given up in its last moment is closed without a word by uvloop
            raise

    def excuse(self, seconds: float) -> None:
        """So much of its silence was the client's own."""
        self._pulse.excuse(seconds)

    def look(self, *, impatient: bool) -> None:
        """Called often where there are other brokers: ping one that is quiet, leave one that stays so."""
        self._pulse.look(wanted=bool(self._waiting or self.asks), impatient=impatient)

    def give_up(self, why: str) -> None:
        """The broker is not there any more."""
        self._lose(_unreachable(self.address, why))
        self.connection.abort()

    def give_way(self) -> None:
        """Another link to the same broker takes its place: whoever used this one is told."""
        self._lose(_unreachable(self.address, "another connection took its place"))
        self.connection.close()

    def close(self) -> None:
        """Say goodbye; what is written is still sent."""
        self._pulse.stop()
        self.alive = False
        self.on_lost = lambda *_: None
        self.connection.send(Kind.GOODBYE, 0)
        self.connection.close()

    # --- asking ---------------------------------------------------------------------------------

    async def request(self, message: Any, kind: int = Kind.REQUEST) -> Any:
        """Send a control request and wait for its answer; the caller sets the deadline."""
        waiting, correlation = self._waiting, self._waiting.next()
        if kind != Kind.REQUEST or isinstance(message, messages.POLLS):  # brokers count these by themselves
            try:
                return await self._ask(message, kind, correlation)
            finally:
                waiting.requests.pop(correlation, None)
        async with waiting.turns:
            await waiting.unanswered.acquire()
            try:
                return await self._ask(message, kind, correlation)
            finally:
                waiting.leave(correlation)

    async def _ask(self, message: Any, kind: int, correlation: int) -> Any:
        self._check_before_sending()
        body = _encoded(message)
        answer = self._waiting.requests[correlation] = self._loop.create_future()
        self.connection.send(kind, correlation, body)
        return await answer

    def use_producer(self, producer_id: int, token: bytes) -> None:
        """Show a producer's token, once. Frames stay in order: what it publishes may follow without waiting."""
        if producer_id not in self._producers and frames.LASTING_PRODUCERS in self.features:
            self._producers.add(producer_id)
            self.connection.send(Kind.REQUEST, self._waiting.next(), messages.encode(messages.UseProducer(token=token)))

    def publish(self, header: bytes | bytearray, body: bytes | memoryview, ack: int, sink: PublishSink) -> None:
        """Send a batch; the sink hears of its fate."""
        correlation = self._waiting.next()
        if ack:
            self._waiting.publishes[correlation] = sink
        prefix = frames.HEADER.pack(len(header) + len(body), _PUBLISH, ack, 0, correlation) + header
        if len(body) <= _JOINED_BYTES_MAX:
            self.connection.write((prefix + body,))
        else:
            self.connection.write((prefix, body))

    def disown(self, sinks: set[Any]) -> None:
        """Whatever is answered to what these have published, they do not hear of it."""
        self._waiting.disown(sinks)

    def when_writable(self, wake: Callable[[], None]) -> None:
        """Call back once the socket takes more."""
        if self.connection.writable:
            self._loop.call_soon(wake)
        else:
            self._writable_waiters.append(wake)

    def open_stream(self, wish: messages.OpenStream, sink: StreamSink) -> int:
        stream_id = self._waiting.next()
        self._waiting.streams[stream_id] = sink
        self.connection.send(Kind.OPEN_STREAM, stream_id, messages.encode(wish))
        return stream_id

    def grant(self, stream_id: int, size: int) -> None:
        if stream_id in self._waiting.streams:
            self.connection.send(Kind.CREDIT, stream_id, frames.CREDIT.pack(size))

    def close_stream(self, stream_id: int) -> None:
        if self._waiting.streams.pop(stream_id, None) is not None and self.alive:
            self.connection.send(Kind.CLOSE_STREAM, stream_id)

    def check(self) -> None:
        """Raise why the link is lost, if it is."""
        self._check_lost()
        if not self.alive:
            raise ConnectionFailed(f"The connection to {self.address} is closed.")

    def _check_before_sending(self) -> None:
        try:
            self.check()
        except ConnectionFailed as lost:
            raise NotAsked(lost.message, hint=lost.hint, operation=lost.operation, object=lost.object) from None

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

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        if kind == _DELIVER:
            sink = self._waiting.streams.get(correlation)
            if sink is not None:
                sink.delivered(body)
        elif kind == _PUBLISHED:
            publish = self._waiting.publishes.pop(correlation, None)
            if publish is not None:
                publish.published(*frames.PUBLISHED.unpack(body), refused=flags != 0)
        elif kind in ASK_KINDS:
            self.asks.received(kind, flags, correlation, body)
        else:
            self._control_frame(kind, correlation, body)

    def _control_frame(self, kind: int, correlation: int, body: memoryview) -> None:
        if self._waiting.take(kind, correlation, body):
            return
        handler = _HANDLERS.get(kind)
        if handler is not None:  # frames that a client never gets are ignored: the broker may be newer
            handler(self, correlation, body)

    def _failure(self, correlation: int, body: memoryview) -> None:
        error = messages.raised(messages.decode(body, messages.Failure))
        if not self._waiting.failed(correlation, error) and correlation == 0:
            self._lose(error)
            self.connection.close()

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
        self.lost_at = self._loop.time()
        was_alive, self.alive = self.alive, False
        self._pulse.stop()
        fail(self._welcome, error)
        self._waiting.lose(error)
        self.asks.lose(error)
        if was_alive:
            self.on_lost(self, error)


def _hello(name: str, target: str, holder: bytes) -> messages.Hello:
    return messages.Hello(
        version_min=frames.PROTOCOL_VERSION_MIN,
        version_max=frames.PROTOCOL_VERSION,
        name=name,
        library=f"stentor-python {__version__}",
        features=list(frames.FEATURES),
        target=target,
        holder=holder,
    )


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
    Kind.ERROR: BrokerLink._failure,  # noqa: SLF001 - the table is part of the class
    Kind.ROUTES: BrokerLink._routes,  # noqa: SLF001
    Kind.WELCOME: BrokerLink._welcomed,  # noqa: SLF001
    Kind.PING: BrokerLink._ping,  # noqa: SLF001
    Kind.GOODBYE: BrokerLink._goodbye,  # noqa: SLF001
}
