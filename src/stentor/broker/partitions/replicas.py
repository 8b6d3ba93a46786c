"""The replicas that this broker holds: opened, created, configured, removed, as the store's records say.

Their logs are `copies`'; what they need to be members of chains is done by the `ChainDesk`.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from stentor import limits
from stentor.broker.partitions.chain_desk import ChainDesk, ClusterPort
from stentor.broker.partitions.copies import Copies
from stentor.broker.partitions.partition import Partition
from stentor.broker.partitions.replication import unpack_offer
from stentor.core import refusals
from stentor.core.replica_events import Configure, PeerConnected
from stentor.errors import NotReady, StentorError
from stentor.memory import keep_long_lived_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.broker.background import Background
    from stentor.broker.catalogue import Catalogue, HeldTopic, News
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.broker.partitions.interfaces import Sender
    from stentor.core.records import HeldRecord, Key, Member
    from stentor.storage.journal import ReplicaJournal

logger = logging.getLogger(__name__)

_POLL_S = 0.002  # whoever makes a topic waits for it
_SETTLED_PARTITIONS = 500  # so many new ones are worth setting apart from what is collected


class Replicas:
    """All partitions of this broker."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        *,
        catalogue: Catalogue,
        partitions: dict[Key, Partition],
        copies: Copies,
        journal: ReplicaJournal,
        desk: ChainDesk,
        port: ClusterPort,
        background: Background,
    ) -> None:
        self.partitions = partitions
        self._environment = environment
        self._identity = identity
        self._catalogue = catalogue
        self._copies = copies
        self._port = port
        self._background = background
        self._desk = desk
        self._journal = journal
        self._creating: dict[Key, HeldRecord] = {}  # being made; with the newest record heard meanwhile
        self._dropping: dict[Key, HeldRecord | None] = {}  # being removed; with the newest record heard meanwhile
        self._drops: dict[Key, asyncio.Future[None]] = {}  # removals under way, and how they end
        self._dropped: set[int] = set()  # ids of logs that were removed in this life
        self._superseded_since: dict[Key, float] = {}
        self._added = 0  # since long-lived objects were last set apart

    # --- opening --------------------------------------------------------------------------------

    async def open_all(self, topics: Iterable[HeldTopic], named: dict[Key, Member]) -> None:
        """Recover every log on this disk, several at a time: what a restart waits for.

        Those that the journal does not know are opened only if they are `named`. Those in memory are gone: what begins
        in their place is another copy (C3), once the controller has named it.
        """
        wanted = []
        for topic in topics:
            if topic.in_memory:
                continue
            for key in topic.keys:
                known = self._journal.get(*key)
                log_id = known.log_id if known is not None else None
                if log_id is None and key in named:
                    log_id = named[key].log_id
                if log_id is not None:
                    wanted.append((topic, key, log_id))
        loop = self._environment.loop
        with ThreadPoolExecutor(limits.RECOVERY_THREADS, "stentor-recovery") as pool:
            opening = [loop.run_in_executor(pool, self._copies.reopen, *one, self._desk) for one in wanted]
            for partition in await asyncio.gather(*opening):
                if partition is not None:
                    self._add(partition)

    async def _create(self, topic: HeldTopic, key: Key, log_id: int) -> None:
        """Begin a new log; what was in its place is put aside."""
        reserved = self._creating[key].record.reserved
        begin = (topic, key, log_id, self._desk, 0 if reserved is None else reserved.begins)
        self._add(await self._environment.loop.run_in_executor(None, self._copies.begin, *begin))

    async def create_many(self, topic: HeldTopic, log_ids: dict[Key, int]) -> None:
        """Begin the logs of a new topic, a few at a time."""
        await asyncio.to_thread(self._copies.note, log_ids)
        loop = self._environment.loop
        with ThreadPoolExecutor(limits.RECOVERY_THREADS, "stentor-create") as pool:
            making = [
                loop.run_in_executor(pool, self._copies.begin, topic, key, log_id, self._desk)
                for key, log_id in log_ids.items()
            ]
            outcomes = await asyncio.gather(*making, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Partition):
                self._add(outcome)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def discard(self, keys: list[Key]) -> None:
        """The topic was not made after all, for lack of room perhaps: nothing of it stays."""
        error = StentorError("The topic could not be made.")
        for key in keys:  # first: it lets go of descriptors, which the removal may need
            await self.drop(key, error)
        await asyncio.to_thread(self._copies.remove_directories, keys)

    def _add(self, partition: Partition) -> None:
        self.partitions[partition.key] = partition
        partition.note_memory()
        if (topic := self._catalogue.by_id.get(partition.key[0])) is not None:
            self._apply(topic, partition)  # it may have changed while the log was opened
        self._added += 1
        if self._added >= _SETTLED_PARTITIONS:
            self._added = 0
            keep_long_lived_objects()

    # --- records --------------------------------------------------------------------------------

    def take_news(self, news: News) -> None:
        """What the store says of topics and chains."""
        for topic_id, topic in news.topics.items():
            if topic is None:
                self._background.spawn(self._drop_topic(topic_id))
            else:
                self._take_topic(topic)
        for key, held in news.chains.items():
            topic = self._catalogue.by_id.get(key[0])
            if held is not None and topic is not None:
                self.configure(topic, key, held)

    def _take_topic(self, topic: HeldTopic) -> None:
        for key in topic.keys:
            if (partition := self.partitions.get(key)) is not None:
                self._apply(topic, partition)
            if (held := self._catalogue.chains.get(key)) is not None:
                self.configure(topic, key, held)

    def _apply(self, topic: HeldTopic, partition: Partition) -> None:
        if partition.apply(topic.record.settings, len(topic.record.schemas)):
            partition.log.settings = self._copies.log_settings(topic.record)
            partition.flush_later()
            partition.sync.catch_up()

    async def _drop_topic(self, topic_id: int) -> None:
        """A topic was deleted, here or elsewhere: its logs go."""
        for key in [key for key in self.partitions if key[0] == topic_id]:
            if (partition := self.partitions.get(key)) is not None:
                await self.drop(key, refusals.deleted(partition.topic))

    def configure(self, topic: HeldTopic, key: Key, held: HeldRecord) -> None:
        """The store has this record of a partition; it may name this broker."""
        named = self._named(held)
        partition = self.partitions.get(key)
        if key in self._dropping:
            self._dropping[key] = held
        elif key in self._creating:
            self._creating[key] = held
        elif named is not None and (partition is None or partition.replica.me.log_id != named.log_id):
            if named.log_id in self._dropped:
                # C3: empty, it would pass for the copy that it was. The controller hears that there is none.
                if named in held.record.chain:
                    logger.critical(
                        "%s/%d: the chain names a copy that this broker has removed; it cannot be a member",
                        topic.record.name,
                        key[1],
                    )
                self._port.report_soon(key)
                return
            self._creating[key] = held
            self._background.spawn(self._create_named(topic, key, named))
        elif partition is not None:
            partition.step(Configure(held.record, held.revision))

    def _named(self, held: HeldRecord) -> Member | None:
        """This broker's member in the record, if it is of this life."""
        me, life = self._identity.broker_id, self._identity.incarnation
        return next((m for m in held.record.members if m.broker == me and m.incarnation == life), None)

    async def _create_named(self, topic: HeldTopic, key: Key, named: Member) -> None:
        held: HeldRecord | None = None
        try:
            await self._close_replaced(key)
            await self._create(topic, key, named.log_id)
            held = self._creating[key]
            if key[0] not in self._catalogue.by_id:  # deleted meanwhile: nobody would ever remove it
                held = None
                await self.drop(key, refusals.deleted(topic.record.name))
        except (StentorError, OSError) as error:  # the next record of the partition tries again
            logger.warning("partition %s/%d cannot be opened: %s", topic.record.name, key[1], error)
        finally:
            self._creating.pop(key, None)
        if held is not None:
            self.configure(topic, key, held)
            self._port.report_soon(key)

    async def _close_replaced(self, key: Key) -> None:
        old = self.partitions.pop(key, None)
        if old is None:
            return
        self._dropped.add(old.replica.me.log_id)
        old.followers.end(NotReady("This copy of the partition is being replaced.", hint="Another broker has one."))
        await self.settle(old)
        with suppress(StentorError):  # its disk may be why it is replaced
            old.log.close()
        old.give_back_memory()

    async def settle(self, partition: Partition) -> None:
        """Bring what it has to disk."""
        settled = asyncio.Event()
        partition.successor.stop()
        partition.sync.stop(settled.set)
        await settled.wait()

    async def wait_until_active(self, topic: HeldTopic) -> None:
        """Give the chains of a new topic a moment, so that the first publish finds them at work."""

        def active() -> bool:
            local = [self.partitions.get(key) for key in topic.keys]
            return all(_is_settled(partition) for partition in local if partition is not None)

        await self._until(active)

    async def wait_until_at_work(self) -> None:
        """All of them, or they have failed; also those in memory, which begin anew."""
        topics = self._catalogue.topics.values()
        in_memory = [key for topic in topics if topic.in_memory for key in topic.keys]
        await self._until(
            lambda: (
                all(p.replica.active or p.replica.failed for p in self.partitions.values())
                and all(key in self.partitions for key in in_memory)
            )
        )

    async def _until(self, holds: Callable[[], bool]) -> None:
        loop = self._environment.loop
        deadline = loop.time() + limits.ACTIVATION_S
        while not holds():
            if loop.time() > deadline:
                return
            await asyncio.sleep(_POLL_S)

    # --- other brokers --------------------------------------------------------------------------

    def offered(self, sender: str, body: memoryview, connection: Sender) -> None:
        """Batches on their way down a chain."""
        key, offered, batches = unpack_offer(sender, body)
        partition = self.partitions.get(key)
        if partition is not None:
            partition.offered(offered, batches, connection)

    def peer_connected(self, broker: str) -> None:
        """Both connections to another broker are there, or it has dialled this one."""
        for partition in list(self.partitions.values()):
            position = partition.replica.position
            if broker in position.brokers or position.successor is not None:
                partition.step(PeerConnected(broker))

    def look_at_view(self, name: str, view: str) -> None:
        """C25: without its predecessor a member does not hear of commits; nobody shall stay "live" on it."""
        if view == "heard":
            return
        for partition in self.partitions.values():
            if partition.followers.streams:
                predecessor = partition.replica.position.predecessor
                if predecessor is not None and predecessor.broker == name:
                    partition.followers.fail_all(refusals.cut_off())

    def end_streams_for_now(self) -> None:
        """This broker is cut off (C25)."""
        for partition in self.partitions.values():
            partition.followers.fail_all(refusals.cut_off())

    # --- letting go -----------------------------------------------------------------------------

    def forget_superseded(self) -> None:
        """Copies that full chains no longer name go, a while after they were last needed."""
        now = self._environment.clock.monotonic()
        for key, partition in list(self.partitions.items()):
            if partition.replica.position.index is not None:
                if self._superseded_since:
                    self._superseded_since.pop(key, None)
                continue
            record = partition.replica.record
            held = self._catalogue.chains.get(key)
            if record is None or held is None or not self._is_superseded(held, partition):
                self._superseded_since.pop(key, None)
            elif now - self._superseded_since.setdefault(key, now) > limits.SUPERSEDED_S:
                del self._superseded_since[key]
                self._background.spawn(self._drop_superseded(key, partition))

    async def _drop_superseded(self, key: Key, partition: Partition) -> None:
        """C28: the store is asked once more before a copy is removed."""
        try:
            await self._port.look_again()
        except StentorError as error:
            logger.warning(
                "%s: could not ask the coordination store whether this copy is still needed: %s", partition.name, error
            )
            return
        held = self._catalogue.confirmed.get(key)
        if held is not None and self._is_superseded(held, partition) and self.partitions.get(key) is partition:
            logger.warning("%s: this copy is not needed any more and is removed", partition.name)
            await self.drop(key, NotReady("This copy of the partition was removed.", hint="Other brokers have it."))

    def _is_superseded(self, held: HeldRecord, partition: Partition) -> bool:
        record = held.record
        members = (*record.members, *record.eligible)
        named = any(member.broker == self._identity.broker_id for member in members)
        return not named and len(record.chain) >= record.factor and partition.replica.position.index is None

    async def drop(self, key: Key, error: StentorError) -> None:
        """The topic was deleted: its log goes. Returns when it is gone, whoever began to remove it."""
        if (under_way := self._drops.get(key)) is not None:
            await asyncio.shield(under_way)
            return
        partition = self.partitions.pop(key, None)
        if partition is None:
            self._copies.forget(key)
            return
        self._dropping[key], self._drops[key] = None, self._environment.loop.create_future()
        self._dropped.add(partition.replica.me.log_id)
        self._port.report_soon(key)  # nobody shall count on it any more
        try:
            partition.followers.end(error)
            await self.settle(partition)
            self._copies.forget(key)
            await asyncio.to_thread(partition.log.delete)
            partition.give_back_memory()
        except BaseException as failure:
            self._drops[key].set_exception(failure)
            self._drops[key].exception()  # whoever waits sees it; nobody needs to
            raise
        else:
            self._drops[key].set_result(None)
        finally:
            held = self._dropping.pop(key)
            del self._drops[key]
        topic = self._catalogue.by_id.get(key[0])
        if held is not None and topic is not None:
            self.configure(topic, key, held)


def _is_settled(partition: Partition) -> bool:
    """At work, or not going to be."""
    replica = partition.replica
    return replica.active or bool(replica.failed) or (replica.record is not None and not replica.position.is_head)
