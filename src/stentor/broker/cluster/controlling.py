"""What a controller, or a broker that wants to be one, does with the coordination store (C16, C17)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, chain_key, encode
from stentor.core import cluster_events as e
from stentor.core.membership import ControllerKey
from stentor.errors import CoordinationUnavailable, StentorError

if TYPE_CHECKING:
    from stentor.broker.cluster.reporting import Reporting
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.broker.environment import BrokerIdentity
    from stentor.core.cluster import ClusterMember
    from stentor.core.controller import Propose

logger = logging.getLogger(__name__)


class Machinery(Protocol):
    """The cluster machine, and who performs what it says."""

    @property
    def machine(self) -> ClusterMember: ...
    @property
    def closed(self) -> bool: ...
    @property
    def reporting(self) -> Reporting: ...

    def step(self, event: e.ClusterEvent) -> None: ...


class Controlling:
    """Takes the office, reads everything, and swaps chains."""

    def __init__(
        self,
        identity: BrokerIdentity,
        followed: FollowedStore,
        control: Machinery,
    ) -> None:
        self._identity = identity
        self._store, self._catalogue = followed.store, followed.catalogue
        self._rollback, self._follower = followed.rollback, followed.follower
        self._control = control
        self._loading = False
        self._load_again = False

    async def take_over(self, revision: int) -> None:
        if self._rollback.noticed:
            return
        key = ControllerKey(self._identity.broker_id, self._identity.incarnation)
        swap = None
        try:
            swap = await self._store.swap(expect={CONTROLLER: revision}, put={CONTROLLER: encode(key)})
        except StentorError as error:
            logger.info("could not become the controller: %s", error)
        if swap is not None and swap.succeeded:
            logger.info("broker %s is the controller", self._identity.broker_id)
            self._control.step(e.TookOver(key, swap.revision))
        else:
            self._control.step(e.TakeoverFailed())
            await self._follower.look_again()

    async def load(self) -> None:
        """The controller rereads everything (C16); who asks while it does is served by one more reading."""
        if self._loading:
            self._load_again = True
            return
        self._loading = self._load_again = True
        try:
            while self._load_again and not self._control.closed:
                self._load_again = False
                await self._load()
        finally:
            self._loading = False

    async def _load(self) -> None:
        while not self._control.closed:
            try:
                await self._follower.look_again()
                break
            except CoordinationUnavailable:
                await asyncio.sleep(limits.PEER_HEARTBEAT_S)
        catalogue = self._catalogue
        plans = {topic.record.id: topic.plan for topic in catalogue.topics.values()}
        self._control.step(e.Loaded(catalogue.brokers, plans, catalogue.chains, catalogue.active))
        self._control.reporting.soon()

    async def propose(self, propose: Propose) -> None:
        if self._rollback.noticed:
            return  # not even said to have failed: nothing more is to be proposed
        expect = {chain_key(change.key): change.revision for change in propose.changes}
        expect[CONTROLLER] = self._control.machine.office_revision
        put = {chain_key(change.key): encode(change.record) for change in propose.changes}
        revision = None
        try:
            swap = await self._store.swap(expect=expect, put=put)
            revision = swap.revision if swap.succeeded else None
        except StentorError as error:
            logger.warning("could not change chains: %s", error)
            await asyncio.sleep(limits.PEER_HEARTBEAT_S)
        for change in propose.changes if revision is not None else ():
            names = "→".join(member.broker for member in change.record.chain)
            joining = f", joining {change.record.joining.broker}" if change.record.joining is not None else ""
            topic = self._catalogue.by_id.get(change.key[0])
            name = f"{change.key[0]:x}" if topic is None else topic.record.name
            logger.info("%s/%d: epoch %d, chain %s%s", name, change.key[1], change.record.epoch, names, joining)
        self._control.step(e.Proposed(propose, revision))
