"""An idle stream asks brokers rarely; one that has news asks at once."""

from __future__ import annotations

import pytest
from tests.spark.clock import Clock

from stentor.spark import reader
from stentor.spark.offsets import TopicPlace, to_offset
from stentor.spark.options import read_options
from stentor.spark.reader import TopicStreamReader


class Topics:
    """One partition whose messages end where the test says; counts how often it is asked."""

    def __init__(self, clock):
        self._clock = clock
        self.looks = 0
        self.end = 0
        self.publish_at = None

    def at(self, _position, _names=None, **_):
        self.looks += 1
        if self.publish_at is not None and self._clock.now >= self.publish_at:
            self.end, self.publish_at = self.end + 1, None
        return {"orders": TopicPlace(7, {0: self.end})}


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(reader, "time", made)
    return made


@pytest.fixture
def stream(clock):
    made = TopicStreamReader(read_options({"subscribe": "orders"}, streaming=True), None)
    made._topics = Topics(clock)
    return made


def ask(stream, clock, start, seconds):
    """What Spark does: ask again ten milliseconds after every answer, until there is something new."""
    end = clock.now + seconds
    while clock.now < end:
        found = stream.latestOffset(start)
        if found != start:
            return found
        clock.now += 0.01
    return start


def test_looking_for_news_gets_rarer_while_there_are_none(stream, clock):
    start = to_offset({"orders": TopicPlace(7, {0: 0})})
    ask(stream, clock, start, 60)
    before = stream._topics.looks
    assert before < 300
    ask(stream, clock, start, 60)
    assert stream._topics.looks - before <= 62


@pytest.mark.parametrize(("silence_s", "within_s"), [(0.05, 0.005), (1, 0.06), (10, 0.6), (600, 1.1)])
def test_news_wait_for_a_small_part_of_the_silence_before_them(stream, clock, silence_s, within_s):
    start = to_offset({"orders": TopicPlace(7, {0: 0})})
    published = stream._topics.publish_at = clock.now + silence_s
    found = ask(stream, clock, start, silence_s + 5)
    assert found != start
    assert clock.now - published < within_s
    published = stream._topics.publish_at = clock.now + 0.03
    assert ask(stream, clock, found, 5) != found
    assert clock.now - published < 0.02, "after news it looks often again"
