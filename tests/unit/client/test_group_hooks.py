"""What a member hears of partitions that come and go, and of what it lost."""

import asyncio
import threading
from itertools import count

import pytest

import stentor
from stentor.errors import InvalidArgument, StaleGeneration

names = count()


@pytest.fixture
def topic(client):
    """A topic with four partitions, and ten messages in each."""
    name = f"hooks.{next(names)}"
    client.create_topic(name, partitions=4)
    with client.producer(name) as producer:
        for number in range(40):
            producer.send(str(number), partition=number % 4)
    yield name
    client.delete_topic(name)


def take(group, many):
    return [group.get(timeout=10) for _ in range(many)]


def kinds(events):
    return sorted((event.kind, event.partition) for event in events)


def test_a_commit_names_every_partition_that_went_to_another_member(client, shared, topic, wait_until):
    with client.group("hooks.moved", topic, auto_commit=False) as group:
        take(group, 40)
        group.commit()
        with client.producer(topic) as producer:
            for partition in range(4):
                producer.send("more", partition=partition)
        messages = take(group, 4)
        assert {message.partition for message in messages} == {0, 1, 2, 3}
        iterating = threading.Thread(target=lambda: group.get(timeout=20))
        iterating.start()
        with stentor.connect(shared.url) as other, other.group("hooks.moved", topic, auto_commit=False) as second:
            wait_until(lambda: len(group.assignment) == len(second.assignment) == 2, "each has two")
            gone = sorted(f"{name}/{partition}" for name, partition in second.assignment)
            client.publish(topic, "for the thread", partition=group.assignment[0][1])
            iterating.join(20)
            with pytest.raises(StaleGeneration) as caught:
                group.commit()
            assert caught.value.detail["partitions"] == gone
            assert all(name in caught.value.message for name in gone)
            group.commit()  # it was said, and what remained is committed
            shares = client.describe_group("hooks.moved").partitions
            assert {each.partition: each.position for each in shares} == {
                partition: 10 if f"{topic}/{partition}" in gone else each.position
                for each in shares
                for partition in [each.partition]
            }
            assert sorted(each.position for each in shares)[:3] == [10, 10, 11]


def test_a_commit_after_a_long_pause_of_the_process_names_what_was_lost(client, shared, topic, wait_until, monkeypatch):
    """Others have its partitions by then. The loop stands still here as a stopped process does."""
    with client.group("hooks.paused", topic, auto_commit=False, silence=3) as group:
        take(group, 40)
        with stentor.connect(shared.url) as other:
            core, still = group._core.core, threading.Event()
            core.loop.call_soon_threadsafe(still.wait, 60)
            second = other.group("hooks.paused", topic, auto_commit=False)
            wait_until(lambda: len(second.assignment) == 4, "the other has everything")
            still.set()
            with pytest.raises(StaleGeneration) as caught:
                group.commit()
            assert caught.value.detail["partitions"] == [f"{topic}/{partition}" for partition in range(4)]
            second.close()
        wait_until(lambda: sum(event.kind == "lost" for event in group.events()) == 4, "it heard of each")
        assert sorted(message.offset for message in take(group, 40)) == sorted(list(range(10)) * 4)
        group.commit()


def test_what_was_reported_as_lost_is_committed_only_once_it_was_handled_again(client, shared, topic, wait_until):
    """An application that undid what it had done of it would miss these messages."""
    with client.group("hooks.again", topic, auto_commit=False, silence=3) as group:
        take(group, 40)
        with stentor.connect(shared.url) as other:
            core, still = group._core.core, threading.Event()
            core.loop.call_soon_threadsafe(still.wait, 60)
            second = other.group("hooks.again", topic, auto_commit=False)
            wait_until(lambda: len(second.assignment) == 4, "the other has everything")
            still.set()
            with pytest.raises(StaleGeneration):
                group.commit()
            second.close()
        wait_until(lambda: len(group.assignment) == 4, "it has everything again")
        group.commit()
        shares = client.describe_group("hooks.again").partitions
        assert {each.position or 0 for each in shares} == {0}
        assert set(group.positions().values()) == {0}
        take(group, 40)
        group.commit()
        shares = client.describe_group("hooks.again").partitions
        assert {each.position for each in shares} == {10}


