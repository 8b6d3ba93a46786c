"""Another broker's connection: what it says about the cluster, and the batches that it sends down a chain."""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from stentor.broker.sessions.batch_session import BatchSession
from stentor.broker.sessions.inline_sync import InlineSync
from stentor.errors import InternalError, PeerRefused, ProtocolError, StentorError
from stentor.wire.frames import Kind
from stentor.wire.peer import DATA

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.partitions.interfaces import Sender
    from stentor.broker.sessions.session import Caller, Reception
    from stentor.ports import Clock
    from stentor.transport.connection import Connection

logger = logging.getLogger(__name__)


class PeerServices(msgspec.Struct, frozen=True):
    """What another broker's session needs of this one."""

    heard: Callable[[str, memoryview], None]  # control messages, by their sender
    offered: Callable[[str, memoryview, Sender], None]  # batches
    registered: Callable[[str], bool]  # whether a broker still is
    inline_sync: InlineSync


class PeerSession(BatchSession):
    """The owner of one connection that another broker dialled, for control or for data."""

    is_peer: ClassVar[bool] = True

    def __init__(
        self,
        connection: Connection,
        caller: Caller,
        reception: Reception,
        clock: Clock,
        services: PeerServices,
        *,
        purpose: str,
        proven_by: bytes,
    ) -> None:
        super().__init__(connection, caller, reception, clock, services.inline_sync)
        self.peer = caller.principal.name  # the other broker's id
        self.proven_by = proven_by  # the secret; empty if an older version was taken at its word
        self._purpose = purpose
        self._services = services

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:  # noqa: ARG002
        if self._discarding:
            return
        self._reading = True
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ProtocolError(f"A broker may not send {Kind(kind).name} here.")
        handler(self, correlation, body)

    def _heard(self, _: int, body: memoryview) -> None:
        self._check_registered()
        try:
            self._services.heard(self.peer, body)
        except (StentorError, struct.error):
            raise
        except Exception as error:
            raise self._puzzled(error) from error

    def _replicate(self, _: int, body: memoryview) -> None:
        self._check_registered()
        if self._purpose != DATA:
            raise ProtocolError("Batches go over a connection for data.")
        self._syncs.note(len(body))
        try:
            self._services.offered(self.peer, body, self)
        except (StentorError, struct.error):
            raise
        except Exception as error:
            raise self._puzzled(error) from error

    def _puzzled(self, error: Exception) -> StentorError:
        """What another broker says may be nonsense that nobody thought of: that ends its connection, no more."""
        logger.error("could not handle a message of broker %s", self.peer, exc_info=error)
        return InternalError(f"{type(error).__name__}: {error}")

    def _check_registered(self) -> None:
        if not self._services.registered(self.peer):
            raise PeerRefused(f"Broker {self.peer} is not registered any more.")


_HANDLERS: Final[dict[int, Callable[[PeerSession, int, memoryview], None]]] = {
    Kind.PEER: PeerSession._heard,  # noqa: SLF001 - the table is part of the class
    Kind.REPLICATE: PeerSession._replicate,  # noqa: SLF001
    Kind.PING: PeerSession._ping,  # noqa: SLF001
    Kind.PONG: PeerSession._pong,  # noqa: SLF001
    Kind.GOODBYE: PeerSession._goodbye,  # noqa: SLF001
}
