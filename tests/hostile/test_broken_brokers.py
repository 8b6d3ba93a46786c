"""A client in front of a broker that dies, lies or talks nonsense gets a typed error in time, or carries on."""

import contextlib
import random
import socket
import struct
import threading

import pytest
from crc32c import crc32c

import stentor
from stentor.errors import StentorError
from stentor.testing import broker
from stentor.wire import batch, frames, messages
from stentor.wire.frames import Kind
from stentor.wire.header import seal, stamp

INFO = messages.BrokerInfo(id="b", cluster_id="c", version="1", address="h:1")
WELCOME = frames.frame(Kind.WELCOME, 0, messages.encode(messages.Welcome(version=1, broker=INFO)))
ROUTE = messages.TopicRoute(
    name="t",
    id=5,
    settings=messages.TopicSettings(),
    partitions=[messages.PartitionRoute(epoch=1, chain=["b"])],
)
ROUTES = messages.encode(messages.RouteTable(version=1, brokers=[INFO], topics=[ROUTE]))


class ScriptedBroker:
    """Listens, and serves each connection by the next of its scripts; the last one serves all further ones."""

    def __init__(self, *scripts):
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self):
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            threading.Thread(target=self._run, args=(script, connection)).start()

    def _run(self, script, connection):
        with contextlib.suppress(OSError, EOFError):
            connection.settimeout(20)
            script(connection)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def receive(connection):
    def take(count):
        data = b""
        while len(data) < count:
            piece = connection.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    length, kind, _, _, correlation = frames.HEADER.unpack(take(16))
    return kind, correlation, take(length)


