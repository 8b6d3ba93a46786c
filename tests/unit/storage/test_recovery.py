from __future__ import annotations

import os
from pathlib import Path

import pytest
from crc32c import crc32c

from stentor.errors import CorruptData, DirectoryUnusable, FormatTooNew
from stentor.storage.index import decode_index, encode_index
from stentor.storage.model import SEGMENT_HEADER_BYTES, Identity
from stentor.storage.segment import pack_segment_header


def readable(log, batches):
    """(offsets that can be read, ranges that are refused), going on where errors say."""
    offset, found, refused = log.start, [], []
    while offset < log.end:
        try:
            piece = log.read(offset, log.end, 1)
        except CorruptData as error:
            refused.append((offset, error.detail["resume_at"]))
            offset = error.detail["resume_at"]
        else:
            found.append(piece.first_offset)
            offset = piece.next_offset
    return found, refused


def flip(path, position, bit=1):
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def test_a_torn_tail_is_cut_off_wherever_the_tear_is(logs, batches, memory_path):
    log = logs.open()
    written = batches.fill(log, 3)
    log.close()
    whole = logs.files()[0].read_bytes()
    torn_from = len(whole) - len(written[2])
    for size in range(torn_from + 1, len(whole)):
        directory = memory_path / f"torn-{size}"
        directory.mkdir()
        (directory / logs.files()[0].name).write_bytes(whole[:size])
        log = logs.open(directory=directory, synced_end=2)
        assert log.end == 2
        assert [(cut.from_bytes, cut.to_bytes, cut.first_offset) for cut in log.recovery.truncated] == [
            (size, torn_from, 2)
        ]
        assert log.damaged == []
        assert batches.append(log) == written[2]
        assert batches.read_all(log) == written


@pytest.mark.parametrize("position", [0, 5, 8, 13, 20, 33, 40, 85, 96, 120, 155])
def test_a_flipped_bit_in_an_unsynced_last_batch_is_a_torn_tail(logs, batches, position):
    log = logs.open()
    written = batches.fill(log, 3)
    log.close()
    path = logs.files()[0]
    flip(path, path.stat().st_size - len(written[2]) + position)
    log = logs.open(synced_end=2)
    assert (log.end, log.damaged) == (2, [])
    assert len(log.recovery.truncated) == 1


@pytest.mark.parametrize("position", [0, 5, 8, 13, 20, 33, 40, 85, 96, 120, 155])
def test_a_flipped_bit_in_a_synced_last_batch_is_damage_and_its_offsets_are_not_reused(logs, batches, position):
    log = logs.open()
    written = batches.fill(log, 3)
    log.close()
    path = logs.files()[0]
    flip(path, path.stat().st_size - len(written[2]) + position)
    before = path.read_bytes()
    log = logs.open(synced_end=3)
    assert (log.end, log.damaged, log.recovery.truncated) == (3, [(2, 3)], ())
    assert path.read_bytes() == before
    batches.append(log)
    assert readable(log, batches) == ([0, 1, 3], [(2, 3)])
    log.close()
    log = logs.open(synced_end=4)
    assert readable(log, batches) == ([0, 1, 3], [(2, 3)])


@pytest.mark.parametrize("position", [0, 5, 8, 13, 20, 33, 40, 85, 96, 120, 155])
def test_a_flipped_bit_before_valid_batches_is_damage_even_if_nothing_was_synced(logs, batches, position):
    log = logs.open()
    written = batches.fill(log, 10)
    log.close()
    path = logs.files()[0]
    flip(path, SEGMENT_HEADER_BYTES + 4 * len(written[0]) + position)
    log = logs.open(synced_end=0)
    assert (log.end, log.damaged, log.recovery.truncated) == (10, [(4, 5)], ())
    assert logs.files() == [path, path.with_name(f"{10:020d}.log")]
    batches.fill(log, 2)
    assert readable(log, batches) == ([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], [(4, 5)])
    log.close()
    reopened = logs.open(synced_end=12)
    assert readable(reopened, batches) == ([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], [(4, 5)])


