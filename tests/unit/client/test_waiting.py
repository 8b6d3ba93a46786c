"""Who waits for something of a link hears of it, once, and of nothing else."""

import asyncio

import pytest

from stentor.client.waiting import Waiting
from stentor.errors import ConnectionFailed, NotReady
from stentor.wire import frames, messages
from stentor.wire.frames import Kind


class Sink:
    """Takes everything that a link has for somebody."""

    def __init__(self):
        self.heard = []

    def failed(self, error):
        self.heard.append(error)

    def state(self, committed, epoch):
        self.heard.append((committed, epoch))

    def ended(self, ended):
        self.heard.append(ended)


@pytest.fixture
def waiting():
    return Waiting()


def test_no_two_have_the_same_id(waiting):
    assert len({waiting.next() for _ in range(100)}) == 100


def test_somebody_waits_or_nobody_does(waiting):
    assert not waiting
    waiting.streams[1] = Sink()
    assert waiting


def test_a_refusal_is_for_whoever_asked(waiting):
    publish, other, refusal = Sink(), Sink(), NotReady("Not yet.")
    waiting.publishes = {1: publish, 2: other}
    assert waiting.failed(1, refusal)
    assert publish.heard == [refusal]
    assert other.heard == []
    assert not waiting.failed(1, refusal), "it has heard of it"
    assert not waiting.failed(0, refusal), "that one is for the whole link"


def test_frames_for_streams_and_requests_are_taken_and_no_others(waiting):
    stream = Sink()
    waiting.streams[7] = stream
    assert waiting.take(Kind.STREAM_STATE, 7, memoryview(frames.STREAM_STATE.pack(5, 2)))
    assert waiting.take(Kind.STREAM_STATE, 8, memoryview(frames.STREAM_STATE.pack(6, 2))), "of a stream that is gone"
    ended = messages.StreamEnded(next_offset=5)
    assert waiting.take(Kind.STREAM_ENDED, 7, memoryview(messages.encode(ended)))
    assert stream.heard == [(5, 2), ended]
    assert not waiting.streams
    assert not waiting.take(Kind.PING, 0, memoryview(b""))


def test_what_is_disowned_hears_of_no_answer(waiting):
    kept, disowned = Sink(), Sink()
    waiting.publishes = {1: kept, 2: disowned}
    waiting.disown({disowned})
    assert not waiting.failed(2, NotReady("Not yet."))
    assert disowned.heard == []
    assert waiting.failed(1, NotReady("Not yet."))


def test_when_a_link_is_lost_requests_are_told_and_nothing_is_left(waiting):
    async def work():
        answer = waiting.requests[1] = asyncio.get_running_loop().create_future()
        waiting.publishes[2] = waiting.streams[3] = sink = Sink()
        waiting.lose(ConnectionFailed("It broke."))
        assert not waiting.publishes
        assert not waiting.streams
        assert sink.heard == [], "their owners move them"
        with pytest.raises(ConnectionFailed):
            await answer

    asyncio.run(work())