def test_a_lease_that_ends_and_is_given_again_loses_nothing(client, topic, wait_until):
    with client.group("hooks.lapse", topic, auto_commit=False) as group:
        take(group, 40)
        group.events()

        async def lapse():
            group._core.tie.life.lease_ends = 0.0
            group._core.tie._look_at_lease()
            group._core.tie._news.set()

        group._core.core.wait_for(lapse())
        group.commit()
        assert client.describe_group("hooks.lapse").lag == 0
        assert group.events() == []


def test_hooks_hear_of_partitions_that_come_and_go(client, shared, topic, wait_until):
    first, second = [], []
    with client.group("hooks.both", topic, on_assigned=first.append, on_revoked=first.append) as group:
        wait_until(lambda: len(first) == 4, "it has everything")
        assert kinds(first) == [("assigned", partition) for partition in range(4)]
        assert {event.next_offset for event in first} == {0}
        take(group, 40)
        group.commit()
        with stentor.connect(shared.url) as other:
            joined = other.group("hooks.both", topic, on_assigned=second.append)
            wait_until(lambda: len(second) == 2, "each has two")
            revoked = [event for event in first if event.kind == "revoked"]
            assert kinds(revoked) == sorted(("revoked", event.partition) for event in second)
            assert {(event.first_offset, event.next_offset) for event in revoked} == {(10, 10)}
            assert {event.next_offset for event in second} == {10}
            joined.close()
        wait_until(lambda: len(group.assignment) == 4, "it has everything again")
        assert kinds(group.events()) == kinds(first)
    assert sum(event.kind == "revoked" for event in first) == 6


def test_a_hook_commits_what_is_finished_before_its_partition_goes(client, shared, topic, wait_until):
    """What is in work beside it is not finished by that."""
    with client.group("hooks.commit", topic, auto_commit=False, on_revoked=lambda _: group.commit()) as group:
        for message in group:
            if message.offset == 5:
                break
        held = threading.Thread(target=lambda: [None for _ in group])
        held.start()
        wait_until(lambda: sum(group.positions().values()) == 40, "all but what is in work is finished")
        with stentor.connect(shared.url) as other, other.group("hooks.commit", topic, auto_commit=False) as second:
            wait_until(lambda: len(second.assignment) == 2, "each has two")
            shares = {each.partition: each.position for each in client.describe_group("hooks.commit").partitions}
            assert {shares[partition] for _, partition in second.assignment} == {10}
        group.close()
        held.join(20)


def test_a_hook_that_fails_stops_nothing(client, topic, caplog):
    def fail(event):
        raise ValueError("broken hook")

    with client.group("hooks.fail", topic, on_assigned=fail, on_revoked=fail) as group:
        assert len(take(group, 40)) == 40
    assert "broken hook" in caplog.text


def test_a_slow_hook_stops_no_heartbeat(client, topic, wait_until):
    go_on, called = threading.Event(), threading.Event()

    def slow(event):
        called.set()
        go_on.wait(20)

    with client.group("hooks.slow", topic, on_assigned=slow) as group:
        assert called.wait(10)
        generation = client.describe_group("hooks.slow").generation
        assert len(client.describe_group("hooks.slow").members) == 1
        go_on.set()
        take(group, 40)
        assert client.describe_group("hooks.slow").generation == generation


def test_hooks_of_async_members_may_be_coroutines(shared, client, topic):
    heard = []

    async def hear(event):
        await asyncio.sleep(0)
        heard.append(event)

    async def main():
        async with (
            stentor.connect_async(shared.url) as other,
            other.group("hooks.async", topic, on_assigned=hear, on_revoked=heard.append) as group,
        ):
            for _ in range(40):
                await group.get(timeout=10)

    asyncio.run(main())
    assert kinds(heard) == kinds(
        [stentor.Event(kind, topic, partition) for kind in ("assigned", "revoked") for partition in range(4)]
    )


def test_a_hook_that_is_no_function_is_refused(client, topic):
    with pytest.raises(InvalidArgument, match="on_revoked is a function, not int"):
        client.group("hooks.wrong", topic, on_revoked=7)
