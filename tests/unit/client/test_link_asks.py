"""Requests and answers on one link: what another client sends may be anything, and harms nobody but itself."""

import asyncio

import pytest

from stentor.client.asking import _Attempt
from stentor.client.link_asks import LinkAsks
from stentor.request_errors import HandlerFailed, NotHandled
from stentor.wire import asks, frames, messages
from stentor.wire.frames import Kind


class Sent:
    def __init__(self):
        self.frames = []

    def write(self, parts):
        (frame,) = parts
        self.frames.append(frame)

    def only_failure(self):
        (frame,) = self.frames
        _, kind, flags, _, number = frames.HEADER.unpack_from(frame)
        assert (kind, flags) == (Kind.REPLY, asks.FAILED)
        return number, messages.raised(messages.decode(memoryview(frame)[frames.HEADER.size :], messages.Failure))


class Nobody:
    def asked(self, *_):
        raise AssertionError


@pytest.fixture
def sent():
    return Sent()


def test_a_request_that_cannot_be_understood_is_refused_and_the_link_lives(sent):
    link = LinkAsks(sent)
    link.serve("svc", Nobody())
    bad = asks.ASK.pack(1_000, 0, 1, 3, 0, 2) + b"svc" + b"\xff\xff"
    link.received(Kind.ASK, 0, 7, memoryview(bad))
    number, error = sent.only_failure()
    assert number == 7
    assert isinstance(error, HandlerFailed)


def test_a_request_that_nobody_serves_any_more_goes_back(sent):
    LinkAsks(sent).received(Kind.ASK, 0, 7, memoryview(asks.encode_ask(b"svc", b"x", None, 1.0, 1)))
    number, error = sent.only_failure()
    assert number == 7
    assert isinstance(error, NotHandled)


@pytest.mark.parametrize(
    ("flags", "body"), [(asks.FAILED, b"\xff"), (0, b"\xff\xff\xff\xff"), (0, b""), (asks.MORE, b"")]
)
def test_an_answer_that_is_none_ends_its_request_alone(sent, flags, body):
    async def answered():
        link = LinkAsks(sent)
        attempt = _Attempt(asyncio.get_running_loop().create_future(), [].append if flags & asks.MORE else None)
        number = link.ask(asks.encode_ask(b"svc", b"x", None, 1.0, 1), 0, attempt)
        link.received(Kind.REPLY, flags, number, memoryview(body))
        await attempt.done

    with pytest.raises(HandlerFailed):
        asyncio.run(answered())
