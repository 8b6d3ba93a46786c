"""A stream with a group tells how far it is, and nothing that goes wrong there stops it."""

from __future__ import annotations

import logging

import pytest

from stentor.errors import InvalidArgument
from stentor.spark.offsets import TopicPlace, to_offset
from stentor.spark.options import read_options
from stentor.spark.reader import TopicStreamReader


def stream(topic, **options):
    return TopicStreamReader(read_options({"subscribe": topic, **options}, streaming=True), None)


def test_a_committed_batch_moves_the_positions_of_the_group(client, topic):
    info = client.create_topic(topic, partitions=2)
    for number in range(6):
        client.publish(topic, f"{number}", partition=number % 2)
    reader = stream(topic, groupId="reports")
    reader.commit(to_offset({topic: TopicPlace(info.id, {0: 2, 1: 1})}))
    (cursor,) = [cursor for cursor in client.cursors(topic) if cursor.name == "reports"]
    assert (cursor.positions, cursor.lag) == ({0: 2, 1: 1}, {0: 1, 1: 2})
    reader.commit(to_offset({topic: TopicPlace(info.id, {0: 3, 1: 3})}))
    (cursor,) = [cursor for cursor in client.cursors(topic) if cursor.name == "reports"]
    assert cursor.lag == {0: 0, 1: 0}


def test_without_a_group_nothing_is_told(client, topic):
    info = client.create_topic(topic)
    stream(topic).commit(to_offset({topic: TopicPlace(info.id, {0: 0})}))
    assert client.cursors(topic) == []


def test_a_topic_that_is_gone_stops_no_query(client, topic, caplog):
    with caplog.at_level(logging.WARNING):
        stream(topic, groupId="reports").commit(to_offset({topic: TopicPlace(7, {0: 1})}))
    assert "could not tell the progress" in caplog.text


@pytest.mark.parametrize("name", ["no name", "recorder"])
def test_a_group_has_a_name(topic, name):
    with pytest.raises(InvalidArgument):
        stream(topic, groupId=name)


def test_a_batch_read_has_no_group(topic):
    with pytest.raises(InvalidArgument, match="for streams"):
        read_options({"subscribe": topic, "groupId": "reports"}, streaming=False)