def test_several_damaged_places_in_one_segment_leave_the_rest_readable(logs, batches):
    log = logs.open()
    written = batches.fill(log, 20, count=2)
    log.close()
    path, length = logs.files()[0], len(written[0])
    for place in (0, 3, 4, 5, 12, 19):
        flip(path, SEGMENT_HEADER_BYTES + place * length + 100)
    log = logs.open(synced_end=40)
    found, refused = readable(log, batches)
    assert refused == [(0, 2), (6, 12), (24, 26), (38, 40)]
    assert len(found) == 14


def test_a_file_that_ends_below_the_synced_end_has_a_damaged_range(logs, batches):
    log = logs.open()
    written = batches.fill(log, 10)
    log.close()
    path = logs.files()[0]
    with path.open("r+b") as file:
        file.truncate(SEGMENT_HEADER_BYTES + 6 * len(written[0]))
    log = logs.open(synced_end=10)
    assert (log.start, log.end, log.damaged) == (0, 10, [(6, 10)])
    batches.append(log)
    assert readable(log, batches) == ([0, 1, 2, 3, 4, 5, 10], [(6, 10)])


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
def test_a_file_cut_to_almost_nothing_below_the_synced_end_has_a_damaged_range(logs, batches, size):
    log = logs.open()
    batches.fill(log, 10)
    log.close()
    with logs.files()[0].open("r+b") as file:
        file.truncate(size)
    log = logs.open(synced_end=10)
    assert (log.start, log.end, log.damaged) == (0, 10, [(0, 10)])
    batches.append(log)
    log.close()
    log = logs.open(synced_end=11)
    assert readable(log, batches) == ([10], [(0, 10)])


def test_a_log_whose_files_are_all_gone_goes_on_after_its_synced_end(logs, batches):
    log = logs.open(synced_end=50)
    assert (log.start, log.end, log.damaged) == (0, 50, [(0, 50)])
    batches.append(log)
    assert readable(log, batches) == ([50], [(0, 50)])


def test_a_missing_segment_in_the_middle_is_a_damaged_range(logs, batches):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 40)
    log.close()
    bases = [int(path.stem) for path in logs.files()]
    logs.files()[2].unlink()
    for _ in range(2):
        log = logs.open(segment_bytes=1000, synced_end=40)
        assert log.damaged == [(bases[2], bases[3])]
        found, refused = readable(log, batches)
        assert refused == [(bases[2], bases[3])]
        assert len(found) == 40 - (bases[3] - bases[2])
        log.close()


def test_sealed_segments_are_not_scanned(logs, batches):
    log = logs.open(segment_bytes=10_000)
    log.snapshot = lambda: b"state"
    batches.fill(log, 500)
    log.close()
    log = logs.open(segment_bytes=10_000, synced_end=500)
    assert log.recovery.segments > 7
    assert log.recovery.scanned_bytes == logs.files()[-1].stat().st_size


@pytest.mark.parametrize("harm", ["missing", "summary", "entries", "short", "empty", "of another size"])
def test_a_bad_index_is_rebuilt_from_the_log(logs, batches, harm):
    log = logs.open(segment_bytes=200_000)
    written = batches.fill(log, 4000)
    log.close()
    index = logs.files(".index")[1]
    data = bytearray(index.read_bytes())
    if harm == "missing":
        index.unlink()
    elif harm == "of another size":
        index.write_bytes(logs.files(".index")[0].read_bytes())
    else:
        if harm == "summary":
            data[30] ^= 1
        elif harm == "entries":
            data[-20] ^= 1
        index.write_bytes(data[:-5] if harm == "short" else b"" if harm == "empty" else data)
    log = logs.open(segment_bytes=200_000, synced_end=4000)
    assert batches.read_all(log, max_bytes=10_000) == written
    for offset in range(0, 4000, 97):
        assert log.read(offset, 4000, 1).data == written[offset]
    log.close()
    log = logs.open(segment_bytes=200_000, synced_end=4000)
    assert log.recovery.rebuilt_indexes == ()
    assert log.recovery.damaged == ()


