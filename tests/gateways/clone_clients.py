"""Clients that behave as those of the ZeroMQ Guide's Clone models 2 to 6: same sockets, same frames, same rules."""

from __future__ import annotations

import struct
import time
import uuid

import zmq

WAIT_S = 20.0
SILENCE_S = 5.0  # the Guide's clients give a server so long
SUBTREE = b"/client/"


def number(frame):
    return struct.unpack("!q", frame)[0]


class Clone:
    """What all models share: a dict, a sequence, and the rule that an old sequence is discarded."""

    frames = 5
    sequence_format = "!q"
    subtree = SUBTREE  # what it asks for, and where its own keys are

    def __init__(self):
        self.context = zmq.Context()
        self.values = {}
        self.sequence = 0
        self.mine = {}  # key to value, as this client set it and heard it back

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def socket(self, kind, *endpoints):
        made = self.context.socket(kind)
        made.linger = 0
        if kind == zmq.SUB:
            made.subscribe(self.subtree)
        for endpoint in endpoints:
            made.connect(endpoint)
        return made

    def message(self, key, value, properties=b""):
        if self.frames == 3:
            return [key, struct.pack(self.sequence_format, 0), value]
        return [key, bytes(8), self.new_uuid(), properties, value]

    def number(self, frame):
        return struct.unpack(self.sequence_format, frame)[0]

    @staticmethod
    def new_uuid():
        """As C and Python have it."""
        return uuid.uuid4().bytes

    def store(self, frames):
        assert len(frames) == self.frames, frames
        key, value = frames[0], frames[-1]
        if value:
            self.values[key] = value
        else:
            self.values.pop(key, None)

    def update(self, frames):
        if self.number(frames[1]) > self.sequence:
            self.sequence = self.number(frames[1])
            self.store(frames)


class ModelFour(Clone):
    """One server, a subtree, three frames; changes are pushed."""

    frames = 3

    def __init__(self, port):
        super().__init__()
        self.snapshot = self.socket(zmq.DEALER, f"tcp://localhost:{port}")
        self.subscriber = self.socket(zmq.SUB, f"tcp://localhost:{port + 1}")
        self.publisher = self.socket(zmq.PUSH, f"tcp://localhost:{port + 2}")
        self.snapshot.send_multipart([b"ICANHAZ?", *([self.subtree] if self.subtree else [])])
        while True:
            frames = self.snapshot.recv_multipart()
            if frames[0] == b"KTHXBAI":
                self.sequence = self.number(frames[1])
                break
            self.store(frames)

    def set(self, key, value, properties=b""):
        """As the Guide's, it has its own change at once."""
        frames = self.message(self.subtree + key, value, properties)
        self.publisher.send_multipart(frames)
        self.store(frames)

    def follow_until(self, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition(self.values):
            assert time.monotonic() < deadline, self.values
            if self.subscriber.poll(100):
                self.update(self.subscriber.recv_multipart())


class ModelThree(ModelFour):
    """No subtrees: its keys are numbers, without a slash. Model 2 is the same, but makes no changes."""

    subtree = b""


class PythonModelFour(ModelFour):
    """The Guide's Python clients of models 1 to 4 have sequences of four bytes."""

    sequence_format = "!l"


class PythonModelThree(ModelThree):
    """As above."""

    sequence_format = "!l"


class ModelFive(ModelFour):
    """The same with five frames, and properties such as a ttl."""

    frames = 5


class Server:
    """One of the two that a client of model 6 knows."""

    def __init__(self, clone, port):
        self.port = port
        self.snapshot = clone.socket(zmq.DEALER, f"tcp://localhost:{port}")
        self.subscriber = clone.socket(zmq.SUB, f"tcp://localhost:{port + 1}")
        self.expires = 0.0
        self.requests = 0


class ModelSix(Clone):
    """Two servers: asks one for its state, follows it, and turns to the other when it is silent.

    Changes go to both with a PUB socket, as the Guide's C client has it, or to one after the other with PUSH, as its
    Python client has it.
    """

    def __init__(self, ports, publish_with=zmq.PUB):
        super().__init__()
        self.servers = [Server(self, port) for port in ports]
        self.publisher = self.socket(publish_with, *(f"tcp://localhost:{port + 2}" for port in ports))
        self.current = 0
        self.state = "initial"
        self.turns = 0  # how often it went to another server

    @property
    def server(self):
        return self.servers[self.current]

    def set(self, key, value, ttl=0):
        properties = b"ttl=%d\n" % ttl if ttl else b""
        self.publisher.send_multipart(self.message(SUBTREE + key, value, properties))

    def step(self):
        """One round of the agent."""
        server = self.server
        if self.state == "initial":
            if server.requests < 2:
                server.snapshot.send_multipart([b"ICANHAZ?", SUBTREE])
                server.requests += 1
            server.expires = time.monotonic() + SILENCE_S
            self.state = "syncing"
        socket = server.subscriber if self.state == "active" else server.snapshot
        left_ms = max(0, int(1000 * (server.expires - time.monotonic())))
        if socket.poll(min(left_ms, 100)):
            self.hear(server, socket.recv_multipart())
        elif time.monotonic() > server.expires:
            self.current = (self.current + 1) % len(self.servers)
            self.turns += 1
            self.state = "initial"

    def hear(self, server, frames):
        server.expires = time.monotonic() + SILENCE_S
        if self.state == "active":
            self.update(frames)
            return
        server.requests = 0
        if frames[0] == b"KTHXBAI":
            self.sequence = number(frames[1])
            self.state = "active"
        else:
            self.store(frames)

    def run_until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < deadline, (self.state, self.current, self.values)
            self.step()

    def set_until_heard(self, key, value):
        """A change is safe when it comes back; a PUB socket drops what it sends before it is connected."""
        again_at = 0.0

        def heard(clone):
            nonlocal again_at
            if clone.values.get(SUBTREE + key) == value:
                return True
            if time.monotonic() > again_at:
                clone.set(key, value)
                again_at = time.monotonic() + 1.0
            return False

        self.run_until(heard)
        self.mine[SUBTREE + key] = value


class JavaModelSix(ModelSix):
    """The Guide's Java client: its UUIDs are text."""

    @staticmethod
    def new_uuid():
        return str(uuid.uuid4()).encode()


class PythonModelSix(ModelSix):
    """The Guide's Python client: it follows a subtree, and its own keys are numbers that are in none."""

    def set(self, key, value, ttl=0):
        properties = b"ttl=%d\n" % ttl if ttl else b""
        self.publisher.send_multipart(self.message(key, value, properties))
