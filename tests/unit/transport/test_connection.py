import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.transport.stand_ins import Owner, Transport, feed

from stentor import limits
from stentor.errors import LimitExceeded, ProtocolError
from stentor.transport.connection import Connection
from stentor.wire import frames
from stentor.wire.frames import Kind


def connect(**options):
    owner, transport = Owner(), Transport()
    connection = Connection(owner, **options)
    connection.connection_made(transport)
    return connection, owner, transport


def buffer_bytes(connection):
    return len(connection._view)


kinds = st.sampled_from(sorted(frames.KINDS))
some_frames = st.lists(
    st.tuples(kinds, st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=300)), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=150)
@given(some_frames, st.lists(st.integers(1, 700), max_size=60))
def test_frames_arrive_whole_and_in_order_however_the_bytes_are_cut(sent, sizes):
    connection, owner, _ = connect()
    feed(connection, b"".join(frames.frame(k, c, body, flags=f) for k, f, c, body in sent), sizes)
    assert owner.frames == sent
    assert not owner.refusals
    assert not connection.mid_frame
    assert connection.frames_in == len(sent)


def test_the_owner_hears_once_per_read_not_once_per_frame():
    connection, owner, _ = connect()
    feed(connection, frames.frame(Kind.PING, 1) * 50)
    assert (len(owner.frames), owner.reads) == (50, 1)


@pytest.mark.parametrize("size", [limits.READ_BUFFER_IDLE_BYTES, limits.READ_BUFFER_BYTES, 5 * limits.MIB + 7])
def test_large_frames_arrive_whole_between_small_ones(size):
    connection, owner, _ = connect()
    large = bytes(range(256)) * (size // 256 + 1)
    small = frames.frame(Kind.PING, 1)
    feed(connection, small + frames.frame(Kind.PUBLISH, 2, large) + small, [10, 100, 70_000])
    assert [(kind, correlation) for kind, _, correlation, _ in owner.frames] == [(4, 1), (16, 2), (4, 1)]
    assert owner.frames[1][3] == large


def test_memory_grows_with_the_bytes_that_came_not_with_those_announced():
    connection, _, _ = connect()
    assert buffer_bytes(connection) == limits.READ_BUFFER_IDLE_BYTES
    feed(connection, frames.HEADER.pack(limits.FRAME_BODY_BYTES_MAX, Kind.PUBLISH, 0, 0, 1))
    assert buffer_bytes(connection) == limits.READ_BUFFER_IDLE_BYTES
    came = 16
    for _ in range(200):
        feed(connection, bytes(50_000))
        came += 50_000
        assert buffer_bytes(connection) <= max(2 * came, limits.READ_BUFFER_BYTES)


def test_the_buffer_shrinks_again_after_a_large_frame():
    connection, _, _ = connect()
    feed(connection, frames.frame(Kind.PUBLISH, 1, bytes(9 * limits.MIB)))
    feed(connection, frames.frame(Kind.PING, 1))
    assert buffer_bytes(connection) == limits.READ_BUFFER_BYTES


@pytest.mark.parametrize(
    ("header", "error", "words"),
    [
        ((limits.FRAME_BODY_BYTES_MAX + 1, Kind.PUBLISH, 0, 0, 1), LimitExceeded, "limit is"),
        ((2**32 - 1, Kind.PUBLISH, 0, 0, 1), LimitExceeded, "limit is"),
        ((0, 0, 0, 0, 1), ProtocolError, "unknown kind 0"),
        ((2**32 - 1, 255, 0, 0, 1), ProtocolError, "unknown kind 255"),
        ((0, Kind.PING, 0, 1, 1), ProtocolError, "reserved"),
    ],
)
def test_a_frame_that_cannot_be_is_refused_by_its_header_alone(header, error, words):
    connection, owner, _ = connect()
    feed(connection, frames.frame(Kind.PING, 7) + frames.HEADER.pack(*header) + frames.frame(Kind.PING, 8))
    (refusal,) = owner.refusals
    assert isinstance(refusal, error)
    assert words in str(refusal)
    assert [correlation for _, _, correlation, _ in owner.frames] == [7]


def test_a_stranger_may_send_only_small_frames():
    connection, owner, _ = connect(body_bytes_max=100)
    feed(connection, frames.frame(Kind.HELLO, 0, bytes(100)))
    assert not owner.refusals
    feed(connection, frames.HEADER.pack(101, Kind.HELLO, 0, 0, 0))
    assert isinstance(owner.refusals[0], LimitExceeded)


def test_an_owners_refusal_ends_the_reading():
    connection, owner, _ = connect()

    def refuse(kind, body):
        raise ProtocolError("No.")

    owner.on_frame = refuse
    feed(connection, frames.frame(Kind.PING, 1) * 3)
    assert len(owner.frames) == 1
    assert [str(refusal) for refusal in owner.refusals] == ["No."]
    assert owner.reads == 1  # what came before the refusal is finished all the same


def test_a_body_of_the_wrong_size_is_a_protocol_error():
    connection, owner, _ = connect()
    owner.on_frame = lambda _, body: struct.unpack("<Q", body)
    feed(connection, frames.frame(Kind.CREDIT, 1, b"123"))
    assert isinstance(owner.refusals[0], ProtocolError)


def test_frames_behind_a_close_are_not_delivered():
    connection, owner, _ = connect()
    owner.on_frame = lambda *_: connection.abort()
    feed(connection, frames.frame(Kind.PING, 1) * 3)
    assert len(owner.frames) == 1


def test_half_a_frame_is_told_apart_from_none():
    connection, _, _ = connect()
    assert not connection.mid_frame
    feed(connection, frames.frame(Kind.PING, 1, b"abc")[:-1])
    assert connection.mid_frame
    feed(connection, b"c")
    assert not connection.mid_frame


def test_what_is_written_is_counted_and_handed_on():
    connection, owner, transport = connect()
    connection.write([b"ab", memoryview(b"cde")])
    connection.send(Kind.PONG, 9)
    assert b"".join(transport.written) == b"abcde" + frames.frame(Kind.PONG, 9)
    assert connection.bytes_out == connection.unsent_bytes == 21
    connection.pause_writing()
    connection.resume_writing()
    assert owner.writable == [False, True]


def test_nothing_is_written_or_resumed_after_the_end():
    connection, owner, transport = connect()
    connection.pause_reading()
    connection.connection_lost(None)
    connection.write([b"ab"])
    connection.resume_reading()
    assert transport.written == []
    assert not transport.reading
    assert owner.lost == [None]
    assert connection.closed


def test_a_connection_that_was_never_made_can_be_closed():
    connection = Connection(Owner())
    connection.write([b"x"])
    connection.close()
    connection.abort()
    assert connection.address == "unknown"
    assert connection.unsent_bytes == 0


def test_closing_twice_is_closing():
    connection, _, transport = connect()
    connection.close()
    connection.close()
    assert transport.closing
    assert not transport.aborted
    assert connection.address == "192.0.2.1:4711"
