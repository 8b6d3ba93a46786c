"""One client per process and address: Spark's workers are forked, reused, and read many partitions."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

import msgspec

import stentor
from stentor import selectors

if TYPE_CHECKING:
    from stentor.client.sync_client import Client

_clients: Final[dict[tuple[int, SparkConnection], Client]] = {}
_lock: Final = threading.Lock()


class SparkConnection(msgspec.Struct, frozen=True):
    """How the brokers are reached; travels to the executors."""

    url: str | None = None
    timeout_s: float = 60.0
    zone: str = ""

    def client(self) -> Client:
        """The client of this process, made when it is first needed."""
        key = (os.getpid(), self)
        with _lock:
            found = _clients.get(key)
            if found is None:
                nearest = selectors.nearest_zone(self.zone) if self.zone else None
                found = stentor.connect(self.url, name="spark", timeout=self.timeout_s, read_from=nearest)
                _clients[key] = found
            return found
