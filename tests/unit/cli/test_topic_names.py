import msgspec

from stentor.broker.catalogue import Catalogue, HeldTopic, News, TopicRecord
from stentor.broker.cluster.storeless_start import Remembered
from stentor.cli.topic_names import named_by_topic, topic_names
from stentor.storage.directory import CATALOGUE_FILE, CHANGES_FILE, COORDINATION_FILE
from stentor.storage.files import FileKind, seal
from stentor.storage.model import Finding
from stentor.testing import broker
from stentor.wire.messages import TopicSettings


def test_names_come_from_the_state_and_its_changes_and_deleted_topics_have_none(tmp_path):
    with broker(tmp_path) as local, local.client() as client:
        ids = {name: client.create_topic(name).id for name in ("kept", "gone")}
        client.delete_topic("gone")
        before = {file: (tmp_path / file).read_bytes() for file in (COORDINATION_FILE, CHANGES_FILE)}
        assert topic_names(tmp_path) == {ids["kept"]: "kept"}
        assert before == {file: (tmp_path / file).read_bytes() for file in before}, "nothing is written"


def test_names_of_a_cluster_come_from_what_it_remembers(tmp_path):
    catalogue = Catalogue()
    catalogue.put_topic(HeldTopic(TopicRecord("orders", 7, TopicSettings(), 0), 1), News())
    remembered = msgspec.msgpack.encode(Remembered.of("c", catalogue))
    (tmp_path / CATALOGUE_FILE).write_bytes(seal(FileKind.CATALOGUE, remembered))
    assert topic_names(tmp_path) == {7: "orders"}
    found = [
        Finding("ok", "partitions/0000000000000007-3/0.log", "x"),
        Finding("ok", "partitions/0000000000000008-0", "x"),
    ]
    assert [finding.object for finding in named_by_topic(found, tmp_path)] == [
        "orders/3 (partitions/0000000000000007-3/0.log)",
        "partitions/0000000000000008-0",
    ]


def test_files_that_are_damaged_or_missing_name_nothing(tmp_path):
    assert topic_names(tmp_path) == {}
    (tmp_path / COORDINATION_FILE).write_bytes(b"damaged")
    (tmp_path / CATALOGUE_FILE).write_bytes(b"damaged")
    assert topic_names(tmp_path) == {}
