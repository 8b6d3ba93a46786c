"""One question comes before everything that is asked of a broker: may this principal do this?"""

import urllib.error
import urllib.request

import pytest

from stentor.errors import InvalidArgument, StentorError
from stentor.security.permissions import ANYBODY, Action, Permissions
from stentor.testing import broker

FORBIDDEN = "This is not allowed."


@pytest.fixture
def asked(monkeypatch):
    """What was asked: principal, action, topic."""
    questions = []
    monkeypatch.setattr(Permissions, "check", lambda _, *question: questions.append(question))
    return questions


def forbid(monkeypatch, *actions):
    def check(_, principal, action, topic=""):
        if action in actions:
            raise InvalidArgument(FORBIDDEN, object=topic)

    monkeypatch.setattr(Permissions, "check", check)


REQUESTS = {
    Action.CREATE: lambda client: client.create_topic("t2"),
    Action.ALTER: lambda client: client.alter_topic("t", retention_age_s=60),
    Action.DELETE: lambda client: client.delete_topic("t"),
    Action.DESCRIBE: lambda client: client.describe_topic("t"),
    Action.OBSERVE: lambda client: client.statistics(),
    Action.OPERATE: lambda client: client.drain_broker("nobody"),
    Action.PUBLISH: lambda client: client.publish("t", b"x"),
    Action.READ: lambda client: list(client.read("t")),
}


@pytest.mark.parametrize("action", REQUESTS, ids=lambda action: action.value)
def test_what_is_forbidden_is_refused_in_words_and_nothing_else_is(action, client, monkeypatch):
    client.create_topic("t")
    client.publish("t", b"x")
    forbid(monkeypatch, action)
    with pytest.raises(StentorError, match=FORBIDDEN):
        REQUESTS[action](client)
    forbid(monkeypatch, *(other for other in Action if other not in (action, Action.DESCRIBE, Action.READ)))
    if action is Action.OPERATE:
        with pytest.raises(InvalidArgument, match="no broker"):
            REQUESTS[action](client)
    elif action is not Action.DELETE:
        REQUESTS[action](client)


def test_every_question_names_the_topic_and_who_asks(client, asked):
    client.create_topic("t")
    client.publish("t", b"x")
    list(client.read("t"))
    named = {(action, topic) for _, action, topic in asked if topic}
    assert {(Action.CREATE, "t"), (Action.PUBLISH, "t"), (Action.READ, "t")} <= named
    assert {principal for principal, *_ in asked} == {ANYBODY}


def test_lists_leave_out_what_somebody_may_not_see(client, monkeypatch):
    client.create_topic("secret.plans")
    client.create_topic("open.plans")
    monkeypatch.setattr(Permissions, "allows", lambda _, __, ___, topic: topic.startswith("open"))
    assert [topic.name for topic in client.topics()] == ["open.plans"]


@pytest.mark.parametrize("path", ["/", "/metrics", "/statistics"])
def test_pages_that_show_how_a_broker_is_ask_too(monkeypatch, path):
    with broker(http=True) as local:
        forbid(monkeypatch, Action.OBSERVE)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(local.http_url + path, timeout=10)
        assert refused.value.code == 403
        assert FORBIDDEN in refused.value.read().decode()
        assert urllib.request.urlopen(local.http_url + "/health/live", timeout=10).status == 200
