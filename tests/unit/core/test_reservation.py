"""A memory topic that was lost begins anew by itself, behind every offset that may have been given out."""

import pytest
from tests.unit.core.test_controller import Cluster, member

from stentor import limits
from stentor.core.controller import TopicPlan
from stentor.core.memory_limits import OFFSETS_RENEWED, OFFSETS_RESERVED
from stentor.core.records import ChainRecord, Reservation
from stentor.core.reservation import may_assign


def memory_cluster(brokers="abc", *, factor=3, minimum=2, **record):
    cluster = Cluster(brokers, factor=factor, minimum=minimum, reserved=Reservation(OFFSETS_RESERVED), **record)
    cluster.controller.topic(1, TopicPlan(factor, minimum, memory=True))
    for name in brokers:
        cluster.report(name, end=100, holds=name in brokers[:factor])
    return cluster


def restart(cluster, names, *, alive="abc", **lives):
    """These come back with nothing; they have said so."""
    lives |= dict.fromkeys(names, 2)
    cluster.alive(alive, **lives)
    for name in names:
        cluster.report(name, incarnation=2, holds=False)


def test_a_restarted_member_never_passes_for_the_copy_that_it_was():
    cluster = memory_cluster()
    restart(cluster, "b")
    record = cluster.settle()
    assert cluster.chain == "ac"
    assert record.joining.broker == "b"
    assert record.joining.log_id != member("b").log_id
    assert record.reserved.begins == 0


def test_when_every_copy_is_lost_one_begins_anew_behind_all_that_was_reserved():
    cluster = memory_cluster()
    restart(cluster, "abc")
    record = cluster.settle(steps=1)
    assert cluster.chain == "a"
    assert record.chain[0].incarnation == 2
    assert record.chain[0].log_id != member("a").log_id
    assert record.reserved == Reservation(2 * OFFSETS_RESERVED, OFFSETS_RESERVED, 6)
    assert (record.epoch, record.committed, record.eligible) == (6, OFFSETS_RESERVED, ())


@pytest.mark.parametrize("silent", ["a", "b", "c"])
def test_nobody_begins_anew_while_one_that_is_not_heard_may_still_hold_a_copy(silent):
    cluster = memory_cluster()
    others = "abc".replace(silent, "")
    restart(cluster, others, alive=others)
    assert cluster.settle().epoch == 5
    restart(cluster, others, alive="abc")  # it was only cut off: it leads
    cluster.report(silent)
    assert cluster.settle(steps=1).reserved.begins == 0
    assert cluster.chain == silent


def test_nobody_begins_anew_before_all_have_said_what_they_hold():
    cluster = memory_cluster()
    cluster.alive("abc", a=2, b=2, c=2)
    for name in "ab":
        cluster.report(name, incarnation=2, holds=False)
    assert cluster.settle().epoch == 5


def test_a_copy_that_left_below_the_minimum_leads_before_anybody_begins_anew():
    cluster = memory_cluster("ab", factor=2, minimum=2, chain="a", eligible=(member("b"),))
    cluster.report("a")
    cluster.report("b")
    restart(cluster, "a", alive="a")
    assert cluster.settle().epoch == 5  # b may come back
    restart(cluster, "a", alive="ab")
    assert cluster.settle(steps=1).reserved.begins == 0
    assert cluster.chain == "b"


def test_a_broker_that_an_operator_has_forgotten_is_not_waited_for():
    cluster = memory_cluster("abc", factor=1, minimum=1, chain="a")
    cluster.alive("bc")
    assert cluster.settle().epoch == 5
    cluster.controller.forgot_broker("a")
    assert cluster.settle(steps=1).reserved.begins == OFFSETS_RESERVED
    assert cluster.chain in {"b", "c"}


def test_a_topic_on_disk_waits_for_its_copy():
    cluster = Cluster("a", factor=1, minimum=1)
    restart(cluster, "a", alive="a")
    assert cluster.settle().epoch == 5


def test_more_offsets_are_set_aside_before_a_head_has_used_its_own():
    cluster = memory_cluster(factor=1, minimum=1, chain="a")
    cluster.report("a", end=OFFSETS_RESERVED - OFFSETS_RENEWED)
    assert cluster.settle().epoch == 5
    end = OFFSETS_RESERVED - OFFSETS_RENEWED + 1
    cluster.report("a", end=end)
    record = cluster.settle()
    assert (record.epoch, record.reserved) == (6, Reservation(end + OFFSETS_RESERVED))


def test_a_head_assigns_nothing_beyond_what_is_reserved():
    record = ChainRecord(1, (member("a"),), reserved=Reservation(10 * limits.BATCH_MESSAGES_MAX))
    assert may_assign(record, 9 * limits.BATCH_MESSAGES_MAX)
    assert not may_assign(record, 9 * limits.BATCH_MESSAGES_MAX + 1)
    assert may_assign(ChainRecord(1, (member("a"),)), 2**61)
