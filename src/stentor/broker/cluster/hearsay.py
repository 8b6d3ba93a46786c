"""What peers say about chains is a hint (C28): what cannot be undone waits until the store says so too.

    a record that keeps this copy, or that concerns no copy here      followed at once: chains go on without the store
    a record that does without this copy, or wants another one        looked up; until then the copy takes nothing (C6)
    cutting a log, letting its beginning go                           once the store has said who is the predecessor
    removing a copy                                                   once the store was asked again

A member that is cut off from the store can so follow its chain, and a peer that is wrong can stop a partition for a
moment, but not destroy it. Look-ups read all chains of a topic at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from stentor import limits
from stentor.broker.catalogue import News, chains_prefix
from stentor.core.replica_events import Doubted, Trusted
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.broker.background import Background
    from stentor.broker.cluster.interfaces import LocalCopy
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.core.records import HeldRecord, Key

logger = logging.getLogger(__name__)


class Hearsay:
    """Keeps what was only heard apart from what the store has said."""

    def __init__(
        self,
        copies: Mapping[Key, LocalCopy],
        *,
        followed: FollowedStore,
        background: Background,
    ) -> None:
        self._copies = copies
        self._store, self._catalogue = followed.store, followed.catalogue
        self._rollback, self._follower = followed.rollback, followed.follower
        self._background = background
        self._asking: set[int] = set()  # topics that are being looked up
        self._waiting: dict[Key, list[tuple[LocalCopy, Callable[[], None]]]] = {}  # for when the store has said so
        self._rumours: dict[Key, int] = {}  # what was only heard, as of the last look
        self._doubted: set[Key] = set()  # partitions that were told to doubt their record

    # --- records --------------------------------------------------------------------------------

    def believed(self, records: dict[Key, HeldRecord]) -> dict[Key, HeldRecord]:
        """The records of a peer that may be followed at once; the others are looked up."""
        found = {}
        for key, held in records.items():
            partition = self._copies.get(key)
            if partition is None or self._keeps(partition, held):
                found[key] = held
            elif held.revision > partition.replica.revision:
                self._doubted.add(key)
                partition.step(Doubted(held.revision))
                self.look_up(key[0])
        return found

    def _keeps(self, partition: LocalCopy, held: HeldRecord) -> bool:
        """Whether following the record takes nothing away: this copy is in it, or has no part in the chain anyway."""
        position, me = partition.replica.position, partition.replica.me
        members = held.record.members
        if me in members:
            return True
        has_part = position.index is not None or position.joins
        return not has_part and all(member.broker != me.broker for member in members)

    def look_up(self, topic_id: int) -> None:
        """Read the chains of a topic from the store, until it answers."""
        if topic_id not in self._asking:
            self._asking.add(topic_id)
            self._background.spawn(self._look_up(topic_id))

    async def _look_up(self, topic_id: int) -> None:
        try:
            while True:
                if await self._read(topic_id):
                    return
                await asyncio.sleep(limits.RUMOUR_ASK_S)
        finally:
            self._asking.discard(topic_id)

    async def _read(self, topic_id: int) -> bool:
        before, catalogue = self._rollback.revision, self._catalogue
        rumours = {
            key: held for key in list(catalogue.chains) if key[0] == topic_id and (held := catalogue.unconfirmed(key))
        }
        try:
            found = await self._store.range(chains_prefix(topic_id))
        except StentorError as error:
            logger.debug("what a peer said could not be looked up yet: %s", error)
            return False
        if not self._rollback.follows(before, found.revision):
            return True
        news = News()
        for entry in found.entries:
            catalogue.put(entry, news)
        for key, held in rumours.items():
            if (
                catalogue.unconfirmed(key) is held
            ):  # it was heard before the store was asked, so the store would have it
                logger.error(
                    "another broker announced a chain of partition %d that the coordination store does not have: %s",
                    key[1],
                    held,
                )
                catalogue.drop_rumour(key, news)
        self._follower.tell_read(news)
        return True

    async def learn_topic(self, name: str) -> None:
        """A peer has made or changed a topic: read that one, and not everything."""
        try:
            await self._follower.learn_topic(name)
        except StentorError as error:
            logger.debug("topic %s could not be looked up yet: %s", name, error)

    def check_rumours(self) -> None:
        """Called now and then: what a peer told and the store has not said since is looked up."""
        catalogue = self._catalogue
        heard = {key: held.revision for key in catalogue.chains if (held := catalogue.unconfirmed(key)) is not None}
        for key, revision in heard.items():
            if self._rumours.get(key) == revision:
                self.look_up(key[0])
        self._rumours = heard

    # --- what waits for the store ---------------------------------------------------------------

    def when_confirmed(self, partition: LocalCopy, work: Callable[[], None]) -> None:
        """Do something that cannot be undone, once the store has named this member's predecessor."""
        if self.is_confirmed(partition):
            work()
            return
        self._waiting.setdefault(partition.key, []).append((partition, work))
        self.look_up(partition.key[0])

    def is_confirmed(self, partition: LocalCopy) -> bool:
        """Whether the store has this member's record, or one with the same predecessor."""
        replica = partition.replica
        held = self._catalogue.confirmed.get(partition.key)
        if held is None:
            return False
        return held.revision >= replica.revision or held.record.before(replica.me) == replica.position.predecessor

    def settle(self) -> None:
        """The store has said something: who waited for it goes on, and who was doubted wrongly is trusted again."""
        for key in list(self._waiting):
            partition = self._copies.get(key)
            if partition is None:
                del self._waiting[key]
            elif self.is_confirmed(partition):
                for copy, work in self._waiting.pop(key):
                    if copy is partition:  # and not one that was replaced meanwhile
                        work()
        for key in list(self._doubted):
            partition = self._copies.get(key)
            if partition is None or not partition.replica.doubted:
                self._doubted.discard(key)
                continue
            held = self._catalogue.confirmed.get(key)
            if held is not None and held.revision == partition.replica.revision:
                partition.step(Trusted())
