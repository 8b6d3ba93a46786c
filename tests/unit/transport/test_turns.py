"""Connections share the time of a loop: counted in frames, each of which takes a millisecond here."""

import heapq
from collections import Counter

import pytest
from tests.unit.transport.stand_ins import Owner, Transport

from stentor.transport.connection import Connection
from stentor.transport.turns import SLICE_S, TURN_S, Turns
from stentor.wire import frames
from stentor.wire.frames import Kind

FRAME_S = 0.001
FRAMES_PER_TURN_MAX = round((TURN_S + SLICE_S) / FRAME_S)


class Loop:
    """Turns of a loop, one at a time, and a clock that moves with the work."""

    def __init__(self):
        self.now = 0.0
        self.soon = []

    def call_soon(self, work):
        self.soon.append(work)

    def turn(self):
        soon, self.soon = self.soon, []
        for work in soon:
            work()


class Sender:
    """A connection whose other side has sent frames; what its socket holds is read as the loop would."""

    def __init__(self, room, name, count, favoured=False, frame_s=FRAME_S):
        self.room, self.name, self.frame_s = room, name, frame_s
        self.owner, self.transport = Owner(), Transport()
        self.connection = Connection(self.owner, turns=room.turns)
        self.connection.connection_made(self.transport)
        self.connection.favoured = favoured
        self.owner.on_frame = self.frame
        self.unread = bytearray(frames.frame(Kind.PING, 1) * count)
        self.reads = 0

    def frame(self, *_):
        self.room.loop.now += self.frame_s
        self.room.handled.append(self.name)

    def read(self):
        """One event of the socket: reads until it is empty, or this connection is not to be read from."""
        while self.unread and self.transport.reading and not self.connection.closed:
            self.reads += 1
            room = self.connection.get_buffer(-1)
            piece = self.unread[: len(room)]
            del self.unread[: len(piece)]
            room[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))


class Room:
    """Several senders at one loop."""

    def __init__(self):
        self.loop = Loop()
        self.turns = Turns(self.loop, lambda: self.loop.now)
        self.senders = []
        self.handled = []  # whose frames, in order

    def sender(self, name, count, **options):
        self.senders.append(Sender(self, name, count, **options))
        return self.senders[-1]

    def turn(self):
        """Callbacks, then sockets; returns whose frames were handled."""
        before = len(self.handled)
        self.loop.turn()
        for sender in self.senders:
            sender.read()
        return self.handled[before:]


@pytest.fixture
def room():
    return Room()


def test_a_sender_of_many_frames_gets_a_slice_in_each_turn(room):
    fast = room.sender("fast", 500)
    turns = []
    while len(room.handled) < 500:
        turns.append(len(room.turn()))
    assert max(turns) <= FRAMES_PER_TURN_MAX
    assert [kind for kind, *_ in fast.owner.frames] == [Kind.PING] * 500
    assert fast.transport.reading
    assert not fast.connection.mid_frame


def test_who_is_parked_is_not_read_from(room):
    fast = room.sender("fast", 5_000)
    while fast.unread:
        room.turn()
        assert fast.transport.reading is not fast.connection.starved
    assert fast.reads < 5_000 / 100


def test_who_uses_less_than_its_share_waits_for_a_turn_or_two_however_many_are_fast(room):
    for number in range(50):
        room.sender(f"fast {number}", 3_000)
    for _ in range(30):
        room.turn()
    polite = room.sender("polite", 0, frame_s=FRAME_S / 20)
    for _ in range(20):
        polite.unread += frames.frame(Kind.PING, 1)
        waited = [room.turn() for _ in range(2)]
        assert any("polite" in turn for turn in waited), "it waited for others"


def test_those_who_are_fast_get_equal_shares(room):
    for number in range(10):
        room.sender(number, 3_000)
    while len(room.handled) < 4_000:
        room.turn()
    shares = Counter(room.handled)
    assert min(shares.values()) > 0.9 * max(shares.values())


def test_who_was_away_has_no_credit_for_it(room):
    busy = room.sender("busy", 2_000)
    late = room.sender("late", 0)
    while len(room.handled) < 1_000:
        room.turn()
    late.unread += frames.frame(Kind.PING, 1) * 2_000
    room.handled.clear()
    while len(room.handled) < 200:
        room.turn()
    assert room.handled.count("busy") > 80
    assert busy.connection.used_s > late.connection.used_s - 2 * SLICE_S


def test_another_broker_waits_for_nobody(room):
    for number in range(50):
        room.sender(f"fast {number}", 3_000)
    for _ in range(5):
        room.turn()
    peer = room.sender("peer", 0, favoured=True)
    for _ in range(20):
        peer.unread += frames.frame(Kind.PING, 1)
        assert "peer" in room.turn()


def test_what_an_owner_does_not_want_waits_until_it_does(room):
    fast = room.sender("fast", 100)
    room.turn()
    fast.connection.pause_reading()
    before = len(room.handled)
    for _ in range(5):
        room.turn()
    assert len(room.handled) == before
    fast.connection.resume_reading()
    while len(room.handled) < 100:
        assert room.turn()


def test_requests_that_are_begun_count_for_the_work_that_they_make(room):
    fast = room.sender("fast", 100)

    def begin(*_):
        room.handled.append("fast")
        room.turns.charge(FRAME_S)

    fast.owner.on_frame = begin
    assert len(room.turn()) <= FRAMES_PER_TURN_MAX


def test_who_asks_for_much_work_is_not_served_before_who_does_its_own_at_once(room):
    """A publish is done when its frame is; a request is answered later, and costs its connection as much."""
    askers = [room.sender(f"asker {number}", 3_000, frame_s=FRAME_S / 100) for number in range(20)]

    def begin_of(asker):
        def begin(*_):
            asker.frame()
            room.turns.charge(FRAME_S / 10)

        return begin

    for asker in askers:
        asker.owner.on_frame = begin_of(asker)
    publisher = room.sender("publisher", 0, frame_s=FRAME_S / 2)
    for _ in range(30):
        publisher.unread += frames.frame(Kind.PING, 1)
        waited = [room.turn() for _ in range(4)]
        assert any("publisher" in turn for turn in waited), "it waited for others"


def test_who_had_the_loop_alone_for_a_while_does_not_pay_for_it(room):
    alone = room.sender("alone", 500)
    for number in range(20):
        room.sender(f"asker {number}", 0)
    while alone.unread or len(room.handled) < 500:
        room.turn()
    for other in room.senders[1:]:
        other.unread += frames.frame(Kind.PING, 1) * 1_000
    room.turn()
    alone.unread += frames.frame(Kind.PING, 1)
    waited = [room.turn() for _ in range(6)]
    assert any("alone" in turn for turn in waited), "it waited until the others had had as much"


def test_a_parked_connection_that_breaks_is_passed_over(room):
    gone, stays = room.sender("gone", 100), room.sender("stays", 100)
    room.turn()
    gone.connection.closed = True
    gone.connection.connection_lost(None)
    while room.handled.count("stays") < 100:
        room.turn()
    assert not room.turns._waiting
    assert stays.transport.reading


def test_who_waits_is_served_by_what_it_has_used(room):
    """The heap holds numbers in its keys, so that connections are never compared."""
    for number in range(5):
        room.sender(number, 100)
    room.turn()
    assert heapq.nsmallest(5, room.turns._waiting) == sorted(room.turns._waiting)
