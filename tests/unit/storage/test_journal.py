from __future__ import annotations

import os

import msgspec
import pytest
from crc32c import crc32c

from stentor import limits
from stentor.errors import CorruptData, FormatTooNew, InternalError, StorageError
from stentor.storage import LogFloor, ReplicaJournal
from stentor.storage.changes import ChangesFile
from stentor.storage.files import FileKind, seal, sealed_version
from stentor.storage.journal import ReplicaState, changes_path, load_journal


def test_every_life_is_after_the_last_on_this_disk_and_the_one_that_others_remember(tmp_path):
    path = tmp_path / "replicas"
    lives = []
    for remembered in (0, 1, 0, 7):
        journal = ReplicaJournal.open(path)
        journal.begin_life(remembered)
        journal.store()
        lives.append(journal.incarnation)
    assert lives == [1, 2, 3, 8]


def test_a_start_that_begins_no_life_leaves_the_journal_as_old_as_it_is(tmp_path):
    """C3: an old copy of a data directory must not grow as young as what others remember."""
    path = tmp_path / "replicas"
    assert [ReplicaJournal.open(path).incarnation for _ in range(4)] == [0] * 4


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
    path.write_bytes(seal(FileKind.JOURNAL, msgspec.msgpack.encode([3, [(1, 0, [2, 5, 100, 90])]])))
    journal = ReplicaJournal.open(path)
    assert (journal.incarnation, journal.store_revision) == (3, 0)
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
        assert "backup" in refused.value.hint
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


# --- the whole and its changes ------------------------------------------------------------------


def bytes_per_topic(path, topics):
    journal = ReplicaJournal.open(path)
    for topic in range(topics):
        for partition in range(10):
            journal.update(topic, partition, log_id=2**61 + topic, epoch=1)
        journal.store()
    before = journal.bytes_written
    for topic in range(topics, topics + 10):
        for partition in range(10):
            journal.update(topic, partition, log_id=2**61 + topic, epoch=1)
        journal.store()
    return (journal.bytes_written - before) / 10


def test_what_a_new_topic_writes_does_not_grow_with_the_number_of_partitions(tmp_path):
    few, many = bytes_per_topic(tmp_path / "few", 10), bytes_per_topic(tmp_path / "many", 300)
    assert many < 1.2 * few


def test_changes_are_folded_into_the_whole_before_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "JOURNAL_CHANGES_BYTES_MIN", 10_000)
    path = tmp_path / "replicas"
    journal = ReplicaJournal.open(path)
    for end in range(2_000):
        journal.update(1, end % 7, log_id=2, synced_end=end, committed=end)
        journal.store()
        assert changes_path(path).stat().st_size < 11_000
    assert ReplicaJournal.open(path).replicas() == journal.replicas()


def test_every_change_is_found_again_also_a_removal_and_a_revision(tmp_path):
    path = tmp_path / "replicas"
    journal = ReplicaJournal.open(path)
    for number in range(5):
        journal.update(1, number, log_id=number + 1, epoch=number)
        journal.store()
    journal.remove(1, 3)
    journal.store()
    journal.note_revision(77)
    journal.store()
    found = load_journal(path)
    assert {(topic_id, number): state for topic_id, number, state in found.replicas} == journal.replicas()
    assert (found.store_revision, found.incarnation) == (77, 0)


def stored(path):
    """A journal with four changes, the last of which moves the epoch of one partition to 4."""
    journal = ReplicaJournal.open(path)
    for epoch in range(1, 5):
        journal.update(1, 0, log_id=2, epoch=epoch)
        journal.store()
    return journal


