"""Requests and answers on one link: those of this client as a caller, and as a responder.

A caller's requests are matched to their answers by a number that the link gives them; what a responder is asked carries
the broker's number, which goes back on the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from stentor.errors import ProtocolError, StentorError
from stentor.request_errors import HandlerFailed, NotHandled
from stentor.wire import asks, frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from stentor.transport.connection import Connection

ASK_KINDS: Final = frozenset({int(Kind.ASK), int(Kind.REPLY), int(Kind.ASK_CREDIT), int(Kind.ASK_CANCEL)})
_ASK: Final = int(Kind.ASK)
_REPLY: Final = int(Kind.REPLY)


class AskSink(Protocol):
    """Who waits for an answer."""

    def replied(self, flags: int, body: memoryview) -> None: ...
    def lost(self, error: StentorError) -> None: ...


class ServiceSink(Protocol):
    """Who answers requests of a topic."""

    def asked(self, link: LinkAsks, number: int, ask: asks.Ask) -> None: ...
    def credited(self, link: LinkAsks, number: int, size: int) -> None: ...
    def cancelled(self, link: LinkAsks, number: int) -> None: ...
    def link_lost(self, link: LinkAsks) -> None: ...


class LinkAsks:
    """What is asked over one link, in both directions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[int, AskSink] = {}
        self._services: dict[str, ServiceSink] = {}
        self._numbers = 0
        self.alive = True

    def __bool__(self) -> bool:
        return bool(self._waiting or self._services)

    # --- as a caller ----------------------------------------------------------------------------

    def ask(self, body: bytes, flags: int, sink: AskSink) -> int:
        """Send a request; the sink hears of its answer."""
        self._numbers += 1
        number = self._numbers
        self._waiting[number] = sink
        self._connection.write((frames.HEADER.pack(len(body), _ASK, flags, 0, number) + body,))
        return number

    def credit(self, number: int, size: int) -> None:
        """So much of a streamed answer was taken."""
        if number in self._waiting:
            self._connection.send(Kind.ASK_CREDIT, number, asks.ASK_CREDIT.pack(size))

    def give_up(self, number: int) -> None:
        """Nobody waits for an answer any more."""
        if self._waiting.pop(number, None) is not None and self.alive:
            self._connection.send(Kind.ASK_CANCEL, number)

    # --- as a responder -------------------------------------------------------------------------

    def serve(self, topic: str, sink: ServiceSink) -> None:
        """Requests of a topic that come from now on are for this one."""
        self._services[topic] = sink

    def stop_serving(self, topic: str) -> None:
        self._services.pop(topic, None)

    def reply(self, number: int, flags: int, body: bytes) -> None:
        """Answer a request."""
        self._connection.write((frames.HEADER.pack(len(body), _REPLY, flags, 0, number) + body,))

    # --- what the link reports ------------------------------------------------------------------

    def received(self, kind: int, flags: int, number: int, body: memoryview) -> None:
        """A frame that is about requests."""
        if kind == _REPLY:
            sink = self._waiting.get(number) if flags & asks.MORE else self._waiting.pop(number, None)
            if sink is not None:
                sink.replied(flags, body)
        elif kind == _ASK:
            self._asked(number, flags, body)
        elif kind == Kind.ASK_CANCEL:
            for service in list(self._services.values()):
                service.cancelled(self, number)
        else:
            (size,) = asks.ASK_CREDIT.unpack(body)
            for service in list(self._services.values()):
                service.credited(self, number, size)

    def _asked(self, number: int, flags: int, body: memoryview) -> None:
        """What a caller sent, which no broker looked into; it must not cost this link, nor its place in the window."""
        try:
            ask = asks.decode_ask(body, flags)
        except ProtocolError as error:
            self._refuse(number, HandlerFailed(f"The request cannot be understood: {error.message}"))
            return
        service = self._services.get(ask.topic)
        if service is None:
            self._refuse(number, NotHandled("The responder has stopped."))
        else:
            service.asked(self, number, ask)

    def _refuse(self, number: int, error: StentorError) -> None:
        self.reply(number, asks.FAILED, messages.encode(messages.failure(error, "request")))

    def lose(self, error: StentorError) -> None:
        """The link is lost: whoever waits is told at once."""
        self.alive = False
        waiting, self._waiting = self._waiting, {}
        for sink in waiting.values():
            sink.lost(error)
        services, self._services = self._services, {}
        for service in services.values():
            service.link_lost(self)
