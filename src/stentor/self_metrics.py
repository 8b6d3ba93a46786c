"""Every broker publishes its statistics to the topic `_metrics`, as an ordinary client of its own cluster.

So whoever can subscribe can watch the cluster: dashboards, the command line, Spark. The key is the broker's
id, the value JSON. A record also says how long the broker's earlier records took from publish to delivery, as a
client sees it: the one number that covers the whole way.

Most of what a broker counts stays as it is. So a record tells of the partitions that changed since the record before
it, and every few minutes of all (`full`). Nothing is written while nothing changes, but a sign of life twice a minute.
What a record does not tell of is as the last one said that did; what a full one leaves out is not there any more.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from stentor import limits
from stentor.client.async_client import AsyncClient, connect_async
from stentor.errors import StentorError
from stentor.wire.statistics import as_map

if TYPE_CHECKING:
    from stentor.broker import Broker
    from stentor.client.subscription import AsyncSubscription
    from stentor.wire.statistics import BrokerStatistics, PartitionStatistics

logger = logging.getLogger(__name__)

METRICS_TOPIC: Final = "_metrics"
_LATENCIES_KEPT: Final = 10  # the newest, for each record
_LATENCY_US_MAX: Final = 3_600_000_000  # an hour: what is older was not published by this process


class _Own(msgspec.Struct, frozen=True):
    """What a broker reads of its own record."""

    published_at_us: int


_decoder = msgspec.json.Decoder(_Own)


class RecordPlan:
    """What the next record tells, by what the earlier ones told. `now` is in seconds, of a clock that only grows."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], PartitionStatistics] = {}
        self._others: tuple[object, ...] = ()
        self._told_at = self._full_at = -math.inf

    def next(self, found: BrokerStatistics, now: float) -> tuple[BrokerStatistics, bool] | None:
        """Return what to tell of these statistics, and whether that is all; None if nothing changed."""
        partitions = {(each.topic, each.partition): each for each in found.partitions}
        changed = [each for key, each in partitions.items() if self._partitions.get(key) != each]
        lagging = [each for each in found.lagging if each.topic != METRICS_TOPIC]
        others = found.health, lagging, found.services, found.queues
        full = now - self._full_at >= limits.METRICS_FULL_S or not self._partitions.keys() <= partitions.keys()
        # Each record changes the topic of the records, and how far behind its readers are: that alone is no news.
        news = others != self._others or any(each.topic != METRICS_TOPIC for each in changed)
        if not (full or news or now - self._told_at >= limits.METRICS_QUIET_S):
            return None
        self._partitions, self._others, self._told_at = partitions, others, now
        if full:
            self._full_at = now
            return found, True
        return msgspec.structs.replace(found, partitions=changed), False


class MetricsPublisher:
    """Publishes the statistics of one broker."""

    def __init__(self, broker: Broker, interval_s: float) -> None:
        self._broker = broker
        self._interval_s = interval_s
        self._latencies_us: list[int] = []
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Try for ever: a cluster that cannot take its own statistics now will later."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._publish_for_a_while()
            except StentorError as error:
                logger.debug("statistics are not published: %s", error)

    async def _publish_for_a_while(self) -> None:
        broker = self._broker
        client = await connect_async(broker.local_address, name=f"metrics of {broker.broker_id}", timeout=10.0)
        listening: asyncio.Task[None] | None = None
        try:
            await self._make_topic(client)
            subscription = await client.subscribe(METRICS_TOPIC)
            listening = asyncio.create_task(self._listen(subscription))
            plan = RecordPlan()
            while not listening.done():  # it ends with the topic; then everything begins anew
                statistics = await broker.gather_statistics(limits.METRICS_PARTITIONS_MAX)
                found = plan.next(statistics, time.monotonic())
                if found is not None:
                    await self._make_topic(client)
                    await client.publish(METRICS_TOPIC, self._record(*found), key=broker.broker_id)
                await asyncio.sleep(self._interval_s)
        finally:
            if listening is not None:
                listening.cancel()
            with suppress(StentorError):
                await client.close()

    async def _make_topic(self, client: AsyncClient) -> None:
        """Also when somebody deleted it: a publish would make it again, but without its settings."""
        kept_s, kept_bytes = limits.METRICS_RETENTION_S, limits.METRICS_RETENTION_BYTES
        segment = limits.METRICS_SEGMENT_BYTES
        made = await client.create_topic(
            METRICS_TOPIC,
            exist_ok=True,
            flush="interval",
            retention_age_s=kept_s,
            retention_bytes=kept_bytes,
            segment_bytes=segment,
        )
        settings = made.settings
        if settings.retention_bytes is None and settings.retention_age_s == kept_s:
            # As earlier versions made it, without a bound; nobody has chosen that.
            await client.alter_topic(METRICS_TOPIC, retention_bytes=kept_bytes, segment_bytes=segment)

    async def _listen(self, subscription: AsyncSubscription) -> None:
        """How long one's own records take to come back."""
        mine = self._broker.broker_id.encode()
        async for message in subscription:
            if message.key == mine and message.value is not None:
                self._note_latency(message.value)

    def _note_latency(self, value: bytes) -> None:
        """Of a record of one's own; anybody may publish anything under this broker's key."""
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            latency_us = time.time_ns() // 1000 - _decoder.decode(value).published_at_us
            if 0 <= latency_us <= _LATENCY_US_MAX:
                self._latencies_us.append(latency_us)
                del self._latencies_us[:-_LATENCIES_KEPT]

    def _record(self, statistics: BrokerStatistics, full: bool) -> bytes:
        record = {
            "kind": "broker",
            "full": full,
            "broker": self._broker.broker_id,
            "published_at_us": time.time_ns() // 1000,
            "publish_to_deliver_us": self._latencies_us,
            "statistics": as_map(statistics),
        }
        return msgspec.json.encode(record)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
