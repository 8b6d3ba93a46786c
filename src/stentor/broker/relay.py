"""A relay: a client that can reach only this broker speaks through it to another one.

The client names the broker it wants in its HELLO. This broker dials that one, passes the greeting on, and then
every frame in both directions, as it is; it does not look into them. Whoever is slow holds up the other side.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.errors import ConnectionFailed, NotReady, StentorError
from stentor.transport.connection import Connection
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from stentor.broker.session import Session


class Relay:
    """One client's way through this broker."""

    def __init__(self, session: Session, address: str, hello: messages.Hello) -> None:
        self._session = session
        self._address = address
        self._connection = Connection(self, budget=session.broker.receiving)
        self._hello = msgspec.structs.replace(hello, target="", listener=session.listener)
        self._ended = False
        self._dialling = session.loop.create_task(self._dial())

    async def _dial(self) -> None:
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(limits.LINK_OPEN_S):
                await self._session.loop.create_connection(lambda: self._connection, host.strip("[]"), int(port))
        except (OSError, TimeoutError) as error:
            reason = str(error) or "it did not answer in time"
            self._session.refused(
                NotReady(f"The broker at {self._address} cannot be reached from here either: {reason}.")
            )
            return
        self._connection.send(Kind.HELLO, 0, messages.encode(self._hello))

    # --- from the client ------------------------------------------------------------------------

    def forward(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        """A frame of the client; the view is valid only now."""
        self._connection.write([frames.HEADER.pack(len(body), kind, flags, 0, correlation) + bytes(body)])

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
