"""Chains of several members in one hand: what goes up and down them, and what a publish waits for."""

import pytest
from tests.headers import Batch, appended

from stentor.core import replica_events as r
from stentor.core.chain_messages import Up
from stentor.core.derived import States
from stentor.core.records import ChainRecord, Member
from stentor.core.replica import Replica

QUORUM, ALL = 2, 3
EPOCH = 1


class Line:
    """A chain whose members hear each other at once and whose disks write when they are told to."""

    def __init__(self, length):
        self.members = [Member(f"b{index}", 1, index + 1) for index in range(length)]
        self.record = ChainRecord(EPOCH, tuple(self.members), factor=length)
        self.replicas = [
            Replica(me=member, epoch=0, start=0, end=0, committed=0, states=States()) for member in self.members
        ]
        self.answers, self.ups = [], []
        self.feeds = {}
        for index in range(length):
            self.step(index, r.Configure(self.record, 1))
        assert self.replicas[0].active

    def step(self, index, event):
        for effect in self.replicas[index].step(event, 1000):
            self.perform(index, effect)
        self.replicas[index].check_invariants()

    def perform(self, index, effect):
        match effect:
            case r.Send(to, message):
                if isinstance(message, Up):
                    self.ups.append((self.members[index].broker, message.durable))
                self.step(int(to[1:]), r.Received(self.members[index].broker, message))
            case r.StoreEpoch(epoch):
                self.step(index, r.EpochStored(epoch))
            case r.StartFeed():
                self.feeds[index] = effect
            case r.Answer():
                self.answers.append(effect.base_offset)
            case r.Sync() | r.Committed():
                pass
            case _:
                raise AssertionError(effect)

    def publish(self, sequence, ack):
        head = self.replicas[0]
        event = r.Publish(sequence, ack, 1, 7, 0, sequence, sequence)
        (append,) = head.step(event, 1000)
        self.step(0, appended(event, append))
        batch = Batch(append.base_offset, append.base_offset + 1, append.epoch, 7, 0, sequence, sequence, 1000)
        for index in range(1, len(self.members)):
            above, feed = self.replicas[index - 1], self.feeds[index - 1]
            offered = r.Offered(
                self.members[index - 1].broker,
                EPOCH,
                feed.attempt,
                above.table.epoch_before(batch.base_offset),
                batch.base_offset,
                above.durable_here(),
                above.quorum_wanted(),
            )
            assert self.replicas[index].step(offered, 1000) == [r.Take()]
            self.step(index, r.Taken([batch]))

    def sync(self, *indexes):
        for index in indexes:
            self.step(index, r.Durable(self.replicas[index].end))


@pytest.mark.parametrize(("length", "majority"), [(3, [0, 1]), (4, [0, 1, 2]), (5, [0, 1, 2]), (7, [0, 1, 2, 3])])
def test_a_publish_that_waits_for_a_majority_does_not_wait_for_the_rest(length, majority):
    line = Line(length)
    line.publish(0, QUORUM)
    *first, last = reversed(majority)
    line.sync(*first)
    assert line.answers == []
    line.sync(last)
    assert line.answers == [0]
    assert line.replicas[0].committed == 0


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_publish_that_waits_for_all_is_committed_everywhere(length):
    line = Line(length)
    line.publish(0, ALL)
    line.sync(*range(length - 1))
    assert line.answers == []
    line.sync(length - 1)
    assert line.answers == [0]
    assert [replica.committed for replica in line.replicas] == [1] * length


def test_nobody_is_told_of_a_majority_that_nobody_waits_for():
    line = Line(3)
    line.ups.clear()
    line.publish(0, ALL)
    line.sync(0, 1)
    assert line.ups == []
    line.sync(2)
    assert line.ups == [("b2", [1]), ("b1", [1, 1])]


def test_a_member_that_commits_says_nothing_that_is_known():
    """The tail was first: it commits when it hears of the others, and they know that without being told."""
    line = Line(3)
    line.publish(0, ALL)
    line.sync(2)
    line.ups.clear()
    line.sync(0)
    assert line.replicas[2].committed == 0
    line.sync(1)
    assert [replica.committed for replica in line.replicas] == [1, 1, 1]
    assert line.ups == [("b1", [1, 1])]


def test_what_batches_say_of_those_above_is_acted_upon_at_once():
    """Nobody at the tail waits for the sync of the next batch to see the one before it."""
    line = Line(2)
    line.publish(0, ALL)
    line.sync(1)
    head, tail = line.replicas
    for effect in head.step(r.Durable(1), 1000):
        if not isinstance(effect, r.Send):  # the Down is left out: the next batch says the same
            line.perform(0, effect)
    assert (head.committed, tail.committed) == (1, 0)
    line.publish(1, ALL)
    assert (head.committed, tail.committed) == (1, 1)
