"""Where each partition of a subscription begins and ends: its topics found, its positions resolved to offsets."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client.convert import allows_stale
from stentor.client.positions import check_position, find_request
from stentor.client.reader import Event
from stentor.client.routes import existing
from stentor.client.starts import Starts, out_of_range, wanted_partitions
from stentor.core.names import is_pattern
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.positions import Place, Stale
    from stentor.client.reader import Reader
    from stentor.client.starts import Start


class Places:
    """What a subscription wants to read: which partitions, from where, up to where."""

    def __init__(
        self,
        core: ClientCore,
        patterns: list[str],
        *,
        start: Start,
        end: Place | None,
        partition: int | Iterable[int] | None,
        stale: Stale,
    ) -> None:
        self.starts = Starts(start, patterns)
        self.partitions = wanted_partitions(partition)  # None for all
        if end is not None:
            check_position(end, "end")
        self.end = end
        self._stale = allows_stale(stale)
        self._core = core
        self._patterns = patterns

    async def find_named(self, deadline: Deadline) -> None:
        """A subscription may come before the first message, and makes the topics it names.

        A bounded read does not, nor does who goes on in a topic that must be there.
        """
        named = {pattern for pattern in self._patterns if not is_pattern(pattern)}
        there = named if self.end is not None else named & self.starts.named.keys()
        if there or self.end is not None:
            await existing(self._core, sorted(there), deadline)
        for name in sorted(named - there):
            await self._core.topic(name, deadline)
        if not self.starts.named.keys() <= self._core.routes.keys():
            await self._core.refresh_routes(deadline)
        known = (topic for topic in self.starts.ids if topic in self._core.routes)
        await asyncio.gather(*(self._settle(topic, deadline) for topic in known))

    async def _settle(self, topic: str, deadline: Deadline) -> None:
        """Positions are of a topic by its id. Brokers say which it has now; this client may hear of it a bit later."""
        described = (await self._core.call(messages.DescribeTopic(name=topic), deadline)).topic
        self.starts.check_id(topic, described.id)
        try:
            async with deadline.bound():
                while (route := self._core.routes.get(topic)) is None or route.id != described.id:
                    await self._core.changes(limits.LINK_WATCH_S)
        except TimeoutError as error:
            raise self._core.late("subscribe", deadline.seconds) from error

    def check_starts(self) -> list[Event]:
        """The starts fit the topics as they are; a topic of a pattern may be gone, which is told."""
        gone = []
        for topic, offsets in self.starts.named.items():
            route = self._core.routes.get(topic)
            if route is not None:
                self.starts.check(route)
            else:
                gone += [Event("topic_gone", topic, partition) for partition in offsets]
        return gone

    def start_of(self, reader: Reader, *, found_later: bool) -> Any:
        """Partitions found after subscribing are read from their start (C24): nothing slips between."""
        if not found_later or self.starts.ids.get(reader.topic) == reader.topic_id:
            return self.starts.of(reader.topic, reader.partition)
        return "earliest"

    async def position(self, reader: Reader, deadline: Deadline, *, found_later: bool) -> None:
        """Tell a reader where it begins and ends."""
        start = self.start_of(reader, found_later=found_later)
        reader.held = isinstance(start, int)
        kept = None
        if isinstance(start, int) and self.starts.names(reader.topic, reader.partition):
            kept = await self._check_kept(reader, start, deadline)
        found = await self.resolve(reader, start, deadline, stale=self._stale)
        reader.start, reader.committed = found.offset, found.committed
        reader.received = reader.taken = reader.start
        reader.was_current = start != "earliest"
        if self.end is not None:
            end = await self.resolve(reader, self.end, deadline, stale=self._stale)
            reader.end, reader.sure = end.offset, end.sure
            reader.finished = reader.end <= reader.start
            if kept is not None and reader.end < reader.start and reader.sure and self.end in ("now", "latest"):
                raise out_of_range(reader.name, reader.start, kept, reader.end)

    async def _check_kept(self, reader: Reader, start: int, deadline: Deadline) -> int:
        """The first offset there is. Who goes on before it is told at once, not after messages of other partitions."""
        kept = await self.resolve(reader, "earliest", deadline, stale=True)
        if start < kept.offset:
            raise out_of_range(reader.name, start, kept.offset, kept.committed)
        return kept.offset

    async def resolve(self, reader: Reader, position: Any, deadline: Deadline, *, stale: bool) -> messages.OffsetFound:
        """The offset of a position in a reader's partition."""
        now_us = time.time_ns() // 1000
        wish = find_request(position, reader.topic_id, reader.partition, now_us, stale=stale)
        if isinstance(wish, int):
            seen = self._core.seen.of(reader.topic_id, reader.partition)
            return messages.OffsetFound(offset=wish, start=0, committed=seen.committed)
        return await self._core.find_offset(wish, reader.topic, deadline)
