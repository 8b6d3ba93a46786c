"""How far partitions have been recorded elsewhere, as their recorders say: retention may wait for it.

The head of a partition takes the word of a recorder, and uses it at once; every RECORDED_STORE_S what moved is written
to the coordination store, from where all brokers learn it. A word that a crash forgot makes retention delete later,
never earlier: the recorder says it again, or something higher.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from stentor import limits
from stentor.broker.catalogue import News, RecordedEnd, encode, recorded_key, recorded_prefix, topic_key
from stentor.core import refusals
from stentor.errors import NotReady, OffsetOutOfRange, PartitionNotFound, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.catalogue import Catalogue, HeldTopic
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.core.standing import Standing
    from stentor.ports import CoordinationStore

logger = logging.getLogger(__name__)


class RecordedEnds:
    """Marks that recorders made, here and in the store."""

    def __init__(self, store: CoordinationStore, catalogue: Catalogue, standing: Standing) -> None:
        self._store = store
        self._catalogue = catalogue
        self._standing = standing
        self._marked: dict[Key, int] = {}  # not in the store yet
        self._storing: asyncio.Task[None] | None = None

    def end(self, key: Key) -> int:
        """Everything of a partition below this offset has been recorded. May be called in any thread."""
        return max(self._marked.get(key, 0), self._catalogue.recorded.get(key, (0, 0))[0])

    # --- marking --------------------------------------------------------------------------------

    def mark(self, name: str, ends: dict[int, int], find: Callable[[int, int], Partition]) -> None:
        """All of these, or none; a mark that is lower than the one before changes nothing."""
        topic = self._catalogue.get(name)
        if not self._standing.confirmed:
            raise refusals.cut_off()
        for index, end in ends.items():
            if index >= topic.record.settings.partitions:
                raise _no_partition(topic, index)
            _check(find(topic.record.id, index), end)
        for index, end in ends.items():
            key = (topic.record.id, index)
            if end > self.end(key):
                self._marked[key] = end

    def cut(self, key: Key, end: int) -> dict[str, bytes]:
        """An unclean recovery: what is written to these offsets from now on is something else. What to put."""
        if self.end(key) <= end:
            return {}
        self._marked.pop(key, None)
        return {recorded_key(key): encode(RecordedEnd(end))}

    # --- storing --------------------------------------------------------------------------------

    def store_soon(self) -> None:
        """Called every RECORDED_STORE_S."""
        if self._marked and (self._storing is None or self._storing.done()):
            self._storing = asyncio.get_running_loop().create_task(self._store_all())

    async def close(self) -> None:
        """The last marks go to the store, if it answers."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
        await self._store_all()

    async def _store_all(self) -> None:
        size = limits.COORDINATION_SWAP_OPERATIONS_MAX - 1  # one comparison is for the topic
        try:
            for topic_id in {key[0] for key in self._marked}:
                keys = [key for key in self._marked if key[0] == topic_id]
                for start in range(0, len(keys), size):
                    await self._store_some(topic_id, keys[start : start + size])
        except StentorError as error:
            logger.warning(
                "could not store how far partitions are recorded: %s", error
            )  # they are tried again in a second

    async def _store_some(self, topic_id: int, keys: list[Key]) -> None:
        catalogue, store = self._catalogue, self._store
        topic = catalogue.by_id.get(topic_id)
        if topic is None:  # deleted
            for key in keys:
                self._marked.pop(key, None)
            return
        ends = {key: self._marked[key] for key in keys}
        expect = {recorded_key(key): catalogue.recorded.get(key, (0, 0))[1] for key in keys}
        expect[topic_key(topic.record.name)] = topic.revision  # nothing is left behind of a topic that is deleted
        swap = await store.swap(expect=expect, put={recorded_key(key): encode(RecordedEnd(ends[key])) for key in keys})
        if not swap.succeeded:
            await self._look_again(topic_id)
            return
        for key, end in ends.items():
            catalogue.put_recorded(key, end, swap.revision)
            self._settle(key)

    async def _look_again(self, topic_id: int) -> None:
        """Somebody else wrote: an earlier head, or this very swap was through already."""
        for entry in await self._store.range(recorded_prefix(topic_id)):
            self._catalogue.put(entry, News())
        for key in [key for key in self._marked if key[0] == topic_id]:
            self._settle(key)

    def _settle(self, key: Key) -> None:
        """A mark that the store has, or has a higher one than, is not needed here."""
        if self._marked.get(key, 0) <= self._catalogue.recorded.get(key, (0, 0))[0]:
            self._marked.pop(key, None)


def _no_partition(topic: HeldTopic, index: int) -> PartitionNotFound:
    return PartitionNotFound(
        f"Topic {topic.record.name} has {topic.record.settings.partitions} partitions and no number {index}."
    )


def _check(partition: Partition, end: int) -> None:
    """Whether a recorder may say this of a partition."""
    replica = partition.replica
    if not replica.position.is_head:
        raise refusals.not_head(next(iter(replica.position.brokers), ""), replica.epoch, replica.revision)
    if end > partition.log.end:
        raise OffsetOutOfRange(
            f"{partition.name} ends at {partition.log.end}; {end} cannot have been recorded.",
            hint="Mark the offset after the last message that was recorded; is this the same topic?",
            object=partition.name,
            start=partition.log.start,
            end=partition.committed,
        )
    if end > partition.committed:  # a new head may not have heard yet that it is committed
        raise NotReady(f"{partition.name} is committed up to {partition.committed}.", hint="Try again in a moment.")
