"""Requests at a broker: what it passes on, and what strangers cannot do to others."""

from types import SimpleNamespace

import pytest

from stentor.broker.cluster.trust import REQUESTS
from stentor.broker.services.desk import ServiceDesk
from stentor.broker.services.directory import ServiceDirectory
from stentor.core import service_limits
from stentor.errors import InvalidArgument, NotReady, ProtocolError
from stentor.request_errors import NoResponders, ResponderLost
from stentor.security.permissions import ANYBODY, Permissions
from stentor.wire import asks, frames, messages
from stentor.wire.frames import Kind
from stentor.wire.peer import Responders
from stentor.wire.service_messages import FindResponders, Serve

TOPIC = "svc.price"


class Connected:
    """A client's connection, and the frames that it got."""

    principal = ANYBODY

    def __init__(self):
        self.frames, self.takes_more = [], True

    def pass_on(self, frame):
        _, kind, flags, _, correlation = frames.HEADER.unpack_from(frame)
        self.frames.append((Kind(kind), flags, correlation, frame[frames.HEADER_BYTES :]))

    def refusal(self):
        kind, flags, _, body = self.frames.pop(0)
        assert (kind, flags) == (Kind.REPLY, asks.FAILED)
        return messages.raised(messages.decode(body, messages.Failure))


class Peers:
    names = ("b1",)

    def __init__(self):
        self.sent = []

    def knows(self, *_):
        return True

    def send(self, name, message):
        self.sent.append((name, message))


class Place:
    """A broker's desk, with everything around it made up."""

    def __init__(self, *, alone=True, level=REQUESTS):
        self.now, self.views, self.peers = 0.0, {"b1": "heard"}, Peers()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        environment = SimpleNamespace(clock=clock, coalescing=SimpleNamespace(gather=lambda work: work()))
        identity = SimpleNamespace(alone=alone, broker_id="b0")
        self.directory = ServiceDirectory(environment, identity, self.peers, SimpleNamespace(view=self.views.get))
        trust = SimpleNamespace(level=level)
        self.desk = ServiceDesk(identity, clock, trust=trust, permissions=Permissions(), directory=self.directory)

    def find(self):
        return self.desk.find(FindResponders(topic=TOPIC))


def ask(place, caller, correlation, *, credit=0, value=b"x"):
    body = asks.encode_ask(TOPIC.encode(), value, None, 5.0, 1, credit)
    place.desk.asked(caller, 0, correlation, memoryview(body))


def test_a_request_and_its_answer_are_passed_on():
    place, caller, responder = Place(), Connected(), Connected()
    place.desk.serve(responder, Serve(topic=TOPIC, window=1))
    ask(place, caller, 7)
    kind, _, number, body = responder.frames.pop()
    assert (kind, asks.decode_ask(memoryview(body), 0).value) == (Kind.ASK, b"x")
    place.desk.replied(responder, 0, number, memoryview(asks.encode_reply(b"y", None)))
    assert caller.frames == [(Kind.REPLY, 0, 7, asks.encode_reply(b"y", None))]


def test_what_waited_has_less_time_left():
    place, caller, responder = Place(), Connected(), Connected()
    place.desk.serve(responder, Serve(topic=TOPIC, window=1))
    ask(place, caller, 1)
    ask(place, caller, 2)
    place.now = 2.0
    place.desk.replied(responder, 0, responder.frames[0][2], memoryview(asks.encode_reply(None, None)))
    assert asks.routed(memoryview(responder.frames[1][3])) == (TOPIC, 3.0)


def test_a_caller_is_told_what_became_of_a_lost_responder():
    place, caller, responder = Place(), Connected(), Connected()
    ask(place, caller, 1)
    assert isinstance(caller.refusal(), NoResponders)
    place.desk.serve(responder, Serve(topic=TOPIC, window=1))
    ask(place, caller, 2)
    place.desk.gone(responder)
    assert isinstance(caller.refusal(), ResponderLost)
    place.desk.gone(caller)
    assert (place.desk._clients, place.desk._numbers) == ({}, {})


