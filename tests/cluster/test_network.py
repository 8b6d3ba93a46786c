"""Brokers in network namespaces whose links are cut while messages flow: five brokers, three replicas each."""

from __future__ import annotations

import time

import pytest

from stentor import Client, limits
from stentor.errors import DeadlineExceeded, NotReady

pytestmark = pytest.mark.slow


def test_a_head_that_is_cut_off_is_replaced_and_joins_again(five, load):
    with load(five) as flow:
        head = flow.chains()[0][0]
        since = time.monotonic()
        five.isolate(head)
        flow.wait_until_without(head)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < 6
        five.heal()
        flow.wait_until_whole()
        flow.wait_for_acks()
    assert flow.errors == []


def test_a_minority_refuses_and_the_majority_goes_on(five, load):
    with load(five) as flow:
        head, middle, _ = flow.chains()[0]
        minority = [head, middle]
        majority = [name for name in five.brokers if name not in minority]
        five.partition([[*majority, "etcd"], minority])
        flow.wait_until_without(*minority)
        flow.wait_for_acks()
        with pytest.raises((NotReady, DeadlineExceeded), match="cut off"):  # when it connects, or when it publishes
            publish_through(five, flow, minority)
        five.heal()
        flow.wait_until_whole()
        flow.wait_for_acks()
    assert flow.errors == []


def publish_through(cluster, flow, names):
    """Publish through brokers that are cut off from the others, and through nobody else."""
    url = "stentor://" + ",".join(cluster.brokers[name].address for name in names)
    with Client(url, name="inside", timeout=2) as client:
        raise flow.probe(timeout=2, client=client) or AssertionError("a minority took a message")


def test_each_broker_reaches_only_its_neighbours(five, load):
    with load(five) as flow:
        five.ring()
        flow.wait_for_acks(20)
        five.heal()
        flow.wait_until_whole()
        flow.wait_for_acks()
    assert flow.errors == []


def test_a_link_of_the_chain_is_cut_in_one_direction(five, load):
    """If it can be had, one that cuts off the controller: the complaint goes by way of others."""
    with load(five) as flow:
        controller = five.controller()
        index = next((index for index, chain in enumerate(flow.chains()) if chain[1] == controller), 0)
        head, middle, _ = flow.chains()[index]
        since = time.monotonic()
        five.cut(head, middle, one_way=True)
        flow.wait_for(lambda: flow.chains()[index][:2] != [head, middle], "another chain")
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < 8
        five.heal()
        flow.wait_until_whole()
    assert flow.errors == []


def test_clients_that_are_cut_off_from_a_head_alone_go_through_another_broker(five, load, monkeypatch):
    """Everybody else reaches the head, so it stays the head. Nobody waits for the end of the attempt to reach it."""
    monkeypatch.setattr(limits, "LINK_OPEN_S", 30.0)
    with load(five) as flow:
        head = flow.chains()[0][0]
        flow.wait_for_acks()
        since = time.monotonic()
        five.cut("clients", head)
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < 8
        assert flow.chains()[0][0] == head
        five.heal()
        flow.wait_for_acks()
    assert flow.errors == []
