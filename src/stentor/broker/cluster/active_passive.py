"""C26: active-passive topics have one broker that serves them; the controller names it, one swap decides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stentor.broker.catalogue import ACTIVE, CONTROLLER
from stentor.errors import StentorError

if TYPE_CHECKING:
    from stentor.broker.broker import Broker
    from stentor.broker.cluster.cluster import Cluster

logger = logging.getLogger(__name__)


class ActivePassive:
    """Sees to it that there is one, while this broker is the controller."""

    def __init__(self, broker: Broker, cluster: Cluster) -> None:
        self._broker = broker
        self._cluster = cluster
        self._choosing = False

    def choose(self) -> None:
        """Name another one if the present one is gone, or is being drained."""
        catalogue = self._broker.catalogue
        controller = self._cluster.machine.controller
        if controller is None or self._choosing or self._cluster.restored.noticed:
            return
        if not any(topic.record.settings.placement == "active-passive" for topic in catalogue.topics.values()):
            return
        alive = set(controller.alive) - controller.unable
        if catalogue.active in alive and not catalogue.brokers[catalogue.active].draining:
            return
        candidates = sorted(name for name in alive if not catalogue.brokers[name].draining)
        if candidates:
            self._choosing = True
            self._cluster.spawn(self._name(candidates[0]))

    async def _name(self, name: str) -> None:
        expect = {
            ACTIVE: self._broker.catalogue.active_revision,
            CONTROLLER: self._cluster.machine.office_revision,
        }
        try:
            swap = await self._broker.store.swap(expect=expect, put={ACTIVE: name.encode()})
            if swap.succeeded:
                logger.warning("broker %s is the active one now", name)
            await self._cluster.look_again()
        except StentorError as error:
            logger.warning("no active broker could be named: %s", error)
        finally:
            self._choosing = False
