"""Random histories of appends, syncs, crashes and damage against a model of what must be left."""

from __future__ import annotations

import random
import shutil

import pytest

from stentor.errors import CorruptData
from stentor.storage.model import SEGMENT_HEADER_BYTES
from stentor.wire import header as wire


class Model:
    """What was appended, and through which offset a sync has confirmed it."""

    def __init__(self):
        self.batches: dict[int, bytes] = {}
        self.synced_end = 0

    def cut(self, end):
        self.batches = {offset: batch for offset, batch in self.batches.items() if offset < end}


def grow(log, model, batches, chance):
    """A few appends of all sizes, and now and then a sync."""
    for _ in range(chance.randrange(1, 25)):
        chunk, end = b"", log.end
        for _ in range(chance.randrange(1, 4)):
            count = chance.choice([1, 1, 1, 5, 100])
            body = chance.randbytes(chance.choice([1, 30, 300, 3000]))
            batch = batches.make(end, count=count, body=body, epoch=1 + end // 500)
            model.batches[end] = batch
            chunk += batch
            end += count
        log.append(chunk, batches.headers(chunk))
        if chance.random() < 0.3:
            model.synced_end = log.sync()


def crash(log, logs, model, chance, directory):
    """Copy what a power cut would leave: all that was synced, and an arbitrary part of the rest."""
    shutil.copytree(logs.directory, directory)
    segments = [segment for segment in log._state.segments if segment.size > segment.synced_size]
    for segment in reversed(segments):
        path = directory / segment.path().name
        if chance.random() < 0.3:
            break
        keep = chance.randint(segment.synced_size, segment.size)
        whole = path.read_bytes()
        data = whole[:keep]
        if segment.synced_size < keep and chance.random() < 0.3:
            hole = chance.randint(segment.synced_size, keep)
            data = data[:hole] + bytes(keep - hole)
        room = len(whole) - keep if chance.random() < 0.5 else 0
        path.write_bytes(data + bytes(room))
        if keep > max(segment.synced_size, SEGMENT_HEADER_BYTES):
            break
    logs.directory = directory


def check(log, model, chance):
    """Everything synced is there, and whatever else is there is what was appended."""
    assert log.damaged == []
    assert log.end >= model.synced_end
    model.cut(log.end)
    offset, found = log.start, {}
    while offset < log.end:
        piece = log.read(offset, log.end, chance.choice([1, 2000, 100_000]))
        for at, length, base, _ in wire.extents(piece.data):
            found[base] = piece.data[at : at + length]
        offset = piece.next_offset
    assert found == model.batches


@pytest.mark.parametrize("seed", range(25))
def test_after_any_crash_all_that_was_synced_is_there_and_nothing_is_made_up(logs, batches, memory_path, seed):
    chance = random.Random(seed)
    logs.directory = memory_path / "partitions" / "log"
    model = Model()
    settings = {"segment_bytes": chance.choice([2000, 10_000, 1 << 20])}
    log = logs.open(**settings)
    for round_ in range(8):
        log.snapshot = lambda log=log: b"%d" % log.end
        grow(log, model, batches, chance)
        crash(log, logs, model, chance, memory_path / f"crash-{round_}")
        recorded = chance.choice([model.synced_end, model.synced_end, 0])
        log = logs.open(synced_end=recorded, **settings)
        check(log, model, chance)
        as_of = int(logs.restored[0] or 0)
        assert logs.replayed == [offset for offset in model.batches if offset >= as_of]
        model.synced_end = log.synced_end


def damage_something(logs, model, chance):
    """Harm one file in some way; return the offsets whose batches it then no longer holds."""
    path = chance.choice(logs.files())
    before = path.read_bytes()
    data = bytearray(before)
    if len(data) <= SEGMENT_HEADER_BYTES:
        return set()
    at = chance.randrange(SEGMENT_HEADER_BYTES, len(data))
    kind = chance.choice(["flip", "zeros", "garbage", "cut"])
    length = min(chance.choice([1, 10, 500, 5000]), len(data) - at)
    if kind == "flip":
        data[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[at:]
    else:
        data[at : at + length] = bytes(length) if kind == "zeros" else chance.randbytes(length)
    path.write_bytes(data)
    return {offset for offset, batch in model.batches.items() if batch in before and batch not in data}


@pytest.mark.parametrize("seed", range(25))
def test_after_any_damage_exactly_the_damaged_batches_are_refused(logs, batches, memory_path, seed):
    chance = random.Random(seed)
    logs.directory = memory_path / "partitions" / "log"
    model = Model()
    settings = {"segment_bytes": chance.choice([2000, 10_000, 1 << 20])}
    harmed: set[int] = set()
    log = logs.open(**settings)
    for _ in range(5):
        grow(log, model, batches, chance)
        log.close()
        end = log.end
        harmed |= damage_something(logs, model, chance)
        log = logs.open(synced_end=end, **settings)
        assert log.end == end, "offsets are never given twice"
        offset, refused = log.start, set()
        while offset < end:
            try:
                piece = log.read(offset, end, 1)
            except CorruptData as error:
                resume_at = error.detail["resume_at"]
                refused.update(base for base in model.batches if offset <= base < resume_at)
                offset = resume_at
            else:
                assert piece.data == model.batches[offset]
                offset = piece.next_offset
        assert refused == harmed
