"""What a controller, or a broker that wants to be one, does with the coordination store (C16, C17)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, chain_key, encode
from stentor.core.membership import ControllerKey
from stentor.errors import CoordinationUnavailable, StentorError

if TYPE_CHECKING:
    from stentor.broker.broker import Broker
    from stentor.broker.cluster.cluster import Cluster
    from stentor.core.controller import Propose

logger = logging.getLogger(__name__)


class Controlling:
    """Takes the office, reads everything, and swaps chains."""

    def __init__(self, broker: Broker, cluster: Cluster) -> None:
        self._broker = broker
        self._cluster = cluster
        self._loading = False
        self._load_again = False

    async def take_over(self, revision: int) -> None:
        if self._cluster.restored.noticed:
            return
        key = ControllerKey(self._broker.broker_id, self._broker.incarnation)
        swap = None
        try:
            swap = await self._broker.store.swap(expect={CONTROLLER: revision}, put={CONTROLLER: encode(key)})
        except StentorError as error:
            logger.info("the controller's key could not be taken: %s", error)
        if swap is not None and swap.succeeded:
            logger.info("broker %s is the controller", self._broker.broker_id)
            self._cluster.do(self._cluster.machine.took_over(key, swap.revision))
        else:
            self._cluster.machine.takeover_failed(self._cluster.now_us())
            await self._cluster.look_again()

    async def load(self) -> None:
        """The controller rereads everything (C16); who asks while it does is served by one more reading."""
        if self._loading:
            self._load_again = True
            return
        self._loading = self._load_again = True
        try:
            while self._load_again and not self._cluster.closed:
                self._load_again = False
                await self._load()
        finally:
            self._loading = False

    async def _load(self) -> None:
        while not self._cluster.closed:
            try:
                await self._cluster.look_again()
                break
            except CoordinationUnavailable:
                await asyncio.sleep(limits.PEER_HEARTBEAT_S)
        catalogue = self._broker.catalogue
        plans = {topic.record.id: topic.plan for topic in catalogue.topics.values()}
        if self._cluster.machine.controller is not None:
            self._cluster.machine.controller.set_active(catalogue.active)
        self._cluster.do(
            self._cluster.machine.loaded(catalogue.brokers, plans, catalogue.chains, self._cluster.now_us())
        )
        self._cluster.reporting.soon()

    async def propose(self, propose: Propose) -> None:
        if self._cluster.restored.noticed:
            return  # not even said to have failed: nothing more is to be proposed
        expect = {chain_key(change.key): change.revision for change in propose.changes}
        expect[CONTROLLER] = self._cluster.machine.office_revision
        put = {chain_key(change.key): encode(change.record) for change in propose.changes}
        revision = None
        try:
            swap = await self._broker.store.swap(expect=expect, put=put)
            revision = swap.revision if swap.succeeded else None
        except StentorError as error:
            logger.warning("chains could not be changed: %s", error)
            await asyncio.sleep(limits.PEER_HEARTBEAT_S)
        for change in propose.changes if revision is not None else ():
            names = "→".join(member.broker for member in change.record.chain)
            joining = f", joining {change.record.joining.broker}" if change.record.joining is not None else ""
            logger.info("%x/%d: epoch %d, chain %s%s", *change.key, change.record.epoch, names, joining)
        self._cluster.do(self._cluster.machine.proposed(propose, revision, self._cluster.now_us()))
