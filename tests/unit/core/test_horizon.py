"""How far a log may be compacted: known once it is committed, and undone with what is cut off."""

from typing import NamedTuple

import msgspec
import pytest
from tests.unit.core.test_members import A, B, adopt

from stentor.core.chain_messages import Link, Linked
from stentor.core.derived import States
from stentor.core.horizon import HORIZON, NOWHERE, Horizon, HorizonState
from stentor.core.replica import Replica
from stentor.core.replica_events import Received, Send
from stentor.errors import CorruptData


class Batch(NamedTuple):
    """A batch by its header."""

    base_offset: int
    sequence: int = 0
    control: bool = True
    generation: int = HORIZON
    producer_id: int = 0
    epoch: int = 1
    body_checksum: int = 0
    appended_at_us: int = 0
    refused: bool = False
    passed_over: bool = True

    @property
    def end_offset(self):
        return self.base_offset + 1


def test_a_horizon_counts_once_it_is_committed():
    state = HorizonState()
    state.apply(Batch(10, 4))
    assert (state.applied, state.committed) == (Horizon(10, 4), NOWHERE)
    state.commit(10)
    assert state.committed == NOWHERE
    state.commit(11)
    assert state.committed == Horizon(10, 4)
    state.check_invariants()


def test_what_is_cut_off_is_undone():
    state = HorizonState()
    for offset in (10, 20, 30):
        state.apply(Batch(offset))
    state.commit(15)
    state.cut(30)
    assert state.applied == Horizon(20)
    state.cut(15)
    assert state.applied == state.committed == Horizon(10)


def test_other_batches_are_none():
    state = HorizonState()
    state.apply(Batch(1, control=False))
    state.apply(Batch(2, generation=HORIZON + 1))
    assert state.applied == NOWHERE


def test_deletions_never_go_above_the_horizon_itself():
    state = HorizonState()
    state.apply(Batch(10, 50))
    assert state.applied == Horizon(10, 10)


def test_it_comes_back_from_a_snapshot():
    state, other = HorizonState(), HorizonState()
    state.apply(Batch(10, 4))
    other.restore(state.snapshot())
    assert other.committed == Horizon(10, 4)
    with pytest.raises(CorruptData):
        other.restore(b"no snapshot")
    other.restore(None)
    assert other.committed == NOWHERE


def test_a_horizon_brings_what_is_known_of_producers():
    """C19: what was below it may have been compacted away."""
    known, other = States(HorizonState()), States(HorizonState())
    known.dedupe.record(7, 0, 0, 1, 0, 1, 0)
    other.apply(Batch(5), known.dedupe.snapshot())
    assert other.dedupe.snapshot() == known.dedupe.snapshot()
    assert other.dedupe.check(7, 0, 1, 2) is None


def test_after_a_gap_only_what_follows_is_remembered():
    states = States()
    for sequence in (0, 1, 5, 6):
        states.dedupe.record(7, 0, sequence, sequence, sequence, sequence + 1, 0)
    states.check_invariants()
    assert states.dedupe.remembered_from(7) == 5


def test_states_say_below_which_offset_deletions_may_be_gone():
    states = States(HorizonState())
    assert (states.deletions_until, States().deletions_until) == (0, 0)
    states.apply(Batch(10, 4))
    assert states.deletions_until == 4, "whoever filled this copy may have used it, committed as it is there"
    states.commit(11)
    assert states.deletions_until == 4


def test_a_joiner_whose_deletions_may_be_gone_begins_anew():
    """C23: but only one that would go on where it ends."""
    states = States(HorizonState())
    states.apply(Batch(90, 80))
    head = Replica(me=A, epoch=0, start=0, end=100, committed=100, states=states, table=[(1, 0), (2, 60)])
    adopt(head, 3, chain=(A,), joining=B)

    def answer(end, table, attempt):
        link = Link(3, attempt, B, 0, end, table, in_pieces=True)
        return next(effect.message for effect in head.step(Received("b", link), 0) if isinstance(effect, Send))

    assert answer(50, [(1, 0)], 1) == Linked(3, 1, 0, reset=True, in_pieces=True, compacted=True)
    assert answer(85, [(1, 0), (2, 60)], 2) == Linked(3, 2, 85)
    assert answer(0, [], 3) == Linked(3, 3, 0)


def test_a_joiner_with_another_past_is_cut_first():
    """C9: so it notices if that is committed as far as it knows, and stops for an operator instead of forgetting it."""
    states = States(HorizonState())
    states.apply(Batch(90, 80))
    head = Replica(me=A, epoch=0, start=0, end=100, committed=100, states=states, table=[(1, 0), (3, 60)])
    adopt(head, 4, chain=(A,), joining=B)
    link = Link(4, 1, B, 0, 75, [(1, 0), (2, 60)], in_pieces=True)
    told = next(effect.message for effect in head.step(Received("b", link), 0) if isinstance(effect, Send))
    assert told == Linked(4, 1, 60)
    joiner = Replica(me=B, epoch=0, start=0, end=75, committed=70, states=States(), table=[(1, 0), (2, 60)])
    adopt(joiner, 4, chain=(A,), joining=B)
    joiner.step(Received("a", msgspec.structs.replace(told, attempt=joiner.links.attempt)), 0)
    assert joiner.halted
