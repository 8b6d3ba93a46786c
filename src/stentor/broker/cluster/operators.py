"""What operators ask of a cluster: who is there, draining a broker, forgetting one, unclean recovery."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, broker_key, chain_key, decode_broker, encode
from stentor.core.controller import HeldRecord
from stentor.errors import InvalidArgument, NotReady, PartitionNotFound
from stentor.wire import messages

if TYPE_CHECKING:
    from stentor.broker.broker import Broker

logger = logging.getLogger(__name__)


class Operators:
    """Requests of people; rare, so each reads and swaps the store itself."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def brokers(self) -> list[messages.BrokerState]:
        """All registered brokers, as this one sees them."""
        broker, cluster = self._broker, self._broker.cluster
        replicas: Counter[str] = Counter()
        heads: Counter[str] = Counter()
        for held in broker.catalogue.chains.values():
            replicas.update(member.broker for member in held.record.chain)
            heads[held.record.chain[0].broker] += 1
        return [
            messages.BrokerState(
                info=info,
                incarnation=broker.catalogue.brokers[info.id].incarnation,
                view=cluster.view(info.id),
                controller=info.id == cluster.machine.controller_broker,
                draining=broker.catalogue.brokers[info.id].draining,
                replicas=replicas[info.id],
                heads=heads[info.id],
            )
            for info in cluster.routes.brokers()
        ]

    async def drain(self, name: str, *, draining: bool) -> None:
        """The controller moves its replicas elsewhere, one after the other, without stopping writes."""
        broker = self._broker
        broker.cluster.restored.check()
        key = broker_key(name)
        held = await broker.store.get(key)
        if held is None:
            raise self._unknown(name)
        changed = msgspec.structs.replace(decode_broker(held.value), draining=draining)
        swap = await broker.store.swap(expect={key: held.revision}, put={key: encode(changed)})
        if not swap.succeeded:
            raise NotReady(f"Broker {name} was changed by someone else.", hint="Try again.", object=name)
        await broker.cluster.look_again()
        logger.info("broker %s %s", name, "is being drained" if draining else "takes replicas again")

    async def forget(self, name: str) -> None:
        """A broker that is gone for good no longer counts, for majorities neither."""
        broker = self._broker
        broker.cluster.restored.check()
        if name not in broker.catalogue.brokers:
            raise self._unknown(name)
        if broker.cluster.view(name) == "heard":
            raise InvalidArgument(f"Broker {name} is running.", hint="Drain it and stop it first.", object=name)
        holds = [key for key, held in broker.catalogue.chains.items() if name in {m.broker for m in held.record.chain}]
        if holds and not broker.cluster.restored.accepted:  # after a restore nothing is replaced before this
            raise InvalidArgument(
                f"Broker {name} is still a member of {len(holds)} chains.",
                hint="Start it again and drain it, or wait until its replicas are replaced.",
                object=name,
            )
        await broker.store.swap(expect={}, put={}, delete=(broker_key(name),))
        await broker.cluster.look_again()

    def _unknown(self, name: str) -> InvalidArgument:
        return InvalidArgument(
            f"There is no broker {name}.",
            hint=f"Known: {', '.join(sorted(self._broker.catalogue.brokers))}.",
            object=name,
        )

    async def recover(self, topic: str, index: int) -> messages.PartitionRecovered:
        """C13: by an operator's explicit word, this broker's copy leads; what it lacks is lost, and said."""
        broker = self._broker
        broker.cluster.restored.check()
        key = (broker.catalogue.get(topic).record.id, index)
        partition = broker.replicas.partitions.get(key)
        held = broker.catalogue.chains.get(key)
        if partition is None or held is None:
            raise PartitionNotFound(f"This broker has no copy of {topic}/{index}.", hint="Ask a broker that has one.")
        restored = held.record.epoch < partition.replica.epoch  # the store came from a backup (C27)
        if not (restored or partition.replica.halted) and any(
            broker.cluster.view(member.broker) == "heard"
            for member in held.record.chain
            if member.broker != broker.broker_id
        ):
            raise InvalidArgument(
                f"A member of the chain of {topic}/{index} is running.",
                hint="Nothing needs to be given up: wait until it is at work.",
            )
        if partition.replica.active:
            raise InvalidArgument(f"{topic}/{index} is at work.", hint="There is nothing to recover.", object=topic)
        record = msgspec.structs.replace(
            held.record,
            epoch=max(held.record.epoch, partition.replica.epoch) + limits.RECOVERY_EPOCHS,
            chain=(partition.replica.me,),
            joining=None,
            eligible=(),
            committed=0,
            proposal=secrets.randbits(62),
        )
        partition.let_lead()
        controller = broker.cluster.machine.membership.controller_revision
        expect = {chain_key(key): held.revision, CONTROLLER: controller}
        put = {chain_key(key): encode(record), **broker.recorded.cut(key, partition.log.end)}
        swap = await broker.store.swap(expect=expect, put=put)
        if not swap.succeeded:
            raise NotReady(f"{topic}/{index} was changed by someone else.", hint="Look again.", object=topic)
        logger.critical(
            "%s/%d: unclean recovery at offset %d; up to %d was committed",
            topic,
            index,
            partition.log.end,
            held.record.committed,
        )
        broker.cluster.push({key: HeldRecord(record, swap.revision)})
        return messages.PartitionRecovered(
            epoch=record.epoch, end=partition.log.end, committed=max(held.record.committed, partition.committed)
        )