def test_nobody_answers_for_another_and_malformed_requests_are_refused():
    place, caller, responder, stranger = Place(), Connected(), Connected(), Connected()
    place.desk.serve(responder, Serve(topic=TOPIC, window=1))
    ask(place, caller, 1)
    place.desk.replied(stranger, 0, responder.frames[0][2], memoryview(asks.encode_reply(b"false", None)))
    assert caller.frames == []
    place.desk.asked(caller, 0, 2, memoryview(asks.ASK.pack(1, 0, 0, 500, 0, 0)))
    assert isinstance(caller.refusal(), ProtocolError)
    place.desk.asked(caller, 0, 3, memoryview(bytes(service_limits.ASK_BYTES_MAX + 1)))
    assert "limit" in str(caller.refusal())


def test_credit_cannot_fill_the_buffer_of_a_responder_that_does_not_read():
    place, caller, responder = Place(), Connected(), Connected()
    place.desk.serve(responder, Serve(topic=TOPIC, window=1))
    ask(place, caller, 1, credit=100)
    number = responder.frames.pop()[2]
    place.desk.credited(caller, 1, memoryview(asks.ASK_CREDIT.pack(5)))
    assert responder.frames.pop() == (Kind.ASK_CREDIT, 0, number, asks.ASK_CREDIT.pack(5))
    responder.takes_more = False
    place.desk.writable_changed(responder, writable=False)
    for _ in range(1_000):
        place.desk.credited(caller, 1, memoryview(asks.ASK_CREDIT.pack(7)))
    assert responder.frames == []
    responder.takes_more = True
    place.desk.writable_changed(responder, writable=True)
    assert responder.frames == [(Kind.ASK_CREDIT, 0, number, asks.ASK_CREDIT.pack(7_000))]


def test_before_all_brokers_know_requests_nobody_serves():
    place = Place(alone=False, level=REQUESTS - 1)
    with pytest.raises(NotReady):
        place.desk.serve(Connected(), Serve(topic=TOPIC, window=1))
    with pytest.raises(InvalidArgument):
        Place().desk.serve(Connected(), Serve(topic="not a name", window=1))


def test_brokers_tell_each_other_of_their_responders():
    place, responder = Place(), Connected()
    place.desk.serve(responder, Serve(topic=TOPIC, window=1))
    assert place.peers.sent == [("b1", Responders(topics=[(TOPIC, 1)]))]
    place.desk.gone(responder)
    assert place.peers.sent[1:] == [("b1", Responders(topics=[(TOPIC, 0)]))]
    place.directory.tell("b1")
    assert place.peers.sent[2:] == [("b1", Responders(topics=[], complete=True))]


def test_a_broker_that_was_just_started_does_not_say_that_nobody_serves():
    place = Place()
    with pytest.raises(NotReady, match="has not heard"):
        place.find()
    place.views["b1"] = "silent"
    assert place.find() == []
    place.views["b1"] = "heard"
    place.directory.heard("b1", Responders(topics=[], complete=True))
    assert place.find() == []


def test_what_others_say_counts_while_they_are_heard():
    place = Place()
    place.directory.heard("b1", Responders(topics=[(TOPIC, 3), ("other", 1)]))
    assert place.find() == [("b1", 3)]
    place.desk.serve(Connected(), Serve(topic=TOPIC, window=1))
    assert place.find() == [("b0", 1), ("b1", 3)]
    place.views["b1"] = "silent"
    assert place.find() == [("b0", 1)]
    place.views["b1"] = "heard"
    place.directory.heard("b1", Responders(topics=[(TOPIC, 0)]))
    assert place.find() == [("b0", 1)]
    place.directory.heard("b1", Responders(topics=[(TOPIC, 2)], complete=True))
    place.now = 4 * service_limits.RESPONDERS_TELL_S
    assert place.find() == [("b0", 1)]
