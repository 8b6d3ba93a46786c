"""Long requests: a piece of each connection's first walk in turn (C35)."""

import asyncio

import msgspec
import pytest

from stentor.broker.environment import SystemClock
from stentor.broker.failures import Failures
from stentor.broker.long_requests import LongRequests, Shared, encoding, sorting
from stentor.broker.loop_watch import LoopWatch
from stentor.broker.slices import SLICE_S, Slices
from stentor.errors import LimitExceeded
from stentor.wire import group_messages, messages, queue_messages


class Clock(SystemClock):
    """A clock that only work moves."""

    now = 100.0

    def monotonic(self):
        return self.now


class Broker:
    def __init__(self):
        self.clock = Clock()
        self.done = []
        self.closed = []
        loop = asyncio.get_running_loop()
        self.failures = Failures(loop, self.clock.monotonic)
        slices = Slices(loop, self.clock.monotonic, self.failures)
        self.long_requests = LongRequests(loop, slices, LoopWatch(loop, self.clock))

    def walk(self, name, pieces=3, took_s=0.0):
        try:
            for piece in range(pieces):
                self.clock.now += took_s
                self.done.append(f"{name}{piece}")
                yield
        finally:
            self.closed.append(name)
        return name

    def ask(self, whose, name, **how):
        return asyncio.create_task(self.long_requests.walk(whose, self.walk(name, **how)))


def test_a_walk_that_fits_into_this_turn_is_over_at_once():
    async def ask():
        broker = Broker()
        asked = broker.ask("a", "x")
        await asyncio.sleep(0)
        assert asked.done()
        return asked.result()

    assert asyncio.run(ask()) == "x"


def test_connections_take_turns_and_one_walk_of_each_is_under_way():
    async def ask():
        broker = Broker()
        asked = [broker.ask(whose, name, took_s=SLICE_S) for whose, name in (("a", "x"), ("a", "y"), ("b", "z"))]
        assert await asyncio.gather(*asked) == ["x", "y", "z"]
        return broker.done

    done = asyncio.run(ask())
    assert done.index("x2") < done.index("y0")
    assert done.index("z0") < done.index("x2")
    assert done.index("z2") < done.index("y1")


def test_other_work_of_the_loop_goes_on_between_pieces():
    async def ask():
        broker = Broker()
        asked = [broker.ask(whose, "x", pieces=10, took_s=SLICE_S) for whose in range(10)]
        turns = 0
        while not all(task.done() for task in asked):
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(ask()) >= 100


def test_who_is_gone_is_left_out():
    async def ask():
        broker = Broker()
        first = broker.ask("a", "x", took_s=SLICE_S)
        second = broker.ask("a", "y", took_s=SLICE_S)
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "y"
        return broker

    broker = asyncio.run(ask())
    assert broker.done == ["x0", "y0", "y1", "y2"]
    assert broker.closed == ["x", "y"]


def test_what_fails_is_told_to_who_asked_and_nobody_else():
    def fail():
        yield
        raise LimitExceeded("too much")

    async def ask():
        broker = Broker()
        failing = asyncio.create_task(broker.long_requests.walk("a", fail()))
        other = broker.ask("b", "x")
        with pytest.raises(LimitExceeded, match="too much"):
            await failing
        assert await other == "x"
        assert await broker.ask("a", "y") == "y"
        assert broker.failures.count == 0

    asyncio.run(ask())


# --- answers that are shared --------------------------------------------------------------------


def test_those_who_ask_together_share_an_answer_and_those_who_come_later_the_next_one():
    """A later one must show what happened before it was asked for."""

    async def ask():
        made, begun, go_on = [], asyncio.Event(), asyncio.Event()

        async def make():
            made.append(len(made) + 1)
            begun.set()
            await go_on.wait()
            return made[-1]

        shared = Shared(make)
        first = [asyncio.create_task(shared.get()) for _ in range(3)]
        await begun.wait()
        later = [asyncio.create_task(shared.get()) for _ in range(3)]
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*first) == [1, 1, 1]
        assert await asyncio.gather(*later) == [2, 2, 2]
        assert await shared.get() == 3

    asyncio.run(ask())


def test_a_shared_answer_that_fails_fails_for_those_who_share_it():
    async def ask():
        failing = [True]

        async def make():
            if failing:
                raise LimitExceeded("too much")
            return 1

        shared = Shared(make)
        found = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
        assert [type(each) for each in found] == [LimitExceeded] * 2
        failing.clear()
        assert await shared.get() == 1

    asyncio.run(ask())


