"""A client of the Clustered Hashmap Protocol, written from RFC 12 alone. It knows nothing of Stentor."""

from __future__ import annotations

import struct
import time
import uuid
from typing import NamedTuple

import zmq

WAIT_MS = 15_000


class Said(NamedTuple):
    """Five frames of a server."""

    key: bytes
    sequence: int
    uuid: bytes
    properties: bytes
    value: bytes

    @classmethod
    def of(cls, frames):
        assert len(frames) == 5, frames
        key, sequence, *rest = frames
        assert len(sequence) == 8
        return cls(key, struct.unpack("!Q", sequence)[0], *rest)


class ChpClient:
    """Sockets to one server on ports P, P + 1 and P + 2, as RFC 12 describes them."""

    def __init__(self, port, subtree=b"", publish_with=zmq.PUB, host="127.0.0.1"):
        self.subtree = subtree
        self.context = zmq.Context()
        self.context.linger = 0
        self.snapshot = self.context.socket(zmq.DEALER)
        self.subscriber = self.context.socket(zmq.SUB)
        self.publisher = self.context.socket(publish_with)
        for socket, offset in ((self.snapshot, 0), (self.subscriber, 1), (self.publisher, 2)):
            socket.rcvtimeo = socket.sndtimeo = WAIT_MS
            socket.connect(f"tcp://{host}:{port + offset}")
        self.subscriber.subscribe(subtree)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    # --- the frames -----------------------------------------------------------------------------

    def icanhaz(self):
        """Ask for a snapshot: (KVSYNCs, KTHXBAI)."""
        self.snapshot.send_multipart([b"ICANHAZ?", self.subtree])
        found = []
        while True:
            said = Said.of(self.snapshot.recv_multipart())
            if said.key == b"KTHXBAI":
                return found, said
            found.append(said)

    def hear(self):
        """The next message of the publisher, a sign of life too."""
        return Said.of(self.subscriber.recv_multipart())

    def hear_change(self):
        """The next KVPUB."""
        while True:
            said = self.hear()
            if said.sequence:
                return said

    def kvset(self, key, value, properties=b"", ident=None):
        """Publish a change; its UUID."""
        ident = uuid.uuid4().bytes if ident is None else ident
        self.publisher.send_multipart([key, bytes(8), ident, properties, value])
        return ident

    def until_connected(self):
        """A PUB socket drops what it sends before its peer has subscribed, and a SUB socket misses what was published
        before: publish until it comes back.
        """
        deadline = time.monotonic() + WAIT_MS / 1000
        prefix = self.subtree or b"/"
        while time.monotonic() < deadline:
            mine = self.kvset(prefix + b"hello", b"%f" % time.monotonic())
            while self.subscriber.poll(100):
                if self.hear().uuid == mine:
                    return self
        raise AssertionError("no change came back")


class Replica:
    """What a client of RFC 12 keeps: a dict, a sequence, and the rules by which they change."""

    def __init__(self, client):
        self.client = client
        found, end = client.icanhaz()
        self.values = {said.key: said.value for said in found}
        self.sequence = end.sequence
        self.discarded = 0

    def take(self):
        """Apply one message of the publisher."""
        said = self.client.hear()
        if said.sequence <= self.sequence:
            self.discarded += 1
            return
        self.sequence = said.sequence
        if said.value:
            self.values[said.key] = said.value
        else:
            self.values.pop(said.key, None)

    def take_until(self, condition):
        deadline = time.monotonic() + WAIT_MS / 1000
        while not condition(self.values):
            assert time.monotonic() < deadline, self.values
            self.take()
