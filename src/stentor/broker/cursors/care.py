"""What is done for cursors without being asked, every CURSOR_CHECK_S.

- Heads that do not know where a cursor is that retention waits for ask for it.
- Cursors of topics that were deleted are forgotten, by the head of their partition.
- What earlier versions kept in the coordination store is taken over by the head that decides about recorders: it
  appends what the store says, and once that is committed deletes it there. A crash in between does no harm: a position
  never goes back, and from this feature level on nobody writes to the store (C27).
- The controller lets the internal topic have as many replicas as a new topic would have: it may have been made while
  the cluster was smaller.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.broker.catalogue import News, recorded_key, recorded_prefix
from stentor.broker.cursors.heads import cursors_of
from stentor.core.cursors import RECORDER, Forgotten, Moved, partition_of
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import StentorError
from stentor.wire.messages import TopicChanges

if TYPE_CHECKING:
    from stentor.broker.background import Background
    from stentor.broker.catalogue import Catalogue
    from stentor.broker.cluster.cluster import Cluster
    from stentor.broker.cluster.topic_admin import TopicAdmin
    from stentor.broker.cursors.desk import CursorDesk
    from stentor.broker.cursors.heads import CursorHeads
    from stentor.broker.cursors.positions import CursorPositions
    from stentor.broker.environment import BrokerIdentity
    from stentor.core.records import Key
    from stentor.ports import CoordinationStore

logger = logging.getLogger(__name__)

_LOOKS: Final = 60  # after so many it is looked for cursors of deleted topics, whatever has changed
_STORE: Final = "coordination store"
"""Who moved the cursors that were taken over."""


class CursorCare:
    """Looks after the cursors that this broker decides about or waits for."""

    def __init__(
        self,
        identity: BrokerIdentity,
        *,
        store: CoordinationStore,
        catalogue: Catalogue,
        cluster: Cluster,
        topics: TopicAdmin,
        desk: CursorDesk,
        heads: CursorHeads,
        positions: CursorPositions,
        background: Background,
    ) -> None:
        self._identity = identity
        self._store = store
        self._catalogue = catalogue
        self._cluster = cluster
        self._topics = topics
        self._desk = desk
        self._heads = heads
        self._positions = positions
        self._background = background
        self._learning = False
        self._caring = False
        self._looked = 0  # how often
        self._looked_at: object = None  # what was there when no cursor of a deleted topic was found

    def look_soon(self) -> None:
        """Called by a timer."""
        if not self._desk.enabled or self._cluster.rollback.noticed or not self._cluster.control.joined:
            return
        self._positions.tidy()
        if not self._learning and (wanted := self._positions.wanted()):
            self._learning = True
            self._background.spawn(self._learn(wanted))
        if not self._caring and self._has_work():
            self._caring = True
            self._background.spawn(self._care())

    async def _learn(self, wanted: list[tuple[int, str]]) -> None:
        try:
            await self._desk.learn(wanted)
        except StentorError as error:
            logger.info("could not find out where cursors are; retention waits: %s", error)
        finally:
            self._learning = False

    # --- work -----------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        return bool(self._forgettable()) or self._takes_over() or self._makes() or self._grows()

    async def _care(self) -> None:
        try:
            for index, topic_id in self._forgettable():
                await self._forget(index, topic_id)
            if self._makes():
                await self._desk.make_topic()
            if self._takes_over():
                await self._take_over()
            if self._grows():
                await self._grow()
        except StentorError as error:
            logger.info("cursors wait to be looked after: %s", error)
        finally:
            self._caring = False

    async def _forget(self, index: int, topic_id: int) -> None:
        """One that cannot be forgotten now keeps no other from it."""
        try:
            await self._heads.serve(index, Forgotten(topic_id))
        except StentorError as error:
            logger.info("the cursors of topic %016x wait to be forgotten: %s", topic_id, error)

    def _forgettable(self) -> list[tuple[int, int]]:
        """Topics that were deleted, with the partitions that still have cursors of them. There may be many cursors: all
        are looked at only when topics or heads have changed, and now and then.
        """
        led, gone = list(self._heads.led()), self._catalogue.deleted
        self._looked += 1
        now = self._catalogue.changes, [(partition.index, partition.replica.epoch) for partition in led]
        if now == self._looked_at and self._looked % _LOOKS:
            return []
        found = [
            (partition.index, topic_id)
            for partition in led
            for topic_id in sorted(cursors_of(partition).topics())
            if topic_id not in self._catalogue.by_id and (self._identity.alone or topic_id in gone)
        ]
        self._looked_at = None if found else now
        return found

    def _is_controller(self) -> bool:
        return self._cluster.control.machine.controller is not None

    def _makes(self) -> bool:
        return bool(self._catalogue.recorded) and CURSORS_TOPIC not in self._catalogue.topics and self._is_controller()

    def _grows(self) -> bool:
        topic = self._catalogue.topics.get(CURSORS_TOPIC)
        return topic is not None and topic.record.settings.replicas < self._replicas() and self._is_controller()

    def _replicas(self) -> int:
        return min(limits.REPLICAS, len(self._catalogue.brokers))

    async def _grow(self) -> None:
        async with self._topics.changing:
            await self._topics.alter(CURSORS_TOPIC, TopicChanges(replicas=self._replicas()))

    # --- what the store holds -------------------------------------------------------------------

    def _takes_over(self) -> bool:
        topic = self._catalogue.topics.get(CURSORS_TOPIC)
        if not self._catalogue.recorded or topic is None:
            return False
        mine = partition_of(RECORDER, topic.record.settings.partitions)
        return any(partition.index == mine for partition in self._heads.led())

    async def _take_over(self) -> None:
        by_topic: dict[int, list[Key]] = defaultdict(list)
        for key in sorted(self._catalogue.recorded):
            by_topic[key[0]].append(key)
        size = limits.COORDINATION_SWAP_OPERATIONS_MAX // 2  # each key is compared, and deleted
        for topic_id, keys in by_topic.items():
            for start in range(0, len(keys), size):
                await self._take_over_some(topic_id, keys[start : start + size])

    async def _take_over_some(self, topic_id: int, keys: list[Key]) -> None:
        catalogue = self._catalogue
        held = {key: catalogue.recorded[key] for key in keys if key in catalogue.recorded}
        topic = catalogue.by_id.get(topic_id)
        if topic is not None:
            positions = {key[1]: end for key, (end, _) in held.items()}
            await self._desk.ask(RECORDER, Moved(topic_id, RECORDER, positions, by=_STORE))
        elif not (self._identity.alone or topic_id in catalogue.deleted):
            return  # the store has lost the topic, and may have it again
        expect = {recorded_key(key): revision for key, (_, revision) in held.items()}
        swap = await self._store.swap(expect=expect, put={}, delete=tuple(expect))
        if swap.succeeded:
            for key in held:
                catalogue.recorded.pop(key, None)
            name = f"topic {topic_id:016x}" if topic is None else topic.record.name
            logger.info("how far %s is recorded is a cursor now, and not in the coordination store any more", name)
            return
        stored = await self._store.range(recorded_prefix(topic_id))  # somebody else was faster, or changed it
        for key in held:
            catalogue.recorded.pop(key, None)
        for entry in stored:
            catalogue.put(entry, News())
