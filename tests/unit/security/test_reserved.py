"""Topics that are the brokers' own."""

import pytest

from stentor.errors import TopicReserved
from stentor.security.permissions import ANYBODY, Action, Permissions, Principal

CHANGES = (Action.PUBLISH, Action.CREATE, Action.ALTER, Action.DELETE)
TOPIC = "_stentor.cursors"


@pytest.mark.parametrize("action", CHANGES, ids=lambda action: action.value)
def test_clients_change_nothing_of_what_is_the_brokers_own(action):
    with pytest.raises(TopicReserved):
        Permissions().check(ANYBODY, action, TOPIC)
    Permissions().check(Principal("broker", "b0"), action, TOPIC)
    for name in ("_stentor", "_stentorx.cursors", "stentor.cursors", "_spark.stage", "_metrics", "orders"):
        Permissions().check(ANYBODY, action, name)


@pytest.mark.parametrize("action", [action for action in Action if action not in CHANGES], ids=lambda a: a.value)
def test_clients_see_and_read_it(action):
    Permissions().check(ANYBODY, action, TOPIC)
