import gc
import random

from stentor import limits
from stentor.core.flow import Cursor


def test_a_cursor_wants_what_is_committed_and_no_more():
    cursor = Cursor(5, None, 100)
    assert not cursor.wants(5)
    assert cursor.wants(6)
    assert cursor.behind(8) == 3
    assert cursor.behind(3) == 0


def test_a_cursor_ahead_of_the_commit_point_waits_for_it():
    cursor = Cursor(9, None, 100)
    assert not cursor.wants(5)
    assert cursor.wants(10)


def test_without_credit_nothing_is_wanted():
    cursor = Cursor(0, None, 10)
    cursor.pushed(3, 25)
    assert cursor.credit == -15
    assert not cursor.wants(100)
    cursor.grant(15)
    assert not cursor.wants(100)
    cursor.grant(1)
    assert cursor.wants(100)


def test_credit_has_a_ceiling_whatever_is_granted():
    cursor = Cursor(0, None, 1)
    for size in (2**64 - 1, 2**63, 1):
        cursor.grant(size)
        assert cursor.credit == limits.STREAM_CREDIT_BYTES_MAX


def test_one_read_of_history_at_a_time():
    cursor = Cursor(0, None, 100)
    cursor.start_reading()
    assert not cursor.wants(10)
    cursor.reading = False
    assert cursor.wants(10)
    assert cursor.reads == 1


def test_a_bounded_cursor_finishes_at_its_end_even_inside_a_batch():
    cursor = Cursor(0, 7, 100)
    assert cursor.limit(100) == 7
    assert cursor.limit(3) == 3
    cursor.pushed(5, 1)
    assert not cursor.finished()
    cursor.pushed(10, 1)
    assert cursor.finished()
    assert not cursor.wants(100)


def test_an_end_at_or_before_the_start_is_finished_at_once():
    assert Cursor(5, 5, 100).finished()
    assert Cursor(5, 0, 100).finished()
    assert not Cursor(5, None, 100).finished()


def test_whatever_happens_positions_only_grow_and_credit_is_kept_to():
    for seed in range(200):
        chance = random.Random(seed)
        cursor = Cursor(chance.randrange(5), chance.choice([None, 20]), chance.randrange(1, 50))
        committed = 0
        for _ in range(100):
            before = cursor.position
            match chance.randrange(4):
                case 0:
                    committed += chance.randrange(4)
                case 1:
                    cursor.grant(chance.randrange(20))
                case 2 if cursor.wants(committed):
                    assert cursor.credit > 0
                    assert cursor.position < committed
                    cursor.pushed(chance.randrange(cursor.position + 1, committed + 1), chance.randrange(30))
                case 3 if cursor.wants(committed):
                    cursor.start_reading()
                    cursor.reading = False
            assert cursor.position >= before
            assert cursor.credit <= limits.STREAM_CREDIT_BYTES_MAX


# --- what the reader has taken -------------------------------------------------------------------


def test_what_was_pushed_is_taken_when_its_credit_comes_back():
    cursor = Cursor(0, None, 100)
    assert (cursor.taken, cursor.untaken_since_us) == (0, None)
    cursor.pushed(5, 50, 1_000)
    cursor.pushed(8, 30, 2_000)
    assert (cursor.taken, cursor.untaken_since_us) == (0, 1_000)
    cursor.grant(49)
    assert cursor.taken == 0
    cursor.grant(1)
    assert (cursor.taken, cursor.untaken_since_us) == (5, 2_000)
    cursor.grant(1_000)
    assert (cursor.taken, cursor.untaken_since_us) == (8, None)
    cursor.pushed(9, 10, 3_000)
    assert cursor.taken == 8, "credit that was given too much counts for nothing that comes later"


def test_what_is_remembered_of_pushes_is_bounded_and_ends_up_exact():
    cursor = Cursor(0, None, limits.STREAM_CREDIT_BYTES_MAX)
    pushes = 100_000
    for offset in range(pushes):
        cursor.pushed(offset + 1, 100, offset)
    assert len(cursor.untaken) < 300
    assert (cursor.taken, cursor.untaken_since_us) == (0, 0)
    cursor.grant(100 * pushes // 2)
    assert 0.4 * pushes < cursor.taken <= 0.5 * pushes
    assert cursor.untaken_since_us == cursor.taken
    cursor.grant(100 * pushes // 2)
    assert cursor.taken == pushes


def test_pushes_that_wait_for_credit_are_nothing_to_the_garbage_collector():
    cursor = Cursor(0, None, limits.STREAM_CREDIT_BYTES_MAX)
    for offset in range(100):
        cursor.pushed(offset + 1, 100, offset)
    cursor.grant(50)
    gc.collect()
    assert not any(map(gc.is_tracked, cursor.untaken))
