"""Those who follow a partition: many of them are served in slices of the loop's turns (C35)."""

from types import SimpleNamespace

import pytest

from stentor.broker.failures import Failures
from stentor.broker.partitions.followers import FEW, Followers
from stentor.broker.slices import SLICE_S, Slices
from stentor.errors import NotReady

MANY = 100 * FEW


class Loop:
    """A loop whose turns the test takes, and a clock that only work moves."""

    def __init__(self):
        self.now, self.soon = 100.0, []

    def call_soon(self, work):
        self.soon.append(work)

    def turn(self):
        soon, self.soon = self.soon, []
        for work in soon:
            work()

    def settle(self):
        while self.soon:
            self.turn()


class Stream:
    """Takes a hundredth of a slice each time that it has its turn."""

    def __init__(self, loop, followers, position=0):
        self.loop, self.followers = loop, followers
        self.cursor = SimpleNamespace(position=position, copies=False)
        self.pumped, self.failed, self.stopped = 0, [], False

    def pump(self):
        assert not self.stopped
        self.loop.now += SLICE_S / 100
        self.pumped += 1
        self.followers.wait(self)

    def stop(self):
        self.stopped = True

    def fail(self, error):
        self.loop.now += SLICE_S / 100
        self.stopped = True
        self.failed.append(error)
        self.followers.discard(self)


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def followers(loop):
    return Followers(Slices(loop, lambda: loop.now, Failures(loop, lambda: loop.now)))


def following(loop, followers, count, position=0):
    streams = [Stream(loop, followers, position) for _ in range(count)]
    for stream in streams:
        followers.add(stream)
        followers.wait(stream)
    return streams


def test_few_readers_hear_of_a_message_at_once(loop, followers):
    streams = following(loop, followers, FEW)
    followers.wake()
    assert all(stream.pumped == 1 for stream in streams)


def test_many_readers_hear_of_it_in_slices_and_all_of_them(loop, followers):
    streams = following(loop, followers, MANY)
    followers.wake()
    per_turn = [sum(stream.pumped for stream in streams)]
    while loop.soon:
        loop.turn()
        per_turn.append(sum(stream.pumped for stream in streams) - sum(per_turn))
    assert all(stream.pumped == 1 for stream in streams)
    assert max(per_turn) <= 150


def test_messages_that_come_meanwhile_wake_those_again_who_had_their_turn(loop, followers):
    streams = following(loop, followers, MANY)
    for _ in range(5):
        followers.wake()
        loop.turn()
    loop.settle()
    assert all(1 <= stream.pumped <= 5 for stream in streams)
    assert not followers._woken
    assert len(followers._idle) == MANY


def test_who_leaves_before_its_turn_is_left_alone(loop, followers):
    streams = following(loop, followers, MANY)
    followers.wake()
    waiting = [stream for stream in streams if not stream.pumped]
    for stream in waiting:
        followers.discard(stream)
    loop.settle()
    assert not any(stream.pumped for stream in waiting)
    assert len(followers.streams) == MANY - len(waiting)


def test_many_streams_end_in_slices_and_nothing_is_pushed_to_them_meanwhile(loop, followers):
    streams = following(loop, followers, MANY)
    followers.wake()
    loop.settle()
    error = NotReady("Another one leads.")
    followers.fail_all(error)
    assert all(stream.stopped for stream in streams)
    assert sum(len(stream.failed) for stream in streams) < MANY
    loop.settle()
    assert all(stream.failed == [error] for stream in streams)
    assert not followers.streams


def test_only_those_end_who_have_seen_more_than_there_will_be(loop, followers):
    ahead, behind = following(loop, followers, MANY, position=10), following(loop, followers, MANY, position=5)
    followers.fail_beyond(5, NotReady("The partition's log was cut back."))
    loop.settle()
    assert all(stream.failed for stream in ahead)
    assert not any(stream.stopped for stream in behind)
