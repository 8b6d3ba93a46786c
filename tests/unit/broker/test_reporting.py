"""What a broker tells the controller: everything once, then what changed."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from stentor.broker.cluster.reporting import Reporting
from stentor.core.chain_messages import ReplicaReport
from stentor.core.records import Member
from stentor.wire import frames

A, B = (1, 0), (1, 1)


class Copies(Mapping):
    """The copies of the partitions that there are at the moment."""

    def __init__(self, place):
        self._place = place

    def __getitem__(self, key):
        self._place.ends[key]
        replica = SimpleNamespace(report=lambda: self._place.report(key))
        return SimpleNamespace(replica=replica, log=SimpleNamespace(damaged=self._place.damaged.get(key, [])))

    def __iter__(self):
        return iter(self._place.ends)

    def __len__(self):
        return len(self._place.ends)


class Place:
    """A broker with two partitions, and a way to the controller."""

    def __init__(self):
        self.ends = {A: 1, B: 1}
        self.damaged = {}
        self.looked_at = []
        self.sent = []
        self.due = []
        self.features = {frames.REPORT_CHANGES}
        self.way = ("b0", False)
        self.closed = False
        self.membership = SimpleNamespace(controller_revision=5)
        self.machine = SimpleNamespace(membership=self.membership)
        self.peers = SimpleNamespace(
            knows=lambda _, feature: feature in self.features, send=lambda to, said: self.sent.append((to, said))
        )
        environment = SimpleNamespace(loop=SimpleNamespace(call_later=lambda _, work: self.due.append(work)))
        identity = SimpleNamespace(broker_id="b1", incarnation=3)
        self.reporting = Reporting(environment, identity, Copies(self), self.peers, self)

    def report(self, key):
        self.looked_at.append(key)
        return ReplicaReport(Member("b1", 7, 3), 5, self.ends[key], 0)

    def way_to_controller(self):
        return self.way

    def said(self, *keys):
        """What is reported after these partitions, or all of them, were said to have changed."""
        self.looked_at.clear()
        for key in keys:
            self.reporting.soon(key)
        if not keys:
            self.reporting.soon()
        assert len(self.due) == 1, "one report for all of a moment"
        self.due.pop()()
        return self.sent[-1][1]


@pytest.fixture
def place():
    place = Place()
    first = place.said()
    assert not first.partial
    assert [(t, p) for t, p, _ in first.reports] == [A, B]
    return place


def test_only_what_changed_is_told_again(place):
    assert place.said().reports == []
    place.ends[B] = 9
    said = place.said()
    assert said.partial
    assert [(t, p, r.end) for t, p, r in said.reports] == [(*B, 9)]
    assert [said.number for _, said in place.sent] == [1, 2, 3]


def test_a_log_with_damaged_offsets_is_told_to_be_incomplete(place):
    place.damaged[B] = [(20, 35)]
    assert [(t, p, r.incomplete) for t, p, r in place.said().reports] == [(*B, True)]
    assert [r.incomplete for *_, r in place.reporting._everything(pass_on=False).reports] == [False, True]


def test_a_new_partition_costs_a_look_at_itself_alone(place):
    place.ends[1, 2] = 0
    said = place.said((1, 2))
    assert [(t, p) for t, p, _ in said.reports] == [(1, 2)]
    assert place.looked_at == [(1, 2)]


@pytest.mark.parametrize("keys", [(A,), ()])
def test_what_is_not_held_any_more_is_told(place, keys):
    del place.ends[A]
    assert place.said(*keys).gone == [A]
    assert place.said(*keys).gone == []


def test_a_controller_that_asks_or_is_new_or_older_hears_everything(place):
    place.reporting.everything()
    place.due.pop()()
    assert not place.sent[-1][1].partial
    assert place.said().partial
    place.membership.controller_revision = 6
    assert not place.said().partial
    assert place.said().partial
    place.way = ("b2", False)
    assert not place.said().partial
    place.features.clear()
    assert not place.said().partial


def test_what_another_broker_passes_on_is_everything(place):
    place.way = ("b2", True)
    for _ in range(2):
        said = place.said()
        assert (said.partial, said.pass_on) == (False, True)
    place.way = ("b0", False)
    assert not place.said().partial
