"""Named cursors, as clients and operators use them: moved, listed, deleted.

    client ──► head of the topic's partitions    may somebody be that far?        CursorDesk.move
                    │
                    ▼
               head of the cursor's partition    appends, commits, answers        CursorHeads

A cursor lives in the partition of the internal topic that its name chooses. Whoever needs it asks the head of that
partition, here or on another broker, again and again until the deadline: heads change. To move a cursor twice to the
same place does no harm.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.broker.catalogue import RecordedEnd, encode, recorded_key, topic_key
from stentor.broker.cluster.trust import CURSORS
from stentor.core import refusals
from stentor.core.cursors import RECORDER, RECOVERY, CursorsOf, Forgotten, Moved, partition_of
from stentor.core.names import CURSORS_TOPIC, check_cursor_name, is_reserved
from stentor.errors import NotReady, OffsetOutOfRange, PartitionNotFound, StentorError, TopicExists, UnknownOutcome
from stentor.wire.messages import TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.broker.catalogue import Catalogue, HeldTopic
    from stentor.broker.cluster.cluster import Cluster
    from stentor.broker.cluster.topic_admin import TopicAdmin
    from stentor.broker.cluster.trust import Trust
    from stentor.broker.cursors.heads import CursorHeads
    from stentor.broker.cursors.positions import CursorPositions
    from stentor.broker.cursors.questions import CursorQuestions
    from stentor.broker.environment import BrokerIdentity
    from stentor.broker.partitions.serving import Serving
    from stentor.core.cursors import NamedCursor
    from stentor.core.records import Key
    from stentor.ports import CoordinationStore
    from stentor.wire.peer import CursorQuestion, CursorsFound


class CursorDesk:
    """Takes what is asked about cursors to those who decide it."""

    def __init__(
        self,
        identity: BrokerIdentity,
        *,
        store: CoordinationStore,
        catalogue: Catalogue,
        cluster: Cluster,
        topics: TopicAdmin,
        serving: Serving,
        heads: CursorHeads,
        questions: CursorQuestions,
        positions: CursorPositions,
    ) -> None:
        self._identity = identity
        self._store = store
        self._catalogue = catalogue
        self._cluster = cluster
        self._topics = topics
        self._serving = serving
        self._heads = heads
        self._questions = questions
        self._positions = positions
        self._making: asyncio.Task[None] | None = None

    @property
    def enabled(self) -> bool:
        """Whether every broker of the cluster knows cursors (C27)."""
        return knows_cursors(self._identity, self._cluster.trust)

    def check_enabled(self) -> None:
        if not self.enabled:
            raise refusals.being_upgraded("cursors")

    # --- what clients ask -----------------------------------------------------------------------

    async def move(self, topic: str, name: str, positions: dict[int, int], *, by: str = "", back: bool = False) -> None:
        """Move a cursor: all of these positions, or none. One that is lower than before changes nothing, but for
        `back`. Asked of the head of every partition that is named.
        """
        check_cursor_name(name)
        self.check_enabled()
        held = self._catalogue.get(topic)
        if not self._cluster.confirmed:
            raise refusals.cut_off()
        for index, offset in positions.items():
            await self._check(held, index, offset)
        if back and name == RECORDER:
            self._check_taken_over(topic, [(held.record.id, index) for index in positions])
        await self.make_topic()
        led = self._positions.led(held.record.id)
        by = f"client {by}" if by == RECOVERY else by
        found = await self.ask(name, Moved(held.record.id, name, positions, by=by, back=back))
        for _, _, cursor in found.cursors:
            self._positions.learn(name, cursor.positions, found.at, led)

    async def _check(self, topic: HeldTopic, index: int, offset: int) -> None:
        """Raise why nobody can be that far, or why it is not known yet (C24, C30)."""
        if index >= topic.record.settings.partitions:
            raise PartitionNotFound(
                f"Topic {topic.record.name} has {topic.record.settings.partitions} partitions and no number {index}.",
                object=topic.record.name,
            )
        partition = self._serving.partition(topic.record.id, index)
        replica = partition.replica
        if not replica.position.is_head:
            raise refusals.not_head(next(iter(replica.position.brokers), ""), replica.epoch, replica.revision)
        if offset <= partition.committed:
            return
        # A head that was paused and replaced holds less than others have read by now, and does not know it.
        end, _ = await self._serving.find_end(partition, stale=False)
        if offset > max(end, partition.log.end):
            raise OffsetOutOfRange(
                f"{partition.name} ends at {end}; nobody can have come to {offset}.",
                hint="Name the offset after the last message that is done with; is this the same topic?",
                object=partition.name,
                start=partition.log.start,
                end=end,
            )
        if offset > end:  # it is here, and on its way
            raise NotReady(f"{partition.name} is committed up to {end}.", hint="Try again in a moment.")

    async def of_topic(self, topic: str) -> dict[str, NamedCursor]:
        """All cursors of a topic, by name."""
        self.check_enabled()
        topic_id = self._catalogue.get(topic).record.id
        found = await self._ask_all(CursorsOf([topic_id]))
        return {name: cursor for _, name, cursor in sorted(found, key=lambda row: row[1])}

    async def delete(self, topic: str, name: str) -> None:
        """Forget a cursor; one that is not there is gone already."""
        check_cursor_name(name)
        self.check_enabled()
        topic_id = self._catalogue.get(topic).record.id
        if await self._has_topic():
            await self.ask(name, Forgotten(topic_id, name))

    # --- what brokers ask -----------------------------------------------------------------------

    async def learn(self, wanted: Iterable[tuple[int, str]]) -> None:
        """Find out where cursors are: topics by id, and the names of the cursors."""
        topic = self._catalogue.topics.get(CURSORS_TOPIC)
        by_partition: dict[int, list[tuple[int, str]]] = defaultdict(list)
        partitions = 0 if topic is None else topic.record.settings.partitions
        for topic_id, name in wanted if partitions else ():
            by_partition[partition_of(name, partitions)].append((topic_id, name))
        for index, some in by_partition.items():
            for start in range(0, len(some), limits.CURSOR_TOPICS_ASKED_MAX):
                await self._learn_some(index, some[start : start + limits.CURSOR_TOPICS_ASKED_MAX])

    async def _learn_some(self, index: int, wanted: list[tuple[int, str]]) -> None:
        led = {topic_id: self._positions.led(topic_id) for topic_id, _ in wanted}
        found = await self.ask_partition(index, CursorsOf(sorted(led)))
        cursors = {(topic_id, name): cursor.positions for topic_id, name, cursor in found.cursors}
        for topic_id, name in wanted:
            self._positions.learn(name, cursors.get((topic_id, name), {}), found.at, led[topic_id])

    async def learn_soon(self, topic_id: int) -> None:
        """Somebody wants to see where the cursors of a topic are that this broker does not know yet; for a moment."""
        wanted = self._positions.unknown(topic_id) if self.enabled else []
        if wanted:
            with suppress(StentorError, TimeoutError):
                async with asyncio.timeout(limits.CURSOR_ASK_S):
                    await self.learn(wanted)

    def shown(self, key: Key) -> int:
        """What people are shown of a partition: how far the cursors are that it waits for."""
        return self._positions.shown(key)

    async def cut(self, topic: str, index: int, end: int) -> dict[str, bytes]:
        """An unclean recovery: what is written from here on is something else, and nobody is done with it. What the
        recovery must put into the store; cursors are back here already.
        """
        held = self._catalogue.get(topic)
        key = held.record.id, index
        if not self.enabled:
            moves = self._catalogue.recorded.get(key, (0, 0))[0] > end
            return {recorded_key(key): encode(RecordedEnd(end))} if moves else {}
        if is_reserved(topic):
            return {}
        self._check_taken_over(topic, [key])
        try:
            for name, cursor in (await self.of_topic(topic)).items():
                if cursor.positions.get(index, 0) > end:
                    await self.ask(name, Moved(key[0], name, {index: end}, by=RECOVERY, back=True))
        except NotReady as error:
            error.hint = f"Cursors must go back first. If {CURSORS_TOPIC} has lost its copies, recover that first."
            raise
        return {}

    def _check_taken_over(self, topic: str, keys: Iterable[Key]) -> None:
        if any(key in self._catalogue.recorded for key in keys):
            raise NotReady(f"How far {topic} is recorded is being taken over from the store.", hint="Try again soon.")

    # --- asking heads ---------------------------------------------------------------------------

    async def ask(self, name: str, question: CursorQuestion) -> CursorsFound:
        """Ask the head of the partition that a cursor lives in."""
        partitions = self._catalogue.get(CURSORS_TOPIC).record.settings.partitions
        return await self.ask_partition(partition_of(name, partitions), question)

    async def _ask_all(self, question: CursorQuestion) -> list[tuple[int, str, NamedCursor]]:
        """Ask the heads of all partitions."""
        if not await self._has_topic():
            return []
        indexes = range(self._catalogue.get(CURSORS_TOPIC).record.settings.partitions)
        answers = await asyncio.gather(*(self.ask_partition(index, question) for index in indexes))
        return [row for answer in answers for row in answer.cursors]

    async def ask_partition(self, index: int, question: CursorQuestion) -> CursorsFound:
        """Until the head answers, whoever that is by then. NotReady at the deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limits.CURSOR_MOVE_S
        while True:
            try:
                return await self._ask_head(index, question, deadline - loop.time())
            except StentorError as error:
                if not (error.retriable or isinstance(error, UnknownOutcome)):
                    raise
                if loop.time() + limits.CURSOR_RETRY_S >= deadline:
                    raise NotReady(
                        f"{CURSORS_TOPIC}/{index}, which holds the cursor, does not answer: {error.message}",
                        hint="Try again when its chain is whole.",
                        object=f"{CURSORS_TOPIC}/{index}",
                    ) from error
            await asyncio.sleep(limits.CURSOR_RETRY_S)

    async def _ask_head(self, index: int, question: CursorQuestion, left_s: float) -> CursorsFound:
        topic = self._catalogue.get(CURSORS_TOPIC)
        held = self._catalogue.chains.get((topic.record.id, index))
        if held is None:
            raise NotReady(f"{CURSORS_TOPIC}/{index} has no chain yet.", hint="Try again in a moment.")
        head = held.record.chain[0].broker
        if head == self._identity.broker_id:
            return await self._heads.serve(index, question)
        return await self._questions.ask(head, index, question, min(limits.CURSOR_ASK_S, max(0.0, left_s)))

    # --- the internal topic ---------------------------------------------------------------------

    async def _has_topic(self) -> bool:
        """Whether there are any cursors. Another broker may have made the topic a moment ago: the store knows it."""
        if CURSORS_TOPIC not in self._catalogue.topics and await self._store.get(topic_key(CURSORS_TOPIC)) is not None:
            await self._cluster.follower.look_again()
        return CURSORS_TOPIC in self._catalogue.topics

    async def make_topic(self) -> None:
        """Once, when the first cursor is moved. What began is finished, even if whoever asked is gone."""
        if CURSORS_TOPIC in self._catalogue.topics:
            return
        if self._making is None or self._making.done():
            self._cluster.rollback.check()
            self._making = asyncio.get_running_loop().create_task(self._create_topic())
            self._making.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._making)

    async def _create_topic(self) -> None:
        async with self._topics.changing:
            if CURSORS_TOPIC in self._catalogue.topics:
                return
            try:
                await self._topics.create(CURSORS_TOPIC, SETTINGS)
            except TopicExists:
                await self._cluster.follower.look_again()  # another broker was first


def knows_cursors(identity: BrokerIdentity, trust: Trust) -> bool:
    """Whether every broker of the cluster knows cursors (C27)."""
    return identity.alone or trust.level >= CURSORS


SETTINGS: Final = TopicSettings(
    partitions=limits.CURSOR_PARTITIONS,
    segment_bytes=limits.CURSOR_SEGMENT_BYTES,
    retention_bytes=limits.CURSOR_RETENTION_BYTES,
)
"""Of the internal topic: snapshots at the starts of segments carry the state, so old segments may go."""
