"""What a producer wrote earlier is found by headers alone, within bounds, and never taken for true if it is damaged."""

import pytest

from stentor.storage import earlier
from stentor.storage.model import SEGMENT_HEADER_BYTES


def searched(log, *, producer_id=1, generation=0, before=None):
    search = log.search(producer_id, generation, log.end if before is None else before)
    while not search.go_on():
        pass
    return search.found


@pytest.mark.parametrize("body_bytes", [60, 5_000, 70_000])
def test_every_batch_is_found_in_whichever_segment_it_is(logs, batches, body_bytes):
    log = logs.open(segment_bytes=1 << 16)
    written = batches.fill(log, 40 if body_bytes > 60 else 2_000, body=b"x" * body_bytes)
    log.sync()
    found = searched(log)
    assert sorted(found) == list(range(len(written)))
    assert all((known.base_offset, known.end_offset) == (at, at + 1) for at, known in found.items())
    assert {known.checksum for known in found.values()} == {batches.headers(written[0])[0].body_checksum}


def test_only_what_lies_below_is_looked_at(logs, batches):
    log = logs.open(segment_bytes=1 << 16)
    batches.fill(log, 2_000)
    for before in (0, 1, 500, 1_999):
        assert sorted(searched(log, before=before)) == list(range(before))


@pytest.mark.parametrize("other", [{"producer_id": 2}, {"generation": 1}])
def test_what_others_wrote_is_not_found(logs, batches, other):
    log = logs.open()
    batches.fill(log, 100)
    assert searched(log, **other) == {}


def test_a_search_ends_at_an_older_generation(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=1 << 16)
    batches.fill(log, 5_000)
    looked = []
    look = earlier.Search._look_through
    monkeypatch.setattr(earlier.Search, "_look_through", lambda *given: looked.append(given) or look(*given))
    searched(log, generation=1)
    assert len(looked) == 1


def test_a_damaged_header_is_not_believed_and_hides_little(logs, batches):
    log = logs.open(segment_bytes=1 << 16)
    (one, *_) = batches.fill(log, 5_000)
    log.sync()
    path = logs.files()[1]
    first = int(path.name.split(".")[0])
    content = bytearray(path.read_bytes())
    content[SEGMENT_HEADER_BYTES + 3 * len(one) + 92] ^= 0xFF  # the sequence
    path.write_bytes(content)
    found = searched(log)
    assert first + 3 not in found
    assert set(range(5_000)) - set(found) == {first + 3}


def test_a_search_is_bounded(logs, batches, monkeypatch):
    monkeypatch.setattr(earlier, "PRODUCER_SEARCH_BATCHES_MAX", 100)
    log = logs.open(segment_bytes=1 << 16)
    batches.fill(log, 20_000)
    found = searched(log)
    assert 0 < len(found) < 10_000
    assert min(found) > 10_000


def test_a_segment_that_retention_took_meanwhile_ends_the_search(logs, batches):
    log = logs.open(segment_bytes=1 << 16)
    batches.fill(log, 5_000)
    log.sync()
    for path in logs.files()[:-1]:
        path.unlink()
    assert max(searched(log)) == 4_999
