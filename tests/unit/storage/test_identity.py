"""The file with a broker's id: damage is told, and never taken for another broker."""

import pytest

from stentor.errors import CorruptData
from stentor.storage.directory import DataDirectory
from stentor.storage.identity import load_broker_id, settle_broker_id


@pytest.fixture
def file(tmp_path):
    return tmp_path / "broker"


def test_an_id_is_made_once_and_kept(file):
    assert settle_broker_id(file, "", "broker-1") == "broker-1"
    assert settle_broker_id(file, "", "broker-2") == "broker-1"
    assert file.read_text() == "broker-1", "people can read it"


def test_a_file_of_an_older_version_gets_a_checksum(file):
    file.write_text("b7\n")
    assert settle_broker_id(file, "", "made") == "b7"
    file.write_text("b5\n")
    with pytest.raises(CorruptData):
        load_broker_id(file)


@pytest.mark.parametrize("bit", range(16))
def test_a_flipped_bit_is_damage_and_no_other_broker(file, bit):
    settle_broker_id(file, "b0", "made")
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    with pytest.raises(CorruptData, match="with this broker's id is damaged") as raised:
        settle_broker_id(file, "", "made")
    assert "--broker-id" in raised.value.hint
    assert settle_broker_id(file, "b0", "made") == "b0", "who is told its id goes on"
    assert load_broker_id(file) == "b0"


def test_a_broker_of_a_cluster_without_its_journal_is_told_that_an_empty_directory_will_do(tmp_path):
    with DataDirectory(tmp_path / "data") as directory:
        directory.partition_directory(7, 0).mkdir(parents=True)
        with pytest.raises(CorruptData) as raised:
            directory.journal(alone=False)
        assert "empty directory" in raised.value.hint
        with pytest.raises(CorruptData) as raised:
            directory.journal()
        assert "Restore it from a backup" in raised.value.hint
