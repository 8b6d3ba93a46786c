"""A queue whose consumers and heads are killed: every job is done or a dead letter, none is in two hands at once."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict

import pytest
from tests.cluster.queue_work import ATTEMPTS, LEASE_S, QUEUE, JobWorker

pytestmark = pytest.mark.slow


def put(cluster, count):
    with cluster.client(timeout=60) as client:
        client.create_topic(
            QUEUE,
            kind="queue",
            partitions=2,
            ordered_by="key",
            lease_s=LEASE_S,
            max_attempts=ATTEMPTS,
            retry_delay_ms=100,
        )
        with client.queue(QUEUE) as queue:
            for start in range(0, count, 5_000):
                numbers = range(start, min(count, start + 5_000))
                queue.put_many([b"%d" % n for n in numbers], [b"k%d" % (n % 199) for n in numbers])


def left(cluster):
    with cluster.client(timeout=60) as client:
        found = client.describe_queue(QUEUE)
        return found.waiting + found.held + sum(each.dead for each in found.partitions), found


def work_off(cluster, folder, count, *, consumers, heads_killed, pause_s, seconds):
    """Let consumers work, kill some of them and some heads, until every job has ended."""
    rng = random.Random(count)
    workers, alive = [], []

    def add():
        worker = JobWorker(cluster, folder, f"c{len(workers)}", pause_s)
        workers.append(worker)
        alive.append(worker)

    for _ in range(consumers):
        add()
    deadline, kills, next_kill = time.monotonic() + seconds, heads_killed, 0.0
    killed = []
    try:
        while True:
            open_jobs, found = left(cluster)
            if not open_jobs:
                assert len(killed) == heads_killed, "it was over before the faults"
                return workers, found
            assert time.monotonic() < deadline, found
            if time.monotonic() > next_kill and found.finished > count / 20:
                next_kill = time.monotonic() + rng.uniform(0.5, 2)
                victim = alive.pop(rng.randrange(len(alive)))
                victim.kill()
                add()
                if kills:
                    kills -= 1
                    head = found.partitions[0].head
                    cluster.kill(head)
                    cluster.restart(head)
                    killed.append(head)
            threading.Event().wait(0.1)
    finally:
        for worker in alive:
            worker.end()


def check(workers, found, count, letters):
    """No job is lost, in work twice within its lease, or out of its key's turn."""
    assert found.finished + found.died == count
    assert len(letters) == found.died
    begun = defaultdict(list)
    done = set()
    for worker in workers:
        for line in worker.lines():
            if line.what == "begun":
                begun[line.place].append((line.fence, line.at, line.consumer))
                assert line.attempt <= ATTEMPTS
            elif line.what == "done":
                done.add(line.place)
    assert len(begun) == count
    for place, attempts in begun.items():
        attempts.sort()
        fences = [fence for fence, _, _ in attempts]
        assert len(set(fences)) == len(fences), (place, attempts)
        for (_, before, one), (_, after, other) in itertools.pairwise(attempts):
            assert after > before, (place, one, other)
    assert all(place in done or place in letters for place in begun)


def letters_of(cluster):
    with cluster.client(timeout=60) as client:
        if not any(topic.name == f"{QUEUE}.dead" for topic in client.topics()):
            return {}
        found = {}
        for letter in client.read(f"{QUEUE}.dead"):
            said = dict(letter.headers)
            place = int(said["stentor-dead-partition"]), int(said["stentor-dead-offset"])
            assert place not in found, "a dead letter was written twice"
            found[place] = int(said["stentor-dead-attempts"])
        return found


@pytest.mark.timeout(180)
def test_consumers_and_a_head_are_killed(three, tmp_path):
    count = 1_000
    put(three, count)
    workers, found = work_off(three, tmp_path, count, consumers=3, heads_killed=1, pause_s=0.01, seconds=120)
    check(workers, found, count, letters_of(three))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_thousand_jobs_and_six_consumers(three, tmp_path):
    count = 200_000
    put(three, count)
    workers, found = work_off(three, tmp_path, count, consumers=6, heads_killed=2, pause_s=0.0, seconds=1500)
    check(workers, found, count, letters_of(three))
