"""The attacks of `bench.attacks`: each is what one stranger does, with nothing but valid requests."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stentor import connect
from stentor.wire import batch, frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

FLOOD_S: Final = 6.0


class Raw:
    """A connection without a client around it."""

    def __init__(self, address: str, name: str) -> None:
        host, _, port = address.rpartition("//")[2].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        hello = messages.Hello(version_min=1, version_max=1, name=name, features=list(frames.FEATURES))
        self.send(frames.frame(Kind.HELLO, 0, messages.encode(hello)))
        while self.receive()[0] != Kind.WELCOME:
            pass

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[int, int]:
        """Kind and correlation of the next frame."""
        while len(self._received) < frames.HEADER_BYTES:
            self._more()
        length, kind, _, _, correlation = frames.HEADER.unpack_from(self._received)
        while len(self._received) < frames.HEADER_BYTES + length:
            self._more()
        self._received = self._received[frames.HEADER_BYTES + length :]
        return kind, correlation

    def _more(self) -> None:
        found = self.socket.recv(1 << 16)
        if not found:
            raise ConnectionError("the broker has closed the connection")
        self._received += found

    def read_all(self) -> Raw:
        """Read what comes and throw it away, in a thread."""

        def read() -> None:
            with suppress(OSError):
                while self._reader.recv(1 << 20):
                    pass

        self._reader = self.socket.dup()
        threading.Thread(target=read, daemon=True).start()
        return self

    def flood(self, data: bytes, bytes_per_s: float, seconds: float) -> int:
        """Send the same bytes again and again, at most this fast; return how many were taken."""
        began, sent = time.monotonic(), 0
        self.socket.settimeout(0.5)
        with suppress(OSError):
            while (passed := time.monotonic() - began) < seconds:
                if sent > bytes_per_s * passed:
                    time.sleep(0.001)
                    continue
                with suppress(TimeoutError):
                    sent += self.socket.send(data)
        return sent


@dataclass(frozen=True, slots=True)
class Attack:
    """What is done before, and the attack itself."""

    run: Callable[[str, Any], None]
    prepare: Callable[[str], Any] = lambda _: None
    after_s: float = 1.0  # work that outlives the attacker


def topic_id(address: str, name: str, **settings: Any) -> int:
    """Make a topic; return its id."""
    with connect(address, name="preparing", timeout=60.0) as client:
        client.create_topic(name, exist_ok=True, **settings)
        return int(client.describe_topic(name).id)


def publish_frame(topic: int, values: list[bytes], ack: int, keys: list[bytes] | None = None) -> bytes:
    """One batch of a producer that is not known."""
    encoded = batch.encode_at(time.time_ns() // 1000, keys or [None] * len(values), values)
    header = batch.address(encoded, topic_id=topic, partition=0, producer_id=0, generation=0, sequence=0)
    body = bytes(header) + bytes(encoded.body)
    return frames.frame(Kind.PUBLISH, 1, body, flags=ack)


# --- a fast sender (a read without a budget) ----------------------------------------------------


def small_publishes(address: str, topic: int) -> None:
    frame = publish_frame(topic, [b"x" * 20], frames.Ack.NONE)
    Raw(address, "fast").flood(frame * 4_000, 6e6, FLOOD_S)


def tiny_frames(address: str, _: Any) -> None:
    frame = frames.frame(Kind.CREDIT, 1, frames.CREDIT.pack(1))
    Raw(address, "fast").flood(frame * 10_000, 3e6, FLOOD_S)


def refused_frames(address: str, _: Any) -> None:
    """Frames of 40 bytes that are answered with an error each, which is read and thrown away."""
    frame = frames.frame(Kind.PUBLISH, 1, bytes(24), flags=1)
    Raw(address, "fast").read_all().flood(frame * 10_000, 3e6, FLOOD_S)


def requests(address: str, _: Any) -> None:
    """Requests on twenty connections, as many as there may be."""
    frame = frames.frame(Kind.REQUEST, 1, messages.encode(messages.ListTopics()))
    raws = [Raw(address, "asking").read_all() for _ in range(20)]
    ends = time.monotonic() + FLOOD_S
    while time.monotonic() < ends:
        for raw in raws:
            raw.flood(frame * 32, 1e9, 0.002)


ATTACKS: Final[dict[str, Attack]] = {
    "small publishes at 6 MB/s": Attack(small_publishes, lambda address: topic_id(address, "target")),
    "tiny frames at 3 MB/s": Attack(tiny_frames),
    "refused frames at 3 MB/s": Attack(refused_frames),
    "requests on 20 connections": Attack(requests),
}
