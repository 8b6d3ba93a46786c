"""What a broker tells of itself: one dictionary that metrics, the dashboard and the command line show."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor._version import __version__
from stentor.broker.partitions.lag import MostBehind

if TYPE_CHECKING:
    from stentor.broker.broker import Broker


class Overview:
    """Gathers statistics, for one who waits or for many at once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._started_at = broker.clock.monotonic()
        self._gathering: asyncio.Task[dict[str, Any]] | None = None

    def statistics(self, partitions_max: int | None = None) -> dict[str, Any]:
        """Everything that metrics, dashboard and CLI show; of so many partitions."""
        shown = list(self._broker.partitions.values())[:partitions_max]
        behind = MostBehind()
        for partition in shown:
            behind.look_at(partition.streams)
        found = [partition.statistics() for partition in shown]
        return {**self._totals(), "lagging": behind.statistics(), "partitions": found}

    async def gather(self) -> dict[str, Any]:
        """The same, a few partitions at a time; who asks meanwhile shares what is being gathered."""
        if self._gathering is None:
            self._gathering = self._broker.loop.create_task(self._gather())
            self._gathering.add_done_callback(self._gathered)
        return await asyncio.shield(self._gathering)

    def _gathered(self, _: Any) -> None:
        self._gathering = None

    async def _gather(self) -> dict[str, Any]:
        found, behind = [], MostBehind()
        for number, partition in enumerate(list(self._broker.partitions.values()), 1):
            found.append(partition.statistics())
            behind.look_at(partition.streams)
            if number % limits.STATISTICS_SLICE == 0:
                await asyncio.sleep(0)
        return {**self._totals(), "lagging": behind.statistics(), "partitions": found}

    def _totals(self) -> dict[str, Any]:
        return {
            "broker": {
                "id": self._broker.broker_id,
                "version": __version__,
                "uptime_s": round(self._broker.clock.monotonic() - self._started_at, 3),
                "connections": len(self._broker.sessions),
                "refusals": self._broker.guests.refusals,
                "receiving": self._broker.receiving.statistics(),
                "syncs_in_loop": self._broker.lone.syncs,
                "streams": sum(len(session.streams) for session in self._broker.sessions),
                "topics": len(self._broker.catalogue.topics),
                "partitions": len(self._broker.partitions),
                "bytes_in": sum(session.connection.bytes_in for session in self._broker.sessions),
                "bytes_out": sum(session.connection.bytes_out for session in self._broker.sessions),
            },
            "health": msgspec.to_builtins(self._broker.health()),
            "cluster": self._broker.cluster.statistics(),
        }
