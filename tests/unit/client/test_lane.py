"""A lane: what its batches' callbacks hear, and in which order."""

import random
import threading
from types import SimpleNamespace

import pytest

from stentor.client.identity import ProducerIdentity
from stentor.client.lane import Lane
from stentor.client.outcomes import Outcomes
from stentor.client.producer_core import _Flush
from stentor.client.rows import Extra
from stentor.errors import DeadlineExceeded, NotReady, PublishError, SequenceError, UnknownOutcome
from stentor.wire import batch
from stentor.wire.frames import Ack
from stentor.wire.header import unpack


class Wire:
    """A link that only notes what was sent."""

    def __init__(self):
        self.sent = []
        self.headers = []

    def publish(self, header, body, ack, sink):
        self.sent.append(sink)
        self.headers.append(unpack(header))


class Producer(SimpleNamespace):
    """As much of one as a lane needs."""

    def __init__(self):
        wire = Wire()
        super().__init__(
            topic="t",
            topic_id=1,
            sender=ProducerIdentity(9, generation=0),
            ack=int(Ack.ALL),
            in_memory=False,
            timeout=10.0,
            awaited=False,
            batch_messages=100,
            batch_bytes=1_000_000,
            compression="",
            extras=False,
            outcomes=Outcomes(),
            wire=wire,
            core=SimpleNamespace(
                routing=SimpleNamespace(head_link=lambda *_: wire),
                links=SimpleNamespace(disown=lambda _: None),
                loop=SimpleNamespace(call_soon_threadsafe=lambda work, *given: work(*given)),
                late=lambda operation, *_: DeadlineExceeded(f"{operation} is late."),
            ),
            heard=[],
            resends=[],
            losses=[],
            epoch=5,
        )

    def call_back(self, callback, receipt, error):
        callback(receipt, error)

    def progressed(self):
        pass

    def introduce(self, link):
        pass

    def epoch_of(self, partition):
        return self.epoch

    def note_loss(self, lane):
        self.losses.append(lane)

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
    assert producer.outcomes.acknowledged == 4
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


@pytest.mark.parametrize("reason", ["gap", "unknown_producer"])
def test_what_follows_a_batch_that_was_refused_for_a_moment_is_sent_again_with_it(producer, lane, reason):
    """The broker may take messages again by the time the second one comes; it knows nothing of the first."""
    first, second, third, fourth = lane.pending
    first.failed(NotReady("The chain is being put together."))
    for sent in (second, third, fourth):
        sent.failed(SequenceError("Not without the one before.", reason=reason))
    assert told(producer) == []
    assert producer.resends == [lane]
    lane.resend()
    assert producer.wire.sent[4:] == [first, second, third, fourth]


def test_a_producer_that_the_broker_does_not_remember_is_told(producer, lane):
    """Its oldest unanswered batch is not the first it ever sent: nothing it could send again would help."""
    first, *_ = lane.pending
    first.failed(SequenceError("This partition does not know it.", reason="unknown_producer"))
    assert told(producer)[0] == ("a", SequenceError)
    assert [name for name, *_ in producer.heard] == ["a", "b", "c", "d"]
    assert lane.generation == 1


def test_behind_a_memory_topic_that_was_lost_it_goes_on_under_the_next_generation(producer, lane):
    """Every batch was sent once, and the first was refused: none of them can be in a log."""
    producer.in_memory = True
    first, *_ = lane.pending
    first.failed(SequenceError("This partition does not know it.", reason="unknown_producer"))
    assert (producer.heard, producer.losses, lane.generation) == ([], [lane], 1)
    assert [(header.generation, header.sequence) for header in producer.wire.headers[-4:]] == [
        (1, number) for number in range(4)
    ]


def test_a_batch_that_a_lost_memory_topic_may_have_had_is_not_known_to_be_written(producer, lane):
    producer.in_memory = True
    lane.resend()
    first, *_ = lane.pending
    first.failed(SequenceError("This partition does not know it.", reason="unknown_producer"))
    assert told(producer)[0] == ("a", UnknownOutcome)
    assert not producer.losses


def test_a_batch_for_a_memory_topic_says_since_when_it_may_be_there(producer):
    producer.in_memory = True
    lane = Lane(producer, 0)
    lane.add_encoded(batch.encode([0], [None], [b"a"], None))
    lane.dispatch()
    producer.epoch = 8
    lane.resend()
    assert [header.epoch for header in producer.wire.headers] == [0, 5]
    first, second = producer.wire.headers
    assert (first.body_checksum, first.sequence) == (second.body_checksum, second.sequence)


