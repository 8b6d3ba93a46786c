"""Compaction of a log: what stays, what goes, and what a crash leaves."""

import random
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from crc32c import crc32c

from stentor import limits
from stentor.core.derived import States
from stentor.core.horizon import HORIZON, Horizon, HorizonState
from stentor.core.table import TableState
from stentor.errors import CorruptData
from stentor.storage import LogFloor, LogSettings, PartitionLog
from stentor.storage import compaction as compaction_module
from stentor.wire import arrow_body, batch, sparse, table_rows
from stentor.wire import header as wire

TOPIC_ID, PARTITION, LOG_ID = 0xABCDEF, 3, 77
ROOT = Path(__file__).resolve().parents[3]
NOW_US = 1_700_000_000_000_000


class Written:
    """A log with its states, and all that was ever written to it."""

    def __init__(self, directory):
        self.directory = directory
        self.rows = []  # (offset, key, value), of all that has an effect
        self.epoch = 1
        self.sequence = 0
        self.open()

    def open(self, **options):
        self.states = States(TableState(table_rows.changes, table_rows.offsets), HorizonState())
        self.states.begin(0)
        self.log = PartitionLog.open(
            self.directory,
            topic_id=TOPIC_ID,
            partition=PARTITION,
            log_id=LOG_ID,
            settings=LogSettings(segment_bytes=20_000, disk_reserve_bytes=0),
            derived=self.states,
            **options,
        )
        self.log.snapshot = self.states.snapshot
        self.states.commit(self.log.end)

    def append(self, data, header):
        self.log.append(data, [header])
        self.states.apply(header, data[wire.HEADER_BYTES :])
        self.states.commit(self.log.end)

    def put(self, rows, *, refused=False, at_us=None, compression=""):
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        encoded = batch.encode(
            [NOW_US + self.log.end + index for index in range(len(rows))], keys, values, compression=compression
        )
        made = batch.address(
            encoded, topic_id=TOPIC_ID, partition=PARTITION, producer_id=9, generation=0, sequence=self.sequence
        )
        self.sequence += 1
        data = bytearray(made + bytes(encoded.body))
        if refused:
            wire.mark_refused(memoryview(data), 0)
        base = self.log.end
        wire.stamp(memoryview(data), 0, base_offset=base, epoch=self.epoch, appended_at_us=at_us or NOW_US + base)
        if not refused:
            self.rows += [(base + index, key, value) for index, (key, value) in enumerate(rows)]
        self.append(bytes(data), wire.check_header(data))

    def horizon(self, deletions_until=0):
        """Log a horizon, and do what a member does when it is committed."""
        data = sparse.control(
            HORIZON, self.states.dedupe.snapshot(), topic_id=TOPIC_ID, partition=PARTITION, value=deletions_until
        )
        view = memoryview(data)
        wire.stamp(view, 0, base_offset=self.log.end, epoch=self.epoch, appended_at_us=NOW_US + self.log.end)
        self.append(bytes(data), wire.check_header(data))
        found = next(state for state in self.states if isinstance(state, HorizonState)).committed
        self.log.roll_behind(found.offset)
        self.log.sync()
        return found

    def compact(self, horizon, on_phase=None):
        job = self.log.compaction(horizon, committed=self.log.end)
        if on_phase is not None:
            job.on_phase = on_phase
        while job.go_on() is not None:
            pass
        return job.report

    def write_some(self, chance, batches, keys=12):
        for _ in range(batches):
            if chance.random() < 0.05:
                self.epoch += 1
            rows = [
                (b"k%d" % chance.randrange(keys), None if chance.random() < 0.2 else chance.randbytes(30))
                for _ in range(chance.choice((1, 1, 3, 40)))
            ]
            compression = chance.choice(("", "", "lz4"))
            self.put(rows, refused=chance.random() < 0.05, compression=compression)

    def state(self, below=None):
        """What the whole log gives: key to version and value."""
        found = {}
        for offset, key, value in self.rows:
            if below is None or offset < below:
                found.pop(key, None)
                if value is not None:
                    found[key] = offset, value
        return found


