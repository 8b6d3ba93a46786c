"""Requests and answers keep what they are made of, and what is malformed is refused."""

import random
import struct
from contextlib import suppress

import pytest

from stentor.core import service_limits
from stentor.errors import LimitExceeded, ProtocolError
from stentor.wire import asks

HEADERS = [("trace", b"abc"), ("empty", b""), ("none", None)]


@pytest.mark.parametrize("value", [None, b"", b"value"])
@pytest.mark.parametrize("headers", [None, HEADERS])
def test_a_request_arrives_as_it_was_sent(value, headers):
    body = asks.encode_ask(b"svc.price", value, headers, 1.5, 2**64 - 1, credit=7)
    found = asks.decode_ask(memoryview(body), asks.NO_VALUE if value is None else 0)
    assert found == asks.Ask("svc.price", 1.5, 7, 2**64 - 1, headers or [], value)
    assert asks.routed(memoryview(body)) == ("svc.price", 1.5)
    assert asks.routed(memoryview(asks.with_left(body, 0.25))) == ("svc.price", 0.25)


@pytest.mark.parametrize("value", [None, b"", b"value"])
@pytest.mark.parametrize("headers", [None, HEADERS])
def test_an_answer_arrives_as_it_was_sent(value, headers):
    body = asks.encode_reply(value, headers)
    assert asks.decode_reply(memoryview(body), asks.NO_VALUE if value is None else 0) == (value, headers or [])


def test_what_is_too_large_is_refused_where_it_is_made():
    with pytest.raises(LimitExceeded):
        asks.encode_ask(b"t", bytes(service_limits.ASK_BYTES_MAX), None, 1.0, 1)
    with pytest.raises(LimitExceeded):
        asks.encode_reply(bytes(service_limits.ASK_BYTES_MAX), None)


@pytest.mark.parametrize(
    "fixed",
    [(1, 0, 0, 100, 0, 0), (1, 0, 0, 1, 0, 2**32 - 1), (1, 0, 0, 1, 1, 0), (2**32 - 1, 0, 0, 1, 0, 0)],
    ids=["topic beyond the end", "headers beyond the end", "reserved bytes", "more than a day"],
)
def test_a_request_that_cannot_be_is_refused(fixed):
    with pytest.raises(ProtocolError):
        asks.routed(memoryview(asks.ASK.pack(*fixed) + b"t"))


def test_damaged_frames_raise_nothing_but_what_ends_a_connection():
    chance = random.Random(5)
    whole = asks.encode_ask(b"svc.price", b"value", HEADERS, 1.0, 1)
    for _ in range(2_000):
        damaged = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        for decode in (asks.decode_ask, asks.decode_reply):
            with suppress(ProtocolError, struct.error):
                decode(memoryview(damaged), 0)
