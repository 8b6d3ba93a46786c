"""Rules of the product that are switched off: a seed in virtual time must notice. `test_directed.py` has the others."""

import pytest
from tests.virtual.mutations import MUTATIONS
from tests.virtual.noticed import DIRECTED, SEEDS

MORE = 30  # seeds that are tried when the remembered ones have gone stale
LONG = {  # those whose runs go on for long
    "covered",
    "member-leases",
    "no-retire",
    "others-wait",
    "own-retention",
    "queue-commit",
    "transaction-doubt",
    "transaction-heir",
}
NAMES = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in sorted(SEEDS)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", NAMES)
def test_a_rule_that_is_switched_off_is_noticed(ask, name):
    assert ask("mutation", name, MORE), f"look for seeds with: python -m tests.virtual.noticed {name} --search 300"


def test_every_mutation_has_something_that_notices_it():
    assert set(SEEDS) | set(DIRECTED) == set(MUTATIONS)
    assert not set(SEEDS) & set(DIRECTED)
