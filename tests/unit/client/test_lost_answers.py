"""Requests whose answer was lost: clients repeat those that may be asked again, and no others."""

import pyarrow as pa
import pytest

import stentor
from stentor.client.link import BrokerLink
from stentor.wire import group_messages, messages


@pytest.fixture
def lose(monkeypatch):
    """Break the link of the first request of a kind, after the broker has answered it or before it is sent."""
    real = BrokerLink.request

    def arrange(kind, *, sent=True):
        broken = []

        async def request(link, message, *options):
            if not isinstance(message, kind) or broken:
                return await real(link, message, *options)
            broken.append(message)
            if sent:
                await real(link, message, *options)
            link.give_up("the test broke it")
            link.connection.abort()
            return await real(link, message, *options) if not sent else link.check()

        monkeypatch.setattr(BrokerLink, "request", request)
        return broken

    return arrange


def columns():
    return pa.schema([("price", pa.float64())])


REPEATED = {
    "create, where one that exists will do": (messages.CreateTopic, lambda c: c.create_topic("made", exist_ok=True)),
    "a topic that is made on the way": (messages.CreateTopic, lambda c: c.publish("on-the-way", b"x")),
    "a queue that is made on the way": (messages.CreateTopic, lambda c: c.queue("jobs-on-the-way").close()),
    "alter": (messages.AlterTopic, lambda c: c.alter_topic("t", retention_bytes=1 << 30)),
    "register a schema": (messages.RegisterSchema, lambda c: c.tabular("rows", columns())),
    "move a cursor": (messages.MoveCursor, lambda c: c.move_cursor("t", "reader", {0: 1})),
    "mark what is recorded": (messages.MarkRecorded, lambda c: c.mark_recorded("t", {0: 1})),
    "delete a cursor": (messages.DeleteCursor, lambda c: c.delete_cursor("t", "reader")),
    "drain": (messages.DrainBroker, lambda c: c.drain_broker(c.broker().id, draining=False)),
    "list brokers": (messages.ListBrokers, lambda c: c.brokers()),
    "list groups": (group_messages.ListGroups, lambda c: c.groups()),
}


@pytest.fixture
def topic(client):
    client.create_topic("t", exist_ok=True)
    client.publish("t", b"x")
    client.move_cursor("t", "reader", {0: 0}, back=True)


@pytest.mark.parametrize("what", REPEATED)
def test_what_may_be_asked_again_is(client, topic, lose, what):
    kind, ask = REPEATED[what]
    broken = lose(kind)
    ask(client)
    assert len(broken) == 1


def test_a_group_that_was_deleted_by_the_lost_request_is_deleted(client, topic, lose):
    with client.group("readers", ["t"]) as group:
        group.get(timeout=10)
        group.commit()
    broken = lose(messages.DeleteGroup)
    client.delete_group("readers")
    assert len(broken) == 1
    with pytest.raises(stentor.GroupNotFound):
        client.delete_group("readers")


NOT_REPEATED = {
    "create": (messages.CreateTopic, lambda c: c.create_topic("made-or-not"), 1),
    "delete": (messages.DeleteTopic, lambda c: c.delete_topic("made-or-not"), 0),
}


@pytest.fixture(params=NOT_REPEATED)
def change(request, client):
    """A request that is not repeated, how to make it, and how many topics there are once it is done."""
    if request.param == "delete":
        client.create_topic("made-or-not")
    yield NOT_REPEATED[request.param]
    if client.topics("made-or-not"):
        client.delete_topic("made-or-not")


def test_what_may_not_be_asked_again_is_said_to_be_uncertain(client, lose, change):
    kind, ask, topics = change
    lose(kind)
    with pytest.raises(stentor.ConnectionFailed, match="was lost: it may or may not have been done"):
        ask(client)
    assert len(client.topics("made-or-not")) == topics


def test_whatever_was_not_sent_yet_is_asked_on_the_next_link(client, lose, change):
    kind, ask, topics = change
    broken = lose(kind, sent=False)
    ask(client)
    assert len(broken) == 1
    assert len(client.topics("made-or-not")) == topics
