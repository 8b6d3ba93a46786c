"""Which copy of a partition leads when an operator does not name one."""

import asyncio
from types import SimpleNamespace

import pytest

from stentor.client.deadline import Deadline
from stentor.client.recovery import best_copy
from stentor.wire.messages import PartitionInfo, TopicDescribed, TopicInfo, TopicSettings


def chosen(**copies):
    """The best of these copies, by broker."""
    answers = {
        broker: TopicDescribed(topic=TopicInfo("t", 1, TopicSettings(), [PartitionInfo(0, segments=1, **copy)]))
        for broker, copy in copies.items()
    }

    async def call(request, deadline):
        return answers["b0"]

    async def ask_others(request, brokers, seconds):
        return {broker: answers[broker] for broker in brokers if broker != "b0"}

    core = SimpleNamespace(
        call=call,
        ask_others=ask_others,
        links=SimpleNamespace(brokers=dict.fromkeys(answers)),
        link=SimpleNamespace(broker=SimpleNamespace(id="b0")),
    )

    async def ask():
        return await best_copy(core, "t", 0, Deadline(5.0))

    return asyncio.run(ask())


def test_the_latest_epoch_leads_and_of_those_the_longest_copy():
    assert chosen(b0={"epoch": 5, "end": 90}, b1={"epoch": 6, "end": 70}, b2={"epoch": 6, "end": 80}) == "b2"


@pytest.mark.parametrize("end", [100, 120])
def test_a_member_of_the_chain_leads_before_a_copy_that_left_it_whatever_that_one_holds(end):
    """The one that left may hold what was never committed, instead of what was."""
    chain = {"epoch": 7, "chain": ["b1"]}
    assert chosen(b0={**chain, "end": end}, b1={**chain, "end": 100}, b2={**chain, "end": 0}) == "b1"


def test_a_member_of_an_older_chain_does_not_lead_before_a_later_epoch():
    """As after a store was restored: a copy that is further than the store has no chain."""
    assert chosen(b0={"epoch": 7, "chain": ["b0"], "end": 100}, b1={"epoch": 9, "end": 50}) == "b1"
