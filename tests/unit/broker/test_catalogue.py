"""What a broker makes of the store's keys; above all, of those that are not there any more."""

from stentor.broker.catalogue import Catalogue, News, TopicRecord, chain_key, deleted_key, encode, topic_key
from stentor.core.records import ChainRecord, Member
from stentor.ports import Entry
from stentor.wire.messages import TopicSettings

TOPIC = 7
RECORD = TopicRecord("orders", TOPIC, TopicSettings(), 0)
CHAIN = ChainRecord(1, (Member("b0", 1, 1),), proposal=1, factor=1, min_replicas=1)
KEYS = [
    Entry(topic_key("orders"), encode(RECORD), 5),
    Entry(chain_key((TOPIC, 0)), encode(CHAIN), 5),
]
MARK = Entry(deleted_key(TOPIC), b"", 8)


def known():
    catalogue = Catalogue()
    catalogue.replace(KEYS, 5, News())
    assert list(catalogue.topics) == ["orders"]
    return catalogue


def test_a_deleted_topic_is_known_by_its_mark():
    catalogue, news = known(), News()
    catalogue.replace([MARK], 9, news)
    assert not catalogue.topics
    assert not catalogue.chains
    assert news.topics == {TOPIC: None}
    assert news.chains == {(TOPIC, 0): None}
    assert not news.vanished


def test_a_change_that_deletes_a_topic_marks_it():
    catalogue, news = known(), News()
    catalogue.put(MARK, news)
    catalogue.delete(topic_key("orders"), 8, news)
    assert news.topics == {TOPIC: None}


def test_a_topic_that_the_store_has_lost_stays_and_is_told():
    """Its logs would be removed otherwise, on every broker, because etcd was restored from an older state."""
    catalogue, news = known(), News()
    catalogue.replace([], 30, news)
    assert list(catalogue.topics) == ["orders"]
    assert list(catalogue.chains) == [(TOPIC, 0)]
    assert not news.topics
    assert not news.chains
    assert news.vanished == ["orders"]
    again = News()
    catalogue.delete(topic_key("orders"), 31, again)
    assert not again.topics


def test_what_is_newer_than_the_reading_stays():
    catalogue, news = known(), News()
    catalogue.replace([MARK], 4, news)
    assert list(catalogue.topics) == ["orders"]
    assert not news.vanished
