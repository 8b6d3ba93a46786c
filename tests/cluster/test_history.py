from __future__ import annotations

import pytest
from tests.cluster.history import History, Poll

from stentor.errors import NotReady, UnknownOutcome


def told(history: History) -> list[tuple[str, int, int]]:
    return [(one.kind, one.partition, one.offset) for one in history.check()]


def value(number: int, producer: str = "p") -> bytes:
    return f"{producer}-{number}".encode()


def history_of(count: int = 5) -> History:
    """One producer, one partition, everything acknowledged and read by a live and a fresh consumer."""
    history = History()
    live, final = history.consumer("live"), history.consumer("final", final=True)
    for number in range(count):
        history.sent("p", number, value(number))
        history.acknowledged(value(number), 0, number)
        live.append(Poll(0, number, value(number)))
        final.append(Poll(0, number, value(number)))
    return history


def without(polls: list[Poll], *offsets: int) -> None:
    polls[:] = [poll for poll in polls if poll.offset not in offsets]


def test_a_good_history_has_no_anomaly():
    assert told(history_of()) == []


@pytest.mark.parametrize(("offsets", "where"), [((0, 1), "prefix"), ((2,), "middle"), ((3, 4), "suffix")])
def test_an_acknowledged_write_below_what_was_read_is_lost_when_nobody_read_it(offsets, where):
    history = history_of()
    for polls in (history.consumers["live"], history.finals["final"]):
        without(polls, *offsets)
        polls.append(Poll(0, 5, value(5)))
    history.sent("p", 5, value(5))
    lost = [one for one in history.check() if one.kind == "lost write"]
    assert [(one.offset, one.text.partition(",")[0]) for one in lost] == [(offsets[0], where)]


def test_losses_are_counted_in_runs():
    history = history_of(6)
    for polls in (history.consumers["live"], history.finals["final"]):
        without(polls, 0, 2, 3)
    lost = [one for one in history.check() if one.kind == "lost write"]
    assert [(one.offset, one.text.split(" acknowledged")[0]) for one in lost] == [(0, "prefix, 1"), (2, "middle, 2")]


def test_an_acknowledged_write_that_no_fresh_consumer_sees_is_unseen():
    history = history_of()
    without(history.finals["final"], 4)
    assert told(history) == [("unseen", 0, 4)]


def test_a_write_above_everything_that_was_read_is_unseen_and_not_lost():
    history = history_of()
    history.sent("p", 5, value(5))
    history.acknowledged(value(5), 0, 5)
    assert told(history) == [("unseen", 0, 5)]


def test_every_fresh_consumer_must_see_everything():
    history = history_of()
    history.consumer("other", final=True).extend(history.finals["final"][:-1])
    assert told(history) == [("unseen", 0, 4)]


def test_an_unknown_write_may_be_read_or_not():
    history = history_of()
    for number in (5, 6):
        history.sent("p", number, value(number))
        history.refused(value(number), UnknownOutcome("no answer"))
    history.finals["final"].append(Poll(0, 5, value(5)))
    assert told(history) == []


def test_a_value_at_two_offsets_is_a_duplicate():
    history = history_of()
    history.finals["final"].append(Poll(0, 5, value(2)))
    assert ("duplicate", 0, 2) in told(history)


def test_a_value_in_two_partitions_is_a_duplicate():
    history = history_of()
    history.finals["final"].append(Poll(1, 0, value(2)))
    assert ("duplicate", 0, 2) in told(history)


def test_two_consumers_with_different_values_at_one_offset_are_inconsistent():
    history = history_of()
    history.sent("q", 0, value(0, "q"))
    history.consumers["live"][3] = Poll(0, 3, value(0, "q"))
    assert told(history) == [("inconsistent offset", 0, 3)]


def test_an_acknowledged_offset_that_holds_something_else_is_inconsistent():
    history = history_of()
    history.sent("q", 0, value(0, "q"))
    history.acknowledged(value(0, "q"), 0, 3)
    assert ("inconsistent offset", 0, 3) in told(history)


def test_a_write_that_definitely_failed_and_is_read_is_an_aborted_read():
    history = history_of()
    history.sent("p", 5, value(5))
    history.refused(value(5), NotReady("too few replicas"))
    history.finals["final"].append(Poll(0, 5, value(5)))
    assert told(history) == [("aborted read", 0, 5)]


def test_a_value_that_nobody_published_is_a_phantom():
    history = history_of()
    history.finals["final"].append(Poll(0, 5, b"never"))
    assert told(history) == [("phantom", 0, 5)]


def test_writes_of_one_producer_stand_in_the_order_in_which_they_were_sent():
    history = History()
    final = history.consumer("final", final=True)
    for number, offset in ((0, 0), (1, 2), (2, 1)):
        history.sent("p", number, value(number))
        history.acknowledged(value(number), 0, offset)
    final.extend([Poll(0, 0, value(0)), Poll(0, 1, value(2)), Poll(0, 2, value(1))])
    assert told(history) == [("disordered writes", 0, 2)]


def test_a_consumer_that_is_handed_an_earlier_message_again_is_reordered():
    history = history_of()
    history.consumers["live"].append(Poll(0, 2, value(2)))
    assert told(history) == [("reordered poll", 0, 2)]


def test_a_consumer_that_never_gets_a_message_below_what_it_got_has_skipped():
    history = history_of()
    without(history.consumers["live"], 1, 2)
    assert told(history) == [("skipped poll", 0, 1)]


def test_a_consumer_that_begins_too_late_has_skipped():
    history = history_of()
    without(history.consumers["live"], 0)
    assert told(history) == [("skipped poll", 0, 0)]


def test_a_consumer_that_is_behind_has_not_skipped():
    history = history_of()
    without(history.consumers["live"], 3, 4)
    assert told(history) == []


def test_offsets_of_different_partitions_have_nothing_to_do_with_each_other():
    history = history_of()
    for number in range(3):
        history.sent("q", number, value(number, "q"))
        history.acknowledged(value(number, "q"), 1, number)
        history.consumers["live"].append(Poll(1, number, value(number, "q")))
        history.finals["final"].append(Poll(1, number, value(number, "q")))
    assert told(history) == []


def test_the_report_names_each_kind_with_examples():
    history = history_of()
    without(history.consumers["live"], 1)
    without(history.finals["final"], 1)
    report = history.report()
    assert "5 writes {'acknowledged': 5}" in report
    assert "lost write × 1" in report
    assert "middle" in report


def test_a_value_is_published_once():
    history = history_of()
    with pytest.raises(AssertionError):
        history.sent("q", 0, value(0))