def test_an_index_that_lies_is_found_out_and_replaced(logs, batches):
    log = logs.open(segment_bytes=200_000)
    written = batches.fill(log, 4000)
    log.close()
    path = logs.files(".index")[0]
    summary, index = decode_index(path.read_bytes(), what="index")
    for place in range(1, len(index.positions)):
        index.positions[place] += 1
    identity = Identity(summary.topic_id, summary.partition, summary.log_id)
    path.write_bytes(
        encode_index(
            index,
            identity,
            base=summary.base_offset,
            end=summary.end_offset,
            data_bytes=summary.data_bytes,
            file_bytes=summary.file_bytes,
        )[1]
    )
    log = logs.open(segment_bytes=200_000, synced_end=4000)
    assert [log.read(offset, 4000, 1).data for offset in range(0, 4000, 50)] == written[::50]
    assert log.damaged == []


def test_a_missing_or_damaged_snapshot_falls_back_to_an_older_one(logs, batches):
    log = logs.open(segment_bytes=1000)
    log.snapshot = lambda: str(log.end).encode()
    batches.fill(log, 40)
    log.close()
    snapshots = logs.files(".snapshot")
    bases = [int(path.stem) for path in snapshots]
    snapshots[-1].unlink()
    flip(snapshots[-2], 20)
    log = logs.open(segment_bytes=1000, synced_end=40)
    assert logs.restored == [str(bases[-3]).encode()]
    assert logs.replayed == list(range(bases[-3], 40))
    assert any("snapshot" in note for note in log.recovery.notes)
    for path in logs.files(".snapshot"):
        path.unlink()
    logs.open(segment_bytes=1000, synced_end=40)
    assert logs.restored == [None]
    assert logs.replayed == list(range(40))


def test_older_snapshots_are_given_while_a_state_is_missing(logs, batches):
    log = logs.open(segment_bytes=1000)
    log.snapshot = lambda: str(log.end).encode()
    batches.fill(log, 40)
    log.close()
    bases = [int(path.stem) for path in logs.files(".snapshot")]
    logs.snapshots_wanted = 3
    log = logs.open(segment_bytes=1000, synced_end=40)
    assert logs.restored_at == bases[-1:-4:-1]
    assert logs.replayed == list(range(bases[-3], 40))
    logs.snapshots_wanted = 1000
    logs.restored, logs.restored_at, logs.replayed = [], [], []
    log.derive(logs)
    assert (logs.restored[-1], logs.restored_at[-1]) == (None, 0)
    assert logs.replayed == list(range(40))


def test_damaged_batches_are_not_replayed(logs, batches):
    log = logs.open()
    written = batches.fill(log, 10)
    log.close()
    flip(logs.files()[0], SEGMENT_HEADER_BYTES + 4 * len(written[0]) + 100)
    logs.open(synced_end=10)
    assert logs.replayed == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_several_unsealed_segments_are_recovered_after_a_crash(logs, batches):
    log = logs.open(segment_bytes=1000)
    written = batches.fill(log, 40)
    assert logs.files(".index") == []
    del log
    logs.opened.clear()
    log = logs.open(segment_bytes=1000, synced_end=0)
    assert batches.read_all(log) == written
    assert len(log.recovery.rebuilt_indexes) == len(logs.files()) - 1
    assert log.recovery.damaged == ()


def test_a_torn_segment_before_one_that_was_begun_and_never_synced_is_a_torn_tail(logs, batches):
    log = logs.open()
    written = batches.fill(log, 10)
    log.close()
    for rest in (b"", bytes(64), bytes(5000), b"header"):
        old = logs.files()[0]
        content = old.read_bytes()
        old.write_bytes(content[:-30])
        new = old.with_name(f"{10:020d}.log")
        identity = Identity(batches.topic_id, batches.partition, 77)
        new.write_bytes(pack_segment_header(identity, 10, 0) + b"torn" if rest == b"header" else rest)
        log = logs.open(synced_end=9)
        assert (log.end, log.damaged) == (9, [])
        assert logs.files() == [old]
        batches.append(log)
        assert batches.read_all(log) == written
        log.close()


