"""Messages of jobs: those that come along are kept for the next jobs, as long as nothing speaks against it."""

import pytest

from stentor.client import job_messages
from stentor.client.job_messages import JobMessages
from stentor.wire import batch, bodies, header, sparse


def stored(base, values):
    encoded = batch.encode([7] * len(values), [None] * len(values), values, None)
    chunk = batch.address(encoded, topic_id=1, partition=0, producer_id=0, generation=0, sequence=0) + encoded.body
    header.stamp(memoryview(chunk), 0, base_offset=base, epoch=1, appended_at_us=7)
    return bytes(chunk)


def numbers(first, end):
    return [b"%d" % number for number in range(first, end)]


def values(messages):
    return [message.value for message in messages]


@pytest.fixture
def found():
    return JobMessages("jobs", 0)


def test_messages_that_come_along_are_kept_for_the_next_jobs(found):
    assert values(found.find(stored(0, numbers(0, 10)), 0, 4)) == numbers(0, 4)
    assert found.known == [4, 6]
    assert values(found.find(b"", 4, 9)) == numbers(4, 9)
    assert found.known == [9, 1]
    assert values(found.find(stored(10, numbers(10, 20)), 9, 15)) == numbers(9, 15)
    assert found.known == [15, 5]
    assert values(found.find(b"", 15, 20)) == numbers(15, 20)
    assert found.known == []


def test_jobs_from_before_and_behind_what_is_kept_are_found_in_order(found):
    found.find(stored(10, numbers(10, 20)), 10, 12)
    messages = found.find(stored(0, numbers(0, 5)) + stored(30, numbers(30, 32)), 1, 31)
    assert [message.offset for message in messages] == [1, 2, 3, 4, *range(12, 20), 30]
    assert found.known == [31, 1]
    assert found.find(b"", 5, 9) == []


def test_messages_with_gaps_between_them_are_not_kept(found):
    whole = stored(0, numbers(0, 40))
    body = memoryview(whole)[header.HEADER_BYTES :]
    cut = sparse.keep(header.unpack(whole, 0), body, set(range(0, 40, 2)))
    assert values(found.find(cut, 0, 3)) == [b"0", b"2"]
    assert found.known == []


def test_large_messages_are_not_kept(found, monkeypatch):
    monkeypatch.setattr(job_messages, "AHEAD_BYTES_MAX", 1_000)
    found.find(stored(0, [b"v" * 100] * 10), 0, 1)
    assert found.known == []
    found.find(stored(0, numbers(0, 10)), 0, 1)
    assert found.known == [1, 9]


def test_nothing_is_kept_once_another_connection_is_used(found):
    found.ask("first")
    found.find(stored(0, numbers(0, 10)), 0, 4)
    found.ask("first")
    assert found.known == [4, 6]
    found.ask("second")
    assert found.known == []
    found.find(stored(0, numbers(0, 10)), 0, 4)
    found.forget()
    assert found.known == []
    assert found.find(b"", 4, 5) == []


def test_the_messages_of_jobs_do_not_bring_pyarrow_nearer(found, monkeypatch):
    monkeypatch.setattr(bodies, "_arrow", None)
    chunk = stored(0, numbers(0, 500))
    before = bodies._coded
    found.find(chunk, 0, 500)
    assert bodies._coded == before
