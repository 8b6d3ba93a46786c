"""Redis streams without redis-py: hiredis packs and parses, this file owns the socket.

The most a Python program can get out of a Redis stream with one entry per message: four pipelines in
flight, replies parsed by C, no client library in between. People do not write this; it is here so that
nobody has to wonder.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from bench.model import BenchError
from bench.systems.base import paused

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.model import Spec

READ_COUNT = 1000
BLOCK_MS = 1000
PIPELINES_IN_FLIGHT = 4
RECEIVE_BYTES = 1 << 18


class Connection:
    """A socket with hiredis on both ways."""

    def __init__(self, spec: Spec) -> None:
        import hiredis

        host, _, port = spec.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        # Its stub allows one argument only.
        self.pack: Callable[[tuple[str | int | bytes, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> Any:
        """The next reply."""
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise BenchError("redis closed the connection")
            self._reader.feed(data)
        if isinstance(reply, Exception):
            raise BenchError(f"redis refused: {reply}")
        return reply


class BarePublisher:
    """Pipelines of `batch` XADDs, up to four of them unanswered."""

    pause = staticmethod(paused)

    def __init__(self, spec: Spec) -> None:
        self._connection = Connection(spec)
        self._topic = spec.topic
        self._batch = spec.batch
        self._unanswered: list[int] = []

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        pack, topic = self._connection.pack, self._topic
        for start in range(0, len(keys), self._batch):
            part = slice(start, start + self._batch)
            pairs = zip(keys[part], values[part], strict=True)
            commands = [pack(("XADD", topic, "*", key, value)) for key, value in pairs]
            self._connection.send(b"".join(commands))
            self._unanswered.append(len(commands))
            if len(self._unanswered) >= PIPELINES_IN_FLIGHT:
                self._receive()

    def flush(self) -> None:
        while self._unanswered:
            self._receive()

    def _receive(self) -> None:
        receive = self._connection.receive
        for _ in range(self._unanswered.pop(0)):
            receive()


class BareReader:
    """XREAD from the start, blocking at the end, replies as plain lists."""

    def __init__(self, spec: Spec) -> None:
        self._connection = Connection(spec)
        self._topic = spec.topic
        self._position: bytes = b"0"
        self._entries: list[Any] = []
        self.partitions: list[int] = []

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        add_key, add_value = keys.append, values.append
        while count:
            while not self._entries:
                self._entries = self._read()
            part, self._entries = self._entries[:count], self._entries[count:]
            for _, (key, value) in part:
                add_key(key)
                add_value(value)
            if stamps is not None:
                stamps.extend([time.monotonic_ns()] * len(part))
            count -= len(part)

    def _read(self) -> list[Any]:
        arguments = ("COUNT", READ_COUNT, "BLOCK", BLOCK_MS, "STREAMS", self._topic, self._position)
        self._connection.send(self._connection.pack(("XREAD", *arguments)))
        reply = self._connection.receive()
        if not reply:
            return []
        entries: list[Any] = reply[0][1]
        self._position = entries[-1][0]
        return entries
