"""Where the committed messages end: a member is sure only once the whole chain has confirmed the epoch (C30)."""

from tests.unit.core.test_members import A, B, C, adopt, link, replica

from stentor import limits
from stentor.core import replica_events as r
from stentor.core.chain_messages import Confirm, Confirmed, Down, Link, Up
from stentor.core.records import ChainRecord

EPOCH = 3


def head_of(chain, **more):
    head = replica(A, end=10)
    adopt(head, EPOCH, chain=chain, **more)
    if len(chain) > 1:
        head.step(r.Received("b", Link(EPOCH, 1, B, 0, 10, [(1, 0)])), 0)
        head.step(r.Received("b", Up(EPOCH, [10] * (len(chain) - 1))), 0)
    return head


def ends(effects):
    return [(effect.ticket, effect.end, effect.certainty) for effect in effects if isinstance(effect, r.End)]


def asked(effects):
    return {effect.to for effect in effects if isinstance(effect, r.Send) and isinstance(effect.message, Confirm)}


def yes(sender, nonce=1, *, committed=10, sure=False, joiner="", epoch=EPOCH):
    return r.Received(sender, Confirmed(epoch, nonce, committed, sure, joiner))


def test_a_chain_of_one_is_sure_at_once():
    assert ends(head_of((A,)).step(r.AskEnd(7), 0)) == [(7, 10, "sure")]


def test_a_head_is_sure_once_all_others_have_confirmed():
    head = head_of((A, B, C))
    assert asked(head.step(r.AskEnd(7), 0)) == {"b", "c"}
    assert not head.step(yes("b"), 0)
    assert ends(head.step(yes("c"), 0)) == [(7, 10, "sure")]


def test_who_asks_while_a_round_is_under_way_waits_for_the_next_one():
    head = head_of((A, B))
    head.step(r.AskEnd(1), 0)
    assert not head.step(r.AskEnd(2), 0)
    effects = head.step(yes("b"), 0)
    assert ends(effects) == [(1, 10, "sure")]
    assert asked(effects) == {"b"}, "what was said before the second one asked does not count for it"
    assert not head.step(yes("b", nonce=1), 0)
    assert ends(head.step(yes("b", nonce=2), 0)) == [(2, 10, "sure")]


def test_another_member_knows_the_end_from_the_head():
    tail = replica(B, end=10)
    adopt(tail, EPOCH)
    link(tail, EPOCH, cut=10)
    tail.step(r.Received("a", Down(EPOCH, 8, 0)), 0)
    assert asked(tail.step(r.AskEnd(7), 0)) == {"a"}
    assert ends(tail.step(yes("a", committed=12, sure=True), 0)) == [(7, 12, "sure")]
    tail.step(r.AskEnd(8), 0)
    assert ends(tail.step(yes("a", nonce=2, committed=12), 0)) == [(8, 12, "unknown")], "the head is not sure itself"


def test_the_joiner_that_the_tail_waits_for_is_asked_too():
    head = head_of((A, B))
    head.step(r.AskEnd(7), 0)
    assert asked(head.step(yes("b", joiner="c"), 0)) == {"c"}
    assert ends(head.step(yes("c"), 0)) == [(7, 10, "sure")]


def test_a_new_epoch_ends_every_question():
    head = head_of((A, B))
    head.step(r.AskEnd(1), 0)
    head.step(r.AskEnd(2), 0)
    effects = head.step(r.Configure(ChainRecord(EPOCH + 1, (B,), proposal=9), EPOCH + 1), 0)
    assert ends(effects) == [(1, 10, "unknown"), (2, 10, "unknown")]
    assert not ends(head.step(yes("b"), 0))


def test_a_member_of_another_epoch_confirms_nothing():
    tail = replica(B, end=10)
    adopt(tail, EPOCH)
    assert not tail.step(r.Received("a", Confirm(EPOCH - 1, 1)), 0)
    (said,) = tail.step(r.Received("a", Confirm(EPOCH, 1)), 0)
    assert said.message.nonce == 1
    tail.step(r.Configure(ChainRecord(EPOCH + 1, (A,), proposal=9), EPOCH + 1), 0)
    assert not tail.step(r.Received("a", Confirm(EPOCH, 2)), 0), "it has heard of a newer one"


def test_a_chain_that_is_too_short_is_not_sure_unless_nothing_can_be_missing():
    head = replica(A, end=10)
    record = ChainRecord(EPOCH, (A,), eligible=(B, C), factor=3, min_replicas=2)
    head.step(r.Configure(record, EPOCH), 0)
    head.step(r.EpochStored(EPOCH), 0)
    assert ends(head.step(r.AskEnd(1), 0)) == [(1, 0, "unknown")], "some of what is in its log may be committed"
    head.committed = 10
    assert ends(head.step(r.AskEnd(2), 0)) == [(2, 10, "if_newest")], "unless one of those that left leads by now"


def test_questions_that_were_lost_are_asked_again():
    head = head_of((A, B, C))
    head.step(r.Tick(), 0)
    head.step(r.AskEnd(7), 0)
    head.step(yes("c"), 0)
    later_us = int(limits.CONFIRM_AGAIN_S * 1_000_000)
    assert asked(head.step(r.Tick(), later_us)) == {"b"}


def test_more_questions_than_a_broker_holds_are_turned_away(monkeypatch):
    monkeypatch.setattr(limits, "READS_WAITING_MAX", 2)
    head = head_of((A, B))
    for ticket in range(3):
        head.step(r.AskEnd(ticket), 0)
    assert ends(head.step(r.AskEnd(3), 0)) == [(3, 10, "unknown")]


def test_a_copy_that_serves_nobody_does_not_know_the_end():
    assert ends(replica(B, end=10).step(r.AskEnd(2), 0)) == [(2, 0, "unknown")]
