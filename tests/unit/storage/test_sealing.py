"""Segments are sealed in order, so that none is forgotten."""

from stentor.errors import DiskFull
from stentor.storage import syncer


def test_a_segment_that_could_not_be_sealed_is_sealed_later_and_does_not_stop_retention(logs, batches, monkeypatch):
    log = logs.open(retention_bytes=1)
    real = syncer.atomic_write

    def too_large_for_the_disk(path, data):
        if path.suffix == ".index" and path.name.startswith("0" * 20):
            raise DiskFull("There is no room for the larger one.")
        real(path, data)

    batches.fill(log, 50)
    log.roll()
    batches.fill(log, 2)
    log.roll()
    batches.fill(log, 2)
    monkeypatch.setattr(syncer, "atomic_write", too_large_for_the_disk)
    log.sync()
    monkeypatch.setattr(syncer, "atomic_write", real)
    batches.fill(log, 1)
    log.sync()
    log.retain(10**18, committed=log.end)
    assert log.start == 52
