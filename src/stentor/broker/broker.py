"""The broker: one process, one loop, everything a system or a member of a cluster needs.

Start: lock the directory, read the journal and the coordination store, recover every log, listen, join the
cluster (on its own: become its controller and open a new epoch). Stop: refuse new work, bring every log to disk,
answer what waited, tell every client, let go of the directory.

`composition.py` puts the parts together; this is their life.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.broker.cluster.deletion_marks import MARKS_LOOK_S
from stentor.broker.cluster.store_room import ROOM_LOOK_S
from stentor.broker.composition import Ground, Parts
from stentor.broker.disk_threads import DiskThreads
from stentor.broker.environment import Environment, SystemClock
from stentor.broker.partitions import compactions
from stentor.broker.sessions.listeners import Listeners
from stentor.broker.store_choice import OwnStore, SharedStore, StoreChoice, open_cluster_store
from stentor.core import service_limits
from stentor.errors import Closed
from stentor.storage.directory import DataDirectory
from stentor.wire import bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.config import BrokerConfig
    from stentor.broker.loop_watch import LoopWatch
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.errors import StentorError
    from stentor.ports import Clock, CoordinationStore
    from stentor.wire import messages
    from stentor.wire.statistics import BrokerStatistics, Health

logger = logging.getLogger(__name__)


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
        self.loop = asyncio.get_running_loop()
        self.listeners = Listeners(config)
        self.stopping = False
        self.ready = False
        self._clock: Clock = clock or SystemClock()
        self._disk_threads = disk_threads
        self._choice: StoreChoice = (
            SharedStore(config, open_store or open_cluster_store) if config.coordination else OwnStore(config)
        )
        self._opened = AsyncExitStack()  # what the end must let go of, from the last to the first
        self._parts: Parts | None = None
        self._retaining = False
        self._swept_at = 0.0

    # --- start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the broker up, or leave nothing behind."""
        try:
            await self._start()
        except GeneratorExit:
            raise  # the loop is gone: nothing can be awaited any more
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        began = time.monotonic()
        bodies.arrow("A broker").load_all()  # now, so that no batch holds the loop for it
        path = Path(self.config.data_directory)
        directory = DataDirectory(path)
        self._opened.callback(directory.close)
        environment = Environment(self.config, self._clock, self._disk_threads)
        self._opened.push_async_callback(asyncio.to_thread, environment.close_threads)
        journal = directory.journal(expected=not self.config.unclean, alone=self._choice.alone)
        self._opened.push_async_callback(asyncio.to_thread, journal.close)
        store = self._choice.open(path, journal)
        self._opened.push_async_callback(store.close)
        ground = Ground(environment, directory, journal, store, self.listeners)
        ground.identity.alone = self._choice.alone
        self._parts = parts = Parts(ground, after_delete=lambda: self._choice.after_delete(parts))
        self._opened.push_async_callback(self._let_go, parts)
        ground.identity.broker_id = await self._choice.settle_id(path, store)
        self._swept_at = self._clock.monotonic()
        ground.timers.every(limits.SWEEP_S, self._sweep)
        revision = await self._choice.learn(parts, path, _Doors(self, parts))
        await self._recover(parts)
        await self._listen(parts)
        self._begin_timers(parts)
        await parts.join(revision)
        await self._choice.joined(parts)
        self.ready = True
        logger.info(
            "broker %s ready on %s: %d topics, %d partitions, %.2f s",
            self.broker_id,
            self.address,
            len(ground.catalogue.topics),
            len(ground.partitions),
            time.monotonic() - began,
        )

    async def _recover(self, parts: Parts) -> None:
        """Open the logs on this disk, unless others remember a later life of this broker than the disk does (C3)."""
        journal, identity, catalogue = parts.ground.journal, parts.ground.identity, parts.ground.catalogue
        remembered = parts.cluster.remembered_incarnation()
        if remembered > journal.incarnation:
            self._choice.outlived(parts)  # before the disk says otherwise: it would not be noticed again
        journal.begin_life(remembered)
        await asyncio.to_thread(journal.store)
        identity.incarnation = journal.incarnation
        await self._choice.remove_deleted(parts)
        await parts.replicas.open_all(catalogue.topics.values(), self._choice.named_logs(parts))
        parts.books.store_now()

    async def _listen(self, parts: Parts) -> None:
        """Let clients and other brokers in."""
        await self.listeners.open(parts.ground.environment.loop, parts.new_connection)

    def _begin_timers(self, parts: Parts) -> None:
        reads, every = parts.ground.environment.reads, parts.ground.timers.every
        every(limits.CHECKPOINT_S, partial(parts.books.store_soon, reads))
        every(limits.RETENTION_CHECK_S, self._retain)
        every(compactions.COMPACTION_CHECK_S, parts.letting_go.compactions.look)
        every(limits.CURSOR_CHECK_S, partial(_look_after_cursors, parts))
        every(limits.ASIDE_CHECK_S, partial(reads.submit, parts.letting_go.clear_aside, _aside_cleared))
        every(limits.HEALTH_CHECK_S, parts.health.look_soon)
        every(limits.TAIL_CACHE_IDLE_S, partial(_forget_idle_tails, parts))
        every(ROOM_LOOK_S, parts.cluster.store_keeper.look_soon)
        every(MARKS_LOOK_S, parts.deletion_marks.look_soon)
        every(service_limits.ASK_SWEEP_S, parts.services.look)
        every(service_limits.RESPONDERS_TELL_S, parts.services.directory.tell_all)

    # --- timers ---------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now = self.parts.ground.environment.clock.monotonic()
        lagged = now - self._swept_at > limits.SWEEP_S + limits.LOOP_LAG_S
        self._swept_at = now
        self.parts.admission.sweep(now, lagged=lagged)

    def _retain(self) -> None:
        if self._retaining:
            return
        parts = self.parts
        parts.replicas.forget_superseded()
        for partition in parts.ground.partitions.values():
            partition.sync.roll_if_due()
        self._retaining = True
        parts.ground.environment.reads.submit(parts.letting_go.retain, self._retained)

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
        if self._parts is not None:
            await self._finish(self._parts)
        await self._release()
        logger.info("broker stopped")

    async def _finish(self, parts: Parts) -> None:
        logger.info("broker %s is stopping", parts.ground.identity.broker_id)
        sessions = parts.admission.sessions
        parts.ground.timers.stop()
        self.listeners.close()
        parts.admission.stopping = True
        parts.services.stop()
        with suppress(TimeoutError):
            # A change of topics that is under way is finished, and no other begins.
            await asyncio.wait_for(parts.topics.changing.acquire(), limits.SHUTDOWN_S)
        for session in list(sessions):
            session.hold()
        parts.desk.stop_flushing()
        settling = [parts.replicas.settle(partition) for partition in parts.ground.partitions.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*settling), limits.SHUTDOWN_S)
        except TimeoutError:
            logger.warning("some logs could not be synced within %g s", limits.SHUTDOWN_S)
        for session in list(sessions):
            session.discard()
        await asyncio.sleep(limits.LAST_BYTES_S if sessions else 0)  # answers leave at the end of a turn of the loop
        await parts.admission.close()

    async def _let_go(self, parts: Parts) -> None:
        """The parts end while the store and the journal are still there, whatever fails on the way."""
        ground = parts.ground
        ground.timers.stop()
        self.listeners.close()
        async with AsyncExitStack() as stack:
            if ground.partitions:
                for partition in ground.partitions.values():
                    stack.callback(partition.log.close)
                stack.push_async_callback(asyncio.to_thread, parts.books.store_last)
            stack.push_async_callback(asyncio.to_thread, ground.environment.close_threads)
            stack.push_async_callback(ground.background.close)
            stack.callback(parts.cluster.close)

    async def _release(self) -> None:
        """Let go of everything, from the last that was opened to the first, whatever fails on the way."""
        await self._opened.aclose()

    # --- what others see ------------------------------------------------------------------------

    @property
    def parts(self) -> Parts:
        """What it is made of, from when it starts."""
        assert self._parts is not None, "the broker has not started"
        return self._parts

    @property
    def watch(self) -> LoopWatch:
        """How long its loop is held; whoever runs the broker's process starts it."""
        return self.parts.ground.environment.watch

    @property
    def broker_id(self) -> str:
        return self.parts.ground.identity.broker_id

    @property
    def partitions(self) -> dict[Key, Partition]:
        return self.parts.ground.partitions

    @property
    def confirmed(self) -> bool:
        """C6: whether somebody who could replace this broker would have told it."""
        return self.parts.ground.standing.confirmed

    @property
    def active(self) -> str:
        """Active-passive: the one broker that serves (C26); empty if there is none."""
        return self.parts.ground.catalogue.active

    @property
    def address(self) -> str:
        return self.listeners.address

    @property
    def port(self) -> int:
        return self.listeners.port

    @property
    def local_address(self) -> str:
        return self.listeners.local_address

    async def serves_http(self, address: str) -> None:
        """Somebody serves HTTP for this broker: the others should know where."""
        self.parts.ground.identity.http_address = address
        await self.parts.register()

    def info(self, listener: str = "") -> messages.BrokerInfo:
        """This broker, as those see it who came in by a listener."""
        return self.parts.info(listener)

    def health(self) -> Health:
        """What is wrong with it, if anything."""
        return self.parts.health.now()

    def statistics(self) -> BrokerStatistics:
        """Everything that metrics, dashboard and CLI show, at one moment: where few subscribers and partitions are."""
        return self.parts.overview.statistics()

    async def gather_statistics(self, partitions_max: int | None = None) -> BrokerStatistics:
        """The same of all partitions, or of some, without holding up the loop."""
        return await self.parts.overview.gather(partitions_max)


