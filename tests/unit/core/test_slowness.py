"""Which member is slow, and for how long it stays away."""

import pytest

from stentor import limits
from stentor.core.records import Member
from stentor.core.slowness import SlowBrokers, SyncPace, SyncTimes, is_as_slow_as_all, slowest

S = 1_000_000
A, B, C = (Member(name, 1, 1) for name in "abc")
FAST, SLOW = SyncPace(10_000), SyncPace(1_500_000, slow=True)
KEY = (1, 0)


def noted(*times, every_s=2.0, begin=0):
    """Syncs of so many seconds, one after the other."""
    syncs, now_us = SyncTimes(), begin
    for seconds in times:
        syncs.note(now_us, now_us + int(seconds * S))
        now_us += int(max(every_s, seconds) * S)
    return syncs.pace(now_us)


def test_slow_is_who_was_slow_every_time_for_five_seconds():
    assert not noted(1.5, 1.5, 1.5, every_s=1.5).slow
    assert noted(1.5, 1.5, 1.5, 1.5, every_s=1.5) == SyncPace(1_500_000, slow=True)
    assert not noted(1.5, 1.5, 0.5, 1.5, 1.5, every_s=1.5).slow


def test_one_slow_sync_after_a_long_rest_is_no_slowness():
    syncs = SyncTimes()
    syncs.note(0, 2 * S)
    syncs.note(100 * S, 102 * S)
    assert not syncs.pace(103 * S).slow
    assert syncs.pace(200 * S) == SyncPace()


@pytest.mark.parametrize(
    ("paces", "leaves"),
    [
        ({"a": FAST, "b": SLOW, "c": FAST}, B),
        ({"a": SLOW, "b": SLOW, "c": SLOW}, None),
        ({"a": SLOW, "b": SyncPace(2_000_000, slow=True), "c": FAST}, None),  # nor than both of the others
        ({"a": SyncPace(1_100_000), "b": SyncPace(20_000_000, slow=True)}, None),  # of two, the other is slow as well
        ({"a": FAST, "b": SLOW}, B),
        ({"a": SyncPace(200_000), "b": SLOW, "c": SyncPace(200_000)}, None),  # not ten times as fast
        ({"a": SyncPace(), "b": SLOW, "c": SyncPace()}, None),  # nobody knows how fast the others are
        ({"a": FAST, "b": SyncPace(1_500_000), "c": FAST}, None),  # not for long enough
        ({}, None),
    ],
)
def test_the_slowest_leaves_if_its_neighbours_are_much_faster(paces, leaves):
    members = [member for member in (A, B, C) if member.broker in paces or not paces]
    assert slowest(members, paces) == leaves


def test_the_pause_doubles_for_who_is_slow_again_and_begins_anew_after_a_good_time():
    slow, first_us = SlowBrokers(), int(limits.SLOW_PAUSE_S * S)
    slow.leaves(KEY, "b", 0)
    slow.leaves((1, 1), "b", first_us - 1)  # the same matter
    assert slow.another_left(KEY, first_us - 1)
    assert not slow.is_away("b", first_us)
    assert not slow.another_left(KEY, first_us)
    slow.leaves(KEY, "b", first_us + S)
    assert slow.is_away("b", 3 * first_us)
    assert not slow.is_away("b", 3 * first_us + S)
    well_us = 3 * first_us + S + 2 * first_us
    slow.leaves(KEY, "b", well_us)
    assert not slow.is_away("b", well_us + first_us)


class UnderWay:
    """A sync that has no end yet."""

    def __init__(self, began_us=None):
        self.began_us = began_us


def test_a_pace_says_for_how_long_the_oldest_sync_under_way_has_waited():
    syncs, first, second = SyncTimes(), UnderWay(), UnderWay(3 * S)
    syncs.begins(first)
    syncs.begins(second)
    assert syncs.pace(4 * S).waits_us == 0, "no thread has taken it up"
    first.began_us = 1 * S
    assert syncs.pace(4 * S).waits_us == 3 * S
    syncs.is_over(first)
    assert syncs.pace(4 * S).waits_us == 1 * S
    syncs.is_over(second)
    assert syncs.pace(4 * S) == SyncPace()


def waits(seconds):
    return SyncPace(4_000, waits_us=int(seconds * S))


@pytest.mark.parametrize(
    ("paces", "for_s", "as_slow"),
    [
        ({"a": waits(2.1), "b": waits(2.0), "c": waits(1.9)}, 2, True),
        ({"a": SLOW, "b": waits(2.0), "c": SLOW}, 6, True),
        ({"a": SLOW, "b": waits(2.0), "c": SLOW}, 6.1, False),  # four times as long as the others
        ({"a": SLOW, "b": waits(2.0), "c": waits(8)}, 6.1, False),  # one of which hangs as well
        ({"a": waits(2.0), "b": waits(2.0), "c": FAST}, 2, False),
        ({"a": waits(2.0), "b": FAST, "c": waits(2.0)}, 2, False),  # it is not the disk
        ({"a": waits(2.0), "b": waits(2.0)}, 2, False),  # of an older broker nothing is known
        ({"a": waits(100), "b": waits(100), "c": waits(100)}, 100, True),  # all hang
    ],
)
def test_a_member_that_stands_still_is_as_slow_as_all_for_some_times_as_long_as_the_fastest_takes(
    paces, for_s, as_slow
):
    assert is_as_slow_as_all(B, (A, B, C), paces, for_us=int(for_s * S)) == as_slow


def test_without_another_time_a_member_counts_from_when_its_own_write_began():
    others = {"a": SLOW, "c": SLOW}
    assert is_as_slow_as_all(B, (A, B, C), {**others, "b": waits(6)})
    assert not is_as_slow_as_all(B, (A, B, C), {**others, "b": waits(6.1)})
    assert not is_as_slow_as_all(B, (B,), {"b": waits(2)}), "nobody to compare with"
