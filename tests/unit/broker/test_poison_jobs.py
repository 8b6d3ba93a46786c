"""A job that the log already has, and that nobody could take again, keeps nothing else from going on (C33, C34)."""

import threading
from types import SimpleNamespace

import msgspec
import pytest

from stentor import limits
from stentor.broker.partitions.interfaces import Request
from stentor.broker.queues import heads
from stentor.client.dead_letters import letter_of
from stentor.core.acks import ALL
from stentor.errors import CorruptData
from stentor.limits import MIB
from stentor.testing import broker
from stentor.wire import batch, queue_rows, sparse
from stentor.wire.header import HEADER_BYTES, unpack

VALUE = b"v" * 20_000  # three in a segment
TIME = 1_700_000_000_000_000


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setattr(limits, "RETENTION_CHECK_S", 0.02)
    monkeypatch.setattr(heads, "_MOVE_AGAIN_S", 0.1)
    with broker(segment_bytes=limits.SEGMENT_BYTES_MIN) as started:
        yield started


def bomb(**terms):
    """A job of two kilobytes whose value has 30 MiB."""
    headers = queue_rows.headers_of(**terms)
    encoded = batch.encode([TIME], [b"bomb"], [bytes(30 * MIB)], [headers] if headers else None, compression="zstd")
    return queue_rows.with_terms(encoded, unique=False) if headers else encoded


def append(local, encoded):
    """As an older head took it: beside all checks."""
    ((key, partition),) = [each for each in local.inner.partitions.items() if each[1].topic == "q"]
    data = queue_rows.whole(encoded, topic_id=key[0], partition=key[1])
    taken = threading.Event()

    def publish():
        partition.publish(memoryview(data), unpack(data), Request(heads._StepsPublisher(), 0), ALL)
        taken.set()

    local.inner.loop.call_soon_threadsafe(publish)
    assert taken.wait(10)


def start_of(client):
    return client.describe_topic("q").partitions[0].start


def finish(client, count):
    with client.queue("q", prefetch=1) as queue:
        for _ in range(count):
            queue.ack(queue.get(timeout=10))


def test_a_late_job_that_expands_beyond_all_measure_is_appended_again_as_small_as_it_was(local, client, wait_until):
    client.create_topic("q", kind="queue", retention_bytes=0)
    append(local, bomb(delay_us=10**10))
    with client.queue("q") as queue:
        queue.put("late", delay=1_000)
        for _ in range(12):
            queue.put(VALUE)
    finish(client, 12)
    wait_until(lambda: start_of(client) > 6, "retention goes on")
    assert [job.state for job in client.queue("q").peek()] == ["delayed", "delayed"]


def test_a_late_job_that_cannot_be_appended_again_is_dead_and_retention_goes_on(
    local, client, wait_until, monkeypatch, caplog
):
    moved = queue_rows.moved

    def fails(origin, time_us, key, *rest, **how):
        if key == b"bad":
            raise CorruptData("it cannot be")
        return moved(origin, time_us, key, *rest, **how)

    monkeypatch.setattr(queue_rows, "moved", fails)
    client.create_topic("q", kind="queue", retention_bytes=0)
    with client.queue("q") as queue:
        queue.put("kept", key="bad", delay=1_000)
        queue.put("late", delay=1_000)
        for _ in range(12):
            queue.put(VALUE)
    with client.queue("q", prefetch=1) as queue:
        for _ in range(12):
            queue.ack(queue.get(timeout=10))
        wait_until(lambda: client.queue("q").describe().died == 1, "it is put aside")
        wait_until(lambda: start_of(client) > 6, "retention goes on")
    (letter,) = client.read("q.dead", limit=1)
    assert letter.value == b"kept"
    assert b"cannot be written again" in dict(letter.headers)["stentor-dead-reason"]
    assert "cannot be appended again" in caplog.text


def test_one_dead_job_that_no_topic_takes_does_not_keep_the_others_from_being_put_aside(local, client, wait_until):
    client.create_topic("q", kind="queue", max_attempts=1)
    append(local, bomb())
    client.publish("q", b"good", key=b"good")
    with client.queue("q") as queue:
        for _ in range(2):
            queue.nack(queue.get(timeout=20), error="no")
        wait_until(lambda: client.queue("q").describe().died == 2, "both are put aside", 30)
    letters = {letter.key: letter for letter in client.read("q.dead", limit=2)}
    assert letters[b"good"].value == b"good"
    assert letters[b"bomb"].value is None
    assert dict(letters[b"bomb"].headers)["stentor-dead-left-out"] == b"its value of 31457280 bytes"


def message(**fields):
    made = {"value": b"v", "key": b"k", "headers": [("own", b"1")]} | fields
    return SimpleNamespace(timestamp_us=TIME, **made)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"value": bytes(limits.MESSAGE_VALUE_BYTES_MAX + 1)}, b"value"),
        ({"key": bytes(limits.MESSAGE_KEY_BYTES_MAX + 1)}, b"key"),
        ({"headers": [("own", bytes(limits.MESSAGE_HEADERS_BYTES_MAX))]}, b"headers"),
    ],
)
def test_what_no_message_may_hold_is_left_out_of_a_letter_and_named(fields, what):
    letter = letter_of(message(**fields), [("stentor-dead-reason", b"no")])
    assert what in dict(letter.headers)["stentor-dead-left-out"]
    assert dict(letter.headers)["stentor-dead-reason"] == b"no"
    batch.encode([letter.timestamp_us], [letter.key], [letter.value], [letter.headers])


def test_a_letter_of_a_usual_job_is_what_it_was():
    letter = letter_of(message(), [("stentor-dead-reason", b"no")])
    assert letter == (TIME, b"k", b"v", [("own", b"1"), ("stentor-dead-reason", b"no")])


def test_a_letter_of_a_job_that_nobody_can_read_says_so():
    letter = letter_of(None, [("stentor-dead-offset", b"7")])
    assert (letter.key, letter.value) == (None, None)
    assert dict(letter.headers)["stentor-dead-left-out"] == b"its message cannot be read"


def test_of_a_batch_that_cannot_be_read_all_jobs_are_stuck():
    encoded = batch.encode([TIME] * 3, [None] * 3, [b"v"] * 3)
    data = queue_rows.whole(encoded, topic_id=1, partition=0)
    header = msgspec.structs.replace(unpack(data), base_offset=5)
    body = memoryview(data)[HEADER_BYTES:]
    found, stuck = queue_rows.appended_again(header, body, {5, 7}, topic_id=1, partition=0)
    assert (len(found), stuck) == (2, [])
    assert [sparse.rows_of(unpack(each), memoryview(each)[HEADER_BYTES:]).values for each in found] == [[b"v"]] * 2
    assert queue_rows.appended_again(header, b"\xff" * 40, {5, 7}, topic_id=1, partition=0) == ([], [5, 7])