def test_a_change_that_a_crash_tore_is_left_out_and_the_one_before_counts(tmp_path):
    path = tmp_path / "replicas"
    stored(path)
    whole, changes = path.read_bytes(), changes_path(path).read_bytes()
    for cut in range(1, len(changes) // 4):
        path.write_bytes(whole)
        changes_path(path).write_bytes(changes[:-cut])
        again = ReplicaJournal.open(path)
        assert again.get(1, 0).epoch == 3
        again.update(1, 0, log_id=2, epoch=9)
        again.store()
        assert ReplicaJournal.open(path).get(1, 0).epoch == 9


def test_a_change_that_is_bad_before_a_good_one_is_damage_and_stays_as_it_is(tmp_path):
    path = tmp_path / "replicas"
    stored(path)
    changes = changes_path(path).read_bytes()
    for place in range(len(changes) * 3 // 4):
        damaged = bytearray(changes)
        damaged[place] ^= 0x10
        changes_path(path).write_bytes(damaged)
        with pytest.raises(CorruptData, match=r"journal .* is damaged"):
            ReplicaJournal.open(path)
        assert changes_path(path).read_bytes() == damaged


def test_changes_that_are_missing_are_damage(tmp_path):
    path = tmp_path / "replicas"
    stored(path)
    changes_path(path).unlink()
    with pytest.raises(CorruptData, match="missing"):
        ReplicaJournal.open(path)


def test_changes_of_an_earlier_whole_do_not_count(tmp_path):
    """A crash came after the whole was replaced, and before its changes were cleared."""
    path = tmp_path / "replicas"
    stored(path)
    changes = changes_path(path).read_bytes()
    journal = ReplicaJournal.open(path)
    journal.update(1, 0, log_id=2, epoch=8)
    journal.close()
    ReplicaJournal.open(path)
    changes_path(path).write_bytes(changes)
    assert ReplicaJournal.open(path).get(1, 0).epoch == 8


def test_an_older_whole_beside_newer_changes_is_refused(tmp_path):
    path = tmp_path / "replicas"
    stored(path)
    older = path.read_bytes()
    stored_again = ReplicaJournal.open(path)
    stored_again.update(1, 0, log_id=2, epoch=9)
    stored_again.store()
    path.write_bytes(older)
    with pytest.raises(CorruptData, match="generation"):
        ReplicaJournal.open(path)


def test_a_journal_that_was_closed_is_one_file_of_the_old_format(tmp_path):
    path = tmp_path / "replicas"
    journal = stored(path)
    assert sealed_version(path.read_bytes()) == 2
    journal.close()
    assert sealed_version(path.read_bytes()) == 1
    changes_path(path).unlink()
    assert ReplicaJournal.open(path).get(1, 0).epoch == 4


def test_changes_beside_a_whole_of_the_old_format_are_not_followed(tmp_path):
    """An older Stentor ran in between: it does not know the file of changes."""
    path = tmp_path / "replicas"
    stored(path)
    path.write_bytes(seal(FileKind.JOURNAL, msgspec.msgpack.encode([6, [(1, 0, [2, 7, 100, 90])], 5])))
    journal = ReplicaJournal.open(path)
    assert (journal.incarnation, journal.get(1, 0)) == (6, ReplicaState(2, 7, 100, 90))
    assert ReplicaJournal.open(path).get(1, 0).epoch == 7


def test_old_changes_are_gone_before_a_whole_is_written_that_counts_on_its_changes(tmp_path, monkeypatch):
    path = tmp_path / "replicas"
    stored(path)
    path.write_bytes(seal(FileKind.JOURNAL, msgspec.msgpack.encode([6, [(1, 0, [2, 7, 100, 90])], 5])))
    sizes = []
    replace = ReplicaJournal._store_whole

    def store_whole(journal, version):
        sizes.append(changes_path(path).stat().st_size)
        replace(journal, version)

    monkeypatch.setattr(ReplicaJournal, "_store_whole", store_whole)
    ReplicaJournal.open(path)
    assert sizes == [0]


def test_what_could_not_be_appended_is_in_the_next_store(tmp_path, monkeypatch):
    path = tmp_path / "replicas"
    journal = stored(path)

    def fail(fd):
        raise OSError(28, "no room")

    journal.update(1, 0, log_id=2, epoch=5)
    journal.note_revision(12)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageError):
            journal.store()
    assert load_journal(path).replicas[0][2].epoch == 4
    assert journal.store()
    assert (load_journal(path).replicas[0][2].epoch, load_journal(path).store_revision) == (5, 12)


def test_a_whole_that_could_not_be_written_is_written_by_the_next_store(tmp_path, monkeypatch):
    path = tmp_path / "replicas"
    journal = stored(path)
    monkeypatch.setattr(limits, "JOURNAL_CHANGES_BYTES_MIN", 0)
    monkeypatch.setattr(journal, "_whole_bytes", 0)

    def fail(fd):
        raise OSError(28, "no room")

    journal.update(1, 0, log_id=2, epoch=5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError):
            journal.store()
    assert load_journal(path).replicas[0][2].epoch == 4
    assert journal.store()
    assert load_journal(path).replicas[0][2].epoch == 5
    assert ChangesFile(changes_path(path)).load() == []
