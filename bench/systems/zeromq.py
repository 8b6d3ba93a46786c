"""Bare pyzmq PUB/SUB between two processes: no broker, no log, no acknowledgement. A limit, not a peer.

    frames    two frames per message: key and value
    packed    `batch` messages packed as MessagePack (msgspec) in one frame

The socket blocks instead of dropping when the subscriber is slow (XPUB_NODROP), or nothing could be
verified.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.processes import Server, free_port
from bench.systems.base import System, paused

if TYPE_CHECKING:
    from pathlib import Path

    from bench.model import Case, Spec
    from bench.processes import Processes
    from bench.systems.base import Publisher, Reader

HIGH_WATER_MESSAGES = 20_000
HIGH_WATER_PACKED = 20


class ZeroMQ(System):
    name = "zeromq"

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        return Server(f"tcp://127.0.0.1:{free_port()}")

    def publisher(self, spec: Spec) -> Publisher:
        return PubPublisher(spec)

    def reader(self, spec: Spec) -> Reader:
        return PackedReader(spec) if spec.mode == "packed" else FrameReader(spec)


def high_water(spec: Spec) -> int:
    return HIGH_WATER_PACKED if spec.mode == "packed" else HIGH_WATER_MESSAGES


class PubPublisher:
    pause = staticmethod(paused)

    def __init__(self, spec: Spec) -> None:
        import msgspec
        import zmq

        self._encode = msgspec.msgpack.Encoder().encode
        self._batch = spec.batch
        self._packed = spec.mode == "packed"
        self._socket = zmq.Context().socket(zmq.XPUB)
        self._socket.set(zmq.XPUB_NODROP, 1)
        self._socket.set(zmq.SNDHWM, high_water(spec))
        self._socket.bind(spec.address)
        # The subscription itself arrives as a message: from here on nothing is dropped.
        self._socket.recv()

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        if not self._packed:
            send = self._socket.send_multipart
            for pair in zip(keys, values, strict=True):
                send(pair, copy=True)
            return
        for start in range(0, len(keys), self._batch):
            part = slice(start, start + self._batch)
            self._socket.send(self._encode((keys[part], values[part])), copy=True)

    def flush(self) -> None:
        """There is nothing to wait for: nobody acknowledges."""


class FrameReader:
    def __init__(self, spec: Spec) -> None:
        self._socket = subscribed(spec)
        self.partitions: list[int] = []

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        receive = self._socket.recv_multipart
        for _ in range(count):
            key, value = receive()
            keys.append(key)
            values.append(value)
            if stamps is not None:
                stamps.append(time.monotonic_ns())


class PackedReader:
    def __init__(self, spec: Spec) -> None:
        import msgspec

        self._decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes]]).decode
        self._socket = subscribed(spec)
        self._messages: tuple[list[bytes], list[bytes]] = ([], [])
        self.partitions: list[int] = []

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        while count:
            if not self._messages[0]:
                self._messages = self._decode(self._socket.recv())
            all_keys, all_values = self._messages
            self._messages = (all_keys[count:], all_values[count:])
            for key, value in zip(all_keys[:count], all_values[:count], strict=True):
                keys.append(key)
                values.append(value)
            taken = min(count, len(all_keys))
            if stamps is not None:
                stamps.extend([time.monotonic_ns()] * taken)
            count -= taken


def subscribed(spec: Spec) -> Any:
    import zmq

    socket = zmq.Context().socket(zmq.SUB)
    socket.set(zmq.RCVHWM, high_water(spec))
    socket.connect(spec.address)
    socket.subscribe(b"")
    return socket


SYSTEM = ZeroMQ()
