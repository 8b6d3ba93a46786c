"""The limit of the machine: the same bytes through bare sockets and one file, no message handling at all.

    producer ──sendall──► copier ──write──► file
                            └─────────────► consumer

    write   forwards and acknowledges what it has written                                         (os)
    group   a second thread syncs all that was written, then forwards it from the file
            and acknowledges it                                                                   (fsync)
    each    one message, one sync, one acknowledgement; for single publishes                      (fsync)

The producer sends batches encoded beforehand in Arrow's layout (timestamps, key and value columns); the
consumer counts bytes and decodes nothing. Stream to the copier and on to the consumer:

    +0  u64 length of the body    +8  u64 messages in the pass if this is its last unit, else 0    +16  body

The copier does not look at it. Back to the producer go u64 totals of acknowledged bytes.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

from bench.messages import LAST, SEQUENCE, Pool
from bench.model import BenchError
from bench.processes import Server
from bench.systems.base import System, paused, time_publishes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.model import Case, Spec
    from bench.processes import Processes
    from bench.systems.base import Publisher, Reader

HEADER = struct.Struct("<QQ")
TOTAL = struct.Struct("<Q")
BUFFER_BYTES = 1048576
UNSYNCED_BYTES_MAX = 64 << 20


class Copier(System):
    name = "copier"

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        data = directory / "copier"
        data.mkdir()
        command = [sys.executable, "-m", "bench.systems.copier", case.mode, str(data / "log")]
        process, line = processes.start_announcing(self.name, command, "copier ready")
        return Server(line.split()[-1], data, process)

    def publisher(self, spec: Spec) -> Publisher:
        return BytesPublisher(spec)

    def reader(self, spec: Spec) -> Reader:
        return BytesReader(spec)

    def publish_times(self, spec: Spec, pool: Pool) -> list[int]:
        connection = dial(spec, b"P")

        def publish(key: bytes, value: bytes) -> None:
            connection.sendall(key + value)
            if not connection.recv(TOTAL.size, socket.MSG_WAITALL):
                raise BenchError("the copier closed the connection")

        return time_publishes(publish, pool, spec.seconds)


def dial(spec: Spec, side: bytes) -> socket.socket:
    host, _, port = spec.address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(side)
    return connection


def encode(keys: list[bytes], values: list[bytes]) -> bytes:
    """A batch in Arrow's layout: columns of timestamps, offsets and bytes."""
    count = len(values)
    parts = [bytes(8 * count)]
    for column in (keys, values):
        lengths = [len(item) for item in column]
        parts += [np.cumsum([0, *lengths], dtype="<i4").tobytes(), *column]
    return b"".join(parts)


class BytesPublisher:
    pause = staticmethod(paused)

    def __init__(self, spec: Spec) -> None:
        pool = Pool(spec.size, spec.unit, spec.seed)
        units = itertools.islice(pool.units(spec.unit), pool.length // spec.unit)
        self._bodies: Iterator[bytes] = itertools.cycle([encode(*unit) for unit in units])
        self._connection = dial(spec, b"P")
        self._sent_bytes = 0

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        """Sends the next body; the arguments only tell whether it is the last of the pass."""
        (sequence,) = SEQUENCE.unpack_from(values[-1])
        body = next(self._bodies)
        last = sequence - LAST if sequence >= LAST else 0
        self._connection.sendall(HEADER.pack(len(body), last))
        self._connection.sendall(body)
        self._sent_bytes += HEADER.size + len(body)

    def flush(self) -> None:
        acknowledged = 0
        while acknowledged < self._sent_bytes:
            total = self._connection.recv(TOTAL.size, socket.MSG_WAITALL)
            if not total:
                raise BenchError("the copier closed the connection")
            (acknowledged,) = TOTAL.unpack(total)


class BytesReader:
    """Counts bytes; `skim` stands in for `take` because there are no messages to take."""

    def __init__(self, spec: Spec) -> None:
        self._connection = dial(spec, b"C")
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self.partitions: list[int] = []

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        raise NotImplementedError

    def skim(self) -> int:
        """Reads one pass and returns how many messages it stood for."""
        while True:
            header = self._connection.recv(HEADER.size, socket.MSG_WAITALL)
            if len(header) < HEADER.size:
                raise BenchError("the copier closed the connection")
            left, last = HEADER.unpack(header)
            while left:
                left -= self._connection.recv_into(self._buffer, min(left, BUFFER_BYTES))
            if last:
                return int(last)


def accept(listener: socket.socket, sides: int) -> dict[bytes, socket.socket]:
    connections = {}
    for _ in range(sides):
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[connection.recv(1)] = connection
    return connections


def copy_written(producer: socket.socket, consumer: socket.socket, file: int) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    total = 0
    while count := producer.recv_into(buffer):
        os.write(file, buffer[:count])
        consumer.sendall(buffer[:count])
        total += count
        producer.sendall(TOTAL.pack(total))


def copy_synced_each(producer: socket.socket, file: int) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    total = 0
    while count := producer.recv_into(buffer):
        os.write(file, buffer[:count])
        os.fdatasync(file)
        total += count
        producer.sendall(TOTAL.pack(total))


class GroupCommit:
    """One thread receives and writes; the other syncs what is written, then forwards and acknowledges it."""

    def __init__(self, producer: socket.socket, consumer: socket.socket, file: int) -> None:
        self._producer = producer
        self._consumer = consumer
        self._file = file
        self._changed = threading.Condition()
        self._written = 0
        self._synced = 0
        self._ended = False

    def run(self) -> None:
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._written > self._synced)
                target = self._written
            if target == self._synced:
                return
            os.fdatasync(self._file)
            self._producer.sendall(TOTAL.pack(target))
            while self._synced < target:
                sent = os.sendfile(self._consumer.fileno(), self._file, self._synced, target - self._synced)
                with self._changed:
                    self._synced += sent
                    self._changed.notify()

    def _receive(self) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        while count := self._producer.recv_into(buffer):
            os.write(self._file, buffer[:count])
            with self._changed:
                self._changed.wait_for(lambda: self._written - self._synced < UNSYNCED_BYTES_MAX)
                self._written += count
                self._changed.notify()
        with self._changed:
            self._ended = True
            self._changed.notify()


def main(mode: str, path: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    print(f"copier ready {host}:{port}", flush=True)
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    connections = accept(listener, sides=1 if mode == "each" else 2)
    if mode == "each":
        copy_synced_each(connections[b"P"], file)
    elif mode == "group":
        GroupCommit(connections[b"P"], connections[b"C"], file).run()
    else:
        copy_written(connections[b"P"], connections[b"C"], file)


SYSTEM = Copier()

if __name__ == "__main__":
    main(*sys.argv[1:])
