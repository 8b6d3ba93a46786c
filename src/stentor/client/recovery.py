"""Finding the copy of a partition that should lead when its chain cannot be put together any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.errors import NotReady, PartitionNotFound
from stentor.wire import messages

if TYPE_CHECKING:
    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.wire.messages import PartitionInfo


async def best_copy(core: ClientCore, topic: str, partition: int, deadline: Deadline) -> str:
    """The broker whose copy is of the latest epoch and, of those, the longest. A member of the chain comes before
    copies that left it: these may hold what was never committed. Every broker must answer: one that is silent may be
    the one.
    """
    copies = await _copies(core, topic, partition, deadline)
    silent = sorted(broker for broker, copy in copies.items() if copy is None)
    if silent:
        raise NotReady(
            f"{', '.join(silent)} did not say what copy of {topic}/{partition} it has.",
            hint="Start all brokers, or name the broker whose copy shall lead.",
            object=f"{topic}/{partition}",
        )
    found = {broker: copy for broker, copy in copies.items() if copy is not None and copy.segments}
    if not found:
        raise PartitionNotFound(f"No broker has a copy of {topic}/{partition}.", object=f"{topic}/{partition}")
    return max(found, key=lambda broker: (found[broker].epoch, broker in found[broker].chain, found[broker].end))


async def _copies(core: ClientCore, topic: str, partition: int, deadline: Deadline) -> dict[str, PartitionInfo | None]:
    """What each broker says of its own copy; None of one that does not answer."""
    request = messages.DescribeTopic(name=topic)
    at_home = await core.call(request, deadline)
    answers = await core.ask_others(request, set(core.links.brokers), deadline.left_of(limits.LINK_OPEN_S))
    if core.link is not None and core.link.broker is not None:
        answers[core.link.broker.id] = at_home
    if not 0 <= partition < len(at_home.topic.partitions):
        raise PartitionNotFound(f"Topic {topic} has no partition {partition}.", object=f"{topic}/{partition}")
    return {
        broker: answers[broker].topic.partitions[partition] if broker in answers else None
        for broker in core.links.brokers
    }
