"""What docs/protocol.md claims about behaviour, asked of a real broker over a bare socket."""

import socket
import struct

import pytest
from crc32c import crc32c
from msgspec import msgpack

from stentor import limits
from stentor.testing import broker
from stentor.wire.frames import Ack, Kind

FRAME = struct.Struct("<IBBHQ")
BATCH = struct.Struct("<4sIIIQIIQIIqqqQIIQ")
WAIT_S = 10
CREDIT = 1 << 20


class Wire:
    """A connection that says exactly what it is told to say."""

    def __init__(self, url):
        host, _, port = url.removeprefix("stentor://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self.file = self.socket.makefile("rb")
        self.flags = 0  # of the frame that was received last

    def send(self, kind, body=b"", correlation=0, flags=0):
        if isinstance(body, dict):
            body = msgpack.encode(body)
        self.socket.sendall(FRAME.pack(len(body), kind, flags, 0, correlation) + body)

    def receive(self):
        """(kind, correlation id, body) of the next frame; None when the broker has closed."""
        header = self.file.read(FRAME.size)
        if not header:
            return None
        length, kind, self.flags, _, correlation = FRAME.unpack(header)
        body = self.file.read(length)
        fixed = kind in {Kind.PUBLISHED, Kind.DELIVER, Kind.STREAM_STATE} or not body
        return Kind(kind), correlation, body if fixed else msgpack.decode(body)

    def receive_past_state(self):
        """The same without STREAM_STATE, which may come at any time."""
        while (frame := self.receive()) is not None and frame[0] == Kind.STREAM_STATE:
            pass
        return frame

    def greet(self):
        self.send(Kind.HELLO, {"version_min": 1, "version_max": 1})
        assert self.receive()[0] == Kind.WELCOME
        return self

    def ask(self, correlation, **request):
        self.send(Kind.REQUEST, request, correlation)
        return self.receive()

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture(scope="module")
def local():
    with broker() as started:
        yield started


@pytest.fixture
def connect(local):
    opened = []

    def make():
        opened.append(Wire(local.url))
        return opened[-1]

    yield make
    for wire in opened:
        wire.close()


@pytest.fixture
def wire(connect):
    return connect().greet()


@pytest.fixture
def topic_id(wire, request):
    name = request.node.name.partition("[")[0]
    return wire.ask(1, type="CreateTopic", name=name, settings={})[2]["topic"]["id"]


def batch(topic_id, *values, producer_id=0, generation=0, sequence=0):
    body = b"".join(struct.pack("<qiii", 1, -1, len(value), -1) + value for value in values)
    return sealed(topic_id, body, len(values), producer_id, generation, sequence)


def sealed(topic_id, body, count, producer_id=0, generation=0, sequence=0, attributes=0):
    fields = [
        0,
        96 + len(body),
        crc32c(body),
        topic_id,
        0,
        count,
        0,
        0,
        attributes,
        1,
        1,
        0,
        producer_id,
        generation,
        count,
        sequence,
    ]
    fields[0] = crc32c(BATCH.pack(b"STB\1", *fields)[8:])
    return BATCH.pack(b"STB\1", *fields) + body


def publish(wire, correlation, data, ack=Ack.ALL):
    """The base offset, or the failure."""
    wire.send(Kind.PUBLISH, data, correlation, ack)
    kind, answered, body = wire.receive_past_state()
    assert answered == correlation
    return struct.unpack_from("<Q", body)[0] if kind == Kind.PUBLISHED else body


# --- connection ---------------------------------------------------------------------------------


def refused(wire, code):
    kind, correlation, body = wire.receive()
    return (kind, correlation, body["code"]) == (Kind.ERROR, 0, code) and wire.receive() is None


def test_without_a_version_in_common_there_is_an_error_and_a_close(connect):
    wire = connect()
    wire.send(Kind.HELLO, {"version_min": 99, "version_max": 100})
    assert refused(wire, "version_mismatch")


def test_the_highest_common_version_is_chosen_and_defaults_are_left_out(connect):
    wire = connect()
    wire.send(Kind.HELLO, {"version_min": 0, "version_max": 7, "unknown_field": [1, 2]})
    welcome = wire.receive()[2]
    assert welcome["version"] == 1
    assert "silence_ms" not in welcome


def test_the_first_frame_must_be_hello_and_only_the_first(connect):
    early = connect()
    early.send(Kind.PING)
    assert refused(early, "protocol_error")
    twice = connect().greet()
    twice.send(Kind.HELLO, {"version_min": 1, "version_max": 1})
    assert refused(twice, "protocol_error")


def test_a_large_greeting_is_refused(connect):
    wire = connect()
    wire.socket.sendall(FRAME.pack(limits.UNGREETED_BODY_BYTES_MAX + 1, Kind.HELLO, 0, 0, 0))
    assert refused(wire, "limit_exceeded")


def test_a_client_need_not_wait_for_the_welcome(connect):
    wire = connect()
    hello = msgpack.encode({"version_min": 1, "version_max": 1})
    wire.socket.sendall(FRAME.pack(len(hello), Kind.HELLO, 0, 0, 0) + hello + FRAME.pack(0, Kind.PING, 0, 0, 5))
    assert wire.receive()[0] == Kind.WELCOME
    assert wire.receive()[:2] == (Kind.PONG, 5)


@pytest.mark.parametrize("header", [(0, 99, 0, 0, 0), (0, Kind.PING, 0, 1, 0), (0, Kind.DELIVER, 0, 0, 0)])
def test_unknown_kinds_reserved_bytes_and_the_wrong_side_end_the_connection(header, wire):
    wire.socket.sendall(FRAME.pack(*header))
    assert refused(wire, "protocol_error")


def test_goodbye_is_followed_by_nothing(wire):
    wire.send(Kind.GOODBYE)
    assert wire.receive() is None


def test_a_request_that_is_not_understood_leaves_the_connection_open(wire):
    assert wire.ask(3, type="NoSuchRequest")[:2] == (Kind.ERROR, 3)
    assert wire.ask(4, type="DescribeTopic")[2]["code"] == "protocol_error"
    wire.send(Kind.PING, correlation=5)
    assert wire.receive()[:2] == (Kind.PONG, 5)


# --- publishing ---------------------------------------------------------------------------------


def test_sequences_are_judged_as_the_table_says(wire, topic_id):
    first = batch(topic_id, b"a", producer_id=9, sequence=0)
    second = batch(topic_id, b"b", producer_id=9, sequence=1)
    assert publish(wire, 1, batch(topic_id, b"x", producer_id=9, sequence=3))["detail"]["reason"] == "unknown_producer"
    assert publish(wire, 2, first) == 0
    assert publish(wire, 3, second) == 1
    assert publish(wire, 4, first) == 0, "a resend is answered with its original offset"
    gap = publish(wire, 5, batch(topic_id, b"d", producer_id=9, sequence=3))
    assert (gap["code"], gap["detail"]) == ("sequence_error", {"reason": "gap", "expected": 2})
    changed = publish(wire, 6, batch(topic_id, b"c", producer_id=9, sequence=1))
    assert changed["detail"]["reason"] == "changed"
    assert publish(wire, 7, batch(topic_id, b"e", producer_id=9, generation=1, sequence=0)) == 2
    late = publish(wire, 8, batch(topic_id, b"c", producer_id=9, sequence=2))
    assert (late["code"], late["detail"]["reason"]) == ("unknown_outcome", "old_generation")
    assert publish(wire, 11, second) == 1, "of an older generation, but found in the log"
    assert publish(wire, 9, batch(topic_id, b"f")) == 3
    assert publish(wire, 10, batch(topic_id, b"f")) == 4, "producer 0 is never recognised"


def test_a_resend_is_recognised_within_the_window_and_looked_for_beyond(wire, topic_id):
    window = limits.PRODUCER_IN_FLIGHT_BATCHES_MAX
    for sequence in range(window + 1):
        assert publish(wire, sequence, batch(topic_id, b"v", producer_id=5, sequence=sequence)) == sequence
    assert publish(wire, 100, batch(topic_id, b"v", producer_id=5, sequence=1)) == 1
    assert publish(wire, 101, batch(topic_id, b"v", producer_id=5, sequence=0)) == 0
    assert publish(wire, 102, batch(topic_id, b"w", producer_id=5, sequence=0))["code"] == "unknown_outcome"


def test_a_publish_without_acknowledgement_is_answered_only_when_refused(wire, topic_id):
    wire.send(Kind.PUBLISH, batch(topic_id, b"a"), 1, Ack.NONE)
    wire.send(Kind.PUBLISH, b"not a batch", 2, Ack.NONE)
    kind, correlation, failure = wire.receive()
    assert (kind, correlation, failure["code"]) == (Kind.ERROR, 2, "corrupt_data")


def test_bad_batches_and_unknown_topics_are_refused_and_the_connection_stays(wire, topic_id):
    damaged = bytearray(batch(topic_id, b"value"))
    damaged[-1] ^= 1
    assert publish(wire, 1, bytes(damaged))["code"] == "corrupt_data"
    assert publish(wire, 2, batch(topic_id ^ 1, b"value"))["code"] == "partition_not_found"
    assert publish(wire, 3, batch(topic_id, b"value")) == 0


# --- tables -------------------------------------------------------------------------------------

HEADERS, CONDITIONAL, WITHOUT_EFFECT = 1 << 8, 1 << 10, 1 << 11


def change(topic_id, key, value, condition=None, sequence=0, attributes=None):
    """A batch with one row of a table."""
    name = b"stentor-if"
    headers = b"" if condition is None else struct.pack("<IIi", 1, len(name), 8) + name + struct.pack("<q", condition)
    lengths = (len(key), -1 if value is None else len(value), -1 if condition is None else len(headers))
    body = struct.pack("<qiii", 1, *lengths) + key + (value or b"") + headers
    own = 0 if condition is None else HEADERS | CONDITIONAL
    return sealed(topic_id, body, 1, 9, 0, sequence, own if attributes is None else attributes)


@pytest.fixture
def table_id(wire, request):
    name = request.node.name.partition("[")[0]
    return wire.ask(1, type="CreateTopic", name=name, settings={"kind": "table"})[2]["topic"]["id"]


def decided(wire, correlation, data):
    """The offset of a change, and whether it has an effect."""
    return publish(wire, correlation, data), wire.flags == 0


def test_conditions_are_decided_by_versions_and_refusals_are_in_the_log(wire, table_id):
    assert decided(wire, 1, change(table_id, b"a", b"1", condition=-1)) == (0, True)
    late = change(table_id, b"a", b"2", condition=-1, sequence=1)
    assert decided(wire, 2, late) == (1, False)
    assert decided(wire, 3, change(table_id, b"a", b"3", condition=0, sequence=2)) == (2, True)
    assert decided(wire, 4, change(table_id, b"a", None, condition=0, sequence=3)) == (3, False)
    assert decided(wire, 5, late) == (1, False), "a resend gets the same answer"
    assert decided(wire, 6, change(table_id, b"a", None, sequence=4)) == (4, True)
    assert decided(wire, 7, change(table_id, b"a", b"5", condition=-1, sequence=5)) == (5, True)

    open_stream(wire, 8, table_id, start=0, end=6)
    effects, position = [], 0
    batches = delivered(wire.receive_past_state())[2]
    while position < len(batches):
        effects.append(not struct.unpack_from("<I", batches, position + 44)[0] & WITHOUT_EFFECT)
        position += struct.unpack_from("<I", batches, position + 8)[0]
    assert effects == [True, False, True, False, True, True]


def test_what_is_no_change_of_a_table_is_refused(wire, table_id):
    assert publish(wire, 1, batch(table_id, b"without a key"))["code"] == "invalid_argument"
    assert publish(wire, 2, change(table_id, b"a", b"1", condition=-1), Ack.HEAD)["code"] == "invalid_argument"
    assert publish(wire, 3, change(table_id, b"a", b"1", attributes=CONDITIONAL))["code"] == "invalid_argument"
    assert "code" in publish(wire, 4, change(table_id, b"a", b"1", attributes=WITHOUT_EFFECT))
    changed = wire.ask(
        5, type="AlterTopic", name="test_what_is_no_change_of_a_table_is_refused", changes={"kind": "stream"}
    )
    assert changed[2]["code"] == "invalid_argument"


def test_only_tables_take_conditions(wire, topic_id):
    assert publish(wire, 1, change(topic_id, b"a", b"1", condition=-1))["code"] == "invalid_argument"


# --- streams ------------------------------------------------------------------------------------


def open_stream(wire, stream, topic_id, start, credit=CREDIT, **more):
    wire.send(
        Kind.OPEN_STREAM, {"topic_id": topic_id, "partition": 0, "start": start, "credit": credit, **more}, stream
    )


def delivered(frame):
    """(commit point, next offset, batches) of a delivery."""
    kind, _, body = frame
    assert kind == Kind.DELIVER
    committed, _, next_offset = struct.unpack_from("<QI4xQ", body)
    return committed, next_offset, body[24:]


def test_batches_come_whole_even_where_start_and_end_lie_inside(wire, topic_id):
    publish(wire, 1, batch(topic_id, b"a", b"b", b"c", b"d"))
    open_stream(wire, 2, topic_id, start=1, end=3)
    committed, next_offset, batches = delivered(wire.receive())
    assert (committed, next_offset) == (4, 4)
    assert struct.unpack_from("<Q", batches, 32)[0] == 0
    kind, stream, ended = wire.receive()
    assert (kind, stream) == (Kind.STREAM_ENDED, 2)
    assert ended == {"next_offset": 4}


def test_credit_is_the_bytes_of_batches_and_may_be_overdrawn_once(wire, topic_id):
    one = batch(topic_id, b"a")
    publish(wire, 1, one)
    open_stream(wire, 2, topic_id, start=0, credit=1)
    assert delivered(wire.receive())[1] == 1
    publish(wire, 3, one)
    wire.send(Kind.CREDIT, struct.pack("<Q", len(one) - 1), 2)  # back to zero: still nothing
    wire.send(Kind.PING, correlation=4)
    assert wire.receive_past_state()[:2] == (Kind.PONG, 4)
    wire.send(Kind.CREDIT, struct.pack("<Q", 1), 2)
    assert delivered(wire.receive_past_state())[1] == 2


def test_the_commit_point_is_told_also_without_credit(wire, topic_id):
    publish(wire, 1, batch(topic_id, b"a"))
    open_stream(wire, 2, topic_id, start=0, credit=1)
    assert delivered(wire.receive())[0] == 1
    wire.send(Kind.PUBLISH, batch(topic_id, b"b"), 3, Ack.ALL)
    answers = {kind: (correlation, body) for kind, correlation, body in (wire.receive(), wire.receive())}
    assert set(answers) == {Kind.PUBLISHED, Kind.STREAM_STATE}
    stream, body = answers[Kind.STREAM_STATE]
    assert stream == 2
    assert struct.unpack("<QI4xQ", body)[0] == 2


def test_a_start_outside_of_the_log_ends_the_stream_with_the_range(wire, topic_id):
    publish(wire, 1, batch(topic_id, b"a"))
    open_stream(wire, 2, topic_id, start=5)
    kind, _, ended = wire.receive()
    assert kind == Kind.STREAM_ENDED
    assert ended["failure"]["code"] == "offset_out_of_range"
    assert ended["failure"]["detail"] == {"start": 0, "end": 1}
    open_stream(wire, 3, topic_id, start=5, seen=5)
    wire.send(Kind.PING, correlation=4)
    assert wire.receive()[0] == Kind.PONG, "an offset that the client has seen is waited for"


def test_a_deleted_topic_ends_its_streams_and_is_gone_from_the_routes(connect, wire, topic_id, request):
    watcher = connect().greet()
    kind, _, routes = watcher.ask(1, type="WatchRoutes")
    assert topic_id in [topic["id"] for topic in routes["topics"]]
    open_stream(wire, 2, topic_id, start=0)
    wire.send(Kind.REQUEST, {"type": "DeleteTopic", "name": request.node.name}, 3)
    answers = {frame[0]: frame[2] for frame in (wire.receive(), wire.receive())}
    assert answers[Kind.STREAM_ENDED]["failure"]["code"] == "topic_not_found"
    assert answers[Kind.RESPONSE] == {"type": "Done"}
    kind, correlation, change = watcher.receive()
    assert (kind, correlation) == (Kind.ROUTES, 0)
    assert change["removed"] == [topic_id]
    assert change["version"] > routes["version"]


def test_a_stopping_broker_ends_streams_and_says_goodbye():
    with broker() as local:
        wire = Wire(local.url).greet()
        topic_id = wire.ask(1, type="CreateTopic", name="orders")[2]["topic"]["id"]
        open_stream(wire, 2, topic_id, start=0)
        wire.send(Kind.PING, correlation=3)
        assert wire.receive()[0] == Kind.PONG
        local.stop()
        kind, stream, ended = wire.receive()
        assert (kind, stream, ended["failure"]["code"]) == (Kind.STREAM_ENDED, 2, "closed")
        assert wire.receive()[0] == Kind.GOODBYE
        assert wire.receive() is None
        wire.close()
