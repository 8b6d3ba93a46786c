"""How well topics and partitions are: damage, members that chains lack, whether a partition is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.errors import StentorError
from stentor.wire.statistics import BrokerStatistics, Problem, from_map

if TYPE_CHECKING:
    from stentor import Client, PartitionInfo, TopicInfo, TopicSettings


def is_damaged(partition: PartitionInfo) -> bool:
    """Whether something of it cannot be read, or no longer be written."""
    return bool(partition.failed or partition.damaged)


def lacking(partition: PartitionInfo, settings: TopicSettings) -> str:
    """How many replicas there are, if some are missing."""
    there, wanted = len(partition.chain), settings.replicas_wanted
    if there >= wanted:
        return ""
    refusing = "" if there >= settings.replicas_needed else ", accepts no messages"
    return f"{there} of {wanted} replicas{refusing}"


def broker_problems(statistics: BrokerStatistics) -> list[Problem]:
    """What a broker says is wrong with itself, beside what can be seen of its topics; an older one says nothing."""
    return [problem for problem in statistics.health.problems if problem.object not in ("logs", "chains")]


def partition_health(partition: PartitionInfo, settings: TopicSettings) -> str:
    """What is wrong with a partition, or ok."""
    damage = f"failed: {partition.failed}" if partition.failed else ""
    damage = damage or ", ".join(f"offsets {first} to {after - 1} damaged" for first, after in partition.damaged)
    return ", ".join(filter(None, (damage, lacking(partition, settings)))) or "ok"


def topic_health(topic: TopicInfo) -> str:
    """What is wrong with a topic, of its worst partition, or ok."""
    damage = "damaged" if any(map(is_damaged, topic.partitions)) else ""
    shortest = min(topic.partitions, key=lambda partition: len(partition.chain), default=None)
    short = "" if shortest is None else lacking(shortest, topic.settings)
    return ", ".join(filter(None, (damage, short))) or "ok"


def partitions_at_work(client: Client, topic: TopicInfo, timeout: float) -> set[int]:
    """Those whose head says that its chain is at work; a head that does not answer says nothing."""
    addresses = {state.info.id: state.info.address for state in client.brokers() if state.view == "heard"}
    heads = {partition.chain[0] for partition in topic.partitions if partition.chain}
    return {
        partition
        for head in heads & set(addresses)
        for partition in _led(head, addresses[head], topic, timeout)
        if topic.partitions[partition].chain[:1] == [head]
    }


def _led(head: str, address: str, topic: TopicInfo, timeout: float) -> set[int]:
    """The partitions of a topic that are at work by a broker's own word."""
    from stentor.cli import options

    try:
        with options.connect(address, timeout, "topic recover") as client:
            if client.broker().id != head:
                return set()
            found = from_map(client.statistics()).partitions
    except StentorError:
        return set()
    return {each.partition for each in found if each.topic == topic.name and each.replica.active}
