"""A group of processes whose members and brokers die: every message is handled, and no position goes back."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter

import pytest
from tests.cluster.group_work import GROUP, PARTITIONS, TOPIC, Feed, Worker

from stentor.core.cursors import partition_of
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import StentorError

pytestmark = pytest.mark.slow


class Watch(threading.Thread):
    """Looks at the group all the time: committed positions must never go back."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster, self.stopped = cluster, threading.Event()
        self.positions, self.back = {}, []

    def run(self):
        with self.cluster.client(timeout=20) as client:
            while not self.stopped.wait(0.2):
                try:
                    found = client.describe_group(GROUP)
                except StentorError:
                    continue
                for each in found.partitions:
                    position = each.position or 0
                    if position < self.positions.get(each.partition, 0):
                        self.back.append((each.partition, self.positions[each.partition], position))
                    self.positions[each.partition] = position


class Scene:
    """The cluster, the members, and what they have done."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.workers = []
        self.feed, self.watch = Feed(cluster), Watch(cluster)
        self.client = cluster.client(timeout=30)
        self.took = {}

    def add(self, **options):
        worker = Worker(self.cluster, self.folder, f"w{len(self.workers)}", **options)
        self.workers.append(worker)
        return worker

    def shares(self):
        """How many partitions each member has, by the name of its client."""
        try:
            found = self.client.describe_group(GROUP, timeout=5)
        except StentorError:
            return Counter()
        return Counter({member.name: len(member.partitions) for member in found.members})

    def wait_for_shares(self, *members, timeout=30):
        """Until exactly these members have all partitions, evenly."""
        began, names = time.monotonic(), {worker.name for worker in members}

        def even():
            shares = self.shares()
            return (
                shares.keys() == names
                and sum(shares.values()) == PARTITIONS
                and max(shares.values()) - min(shares.values()) <= 1
            )

        self.cluster.wait_for(even, timeout, f"{sorted(names)} with even shares, not {self.shares()}")
        return time.monotonic() - began

    def handled(self):
        return sorted(one for worker in self.workers for one in worker.handled())

    def partitions_of(self, worker):
        found = self.client.describe_group(GROUP)
        return {
            partition for member in found.members if member.name == worker.name for _, partition in member.partitions
        }

    def wait_for_takeover(self, partitions, before, but):
        """Until all of these are handled by somebody else: seconds since `before`."""

        def taken():
            others = {one.partition for one in self.handled() if one.at > before and one.member != but.name}
            return partitions <= others

        self.cluster.wait_for(taken, 30, f"partitions {partitions} handled by others")
        first = {}
        for one in self.handled():
            if one.at > before and one.member != but.name and one.partition in partitions:
                first.setdefault(one.partition, one.at)
        return max(first.values()) - before

    def kill_the_head(self):
        """The broker that coordinates the group dies, and comes back."""
        head = self.cluster.head(CURSORS_TOPIC, partition_of(GROUP, 8))
        self.cluster.kill(head)
        at, everything = time.monotonic(), set(range(PARTITIONS))
        self.cluster.wait_for(
            lambda: {one.partition for one in self.handled() if one.at > at + 1} == everything, 40, "all go on"
        )
        self.cluster.restart(head)

    def wait_for_all(self):
        """Until everything that was acknowledged is handled."""
        self.cluster.wait_for(lambda: not self.missing(), 60, "every message is handled")

    def missing(self):
        return self.feed.sent - {(one.partition, one.offset) for one in self.handled()}

    def __enter__(self):
        self.client.create_topic(TOPIC, partitions=PARTITIONS)
        self.feed.start()
        self.watch.start()
        return self

    def __exit__(self, kind, *_):
        for thread in (self.feed, self.watch):
            thread.stopped.set()
        for thread in (self.feed, self.watch):
            thread.join(90)
        try:
            if kind is None:
                self.wait_for_all()
        finally:
            for worker in self.workers:
                worker.end()
            self.client.close()


def test_a_group_goes_on_whoever_dies(three, tmp_path):
    with Scene(three, tmp_path) as scene:
        workers = [scene.add() for _ in range(3)] + [scene.add(silence=3.0)]
        scene.wait_for_shares(*workers)

        killed, lost, at = workers[0], scene.partitions_of(workers[0]), time.monotonic()
        killed.signal(signal.SIGKILL)
        scene.took["killed"] = scene.wait_for_takeover(lost, at, killed)
        scene.wait_for_shares(*workers[1:])

        added = scene.add()
        scene.wait_for_shares(*workers[1:], added)

        workers[1].signal(signal.SIGTERM)
        scene.took["left"] = scene.wait_for_shares(*workers[2:], added)

        paused, lost, at = workers[3], scene.partitions_of(workers[3]), time.monotonic()
        paused.signal(signal.SIGSTOP)
        scene.took["paused"] = scene.wait_for_takeover(lost, at, paused)
        paused.signal(signal.SIGCONT)
        scene.wait_for_shares(*workers[2:], added)

        scene.kill_the_head()
        scene.wait_for_shares(*workers[2:], added)
    check(scene)
    assert scene.took["killed"] < 10, "after 2 s of grace; the rest is this machine's"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_group_goes_on_for_minutes(three, tmp_path):
    chance, minutes = random.Random(15), 5
    with Scene(three, tmp_path) as scene:
        alive = [scene.add(silence=4.0) for _ in range(4)]
        scene.wait_for_shares(*alive)
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            worker = chance.choice(alive)
            match chance.choice(["kill", "stop", "pause", "head"]):
                case "kill" | "stop" as how:
                    worker.signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
                    alive.remove(worker)
                    scene.wait_for_shares(*alive)
                    alive.append(scene.add(silence=4.0))
                case "pause":
                    worker.signal(signal.SIGSTOP)
                    scene.wait_for_shares(*(each for each in alive if each is not worker))
                    worker.signal(signal.SIGCONT)
                case "head":
                    scene.kill_the_head()
            scene.wait_for_shares(*alive)
    check(scene)


def check(scene):
    """What must hold, whoever died."""
    handled = scene.handled()
    repeated = len(handled) - len({(one.partition, one.offset) for one in handled})
    print({name: round(seconds, 2) for name, seconds in scene.took.items()}, f"{repeated} of {len(handled)} repeated")
    assert scene.missing() == set()
    assert scene.watch.back == []
    assert repeated < len(handled) / 4, "only what was not committed when somebody died"
