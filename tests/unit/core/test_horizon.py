"""How far a log may be compacted: known once it is committed, and undone with what is cut off."""

from typing import NamedTuple

import pytest

from stentor.core.derived import States
from stentor.core.horizon import HORIZON, NOWHERE, Horizon, HorizonState
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
    states.commit(11)
    assert states.deletions_until == 4
