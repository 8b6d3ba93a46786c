"""Real brokers that die, stop and come back while messages flow. Each load ends with the history checker and a
comparison of all replicas, byte for byte (`Load.conclude`).
"""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from stentor.client.sync_client import Client
from stentor.errors import DeadlineExceeded, EndUnknown, StentorError

pytestmark = pytest.mark.slow


def victims(cluster, load, role):
    """Brokers by their role in partition 0."""
    chain = load.chains()[0]
    return {
        "head": chain[:1],
        "middle": chain[1:2],
        "tail": chain[2:],
        "controller": [cluster.controller()],
        "head and controller": sorted({chain[0], cluster.controller()}),
    }[role]


def restart(cluster, *names):
    """Start several at once."""
    for name in names:
        cluster.brokers[name].launch()
    for name in names:
        cluster.brokers[name].wait_ready()


@pytest.mark.parametrize("role", ["head", pytest.param("middle", marks=pytest.mark.long), "tail", "controller"])
def test_a_broker_that_is_killed_costs_nothing_that_was_acknowledged(three, load, role):
    with load(three) as flow:
        [name] = victims(three, flow, role)
        since = time.monotonic()
        three.kill(name)
        flow.wait_until_without(name)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < 5
        restart(three, name)
        flow.wait_until_whole()
    assert flow.errors == []


def test_the_head_and_the_controller_die_together(three, load):
    """Two of three: what is left waits for one of them, and then goes on."""
    with load(three) as flow:
        names = victims(three, flow, "head and controller")
        for name in names:
            three.kill(name)
        restart(three, *names)
        flow.wait_for_acks()
        flow.wait_until_whole()
    assert flow.errors == []


def test_the_last_of_three_serves_readers_once_the_others_are_known_to_be_dead(three, wait_until):
    """With two of three replicas gone nothing is taken; what is committed can be read."""
    with three.client(timeout=30) as client:
        client.create_topic("last", partitions=3, replicas=3)
        for number in range(30):
            client.publish("last", f"{number}", partition=number % 3)
    left = three.controller()
    for name in set(three.brokers) - {left}:
        three.kill(name)
    with Client(three.brokers[left].address, timeout=30) as client:
        wait_until(
            lambda: [p.chain for p in client.describe_topic("last").partitions] == [[left]] * 3, "one member", 20
        )
        assert sorted(int(message.value) for message in client.read("last")) == list(range(30))
    with Client(three.brokers[left].address, timeout=1) as client, pytest.raises(StentorError, match="1 of 3 replicas"):
        client.publish("last", "too few disks")


@pytest.mark.long
def test_the_first_of_three_to_return_tells_no_end_that_is_too_early(three):
    """C30: what it knows to be committed may be less than what was acknowledged; then it says so, or nothing."""
    with three.client(timeout=30) as client:
        client.create_topic("first", replicas=3)
        for number in range(300):
            client.publish("first", f"{number}")
    for name in three.brokers:
        three.kill(name)
    *others, first = three.brokers  # the last to die is a member, whatever the chain had become
    restart(three, first)
    with Client(three.brokers[first].address, timeout=30) as client:
        for ask in (
            lambda: client.offsets("first", timeout=3)[0],
            lambda: len(list(client.read("first", timeout=3))),
        ):
            with suppress(EndUnknown, DeadlineExceeded):
                assert ask() == 300
        known = client.read("first", stale="allow")
        assert len(list(known)) == known.ends["first"][0]
        assert known.ends["first"][0] == 300 or not known.sure
        restart(three, *others)
        assert client.offsets("first") == {0: 300}
        assert len(list(client.read("first"))) == 300


def test_a_paused_head_is_replaced_and_joins_again_when_it_goes_on(three, load):
    with load(three) as flow:
        [name] = victims(three, flow, "head")
        since = time.monotonic()
        three.pause(name)
        flow.wait_until_without(name)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < 6
        three.resume(name)
        flow.wait_until_whole()
        flow.wait_for_acks()
    assert flow.errors == []


def test_a_short_pause_harms_nobody(three, load):
    """Shorter than the silence that counts as death: at most a moment's delay."""
    with load(three) as flow:
        for name in flow.chains()[0]:
            three.pause(name)
            until = time.monotonic() + 0.2
            three.wait_for(lambda until=until: time.monotonic() > until, what="a moment")
            three.resume(name)
            flow.wait_for_acks(2)
    assert flow.errors == []


def test_a_paused_head_is_killed_before_it_wakes(three, load):
    with load(three) as flow:
        [name] = victims(three, flow, "head")
        three.pause(name)
        flow.wait_until_without(name)
        three.kill(name)
        flow.wait_for_acks()
        restart(three, name)
        flow.wait_until_whole()
    assert flow.errors == []


def test_a_broker_is_killed_again_before_it_has_joined(three, load):
    with load(three) as flow:
        [name] = victims(three, flow, "head")
        three.kill(name)
        for _ in range(2):
            three.brokers[name].launch()
            three.wait_for(lambda: three.brokers[name].running, what="its process")
            three.kill(name)
        flow.wait_for_acks()
        restart(three, name)
        three.kill(name)
        flow.wait_for_acks()
        restart(three, name)
        flow.wait_until_whole()
    assert flow.errors == []


def test_a_rolling_restart_fails_no_publish(three, load):
    with load(three) as flow:
        for name in sorted(three.brokers):
            three.terminate(name)
            flow.wait_for_acks(2)
            restart(three, name)
            flow.wait_until_whole()
    assert flow.errors == []


@pytest.mark.long
def test_a_replica_that_left_earlier_waits_for_one_that_stayed(three, load):
    """C12: the first to return lacks what the others acknowledged without it."""
    with load(three, partitions=1) as flow:
        first, second, last = flow.chains()[0]
        topic_id = flow.topic_id()
        three.kill(first)
        flow.wait_until_without(first)
        flow.wait_for_acks()
        three.kill(second)
        three.kill(last)
        acknowledged = flow.acknowledged
        restart(three, first)
        assert refusal(three, flow, first) is not None
        assert flow.acknowledged == acknowledged
        assert set(flow.chain_in_store(topic_id, 0)) <= {second, last}
        restart(three, last)
        flow.wait_for_acks()
        restart(three, second)
        flow.wait_until_whole()
    assert len(flow.errors) <= 1, "only the probe"


def refusal(cluster, flow, name):
    """Why a broker takes no message; one that is cut off may not even tell where topics are."""
    try:
        with Client(cluster.brokers[name].address, timeout=1.5) as client:
            return flow.probe(timeout=1.5, client=client)
    except StentorError as error:
        return error
