"""A lane: what its batches' callbacks hear, and in which order."""

from types import SimpleNamespace

import pytest

from stentor.client.lane import Lane
from stentor.errors import NotReady, PublishError
from stentor.wire import batch
from stentor.wire.frames import Ack


class Wire:
    """A link that only notes what was sent."""

    def __init__(self):
        self.sent = []

    def publish(self, header, body, ack, sink):
        self.sent.append(sink)


class Producer(SimpleNamespace):
    """As much of one as a lane needs."""

    def __init__(self):
        wire = Wire()
        super().__init__(
            topic="t",
            topic_id=1,
            producer_id=9,
            generation=0,
            ack=int(Ack.ALL),
            timeout=10.0,
            lasting=False,
            messages_acknowledged=0,
            wire=wire,
            core=SimpleNamespace(head_link=lambda *_: wire),
            heard=[],
            failures=[],
            resends=[],
        )

    def call_back(self, callback, receipt, error):
        callback(receipt, error)

    def record_failure(self, failed):
        self.failures.append(failed)

    def progressed(self):
        pass

    def resend_later(self, lane):
        self.resends.append(lane)


@pytest.fixture
def producer():
    return Producer()


@pytest.fixture
def lane(producer):
    lane = Lane(producer, 0)
    for name in "abcd":
        note = lambda receipt, error, name=name: producer.heard.append((name, receipt and receipt.offset, error))  # noqa: E731
        lane.add_encoded(batch.encode([0], [None], [name.encode()], None), [(0, note, 0)])
    lane.dispatch()
    assert len(producer.wire.sent) == 4
    return lane


def told(producer):
    return [(name, offset if error is None else type(error)) for name, offset, error in producer.heard]


def test_answers_are_told_as_they_come(producer, lane):
    for offset, sent in enumerate(list(lane.pending)):
        lane.acknowledged(sent, offset)
        assert len(producer.heard) == offset + 1
    assert told(producer) == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
    assert producer.messages_acknowledged == 4
    assert not lane.pending


def test_an_answer_that_overtakes_another_waits_for_it(producer, lane):
    first, second, third, fourth = lane.pending
    first.failed(NotReady("The chain is being put together."))
    lane.acknowledged(second, 1)  # it was in the log before, and is recognised
    lane.acknowledged(third, 2)
    lane.acknowledged(third, 2)
    assert told(producer) == []
    lane.resend()
    assert producer.wire.sent[4:] == [first, fourth]
    lane.acknowledged(first, 0)
    assert told(producer) == [("a", 0), ("b", 1), ("c", 2)]
    lane.acknowledged(fourth, 3)
    assert told(producer)[-1] == ("d", 3)
    assert lane.done_bytes == lane.sealed_bytes


def test_what_is_in_the_log_is_not_said_to_have_failed_with_what_was_before_it(producer, lane):
    first, second, third, fourth = lane.pending
    first.failed(NotReady("The chain is being put together."))
    lane.acknowledged(second, 1)
    lane.give_up(first, PublishError("Too late."))
    assert told(producer)[:2] == [("a", PublishError), ("b", 1)]
    assert [name for name, *_ in producer.heard] == ["a", "b", "c", "d"]
    assert [failed.count for failed in producer.failures] == [1, 1, 1]
    assert third.done
    assert fourth.done
    assert not lane.pending
    assert lane.done_bytes == lane.sealed_bytes
