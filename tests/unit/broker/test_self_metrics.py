"""What a broker publishes of itself: changes, and everything now and then."""

import asyncio
import json

import msgspec
import pytest

from stentor import limits
from stentor.self_metrics import METRICS_TOPIC, MetricsPublisher, RecordPlan
from stentor.wire.statistics import BrokerStatistics, Health, PartitionStatistics

INTERVAL_S = 10


def partition(number, messages=0, topic="t"):
    return PartitionStatistics(topic=topic, partition=number, messages_in=messages)


def statistics(*partitions, **others):
    return BrokerStatistics(partitions=list(partitions), **others)


@pytest.fixture
def plan():
    return RecordPlan()


def told(found):
    """The partitions of a record, and whether it is a full one."""
    return None if found is None else ([each.partition for each in found[0].partitions], found[1])


def test_the_first_record_tells_everything_and_the_next_what_changed(plan):
    assert told(plan.next(statistics(partition(0), partition(1)), 0.0)) == ([0, 1], True)
    assert told(plan.next(statistics(partition(0), partition(1, 5)), 10.0)) == ([1], False)
    assert told(plan.next(statistics(partition(0, 7), partition(1, 5), partition(2)), 20.0)) == ([0, 2], False)


def test_nothing_is_said_while_nothing_changes_but_a_sign_of_life(plan):
    plan.next(statistics(partition(0)), 0.0)
    said = [now for now in range(10, 290, INTERVAL_S) if plan.next(statistics(partition(0)), float(now)) is not None]
    assert said == list(range(30, 290, limits.METRICS_QUIET_S))


def test_everything_is_said_again_every_few_minutes(plan):
    full = [
        now
        for now in range(0, 3600, INTERVAL_S)
        if (found := plan.next(statistics(partition(0), partition(1, now)), float(now))) is not None and found[1]
    ]
    assert full == list(range(0, 3600, limits.METRICS_FULL_S))


def test_a_partition_that_is_gone_makes_a_full_record(plan):
    plan.next(statistics(partition(0), partition(1)), 0.0)
    assert told(plan.next(statistics(partition(0)), 10.0)) == ([0], True)


def test_the_records_themselves_are_no_news(plan):
    """Otherwise each would be the reason for the next."""
    plan.next(statistics(partition(0), partition(0, 1, METRICS_TOPIC)), 0.0)
    assert plan.next(statistics(partition(0), partition(0, 2, METRICS_TOPIC)), 10.0) is None
    assert told(plan.next(statistics(partition(0, 1), partition(0, 2, METRICS_TOPIC)), 20.0)) == ([0, 0], False)


def test_what_is_wrong_with_a_broker_is_said_at_once(plan):
    plan.next(statistics(), 0.0)
    assert told(plan.next(statistics(health=Health(disk_writable=False)), 10.0)) == ([], False)


def test_changes_add_up_to_what_there_is(local, client, wait_until):
    """Whoever puts records over each other has everything."""

    async def start():
        return MetricsPublisher(local.inner, 0.02)

    publisher = asyncio.run_coroutine_threadsafe(start(), local.inner.loop).result(10)
    try:
        client.create_topic("t", partitions=3)
        wait_until(lambda: client.topics(METRICS_TOPIC), "the topic is there")
        for number in range(30):
            client.publish("t", b"x", partition=number % 3)
        known = {}

        def counts():
            for message in client.read(METRICS_TOPIC):
                record = json.loads(message.value)
                if record["full"]:
                    known.clear()
                known.update({(p["topic"], p["partition"]): p for p in record["statistics"]["partitions"]})
            return [known["t", index]["messages_in"] for index in range(3) if ("t", index) in known] == [10] * 3

        wait_until(counts, "records say what was published")
        now = {(p["topic"], p["partition"]) for p in client.statistics()["partitions"]}
        assert known.keys() == now
    finally:
        asyncio.run_coroutine_threadsafe(publisher.stop(), local.inner.loop).result(10)


def test_records_hold_up_no_loop(local, client, wait_until, monkeypatch):
    """There may be a hundred thousand subscribers to look at: statistics are gathered in slices (C35)."""
    monkeypatch.setattr(limits, "METRICS_PARTITIONS_MAX", 2)
    client.create_topic("t", partitions=3)
    gathered = []

    def at_once(*_):
        raise AssertionError("All of it in one turn of the loop.")

    gather = local.inner.parts.overview.gather

    async def in_slices(partitions_max=None):
        gathered.append(partitions_max)
        return await gather(partitions_max)

    monkeypatch.setattr(local.inner.parts.overview, "statistics", at_once)
    monkeypatch.setattr(local.inner.parts.overview, "gather", in_slices)

    async def start():
        return MetricsPublisher(local.inner, 0.02)

    publisher = asyncio.run_coroutine_threadsafe(start(), local.inner.loop).result(10)
    try:
        wait_until(lambda: client.topics(METRICS_TOPIC), "the topic is there")
        found = wait_until(lambda: list(client.read(METRICS_TOPIC)), "a record was published")
        assert len(json.loads(found[0].value)["statistics"]["partitions"]) == 2
        assert gathered[0] == 2
    finally:
        asyncio.run_coroutine_threadsafe(publisher.stop(), local.inner.loop).result(10)


def test_the_topic_of_an_older_version_gets_a_bound_and_a_chosen_one_stays(local, client, wait_until):
    def publish_once():
        async def start():
            return MetricsPublisher(local.inner, 0.02)

        publisher = asyncio.run_coroutine_threadsafe(start(), local.inner.loop).result(10)
        wait_until(lambda: sum(client.offsets(METRICS_TOPIC).values()) > before, "a record was published")
        asyncio.run_coroutine_threadsafe(publisher.stop(), local.inner.loop).result(10)
        return client.describe_topic(METRICS_TOPIC).settings

    before = 0
    client.create_topic(METRICS_TOPIC, flush="interval", retention_age_s=limits.METRICS_RETENTION_S)
    settings = publish_once()
    assert (settings.retention_bytes, settings.segment_bytes) == (
        limits.METRICS_RETENTION_BYTES,
        limits.METRICS_SEGMENT_BYTES,
    )
    before = sum(client.offsets(METRICS_TOPIC).values())
    client.alter_topic(METRICS_TOPIC, retention_bytes=None, retention_age_s=86_400)
    assert publish_once().retention_bytes is None


def test_a_record_of_an_idle_broker_is_small(local, client):
    """Bytes a day are counted in docs/operating.md: this keeps the order of magnitude."""
    client.create_topic("t", partitions=62)
    found = client.statistics()
    plan = RecordPlan()
    everything = msgspec.convert(found, BrokerStatistics)
    sizes = [
        len(msgspec.json.encode(each[0]))
        for now in range(0, 3600, INTERVAL_S)
        if (each := plan.next(everything, float(now))) is not None
    ]
    assert sum(sizes) * 15 < len(msgspec.json.encode(everything)) * (3600 // INTERVAL_S)
