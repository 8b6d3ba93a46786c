"""What peers say about chains is a hint; what cannot be undone waits for the store (C28)."""

import asyncio
import functools

import pytest
from tests.unit.core.test_members import A, B, C, adopt, replica

from stentor.broker.catalogue import Catalogue, News, TopicRecord, chain_key, encode, topic_key
from stentor.broker.cluster.hearsay import Hearsay
from stentor.broker.cluster.store_follower import FollowedStore, StoreFollower
from stentor.broker.cluster.store_rollback import StoreRollback
from stentor.core import replica_events as r
from stentor.core.records import ChainRecord, HeldRecord, Member
from stentor.errors import CoordinationUnavailable
from stentor.ports import Entry, Range
from stentor.wire.messages import TopicSettings

TOPIC = 7
KEY = (TOPIC, 0)
GHOST = Member("ghost", 99, 1)


def record(epoch, *chain, joining=None):
    return ChainRecord(epoch, chain, joining=joining, proposal=epoch, factor=len(chain), min_replicas=1)


def in_a_loop(test):
    @functools.wraps(test)
    def run(*arguments, **more):
        asyncio.run(test(*arguments, **more))

    return run


class Copy:
    """A partition as far as hearsay is concerned."""

    def __init__(self, machine):
        self.replica = machine
        self.key = KEY

    def step(self, event):
        self.replica.step(event, 0)


class Place:
    """A broker with one copy of one partition, and a store."""

    def __init__(self, me=A, chain=(A, B), epoch=3):
        machine = replica(me, end=10)
        adopt(machine, epoch, chain=chain)
        self.copy = Copy(machine)
        self.stored = HeldRecord(record(epoch, *chain), epoch)
        self.store_answers = True
        self.catalogue = Catalogue()
        self.catalogue.put(Entry(topic_key("t"), encode(TopicRecord("t", TOPIC, TopicSettings(), 0)), 1), News())
        self.copies = {KEY: self.copy}
        rollback = StoreRollback()
        self.follower = StoreFollower(self, self.catalogue, rollback)
        self.tasks = []
        self.reads = 0
        self.asked_three_times = asyncio.Event()
        self.catalogue.put(self.entry(), News())
        self.hearsay = Hearsay(
            self.copies,
            followed=FollowedStore(self, self.catalogue, rollback, self.follower),
            background=self,
        )
        self.follower.on_news.append(self.take_news)
        self.follower.on_read.append(self.hearsay.settle)

    def entry(self):
        return Entry(chain_key(KEY), encode(self.stored.record), self.stored.revision)

    async def range(self, prefix):
        self.reads += 1
        if self.reads == 3:
            self.asked_three_times.set()
        if not self.store_answers:
            raise CoordinationUnavailable("The store is away.")
        assert chain_key(KEY).startswith(prefix)
        return Range([self.entry()], 100)

    def spawn(self, work):
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def take_news(self, news):
        for held in news.chains.values():
            self.copy.replica.step(r.Configure(held.record, held.revision), 0)
            self.copy.replica.step(r.EpochStored(held.record.epoch), 0)

    async def settled(self):
        await asyncio.gather(*self.tasks)


@in_a_loop
async def test_a_record_that_keeps_this_copy_is_followed_at_once():
    place = Place()
    said = {KEY: HeldRecord(record(4, B, A), 4)}
    assert place.hearsay.believed(said) == said
    assert not place.tasks


@in_a_loop
async def test_a_record_that_does_without_this_copy_stops_it_until_the_store_says_whether_it_is_so():
    place = Place()
    assert not place.hearsay.believed({KEY: HeldRecord(record(4, GHOST), 2**60)})
    machine = place.copy.replica
    assert machine.doubted
    assert not machine.serves
    (refusal,) = machine.step(r.Publish(1, 3, 1, 7, 0, 0, 1), 0)
    assert isinstance(refusal, r.Refuse)
    await place.settled()
    assert not machine.doubted, "the store has nothing of it"
    assert machine.position.brokers == ("a", "b")


@in_a_loop
async def test_a_copy_that_was_really_replaced_follows_the_store():
    place = Place()
    place.stored = HeldRecord(record(4, B, C), 4)
    assert not place.hearsay.believed({KEY: place.stored})
    await place.settled()
    assert place.copy.replica.epoch == 4
    assert place.copy.replica.position.index is None


@in_a_loop
async def test_without_the_store_a_doubted_copy_goes_on_waiting(monkeypatch):
    monkeypatch.setattr("stentor.limits.RUMOUR_ASK_S", 0.001)
    place = Place()
    place.store_answers = False
    place.hearsay.believed({KEY: HeldRecord(record(4, GHOST), 50)})
    await place.asked_three_times.wait()
    assert place.copy.replica.doubted
    place.store_answers = True
    await place.settled()
    assert not place.copy.replica.doubted


@in_a_loop
async def test_a_record_that_wants_another_copy_on_this_broker_is_looked_up():
    place = Place()
    other_log = Member("a", 77, 1)
    assert not place.hearsay.believed({KEY: HeldRecord(record(4, B, joining=other_log), 4)})
    assert place.tasks
    await place.settled()


@in_a_loop
async def test_what_cannot_be_undone_waits_for_the_store():
    place = Place(me=B, chain=(A, B))
    machine, done = place.copy.replica, []
    place.hearsay.when_confirmed(place.copy, lambda: done.append("at once"))
    assert done == ["at once"], "the store has named this predecessor"
    adopt(machine, 4, chain=(C, B))
    place.hearsay.when_confirmed(place.copy, lambda: done.append("later"))
    assert done == ["at once"], "a peer has named another one"
    place.stored = HeldRecord(record(4, C, B), 4)
    await place.settled()
    assert done == ["at once", "later"]


@in_a_loop
async def test_a_member_cut_off_from_the_store_still_believes_the_predecessor_that_it_named():
    place = Place(me=C, chain=(A, B, C))
    place.store_answers = False
    adopt(place.copy.replica, 4, chain=(B, C))
    done = []
    place.hearsay.when_confirmed(place.copy, lambda: done.append(1))
    assert done == [1]


@pytest.mark.parametrize("invented", [50, 2**60])
@in_a_loop
async def test_a_rumour_that_the_store_does_not_know_is_dropped(invented):
    """Also by a broker that holds no copy, and would tell its clients wrong routes for ever."""
    place = Place()
    place.copies.clear()
    rumour = HeldRecord(record(9, GHOST), invented)
    assert place.hearsay.believed({KEY: rumour}) == {KEY: rumour}
    place.catalogue.put_chain(KEY, rumour, News(), confirmed=False)
    place.hearsay.check_rumours()
    assert not place.tasks, "the watch may bring it in a moment"
    place.hearsay.check_rumours()
    await place.settled()
    assert place.catalogue.chains[KEY].record == place.stored.record
