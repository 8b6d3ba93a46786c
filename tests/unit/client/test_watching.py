"""How a client watches its links: often while it waits for something, seldom while it does not."""

import pytest

from stentor import limits
from stentor.client.link import BrokerLink
from stentor.wire.frames import Kind

STEP_S = limits.LINK_WATCH_S


class Loop:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 100.0

    def time(self):
        return self.now

    def create_future(self):
        return Future()


class Future:
    def done(self):
        return True


class Connection:
    """What a link says, and nobody answers."""

    def __init__(self):
        self.bytes_in = 0
        self.sent = []
        self.aborted = False

    def send(self, kind, correlation, body=b""):
        self.sent.append(kind)

    def abort(self):
        self.aborted = True


@pytest.fixture
def link():
    watched = BrokerLink("there:1", Loop())
    watched.connection = Connection()
    watched.alive = True
    return watched


def look(link, seconds, *, answers):
    """Look every now and then; how many pings there were."""
    began = len(link.connection.sent)
    for _ in range(round(seconds / STEP_S)):
        link._loop.now += STEP_S
        link.look(impatient=True)
        if answers and len(link.connection.sent) > began and link._pulse.asked_at == link._loop.now:
            link.connection.bytes_in += 12
    return len(link.connection.sent) - began


def want(link):
    link._waiting.streams[1] = None


def test_an_idle_link_is_pinged_seldom_and_one_that_is_wanted_often(link):
    assert 7 <= look(link, 10, answers=True) <= 10
    want(link)
    assert 20 <= look(link, 10, answers=True) <= 50
    assert set(link.connection.sent) == {Kind.PING}
    assert link.alive


@pytest.mark.parametrize(("wanted", "seconds"), [(True, 1.4), (False, 2.2)])
def test_one_that_says_nothing_is_left_soon(link, wanted, seconds):
    if wanted:
        want(link)
    look(link, limits.LINK_SILENCE_S - STEP_S, answers=False)
    assert link.alive, "not yet"
    look(link, seconds - limits.LINK_SILENCE_S + STEP_S, answers=False)
    assert not link.alive
    assert link.connection.aborted


def test_one_that_was_idle_is_asked_before_it_is_left(link):
    look(link, limits.LINK_IDLE_S - STEP_S, answers=False)
    assert link.connection.sent == []
    want(link)
    look(link, STEP_S, answers=False)
    assert link.connection.sent == [Kind.PING]
    link._loop.now += STEP_S
    link.connection.bytes_in += 12
    link.look(impatient=True)
    assert link.alive


def test_where_there_is_no_other_broker_nobody_is_left(link):
    want(link)
    for _ in range(50):
        link._loop.now += STEP_S
        link.look(impatient=False)
    assert link.alive
