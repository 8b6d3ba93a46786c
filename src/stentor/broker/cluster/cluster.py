"""This broker's part in the cluster, put together: each part gets what it needs and nothing else.

    store ── watch ──► catalogue ──► routes to clients, records to replicas
    peers ── heartbeats, reports ──► cluster machine ──► takeover, proposals ──► store ──► push to all

A broker on its own is a cluster of one with an embedded store: it takes the controller's key, names itself anew in
its chains, and goes on. Nothing here is on the way of a message: with the store gone, chains go on (C27).

Who must hear of something is told by lists of listeners (`follower.on_news`, `liveness.on_view`, …), which the broker
fills before it joins.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from stentor import limits
from stentor._version import __version__
from stentor.broker.catalogue import broker_key, decode_broker, encode
from stentor.broker.cluster.chain_port import ChainPort
from stentor.broker.cluster.control import Control
from stentor.broker.cluster.disk_health import DiskHealth
from stentor.broker.cluster.hearsay import Hearsay
from stentor.broker.cluster.liveness import Liveness
from stentor.broker.cluster.peer_input import PeerInput
from stentor.broker.cluster.peer_links import Peers
from stentor.broker.cluster.senders import Senders
from stentor.broker.cluster.store_contact import StoreContact
from stentor.broker.cluster.store_follower import FollowedStore, StoreFollower
from stentor.broker.cluster.store_look import StoreLook
from stentor.broker.cluster.store_rollback import StoreRollback
from stentor.broker.cluster.store_room import StoreKeeper
from stentor.broker.cluster.trust import Trust
from stentor.core import cluster_events as e
from stentor.core.controller import BrokerRecord
from stentor.wire.statistics import ClusterStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.background import Background
    from stentor.broker.catalogue import Catalogue, News
    from stentor.broker.cluster.interfaces import LocalCopy
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.core.records import Key
    from stentor.core.standing import Standing
    from stentor.ports import CoordinationStore
    from stentor.wire.messages import BrokerInfo

_IDENTITY = "identity/cluster"


class Cluster:
    """The cluster as this broker takes part in it."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        standing: Standing,
        *,
        store: CoordinationStore,
        catalogue: Catalogue,
        copies: Mapping[Key, LocalCopy],
        background: Background,
    ) -> None:
        self._environment = environment
        self._identity = identity
        self._standing = standing
        self._store = store
        self._catalogue = catalogue
        self._background = background
        self.rollback = StoreRollback()
        self.follower = StoreFollower(store, catalogue, self.rollback)
        self.followed = followed = FollowedStore(store, catalogue, self.rollback, self.follower)
        self.trust = trust = Trust(
            identity, followed=followed, background=background, level_max=environment.config.feature_level_max
        )
        self.peers = peers = Peers(environment, identity, trust)
        self.control = Control(
            environment,
            identity,
            followed=followed,
            peers=peers,
            copies=copies,
            background=background,
        )
        probe_s = limits.DISK_PROBE_ALONE_S if identity.alone else limits.DISK_PROBE_S
        config = environment.config
        self.disk = DiskHealth(Path(config.data_directory), config.disk_reserve_bytes, probe_s)
        self.store_answers = True
        self.store_keeper = StoreKeeper(environment, store, background, self._is_controller)
        self._build_hearing(copies)

    def _build_hearing(self, copies: Mapping[Key, LocalCopy]) -> None:
        """What is heard from other brokers, and said to them."""
        environment, control, peers, follower = self._environment, self.control, self.peers, self.follower
        hearsay = Hearsay(copies, followed=self.followed, background=self._background)
        self.senders = Senders(
            environment.clock,
            followed=self.followed,
            trust=self.trust,
            background=self._background,
            control=control,
        )
        self.input = PeerInput(
            environment,
            copies,
            control=control,
            peers=peers,
            senders=self.senders,
            hearsay=hearsay,
            follower=follower,
            look=StoreLook(environment, self.rollback, follower, self._background),
            background=self._background,
        )
        self.port = ChainPort(
            control=control, peers=peers, peer_input=self.input, hearsay=hearsay, follower=follower, disk=self.disk
        )
        self.liveness = Liveness(
            environment,
            self._identity,
            self._standing,
            control=control,
            peers=peers,
            follower=follower,
            disk=self.disk,
            background=self._background,
        )
        self._listen(hearsay)

    def _listen(self, hearsay: Hearsay) -> None:
        """The cluster's parts hear of each other; whoever else must hear is added by the broker."""
        self.follower.on_news.append(self._take_news)
        self.follower.on_read.append(hearsay.settle)
        self.input.on_complete = self.liveness.told_everything
        self.liveness.on_ping.extend((self.peers.ping, hearsay.check_rumours))
        self.trust.on_change.append(self.peers.check)
        self.peers.on_refused = self._refused
        self.peers.on_connected.append(self._connected)
        if not self._identity.alone:  # a broker on its own has no liveness key
            self.follower.on_liveness.append(self._note_liveness)

    # --- start ----------------------------------------------------------------------------------

    async def identify(self) -> str:
        """The cluster's id: made by whoever comes first."""
        while True:
            found = await self._store.get(_IDENTITY)
            if found is not None:
                await self.trust.make_tokens_key()
                return found.value.decode()
            founding = self.trust.founding()
            await self._store.swap(expect={_IDENTITY: 0}, put={_IDENTITY: uuid.uuid4().hex.encode(), **founding})

    def remembered_incarnation(self) -> int:
        """Which life of this broker the others know of (C3)."""
        record = self._catalogue.brokers.get(self._identity.broker_id)
        return 0 if record is None else record.incarnation

    def follow(self, revision: int) -> None:
        """Hear what the store says from now on."""
        self._background.spawn(self.follower.watch(revision))

    def take_part(self) -> None:
        """Say that this broker is there, and look at who else is."""
        environment, identity = self._environment, self._identity
        self.disk.start(environment.disk_threads(environment.loop, threads=1, name="probe"))
        if not identity.alone:
            contact = StoreContact(self._store, identity.broker_id, identity.incarnation)
            self._background.spawn(contact.keep_alive())
            self._background.spawn(contact.ask(self._note_store))
        self.liveness.beat()

    async def register(self, own: BrokerInfo, addresses: Mapping[str, str]) -> None:
        """Tell the others who and where this broker is."""
        key = broker_key(own.id)
        while True:
            held = await self._store.get(key)
            draining = held is not None and decode_broker(held.value).draining  # as an operator wants it now
            record = BrokerRecord(
                own.id,
                self._identity.incarnation,
                address=own.address,
                http_address=own.http_address,
                zone=own.zone,
                draining=draining,
                version=__version__,
                addresses=dict(addresses),
                level=self.trust.level_known,
            )
            revision = 0 if held is None else held.revision
            if (await self._store.swap(expect={key: revision}, put={key: encode(record)})).succeeded:
                return

    # --- news -----------------------------------------------------------------------------------

    def _take_news(self, news: News) -> None:
        self.rollback.tell_vanished(news.vanished)
        if news.brokers:
            me = self._identity.broker_id
            self.peers.set({b.id: b.address for b in self._catalogue.brokers.values() if b.id != me})
        self.control.take_news(news)

    def _note_liveness(self, name: str, alive: bool) -> None:
        self.control.step(e.LivenessSeen(name, alive))

    def _note_store(self, answers: bool) -> None:
        """C29: whether the coordination store can be reached."""
        self.store_answers = answers
        self.control.step(e.StoreAsked(answers))

    def _connected(self, name: str) -> None:
        if name == self.control.machine.controller_broker:
            self.control.reporting.soon()

    def _refused(self, name: str) -> None:
        self.control.step(e.Refused(name))

    def _is_controller(self) -> bool:
        member = self.control.member
        return member is not None and member.controller is not None

    # --- what others see ------------------------------------------------------------------------

    @property
    def confirmed(self) -> bool:
        """C6: whether somebody who could replace this broker would have told it."""
        return self._standing.confirmed

    @property
    def reaches_store(self) -> bool:
        """Whether this broker could change something in the store (C29)."""
        member = self.control.member
        return member is None or member.membership.reaches_store

    def close(self) -> None:
        self.disk.close()
        self.peers.close()

    def statistics(self) -> ClusterStatistics | None:
        """None until this broker has joined."""
        member = self.control.member
        if member is None:
            return None
        seen = member.membership.statistics(self.control.now_us())
        return ClusterStatistics(
            controller=seen.controller,
            peers=seen.peers,
            lags=seen.lags,
            reaches_store=seen.reaches_store,
            writes=seen.writes,
            takeovers=member.takeovers,
            resignations=member.resignations,
            store_restored=self.rollback.noticed,
            chains=UNSET if member.controller is None else member.controller.statistics(),
            confirmed=self.confirmed,
            feature_level=self.trust.level,
            store=self.store_keeper.statistics(),
        )
