"""Back-pressure: senders wait while too much is unacknowledged, and are woken when half of it is answered."""

from types import SimpleNamespace

import pytest

from stentor import limits
from stentor.client.room import Room

IN_FLIGHT_MAX = limits.PRODUCER_IN_FLIGHT_BATCHES_MAX


@pytest.fixture
def lane():
    return SimpleNamespace(sealed_bytes=0, done_bytes=0, pending=[])


@pytest.fixture
def room(lane):
    return Room([lane, SimpleNamespace(sealed_bytes=10, done_bytes=10, pending=[])], buffer_bytes=100)


def test_the_bytes_of_all_lanes_count(room, lane):
    lane.sealed_bytes, lane.done_bytes = 150, 51
    assert room.outstanding_bytes() == 99
    assert not room.is_full()
    lane.sealed_bytes += 1
    assert room.is_full()


def test_a_lane_with_as_many_batches_as_a_broker_remembers_is_full(room, lane):
    lane.pending = [None] * IN_FLIGHT_MAX
    assert room.is_full()
    lane.pending.pop()
    assert not room.is_full()


@pytest.mark.parametrize(
    ("full", "half"), [((100, 0), (50, 0)), ((0, IN_FLIGHT_MAX), (0, IN_FLIGHT_MAX // 2))], ids=["bytes", "batches"]
)
def test_who_waits_is_woken_once_half_is_free(room, lane, full, half):
    woken = []
    room.add_waiter(lambda: woken.append("now"))
    lane.sealed_bytes, lane.pending = full[0], [None] * full[1]
    room.look()
    assert woken == []
    lane.sealed_bytes, lane.pending = half[0], [None] * half[1]
    room.look()
    room.look()
    assert woken == ["now"]
