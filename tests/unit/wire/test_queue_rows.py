"""What a batch of jobs may hold, so that no broker of the chain looks at it for long (C35)."""

import pytest

from stentor.errors import LimitExceeded
from stentor.wire import batch, queue_rows
from stentor.wire.header import HEADER_BYTES, unpack

TIME = 1_700_000_000_000_000


def judge(count, headers=None, *, timed=False, ordered=False):
    encoded = batch.encode([TIME] * count, [b"key"] * count, [b"v"] * count, headers and [headers] * count)
    if timed:
        encoded = queue_rows.with_terms(encoded, unique=False)
    data = queue_rows.whole(encoded, topic_id=1, partition=0)
    queue_rows.check(unpack(data), memoryview(data)[HEADER_BYTES:], "jobs", ordered=ordered)


@pytest.mark.parametrize(
    ("most", "how"),
    [
        (queue_rows.BATCH_TERMS_MAX, {"headers": queue_rows.headers_of(delay_us=1), "timed": True}),
        (queue_rows.BATCH_HEADERS_MAX, {"headers": [("trace", b"1")]}),
        (queue_rows.BATCH_HEADERS_MAX // 4, {"headers": [(f"header {each}", b"1") for each in range(8)]}),
        (queue_rows.BATCH_KEYS_MAX, {"ordered": True}),
    ],
    ids=["terms", "headers", "many headers", "keys"],
)
def test_a_batch_may_hold_some_jobs_and_not_more(most, how):
    judge(most, **how)
    with pytest.raises(LimitExceeded, match="the limit is"):
        judge(most + 1, **how)


def test_jobs_of_which_nobody_looks_at_more_than_their_number_may_be_many():
    judge(10 * queue_rows.BATCH_KEYS_MAX)


def test_what_a_client_puts_at_once_is_allowed():
    from stentor.client.queue_core import _CHUNK
    from stentor.limits import PRODUCER_BATCH_MESSAGES

    assert _CHUNK <= queue_rows.BATCH_TERMS_MAX
    assert PRODUCER_BATCH_MESSAGES <= queue_rows.BATCH_HEADERS_MAX // 2
    assert PRODUCER_BATCH_MESSAGES <= queue_rows.BATCH_KEYS_MAX
