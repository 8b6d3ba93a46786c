"""Members of a chain, one at a time: what they do about cuts that meet syncs, and about joiners."""

import pytest
from tests.headers import Batch

from stentor.core import replica_events as r
from stentor.core.chain_messages import Down, Link, Linked, Up
from stentor.core.derived import States
from stentor.core.records import ChainRecord, Member
from stentor.core.replica import Replica

A, B, C = Member("a", 1, 1), Member("b", 2, 1), Member("c", 3, 1)


def replica(me, *, end=0):
    return Replica(
        me=me, epoch=1, start=0, end=end, committed=0, states=States(), table=[(1, 0)] if end else []
    )  # fmt: skip


def adopt(machine, epoch, chain=(A, B), joining=None):
    record = ChainRecord(epoch, chain, joining=joining, proposal=epoch, factor=len(chain), min_replicas=1)
    machine.step(r.Configure(record, epoch), 0)
    return machine.step(r.EpochStored(epoch), 0)


def link(machine, epoch, cut):
    """The predecessor answers the last Link."""
    return machine.step(r.Received("a", Linked(epoch, machine.links.attempt, cut)), 0)


def offer(machine, epoch):
    """One more batch comes down."""
    base = machine.end
    offered = r.Offered("a", epoch, machine.links.attempt, machine.table.epoch_before(base), base, 0, 0)
    assert machine.step(offered, 0) == [r.Take()]
    return machine.step(r.Taken([Batch(base, base + 1, epoch, 7, 0, base, 1, 0)]), 0)


def test_a_cut_that_meets_a_sync_does_not_stop_later_syncs():
    tail = replica(B, end=10)
    adopt(tail, 3)
    link(tail, 3, cut=10)
    assert r.Sync() in offer(tail, 3)  # under way from here on, and never reported: the cut waits for it
    adopt(tail, 4)
    (cut,) = link(tail, 4, cut=10)
    assert cut == r.Truncate(10, reset=False, snapshot=None)
    tail.step(r.Cut(10), 0)
    link(tail, 4, cut=10)
    assert r.Sync() in offer(tail, 4)


def test_that_the_tail_waits_for_its_joiner_is_news():
    assert Up(3, [5], 5, joint=True).is_news(Up(3, [5], 5), 1, 0)
    assert not Up(3, [5], 5).is_news(Up(3, [5], 5), 1, 0)


def test_who_would_lose_what_is_committed_halts_and_says_so():
    tail = replica(B, end=10)
    tail.committed = 8
    adopt(tail, 3)
    effects = link(tail, 3, cut=7)
    assert isinstance(effects[0], r.Halt)
    assert tail.report().halted
    assert tail.report().failed


@pytest.mark.parametrize(
    "said",
    [
        r.Received("a", Down(3, 5, 0)),
        r.Received("a", Link(3, 1, A, 0, 10, [])),
        r.Offered("a", 3, 1, 1, 10, 5, 0),
    ],
    ids=["how far it is", "that it wants to be fed", "batches"],
)
def test_who_speaks_of_an_older_epoch_hears_of_the_newer_one(said):
    """C6: a head that was replaced may hear nobody else who knows."""
    head = replica(B, end=10)
    adopt(head, 4, chain=(B, C))
    (told,) = head.step(said, 0)
    assert (told.to, told.message.record.epoch) == ("a", 4)
    for epoch in (4, 5):
        assert head.step(r.Received("a", Down(epoch, 5, 0)), 0) == [], "who is not behind is told nothing"


def test_the_tail_waits_for_no_joiner_before_it_knows_what_was_committed_without_it():
    """C24: in joint mode its commit point is the joiner's, which may be below what earlier epochs acknowledged."""
    tail = replica(B, end=10)
    adopt(tail, 3, joining=C)
    link(tail, 3, cut=10)
    tail.step(r.Received("c", Link(3, 1, C, 0, 8, [(1, 0)])), 0)
    tail.step(r.Received("c", Up(3, [8])), 0)
    assert not tail.downstream.joint
    assert not tail.serves
    tail.step(r.Received("a", Down(3, 10, 0)), 0)
    tail.step(r.Received("c", Up(3, [9])), 0)
    assert (tail.downstream.joint, tail.committed) == (True, 10)
    assert tail.serves
