"""The broker: one process, one loop, everything a single-broker system needs.

Start: lock the directory, read the journal and the coordination store, recover every log, open a new
epoch in which this start is the chain, listen. Stop: refuse new work, bring every log to disk,
answer what waited, tell every client, let go of the directory.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor._version import __version__
from stentor.broker.catalogue import Catalogue, Topic
from stentor.broker.lone import LonePublisher
from stentor.broker.partition import Partition
from stentor.broker.requests import serve
from stentor.broker.session import Session
from stentor.broker.syncer import DiskThreads
from stentor.coordination import EmbeddedStore
from stentor.core.chain import Replica
from stentor.core.dedupe import Dedupe
from stentor.core.replica import Configure, EpochStored
from stentor.errors import Closed, CorruptData, PartitionNotFound, StentorError, TopicNotFound
from stentor.storage.directory import COORDINATION_FILE, DataDirectory
from stentor.storage.files import atomic_write
from stentor.storage.log import PartitionLog
from stentor.storage.model import LogSettings
from stentor.transport.listener import listen
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.broker.config import BrokerConfig
    from stentor.ports import Clock
    from stentor.wire.header import BatchHeader
    from stentor.wire.messages import TopicSettings

logger = logging.getLogger(__name__)

_RECOVERY_THREADS = 4
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

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.loop = asyncio.get_running_loop()
        self.partitions: dict[tuple[int, int], Partition] = {}
        self.sessions: set[Session] = set()
        self.refusals = 0
        self.route_version = 1
        self.port = 0
        self.http_address = ""  # told by whoever serves HTTP for this broker
        self.stopping = False
        self.ready = False
        self._directory: DataDirectory | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._checkpointing = False
        self._retaining = False
        self._server: asyncio.AbstractServer | None = None
        self._started_at = self.clock.monotonic()
        self._no_sessions = asyncio.Event()
        self.lone = LonePublisher()
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
        path = Path(self.config.data_directory)
        self._directory = directory = DataDirectory(path)
        self._syncs = DiskThreads(self.loop, threads=_SYNC_THREADS, name="sync")
        self._reads = DiskThreads(self.loop, threads=_READ_THREADS, name="read")
        self._journal = directory.journal(expected=not self.config.unclean)
        self.store = self._open_store(path / COORDINATION_FILE)
        self.broker_id, self.cluster_id = await self._identity()
        self.catalogue = Catalogue(self.store, self.broker_id, self._journal.incarnation)
        await self.catalogue.load()
        await self._remove_deleted()
        await self._open_partitions(self.catalogue.topics.values())
        self._checkpoint_now()
        self._server, _, self.port = await listen(
            self.loop, lambda: Session(self).connection, self.config.host, self.config.port
        )
        self._swept_at = self.clock.monotonic()
        self._every(limits.SWEEP_S, self._sweep)
        self._every(limits.CHECKPOINT_S, self._checkpoint)
        self._every(limits.RETENTION_CHECK_S, self._retain)
        self.ready = True
        logger.info(
            "broker %s ready on %s: %d topics, %d partitions, %.2f s",
            self.broker_id,
            self.address,
            len(self.catalogue.topics),
            len(self.partitions),
            time.monotonic() - began,
        )

    def _open_store(self, file: Path) -> EmbeddedStore:
        saved = file.read_bytes() if file.exists() else None
        if saved is None and self._journal.replicas():
            raise CorruptData(
                f"The file {file} is missing, although there are logs.",
                hint="Restore it from a backup: it says which topics the logs belong to.",
                object=str(file),
            )
        return EmbeddedStore(saved, partial(atomic_write, file))

    async def _identity(self) -> tuple[str, str]:
        """Who this broker is: told by the config, or made once and kept."""
        found = {e.key: e.value.decode() for e in await self.store.range("identity/")}
        broker_id = self.config.broker_id or found.get("identity/broker") or f"broker-{uuid.uuid4().hex[:8]}"
        cluster_id = found.get("identity/cluster") or uuid.uuid4().hex
        wanted = {"identity/broker": broker_id, "identity/cluster": cluster_id}
        if found != wanted:
            await self.store.swap(expect={}, put={key: value.encode() for key, value in wanted.items()})
        return broker_id, cluster_id

    # --- partitions -----------------------------------------------------------------------------

    async def _open_partitions(self, topics: Iterable[Topic]) -> None:
        """Recover logs, several at a time: what a restart waits for."""
        with ThreadPoolExecutor(_RECOVERY_THREADS, "stentor-recovery") as pool:
            opening = [
                self.loop.run_in_executor(pool, self._open_partition, topic, index)
                for topic in topics
                for index in range(len(topic.chains))
            ]
            for partition in await asyncio.gather(*opening):
                self.partitions[partition.topic_id, partition.index] = partition
                self._start_flush_timer(partition)

    def _open_partition(self, topic: Topic, index: int) -> Partition:
        record, chain = topic.record, topic.chains[index]
        known = self._journal.get(record.id, index)
        dedupe = Dedupe()
        log = PartitionLog.open(
            self._partition_path(record.id, index),
            topic_id=record.id,
            partition=index,
            log_id=chain.chain[0].log_id,
            settings=self._log_settings(record.settings),
            floor=None if known is None else known.floor,
            restore=dedupe.restore,
            replay=partial(_replay, dedupe),
            unclean=self.config.unclean,
        )
        self._report_recovery(record.name, index, log)
        # Recovery has synced the log (K3a), and this chain has one member: all of it is committed.
        replica = Replica(
            me=chain.chain[0],
            epoch=chain.epoch,
            start=log.start,
            end=log.end,
            committed=log.end,
            dedupe=dedupe,
            table=log.epochs(),
            failed=log.failed or "",
        )
        now_us = self.clock.now_us()
        replica.step(Configure(chain, 1), now_us)
        replica.step(EpochStored(chain.epoch), now_us)
        return Partition(
            topic=record.name,
            topic_id=record.id,
            index=index,
            settings=record.settings,
            log=log,
            replica=replica,
            clock=self.clock,
            syncs=self._syncs,
            reads=self._reads,
        )

    def _partition_path(self, topic_id: int, partition: int) -> Path:
        assert self._directory is not None
        return self._directory.partition_directory(topic_id, partition)

    def _log_settings(self, settings: TopicSettings) -> LogSettings:
        return LogSettings(
            segment_bytes=settings.segment_bytes,
            retention_age_s=settings.retention_age_s,
            retention_bytes=settings.retention_bytes,
            disk_reserve_bytes=self.config.disk_reserve_bytes,
        )

    def _report_recovery(self, topic: str, index: int, log: PartitionLog) -> None:
        report = log.recovery
        for truncation in report.truncated:
            logger.warning("%s/%d: a torn write at the end was cut off: %s", topic, index, truncation)
        for damage in log.damaged:
            logger.error("%s/%d: offsets %d to %d are damaged and refused", topic, index, *damage)

    def _start_flush_timer(self, partition: Partition) -> None:
        """Topics with flush=interval are brought to disk by a timer, one per partition."""

        def flush() -> None:
            partition.has_flush_timer = not (
                partition.deleted or self.stopping or partition.settings.flush != "interval"
            )
            if partition.has_flush_timer:
                partition.flush_interval()
                self.loop.call_later(partition.settings.flush_interval_ms / 1000, flush)

        if not partition.has_flush_timer:
            flush()

    def partition(self, topic_id: int, index: int) -> Partition:
        """The partition that a frame names."""
        found = self.partitions.get((topic_id, index))
        if found is None or found.deleted:
            raise PartitionNotFound(
                f"This broker has no partition {index} of the topic with id {topic_id:x}.",
                hint="The topic may have been deleted or made anew; look it up again.",
            )
        return found

    def topic_partitions(self, topic: Topic) -> list[Partition]:
        return [self.partitions[topic.record.id, index] for index in range(len(topic.chains))]

    # --- topics ---------------------------------------------------------------------------------

    async def create_topic(self, name: str, settings: TopicSettings) -> Topic:
        topic = self.catalogue.plan(name, settings, self.clock.now_us())
        try:
            await self._open_partitions([topic])
            self._checkpoint_now()
            await self.catalogue.add(topic)
        except BaseException:
            await self._discard_partitions(topic)
            raise
        self._announce(messages.RouteChange(version=self._next_version(), topics=[topic.route()]))
        logger.info("topic %s made with %d partitions", name, settings.partitions)
        return topic

    async def _discard_partitions(self, topic: Topic) -> None:
        """The topic was not made after all, for lack of room perhaps: nothing of it stays."""
        assert self._directory is not None
        for index in range(len(topic.chains)):
            partition = self.partitions.pop((topic.record.id, index), None)
            if partition is not None:
                partition.deleted = True
            self._journal.remove(topic.record.id, index)
        for found in self._directory.partitions():
            if found.topic_id == topic.record.id:
                await asyncio.to_thread(self._directory.remove, found)

    async def alter_topic(self, name: str, changes: dict[str, Any]) -> Topic:
        topic = await self.catalogue.alter(name, changes)
        for partition in self.topic_partitions(topic):
            partition.settings = topic.record.settings
            partition.log.settings = self._log_settings(topic.record.settings)
            self._start_flush_timer(partition)
            partition.catch_up_with_disk()
        self._announce(messages.RouteChange(version=self._next_version(), topics=[topic.route()]))
        return topic

    async def delete_topic(self, name: str) -> None:
        topic = await self.catalogue.delete(name)
        self._announce(messages.RouteChange(version=self._next_version(), removed=[topic.record.id]))
        for index in range(len(topic.chains)):
            partition = self.partitions.pop((topic.record.id, index))
            partition.end_streams(TopicNotFound(f"Topic {name} was deleted.", object=name))
            await self._settle(partition)
            self._journal.remove(topic.record.id, index)
            await asyncio.to_thread(partition.log.delete)
        await self.catalogue.forget_deleted([topic.record.id])
        logger.info("topic %s deleted", name)

    async def _remove_deleted(self) -> None:
        """A crash may have come between deleting a topic and removing its files."""
        topic_ids = await self.catalogue.deleted_ids()
        assert self._directory is not None
        for found in self._directory.partitions():
            if found.topic_id in topic_ids:
                await asyncio.to_thread(self._directory.remove, found)
                self._journal.remove(found.topic_id, found.partition)
        await self.catalogue.forget_deleted(topic_ids)

    async def _settle(self, partition: Partition) -> None:
        settled = asyncio.Event()
        partition.stop(settled.set)
        await settled.wait()

    def _next_version(self) -> int:
        self.route_version += 1
        return self.route_version

    def _announce(self, change: messages.RouteChange) -> None:
        body = messages.encode(change)
        for session in self.sessions:
            session.routes_changed(body)

    def route_table(self) -> messages.RouteTable:
        return messages.RouteTable(
            version=self.route_version,
            brokers=[self.info()],
            topics=[topic.route() for topic in self.catalogue.topics.values()],
        )

    # --- sessions -------------------------------------------------------------------------------

    def session_started(self, session: Session) -> None:
        if self.stopping or len(self.sessions) >= self.config.connections_max:
            session.refused(
                Closed(
                    "This broker is stopping."
                    if self.stopping
                    else f"This broker has {len(self.sessions)} connections, which is its limit.",
                    hint="Try again later, or connect to another broker.",
                )
            )
            return
        self.sessions.add(session)

    def session_ended(self, session: Session) -> None:
        self.sessions.discard(session)
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
        for session in list(self.sessions):
            if lagged:
                session.excuse(now)
            session.sweep(now)

    def _note_floors(self) -> None:
        for (topic_id, index), partition in self.partitions.items():
            synced_end = partition.log.synced_end
            self._journal.update(
                topic_id,
                index,
                log_id=partition.log.identity.log_id,
                epoch=partition.replica.epoch,
                synced_end=synced_end,
                committed=min(partition.committed, synced_end),
            )

    def _checkpoint_now(self) -> None:
        self._note_floors()
        self._journal.store()

    def _checkpoint(self) -> None:
        """Record synced ends and commit floors (K3a), without holding up the loop."""
        if not self._checkpointing:
            self._checkpointing = True
            self._note_floors()
            self._reads.submit(self._journal.store, self._checkpointed)

    def _checkpointed(self, _: Any, error: StentorError | None) -> None:
        self._checkpointing = False
        if error is not None:
            logger.error("the journal could not be written: %s", error)

    def _retain(self) -> None:
        if self._retaining:
            return
        for partition in self.partitions.values():
            partition.roll_if_due()
        self._retaining = True
        self._reads.submit(self._retain_all, self._retained)

    def _retain_all(self) -> None:
        for partition in list(self.partitions.values()):
            settings = partition.settings
            if not partition.deleted and (settings.retention_age_s or settings.retention_bytes is not None):
                partition.log.retain(self.clock.now_us(), committed=partition.committed)

    def _retained(self, _: Any, error: StentorError | None) -> None:
        self._retaining = False
        if error is not None:
            logger.error("retention failed: %s", error)

    # --- stop -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Lose nothing: sync, answer, tell, close."""
        if self.stopping:
            return
        self.stopping = True
        self.ready = False
        logger.info("broker %s is stopping", getattr(self, "broker_id", "?"))
        if self._server is not None:
            self._server.close()
        with suppress(TimeoutError):
            # A change of topics that is under way is finished, and no other begins.
            await asyncio.wait_for(self.admin.acquire(), limits.SHUTDOWN_S)
        for session in list(self.sessions):
            session.hold()
        settling = [self._settle(partition) for partition in self.partitions.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*settling), limits.SHUTDOWN_S)
        except TimeoutError:
            logger.warning("some logs could not be synced within %g s", limits.SHUTDOWN_S)
        await asyncio.sleep(0)  # answers leave at the end of a turn of the loop
        await self._close_sessions()
        await self._release()
        logger.info("broker stopped")

    async def _close_sessions(self) -> None:
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
        for timer in self._timers:
            timer.cancel()
        if self._server is not None:
            self._server.close()
        for threads in (getattr(self, "_syncs", None), getattr(self, "_reads", None)):
            if threads is not None:
                await asyncio.to_thread(threads.close)
        if self.partitions:
            await asyncio.to_thread(self._checkpoint_now)
        for partition in self.partitions.values():
            partition.log.close()
        if self._directory is not None:
            self._directory.close()

    # --- what others see ------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return self.config.advertised_address or f"{self.config.host}:{self.port}"

    def info(self) -> messages.BrokerInfo:
        return messages.BrokerInfo(
            id=self.broker_id,
            cluster_id=self.cluster_id,
            version=__version__,
            address=self.address,
            http_address=self.http_address,
            zone=self.config.zone,
        )

    def statistics(self) -> dict[str, Any]:
        """Everything that metrics, dashboard and CLI show."""
        return {
            "broker": {
                "id": self.broker_id,
                "version": __version__,
                "uptime_s": round(self.clock.monotonic() - self._started_at, 3),
                "connections": len(self.sessions),
                "refusals": self.refusals,
                "syncs_in_loop": self.lone.syncs,
                "streams": sum(len(session.streams) for session in self.sessions),
                "topics": len(self.catalogue.topics),
                "partitions": len(self.partitions),
                "bytes_in": sum(session.connection.bytes_in for session in self.sessions),
                "bytes_out": sum(session.connection.bytes_out for session in self.sessions),
            },
            "partitions": [partition.statistics() for partition in self.partitions.values()],
        }


def _replay(dedupe: Dedupe, header: BatchHeader) -> None:
    """Derived state follows the log, batch by batch (C19)."""
    dedupe.record_batch(header)
