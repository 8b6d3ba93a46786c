"""What operators ask of a cluster: who is there, draining a broker, forgetting one, unclean recovery."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Protocol

import msgspec

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, broker_key, chain_key, decode_broker, encode, tidied_key
from stentor.core.records import HeldRecord
from stentor.errors import InvalidArgument, NotReady, PartitionNotFound
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from stentor.broker.cluster.control import Control
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.broker.cluster.store_room import StoreKeeper
    from stentor.broker.environment import BrokerIdentity
    from stentor.core.records import Key
    from stentor.core.replica import Replica
    from stentor.storage.memory_log import AnyLog

logger = logging.getLogger(__name__)


class RecoverableCopy(Protocol):
    """A copy that an operator may let lead."""

    log: AnyLog

    @property
    def replica(self) -> Replica: ...
    @property
    def committed(self) -> int: ...

    def let_lead(self) -> None: ...


class Operators:
    """Requests of people; rare, so each reads and swaps the store itself."""

    def __init__(
        self,
        identity: BrokerIdentity,
        *,
        followed: FollowedStore,
        control: Control,
        copies: Mapping[Key, RecoverableCopy],
        cut_cursors: Callable[[str, int, int], Awaitable[dict[str, bytes]]],
        keeper: StoreKeeper,
    ) -> None:
        self._identity = identity
        self._store, self._catalogue = followed.store, followed.catalogue
        self._rollback, self._follower = followed.rollback, followed.follower
        self._control = control
        self._copies = copies
        self._cut_cursors = cut_cursors  # by topic and partition, back to this end
        self._keeper = keeper

    def brokers(self, known: list[messages.BrokerInfo]) -> list[messages.BrokerState]:
        """All registered brokers, as this one sees them."""
        catalogue, control = self._catalogue, self._control
        load = catalogue.tally.load
        return [
            messages.BrokerState(
                info=info,
                incarnation=catalogue.brokers[info.id].incarnation,
                view=control.view(info.id),
                controller=info.id == control.machine.controller_broker,
                draining=catalogue.brokers[info.id].draining,
                replicas=load.replicas[info.id],
                heads=load.heads[info.id],
            )
            for info in known
        ]

    async def drain(self, name: str, *, draining: bool) -> None:
        """The controller moves its replicas elsewhere, one after the other, without stopping writes."""
        self._rollback.check()
        key = broker_key(name)
        held = await self._store.get(key)
        if held is None:
            raise self._unknown(name)
        record = decode_broker(held.value)
        if record.draining == draining:
            known = self._catalogue.brokers.get(name)
            if known is None or known.draining != draining:
                await self._follower.look_again()  # another broker has written it, and the watch has yet to say so
            return
        value = encode(msgspec.structs.replace(record, draining=draining))
        await self._keeper.check(len(value), name)
        swap = await self._store.swap(expect={key: held.revision}, put={key: value})
        if not swap.succeeded:
            raise NotReady(f"Broker {name} was changed by someone else.", hint="Try again.", object=name)
        await self._follower.look_again()
        logger.info("broker %s %s", name, "is being drained" if draining else "takes replicas again")

    async def forget(self, name: str) -> None:
        """A broker that is gone for good no longer counts, for majorities neither."""
        self._rollback.check()
        if name not in self._catalogue.brokers:
            raise self._unknown(name)
        if self._control.view(name) == "heard":
            raise InvalidArgument(f"Broker {name} is running.", hint="Drain it and stop it first.", object=name)
        holds = [
            key
            for key, held in self._catalogue.chains.items()
            # What it held in memory is given up by this very word: the topic begins anew elsewhere.
            if name in {m.broker for m in held.record.chain} and held.record.reserved is None
        ]
        if holds and not self._rollback.accepted:  # after a restore nothing is replaced before this
            raise InvalidArgument(
                f"Broker {name} is still a member of {len(holds)} chains.",
                hint="Start it again and drain it, or wait until its replicas are replaced.",
                object=name,
            )
        await self._store.swap(expect={}, put={}, delete=(broker_key(name), tidied_key(name)))
        await self._follower.look_again()

    def _unknown(self, name: str) -> InvalidArgument:
        return InvalidArgument(
            f"There is no broker {name}.",
            hint=f"Known: {', '.join(sorted(self._catalogue.brokers))}.",
            object=name,
        )

    async def recover(self, topic: str, index: int) -> messages.PartitionRecovered:
        """C13: by an operator's explicit word, this broker's copy leads; what it lacks is lost, and said."""
        self._rollback.check()
        key = (self._catalogue.get(topic).record.id, index)
        partition = self._copies.get(key)
        held = self._catalogue.chains.get(key)
        if partition is None or held is None:
            raise PartitionNotFound(f"This broker has no copy of {topic}/{index}.", hint="Ask a broker that has one.")
        restored = held.record.epoch < partition.replica.epoch  # the store came from a backup (C27)
        if not (restored or partition.replica.halted) and any(
            self._control.view(member.broker) == "heard"
            for member in held.record.chain
            if member.broker != self._identity.broker_id
        ):
            raise InvalidArgument(
                f"A member of the chain of {topic}/{index} is running.",
                hint="Wait until it is at work. If its copy failed and cannot be mended, stop that broker first.",
            )
        if partition.replica.active:
            raise InvalidArgument(f"{topic}/{index} is at work.", hint="There is nothing to recover.", object=topic)
        if partition.replica.failed and not partition.replica.halted:
            raise InvalidArgument(
                f"The copy of {topic}/{index} on this broker has failed: {partition.replica.failed}",
                hint="Mend the disk and start the broker with --unclean. Then recover, if it is still necessary.",
                object=topic,
            )
        record = msgspec.structs.replace(
            held.record,
            epoch=max(held.record.epoch, partition.replica.epoch) + limits.RECOVERY_EPOCHS,
            chain=(partition.replica.me,),
            joining=None,
            eligible=(),
            committed=0,
            proposal=secrets.randbits(62),
        )
        cut = await self._cut_cursors(topic, index, partition.log.end)
        partition.let_lead()
        controller = self._control.machine.membership.controller_revision
        expect = {chain_key(key): held.revision, CONTROLLER: controller}
        swap = await self._store.swap(expect=expect, put={chain_key(key): encode(record), **cut})
        if not swap.succeeded:
            raise NotReady(f"{topic}/{index} was changed by someone else.", hint="Look again.", object=topic)
        logger.critical(
            "%s/%d: unclean recovery at offset %d; up to %d was committed",
            topic,
            index,
            partition.log.end,
            held.record.committed,
        )
        self._control.push({key: HeldRecord(record, swap.revision)})
        return messages.PartitionRecovered(
            epoch=record.epoch, end=partition.log.end, committed=max(held.record.committed, partition.committed)
        )
