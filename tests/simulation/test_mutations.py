"""Every safety rule that the machines keep, switched off: the simulation must notice."""

import pytest
from tests.simulation.mutations import DIRECTED, MUTATIONS, SEEDS, caught
from tests.simulation.scenarios import SCENARIOS

MORE = 100  # seeds that are tried when the remembered ones have gone stale


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_that_is_switched_off_is_noticed(name):
    by = caught(name, more=MORE)
    assert by, f"nobody noticed; look for seeds with: python -m tests.simulation.mutations --search {name}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_directed_runs_find_nothing_while_every_rule_is_kept(name):
    SCENARIOS[name]()


def test_every_mutation_has_something_that_notices_it():
    assert set(SEEDS) | set(DIRECTED) == set(MUTATIONS)
