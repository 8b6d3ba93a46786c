from __future__ import annotations

import subprocess

import pytest

from stentor.storage import DataDirectory
from stentor.storage.inspect import inspect_directory
from stentor.storage.model import SEGMENT_HEADER_BYTES

TOPIC_ID = 0xABCDEF


@pytest.fixture
def data(tmp_path, logs, batches):
    """A data directory with one log of several segments, as a stopped broker leaves it."""
    path = tmp_path / "data"
    with DataDirectory(path) as directory:
        journal = directory.journal()
        logs.directory = directory.partition_directory(TOPIC_ID, 3)
        log = logs.open(segment_bytes=1000)
        log.snapshot = lambda: b"state"
        batches.fill(log, 40)
        log.close()
        journal.update(TOPIC_ID, 3, log_id=77, epoch=1, synced_end=40, committed=40)
        journal.store()
    return path


def problems(path):
    return [finding for finding in inspect_directory(path) if finding.severity != "ok"]


def content(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_sound_directory_has_only_good_findings_and_is_not_touched(data):
    before = content(data)
    findings = inspect_directory(data)
    assert {finding.severity for finding in findings} == {"ok"}
    assert any("offsets 0 to 39, every batch verified" in finding.message for finding in findings)
    assert any("No broker is using" in finding.message for finding in findings)
    assert content(data) == before


def test_a_running_broker_is_noticed_and_its_unfinished_tail_is_not_reported(data, logs):
    with logs.files()[-1].open("ab") as file:
        file.write(b"half a batch")
    assert any("torn" in finding.message for finding in problems(data))
    with DataDirectory(data):
        findings = inspect_directory(data)
    assert any("A broker is using the directory (process" in finding.message for finding in findings)
    assert {finding.severity for finding in findings} == {"ok"}
    DataDirectory(data).close()


def test_every_flipped_bit_in_a_batch_is_found(data, logs):
    for path in (logs.files()[1], logs.files()[-1]):
        before = path.read_bytes()
        damaged = bytearray(before)
        damaged[SEGMENT_HEADER_BYTES + 156 + 100] ^= 1
        path.write_bytes(damaged)
        bad = int(path.stem) + 1
        (found,) = problems(data)
        assert found.severity == "error"
        assert f"Offsets {bad} to {bad} are damaged" in found.message
        assert path.name in found.object
        assert found.hint
        path.write_bytes(before)
    assert problems(data) == []


def test_messages_missing_below_the_synced_end_are_found(data, logs):
    path = logs.files()[-1]
    path.write_bytes(path.read_bytes()[:-200])
    (found,) = problems(data)
    assert (found.severity, "39 are damaged" in found.message) == ("error", True)


def test_a_missing_segment_is_found(data, logs):
    logs.files()[1].unlink()
    assert any("are damaged" in finding.message for finding in problems(data))


def test_bad_indexes_snapshots_and_foreign_files_are_warnings(data, logs):
    logs.files(".index")[0].unlink()
    logs.files(".snapshot")[0].write_bytes(b"nonsense")
    (logs.directory / "notes.txt").write_text("mine")
    (data / "todo.md").write_text("mine")
    (data / "partitions" / "other").mkdir()
    found = problems(data)
    assert {finding.severity for finding in found} == {"warning"}
    assert len(found) == 5


def test_a_damaged_journal_and_a_failed_log_are_errors(data, logs):
    (data / "replicas").write_bytes(b"nonsense")
    logs.directory.with_name(logs.directory.name + ".FAILED").write_bytes(b"")
    errors = [finding for finding in problems(data) if finding.severity == "error"]
    assert {finding.object for finding in errors} == {"replicas", f"partitions/{TOPIC_ID:016x}-3"}


def test_a_segment_of_another_log_is_an_error(data, logs):
    path = logs.files()[1]
    header = bytearray(logs.files()[0].read_bytes()[:64])
    path.write_bytes(header + path.read_bytes()[64:])
    (found,) = problems(data)
    assert "begins at offset 0" in found.message


def test_directories_that_are_not_ours_missing_or_empty_are_told_apart(tmp_path):
    (missing,) = inspect_directory(tmp_path / "missing")
    assert missing.severity == "error"
    (tmp_path / "empty").mkdir()
    (empty,) = inspect_directory(tmp_path / "empty")
    assert empty.severity == "warning"
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    (foreign,) = inspect_directory(tmp_path / "foreign")
    assert "not a Stentor data directory" in foreign.message


def test_a_full_disk_is_an_error_and_a_read_only_one_can_be_checked(small_disk):
    with DataDirectory(small_disk / "data") as directory:
        directory.journal()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    (found,) = problems(small_disk / "data")
    assert (found.severity, found.object) == ("error", "disk")
    assert "MiB" in found.hint
