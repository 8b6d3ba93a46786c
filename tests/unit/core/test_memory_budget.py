"""One budget for what messages keep in a broker's memory."""

import pytest

from stentor.core.memory_budget import BUDGET_BYTES_MIN, MemoryBudget, share_of
from stentor.errors import MemoryFull


def test_what_an_owner_holds_replaces_what_it_held():
    budget = MemoryBudget(100)
    budget.hold("a", 30)
    budget.hold("b", 20)
    budget.hold("a", 50)
    budget.check_invariants()
    assert budget.used == 70
    budget.hold("b", 0)
    budget.hold("nobody", 0)
    budget.check_invariants()
    assert budget.used == 50


def test_it_is_refused_when_it_is_used_up_and_taken_again_when_some_is_given_back():
    budget = MemoryBudget(100)
    budget.hold("a", 99)
    budget.check("topic/0")
    budget.hold("a", 100)
    with pytest.raises(MemoryFull) as error:
        budget.check("topic/0")
    assert error.value.retriable
    assert error.value.object == "topic/0"
    assert budget.refused == 1
    budget.hold("a", 10)
    budget.check("topic/0")


def test_a_follower_goes_on_a_little_longer_than_a_head():
    budget = MemoryBudget(100)
    budget.hold("a", 120)
    assert budget.is_used_up
    assert budget.follows()
    budget.hold("a", 125)
    assert not budget.follows()


def test_a_broker_takes_a_quarter_of_its_machine_by_itself():
    assert share_of(16 << 30) == 4 << 30
    assert share_of(1) == BUDGET_BYTES_MIN
