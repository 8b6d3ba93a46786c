"""A copy that begins anew gets its predecessor's derived state piece by piece."""

import pytest
from tests.unit.core.test_members import A, B, adopt, replica

from stentor import limits
from stentor.core import replica_events as r
from stentor.core.chain_messages import AskState, Link, Linked, StatePiece

AGAIN_US = 500_000


def joiner():
    """One whose log has nothing in common with its predecessor's; it has asked, and is told to begin anew at 100."""
    machine = replica(B)
    adopt(machine, 3, chain=(A,), joining=B)
    return machine, said(machine, Linked(3, machine.links.attempt, 100, reset=True, in_pieces=True))


def said(machine, message, now_us=0):
    return machine.step(r.Received("a", message), now_us)


def piece(machine, position, data, total=10, **more):
    return said(machine, StatePiece(3, machine.links.attempt, position, total, data, **more))


def asks(machine, position):
    return [r.Send("a", AskState(3, machine.links.attempt, 100, position))]


def test_pieces_are_asked_for_one_by_one_until_all_are_there():
    machine, effects = joiner()
    assert effects == asks(machine, 0)
    assert piece(machine, 0, b"0123") == asks(machine, 4)
    assert piece(machine, 4, b"4567") == asks(machine, 8)
    assert piece(machine, 8, b"89") == [r.Truncate(100, reset=True, snapshot=b"0123456789")]
    (again,) = machine.step(r.Cut(100), 0)
    assert isinstance(again.message, Link)
    assert (machine.start, machine.end) == (100, 100)


def test_no_state_is_one_empty_piece():
    machine, _ = joiner()
    assert piece(machine, 0, b"", total=0) == [r.Truncate(100, reset=True, snapshot=None)]


def test_what_is_said_twice_or_of_an_older_link_changes_nothing():
    machine, _ = joiner()
    piece(machine, 0, b"0123")
    assert piece(machine, 0, b"0123") == []
    assert piece(machine, 8, b"89") == []
    assert said(machine, StatePiece(3, machine.links.attempt - 1, 4, 10, b"4567")) == []
    assert said(machine, StatePiece(2, machine.links.attempt, 4, 10, b"4567")) == []
    assert machine.step(r.Received("c", StatePiece(3, machine.links.attempt, 4, 10, b"4567")), 0) == []
    assert said(machine, Linked(3, machine.links.attempt, 100, reset=True, in_pieces=True)) == []
    assert piece(machine, 4, b"456789") == [r.Truncate(100, reset=True, snapshot=b"0123456789")]


def test_a_piece_that_is_lost_is_asked_for_again_and_nothing_else_is():
    machine, _ = joiner()
    piece(machine, 0, b"0123")
    assert machine.step(r.Tick(), AGAIN_US - 1) == []
    assert machine.step(r.Tick(), AGAIN_US) == asks(machine, 4)
    assert machine.step(r.Tick(), AGAIN_US + 1) == []


def test_a_predecessor_whose_log_begins_elsewhere_is_asked_for_a_link_again():
    machine, _ = joiner()
    piece(machine, 0, b"0123")
    (asked,) = piece(machine, 4, b"", gone=True)
    assert isinstance(asked.message, Link)
    assert said(machine, Linked(3, machine.links.attempt, 120, reset=True, in_pieces=True)) == [
        r.Send("a", AskState(3, machine.links.attempt, 120, 0))
    ]


@pytest.mark.parametrize("event", [r.PeerConnected("a"), r.Fail("the disk said no")], ids=["reconnected", "failed"])
def test_what_was_received_is_forgotten_when_the_link_is_over(event):
    machine, _ = joiner()
    attempt = machine.links.attempt
    piece(machine, 0, b"0123")
    machine.step(event, 0)
    assert not machine.links.transfer.under_way
    assert said(machine, StatePiece(3, attempt, 4, 10, b"456789")) == []


def test_a_new_epoch_forgets_it_too():
    machine, _ = joiner()
    piece(machine, 0, b"0123")
    adopt(machine, 4, chain=(A,), joining=B)
    assert not machine.links.transfer.under_way


def test_an_older_version_gives_it_all_at_once():
    machine = replica(B)
    adopt(machine, 3, chain=(A,), joining=B)
    linked = Linked(3, machine.links.attempt, 100, reset=True, snapshot=b"all of it")
    assert said(machine, linked) == [r.Truncate(100, reset=True, snapshot=b"all of it")]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_successor_is_offered_what_it_understands(in_pieces):
    head = replica(A, end=5)
    adopt(head, 3, chain=(A,), joining=B)
    head.step(r.Started(3), 0)
    effects = head.step(r.Received("b", Link(3, 1, B, 0, 2, [(1, 0)], in_pieces=in_pieces)), 0)
    assert r.Send("b", Linked(3, 1, 3, reset=True, in_pieces=in_pieces)) in effects


class TestAPredecessor:
    def ask(self, head, position, *, sender="b", epoch=3, now_us=0):
        asked = AskState(epoch, 1, 0, position)
        return asked, head.step(r.Received(sender, asked), now_us)

    @pytest.fixture
    def head(self):
        head = replica(A, end=5)
        adopt(head, 3, chain=(A,), joining=B)
        return head

    def test_gives_to_its_successor_of_this_epoch_only(self, head):
        asked, effects = self.ask(head, 0)
        assert effects == [r.GiveState("b", asked)]
        assert self.ask(head, 0, sender="c")[1] == []
        assert self.ask(head, 0, epoch=2)[1] == []

    def test_gives_more_time_only_to_one_that_gets_further(self, head):
        quiet_us = int(limits.LINK_QUIET_S * 1_000_000)
        self.ask(head, 10, now_us=quiet_us)
        assert head.downstream.since_us == quiet_us
        self.ask(head, 10, now_us=2 * quiet_us)
        self.ask(head, 0, now_us=2 * quiet_us)
        assert head.downstream.since_us == quiet_us
