"""Marks of deleted topics are removed once every registered broker has said that it has nothing of them."""

import asyncio
from types import SimpleNamespace

import pytest

from stentor.broker.catalogue import CONTROLLER, Catalogue, News, broker_key, chain_key, deleted_key, encode, tidied_key
from stentor.broker.cluster.deletion_marks import MARK_AGE_S, DeletionMarks
from stentor.broker.held_topics import held_topics
from stentor.coordination import EmbeddedStore
from stentor.core.controller import BrokerRecord
from stentor.core.records import ChainRecord, Member
from stentor.ports import Entry


class Brokers:
    """Some brokers with one store and one catalogue, which is as new as the store; b0 is the controller."""

    def __init__(self, names=("b0", "b1"), registered=("b0", "b1")):
        self.now = 0.0
        self.store = EmbeddedStore(None, lambda _: None)
        self.catalogue = Catalogue()
        self.held = {name: set() for name in names}
        self.why_not = ""
        self.rollback = SimpleNamespace(noticed=False)
        self.marks = {name: self._marks_of(name) for name in names}
        self.put(CONTROLLER, b"\x82\xa6broker\xa2b0\xabincarnation\x01")
        for name in registered:
            self.put(broker_key(name), encode(BrokerRecord(name, 1)))

    def _marks_of(self, name):
        async def held():
            return self.held[name]

        followed = SimpleNamespace(store=self.store, catalogue=self.catalogue, rollback=self.rollback)
        machine = SimpleNamespace(controller=object() if name == "b0" else None, office_revision=1)
        cluster = SimpleNamespace(
            followed=followed,
            control=SimpleNamespace(joined=True, machine=machine),
            disk=SimpleNamespace(why_not=lambda: self.why_not),
        )
        return DeletionMarks(
            SimpleNamespace(monotonic=lambda: self.now),
            SimpleNamespace(broker_id=name, alone=False),
            cluster=cluster,
            held=held,
            background=SimpleNamespace(spawn=asyncio.run),
        )

    def put(self, key, value=b""):
        asyncio.run(self.store.swap(expect={}, put={key: value}))
        self.follow()

    def follow(self):
        found = asyncio.run(self.store.range(""))
        self.catalogue.replace(found.entries, found.revision, News())

    def look(self, seconds=60.0):
        self.now += seconds
        for marks in self.marks.values():
            marks.look_soon()
            self.follow()

    def deleted(self, topic_id):
        self.put(deleted_key(topic_id))

    @property
    def left(self):
        return sorted(self.catalogue.deleted)


def test_a_mark_is_removed_when_it_is_old_and_nobody_has_anything_of_the_topic():
    brokers = Brokers()
    brokers.deleted(7)
    brokers.look(0)
    brokers.look(MARK_AGE_S - 1)
    brokers.look(0)
    assert brokers.left == [7]
    brokers.look(1)
    brokers.look(0)
    assert brokers.left == []


@pytest.mark.parametrize("name", ["b0", "b1"])
@pytest.mark.parametrize("held", [{7}, None])
def test_it_stays_while_one_broker_has_something_or_cannot_tell(name, held):
    brokers = Brokers()
    brokers.deleted(7)
    brokers.held[name] = held
    for _ in range(30):
        brokers.look()
    assert brokers.left == [7]
    brokers.held[name] = set()
    brokers.look()
    brokers.look()
    assert brokers.left == []


def test_what_one_topic_waits_for_keeps_only_later_marks():
    brokers = Brokers()
    for topic_id in (7, 8, 9):
        brokers.deleted(topic_id)
    brokers.held["b1"] = {8}
    for _ in range(30):
        brokers.look()
    assert brokers.left == [8, 9]


def test_a_broker_that_is_away_is_waited_for_until_it_is_forgotten():
    brokers = Brokers(names=("b0", "b1"), registered=("b0", "b1", "b2"))
    brokers.deleted(7)
    for _ in range(30):
        brokers.look()
    assert brokers.left == [7]
    asyncio.run(brokers.store.swap(expect={}, put={}, delete=(broker_key("b2"),)))
    brokers.follow()
    brokers.look()
    assert brokers.left == []


def test_what_a_broker_said_before_says_nothing_about_later_deletions():
    brokers = Brokers()
    brokers.deleted(7)
    for _ in range(30):
        brokers.look()
    brokers.deleted(8)
    del brokers.marks["b1"]  # it is away now
    for _ in range(30):
        brokers.look()
    assert brokers.left == [8]


@pytest.mark.parametrize("trouble", ["disk", "restored", "another controller"])
def test_nothing_is_said_or_removed_by_who_cannot_be_sure(trouble):
    brokers = Brokers()
    brokers.deleted(7)
    if trouble == "disk":
        brokers.why_not = "full"
    elif trouble == "restored":
        brokers.rollback.noticed = True
    else:
        brokers.put(CONTROLLER, b"\x82\xa6broker\xa2b1\xabincarnation\x01")
    for _ in range(30):
        brokers.look()
    assert brokers.left == [7]


def test_records_of_chains_that_were_left_behind_go_first():
    brokers = Brokers()
    brokers.deleted(7)
    brokers.put(chain_key((7, 0)), encode(ChainRecord(1, (Member("b0", 1, 1),))))
    for _ in range(30):
        brokers.look()
    assert brokers.left == []
    assert asyncio.run(brokers.store.get(chain_key((7, 0)))) is None


def test_a_word_that_was_copied_to_another_etcd_does_not_count():
    catalogue = Catalogue()
    catalogue.put(Entry(tidied_key("b0"), b"5000", 12), News())
    assert catalogue.tidied == {"b0": 0}
    catalogue.put(Entry(tidied_key("b0"), b"11", 12), News())
    assert catalogue.tidied == {"b0": 11}


def test_a_mark_that_came_after_what_was_read_is_not_lost():
    catalogue = Catalogue()
    catalogue.put(Entry(deleted_key(7), b"", 20), News())
    catalogue.replace([], 19, News())
    assert catalogue.deleted == {7: 20}
    catalogue.replace([], 21, News())
    assert catalogue.deleted == {}


def test_a_broker_has_something_of_topics_that_it_has_files_or_cursors_of(local, client):
    topic_id = client.create_topic("orders").id
    client.publish("orders", "x")
    client.move_cursor("orders", "nightly", {0: 1})
    parts = local.inner.parts
    held = asyncio.run(held_topics(parts.ground.partitions, parts.copies))
    cursors = next(iter(held - {topic_id}))
    assert held == {topic_id, cursors}
    alone = {key: partition for key, partition in parts.ground.partitions.items() if key[0] != topic_id}
    nothing = SimpleNamespace(topics_on_disk=set, unopened={})
    assert asyncio.run(held_topics(alone, nothing)) == {topic_id, cursors}, "there is a cursor of it"
    assert asyncio.run(held_topics(alone, SimpleNamespace(topics_on_disk=set, unopened={(9, 0): "t/0"}))) is None
