"""The beat of the cluster: this broker says that it is there, and looks at who else is.

With every beat it tells its replicas how it stands (`core.standing`): whether somebody who could replace it would
have said so (C6), and whom it does not hear. What others must know of is told to whoever asked for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.broker.disk_threads import SyncLoad
from stentor.core.cluster_events import Ticked
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.background import Background
    from stentor.broker.cluster.control import Control
    from stentor.broker.cluster.disk_health import DiskHealth
    from stentor.broker.cluster.peer_links import Peers
    from stentor.broker.cluster.store_follower import StoreFollower
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.core.slowness import SyncPace
    from stentor.core.standing import Standing

logger = logging.getLogger(__name__)

_RESTART_US = int(2 * limits.PEER_DIAL_S * 1_000_000)


class Liveness:
    """Who is heard, as of the last beat."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        standing: Standing,
        *,
        control: Control,
        peers: Peers,
        follower: StoreFollower,
        disk: DiskHealth,
        background: Background,
    ) -> None:
        self._environment = environment
        self._identity = identity
        self._standing = standing
        self._control = control
        self._peers = peers
        self._follower = follower
        self._disk = disk
        self._background = background
        self._sync_load = SyncLoad(environment.syncs)
        self._sync_times = environment.syncs.times
        self._fresh = True  # the records are not those from before a time of being cut off
        self._refreshing = False
        self._pinged_us = 0
        self._restarted_us: dict[str, int] = {}
        self._views: dict[str, str] = {}
        self.load: Callable[[], int] = lambda: 0  # how many connections this broker has
        self.on_beat: list[Callable[[], None]] = []
        self.on_ping: list[Callable[[], None]] = []  # now and then
        self.on_view: list[Callable[[str, str], None]] = []  # a broker is not heard, or is seen otherwise than before
        self.on_unheard: list[Callable[[frozenset[str]], None]] = []  # these are not heard any more
        self.on_cut_off: list[Callable[[], None]] = []

    def beat(self) -> None:
        """Every PEER_HEARTBEAT_S."""
        if self._background.closed:
            return
        self._environment.failures.run("the beat of the cluster", self._beat)
        self._environment.loop.call_later(limits.PEER_HEARTBEAT_S, self.beat)

    def _beat(self) -> None:
        failures = self._environment.failures
        control, now_us = self._control, self._control.now_us()
        membership = control.machine.membership
        writes, busy = self._disk.tick(), self._sync_load.tick()
        if self._identity.alone:
            writes, busy = True, False  # nobody could take over from it
        if self._peers.names or control.machine.controller is None:  # alone, its own controller has nothing to do
            control.tick(Ticked(self.load(), busy, writes, self._pace(now_us)))
            self._look_at_others(now_us)
        if now_us - self._pinged_us > limits.HEARTBEAT_S * 1_000_000:
            self._pinged_us = now_us
            failures.each("a ping of the cluster", self.on_ping)
        self._standing.awake_since_us = membership.awake_since_us
        failures.each("a part of the beat", self.on_beat)

    def _pace(self, now_us: int) -> SyncPace:
        """How long writes take: of logs, and the small one that a broker with nothing to sync makes now and then."""
        pace, disk = self._sync_times.pace(now_us), self._disk
        return msgspec.structs.replace(pace, waits_us=max(pace.waits_us, disk.waits_us), stalls=disk.stalls)

    def told_everything(self) -> None:
        """The controller has told all records there are: nothing that was missed is left (C25)."""
        self._fresh = True

    def _look_at_others(self, now_us: int) -> None:
        membership = self._control.machine.membership
        heard = membership.is_confirmed(now_us)
        if not heard:
            self._fresh = False
        elif not self._fresh and not self._refreshing:
            self._refreshing = True
            self._background.spawn(self._refresh())
        self._set_confirmed(heard and self._fresh)
        for name in self._peers.names:
            self._look_at(name, membership.view(name, now_us), now_us)
        unheard, before = membership.unreached(now_us), self._standing.unheard
        self._standing.unheard = unheard
        for listener in self.on_unheard if unheard - before else ():
            listener(unheard - before)

    def _look_at(self, name: str, view: str, now_us: int) -> None:
        changed = view != self._views.get(name)
        if changed:
            logger.log(logging.INFO if view == "heard" else logging.WARNING, "broker %s: %s", name, view)
            self._views[name] = view
        for listener in self.on_view if changed or view != "heard" else ():
            listener(name, view)
        if view == "silent" and now_us - self._restarted_us.get(name, 0) > _RESTART_US:
            self._restarted_us[name] = now_us
            self._peers.restart(name)

    def _set_confirmed(self, confirmed: bool) -> None:
        """C6, C25: cut off from everyone who could replace it, a broker takes nothing and serves nobody."""
        if confirmed == self._standing.confirmed:
            return
        self._standing.confirmed = confirmed
        if confirmed:
            logger.info("this broker is connected to its cluster again")
            return
        logger.warning("this broker hears neither the controller nor a majority of the brokers: it takes no messages")
        for listener in self.on_cut_off:
            listener()

    async def _refresh(self) -> None:
        """Who was cut off reads what it missed before it serves anyone; or the controller tells it (C25)."""
        try:
            await self._follower.look_again()
        except StentorError as error:
            logger.info("could not read yet what changed while this broker was cut off: %s", error)
            await asyncio.sleep(limits.PEER_HEARTBEAT_S)
        else:
            self._fresh = True
        finally:
            self._refreshing = False
