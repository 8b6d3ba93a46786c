"""Where a broker is put together: the one place that knows all parts. Each gets what it needs, and nothing else.

    ground       what was there before: settings, clocks, threads, directory, journal, store; and who this broker is
    partitions   the copies that it holds                        partitions/
    cluster      it and the other brokers                        cluster/
    sessions     those who connected to it                       sessions/

Parts do not know this module. Who must hear of something is added to a list of listeners here (`_listen`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stentor import limits
from stentor._version import __version__
from stentor.broker.background import Background
from stentor.broker.books import Books
from stentor.broker.catalogue import Catalogue
from stentor.broker.cluster.cluster import Cluster
from stentor.broker.cluster.deletion_marks import DeletionMarks
from stentor.broker.cluster.operators import Operators
from stentor.broker.cluster.routes import Routes
from stentor.broker.cluster.storeless_start import StorelessStart
from stentor.broker.cluster.topic_admin import TopicAdmin
from stentor.broker.cursors.care import CursorCare
from stentor.broker.cursors.desk import CursorDesk, knows_cursors
from stentor.broker.cursors.heads import CursorHeads
from stentor.broker.cursors.positions import CursorPositions
from stentor.broker.cursors.questions import CursorQuestions
from stentor.broker.environment import BrokerIdentity
from stentor.broker.groups.desk import GroupDesk
from stentor.broker.groups.heads import GroupHeads
from stentor.broker.health import HealthWatch
from stentor.broker.held_topics import held_topics
from stentor.broker.overview import Overview
from stentor.broker.partitions.chain_desk import ChainDesk
from stentor.broker.partitions.compactions import Compactions
from stentor.broker.partitions.copies import Copies
from stentor.broker.partitions.letting_go import LettingGo
from stentor.broker.partitions.replicas import Replicas
from stentor.broker.partitions.serving import Serving
from stentor.broker.partitions.tail_cache import TailBudget, budget_of
from stentor.broker.queues.desk import QueueDesk
from stentor.broker.queues.heads import QueueHeads
from stentor.broker.services.desk import ServiceDesk
from stentor.broker.services.directory import ServiceDirectory
from stentor.broker.sessions.admission import Admission
from stentor.broker.sessions.client_session import ClientServices
from stentor.broker.sessions.inline_sync import InlineSync
from stentor.broker.sessions.newcomer import GreetingServices, Newcomer
from stentor.broker.sessions.peer_session import PeerServices
from stentor.broker.sessions.requests import Requests
from stentor.broker.timers import Timers
from stentor.core.memory_budget import MemoryBudget, share_of
from stentor.core.standing import Standing
from stentor.memory import machine_memory
from stentor.security.permissions import Permissions
from stentor.storage.directory import CATALOGUE_FILE
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stentor.broker.environment import Environment
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.sessions.listeners import Listeners
    from stentor.core.records import Key
    from stentor.ports import CoordinationStore
    from stentor.storage.directory import DataDirectory
    from stentor.storage.journal import ReplicaJournal
    from stentor.transport.connection import Connection


class Ground:
    """What a broker stands on, and who it is."""

    def __init__(
        self,
        environment: Environment,
        directory: DataDirectory,
        journal: ReplicaJournal,
        store: CoordinationStore,
        listeners: Listeners,
    ) -> None:
        self.environment = environment
        self.directory = directory
        self.journal = journal
        self.store = store
        self.listeners = listeners
        self.identity = BrokerIdentity()
        self.standing = Standing()
        self.catalogue = Catalogue()
        self.partitions: dict[Key, Partition] = {}
        self.background = Background(environment.loop, environment.watch)
        self.timers = Timers(environment.loop, environment.watch, environment.failures)
        self.permissions = Permissions()
        self.memory = MemoryBudget(environment.config.memory_budget_bytes or share_of(machine_memory()))
        self.tails = TailBudget(budget_of(machine_memory()))


class SharedWork(NamedTuple):
    """Who divides work among clients."""

    groups: GroupDesk
    queues: QueueDesk


class Parts:
    """A broker's parts, wired."""

    def __init__(self, ground: Ground, after_delete: Callable[[], Awaitable[None]]) -> None:
        self.ground = ground
        self._build_cluster(ground)
        self._build_partitions(ground)
        self._build_administration(ground)
        self._build_sessions(ground, after_delete)
        self._listen(ground)

    def _build_cluster(self, ground: Ground) -> None:
        environment, identity = ground.environment, ground.identity
        self.cluster = Cluster(
            environment,
            identity,
            ground.standing,
            store=ground.store,
            catalogue=ground.catalogue,
            copies=ground.partitions,
            background=ground.background,
        )
        self.storeless = StorelessStart(
            environment,
            identity,
            ground.standing,
            store=ground.store,
            catalogue=ground.catalogue,
            file=Path(environment.config.data_directory) / CATALOGUE_FILE,
        )
        self.books = Books(identity, ground.journal, ground.partitions, self.cluster.rollback, self.storeless)

    def _build_partitions(self, ground: Ground) -> None:
        environment, identity, standing = ground.environment, ground.identity, ground.standing
        self.copies = Copies(
            environment,
            identity,
            standing,
            directory=ground.directory,
            journal=ground.journal,
            memory=ground.memory,
            tails=ground.tails,
        )
        self.desk = ChainDesk(
            environment,
            standing,
            partitions=ground.partitions,
            copies=self.copies,
            journal=ground.journal,
            port=self.cluster.port,
        )
        self.replicas = Replicas(
            environment,
            identity,
            catalogue=ground.catalogue,
            partitions=ground.partitions,
            copies=self.copies,
            journal=ground.journal,
            desk=self.desk,
            port=self.cluster.port,
            background=ground.background,
        )
        self.positions = CursorPositions(
            environment.clock,
            ground.catalogue,
            ground.partitions,
            enabled=partial(knows_cursors, identity, self.cluster.trust),
        )
        compactions = Compactions(environment, ground.partitions, lambda: self.cluster.trust.compaction)
        held = (ground.catalogue, ground.directory, ground.partitions)
        self.letting_go = LettingGo(environment, *held, self.positions, compactions)
        self.serving = Serving(
            environment,
            identity,
            standing,
            catalogue=ground.catalogue,
            store=ground.store,
            partitions=ground.partitions,
            views=self.cluster.control,
            knows_expiry=lambda: self.cluster.trust.expiry,
            knows_holders=lambda: self.cluster.trust.holders,
        )

    def _build_administration(self, ground: Ground) -> None:
        environment, identity, cluster = ground.environment, ground.identity, self.cluster
        self.admission = Admission(environment, identity, ground.partitions)
        self.topics = TopicAdmin(
            environment,
            identity,
            followed=cluster.followed,
            control=cluster.control,
            peers=cluster.peers,
            trust=cluster.trust,
            logs=self.replicas,
            check_room=self.admission.check_descriptors,
            keeper=cluster.store_keeper,
        )
        self._build_cursors(ground)
        self.routes = Routes(
            environment,
            identity,
            ground.catalogue,
            cluster.control,
            own=self.info,
            watchers=self.admission.clients,
        )

    def _build_cursors(self, ground: Ground) -> None:
        identity, cluster = ground.identity, self.cluster
        heads = CursorHeads(ground.environment.clock, ground.catalogue, self.serving)
        questions = CursorQuestions(cluster.peers, heads, ground.background)
        cluster.input.on_cursors = questions.heard
        self.cursors = CursorDesk(
            identity,
            store=ground.store,
            catalogue=ground.catalogue,
            cluster=cluster,
            topics=self.topics,
            serving=self.serving,
            heads=heads,
            questions=questions,
            positions=self.positions,
        )
        groups = GroupDesk(
            identity,
            ground.environment.clock,
            trust=cluster.trust,
            permissions=ground.permissions,
            catalogue=ground.catalogue,
            serving=self.serving,
            cursors=self.cursors,
            heads=GroupHeads(ground.environment, ground.catalogue, self.serving, heads, ground.background),
            long_requests=ground.environment.long_requests,
        )
        queue_heads = QueueHeads(ground.environment.clock, self.serving, ground.background, cluster.trust)
        self.letting_go.on_pinned = queue_heads.pinned
        queues = QueueDesk(
            identity,
            ground.environment.clock,
            trust=cluster.trust,
            serving=self.serving,
            heads=queue_heads,
            long_requests=ground.environment.long_requests,
        )
        self.shared = SharedWork(groups, queues)
        self.cursor_care = CursorCare(
            identity,
            store=ground.store,
            catalogue=ground.catalogue,
            cluster=cluster,
            topics=self.topics,
            desk=self.cursors,
            heads=heads,
            positions=self.positions,
            background=ground.background,
        )

        self.deletion_marks = DeletionMarks(
            ground.environment.clock,
            identity,
            cluster=cluster,
            held=partial(held_topics, ground.partitions, self.copies),
            background=ground.background,
        )

    def _build_sessions(self, ground: Ground, after_delete: Callable[[], Awaitable[None]]) -> None:
        environment, identity, cluster = ground.environment, ground.identity, self.cluster
        permissions = ground.permissions
        self._build_services(ground)
        inline_sync = InlineSync(environment.clock, environment.coalescing)
        self.health = HealthWatch(
            identity,
            ground.standing,
            partitions=ground.partitions,
            unopened=self.copies.unopened,
            cluster=cluster,
            background=ground.background,
            memory=ground.memory,
        )
        self.overview = Overview(
            environment,
            identity,
            catalogue=ground.catalogue,
            partitions=ground.partitions,
            cluster=cluster,
            admission=self.admission,
            inline_sync=inline_sync,
            health=self.health,
            services=self.services,
            memory=ground.memory,
            tails=ground.tails,
        )
        desk = self._desk(ground, after_delete)
        self._welcome = GreetingServices(
            identity=identity,
            trust=cluster.trust,
            catalogue=ground.catalogue,
            clock=environment.clock,
            admission=self.admission,
            turns=environment.turns,
            info=self.info,
            look=cluster.senders.look,
            clients=ClientServices(
                serving=self.serving,
                desk=desk,
                permissions=permissions,
                inline_sync=inline_sync,
                has_few_sessions=lambda: len(self.admission.sessions) <= limits.HISTORY_SESSIONS_MAX,
                services=self.services,
                turns=environment.turns,
                watch=environment.watch,
                slices=environment.slices,
                long_requests=environment.long_requests,
            ),
            peers=self._peer_services(ground, inline_sync),
            peer_arrived=self.replicas.peer_connected,
        )

    def _peer_services(self, ground: Ground, inline_sync: InlineSync) -> PeerServices:
        return PeerServices(
            heard=self.cluster.input.heard,
            offered=self.replicas.offered,
            registered=lambda name: name in ground.catalogue.brokers,
            inline_sync=inline_sync,
        )

    def _build_services(self, ground: Ground) -> None:
        environment, identity, cluster = ground.environment, ground.identity, self.cluster
        directory = ServiceDirectory(environment, identity, cluster.peers, cluster.control)
        self.services = ServiceDesk(
            identity,
            environment.clock,
            trust=cluster.trust,
            permissions=ground.permissions,
            directory=directory,
        )
        cluster.input.on_responders = directory.heard
        cluster.peers.on_connected.append(directory.tell)

    def _desk(self, ground: Ground, after_delete: Callable[[], Awaitable[None]]) -> Requests:
        return Requests(
            ground.environment.config,
            ground.standing,
            permissions=ground.permissions,
            catalogue=ground.catalogue,
            cluster=self.cluster,
            routes=self.routes,
            topics=self.topics,
            operators=self._operators(ground),
            serving=self.serving,
            partitions=ground.partitions,
            cursors=self.cursors,
            groups=self.shared.groups,
            queues=self.shared.queues,
            long_requests=ground.environment.long_requests,
            services=self.services,
            sights=self.overview,
            after_delete=after_delete,
        )

    def _operators(self, ground: Ground) -> Operators:
        return Operators(
            ground.identity,
            followed=self.cluster.followed,
            control=self.cluster.control,
            copies=ground.partitions,
            cut_cursors=self.cursors.cut,
            keeper=self.cluster.store_keeper,
        )

    def _listen(self, ground: Ground) -> None:
        """Who must hear of what."""
        cluster, replicas, admission = self.cluster, self.replicas, self.admission
        if not ground.identity.alone:
            cluster.follower.on_news.append(partial(cluster.trust.take_news, register=self.register))
            cluster.trust.on_change.append(partial(admission.check_peers, cluster.trust.accepts))
        cluster.follower.on_news.extend((self.routes.take_news, replicas.take_news))
        cluster.peers.on_connected.append(replicas.peer_connected)
        liveness = cluster.liveness
        liveness.load = lambda: len(admission.sessions)
        liveness.on_beat.extend((self.desk.tick, self.serving.expiring.tick, self.shared.queues.heads.tick))
        liveness.on_view.extend((replicas.look_at_view, self.routes.look_at_view))
        liveness.on_unheard.append(self.desk.wake_before)
        liveness.on_cut_off.extend((replicas.end_streams_for_now, admission.close_watchers))

    # --- what the broker does with them ---------------------------------------------------------

    def new_connection(self, listener: str) -> Connection:
        """For whoever comes in by a listener."""
        return Newcomer(self._welcome, listener).connection

    async def register(self) -> None:
        """Tell the others who and where this broker is."""
        await self.cluster.register(self.info(), self.ground.listeners.addresses)

    async def join(self, revision: int) -> None:
        """Take part in the cluster, as the store has it from this revision on."""
        insist = self.storeless.insist
        self.cluster.control.join()
        await insist(self.register)
        self.cluster.follow(revision)
        await insist(self.cluster.follower.learn_as_news)
        self.cluster.take_part()

    def info(self, listener: str = "") -> messages.BrokerInfo:
        """This broker, as those see it who came in by a listener."""
        identity, listeners = self.ground.identity, self.ground.listeners
        return messages.BrokerInfo(
            id=identity.broker_id,
            cluster_id=identity.cluster_id,
            version=__version__,
            address=listeners.addresses.get(listener, listeners.address),
            http_address=identity.http_address,
            zone=self.ground.environment.config.zone,
            load=len(self.admission.sessions),
        )
