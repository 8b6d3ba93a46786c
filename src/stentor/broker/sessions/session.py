"""One connection that somebody made to this broker: what clients, other brokers and relays have in common.

A connection begins as a `Newcomer`. When it has greeted it becomes a `ClientSession`, a `PeerSession` or a
`RelaySession`, each of which knows only its own frames. Whatever the other side sends, the worst outcome is a typed
refusal and a closed connection. Answers gather during a read and leave in one write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Protocol

from stentor.broker.sessions.watchdog import Watchdog
from stentor.core.holders import NOBODY
from stentor.errors import StentorError
from stentor.security.permissions import ANYBODY, Principal
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from stentor.ports import Clock
    from stentor.transport.connection import Connection


class Reception(Protocol):
    """Who keeps count of connections."""

    def ended(self, session: Session) -> None: ...
    def note_refusal(self, text: str, *details: object) -> None: ...


class Caller:
    """Who is on the other side, as it has said or proved."""

    __slots__ = ("connected_at_us", "holder", "library", "listener", "name", "principal")

    def __init__(self, listener: str, connected_at_us: int) -> None:
        self.listener = listener  # which one it came in by
        self.connected_at_us = connected_at_us
        self.name = ""
        self.library = ""
        self.principal: Principal = ANYBODY
        self.holder = NOBODY  # the hash of the secret that it showed (C36)


class Session:
    """The owner of one connection."""

    greeted: ClassVar[bool] = True
    is_peer: ClassVar[bool] = False
    connections: ClassVar[int] = 1  # sockets that it takes

    def __init__(self, connection: Connection, caller: Caller, reception: Reception, clock: Clock) -> None:
        self.connection = connection
        self.caller = caller
        self.loop = asyncio.get_running_loop()
        self.ended = False
        self._reception = reception
        self._clock = clock
        self._watchdog = Watchdog(connection, clock.monotonic())
        self._answers: list[bytes] = []
        self._answers_scheduled = False
        self._holds = 0
        self._discarding = False

    # --- what the connection reports ------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """It was, before this session began."""

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        raise NotImplementedError

    def read_finished(self) -> None:
        self._flush_answers()

    def writable_changed(self, writable: bool) -> None:
        """Whoever does not read its answers is not read from either: no queue grows."""
        if writable:
            self.release()
        else:
            self.hold()

    def disconnected(self, error: Exception | None) -> None:  # noqa: ARG002
        self.ended = True
        self._reception.ended(self)

    def refused(self, error: StentorError) -> None:
        """The other side broke the protocol: say so once, and close."""
        who = self.caller.name or "?"
        self._reception.note_refusal("client %s (%s) refused: %s", who, self.connection.address, error)
        self._flush_answers()
        self.connection.send(Kind.ERROR, 0, messages.encode(messages.failure(error, "connection")))
        self.connection.close()
        self.connection.closed = True

    def drop_deaf(self, reason: str) -> None:
        """Whoever does not read holds too much memory; it would not hear why either."""
        who = self.caller.name or "?"
        self._reception.note_refusal("client %s (%s) is dropped: %s", who, self.connection.address, reason)
        self.connection.abort()

    # --- reading and not reading ----------------------------------------------------------------

    def hold(self) -> None:
        """Stop reading from the other side; holds are counted."""
        self._holds += 1
        if self._holds == 1:
            self.connection.pause_reading()

    def release(self) -> None:
        self._holds = max(0, self._holds - 1)
        if not self._holds:
            self._watchdog.read_on(self._clock.monotonic())
            self.connection.resume_reading()

    def discard(self) -> None:
        """Read on, and take nothing: a socket that is closed over unread bytes may lose its last words."""
        self._discarding = True
        self._holds = 0
        self.connection.resume_reading()

    # --- answers --------------------------------------------------------------------------------

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

    # --- time -----------------------------------------------------------------------------------

    @property
    def deaf_since(self) -> float:
        """When it last took something, or had taken everything."""
        return self._watchdog.deaf_since

    def excuse(self, now: float) -> None:
        """The broker itself stood still: what the other side did meanwhile is not known yet."""
        self._watchdog.excuse(now)

    def sweep(self, now: float) -> None:
        """Called every second: close what is half-open, stuck in a frame, deaf or silent."""
        watchdog = self._watchdog
        watchdog.look(now, held=bool(self._holds))
        if deaf := watchdog.why_deaf(now):
            self.drop_deaf(deaf)
        elif self.connection.closed:
            pass  # refused already; the reason is on its way out
        elif (refusal := watchdog.refusal(now, greeted=self.greeted)) is not None:
            self.refused(refusal)
        else:
            self.swept()

    def swept(self) -> None:
        """Called every second of a connection that is well."""

    # --- the end --------------------------------------------------------------------------------

    def going_away(self) -> None:
        """The broker stops."""

    def close(self) -> None:
        """Say goodbye and close once everything is sent."""
        self._flush_answers()
        self.connection.send(Kind.GOODBYE, 0)
        self.connection.close()

    def _ping(self, correlation: int, _: memoryview) -> None:
        self._answers.append(frames.frame(Kind.PONG, correlation))

    def _pong(self, _: int, __: memoryview) -> None:
        """A sign of life is all it is."""

    def _goodbye(self, _: int, __: memoryview) -> None:
        self._flush_answers()
        self.connection.close()

    # --- what others see ------------------------------------------------------------------------

    @property
    def stream_count(self) -> int:
        return 0

    def info(self) -> messages.ClientInfo:
        """As people see it."""
        caller, connection = self.caller, self.connection
        return messages.ClientInfo(
            name=caller.name,
            address=connection.address,
            library=caller.library,
            connected_at_us=caller.connected_at_us,
            publishing=[],
            subscriptions=[],
            bytes_in=connection.bytes_in,
            bytes_out=connection.bytes_out,
        )
