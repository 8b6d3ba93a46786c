"""A group of processes whose members and brokers die: every message is handled, and no position goes back."""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from tests.cluster.group_work import (
    GROUP,
    OUTPUTS,
    PARTITIONS,
    TOPIC,
    TRANSACTIONS,
    Feed,
    Worker,
    longest_pause,
    moves,
    owners_by_generation,
)

from stentor.core.cursors import partition_of
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import StentorError

pytestmark = pytest.mark.slow

TAKEOVER_S = 3.0
"""From the death of a member until others handle its partitions: 2 s of grace, and what it takes to move."""

UNMOVED_PAUSE_S = 1.5
"""Messages come all the time; a machine of two cores that starts processes meanwhile needs a moment now and then."""


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

    def __init__(self, cluster, folder, pause_s=0.02):
        self.cluster, self.folder = cluster, folder
        self.notes, self.kills = [], []  # what was done when; how long killed members' partitions took
        self.workers = []
        self.feed, self.watch = Feed(cluster, pause_s), Watch(cluster)
        self.client = cluster.client(timeout=30)
        self.took = {}

    def add(self, **options):
        worker = Worker(self.cluster, self.folder, f"w{len(self.workers)}", **options)
        self.workers.append(worker)
        return worker

    def note(self, what):
        self.notes.append((time.monotonic(), what))

    def phases(self):
        """What was done from when to when."""
        return [(what, begin, end) for (begin, what), (end, _) in pairwise(self.notes)]

    def gentle_moves(self):
        """How long partitions paused that moved because somebody left or came."""
        found = []
        for what, begin, end in self.phases():
            if what in ("stop", "add"):
                found += [each.pause_s for each in moves(self.handled()) if begin < each.at < end]
        return found

    def unmoved_pauses(self):
        """Partitions whose owner stayed, that paused while others moved. Brokers that die are another matter."""
        handled, found = self.handled(), []
        changed, fed = moves(handled), self.feed.acknowledged_at
        for what, begin, end in self.phases():
            if what in ("head", "quiet"):
                continue
            for partition in range(PARTITIONS):
                if not any(each.partition == partition and begin - 5 < each.at < end + 5 for each in changed):
                    pause = longest_pause(handled, fed[partition], partition, begin, end)
                    found += [(what, partition, round(pause, 2))] if pause > UNMOVED_PAUSE_S else []
        return found

    def report(self):
        gentle, done = sorted(self.gentle_moves()), Counter(what for _, what in self.notes)
        print(
            f"{dict(done)}; {len(gentle)} moves: median {statistics.median(gentle):.2f} s, longest {gentle[-1]:.2f} s"
        )
        if self.kills:
            middle, most = statistics.median(self.kills), max(self.kills)
            print(f"{len(self.kills)} killed: median {middle:.2f} s, {most:.2f} s at most")

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


def test_transactions_send_one_output_for_each_message_whoever_dies(three, tmp_path):
    with Scene(three, tmp_path) as scene:
        scene.client.create_topic(OUTPUTS, partitions=2)
        for number in range(3):
            scene.add(workers=TRANSACTIONS, silence=6.0)  # a new head may not know who is dead
            scene.cluster.wait_for(lambda: len(outputs(scene)) > 50 * number, 30, "outputs")  # noqa: B023 - at once
        scene.workers[0].signal(signal.SIGKILL)
        scene.add(workers=TRANSACTIONS, silence=6.0)
        scene.kill_the_head()
        scene.workers[1].signal(signal.SIGKILL)
        made = len(outputs(scene))
        scene.cluster.wait_for(lambda: len(outputs(scene)) > made + 100, 30, "more outputs")
        scene.feed.stopped.set()
        scene.feed.join(90)
        scene.cluster.wait_for(lambda: scene.feed.sent <= set(outputs(scene)), 60, "an output for every message")
    assert max(outputs(scene).values()) == 1
    assert scene.watch.back == []


def outputs(scene):
    """The messages that outputs were made of, and how many each has."""
    with scene.cluster.client(timeout=30) as client:
        found = [message.value.split() for message in client.read(OUTPUTS)]
    return Counter((int(partition), int(offset)) for partition, offset, _ in found)


def test_a_topic_lists_groups_whoever_leads_them(three):
    names = {f"reader-{number}" for number in range(8)}  # by chance, not all of them are led by one broker
    with three.client(timeout=30) as client:
        client.create_topic("listed")
        for name in names:
            client.move_cursor("listed", name, {0: 0})
        deadline = time.monotonic() + 30
        while set(client.describe_topic("listed").groups) != names:  # a busy head may be left out once
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
        for name in names:
            client.delete_cursor("listed", name)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_group_goes_on_for_minutes(three, tmp_path):
    """Members are killed, paused, added, removed, brokers killed, under load. STENTOR_GROUP_MINUTES says how long."""
    chance, minutes = random.Random(15), float(os.environ.get("STENTOR_GROUP_MINUTES", "5"))
    with Scene(three, tmp_path, pause_s=0.004) as scene:
        alive = [scene.add(silence=4.0, workers=number % 2 * 2) for number in range(4)]
        scene.wait_for_shares(*alive)
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            worker = chance.choice(alive)
            what = chance.choice(["kill", "kill", "stop", "stop", "pause", "head"])
            scene.note(what)
            match what:
                case "kill":
                    lost = scene.partitions_of(worker)
                    worker.signal(signal.SIGKILL)
                    alive.remove(worker)
                    scene.kills.append(scene.wait_for_takeover(lost, time.monotonic(), worker))
                    if scene.kills[-1] > TAKEOVER_S:
                        print(f"{scene.kills[-1]:.2f} s after {[what for _, what in scene.notes[-8:]]}")
                case "stop":
                    worker.signal(signal.SIGTERM)
                    alive.remove(worker)
                case "pause":
                    worker.signal(signal.SIGSTOP)
                    scene.wait_for_shares(*(each for each in alive if each is not worker))
                    worker.signal(signal.SIGCONT)
                case "head":
                    scene.kill_the_head()
            scene.wait_for_shares(*alive)
            if what in ("kill", "stop"):
                scene.note("add")
                alive.append(scene.add(silence=4.0, workers=chance.choice([0, 2])))
                scene.wait_for_shares(*alive)
            scene.note("quiet")
    check(scene)
    scene.report()
    owners = owners_by_generation(scene.handled())
    assert {place: found for place, found in owners.items() if len(found) > 1} == {}
    assert scene.unmoved_pauses() == [], "only what moves pauses"
    assert statistics.median(scene.gentle_moves()) < 1.0
    assert max(scene.kills) < TAKEOVER_S


def check(scene):
    """What must hold, whoever died."""
    handled = scene.handled()
    repeated = len(handled) - len({(one.partition, one.offset) for one in handled})
    print({name: round(seconds, 2) for name, seconds in scene.took.items()}, f"{repeated} of {len(handled)} repeated")
    assert scene.missing() == set()
    assert scene.watch.back == []
    assert repeated < len(handled) / 4, "only what was not committed when somebody died"
