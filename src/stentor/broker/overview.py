"""What a broker tells of itself: one struct that metrics, the dashboard and the command line show."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor._version import __version__
from stentor.broker.partitions.lag import MostBehind, PartitionLag
from stentor.broker.queues.figures import QueueFigures
from stentor.wire.statistics import BrokerCounts, BrokerStatistics, MemoryStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.cluster.cluster import Cluster
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.broker.health import HealthWatch
    from stentor.broker.partitions.interfaces import Follower
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.partitions.tail_cache import TailBudget
    from stentor.broker.services.desk import ServiceDesk
    from stentor.broker.sessions.admission import Admission
    from stentor.broker.sessions.inline_sync import InlineSync
    from stentor.core.memory_budget import MemoryBudget
    from stentor.core.records import Key
    from stentor.wire.messages import ClientInfo
    from stentor.wire.statistics import PartitionStatistics


class Overview:
    """Gathers statistics, for one who waits or for many at once."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        *,
        catalogue: Catalogue,
        partitions: Mapping[Key, Partition],
        cluster: Cluster,
        admission: Admission,
        inline_sync: InlineSync,
        health: HealthWatch,
        services: ServiceDesk,
        memory: MemoryBudget,
        tails: TailBudget,
    ) -> None:
        self._clock = environment.clock
        self._watch = environment.watch
        self._turns = environment.turns
        self._failures = environment.failures
        self._identity = identity
        self._catalogue = catalogue
        self._partitions = partitions
        self._cluster = cluster
        self._admission = admission
        self._inline_sync = inline_sync
        self._health = health
        self._services = services
        self._memory = memory
        self._tails = tails
        self._started_at = environment.clock.monotonic()
        self._gathering: asyncio.Task[BrokerStatistics] | None = None

    def statistics(self) -> BrokerStatistics:
        """Everything that metrics, dashboard and CLI show, at one moment: where few subscribers and partitions are."""
        behind, queues = MostBehind(), QueueFigures(self._clock.now_us())
        found = []
        for partition in self._partitions.values():
            lag = PartitionLag()
            _look_at(partition, list(partition.followers.streams), lag, behind)
            queues.look_at(partition)
            found.append(partition.statistics_with(lag))
        return self._told(found, behind, queues)

    async def gather(self, partitions_max: int | None = None) -> BrokerStatistics:
        """The same of all partitions, or of some, a few at a time; who asks for all shares what is being gathered."""
        if partitions_max is not None:
            return await self._gather(partitions_max)
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().create_task(self._gather())
            self._gathering.add_done_callback(self._gathered)
        return await asyncio.shield(self._gathering)

    def _gathered(self, _: object) -> None:
        self._gathering = None

    async def _gather(self, partitions_max: int | None = None) -> BrokerStatistics:
        found, behind, queues = [], MostBehind(), QueueFigures(self._clock.now_us())
        for number, partition in enumerate(list(self._partitions.values())[:partitions_max], 1):
            lag, streams = PartitionLag(), list(partition.followers.streams)
            for first in range(0, len(streams), limits.STATISTICS_STREAMS_SLICE):
                if first:
                    await asyncio.sleep(0)
                _look_at(partition, streams[first : first + limits.STATISTICS_STREAMS_SLICE], lag, behind)
            found.append(partition.statistics_with(lag))
            queues.look_at(partition)
            if number % limits.STATISTICS_SLICE == 0:
                await asyncio.sleep(0)
        return self._told(found, behind, queues)

    async def connected(self) -> list[ClientInfo]:
        """Everybody who has greeted, some at a time: a client may have many streams."""
        found, streams = [], 0
        for session in list(self._admission.sessions):
            if not session.greeted or session.ended:
                continue
            found.append(session.info())
            streams += 10 + session.stream_count
            if streams > limits.STATISTICS_STREAMS_SLICE:
                streams = 0
                await asyncio.sleep(0)
        return found

    def _told(
        self, partitions: list[PartitionStatistics], behind: MostBehind, queues: QueueFigures
    ) -> BrokerStatistics:
        return BrokerStatistics(
            broker=self._counts(),
            health=self._health.now(),
            cluster=self._cluster.statistics(),
            lagging=behind.statistics(),
            partitions=partitions,
            services=self._services.statistics(),
            queues=queues.statistics(),
        )

    def _counts(self) -> BrokerCounts:
        sessions = self._admission.sessions
        return BrokerCounts(
            id=self._identity.broker_id,
            version=__version__,
            uptime_s=round(self._clock.monotonic() - self._started_at, 3),
            connections=len(sessions),
            refusals=self._admission.refusals,
            failures=self._failures.count,
            receiving=self._admission.receiving.statistics(),
            syncs_in_loop=self._inline_sync.syncs,
            streams=sum(session.stream_count for session in sessions),
            topics=len(self._catalogue.topics),
            partitions=len(self._partitions),
            bytes_in=sum(session.connection.bytes_in for session in sessions),
            bytes_out=sum(session.connection.bytes_out for session in sessions),
            memory_log_bytes=sum(each.log.bytes for each in self._partitions.values() if each.log.in_memory),
            memory=MemoryStatistics(
                bytes=self._memory.used,
                bytes_max=self._memory.limit,
                refused=self._memory.refused,
                tail_cache_bytes=self._tails.used,
                tail_cache_bytes_max=self._tails.limit,
            ),
            loop=msgspec.structs.replace(self._watch.statistics(), parked=self._turns.parked),
        )


def _look_at(partition: Partition, streams: list[Follower], lag: PartitionLag, behind: MostBehind) -> None:
    """How far some readers of a partition are behind."""
    lags = [(stream, stream.lag()) for stream in streams]
    behind.look_at(partition.topic, partition.index, lags)
    for _, each in lags:
        lag.add(each)
