"""Connections that share one budget for what they receive."""

import pytest
from tests.unit.transport.stand_ins import Owner, Transport, feed

from stentor import limits
from stentor.errors import LimitExceeded
from stentor.limits import MIB
from stentor.transport.budget import ReceiveBudget
from stentor.transport.connection import Connection
from stentor.wire import frames
from stentor.wire.frames import Kind


def connect(budget, *, favoured=False, **options):
    owner, transport = Owner(), Transport()
    connection = Connection(owner, budget=budget, **options)
    connection.connection_made(transport)
    connection.favoured = favoured
    return connection, owner, transport


def announce(size):
    """The header of a frame with a body of so many bytes."""
    return frames.HEADER.pack(size, Kind.PUBLISH, 0, 0, 1)


def begin(budget, size, **options):
    """A connection that sent the beginning of a frame that does not fit into the small buffer."""
    connection, owner, transport = connect(budget, **options)
    feed(connection, announce(size) + bytes(limits.READ_BUFFER_IDLE_BYTES - frames.HEADER_BYTES))
    return connection, owner, transport


def test_a_stranger_keeps_a_small_buffer_whatever_it_sends():
    budget = ReceiveBudget()
    connection, owner, _ = connect(budget, body_bytes_max=limits.UNGREETED_BODY_BYTES_MAX)
    feed(connection, frames.frame(Kind.HELLO, 0, bytes(limits.UNGREETED_BODY_BYTES_MAX))[:-1])
    assert len(connection._view) <= limits.READ_BUFFER_IDLE_BYTES
    assert budget.lent_bytes == 0
    feed(connection, bytes(1))
    assert len(owner.frames) == 1


def test_a_large_frame_borrows_and_gives_back():
    budget = ReceiveBudget()
    connection, owner, _ = begin(budget, 9 * MIB)
    assert budget.lent_bytes == 9 * MIB + frames.HEADER_BYTES
    feed(connection, bytes(9 * MIB + frames.HEADER_BYTES - limits.READ_BUFFER_IDLE_BYTES))
    assert len(owner.frames) == 1
    assert budget.lent_bytes == limits.READ_BUFFER_BYTES
    connection.rest()
    connection.rest()
    assert budget.lent_bytes == 0
    feed(connection, frames.frame(Kind.PING, 2))
    assert owner.frames[-1][2] == 2


def test_what_a_lost_connection_had_borrowed_comes_back():
    budget = ReceiveBudget()
    connection, _, _ = begin(budget, 9 * MIB)
    connection.connection_lost(None)
    assert budget.lent_bytes == 0
    assert budget.statistics().loans == 0


def test_who_finds_no_room_is_not_read_from_until_there_is_some():
    budget = ReceiveBudget(20 * MIB, 0)
    first, _, _ = begin(budget, 15 * MIB)
    second, owner, transport = begin(budget, 15 * MIB)
    assert second.starved
    assert not transport.reading
    second.resume_reading()  # its owner lets it go on, which does not make room
    assert not transport.reading
    first.connection_lost(None)
    assert transport.reading
    feed(second, bytes(15 * MIB + frames.HEADER_BYTES - limits.READ_BUFFER_IDLE_BYTES))
    assert len(owner.frames[0][3]) == 15 * MIB


def test_small_frames_pass_while_the_budget_is_used_up():
    budget = ReceiveBudget(2 * MIB, 0)
    begin(budget, 2 * MIB - frames.HEADER_BYTES)
    connection, owner, _ = connect(budget)
    feed(connection, frames.frame(Kind.PUBLISH, 1, bytes(10_000)) * 50)
    assert len(owner.frames) == 50


def test_the_smallest_wish_is_served_first():
    budget = ReceiveBudget(20 * MIB, 0)
    holder, _, _ = begin(budget, 19 * MIB, body_bytes_max=20 * MIB)
    large, small = begin(budget, 15 * MIB)[0], begin(budget, 3 * MIB)[0]
    holder.connection_lost(None)
    assert small._size > 3 * MIB
    assert not small.starved
    assert not large.starved


def test_who_borrowed_gives_back_at_the_end_of_its_frame_while_others_wait():
    budget = ReceiveBudget(4 * MIB, 0)
    quick, _, _ = begin(budget, 3 * MIB)
    waiting, _, _ = begin(budget, 3 * MIB)
    assert waiting.starved
    feed(quick, bytes(3 * MIB + frames.HEADER_BYTES - limits.READ_BUFFER_IDLE_BYTES))
    assert not waiting.starved


def test_the_reserved_part_is_for_other_brokers():
    budget = ReceiveBudget(32 * MIB, 16 * MIB)
    begin(budget, 10 * MIB)
    assert begin(budget, 10 * MIB)[0].starved
    assert not begin(budget, 10 * MIB, favoured=True)[0].starved


def test_of_frames_that_stand_still_the_oldest_is_closed_when_others_wait():
    budget = ReceiveBudget(20 * MIB, 0)
    _, old_owner, _ = begin(budget, 9 * MIB)
    begin(budget, 15 * MIB)  # it waits, so time is kept
    budget.reclaim(10.0)
    _, young_owner, _ = begin(budget, 9 * MIB)
    waiting, owner, _ = begin(budget, 9 * MIB)
    budget.reclaim(11.0)
    (refusal,) = old_owner.refusals
    assert isinstance(refusal, LimitExceeded)
    assert "too slowly" in str(refusal)
    assert not young_owner.refusals
    assert not owner.refusals
    assert not waiting.starved
    assert budget.closed_frames == 1


def test_those_who_all_hold_a_part_and_wait_for_more_do_not_wait_for_ever():
    budget = ReceiveBudget(2 * MIB, 0)
    pieces = [frames.frame(Kind.PUBLISH, 1, bytes(40_000)), announce(3 * MIB // 2) + bytes(300_000)]
    stuck = [connect(budget) for _ in range(2)]
    for piece in pieces:
        for connection, _, _ in stuck:
            feed(connection, piece)
    assert all(connection.starved for connection, _, _ in stuck)
    budget.reclaim(1.0)
    assert [len(owner.refusals) for _, owner, _ in stuck] == [1, 0]
    assert not stuck[1][0].starved


def test_a_frame_that_arrives_in_time_is_not_closed():
    budget = ReceiveBudget(16 * MIB, 0)
    steady, owner, _ = begin(budget, 15 * MIB)
    begin(budget, 9 * MIB)
    for second in range(20):
        budget.reclaim(100.0 + second)
        feed(steady, bytes(MIB // 2 + 40_000))
    assert not owner.refusals


def test_a_connection_that_its_owner_holds_is_not_late():
    budget = ReceiveBudget(16 * MIB, 0)
    held, owner, _ = begin(budget, 15 * MIB)
    held.pause_reading()
    begin(budget, 9 * MIB)
    for second in range(20):
        budget.reclaim(100.0 + second)
    assert not owner.refusals


@pytest.mark.parametrize("count", [1, 7])
def test_borrowed_memory_is_bounded_by_the_budget(count):
    budget = ReceiveBudget()
    connections = [begin(budget, limits.FRAME_BODY_BYTES_MAX)[0] for _ in range(30 * count)]
    assert budget.lent_bytes <= limits.RECEIVE_BYTES_MAX - limits.RECEIVE_RESERVED_BYTES
    for connection in connections:
        connection.connection_lost(None)
    assert budget.lent_bytes == 0
    assert not budget.contended
