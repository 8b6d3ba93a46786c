"""Partitions of a group that are paused: what was handled of them counts, and nothing of it comes again."""

import asyncio
import threading
from itertools import count

import pytest

import stentor
from stentor.errors import PartitionNotFound

names = count()


@pytest.fixture
def topic(client):
    """A topic with two partitions; the first has many messages, in few batches."""
    name = f"pausing.{next(names)}"
    client.create_topic(name, partitions=2)
    with client.producer(name) as producer:
        for number in range(500):
            producer.send(str(number), partition=0)
    fill(client, name, 20)
    yield name
    client.delete_topic(name)


def fill(client, topic, count, partition=1):
    with client.producer(topic) as producer:
        for number in range(count):
            producer.send(str(number), partition=partition)


def take(group, many):
    """So many messages of the first partition: the other one is paused meanwhile."""
    return [group.get(timeout=10).offset for _ in range(many)]


def position(client, group, topic, partition=0):
    shares = client.describe_group(group).partitions
    return {(each.topic, each.partition): each.position for each in shares}[topic, partition]


def test_what_was_handled_before_a_pause_is_committed(client, topic):
    with client.group("pausing.commit", topic, auto_commit=False) as group:
        group.pause(topic, 1)
        assert take(group, 400) == list(range(400))
        group.pause(topic, 0)
        group.resume(topic, 1)
        assert {group.get(timeout=10).partition for _ in range(10)} == {1}
        group.commit()
        assert (position(client, "pausing.commit", topic), position(client, "pausing.commit", topic, 1)) == (400, 10)
        assert group.positions() == {f"{topic}/0": 400, f"{topic}/1": 10}


def test_what_was_handled_before_a_pause_is_committed_at_the_end(client, topic):
    with client.group("pausing.close", topic, auto_commit=True) as group:
        group.pause(topic, 1)
        take(group, 400)
        group.pause(topic, 0)
        group.resume(topic, 1)
        group.get(timeout=10)
    with client.group("pausing.close", topic) as group:
        group.pause(topic, 1)
        assert take(group, 1) == [400]


def test_after_a_pause_it_goes_on_behind_what_was_handled(client, topic):
    with client.group("pausing.resume", topic) as group:
        group.pause(topic, 1)
        take(group, 400)
        group.pause(topic, 0)
        group.resume(topic, 1)
        assert {group.get(timeout=10).partition for _ in range(10)} == {1}
        group.pause(topic, 1)
        group.resume(topic, 0)
        assert take(group, 100) == list(range(400, 500))


def test_the_message_in_work_does_not_come_again_after_a_pause(client, topic):
    seen = []
    with client.group("pausing.work", topic) as group:
        group.pause(topic, 1)
        for message in group:
            seen.append(message.offset)
            if len(seen) % 7 == 0:
                group.pause(topic, 0)
                group.resume(topic, 0)
            if len(seen) == 30:
                break
    assert seen == list(range(30))


def test_batches_that_were_handled_do_not_come_again_after_a_pause(client, topic):
    seen = []
    with client.group("pausing.rows", topic) as group:
        group.pause(topic, 1)
        for batch in group.batches():
            seen += batch.column("offset").to_pylist()
            group.pause(topic, 0)
            group.resume(topic, 0)
            if len(seen) == 500:
                break
    assert seen == list(range(500))


def test_what_workers_have_does_not_come_again_after_a_pause(client, topic):
    seen, begun, go_on = [], threading.Event(), threading.Event()

    def handle(message):
        seen.append(message.offset)
        if message.offset == 5:
            begun.set()
            assert go_on.wait(20)
        if message.offset == 499:
            group.stop()

    with client.group("pausing.run", topic) as group:
        group.pause(topic, 1)
        running = threading.Thread(target=group.run, args=(handle,), kwargs={"workers": 2})
        running.start()
        assert begun.wait(20)
        group.pause(topic, 0)
        group.resume(topic, 0)
        go_on.set()
        running.join(30)
        assert not running.is_alive()
    assert seen == list(range(500))


@pytest.mark.parametrize("order", [None, "key"])
def test_what_workers_finished_out_of_order_does_not_come_again_after_a_pause(client, topic, order, wait_until):
    """Nor when it is paused again before anything of it came."""
    with client.producer(topic) as producer:
        for number in range(500, 600):
            producer.send(str(number), key=str(number), partition=0)
    seen, begun, go_on = [], threading.Event(), threading.Event()

    def handle(message):
        seen.append(message.offset)
        if message.offset == 5:
            begun.set()
            assert go_on.wait(20)
        if len(seen) == 600:
            group.stop()

    with client.group(f"pausing.{order}", topic) as group:
        group.pause(topic, 1)
        running = threading.Thread(target=group.run, args=(handle,), kwargs={"workers": 2, "ordered_by": order})
        running.start()
        assert begun.wait(20)
        wait_until(lambda: len(seen) > 20, "others are finished beside it")
        group.pause(topic, 0)
        group.resume(topic, 0)
        go_on.set()
        for _ in range(3):
            group.pause(topic, 0)
            group.resume(topic, 0)
        running.join(30)
        assert not running.is_alive()
    assert sorted(seen) == list(range(600))
    assert position(client, f"pausing.{order}", topic) == 600


def test_what_is_resumed_while_another_member_has_it_comes_back_unpaused(client, shared, topic, wait_until):
    with client.group("pausing.away", topic, auto_commit=False) as group:
        group.pause()
        with stentor.connect(shared.url) as other, other.group("pausing.away", topic, auto_commit=False) as second:
            wait_until(lambda: len(group.assignment) == len(second.assignment) == 1, "each has one")
            (away,) = second.assignment
            assert away in group.paused
            group.resume(*away)
            assert group.paused == group.assignment
            with pytest.raises(PartitionNotFound):
                group.pause(*away)
            group.resume()
            assert group.paused == []
        wait_until(lambda: len(group.assignment) == 2, "it is back")
        assert {group.get(timeout=10).partition for _ in range(520)} == {0, 1}
        with pytest.raises(PartitionNotFound, match="does not belong"):
            group.resume(topic, 9)


def test_async_members_pause_alike(client, shared, topic):
    async def main():
        async with stentor.connect_async(shared.url) as other, other.group("pausing.async", topic) as group:
            await group.pause(topic, 1)
            first = [(await group.get(timeout=10)).offset for _ in range(100)]
            await group.pause(topic, 0)
            await group.resume(topic, 1)
            await group.get(timeout=10)
            await group.commit()
            await group.pause(topic, 1)
            await group.resume(topic, 0)
            return first + [(await group.get(timeout=10)).offset for _ in range(400)]

    assert asyncio.run(main()) == list(range(500))
    assert position(client, "pausing.async", topic) == 500


def test_a_stop_before_the_run_ends_it(client, topic):
    with client.group("pausing.stop", topic) as group:
        group.stop()
        group.run(lambda _: pytest.fail("it was to stop"))


def test_a_stop_before_the_run_ends_it_for_async_code(shared, topic):
    async def main():
        async with stentor.connect_async(shared.url) as other, other.group("pausing.stop", topic) as group:
            group.stop()
            await group.run(lambda _: pytest.fail("it was to stop"))

    asyncio.run(main())
