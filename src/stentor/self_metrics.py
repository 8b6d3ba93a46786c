"""Every broker publishes its statistics to the topic `_metrics`, as an ordinary client of its own cluster.

So whoever can subscribe can watch the cluster: dashboards, the command line, Spark. The key is the broker's
id, the value JSON. A record also says how long the broker's earlier records took from publish to delivery, as a
client sees it: the one number that covers the whole way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor.client.async_client import AsyncClient
from stentor.errors import StentorError, TopicExists

if TYPE_CHECKING:
    from stentor.broker import Broker
    from stentor.client.subscription import AsyncSubscription

logger = logging.getLogger(__name__)

METRICS_TOPIC: Final = "_metrics"
_RETENTION_S: Final = 7 * 24 * 3600
_LATENCIES_KEPT: Final = 10
_PARTITIONS_TOLD_MAX: Final = 500


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
        client = await AsyncClient.open(broker.local_address, name=f"metrics of {broker.broker_id}", timeout=10.0)
        listening: asyncio.Task[None] | None = None
        try:
            with suppress(TopicExists):
                await client.create_topic(METRICS_TOPIC, flush="interval", retention_age_s=_RETENTION_S)
            subscription = await client.subscribe(METRICS_TOPIC)
            listening = asyncio.create_task(self._listen(subscription))
            while True:
                await client.publish(METRICS_TOPIC, self._record(), key=broker.broker_id)
                await asyncio.sleep(self._interval_s)
        finally:
            if listening is not None:
                listening.cancel()
            with suppress(StentorError):
                await client.close()

    async def _listen(self, subscription: AsyncSubscription) -> None:
        """How long one's own records take to come back."""
        mine = self._broker.broker_id.encode()
        async for message in subscription:
            if message.key == mine and message.value is not None:
                sent_us = msgspec.json.decode(message.value)["published_at_us"]
                self._latencies_us.append(time.time_ns() // 1000 - sent_us)
                del self._latencies_us[:-_LATENCIES_KEPT]

    def _record(self) -> bytes:
        statistics: dict[str, Any] = self._broker.statistics(_PARTITIONS_TOLD_MAX)
        record = {
            "kind": "broker",
            "broker": self._broker.broker_id,
            "published_at_us": time.time_ns() // 1000,
            "publish_to_deliver_us": self._latencies_us,
            "statistics": statistics,
        }
        return msgspec.json.encode(record)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
