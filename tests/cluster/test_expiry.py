"""Keys that expire, and keys of a session, when owners, heads and connections die."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.slow

GRACE_S = 3.0
FAILOVER_S = 10.0  # far more than it takes; the machine may be busy
LATE_S = 2.0  # beats, commits, and a busy machine

OWNER = """
import sys, threading, stentor
with stentor.connect(sys.argv[1], timeout=60) as client, client.table("names") as table:
    table.put("owner", "here", ephemeral=True, grace=float(sys.argv[2]))
    print("ready", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def names(three):
    """A table on three brokers, and a copy of it."""
    with three.client(timeout=60) as client:
        client.create_topic("names", kind="table")
        three.wait_for_chain("names", 3)
        with client.table("names") as table:
            yield table


@pytest.fixture
def owner(three, names):
    """A process with an ephemeral key."""
    command = [sys.executable, "-c", OWNER, three.url, str(GRACE_S)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        names.sync()
        assert "owner" in names
        yield process
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


def gone_after(table, watch, key, timeout):
    """For how many seconds from now a key is still there."""
    began = time.monotonic()
    while key in table:
        watch.get(timeout=timeout)
    return time.monotonic() - began


def test_the_key_of_an_owner_that_was_killed_goes_within_its_grace(names, owner):
    with names.watch() as watch:
        owner.kill()
        took = gone_after(names, watch, "owner", GRACE_S + LATE_S)
    assert took > GRACE_S / 3, "two of three words of the owner may be lost"
    assert took < GRACE_S + LATE_S


def test_with_the_head_dead_too_it_goes_within_twice_its_grace_and_a_failover(three, names, owner):
    with names.watch() as watch:
        head = three.head("names")
        owner.kill()
        three.kill(head)
        took = gone_after(names, watch, "owner", 2 * GRACE_S + FAILOVER_S)
    assert took > GRACE_S / 3
    assert took < 2 * GRACE_S + FAILOVER_S


class Touching(threading.Thread):
    """Touches a key all the time, until it is stopped."""

    def __init__(self, table, key):
        super().__init__()
        self.table, self.key, self.stop = table, key, threading.Event()
        self.wrong: list[object] = []

    def run(self):
        try:
            while not self.stop.wait(0.1):
                self.table.touch(self.key, timeout=60)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is wrong
            self.wrong.append(error)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.join(60)


@pytest.mark.long
def test_keys_of_the_living_stay_while_heads_die(three, names):
    """Also those that only a touch keeps."""
    with three.client(timeout=60) as client, client.table("names") as table, names.watch() as watch:
        table.put("me", "here", ephemeral=True, grace=GRACE_S)
        table.put("touched", "here", ttl=GRACE_S)
        with Touching(table, "touched") as touching:
            for _ in range(2):
                head = three.head("names")
                three.kill(head)
                until = time.monotonic() + 2 * GRACE_S
                three.wait_for(lambda until=until: time.monotonic() > until, what="twice a grace")
                three.restart(head)
                three.wait_for_chain("names", 3, timeout=60)
        assert touching.wrong == []
        names.sync()
        assert sorted(names) == ["me", "touched"]
        three.wait_for(lambda: table.holds("me") > 0, what="the client is heard")
        changes = [watch.get(timeout=5) for _ in range(2)]
        assert [(change.key, change.old, change.new.value) for change in changes] == [
            ("me", None, b"here"),
            ("touched", None, b"here"),
        ]
        assert gone_after(names, watch, "touched", GRACE_S + LATE_S) < GRACE_S + LATE_S


@pytest.mark.long
def test_a_client_whose_brokers_are_silent_for_less_than_its_grace_keeps_its_keys(three, names):
    """All of them are paused: for the client it is as if its cable were pulled."""
    grace = 10.0
    with three.client(timeout=60) as client, client.table("names") as table, names.watch() as watch:
        table.put("me", "here", ephemeral=True, grace=grace)
        table.put("plain", "here", ttl=grace)
        watch.get(timeout=5)
        for name in three.brokers:
            three.pause(name)
        began = time.monotonic()
        held = []
        while time.monotonic() - began < grace / 2:
            held.append(table.holds("me"))
        for name in three.brokers:
            three.resume(name)
        assert held == sorted(held, reverse=True), "nobody says that the key is there"
        assert gone_after(names, watch, "plain", 60) >= 0
        assert "me" in names
        three.wait_for(lambda: table.holds("me") > grace / 3, what="the client is heard again")
