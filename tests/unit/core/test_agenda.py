"""All partitions have their turn, a bounded number at a time."""

from stentor import limits
from stentor.core.agenda import Agenda

MANY = [(1, number) for number in range(10_000)]


def test_no_more_are_taken_at_once_than_a_turn_may_look_at_and_all_have_their_turn():
    agenda = Agenda()
    agenda.update(MANY)
    seen = []
    while agenda:
        taken = agenda.take()
        assert 0 < len(taken) <= limits.PLANNED_PARTITIONS_MAX
        seen += taken
    assert seen == MANY


def test_whoever_comes_again_and_again_keeps_nobody_from_their_turn():
    agenda = Agenda()
    agenda.update(MANY)
    seen = set()
    for _ in range(len(MANY) // limits.PLANNED_PARTITIONS_MAX + 1):
        agenda.update(MANY[:1_000])
        seen.update(agenda.take())
    assert seen == set(MANY)


def test_what_is_taken_off_is_not_taken_and_what_comes_meanwhile_is():
    agenda = Agenda()
    agenda.update([(1, 0), (1, 1), (1, 2)])
    agenda.discard((1, 1))
    assert agenda.take() == [(1, 0), (1, 2)]
    agenda.add((1, 1))
    assert agenda.take() == [(1, 1)]
    assert not agenda


def test_what_was_put_off_is_due_with_a_later_tick_and_the_more_it_is_the_less_often():
    agenda = Agenda()
    agenda.recall(1_000_000)
    agenda.later((1, 0))
    agenda.recall(1_050_000)
    assert not agenda, "this was no tick"
    agenda.recall(1_100_000)
    assert agenda.take() == [(1, 0)]
    for key in MANY:
        agenda.later(key)
    agenda.recall(2_000_000)
    while agenda:
        for key in agenda.take():
            agenda.later(key)
    agenda.recall(3_000_000)
    assert not agenda, "looking at all of them with every tick would be all that the loop does"
    agenda.recall(5_000_000)
    assert agenda
