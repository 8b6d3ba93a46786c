"""What a broker remembers of its store, for a start without it."""

import logging
from types import SimpleNamespace

import pytest

from stentor.broker.catalogue import Catalogue, HeldTopic, News, TopicRecord
from stentor.broker.cluster.storeless_start import StorelessStart
from stentor.core.controller import BrokerRecord
from stentor.core.records import ChainRecord, HeldRecord, Member
from stentor.core.standing import Standing
from stentor.wire.messages import TopicSettings

KEY = (7, 0)
CHAIN = ChainRecord(3, (Member("b0", 1, 1), Member("b1", 2, 5)), proposal=1, factor=2, min_replicas=1)


@pytest.fixture
def broker():
    catalogue = Catalogue()
    catalogue.put_topic(HeldTopic(TopicRecord("orders", 7, TopicSettings(), 0), 4), News())
    catalogue.put_chain(KEY, HeldRecord(CHAIN, 9), News(), confirmed=True)
    catalogue.brokers["b0"] = BrokerRecord("b0", 1, address="10.0.0.1:7440")
    return SimpleNamespace(identity=SimpleNamespace(cluster_id="c"), catalogue=catalogue)


@pytest.fixture
def waiting(broker, tmp_path):
    return StorelessStart(
        SimpleNamespace(loop=None),
        broker.identity,
        Standing(),
        store=None,
        catalogue=broker.catalogue,
        file=tmp_path / "catalogue",
    )


def remembered(waiting):
    catalogue = Catalogue()
    waiting._load().fill(catalogue)
    return catalogue


def test_what_is_known_is_remembered(waiting, broker):
    waiting.note()
    waiting.store()
    assert waiting._load().cluster_id == "c"
    again = remembered(waiting)
    assert again.topics == broker.catalogue.topics
    assert again.chains == broker.catalogue.chains
    assert again.brokers == broker.catalogue.brokers


def test_only_news_is_written(waiting, broker, tmp_path):
    waiting.note()
    waiting.store()
    (tmp_path / "catalogue").unlink()
    waiting.note()
    waiting.store()
    assert not (tmp_path / "catalogue").exists()
    broker.catalogue.put_chain(KEY, HeldRecord(CHAIN, 10), News(), confirmed=True)
    waiting.note()
    waiting.store()
    assert remembered(waiting).chains[KEY].revision == 10


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_memory_is_none(waiting, tmp_path, caplog, damage):
    waiting.note()
    waiting.store()
    file = tmp_path / "catalogue"
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[-3] ^= 1
    file.write_bytes({"cut": content[:-5], "flipped": content, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert waiting._load() is None
    assert "cannot read from" in caplog.text


def test_without_a_memory_there_is_nothing_to_serve(waiting, caplog):
    assert waiting._load() is None
    assert not caplog.text
