"""A connection that brings batches, from a client or from another broker: when a read of it is over, and its syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.broker.sessions.inline_sync import InlineSync, ReadSyncs
from stentor.broker.sessions.session import Session

if TYPE_CHECKING:
    from stentor.broker.partitions.interfaces import DeferredSync
    from stentor.broker.sessions.session import Caller, Reception
    from stentor.ports import Clock
    from stentor.transport.connection import Connection


class BatchSession(Session):
    """The owner of a connection that batches come on."""

    def __init__(
        self, connection: Connection, caller: Caller, reception: Reception, clock: Clock, inline_sync: InlineSync
    ) -> None:
        super().__init__(connection, caller, reception, clock)
        self._syncs = ReadSyncs(inline_sync)
        self._reading = False  # frames of one read are being handled

    def read_finished(self) -> None:
        self._reading = False
        self._syncs.finish()
        self._flush_answers()

    def defer_sync(self, sync: DeferredSync) -> bool:
        """Whether a sync may wait for the end of this read, to be done in the loop."""
        return self._reading and self._syncs.defer(sync)
