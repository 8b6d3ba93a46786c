"""Whether this broker serves the readers of a partition, and where else they find it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.broker.cluster.storeless_start import without_store
from stentor.core import refusals
from stentor.errors import NotHead, NotReady, PartitionNotFound, StentorError

if TYPE_CHECKING:
    from stentor.broker.broker import Broker
    from stentor.broker.partitions.partition import Partition


def elsewhere(broker: Broker, topic_id: int, index: int) -> StentorError:
    """Why a partition that a frame names is not here."""
    held = broker.catalogue.chains.get((topic_id, index))
    topic = broker.catalogue.by_id.get(topic_id)
    if (held is None or topic is None) and broker.waiting.serves:
        return without_store()  # the store may know it
    if held is None or topic is None:
        return PartitionNotFound(
            f"This broker has no partition {index} of the topic with id {topic_id:x}.",
            hint="The topic may have been deleted or made anew; look it up again.",
        )
    head = held.record.chain[0].broker
    return NotHead(
        f"{topic.record.name}/{index} is on {', '.join(m.broker for m in held.record.chain)}, not on this broker.",
        hint="Clients find the way by themselves.",
        head=head,
        epoch=held.record.epoch,
        revision=held.revision,
    )


def check_serves(broker: Broker, partition: Partition) -> None:
    """Whether readers are served here: a member that hears of commits, and of an active-passive topic the head."""
    if broker.waiting.serves and not partition.replica.failed:
        return  # what is known to be committed stays so
    if not broker.cluster.confirmed:
        raise broker.cut_off()
    predecessor = partition.replica.position.predecessor
    if predecessor is not None and broker.cluster.view(predecessor.broker) != "heard":
        raise NotReady(f"{partition.name} does not hear its predecessor {predecessor.broker}.", hint="Try another.")
    if broker.broker_id not in partition.replica.position.brokers and partition.replica.record is not None:
        raise elsewhere(broker, *partition.key)
    held = broker.catalogue.chains.get(partition.key)
    if held is not None and held.record.epoch < partition.replica.epoch and not partition.replica.serves:
        raise refusals.older_store(partition.name)
    if not partition.replica.serves and not (partition.replica.failed and broker.replicas.single):
        raise NotReady(f"{partition.name} does not know yet what is committed.", hint="Try again in a moment.")
    if partition.settings.placement == "active-passive" and not partition.replica.position.is_head:
        chain = partition.replica.position.brokers
        raise NotHead(
            f"{partition.name} is served by {chain[0] if chain else 'nobody'} alone; this broker stands by.",
            hint="Clients go there by themselves.",
            head=chain[0] if chain else "",
            epoch=partition.replica.epoch,
            revision=partition.replica.revision,
        )