def test_what_is_in_the_log_is_not_said_to_have_failed_with_what_was_before_it(producer, lane):
    first, second, third, fourth = lane.pending
    first.failed(NotReady("The chain is being put together."))
    lane.acknowledged(second, 1)
    lane.give_up(first, PublishError("Too late."))
    assert told(producer)[:2] == [("a", PublishError), ("b", 1)]
    assert [name for name, *_ in producer.heard] == ["a", "b", "c", "d"]
    assert [failed.count for failed in producer.outcomes.failures] == [1, 1, 1]
    assert third.done
    assert fourth.done
    assert not lane.pending
    assert lane.done_bytes == lane.sealed_bytes


def test_rows_that_cannot_get_a_header_are_told_of_and_do_not_stop_the_next_ones(producer):
    lane = Lane(producer, 0)
    lane.generation = 2**40
    lane.rows.extend((b"lost", None))
    lane.seal()
    assert [failed.count for failed in producer.outcomes.failures] == [1]
    lane.generation = 1
    lane.rows.extend((b"next", None))
    lane.pump()
    assert [sent.encoded.count for sent in producer.wire.sent] == [1]


def test_a_flush_is_over_when_all_it_waits_for_is_done_in_whatever_order(lane):
    first, second, *_ = lane.pending
    told = []
    over = SimpleNamespace(done=lambda: bool(told), set_result=told.append)
    flush = _Flush(lane.seal_all(), over)
    lane.give_up(second, PublishError("Too late."))  # and all behind it
    flush.look()
    assert not told
    lane.add_encoded(batch.encode([0], [None], [b"later"], None))
    lane.acknowledged(first, 0)
    flush.look()
    assert told == [None]


def test_sealing_all_waits_for_a_batch_that_another_thread_makes(producer, monkeypatch):
    lane, entered, release, found = Lane(producer, 0), threading.Event(), threading.Event(), []
    encode = Lane._encode

    def slow(lane, rows):
        entered.set()
        assert release.wait(10)
        return encode(lane, rows)

    monkeypatch.setattr(Lane, "_encode", slow)
    lane.rows.extend((b"x", None))
    seals = threading.Thread(target=lane.seal)
    seals.start()
    assert entered.wait(10)
    assert not lane.rows
    flushes = threading.Thread(target=lambda: found.extend(lane.seal_all()))
    flushes.start()
    release.set()
    for thread in (seals, flushes):
        thread.join(10)
    assert found == list(lane.pending)
    assert len(found) == 1


# --- messages that are given up -----------------------------------------------------------------


def withdraw(lane, producer, name):
    """Give up the message of this name."""
    (waiter,) = (
        callback for sent in lane.pending for _, callback, _ in sent.callbacks if callback.__defaults__ == (name,)
    )
    assert lane.withdraw(waiter, 1.0)
    assert not lane.withdraw(waiter, 1.0)


def test_what_was_sent_and_not_answered_is_given_up_as_unknown_and_the_rest_goes_on(producer, lane):
    withdraw(lane, producer, "b")
    assert told(producer) == [("b", UnknownOutcome)]
    for offset, sent in enumerate(list(lane.pending)):
        lane.acknowledged(sent, offset)
    assert told(producer) == [("b", UnknownOutcome), ("a", 0), ("c", 2), ("d", 3)]
    assert lane.generation == 0


def test_what_nobody_waits_for_any_more_is_not_sent_again(producer, lane):
    for name in "bcd":
        withdraw(lane, producer, name)
    assert len(lane.pending) == 1
    withdraw(lane, producer, "a")
    assert told(producer) == [(name, UnknownOutcome) for name in "bcda"]
    assert not lane.pending
    assert lane.done_bytes == lane.sealed_bytes


def test_what_was_refused_is_given_up_for_certain_and_what_is_behind_it_goes_on_without_it(producer, lane):
    first, second, third, fourth = lane.pending
    lane.acknowledged(first, 0)
    second.failed(NotReady("The chain is being put together."))
    for sent in (third, fourth):
        sent.failed(SequenceError("Not without the one before.", reason="gap"))
    withdraw(lane, producer, "b")
    assert told(producer) == [("a", 0), ("b", DeadlineExceeded)]
    lane.resend()
    assert producer.wire.sent[4:] == [third, fourth]
    assert [(header.generation, header.sequence) for header in producer.wire.headers[4:]] == [(1, 0), (1, 1)]
    assert lane.done_bytes + third.size + fourth.size == lane.sealed_bytes


