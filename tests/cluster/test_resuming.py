"""A consumer goes on where it was, at another broker and after a failover."""

from __future__ import annotations

import json
from itertools import islice

import pytest

import stentor

pytestmark = pytest.mark.slow

COUNT = 300


def test_a_stored_position_outlives_the_head_of_its_partition(three):
    with three.client(timeout=30) as client:
        client.create_topic("resuming", partitions=3)
        with client.producer("resuming") as producer:
            for number in range(COUNT):
                producer.send(b"%d" % number, partition=number % 3)
        with client.subscribe("resuming", start="earliest", end="now") as subscription:
            taken = [int(message.value) for message in islice(subscription, 130)]
            stored = json.dumps(subscription.positions())
    three.kill(three.head("resuming"))
    with three.client(timeout=30) as client:
        client.publish("resuming", b"%d" % COUNT, partition=0)
        rest = [int(message.value) for message in client.read("resuming", start=json.loads(stored))]
    assert sorted(taken + rest) == list(range(COUNT + 1))


def test_a_topic_that_was_made_anew_is_told_apart_in_a_cluster(three):
    with three.client(timeout=30) as client:
        client.create_topic("resuming")
        client.publish("resuming", "old")
        (message,) = client.read("resuming")
        client.delete_topic("resuming")
        client.create_topic("resuming")
        with pytest.raises(stentor.TopicReplaced, match="made anew"):
            client.read("resuming", start=message.position)
