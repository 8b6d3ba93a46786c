"""One client per process, opened on first use.

Worker programs import an application, make its broker, and fork. A client's thread does not survive that, so a client
that was opened before is left to the parent, and the child opens its own.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from stentor.errors import StentorError

if TYPE_CHECKING:
    from stentor.client.queue import Queue
    from stentor.client.sync_client import Client

_lock = threading.Lock()


def _forget_lock() -> None:
    """Another thread of the parent may have held it."""
    global _lock  # noqa: PLW0603 - the one way to replace it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


class ClientPerProcess:
    """The client of this process, and the queues that it puts jobs into."""

    def __init__(self, url: str | None, name: str, settings: dict[str, object] | None = None) -> None:
        self.url = url
        self._name = name
        self._settings = settings or {}
        self._client: Client | None = None
        self._queues: dict[str, Queue] = {}
        self._pid = 0

    @property
    def is_open(self) -> bool:
        """Whether this process has opened its client, and not closed it."""
        return self._client is not None and self._pid == os.getpid()

    def client(self) -> Client:
        """Opened if need be."""
        with _lock:
            if self._client is None or self._pid != os.getpid():
                from stentor.client.sync_client import Client

                self._queues = {}
                self._client = Client(self.url, name=f"{self._name}:{os.getpid()}")
                self._pid = os.getpid()
            return self._client

    def queue(self, name: str) -> Queue:
        """To put jobs into. Made with the settings if there is none."""
        self.client()  # first: after a fork the queues are the parent's
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = self.consumer(name, 1)
        return found

    def consumer(self, name: str, prefetch: int) -> Queue:
        """To take jobs from: a queue object of its own."""
        client = self.client()
        if self._settings and name not in self._queues:
            client.create_topic(name, kind="queue", exist_ok=True, **self._settings)  # type: ignore[arg-type]
        return client.queue(name, prefetch=prefetch)

    def forget(self, name: str) -> None:
        """A queue is gone, or will be."""
        self._queues.pop(name, None)

    def close(self) -> None:
        """Let go. A client that the parent of this process opened stays the parent's."""
        with _lock:
            client, self._client, self._queues = self._client, None, {}
            if client is not None and self._pid == os.getpid():
                with suppress(StentorError):
                    client.close()
