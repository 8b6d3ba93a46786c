"""The broker: one process, one loop, everything a system or a member of a cluster needs.

Start: lock the directory, read the journal and the coordination store, recover every log, listen, join the
cluster (on its own: become its controller and open a new epoch). Stop: refuse new work, bring every log to disk,
answer what waited, tell every client, let go of the directory.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor._version import __version__
from stentor.broker.catalogue import Catalogue, HeldTopic, deleted_key
from stentor.broker.cluster.cluster import Cluster
from stentor.broker.cluster.operators import Operators
from stentor.broker.cluster.serving import check_serves, elsewhere
from stentor.broker.cluster.storeless_start import StorelessStart, without_store
from stentor.broker.cluster.topic_admin import TopicAdmin, delete_all, deleted_error
from stentor.broker.cluster.trust import Trust
from stentor.broker.disk_threads import DiskThreads
from stentor.broker.health import HealthWatch
from stentor.broker.overview import Overview
from stentor.broker.partitions.recorded import RecordedEnds
from stentor.broker.partitions.replicas import Replicas
from stentor.broker.sessions.admission import Admission
from stentor.broker.sessions.inline_sync import InlineSync
from stentor.broker.sessions.listeners import Listeners
from stentor.broker.sessions.requests import serve
from stentor.broker.sessions.session import Session
from stentor.broker.write_coalescing import WriteCoalescing
from stentor.coordination import EmbeddedStore
from stentor.core import refusals
from stentor.errors import (
    CorruptData,
    InvalidArgument,
    StentorError,
)
from stentor.storage.changes import ChangesFile
from stentor.storage.directory import (
    BROKER_FILE,
    CATALOGUE_FILE,
    CHANGES_FILE,
    COORDINATION_FILE,
    SECRET_FILE,
    DataDirectory,
)
from stentor.storage.files import atomic_write
from stentor.storage.identity import settle_broker_id
from stentor.wire import bodies, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.config import BrokerConfig
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.ports import Clock, CoordinationStore, Health
    from stentor.wire.messages import TopicChanges, TopicSettings

logger = logging.getLogger(__name__)

_ACTIVATION_S = 10.0  # how long a start or a new topic waits for its chains
_POLL_S = 0.002
_LAST_BYTES_S = 0.05  # what clients had sent already is read, and not answered: they send it again elsewhere
_SYNC_THREADS = 4
_READ_THREADS = 2


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class Broker:
    """A running broker. `start` and `stop` are its life."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        disk_threads: Callable[..., DiskThreads] = DiskThreads,
        open_store: Callable[[BrokerConfig], CoordinationStore] | None = None,
    ) -> None:
        """The clock, the disk's threads and the cluster's store may be others than the machine's: simulated ones."""
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.disk_threads = disk_threads
        self._open_cluster_store = open_store or open_cluster_store
        self.loop = asyncio.get_running_loop()
        self.turn = WriteCoalescing(self.loop)
        self.guests = Admission(self)
        self.sessions = self.guests.sessions
        self.receiving = self.guests.receiving
        self.strangers = self.guests.strangers
        self.route_version = 1
        self.http_address = ""  # told by whoever serves HTTP for this broker
        self.stopping = False
        self.ready = False
        self._directory: DataDirectory | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._checkpointing = False
        self._retaining = False
        self.listeners = Listeners(config)
        self._overview = Overview(self)
        self._no_sessions = asyncio.Event()
        self.lone = InlineSync()
        self.catalogue = Catalogue()
        self.trust = Trust(self)
        self.cluster = Cluster(self)
        self.topics = TopicAdmin(self)
        self.operators = Operators(self)
        self.recorded = RecordedEnds(self)
        self._health = HealthWatch(self)
        self.admin = asyncio.Lock()  # topics change one at a time

    # --- start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the broker up, or leave nothing behind."""
        try:
            await self._start()
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        began = time.monotonic()
        bodies.arrow("A broker")  # loaded now, so that the first batch does not wait for it
        path = Path(self.config.data_directory)
        self._directory = directory = DataDirectory(path)
        self.syncs = self.disk_threads(self.loop, threads=_SYNC_THREADS, name="sync")
        self.reads = self.disk_threads(self.loop, threads=_READ_THREADS, name="read")
        self.epochs = self.disk_threads(self.loop, threads=1, name="epochs")
        self._journal = directory.journal(expected=not self.config.unclean, alone=not self.config.coordination)
        self.replicas = Replicas(self, directory, self._journal)
        self.store = self._open_store(path)
        self.broker_id = await self._identity(path)
        self._swept_at = self.clock.monotonic()
        self._every(limits.SWEEP_S, self._sweep)
        self.waiting = StorelessStart(self, path / CATALOGUE_FILE)
        if not self.replicas.single:
            self.trust.open(path / SECRET_FILE)
            await self.waiting.until_store_answers()
        self.cluster_id = await self.waiting.insist(self.cluster.identify)
        revision = await self.waiting.insist(self.cluster.learn)
        if not self.replicas.single:
            self.cluster.restored.check_start(self._journal, revision, accept=self.config.accept_older_store)
            await self.waiting.insist(self.trust.learn)
        await self._recover()
        await self.listen()
        self._every(limits.CHECKPOINT_S, self._checkpoint)
        self._every(limits.RETENTION_CHECK_S, self._retain)
        self._every(limits.RECORDED_STORE_S, self.recorded.store_soon)
        self._every(limits.ASIDE_CHECK_S, self._clear_aside)
        self._every(limits.HEALTH_CHECK_S, self._health.look_soon)
        await self.cluster.join(revision)
        if self.replicas.single:
            await self._until(self._all_at_work, _ACTIVATION_S)
        self.ready = True
        logger.info(
            "broker %s ready on %s: %d topics, %d partitions, %.2f s",
            self.broker_id,
            self.address,
            len(self.catalogue.topics),
            len(self.partitions),
            time.monotonic() - began,
        )

    async def listen(self) -> None:
        """Let clients and other brokers in."""
        await self.listeners.open(self.loop, lambda listener: Session(self, listener).connection)

    def _open_store(self, path: Path) -> CoordinationStore:
        if self.config.coordination:
            return self._open_cluster_store(self.config)
        self.replicas.single = True
        file = path / COORDINATION_FILE
        saved = file.read_bytes() if file.exists() else None
        if saved is None and self._journal.replicas():
            raise CorruptData(
                f"The file {file} is missing, although there are logs.",
                hint="Restore it from a backup: it says which topics the logs belong to.",
                object=str(file),
            )
        return EmbeddedStore(saved, partial(atomic_write, file), changes=ChangesFile(path / CHANGES_FILE))

    async def _identity(self, path: Path) -> str:
        """Who this broker is: told by the config, or made once and kept."""
        made = f"broker-{uuid.uuid4().hex[:8]}"
        if not self.replicas.single:
            return settle_broker_id(path / BROKER_FILE, self.config.broker_id or "", made)
        found = await self.store.get("identity/broker")
        broker_id = self.config.broker_id or (made if found is None else found.value.decode())
        if found is None or found.value.decode() != broker_id:
            await self.store.swap(expect={}, put={"identity/broker": broker_id.encode()})
        return broker_id

    async def _recover(self) -> None:
        """Open the logs on this disk, unless others remember a later life of this broker than the disk does (C3)."""
        remembered = self.cluster.remembered_incarnation()
        if remembered >= self._journal.incarnation:
            self._journal.pass_incarnation(remembered)
            await asyncio.to_thread(self._journal.store)
            if not self.replicas.single and self._journal.replicas():
                logger.error("this data directory is an old copy: its logs are put aside and fetched anew")
                for key in self._journal.replicas():
                    assert self._directory is not None
                    self._directory.put_aside(*key)
                    self._journal.remove(*key)
        await self._remove_deleted()
        chains = self.catalogue.chains
        named = {
            key: member
            for key, held in chains.items()
            for member in held.record.chain
            if member.broker == self.broker_id or self.replicas.single
        }
        await self.replicas.open_all(self.catalogue.topics.values(), named)
        self._checkpoint_now()

    async def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        deadline = self.loop.time() + seconds
        while not holds():
            if self.loop.time() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _all_at_work(self) -> bool:
        return all(partition.replica.active or partition.replica.failed for partition in self.partitions.values())

    # --- partitions -----------------------------------------------------------------------------

    @property
    def partitions(self) -> dict[Key, Partition]:
        return self.replicas.partitions

    @property
    def incarnation(self) -> int:
        return self._journal.incarnation

    def partition(self, topic_id: int, index: int) -> Partition:
        """The partition that a frame names."""
        found = self.replicas.partitions.get((topic_id, index))
        if found is None or found.deleted:
            raise elsewhere(self, topic_id, index)
        return found

    def address_of(self, name: str) -> str:
        """Where another broker is, for clients that can reach only this one."""
        record = self.catalogue.brokers.get(name)
        if record is None:
            raise InvalidArgument(f"There is no broker {name}.", object=name)
        return record.address

    def check_serves(self, partition: Partition) -> None:
        """Whether readers are served here; the reason why not is raised."""
        check_serves(self, partition)

    def cut_off(self) -> StentorError:
        """Why a broker that nobody hears takes nothing and serves nobody."""
        return without_store() if self.waiting.serves else refusals.cut_off()

    async def wait_until_active(self, topic: HeldTopic) -> None:
        """Give the chains of a new topic a moment, so that the first publish finds them at work."""

        def active() -> bool:
            local = [self.replicas.partitions.get(key) for key in topic.keys]
            return all(_is_settled(partition) for partition in local if partition is not None)

        await self._until(active, _ACTIVATION_S)

    def remove_directories(self, keys: list[Key]) -> None:
        """In a thread: what a topic that was not made left on disk."""
        assert self._directory is not None
        for key in keys:
            self._directory.remove_partition(*key)

    # --- topics ---------------------------------------------------------------------------------

    async def create_topic(self, name: str, settings: TopicSettings) -> HeldTopic:
        return await self.topics.create(name, settings)

    async def alter_topic(self, name: str, changes: TopicChanges) -> HeldTopic:
        return await self.topics.alter(name, changes)

    async def delete_topic(self, name: str) -> None:
        await self.topics.delete(name)
        if self.replicas.single:
            await self._remove_deleted()

    def apply_settings(self, topic: HeldTopic) -> None:
        """A topic's settings changed."""
        settings = topic.record.settings
        for key in topic.keys:
            partition = self.replicas.partitions.get(key)
            if partition is not None:
                partition.schemas = len(topic.record.schemas)
            if partition is not None and partition.settings != settings:
                partition.settings = settings
                partition.log.settings = self.replicas.log_settings(settings)
                partition.flush_later()
                partition.catch_up_with_disk()

    async def drop_topic(self, topic_id: int) -> None:
        """A topic was deleted, here or elsewhere: its logs go."""
        for key in [key for key in self.replicas.partitions if key[0] == topic_id]:
            if (partition := self.replicas.partitions.get(key)) is not None:
                await self.replicas.drop(key, deleted_error(partition.topic))

    async def _remove_deleted(self) -> None:
        """A crash may have come between deleting a topic and removing its files."""
        deleted = await self.waiting.insist(partial(self.store.range, "deleted/"))
        topic_ids = {int(entry.key.split("/")[1], 16) for entry in deleted}
        assert self._directory is not None
        for found in self._directory.partitions():
            if found.topic_id in topic_ids:
                await asyncio.to_thread(self._directory.remove, found)
                self._journal.remove(found.topic_id, found.partition)
        if topic_ids and self.replicas.single:
            # In a cluster the marks stay: another broker may come back with its copies.
            await delete_all(self.store, [deleted_key(topic_id) for topic_id in topic_ids])

    def next_route_version(self) -> int:
        self.route_version += 1
        return self.route_version

    def announce(self, change: Callable[[str], messages.RouteChange]) -> None:
        """Tell every client that watches routes, in the words of the listener that it came in by."""
        bodies: dict[str, bytes] = {}
        for session in self.sessions:
            if session.listener not in bodies:
                bodies[session.listener] = messages.encode(change(session.listener))
            session.routes_changed(bodies[session.listener])

    def route_table(self, listener: str) -> messages.RouteTable:
        return messages.RouteTable(
            version=self.route_version,
            brokers=self.cluster.routes.brokers(listener),
            topics=[self.catalogue.route(topic) for topic in self.catalogue.topics.values()],
        )

    # --- sessions -------------------------------------------------------------------------------

    def session_ended(self, session: Session) -> None:
        self.guests.ended(session)
        if not self.sessions:
            self._no_sessions.set()

    async def serve_request(self, session: Session, request: Any) -> Any:
        return await serve(self, session, request)

    # --- timers ---------------------------------------------------------------------------------

    def _every(self, seconds: float, work: Any) -> None:
        def run() -> None:
            if not self.stopping:
                try:
                    work()
                except Exception:
                    logger.exception("a timer failed")
                self._every(seconds, work)

        self._timers.append(self.loop.call_later(seconds, run))
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > self.loop.time()]

    def _sweep(self) -> None:
        now = self.clock.monotonic()
        lagged = now - self._swept_at > limits.SWEEP_S + limits.LOOP_LAG_S
        self._swept_at = now
        self.guests.sweep(now, lagged=lagged)

    def _note_books(self) -> None:
        self.replicas.note_floors()
        if not self.replicas.single:
            self._journal.note_revision(self.cluster.restored.revision)
            self.waiting.note()

    def _store_books(self) -> None:
        self._journal.store()
        self.waiting.store()

    def _checkpoint_now(self) -> None:
        self._note_books()
        self._store_books()

    def _last_checkpoint(self) -> None:
        """A disk that fails at the end has lost nothing that was promised: the next start looks more closely."""
        try:
            self._checkpoint_now()
        except StentorError as error:
            logger.error("the journal could not be written: %s", error)  # noqa: TRY400 - the sentence says it all

    def _checkpoint(self) -> None:
        """Record synced ends and commit floors (K3a), without holding up the loop."""
        if not self._checkpointing:
            self._note_books()
            self._checkpointing = True
            self.reads.submit(self._store_books, self._checkpointed)

    def _checkpointed(self, _: Any, error: StentorError | None) -> None:
        self._checkpointing = False
        if error is not None:
            logger.error("the journal could not be written: %s", error)

    def _retain(self) -> None:
        if self._retaining:
            return
        self.replicas.forget_superseded()
        for partition in self.partitions.values():
            partition.roll_if_due()
        self._retaining = True
        self.reads.submit(self.replicas.retain, self._retained)

    def _retained(self, _: Any, error: StentorError | None) -> None:
        self._retaining = False
        if error is not None:
            logger.error("retention failed: %s", error)

    def _clear_aside(self) -> None:
        self.reads.submit(self.replicas.clear_aside, self._aside_cleared)

    def _aside_cleared(self, _: Any, error: StentorError | None) -> None:
        if error is not None:
            logger.error("copies that were put aside could not be removed: %s", error)

    # --- stop -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Lose nothing: sync, answer, tell, close."""
        if self.stopping:
            return
        self.stopping = True
        self.ready = False
        logger.info("broker %s is stopping", getattr(self, "broker_id", "?"))
        self.listeners.close()
        with suppress(TimeoutError):
            # A change of topics that is under way is finished, and no other begins.
            await asyncio.wait_for(self.admin.acquire(), limits.SHUTDOWN_S)
        for session in list(self.sessions):
            session.hold()
        self.replicas.stop_flushing()
        settling = [self.replicas.settle(partition) for partition in self.partitions.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*settling), limits.SHUTDOWN_S)
        except TimeoutError:
            logger.warning("some logs could not be synced within %g s", limits.SHUTDOWN_S)
        for session in list(self.sessions):
            session.discard()
        await asyncio.sleep(_LAST_BYTES_S if self.sessions else 0)  # answers leave at the end of a turn of the loop
        await self.close_sessions()
        await self._release()
        logger.info("broker stopped")

    async def close_sessions(self) -> None:
        """Everyone is told, and let go."""
        self._no_sessions.clear()
        if not self.sessions:
            self._no_sessions.set()
        for session in list(self.sessions):
            session.going_away()
            session.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._no_sessions.wait(), limits.SHUTDOWN_S / 2)
        for session in list(self.sessions):
            session.connection.abort()

    async def _release(self) -> None:
        """Let go of everything, from the last line here to the first, whatever fails on the way."""
        async with AsyncExitStack() as stack:
            if self._directory is not None:
                stack.callback(self._directory.close)
            if (store := getattr(self, "store", None)) is not None:
                stack.push_async_callback(store.close)
                stack.push_async_callback(self.recorded.close)
            if (journal := getattr(self, "_journal", None)) is not None:
                stack.push_async_callback(asyncio.to_thread, journal.close)
            if (replicas := getattr(self, "replicas", None)) is not None and replicas.partitions:
                for partition in replicas.partitions.values():
                    stack.callback(partition.log.close)
                stack.push_async_callback(asyncio.to_thread, self._last_checkpoint)
            for name in ("reads", "syncs", "epochs"):
                if (threads := getattr(self, name, None)) is not None:
                    stack.push_async_callback(asyncio.to_thread, threads.close)
            stack.push_async_callback(self.cluster.close)
            stack.callback(self.listeners.close)
            for timer in self._timers:
                timer.cancel()

    # --- what others see ------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return self.listeners.address

    @property
    def port(self) -> int:
        return self.listeners.port

    @property
    def local_address(self) -> str:
        return self.listeners.local_address

    def info(self, listener: str = "") -> messages.BrokerInfo:
        """This broker, as those see it who came in by a listener."""
        return messages.BrokerInfo(
            id=self.broker_id,
            cluster_id=self.cluster_id,
            version=__version__,
            address=self.listeners.addresses.get(listener, self.address),
            http_address=self.http_address,
            zone=self.config.zone,
            load=len(self.sessions),
        )

    def health(self) -> Health:
        """What is wrong with it, if anything."""
        return self._health.now()

    def statistics(self, partitions_max: int | None = None) -> dict[str, Any]:
        """Everything that metrics, dashboard and CLI show; of so many partitions."""
        return self._overview.statistics(partitions_max)

    async def gather_statistics(self) -> dict[str, Any]:
        """The same, without holding up the loop."""
        return await self._overview.gather()


def _is_settled(partition: Partition) -> bool:
    """At work, or not going to be."""
    replica = partition.replica
    return replica.active or bool(replica.failed) or (replica.record is not None and not replica.position.is_head)


def open_cluster_store(config: BrokerConfig) -> CoordinationStore:
    """The coordination store of a cluster, as the settings name it."""
    from stentor.coordination.etcd import TlsFiles, open_etcd

    files = (config.coordination_ca_file, config.coordination_cert_file, config.coordination_key_file)
    return open_etcd(
        config.coordination,
        tls=TlsFiles(*files) if any(files) else None,
        user=config.coordination_user,
        password=config.coordination_password(),
    )