def read_rows(log, start=None):
    """Every row that the log holds, and the bounds of its batches."""
    offset, rows, bounds = log.start if start is None else start, [], []
    while offset < log.end:
        found = log.read(offset, log.end, 3000)
        assert found.next_offset > offset
        for position, length, base, end in wire.extents(found.data):
            header = wire.check_header(found.data, position)
            body = found.data[position + wire.HEADER_BYTES : position + length]
            part = sparse.rows_of(header, body)
            rows += zip(part.offsets, part.keys, part.values, strict=True)
            bounds.append((base, end, header.epoch))
        offset = found.next_offset
    return rows, bounds


def folded(rows):
    found = {}
    for offset, key, value in rows:
        found.pop(key, None)
        if value is not None:
            found[key] = offset, value
    return found


def check(written, horizon, epochs):
    """C23: exact at every offset from the horizon on; offsets, order, epochs and covered ranges as before."""
    log = written.log
    rows, bounds = read_rows(log)
    everything = {offset: (key, value) for offset, key, value in written.rows}
    assert all(everything[offset] == (key, value) for offset, key, value in rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert bounds[0][0] == log.start
    assert bounds[-1][1] == log.end
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert log.epochs() == epochs
    kept = {offset for offset, _, _ in rows}
    assert {offset for offset in everything if offset >= horizon.offset} <= kept
    for at in (horizon.offset, (horizon.offset + log.end) // 2, log.end):
        assert folded(row for row in rows if row[0] < at) == written.state(at)
    last = {key: (offset, value) for offset, key, value in written.rows if offset < horizon.offset}
    for offset, value in last.values():
        if value is not None or offset >= horizon.deletions_until:
            assert offset in kept
    table = next(state for state in written.states if isinstance(state, TableState))
    assert table._committed == {key: offset for key, (offset, _) in written.state().items()}


@pytest.fixture
def written(tmp_path):
    return Written(tmp_path / "log")


def filled(written, seed, batches=150):
    chance = random.Random(seed)
    written.write_some(chance, batches)
    until = written.log.end // 2
    horizon = written.horizon(until)
    written.write_some(chance, 20)
    written.log.sync()
    return horizon


@pytest.mark.parametrize("seed", range(12))
def test_the_latest_of_each_key_stays_at_its_offset(written, seed):
    horizon = filled(written, seed)
    epochs, before = written.log.epochs(), written.log.bytes
    report = written.compact(horizon)
    check(written, horizon, epochs)
    assert report.rows_dropped > 0
    assert written.log.bytes < before / 2
    written.log.close()
    written.open()
    check(written, horizon, epochs)
    second = written.horizon(written.log.end // 2)
    epochs = written.log.epochs()
    written.compact(second)
    check(written, second, epochs)


def test_what_is_written_a_hundred_times_shrinks_to_what_is_alive(written):
    for _ in range(100):
        for key in range(0, 200, 20):
            written.put([(b"key-%d" % number, b"v" * 100) for number in range(key, key + 20)])
    written.compact(written.horizon())
    alive = sum(len(key) + len(value) + 20 for key, (_, value) in written.state().items())
    assert written.log.bytes <= 1.2 * alive + 200


def test_deletions_stay_for_as_long_as_the_horizon_says(written):
    written.put([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    written.put([(b"a", None)])
    written.put([(b"b", None)])
    horizon = written.horizon(4)
    assert horizon == Horizon(5, 4)
    written.compact(horizon)
    rows, _ = read_rows(written.log)
    assert rows == [(2, b"c", b"1"), (4, b"b", None)]


def test_a_deletion_stays_while_something_of_its_key_is_left_before_it(written, monkeypatch):
    """The first segment stays as it is, because too little would go of it."""
    written.put([(b"a", b"1")] + [(b"x%d" % number, b"1" * 300) for number in range(50)])
    written.log.roll()
    written.put([(b"a", None)])
    written.log.roll()
    monkeypatch.setattr(compaction_module, "_WORTH", 0.9)
    written.log.settings = LogSettings(segment_bytes=100, disk_reserve_bytes=0)
    horizon = written.horizon(written.log.end)
    written.compact(horizon)
    assert folded(read_rows(written.log)[0]) == written.state()


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_in_any_phase_loses_nothing(tmp_path, seed):
    written = Written(tmp_path / "log")
    horizon = filled(written, seed)
    epochs, copies = written.log.epochs(), []

    def crash(phase):
        copies.append((phase, tmp_path / f"crash-{len(copies)}"))
        shutil.copytree(written.directory, copies[-1][1])

    written.compact(horizon, crash)
    floor = LogFloor(written.log.synced_end, written.log.end)
    assert {phase for phase, _ in copies} == set(PHASES)
    for _, directory in copies:
        after = Written(directory)
        after.rows, after.directory = written.rows, directory
        after.log.close()
        after.open(floor=floor)
        assert not after.log.recovery.damaged
        assert not list(directory.glob("*.tmp"))
        check(after, horizon, epochs)
        after.compact(horizon)
        check(after, horizon, epochs)
        after.log.close()


PHASES = ("begun", "written", "index removed", "renamed", "sealed", "removed")

KILLED = """
import os, pathlib, signal, sys
from tests.unit.storage.test_compaction import Horizon, Written

directory, offset, deletions_until, last = sys.argv[1:]


def die(phase):
    if phase == last:
        os.kill(os.getpid(), signal.SIGKILL)


Written(pathlib.Path(directory)).compact(Horizon(int(offset), int(deletions_until)), die)
"""


@pytest.mark.parametrize("phase", PHASES)
def test_a_process_that_is_killed_in_a_phase_loses_nothing(written, phase):
    horizon = filled(written, 9)
    epochs, floor = written.log.epochs(), LogFloor(written.log.synced_end, written.log.end)
    written.log.close()
    arguments = [str(written.directory), str(horizon.offset), str(horizon.deletions_until), phase]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    written.open(floor=floor)
    assert not written.log.recovery.damaged
    check(written, horizon, epochs)
    written.compact(horizon)
    check(written, horizon, epochs)


def test_a_compaction_that_is_left_leaves_nothing_behind(written):
    horizon = filled(written, 1)
    before = sorted(path.name for path in written.directory.iterdir())
    job = written.log.compaction(horizon, committed=written.log.end)
    begun = []
    job.on_phase = begun.append
    while not begun:
        job.go_on()
    job.close()
    assert sorted(path.name for path in written.directory.iterdir()) == before


def test_readers_in_the_middle_go_on(written):
    horizon = filled(written, 2)
    everything = {offset: (key, value) for offset, key, value in written.rows}
    places = [0, written.log.end // 3, written.log.end // 2]
    seen = {place: [] for place in places}
    position = dict.fromkeys(places, None)

    def read_on(_=None):
        for place in places:
            at = place if position[place] is None else position[place]
            if at < written.log.end:
                found = written.log.read(at, written.log.end, 1, trusted=True)
                for start, length, _, _ in wire.extents(found.data):
                    header = wire.check_header(found.data, start)
                    body = found.data[start + wire.HEADER_BYTES : start + length]
                    part = sparse.rows_of(header, body)
                    seen[place] += [row for row in zip(*part[:1], part.keys, part.values, strict=True) if row[0] >= at]
                position[place] = found.next_offset

    read_on()
    written.compact(horizon, read_on)
    while any((position[place] or 0) < written.log.end for place in places):
        read_on()
    for place in places:
        offsets = [row[0] for row in seen[place]]
        assert offsets == sorted(set(offsets))
        assert all(everything[offset] == (key, value) for offset, key, value in seen[place])
        assert {o for o in everything if o >= horizon.offset} <= set(offsets)


def test_stale_holders_of_a_segment_do_not_read_other_bytes(written):
    horizon = filled(written, 3)
    stale = written.log._state.segments[:3]
    reader = written.log._reader
    written.compact(horizon)
    reader.forget()
    for segment in stale:
        with pytest.raises(FileNotFoundError):
            reader.index_of(segment)
    check(written, horizon, written.log.epochs())


def test_nothing_is_compacted_before_its_snapshot_is_on_disk(written):
    horizon = filled(written, 4)
    for path in written.directory.glob("*.snapshot"):
        path.unlink()
    assert not written.log.compaction(horizon, committed=written.log.end).possible


def test_nothing_beyond_the_commit_point_is_compacted(written):
    horizon = filled(written, 4)
    assert not written.log.compaction(horizon, committed=1).possible


def test_a_damaged_segment_stops_it(written):
    horizon = filled(written, 5)
    first = written.log._state.segments[0]
    data = bytearray(first.path().read_bytes())
    data[len(data) // 2] ^= 1
    first.path().write_bytes(data)
    with pytest.raises(CorruptData):
        written.compact(horizon)
    assert not list(written.directory.glob("*.tmp"))
    assert not written.log.compaction(horizon, committed=written.log.end).possible


@pytest.mark.parametrize(("limit", "most"), [("COMPACTION_KEYS_MAX", 60), ("COMPACTION_KEYS_BYTES_MAX", 20)])
def test_too_many_keys_leave_the_rest_as_it_is(written, monkeypatch, limit, most):
    monkeypatch.setattr(compaction_module, limit, most)
    horizon = filled(written, 6)
    epochs = written.log.epochs()
    written.compact(horizon)
    rows, _ = read_rows(written.log)
    assert folded(rows) == written.state()
    assert written.log.epochs() == epochs
    assert len(rows) > 40  # of 12 keys


def test_rows_that_do_not_fit_into_one_batch_become_several(written, monkeypatch):
    """What is gathered may need more room than a batch has: headers are long, or a compression has gone."""
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 10_000)
    for _ in range(3):  # at the end of an epoch, what was gathered is written while the next batch is looked at
        for number in range(200):
            written.put([(b"k%d" % number, b"v" * 90), (b"again", b"w" * 90)])
        written.epoch += 1
    horizon = written.horizon()
    epochs = written.log.epochs()
    written.compact(horizon)
    check(written, horizon, epochs)
    assert len(read_rows(written.log)[0]) == 201


def test_producers_are_known_to_who_gets_what_is_left(written, tmp_path):
    """C19: a copy that was fed from a compacted log knows producers as the others do."""
    horizon = filled(written, 7)
    written.compact(horizon)
    copy = Written(tmp_path / "copy")
    offset = 0
    while offset < written.log.end:
        found = written.log.read(offset, written.log.end, 5000)
        for position, length, _, _ in wire.extents(found.data):
            data = found.data[position : position + length]
            copy.append(data, wire.check_header(data))
        offset = found.next_offset
    assert copy.states.dedupe.snapshot() == written.states.dedupe.snapshot()
    assert copy.log.epochs() == written.log.epochs()


def test_times_are_found_in_a_compacted_log(written):
    horizon = filled(written, 8)
    written.compact(horizon)
    rows, bounds = read_rows(written.log)
    for base, end, _ in bounds:
        held = [offset for offset, _, _ in rows if base <= offset < end]
        if held:
            found = written.log.offset_for_time(NOW_US + held[0], limit=written.log.end)
            assert found <= held[0]


def test_the_age_of_deletions_is_found_by_the_time_of_appending(written):
    for number in range(300):
        written.put([(b"k", b"v" * 100)], at_us=1000 + number)
    assert written.log.end_of_older(0) == 0
    assert written.log.end_of_older(10_000) == 300
    found = written.log.end_of_older(1100)
    assert 0 < found <= 100


def test_the_doctor_knows_what_a_crash_left_of_a_compaction(tmp_path):
    from stentor.storage.directory import DataDirectory
    from stentor.storage.inspect import inspect_directory

    with DataDirectory(tmp_path / "data") as data:
        directory = data.partition_directory(TOPIC_ID, PARTITION)
        written = Written(directory)
        horizon = filled(written, 1)

        class CrashError(Exception):
            pass

        def crash(phase):
            if phase == "renamed":
                raise CrashError

        with pytest.raises(CrashError):
            written.compact(horizon, crash)
    found = inspect_directory(tmp_path / "data")
    assert any("A compaction has replaced this segment" in finding.message for finding in found)
    assert not [finding for finding in found if finding.severity == "error"]


# --- what cannot be written again (C33, C34) ------------------------------------------------------


def put_body(written, body, count, attributes):
    """A batch that no head of today takes, with checksums that hold."""
    encoded = batch.Encoded(body, crc32c(body), count, attributes, NOW_US, NOW_US)
    made = batch.address(
        encoded, topic_id=TOPIC_ID, partition=PARTITION, producer_id=9, generation=0, sequence=written.sequence
    )
    written.sequence += 1
    data = bytearray(made + body)
    wire.stamp(memoryview(data), 0, base_offset=written.log.end, epoch=1, appended_at_us=NOW_US + written.log.end)
    written.append(bytes(data), wire.check_header(data))


def with_many_headers(key, value, count=1_500):
    table = arrow_body.record_batch([NOW_US], [key], [value], [[("n", b"x")] * count])
    return bytes(arrow_body.encode(table))


def test_a_row_larger_than_heads_take_stays_as_it_is(written):
    for value in (b"old", b"new"):
        put_body(written, with_many_headers(b"k", value), 1, wire.ENCODING_ARROW | wire.HAS_HEADERS)
        written.put([(b"other", value)])
    report = written.compact(written.horizon())
    rows, _ = read_rows(written.log)
    assert [(offset, value) for offset, key, value in rows if key == b"k"] == [(2, b"new")]
    assert report.batches_kept == 1


def test_a_table_with_such_a_row_is_opened_again(written):
    put_body(written, with_many_headers(b"k", b"v"), 1, wire.ENCODING_ARROW | wire.HAS_HEADERS)
    written.put([(b"other", b"1")])
    written.compact(written.horizon())
    written.log.close()
    written.open()
    (table,) = (state for state in written.states if isinstance(state, TableState))
    assert (table.committed_version(b"k"), table.committed_version(b"other")) == (0, 1)


def test_an_unreadable_batch_stays_and_so_do_all_deletions(written):
    written.put([(b"k", bytes(500)), (b"gone", b"1")])
    put_body(written, b"these are no rows", 2, wire.ENCODING_ROWS)
    written.put([(b"gone", None), (b"k", b"2")])
    horizon = written.horizon(deletions_until=written.log.end)
    report = written.compact(horizon)
    assert written.states.passed_over == 1
    assert report.batches_kept == 1
    with pytest.raises(CorruptData):
        read_rows(written.log)
    bounds = []
    offset = 0
    while offset < written.log.end:
        found = written.log.read(offset, written.log.end, 100)
        bounds += [(base, end) for _, _, base, end in wire.extents(found.data)]
        offset = found.next_offset
    assert (2, 4) in bounds
    tail, _ = read_rows(written.log, 4)
    assert [(key, value) for _, key, value in tail if key] == [(b"gone", None), (b"k", b"2")]


def test_deletions_stay_of_keys_of_which_something_had_to_stay(written):
    """A batch that is kept whole still holds what should have gone: without the deletion it would be there again."""
    table = arrow_body.record_batch([NOW_US] * 2, [b"gone", b"large"], [b"1", b"1"], [None, [("n", b"x")] * 1_500])
    put_body(written, bytes(arrow_body.encode(table)), 2, wire.ENCODING_ARROW | wire.HAS_HEADERS)
    written.put([(b"gone", None), (b"more", b"1")])
    written.compact(written.horizon(deletions_until=written.log.end))
    rows, _ = read_rows(written.log)
    assert folded(rows).keys() == {b"large", b"more"}