def test_room_taken_ahead_is_not_taken_for_a_torn_tail(logs, batches):
    log = logs.open()
    written = batches.fill(log, 3)
    assert logs.files()[0].stat().st_size > log.bytes
    for _ in range(3):
        log = logs.open(synced_end=log.end)
        assert (log.recovery.truncated, log.damaged) == ((), [])
        written += batches.fill(log, 3)
        assert batches.read_all(log) == written


def test_a_torn_batch_before_room_taken_ahead_is_cut_off(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    path = logs.files()[0]
    with path.open("r+b") as file:
        file.seek(log.bytes - 20)
        file.write(bytes(20))
    log = logs.open(synced_end=2)
    assert (log.end, log.damaged, len(log.recovery.truncated)) == (2, [], 1)
    with path.open("r+b") as file:
        file.seek(log.bytes - 20)
        file.write(bytes(20))
    log = logs.open(synced_end=2)
    assert (log.end, log.damaged) == (2, [(1, 2)])


def test_what_may_be_ours_but_cannot_be_told_is_put_aside_and_not_overwritten(logs, batches):
    log = logs.open()
    batches.fill(log, 6)
    log.roll()
    log.close()
    path = logs.directory / f"{6:020d}.log"
    lost_page = bytes(4096) + b"the rest of a large batch" * 100
    path.write_bytes(lost_page)
    log = logs.open(synced_end=6)
    assert (log.end, log.damaged) == (6, [])
    assert (logs.directory / "quarantine" / path.name).read_bytes() == lost_page
    batches.fill(log, 2)
    assert len(batches.read_all(log)) == 8


def test_a_file_created_and_never_synced_is_begun_again(logs, batches):
    log = logs.open(segment_bytes=1000)
    written = batches.fill(log, 6)
    log.close()
    logs.directory.joinpath(f"{6:020d}.log").write_bytes(bytes(300))
    log = logs.open(segment_bytes=1000, synced_end=6)
    assert (log.end, log.damaged) == (6, [])
    written += batches.fill(log, 6)
    assert batches.read_all(log) == written
    log.close()
    assert batches.read_all(logs.open(synced_end=12)) == written


def test_damage_recorded_while_running_survives_a_restart_even_at_the_very_end(logs, batches):
    log = logs.open()
    written = batches.fill(log, 5)
    log.sync()
    path = logs.files()[0]
    with path.open("r+b") as file:
        file.seek(log.bytes - 10)
        file.write(b"\xff" * 10)
    with pytest.raises(CorruptData):
        log.read(4, 5, 1)
    assert log.damaged == [(4, 5)]
    log.close()
    log = logs.open(synced_end=3)
    assert (log.end, log.damaged, log.recovery.truncated) == (5, [(4, 5)], ())
    batches.append(log)
    assert readable(log, batches) == ([0, 1, 2, 3, 5], [(4, 5)])
    assert written


def test_a_damaged_segment_header_costs_no_message(logs, batches):
    log = logs.open(segment_bytes=1000)
    written = batches.fill(log, 20)
    log.close()
    for path in (logs.files()[0], logs.files()[-1]):
        flip(path, 20)
    log = logs.open(segment_bytes=1000, synced_end=20)
    assert batches.read_all(log) == written
    assert len(log.recovery.notes) == 2
    assert log.damaged == []
    written += batches.fill(log, 3)
    log.close()
    assert batches.read_all(logs.open(segment_bytes=1000, synced_end=23)) == written


def test_foreign_files_are_reported_and_left_alone(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    log.close()
    strangers = ["README", "notes.log", "5.log", "00000000000000000009.index", "00000000000000000000.bak"]
    for name in strangers:
        (logs.directory / name).write_text("not ours")
    log = logs.open(synced_end=3)
    assert set(log.recovery.foreign_files) == set(strangers)
    assert all((logs.directory / name).read_text() == "not ours" for name in strangers)


def test_what_a_crash_left_of_our_own_unfinished_writes_is_removed(logs, batches):
    log = logs.open()
    log.close()
    leftover = logs.directory / "00000000000000000000.index.tmp"
    leftover.write_bytes(b"half")
    foreign = logs.directory / "editor.tmp"
    foreign.write_bytes(b"theirs")
    log = logs.open()
    assert not leftover.exists()
    assert log.recovery.foreign_files == ("editor.tmp",)


@pytest.mark.parametrize("content", [b"x" * 5000, b"STENTOR" * 100])
def test_a_file_that_is_no_segment_in_the_sequence_is_refused_and_not_deleted(logs, batches, content):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 20)
    log.close()
    for base in (int(logs.files()[1].stem), 20):
        path = logs.directory / f"{base:020d}.log"
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(content)
        with pytest.raises(DirectoryUnusable, match="not a segment") as refused:
            logs.open(segment_bytes=1000, synced_end=20)
        assert refused.value.hint
        assert path.read_bytes() == content
        path.unlink() if before is None else path.write_bytes(before)


@pytest.mark.parametrize("identity", [Identity(1, 3, 77), Identity(0xABCDEF, 4, 77), Identity(0xABCDEF, 3, 78)])
def test_a_segment_of_another_log_is_refused(logs, batches, identity):
    log = logs.open()
    batches.fill(log, 3)
    log.close()
    path = logs.directory / f"{3:020d}.log"
    path.write_bytes(pack_segment_header(identity, 3, 0))
    with pytest.raises(DirectoryUnusable, match="not a segment"):
        logs.open(synced_end=3)
    assert path.exists()


def test_a_segment_of_a_newer_format_is_refused_and_never_guessed(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    log.close()
    path = logs.files()[0]
    data = bytearray(path.read_bytes())
    data[4] = 9
    data[60:64] = crc32c(bytes(data[:60])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FormatTooNew, match="format 9"):
        logs.open(synced_end=3)


def test_a_batch_inside_a_torn_message_does_not_pass_for_a_batch_of_the_log(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    forged = batches.make(2**40)
    batches.append(log, body=bytes(50) + forged + bytes(50))
    log.close()
    path = logs.files()[0]
    path.write_bytes(path.read_bytes()[:-10])
    log = logs.open(synced_end=3)
    assert (log.end, log.damaged) == (3, [])


def test_a_batch_inside_a_damaged_message_is_not_taken_for_the_next_one(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    batches.append(log, body=bytes(50) + batches.make(4) + bytes(50))
    batches.fill(log, 3)
    log.close()
    flip(logs.files()[0], SEGMENT_HEADER_BYTES + 3 * 156 + 100)
    log = logs.open(synced_end=7)
    assert readable(log, batches) == ([0, 1, 2, 4, 5, 6], [(3, 4)])


def test_batches_of_another_partition_in_the_file_are_damage(logs, batches):
    log = logs.open()
    written = batches.fill(log, 5)
    log.close()
    path = logs.files()[0]
    data = path.read_bytes()
    at = SEGMENT_HEADER_BYTES + 2 * len(written[0])
    misdirected = batches.make(2, partition=4, body=written[2][96:])
    path.write_bytes(data[:at] + misdirected + data[at + len(misdirected) :])
    log = logs.open(synced_end=5)
    assert readable(log, batches) == ([0, 1, 3, 4], [(2, 3)])


def test_recovery_syncs_the_log_before_it_reports_an_end(logs, batches, monkeypatch):
    log = logs.open()
    batches.fill(log, 5)
    synced = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: (synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fdatasync(fd))
    )
    log = logs.open(synced_end=0)
    assert synced == [str(logs.files()[0])]
    assert log.synced_end == log.end == 5
