"""Which worker gets what: the order of keys and partitions is kept, whatever comes back."""

import random
from collections import Counter, deque

import pytest

from stentor.client.group_unfinished import Unfinished
from stentor.client.message import Block, Message
from stentor.client.workers_plan import WorkPlan

BLOCKS = [Block("t", partition, 0, 0, None) for partition in range(3)]


def messages(partition, first, count, keys=4):
    return [
        Message(f"k{offset % keys}".encode(), b"", offset, BLOCKS[partition]) for offset in range(first, first + count)
    ]


def offsets(parcel):
    return [message.offset for message in parcel.messages]


def test_a_partition_is_with_one_worker_at_a_time():
    plan = WorkPlan("partition", 2)
    plan.add(messages(0, 0, 10))
    first = plan.cut(4)
    assert offsets(first) == [0, 1, 2, 3]
    assert plan.cut(4) is None, "for another worker"
    second = plan.cut(4, behind=first)
    assert offsets(second) == [4, 5, 6, 7], "the same worker may have the next"
    plan.release(first)
    assert plan.cut(4) is None
    plan.release(second)
    assert offsets(plan.cut(4)) == [8, 9]


def test_without_order_everybody_gets_a_share():
    plan = WorkPlan(None, 4)
    plan.add(messages(0, 0, 8))
    assert [len(plan.cut(100).messages) for _ in range(4)] == [2, 2, 1, 1]


def test_messages_without_a_key_spread():
    plan = WorkPlan("key", 2)
    plan.add([Message(None, b"", offset, BLOCKS[0]) for offset in range(32)])
    assert [len(plan.cut(100).messages) for _ in range(32)] == [1] * 32


def test_what_comes_back_comes_first():
    plan = WorkPlan("partition", 2)
    plan.add(messages(0, 0, 10))
    first = plan.cut(3)
    second = plan.cut(3, behind=first)
    for parcel, rest in ((second, second.messages), (first, first.messages[1:])):  # the latest first
        plan.put_back(parcel, rest)
        plan.release(parcel)
    assert offsets(plan.cut(100)) == list(range(1, 10))


def test_what_nobody_wants_is_forgotten():
    plan = WorkPlan("key", 2)
    plan.add(messages(0, 0, 10))
    plan.add(messages(1, 0, 5))
    parcel = plan.cut(1)
    gone = plan.forget("t", 0)
    assert len(gone) == 9
    assert plan.put_back(parcel, parcel.messages) == parcel.messages
    plan.release(parcel)
    left = []
    while (next_one := plan.cut(100)) is not None:
        left += next_one.messages
    assert {message.partition for message in left} == {1}
    assert plan.waiting == 0


@pytest.mark.parametrize("ordered_by", ["key", "partition", None])
@pytest.mark.parametrize("seed", range(10))
def test_order_is_kept_whatever_happens(ordered_by, seed):
    """Workers finish, give back and die at random: nothing is lost, and nothing overtakes."""
    chance, plan, workers = random.Random(seed), WorkPlan(ordered_by, 3), [deque() for _ in range(3)]
    taken, done, last = Counter(), [], {}
    while len(done) < 600:
        partition = chance.randrange(3)
        if taken[partition] < 200 and chance.random() < 0.3:
            count = min(chance.randrange(1, 40), 200 - taken[partition])
            plan.add(messages(partition, taken[partition], count))
            taken[partition] += count
        worker = chance.choice(workers)
        if len(worker) < 2:
            parcel = plan.cut(chance.randrange(1, 20), worker[-1] if worker else None)
            if parcel is not None:
                worker.append(parcel)
        check_alone(workers, ordered_by)
        if worker and chance.random() < 0.5:
            finished = chance.randrange(len(worker[0].messages) + 1)
            done += worker[0].messages[:finished]
            if chance.random() < 0.2:  # it dies, or gives back: everything else returns, the latest first
                for parcel in reversed(list(worker)[1:]):
                    plan.put_back(parcel, parcel.messages)
                    plan.release(parcel)
                plan.put_back(worker[0], worker[0].messages[finished:])
                plan.release(worker[0])
                worker.clear()
            else:
                done += worker[0].messages[finished:]
                plan.release(worker.popleft())
    assert len({(message.partition, message.offset) for message in done}) == 600
    for message in done:
        name = {"key": (message.partition, message.key), "partition": message.partition, None: object()}[ordered_by]
        assert message.offset > last.get(name, -1)
        last[name] = message.offset


def check_alone(workers, ordered_by):
    """Nothing that must wait for another is with two workers."""
    if ordered_by is None:
        return
    owners = {}
    for index, worker in enumerate(workers):
        for parcel in worker:
            for message in parcel.messages:
                name = (message.partition, message.key) if ordered_by == "key" else message.partition
                assert owners.setdefault(name, index) == index


@pytest.mark.parametrize("seed", range(20))
def test_the_position_is_the_lowest_unfinished(seed):
    chance, unfinished = random.Random(seed), Unfinished()
    open_ones, next_offset, pool = set(), 0, []
    for _ in range(200):
        if chance.random() < 0.4:
            found = []
            for _ in range(chance.randrange(1, 12)):
                next_offset += 1 if chance.random() < 0.8 else chance.randrange(1, 4)  # compaction leaves gaps
                found.append(Message(None, b"", next_offset, BLOCKS[0]))
            unfinished.took(found)
            open_ones.update(message.offset for message in found)
            pool += found
        elif pool:
            some = sorted(chance.sample(pool, chance.randrange(1, len(pool) + 1)), key=lambda each: each.offset)
            if chance.random() < 0.5:
                some = pool[: chance.randrange(1, len(pool) + 1)]
            unfinished.finish(some)
            if chance.random() < 0.2:
                unfinished.finish(some)  # said twice
            open_ones -= {message.offset for message in some}
            pool = [message for message in pool if message.offset in open_ones]
        assert unfinished.lowest == min(open_ones, default=None)
