"""A relay: a client that can reach only this broker speaks through it to another one.

The client names the broker it wants in its HELLO. This broker dials that one, passes the greeting on, and then
every frame in both directions, as it is; it does not look into them. Whoever is slow holds up the other side.

Nothing is passed on that only brokers may say (S6): the greeting is made anew from what a client may say, and frames
between brokers are refused. What the client sends before the other broker is reached is kept, and it is read no
further: so that is one read's worth at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from stentor import limits
from stentor.broker.sessions.session import Session
from stentor.errors import ConnectionFailed, NotReady, ProtocolError, StentorError
from stentor.transport.connection import Connection
from stentor.transport.dial import dial
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from stentor.broker.sessions.session import Caller, Reception
    from stentor.ports import Clock
    from stentor.transport.budget import ReceiveBudget
    from stentor.transport.turns import Turns


class RelaySession(Session):
    """One client's way through this broker."""

    connections: ClassVar[int] = 2  # the client's, and the one to the other broker

    def __init__(
        self,
        connection: Connection,
        caller: Caller,
        reception: Reception,
        clock: Clock,
        *,
        address: str,
        hello: messages.Hello,
        budget: ReceiveBudget,
        turns: Turns,
    ) -> None:
        super().__init__(connection, caller, reception, clock)
        self._address = address
        self._hello = hello
        self._kept: list[bytes] | None = []  # frames of the client until the other broker is reached
        self._onwards = Onwards(self, budget, turns)
        self.hold()
        self._dialling = self.loop.create_task(self._dial())

    async def _dial(self) -> None:
        onwards = self._onwards.connection
        try:
            await dial(self.loop, self._address, lambda: onwards, self.loop.time() + limits.LINK_OPEN_S)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: it is registered without an address
            reason = str(error) or "it did not answer in time"
            self.refused(NotReady(f"The broker at {self._address} cannot be reached from here either: {reason}."))
            return
        kept, self._kept = self._kept or [], None
        onwards.write([frames.frame(Kind.HELLO, 0, messages.encode(self._hello)), *kept])
        self.release()

    # --- from the client ------------------------------------------------------------------------

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        """A frame of the client; the view is valid only now."""
        if self._discarding:
            return
        if kind in frames.PEER_KINDS:
            raise ProtocolError(f"A client may not send {Kind(kind).name} here.")
        frame = frames.HEADER.pack(len(body), kind, flags, 0, correlation) + bytes(body)
        if self._kept is None:
            self._onwards.connection.write([frame])
        else:
            self._kept.append(frame)

    def writable_changed(self, writable: bool) -> None:
        if writable:
            self._onwards.connection.resume_reading()
        else:
            self._onwards.connection.pause_reading()

    def disconnected(self, error: Exception | None) -> None:
        super().disconnected(error)
        self._dialling.cancel()
        self._onwards.connection.close()

    # --- from the other broker ------------------------------------------------------------------

    def came_back(self, frame: bytes) -> None:
        """A frame of the other broker."""
        self.connection.write([frame])

    def broke_off(self) -> None:
        """The other broker's side is gone."""
        if not self.ended:
            self.refused(ConnectionFailed(f"The broker at {self._address} closed the connection."))


class Onwards:
    """The connection to the other broker."""

    def __init__(self, session: RelaySession, budget: ReceiveBudget, turns: Turns) -> None:
        self._session = session
        self.connection = Connection(self, budget=budget, turns=turns)
        self.connection.name = f"relay for {session.caller.name or 'a client'}"

    def connected(self, connection: Connection) -> None: ...

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        self._session.came_back(frames.HEADER.pack(len(body), kind, flags, 0, correlation) + bytes(body))

    def read_finished(self) -> None: ...

    def writable_changed(self, writable: bool) -> None:
        if writable:
            self._session.release()
        else:
            self._session.hold()

    def refused(self, error: StentorError) -> None:
        self.connection.abort()
        self._session.refused(error)

    def disconnected(self, error: Exception | None) -> None:  # noqa: ARG002
        self._session.broke_off()
