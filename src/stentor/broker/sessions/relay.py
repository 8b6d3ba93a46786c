"""A relay: a client that can reach only this broker speaks through it to another one.

The client names the broker it wants in its HELLO. This broker dials that one, passes the greeting on, and then
every frame in both directions, as it is; it does not look into them. Whoever is slow holds up the other side.

Nothing is passed on that only brokers may say (S6): the greeting is made anew from what a client may say, and frames
between brokers are refused. What the client sends before the other broker is reached is kept, and it is read no
further: so that is one read's worth at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.broker.cluster.greeting import relayed
from stentor.errors import ConnectionFailed, NotReady, ProtocolError, StentorError
from stentor.transport.connection import Connection
from stentor.transport.dial import dial
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from stentor.broker.sessions.session import Session


class Relay:
    """One client's way through this broker."""

    def __init__(self, session: Session, address: str, hello: messages.Hello) -> None:
        self._session = session
        self._address = address
        self._connection = Connection(self, budget=session.broker.receiving)
        self._hello = relayed(session.broker, hello, session.listener)
        self._kept: list[bytes] | None = []  # frames of the client until the other broker is reached
        self._ended = False
        session.hold()
        self._dialling = session.loop.create_task(self._dial())

    async def _dial(self) -> None:
        loop = self._session.loop
        try:
            await dial(loop, self._address, lambda: self._connection, loop.time() + limits.LINK_OPEN_S)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: it is registered without an address
            reason = str(error) or "it did not answer in time"
            self._session.refused(
                NotReady(f"The broker at {self._address} cannot be reached from here either: {reason}.")
            )
            return
        kept, self._kept = self._kept or [], None
        self._connection.write([frames.frame(Kind.HELLO, 0, messages.encode(self._hello)), *kept])
        self._session.release()

    # --- from the client ------------------------------------------------------------------------

    def forward(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        """A frame of the client; the view is valid only now."""
        if kind in frames.PEER_KINDS:
            raise ProtocolError(f"A client may not send {Kind(kind).name} here.")
        frame = frames.HEADER.pack(len(body), kind, flags, 0, correlation) + bytes(body)
        if self._kept is None:
            self._connection.write([frame])
        else:
            self._kept.append(frame)

    def client_writable(self, *, writable: bool) -> None:
        if writable:
            self._connection.resume_reading()
        else:
            self._connection.pause_reading()

    def close(self) -> None:
        """The client is gone."""
        self._ended = True
        self._dialling.cancel()
        self._connection.close()

    # --- from the other broker ------------------------------------------------------------------

    def connected(self, connection: Connection) -> None: ...

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        header = frames.HEADER.pack(len(body), kind, flags, 0, correlation)
        self._session.connection.write([header + bytes(body)])

    def read_finished(self) -> None: ...

    def writable_changed(self, writable: bool) -> None:
        if writable:
            self._session.release()
        else:
            self._session.hold()

    def refused(self, error: StentorError) -> None:
        self._connection.abort()
        self._session.refused(error)

    def disconnected(self, error: Exception | None) -> None:  # noqa: ARG002
        if not self._ended:
            self._session.refused(ConnectionFailed(f"The broker at {self._address} closed the connection."))