class _Doors:
    """What is open to readers while the store is away (C27)."""

    def __init__(self, broker: Broker, parts: Parts) -> None:
        self._broker = broker
        self._parts = parts

    async def open(self) -> str:
        parts, ground = self._parts, self._parts.ground
        ground.identity.incarnation = ground.journal.incarnation + 1  # not one that was a member of chains
        await parts.replicas.open_all(ground.catalogue.topics.values(), {})
        await self._broker._listen(parts)  # noqa: SLF001 - the other half of this file
        return f"reads of {len(ground.partitions)} partitions are served on {self._broker.address}"

    async def close(self) -> None:
        parts, partitions = self._parts, self._parts.ground.partitions
        self._broker.listeners.close()
        await parts.admission.close()
        for partition in partitions.values():
            partition.followers.end(Closed("The broker joins its cluster.", hint="Clients come back by themselves."))
            await parts.replicas.settle(partition)
            partition.log.close()
        partitions.clear()


def _look_after_cursors(parts: Parts) -> None:
    parts.cursor_care.look_soon()
    parts.shared.groups.look()


def _forget_idle_tails(parts: Parts) -> None:
    parts.ground.environment.slices.begin("tail caches that got nothing", parts.ground.tails.idle())


def _aside_cleared(_: Any, error: StentorError | None) -> None:
    if error is not None:
        logger.error("could not remove copies that were set aside: %s", error)
