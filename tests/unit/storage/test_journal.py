from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c

from stentor.errors import CorruptData, FormatTooNew, InternalError
from stentor.storage import LogFloor, ReplicaJournal
from stentor.storage.files import Kind, seal
from stentor.storage.journal import ReplicaState


def test_the_incarnation_grows_at_every_start(tmp_path):
    path = tmp_path / "replicas"
    assert [ReplicaJournal.open(path).incarnation for _ in range(4)] == [1, 2, 3, 4]


def test_what_was_stored_is_there_after_a_restart(tmp_path):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    journal.update(1, 0, log_id=2**63, epoch=5, synced_end=100, committed=90)
    journal.update(2**64 - 1, 7, log_id=8)
    assert journal.store()
    assert not journal.store()
    again = ReplicaJournal.open(tmp_path / "replicas")
    assert again.replicas() == {(1, 0): ReplicaState(2**63, 5, 100, 90), (2**64 - 1, 7): ReplicaState(8)}
    assert again.get(1, 0).floor == LogFloor(100, 90)
    assert again.get(3, 3) is None


def test_what_was_not_stored_is_not_there(tmp_path):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    journal.update(1, 0, log_id=2)
    assert ReplicaJournal.open(tmp_path / "replicas").get(1, 0) is None


def test_how_far_the_store_was_seen_goes_back_only_by_word(tmp_path):
    path = tmp_path / "replicas"
    journal = ReplicaJournal.open(path)
    assert journal.store_revision == 0
    journal.note_revision(21)
    journal.note_revision(14)
    journal.store()
    assert ReplicaJournal.open(path).store_revision == 21
    again = ReplicaJournal.open(path)
    again.accept_revision(14)
    again.store()
    assert ReplicaJournal.open(path).store_revision == 14


def test_a_journal_from_before_revisions_were_noted_is_read(tmp_path):
    path = tmp_path / "replicas"
    path.write_bytes(seal(Kind.JOURNAL, msgspec.msgpack.encode([3, [(1, 0, [2, 5, 100, 90])]])))
    journal = ReplicaJournal.open(path)
    assert (journal.incarnation, journal.store_revision) == (4, 0)
    assert journal.get(1, 0) == ReplicaState(2, 5, 100, 90)


def test_only_what_is_named_changes(tmp_path):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    journal.update(1, 0, log_id=2, epoch=5, synced_end=100, committed=90)
    journal.update(1, 0, log_id=2, synced_end=120)
    assert journal.get(1, 0) == ReplicaState(2, 5, 120, 90)


@pytest.mark.parametrize("back", [{"epoch": 4}, {"synced_end": 99}, {"committed": 89}])
def test_epochs_and_floors_never_go_back(tmp_path, back):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    journal.update(1, 0, log_id=2, epoch=5, synced_end=100, committed=90)
    with pytest.raises(InternalError, match="may not go back"):
        journal.update(1, 0, log_id=2, **back)
    assert journal.get(1, 0) == ReplicaState(2, 5, 100, 90)


def test_a_new_copy_of_the_log_begins_with_empty_floors_and_keeps_the_epoch(tmp_path):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    journal.update(1, 0, log_id=2, epoch=5, synced_end=100, committed=90)
    journal.update(1, 0, log_id=3, synced_end=10)
    assert journal.get(1, 0) == ReplicaState(3, 5, 10, 0)
    with pytest.raises(InternalError):
        journal.update(1, 0, log_id=4, epoch=4)


def test_a_log_that_was_cut_back_is_noted_but_never_below_what_is_committed(tmp_path):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    journal.update(1, 0, log_id=2, epoch=5, synced_end=100, committed=90)
    journal.rewind(1, 0, synced_end=95)
    assert journal.get(1, 0).synced_end == 95
    with pytest.raises(InternalError):
        journal.rewind(1, 0, synced_end=89)


def test_a_deleted_partition_is_forgotten(tmp_path):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    journal.update(1, 0, log_id=2)
    journal.remove(1, 0)
    journal.remove(9, 9)
    journal.store()
    assert ReplicaJournal.open(tmp_path / "replicas").replicas() == {}


def test_a_damaged_journal_is_an_error_with_a_hint_and_never_an_empty_journal(tmp_path):
    path = tmp_path / "replicas"
    journal = ReplicaJournal.open(path)
    journal.update(1, 0, log_id=2, epoch=5)
    journal.store()
    data = path.read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CorruptData, match="journal") as refused:
            ReplicaJournal.open(path)
        assert "copy" in refused.value.hint
        assert path.read_bytes() == damaged
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptData):
            ReplicaJournal.open(path)


def test_a_journal_of_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "replicas"
    ReplicaJournal.open(path)
    data = bytearray(path.read_bytes())
    data[4] = 7
    data[12:16] = crc32c(bytes(data[16:]), crc32c(bytes(data[4:12]))).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FormatTooNew):
        ReplicaJournal.open(path)
