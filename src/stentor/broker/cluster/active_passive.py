"""C26: active-passive topics have one broker that serves them; the controller names it, one swap decides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from stentor.broker.catalogue import ACTIVE, CONTROLLER
from stentor.errors import StentorError

if TYPE_CHECKING:
    from stentor.broker.background import Background
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.core.cluster import ClusterMember

logger = logging.getLogger(__name__)


class Office(Protocol):
    """Whether this broker is the controller."""

    @property
    def machine(self) -> ClusterMember: ...


class ActivePassive:
    """Sees to it that there is one, while this broker is the controller."""

    def __init__(
        self,
        followed: FollowedStore,
        background: Background,
        office: Office,
    ) -> None:
        self._store, self._catalogue = followed.store, followed.catalogue
        self._rollback, self._follower = followed.rollback, followed.follower
        self._background = background
        self._office = office
        self._choosing = False

    def choose(self) -> None:
        """Name another one if the present one is gone, or is being drained."""
        catalogue = self._catalogue
        controller = self._office.machine.controller
        if controller is None or self._choosing or self._rollback.noticed:
            return
        if not any(topic.record.settings.placement == "active-passive" for topic in catalogue.topics.values()):
            return
        alive = set(controller.alive) - controller.unable
        if catalogue.active in alive and not catalogue.brokers[catalogue.active].draining:
            return
        candidates = sorted(name for name in alive if not catalogue.brokers[name].draining)
        if candidates:
            self._choosing = True
            self._background.spawn(self._name(candidates[0]))

    async def _name(self, name: str) -> None:
        expect = {
            ACTIVE: self._catalogue.active_revision,
            CONTROLLER: self._office.machine.office_revision,
        }
        try:
            swap = await self._store.swap(expect=expect, put={ACTIVE: name.encode()})
            if swap.succeeded:
                logger.warning("broker %s is now the active one", name)
            await self._follower.look_again()
        except StentorError as error:
            logger.warning("could not name an active broker: %s", error)
        finally:
            self._choosing = False