def test_what_a_later_answer_shows_to_be_in_the_log_is_not_given_up_for_certain(producer, lane):
    first, second, _, _ = lane.pending
    first.failed(NotReady("The chain is being put together."))
    lane.acknowledged(second, 1)
    withdraw(lane, producer, "a")
    assert told(producer) == [("a", UnknownOutcome)]
    assert [(sent.generation, sent.done) for sent in lane.pending] == [(0, False)] * 4


class Log:
    """A head that takes batches by their numbers, or does not, and whose answers may not come."""

    def __init__(self, rng):
        self.rng = rng
        self.values = []
        self.taken = {}  # where each (generation, sequence) is
        self.last = (0, -1)

    def receive(self, header, body):
        """The answer to a batch: where it is, an error, or None."""
        number = (header.generation, header.sequence)
        if self.rng.random() < 0.2:
            return None  # it got lost
        if number not in self.taken:
            if self.rng.random() < 0.3:
                return NotReady("Not now.")
            if header.generation < self.last[0]:
                return UnknownOutcome("An older generation.")
            expected = self.last[1] + 1 if header.generation == self.last[0] else 0
            if header.sequence != expected:
                return SequenceError("Not without the one before.", reason="gap")
            self.taken[number] = len(self.values)
            self.last = number
            self.values += batch.body_columns(header, body)[2]
        return None if self.rng.random() < 0.2 else self.taken[number]


class Senders:
    """Senders that share a lane, a link that breaks, and a log."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.log = Log(self.rng)
        self.producer = Producer()
        self.producer.awaited = self.producer.extras = True
        self.producer.wire = SimpleNamespace(publish=self.publish)
        self.producer.core.routing.head_link = lambda *_: self.producer.wire
        self.lane = Lane(self.producer, 0)
        self.arrived, self.answers = [], []
        self.waiters, self.heard = {}, {}

    def publish(self, header, body, _, sink):
        self.arrived.append((sink, unpack(header), bytes(body)))

    def offer(self):
        name = b"%d" % len(self.waiters)

        def note(receipt, error):
            assert name not in self.heard
            self.heard[name] = error if error is not None else receipt.offset

        self.waiters[name] = note
        self.lane.rows.extend((name, Extra(None, None, None, note)))
        if not self.lane.awake:
            self.lane.awake = True
            self.lane.pump()

    def transfer(self):
        if self.arrived:
            sink, header, body = self.arrived.pop(0)
            self.answers.append((sink, header, self.log.receive(header, body)))

    def answer(self):
        if not self.answers:
            return
        sink, header, found = self.answers.pop(0)
        now = unpack(sink.header)
        if (now.generation, now.sequence) != (header.generation, header.sequence):
            return  # disowned: it goes under another number now
        if isinstance(found, int):
            self.lane.acknowledged(sink, found)
        elif found is not None:
            sink.failed(found)

    def break_link(self):
        self.arrived.clear()
        self.answers.clear()
        self.lane.resend()

    def give_up(self):
        if self.waiters:
            self.lane.withdraw(self.waiters[self.rng.choice(list(self.waiters))], 1.0)

    def run(self):
        acts = (self.offer, self.transfer, self.answer, self.break_link, self.give_up)
        for _ in range(150):
            self.rng.choices(acts, (5, 5, 5, 1, 2))[0]()
        for waiter in self.waiters.values():
            self.lane.withdraw(waiter, 1.0)
        while self.arrived:
            self.transfer()


@pytest.mark.parametrize("seed", range(100))
def test_whatever_a_log_answers_each_sender_is_told_once_and_the_truth(seed):
    senders = Senders(seed)
    senders.run()
    lane, values = senders.lane, senders.log.values
    assert senders.heard.keys() == senders.waiters.keys()
    assert not lane.pending
    assert not lane.rows
    assert lane.sealed_bytes == lane.done_bytes
    for name, outcome in senders.heard.items():
        if isinstance(outcome, int):
            assert values[outcome] == name
        elif not isinstance(outcome, UnknownOutcome):
            assert name not in values
    assert len(set(values)) == len(values)