def test_a_shared_answer_is_made_though_one_who_asked_is_gone():
    async def ask():
        go_on = asyncio.Event()

        async def make():
            await go_on.wait()
            return 1

        shared = Shared(make)
        gone, stays = (asyncio.create_task(shared.get()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        go_on.set()
        assert await stays == 1

    asyncio.run(ask())


# --- parts of walks -----------------------------------------------------------------------------


def whole(walking):
    """What a walk returns, and in how many pieces."""
    pieces = 0
    while True:
        try:
            next(walking)
        except StopIteration as end:
            return end.value, pieces
        pieces += 1


@pytest.mark.parametrize("count", [0, 1, 2_048, 10_000])
def test_names_are_sorted_in_pieces(count):
    names = [f"name {number * 7919 % 10_007}" for number in range(count)]
    found, pieces = whole(sorting(names))
    assert found == sorted(names)
    assert pieces >= count / 2_048


def test_an_answer_is_encoded_in_pieces_as_it_would_be_at_once():
    groups = [group_messages.GroupState(name=f"g{number}", generation=(1, number), head="b") for number in range(1_000)]
    for answer in (
        group_messages.GroupList(groups=groups),
        group_messages.GroupList(groups=[]),
        group_messages.GroupDescribed(
            group=msgspec.structs.replace(
                groups[0],
                partitions=[
                    group_messages.GroupShare(topic="t", topic_id=1, partition=number) for number in range(1_000)
                ],
            )
        ),
        messages.Statistics(statistics={"partitions": [{"topic": "t"}] * 1_000, "broker": {"id": "b"}}),
    ):
        found, pieces = whole(encoding(answer))
        assert found == messages.encode(answer)
        assert pieces >= 30 or answer == group_messages.GroupList(groups=[])


# --- the requests of a broker -------------------------------------------------------------------


@pytest.fixture
def pieces(monkeypatch):
    """How many pieces of long requests a broker has done."""
    done = [0]
    go_on = LongRequests._go_on

    def counting(self):
        done[0] += 1
        go_on(self)

    monkeypatch.setattr(LongRequests, "_go_on", counting)
    return done


def ask(client, request):
    async def asked():
        return await (await client._core.ready_link()).request(request)

    return client._core.wait_for(asked())


def test_topics_are_listed_described_and_routed_in_pieces(client, pieces):
    client.create_topic("wide", partitions=320)
    client.create_topic("narrow")
    for request in (messages.ListTopics(), messages.DescribeTopic(name="wide"), messages.WatchRoutes()):
        pieces[0] = 0
        found = ask(client, request)
        topics = [found.topic] if isinstance(request, messages.DescribeTopic) else found.topics
        assert [len(topic.partitions) for topic in topics if topic.name == "wide"] == [320]
        assert pieces[0] >= (2 if isinstance(request, messages.WatchRoutes) else 10)


def test_routes_that_are_encoded_for_all_follow_what_changes(client):
    def routes():
        topics = ask(client, messages.WatchRoutes()).topics
        return {topic.name: (len(topic.partitions), topic.settings.retention_bytes) for topic in topics}

    client.create_topic("a", partitions=2)
    client.create_topic("b")
    assert routes() == {"a": (2, None), "b": (1, None)}
    client.alter_topic("a", retention_bytes=10_000_000)
    client.delete_topic("b")
    assert routes() == {"a": (2, 10_000_000)}
    client.create_topic("b", partitions=4)
    assert routes() == {"a": (2, 10_000_000), "b": (4, None)}


def test_groups_are_listed_in_pieces_and_found_by_their_topic(client, pieces):
    client.create_topic("orders")
    client.create_topic("other")
    for number in range(100):
        topics = ["orders"] if number % 2 else ["other.>", "orders" if number == 50 else "other"]
        ask(client, messages.GroupHeartbeat(group=f"g{number}", member="m", number=1, topics=topics))
    pieces[0] = 0
    found = ask(client, messages.ListGroups()).groups
    assert [group.name for group in found] == sorted(f"g{number}" for number in range(100))
    assert all(len(group.members) == 1 for group in found)
    assert pieces[0] >= 6
    pieces[0] = 0
    readers = ask(client, messages.DescribeTopic(name="orders")).topic.groups
    assert readers == sorted([*(f"g{number}" for number in range(1, 100, 2)), "g50"])
    assert pieces[0] >= 4


def test_jobs_are_described_in_pieces(client, pieces):
    client.create_topic("jobs", kind="queue")
    with client.queue("jobs") as queue:
        queue.put_many([b"job"] * 200, delay=1_000)
    request = queue_messages.DescribeQueue(topic_id=client.describe_topic("jobs").id, partition=0, jobs_max=150)
    pieces[0] = 0
    found = ask(client, request)
    assert (found.waiting, len(found.jobs)) == (200, 150)
    assert pieces[0] >= 5
