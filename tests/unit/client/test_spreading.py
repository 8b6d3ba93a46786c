"""Messages without a key are spread over the partitions, also those of one short burst."""

import asyncio

import pytest

import stentor
from stentor import limits, selectors
from stentor.client.lane import Lane

BURST = 300
TURN = limits.PRODUCER_TURN_MESSAGES


def held(client, topic):
    return [partition.committed for partition in client.describe_topic(topic).partitions]


@pytest.mark.parametrize("partitions", [2, 3, 4])
@pytest.mark.parametrize("value", [b"small", "text"])
def test_a_burst_is_spread_over_all_partitions(client, value, partitions):
    topic = f"spread.{type(value).__name__}.{partitions}"
    client.create_topic(topic, partitions=partitions)
    with client.producer(topic) as producer:
        for _ in range(BURST):
            producer.send(value)
    counts = held(client, topic)
    assert sum(counts) == BURST
    # A lane whose batch is on its way may get one message where the others get a whole turn, but never none.
    assert min(counts) >= BURST // ((partitions - 1) * TURN + 1)


def test_send_many_spreads_as_well(client):
    client.create_topic("spread.many", partitions=3)
    with client.producer("spread.many") as producer:
        producer.send_many([b"x"] * BURST)
    assert min(held(client, "spread.many")) >= BURST // (2 * TURN + 1)


def test_while_all_lanes_gather_they_gather_alike(shared):
    """Nothing is answered while the loop is not given a chance to: every lane has one batch on its way."""

    async def main():
        async with stentor.connect_async(shared.url) as client:
            await client.create_topic("spread.alike", partitions=3)
            producer = await client.producer("spread.alike")
            for _ in range(BURST):
                await producer.send(b"x")
            rows = [len(lane.rows) // 2 for lane in producer._core.lanes]
            await producer.close()
            return rows

    rows = asyncio.run(main())
    assert max(rows) - min(rows) <= TURN


def test_a_few_messages_in_a_row_stay_together(client, monkeypatch):
    """Less than a turn makes one batch more, not one for every partition."""
    client.create_topic("spread.few", partitions=3)
    with client.producer("spread.few") as producer:
        monkeypatch.setattr(Lane, "pump", lambda _: None)  # the loop comes too late
        for _ in range(TURN):
            producer.send(b"x")
        assert sorted(len(lane.rows) // 2 for lane in producer._core.lanes) == [0, 0, TURN]
        producer.send(b"x")
        assert sorted(len(lane.rows) // 2 for lane in producer._core.lanes) == [0, 1, TURN]
        monkeypatch.undo()
    assert sum(held(client, "spread.few")) == TURN + 1


def test_one_publish_after_the_other_takes_turns(client):
    client.create_topic("spread.turns", partitions=3)
    assert {client.publish("spread.turns", "x").partition for _ in range(3)} == {0, 1, 2}


def test_batches_are_as_large_as_ever_under_load(client, monkeypatch):
    """Sent faster than the loop comes: every lane is filled to the brim before it is sealed."""
    client.create_topic("spread.load", partitions=3)
    with client.producer("spread.load", batch_messages=200) as producer:
        monkeypatch.setattr(Lane, "pump", lambda _: None)
        for _ in range(3_000):
            producer.send(b"x")
        sizes = [sent.encoded.count for lane in producer._core.lanes for sent in lane.pending]
        monkeypatch.undo()
    assert set(sizes) == {200}
    assert len(sizes) >= 3_000 // 200 - 3


def test_round_robin_gives_every_message_to_the_next_partition(client):
    client.create_topic("spread.robin", partitions=3)
    with client.producer("spread.robin", partitioner=selectors.round_robin()) as producer:
        for number in range(BURST):
            producer.send(b"x", key=b"same" if number % 2 else None)
    assert held(client, "spread.robin") == [BURST // 3] * 3
