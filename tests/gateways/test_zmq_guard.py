"""What a ZeroMQ peer may have a gateway keep: frames and bytes of one message, and prefixes."""

import random
import struct

import pytest

from stentor.gateways.zmq import bounds
from stentor.gateways.zmq.guard import NotUnderstood, PeerGuard, SharedRoom

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + bytes(52)
READY = b"\x04\x06\x05READY"


def frame(body, *, more=False, command=False):
    flags = more | 4 * command
    if len(body) > 255:
        return struct.pack(">BQ", flags | 2, len(body)) + body
    return bytes((flags, len(body))) + body


def guarded(room=None, **options):
    guard = PeerGuard(room or SharedRoom(), **options)
    guard.passes(GREETING + READY)
    assert guard.greeted
    return guard


def test_a_message_may_come_in_pieces_of_any_size():
    sent = (
        GREETING
        + READY
        + b"".join(
            frame(bytes(300), more=True) + frame(b"", more=True) + frame(b"x" * size)
            for size in (0, 1, 255, 256, 70_000)
        )
    )
    choose = random.Random(7)
    for most in (1, 2, 9, 1_000):
        room = SharedRoom()
        guard, place = PeerGuard(room), 0
        while place < len(sent):
            size = choose.randint(1, most)
            guard.passes(sent[place : place + size])
            place += size
        assert room.unfinished == 0


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", b"\x01\x00", b"\xff" + bytes(8) + b"\x7f\x01" + bytes(60)])
def test_what_is_not_zeromq_4_is_refused(begin):
    with pytest.raises(NotUnderstood):
        PeerGuard(SharedRoom()).passes(begin)


def test_a_message_of_endless_frames_is_refused():
    guard = guarded()
    guard.passes(frame(b"x", more=True) * bounds.MESSAGE_FRAMES_MAX)
    with pytest.raises(NotUnderstood, match="frames"):
        guard.passes(frame(b"x", more=True))


def test_a_message_that_is_too_long_is_refused_before_it_came():
    guard = guarded()
    with pytest.raises(NotUnderstood, match="bytes"):
        guard.passes(struct.pack(">BQ", 2, bounds.MESSAGE_BYTES_MAX + 1))


def test_a_command_that_is_too_long_is_refused():
    guard = guarded()
    with pytest.raises(NotUnderstood, match="command"):
        guard.passes(struct.pack(">BQ", 6, bounds.COMMAND_BYTES_MAX + 1))


def test_unfinished_messages_of_all_peers_have_one_bound_and_small_ones_come_in_beside_it():
    room = SharedRoom()
    peers = [guarded(room) for _ in range(bounds.UNFINISHED_BYTES_MAX // bounds.MESSAGE_BYTES_MAX)]
    for peer in peers:
        peer.passes(struct.pack(">BQ", 2, bounds.MESSAGE_BYTES_MAX))
    late = guarded(room)
    with pytest.raises(NotUnderstood, match="on their way"):
        late.passes(struct.pack(">BQ", 2, bounds.MESSAGE_BYTES_MAX))
    late.close()
    guarded(room).passes(frame(bytes(bounds.UNFINISHED_BYTES_FREE)))
    for peer in peers:
        peer.close()
    assert room.unfinished == 0


@pytest.mark.parametrize("first", [b"\x02", b"\x01orders", b"", b"\x00"], ids=repr)
def test_a_subscriber_sends_no_message_of_several_frames(first):
    """libzmq takes each of them for a subscription."""
    room = SharedRoom()
    guard = guarded(room, subscribes=True)
    with pytest.raises(NotUnderstood, match="several frames"):
        guard.passes(frame(first, more=True) + frame(b"\x01" + bytes(4_000), more=True) + frame(b"\x01"))
    guard.close()
    assert (room.unfinished, room.subscribed) == (0, 0)


@pytest.mark.parametrize("subscribes", [False, True])
def test_a_command_has_one_frame(subscribes):
    """libzmq keeps what comes before the last frame of a message, and SUBSCRIBE is one for every socket."""
    guard = guarded(subscribes=subscribes)
    with pytest.raises(NotUnderstood, match="several frames"):
        guard.passes(frame(b"\x09SUBSCRIBE" + bytes(4_000), more=True, command=True))


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (lambda prefix: frame(b"\x01" + prefix), lambda prefix: frame(b"\x00" + prefix)),
        (
            lambda prefix: frame(b"\x09SUBSCRIBE" + prefix, command=True),
            lambda prefix: frame(b"\x06CANCEL" + prefix, command=True),
        ),
    ],
    ids=["messages", "commands"],
)
def test_subscriptions_are_counted_until_they_are_taken_back(begin, end):
    room = SharedRoom()
    guard = guarded(room, subscribes=True)
    for _ in range(3):
        for number in range(100):
            guard.passes(begin(b"prefix-%03d" % number))
            guard.passes(end(b"never subscribed"))
        assert room.subscribed == 1_000
    for number in range(100):
        guard.passes(end(b"prefix-%03d" % number))
    assert room.subscribed == 0
    many = b"".join(begin(b"%d" % number + bytes(1_000)) for number in range(1_000))
    with pytest.raises(NotUnderstood, match="subscribes to"):
        guard.passes(many)
    guard.close()
    assert room.subscribed == 0


def test_all_subscribers_together_have_a_bound_beside_which_new_ones_get_a_little():
    room = SharedRoom()
    many = b"".join(frame(b"\x01%d" % number + bytes(1_000)) for number in range(400))
    for _ in range(bounds.SUBSCRIPTION_BYTES_MAX // len(many)):
        guarded(room, subscribes=True).passes(many)
    with pytest.raises(NotUnderstood, match="together"):
        guarded(room, subscribes=True).passes(many)
    assert room.subscribed < bounds.SUBSCRIPTION_BYTES_MAX + 2_000
    guarded(room, subscribes=True).passes(frame(b"\x01orders.eu"))