def reset(connection):
    """Close with a RST, as a killed process does when something was unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def greet(connection):
    """HELLO and the first request, which asks for the routes, are answered as a broker would."""
    receive(connection)
    connection.sendall(WELCOME)
    kind = None
    while kind != Kind.REQUEST:
        kind, correlation, _ = receive(connection)
    connection.sendall(frames.frame(Kind.RESPONSE, correlation, ROUTES))


def serve(answer=None):
    """A broker that answers pings, and everything else by `answer(kind, correlation, body)`."""

    def script(connection):
        greet(connection)
        while True:
            kind, correlation, body = receive(connection)
            if kind == Kind.PING:
                connection.sendall(frames.frame(Kind.PONG, correlation))
            elif answer is not None:
                said = answer(kind, correlation, body)
                if said is not None:
                    connection.sendall(said)

    return script


def acknowledge(kind, correlation, body):
    return frames.frame(Kind.PUBLISHED, correlation, frames.PUBLISHED.pack(7, 1, 1)) if kind == Kind.PUBLISH else None


# --- brokers that are none ----------------------------------------------------------------------


def say(data):
    def script(connection):
        connection.sendall(data)
        receive(connection)

    return script


@pytest.mark.parametrize(
    "script",
    [
        lambda connection: connection.close(),
        reset,
        say(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
        say(random.Random(1).randbytes(5000)),
        say(frames.HEADER.pack(2**32 - 1, Kind.WELCOME, 0, 0, 0)),
        say(frames.frame(Kind.WELCOME, 0, b"\xc1")),
        say(frames.frame(Kind.ERROR, 0, b"")),
        say(frames.frame(Kind.GOODBYE, 0)),
        say(WELCOME[:10]),
        receive,
    ],
    ids=["closes", "resets", "http", "noise", "huge", "bad welcome", "bad error", "goodbye", "half", "silent"],
)
def test_connecting_to_what_is_no_broker_ends_in_a_typed_error_in_time(script):
    with ScriptedBroker(script) as other, pytest.raises(StentorError) as caught:
        stentor.connect(other.url, timeout=2)
    assert str(caught.value)


def test_a_refusal_of_the_broker_reaches_the_person_who_connects():
    failure = messages.Failure(code="limit_exceeded", message="It is full.", hint="Come back later.")
    script = say(frames.frame(Kind.ERROR, 0, messages.encode(failure)))
    with ScriptedBroker(script) as other, pytest.raises(stentor.LimitExceeded) as caught:
        stentor.connect(other.url, timeout=2)
    assert str(caught.value) == "It is full. Come back later."


# --- brokers that die ---------------------------------------------------------------------------


def dies_after_greeting(connection):
    """The last answer and the end of the connection arrive together."""
    greet(connection)
    connection.close()


def dies_at_the_first_publish(connection):
    greet(connection)
    while receive(connection)[0] != Kind.PUBLISH:
        pass
    reset(connection)


@pytest.mark.timeout(60)
def test_a_broker_that_dies_right_after_the_greeting_is_connected_to_again():
    scripts = [dies_at_the_first_publish, *[dies_after_greeting] * 5, serve(acknowledge)]
    with ScriptedBroker(*scripts) as dying:
        client = stentor.connect(dying.url, timeout=5)
        try:
            assert client.publish("t", b"x").offset == 7
        finally:
            with contextlib.suppress(StentorError):
                client.close()


@pytest.mark.timeout(60)
def test_a_first_connection_that_dies_right_after_the_greeting_is_an_error_or_works():
    for _ in range(3):
        with (
            ScriptedBroker(dies_after_greeting, serve(acknowledge)) as dying,
            contextlib.suppress(stentor.ConnectionFailed),
            stentor.connect(dying.url, timeout=5) as client,
        ):
            assert client.publish("t", b"x", timeout=10).offset == 7


# --- brokers that talk nonsense -----------------------------------------------------------------

NONSENSE = {
    "a published of the wrong size": frames.frame(Kind.PUBLISHED, 2, b"123"),
    "a delivery that is too short": frames.frame(Kind.DELIVER, 2, b"123"),
    "a response that is none": frames.frame(Kind.RESPONSE, 2, b"\xc1"),
    "an error that is none": frames.frame(Kind.ERROR, 2, b"\xc1"),
    "routes that are none": frames.frame(Kind.ROUTES, 0, b"\xc1"),
    "a stream's end that is none": frames.frame(Kind.STREAM_ENDED, 2, b"\xc1"),
    "an unknown kind": frames.frame(200, 2, b""),
    "reserved bytes": frames.HEADER.pack(0, Kind.PONG, 0, 1, 0),
    "a huge length": frames.HEADER.pack(2**32 - 1, Kind.DELIVER, 0, 0, 2),
    "noise": random.Random(2).randbytes(3000),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_a_broker_that_talks_nonsense_is_left_and_connected_to_again(nonsense):
    def talks_nonsense(connection):
        greet(connection)
        while True:
            kind, correlation, _ = receive(connection)
            if kind != Kind.PING:
                header = bytearray(nonsense)
                if len(header) >= 16 and header[8] == 2:
                    struct.pack_into("<Q", header, 8, correlation)
                connection.sendall(header)

    with (
        ScriptedBroker(talks_nonsense, serve(acknowledge)) as other,
        stentor.connect(other.url, timeout=2) as client,
        contextlib.suppress(StentorError),
    ):
        assert client.publish("t", b"x", timeout=2).offset == 7


@pytest.mark.timeout(60)
def test_frames_of_a_newer_broker_that_mean_nothing_to_us_are_ignored():
    def newer(connection):
        greet(connection)
        for kind in (Kind.STREAM_STATE, Kind.DELIVER, Kind.PUBLISHED, Kind.STREAM_ENDED, Kind.RESPONSE, Kind.PONG):
            connection.sendall(frames.frame(kind, 10**6, bytes(24)))
        while True:
            kind, correlation, body = receive(connection)
            said = acknowledge(kind, correlation, body)
            if said is not None:
                connection.sendall(said)

    with ScriptedBroker(newer) as other, stentor.connect(other.url, timeout=5) as client:
        assert client.publish("t", b"x").offset == 7


# --- brokers that deliver damage ----------------------------------------------------------------


def delivering(chunk, committed=100):
    def answer(kind, correlation, body):
        if kind == Kind.REQUEST:
            found = messages.OffsetFound(offset=0, start=0, committed=committed)
            return frames.frame(Kind.RESPONSE, correlation, messages.encode(found))
        if kind == Kind.OPEN_STREAM:
            delivery = frames.DELIVERY.pack(committed, 1, 0, committed) + chunk
            return frames.frame(Kind.DELIVER, correlation, delivery)
        return None

    return serve(answer)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("form", ["messages", "batches"])
@pytest.mark.parametrize("damage", ["flipped", "cut off", "noise", "forged body"])
def test_a_damaged_delivery_is_corrupt_data_and_never_a_message(damage, form):
    columns = [5] * 20, [b"k"] * 20, [b"v"] * 20
    encoded = batch.encode(*columns)
    header = batch.address(encoded, topic_id=5, partition=0, producer_id=0, generation=0, sequence=0)
    chunk = bytearray(header + encoded.body)
    stamp(memoryview(chunk), 0, base_offset=0, epoch=1, appended_at_us=5)
    match damage:
        case "flipped":
            chunk[200] ^= 1
        case "cut off":
            del chunk[-10:]
        case "noise":
            chunk[:] = random.Random(3).randbytes(500)
        case "forged body":
            chunk[96:] = random.Random(4).randbytes(len(chunk) - 96)
            struct.pack_into("<I", chunk, 12, crc32c(bytes(chunk[96:])))
            seal(memoryview(chunk), 0)
    with (
        ScriptedBroker(delivering(bytes(chunk))) as other,
        stentor.connect(other.url, timeout=5) as client,
        client.subscribe("t", start="earliest") as subscription,
    ):
        take = subscription.batches().__next__ if form == "batches" else subscription.get
        with pytest.raises(stentor.CorruptData) as caught:
            take()
    assert str(caught.value)


# --- a real one, killed while connecting --------------------------------------------------------


@pytest.mark.timeout(120)
def test_clients_that_connect_while_the_broker_goes_up_and_down_end_up_connected():
    with broker() as local:
        clients = [local.client(timeout=30) for _ in range(6)]
        for _ in range(4):
            local.stop()
            local.start()
        for number, client in enumerate(clients):
            assert client.publish(f"t{number}", b"x", timeout=30).offset == 0
            client.close()
