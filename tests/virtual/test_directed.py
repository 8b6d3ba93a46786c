"""Directed runs of the product in virtual time, and the rules that these are for, switched off."""

import pytest
from tests.virtual.directed import RUNS
from tests.virtual.noticed import DIRECTED


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(RUNS))
def test_directed_runs_find_nothing_while_every_rule_is_kept(ask, name):
    assert ask("run", name) == ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(DIRECTED))
def test_a_rule_that_is_switched_off_is_noticed(ask, name):
    assert ask("mutation", name, 0), f"{DIRECTED[name]} did not notice"
