"""One client per process and address: Spark's workers are forked, reused, and read many partitions."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

import stentor
from stentor import selectors
from stentor.errors import ConnectionFailed

if TYPE_CHECKING:
    from stentor.client.sync_client import Client

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
"""The pause between attempts to reach a first broker: short beside a broker's restart, long beside an attempt."""

_clients: Final[dict[tuple[int, SparkConnection], Client]] = {}
_lock: Final = threading.Lock()


class SparkConnection(msgspec.Struct, frozen=True):
    """How the brokers are reached; travels to the executors."""

    url: str | None = None
    timeout_s: float = 60.0
    zone: str = ""
    patient: bool = False  # a stream goes on when brokers are back

    def client(self) -> Client:
        """The client of this process, made when it is first needed."""
        key = (os.getpid(), self)
        with _lock:
            found = _clients.get(key)
            if found is None:
                found = _clients[key] = self._connect()
            return found

    def _connect(self) -> Client:
        """Return a client, waiting for a broker within the timeout in streams and tasks: their processes come and go,
        and one that begins while a broker is restarted must not end the query. A person who names a wrong address hears
        of it at once.
        """
        nearest = selectors.nearest_zone(self.zone) if self.zone else None
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return stentor.connect(self.url, name="spark", timeout=self.timeout_s, read_from=nearest)
            except ConnectionFailed as error:
                if not (self.patient or _in_task()) or time.monotonic() > deadline:
                    raise
                logger.warning("%s Trying again.", error.message)
            time.sleep(_RETRY_S)


def _in_task() -> bool:
    from pyspark import TaskContext

    return TaskContext.get() is not None
