"""Topics are made, changed and deleted here: by any broker, with one swap of the coordination store.

A topic is made together with the chains of its partitions, so whoever sees it can use it. Changing chains
afterwards is the controller's work alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from stentor import limits
from stentor.broker.catalogue import (
    HeldTopic,
    News,
    TopicRecord,
    chain_key,
    deleted_key,
    encode,
    topic_key,
)
from stentor.broker.cluster import schemas
from stentor.broker.cluster.memory_topics import check_memory
from stentor.core import refusals
from stentor.core.names import check_topic_name
from stentor.core.placement import Candidate, Load, place
from stentor.core.records import ChainRecord, HeldRecord, Key, Member
from stentor.core.reservation import first_reservation
from stentor.errors import (
    InvalidArgument,
    LimitExceeded,
    NotReady,
    StentorError,
    TopicExists,
    UnknownSwap,
)
from stentor.ports import Swap
from stentor.wire import peer
from stentor.wire.messages import TopicSettings, merge_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.cluster.control import Control
    from stentor.broker.cluster.peer_links import Peers
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.broker.cluster.store_room import StoreKeeper
    from stentor.broker.cluster.trust import Trust
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.ports import CoordinationStore
    from stentor.wire.messages import TopicChanges
    from stentor.wire.schemas import SchemaColumn

logger = logging.getLogger(__name__)


class Logs(Protocol):
    """The logs of this broker, as topics come and go."""

    async def create_many(self, topic: HeldTopic, log_ids: dict[Key, int]) -> None: ...
    async def discard(self, keys: list[Key]) -> None: ...
    async def drop(self, key: Key, error: StentorError) -> None: ...
    async def wait_until_active(self, topic: HeldTopic) -> None: ...


class TopicAdmin:
    """Changes of topics."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        *,
        followed: FollowedStore,
        control: Control,
        peers: Peers,
        trust: Trust,
        logs: Logs,
        check_room: Callable[[int], None],
        keeper: StoreKeeper,
    ) -> None:
        self._environment = environment
        self._identity = identity
        self._store, self._catalogue, self._follower = followed.store, followed.catalogue, followed.follower
        self._control = control
        self._peers = peers
        self._trust = trust
        self._logs = logs
        self._check_room = check_room  # for so many more logs
        self._keeper = keeper
        self.changing = asyncio.Lock()  # topics change one at a time
        self._looking_up = asyncio.Lock()

    # --- making ---------------------------------------------------------------------------------

    async def create(self, name: str, settings: TopicSettings) -> HeldTopic:
        """Make a topic: logs of this broker first, so that a full disk leaves nothing behind, then the store."""
        await self._learn_of(name)
        topic = self._plan(name, settings)
        chains = self._place(topic)
        mine = {
            key: member.log_id
            for key, record in chains.items()
            for member in record.chain
            if member.broker == self._identity.broker_id
        }
        self._check_room(len(mine))
        await self._keeper.check(sum(len(encode(record)) for record in (topic.record, *chains.values())), name)
        try:
            await self._logs.create_many(topic, mine)
            held = await self._add(topic, chains)
        except UnknownSwap:
            raise  # it may be made yet, and be used: the logs stay
        except Exception:
            await self._logs.discard(list(mine))
            raise
        self._tell(topic, held)
        await self._logs.wait_until_active(topic)  # so that the first publish finds its chains at work
        logger.info("topic %s made with %d partitions", name, settings.partitions)
        return topic

    def _plan(self, name: str, settings: TopicSettings) -> HeldTopic:
        check_topic_name(name)
        catalogue = self._catalogue
        if name in catalogue.topics:
            raise TopicExists(f"Topic {name} exists already.", hint="Use it, or delete it first.", object=name)
        partitions = catalogue.partitions()
        if len(catalogue.topics) >= limits.TOPICS_MAX or partitions + settings.partitions > limits.PARTITIONS_MAX:
            raise LimitExceeded(
                f"There are {len(catalogue.topics)} topics with {partitions} partitions; the limits of a cluster are"
                f" {limits.TOPICS_MAX} and {limits.PARTITIONS_MAX}.",
                hint="Delete topics, or use keys inside one topic.",
            )
        brokers = len(catalogue.brokers)
        wanted = 1 if settings.durability == "memory" else limits.REPLICAS
        replicas = settings.replicas or min(wanted, brokers)
        if replicas > brokers:
            raise InvalidArgument(
                f"Topic {name} wants {replicas} replicas; the cluster has {brokers} brokers.",
                hint="Ask for fewer replicas, or start more brokers first.",
                object=name,
            )
        settings = msgspec.structs.replace(settings, replicas=replicas)
        _check_minimum(name, settings)
        check_memory(name, settings)
        _check_table(name, settings)
        _check_cleanup(name, settings)
        check_queue(name, settings)
        if settings.kind == "table" and not self._trust.tables:
            raise refusals.being_upgraded("tables", name, made=True)
        if settings.kind == "queue" and not self._trust.queues:
            raise refusals.being_upgraded("queues", name, made=True)
        if settings.cleanup != "delete" and not self._trust.compaction:
            raise refusals.being_upgraded("compacted topics", name, made=True)
        if settings.durability == "memory" and not self._trust.memory:
            raise refusals.being_upgraded("memory topics", name, made=True)
        record = TopicRecord(name, secrets.randbits(62) + 1, settings, self._environment.clock.now_us())
        return HeldTopic(record, 0)

    def _place(self, topic: HeldTopic) -> dict[Key, ChainRecord]:
        """Chains for all partitions, from who is there now."""
        plan, catalogue = topic.plan, self._catalogue
        alive = self._control.alive()
        candidates = [
            Candidate(record.id, record.zone)
            for record in catalogue.brokers.values()
            if record.id in alive and not record.draining
        ]
        load = catalogue.tally.load.copy()
        chains = {}
        for key in topic.keys:
            names = place(key[1], plan.factor, candidates, load, mode=plan.mode, active=catalogue.active)
            if len(names) < plan.min_replicas:
                raise NotReady(
                    f"Topic {topic.record.name} needs {plan.min_replicas} brokers; {len(names)} answer.",
                    hint="Try again when more brokers are up.",
                )
            load.add(names)
            members = tuple(Member(name, secrets.randbits(62) + 1, alive[name]) for name in names)
            chains[key] = ChainRecord(
                1,
                members,
                proposal=secrets.randbits(62),
                factor=plan.factor,
                min_replicas=plan.min_replicas,
                reserved=first_reservation() if plan.memory else None,
            )
        _check_brokers(topic.record.name, load)
        return chains

    async def _add(self, topic: HeldTopic, chains: dict[Key, ChainRecord]) -> dict[Key, HeldRecord]:
        """Chains first where one swap cannot hold all; the topic's own key last: it makes them count."""
        name = topic.record.name
        records = list(chains.items())
        size = limits.COORDINATION_SWAP_OPERATIONS_MAX - 1
        parts = [records[start : start + size] for start in range(0, len(records), size)]
        held: dict[Key, HeldRecord] = {}
        for number, part in enumerate(parts):
            put = {chain_key(key): encode(record) for key, record in part}
            expect = dict.fromkeys(put, 0)
            if number == len(parts) - 1:
                put[topic_key(name)], expect[topic_key(name)] = encode(topic.record), 0
            swap = await self._swap(expect, put)
            if not swap.succeeded:
                raise TopicExists(f"Topic {name} exists already.", object=name)
            held.update((key, HeldRecord(record, swap.revision)) for key, record in part)
            topic.revision = swap.revision
        return held

    async def _swap(self, expect: dict[str, int], put: dict[str, bytes]) -> Swap:
        """C17: a swap whose answer is missing is looked up; what is not there may still be made."""
        store = self._store
        try:
            return await store.swap(expect=expect, put=put)
        except UnknownSwap as unknown:
            key, value = next(reversed(put.items()))
            try:
                found = await store.get(key)
            except StentorError:
                raise unknown from None
            if found is None:
                raise
            return Swap(succeeded=found.value == value, revision=found.revision)

    def _tell(self, topic: HeldTopic, held: dict[Key, HeldRecord] | None = None) -> None:
        """This broker changed a topic, or made it with these chains: everyone hears of it now."""
        news = News()
        self._catalogue.put_topic(topic, news)
        for key, one in (held or {}).items():
            self._catalogue.put_chain(key, one, news, confirmed=True)
        self._follower.tell(news)
        self._peers.send_all(peer.TopicsChanged(topic.revision, topic.record.name, topic.record.id))

    # --- changing -------------------------------------------------------------------------------

    async def _change(self, name: str, change: Callable[[TopicRecord], TopicRecord]) -> HeldTopic:
        """Swap a topic's record. Another broker may have changed it a moment ago: then look once more, and try again.

        `change` gets the record as it is now; what it returns unchanged is not written.
        """
        key = topic_key(name)
        for _ in range(limits.TOPIC_CHANGE_TRIES_MAX):
            topic = self._catalogue.get(name)
            record = change(topic.record)
            if record is topic.record:
                return topic
            value = encode(record)
            await self._keeper.check(len(value), name)
            swap = await self._store.swap(expect={key: topic.revision}, put={key: value})
            if swap.succeeded:
                changed = HeldTopic(record, swap.revision)
                self._tell(changed)
                return changed
            await self._follower.look_again()
        raise _changed_meanwhile(name)

    async def alter(self, name: str, changes: TopicChanges) -> HeldTopic:
        return await self._change(name, lambda record: self._altered(record, changes))

    def _altered(self, record: TopicRecord, changes: TopicChanges) -> TopicRecord:
        name, settings = record.name, record.settings
        merged = merge_settings(settings, changes)
        if merged == settings:
            return record
        if merged.partitions != settings.partitions:
            raise InvalidArgument(
                f"Topic {name} has {settings.partitions} partitions, and that cannot be changed.",
                hint="Keys would move between partitions and lose their order; make a new topic instead.",
                object=name,
            )
        if merged.kind != settings.kind:
            raise InvalidArgument(
                f"Topic {name} is a {settings.kind}, and that cannot be changed.",
                hint="Make a new topic instead.",
                object=name,
            )
        if merged.cleanup != settings.cleanup:
            raise InvalidArgument(
                f"Topic {name} has the cleanup {settings.cleanup}, and that cannot be changed.",
                hint="Make a new topic instead.",
                object=name,
            )
        if merged.durability != settings.durability:
            raise InvalidArgument(
                f"Topic {name} has the durability {settings.durability}, and that cannot be changed.",
                hint="Make a new topic instead.",
                object=name,
            )
        if merged.ordered_by != settings.ordered_by:
            raise InvalidArgument(
                f"Whether jobs of queue {name} are ordered by their keys cannot be changed.",
                hint="Make a new queue instead.",
                object=name,
            )
        if merged.replicas > len(self._catalogue.brokers):
            raise InvalidArgument(
                f"{merged.replicas} replicas need as many brokers; the cluster has {len(self._catalogue.brokers)}.",
                object=name,
            )
        _check_minimum(name, merged)
        check_memory(name, merged)
        _check_table(name, merged)
        _check_cleanup(name, merged)
        check_queue(name, merged)
        return msgspec.structs.replace(record, settings=merged)

    async def register_schema(self, name: str, columns: list[SchemaColumn]) -> HeldTopic:
        """Make a schema the next version of a topic's; one that it has, or had, changes nothing."""
        return await self._change(name, lambda record: schemas.with_version(record, columns))

    # --- deleting -------------------------------------------------------------------------------

    async def delete(self, name: str) -> None:
        """The mark first: what is found without it was lost, and is not removed (C27)."""
        topic = await self._delete_name(name)
        await delete_all(self._store, [chain_key(partition) for partition in topic.keys])
        await self._tell_deleted(topic)
        logger.info("topic %s deleted", name)

    async def _delete_name(self, name: str) -> HeldTopic:
        """Another broker may have changed the topic a moment ago: then look once more, and delete what it is now."""
        key = topic_key(name)
        for _ in range(limits.TOPIC_CHANGE_TRIES_MAX):
            topic = self._catalogue.get(name)
            mark = {deleted_key(topic.record.id): b""}
            if (await self._store.swap(expect={key: topic.revision}, put=mark, delete=(key,))).succeeded:
                return topic
            await self._follower.look_again()
        raise _changed_meanwhile(name)

    async def _tell_deleted(self, topic: HeldTopic) -> None:
        catalogue, news = self._catalogue, News(topics={topic.record.id: None})
        catalogue.drop_topic(topic)
        for key in topic.keys:
            catalogue.drop_chain(key)
            news.chains[key] = None
        self._follower.tell(news)
        for key in topic.keys:
            await self._logs.drop(key, refusals.deleted(topic.record.name))
        self._peers.send_all(peer.TopicsChanged(0))

    async def _learn_of(self, name: str) -> None:
        """A topic that is known may have been deleted through another broker, which this one has not heard of yet."""
        if name in self._catalogue.topics and await self._store.get(topic_key(name)) is None:
            await self._follower.look_again()

    async def appeared(self, name: str) -> bool:
        """Whether there is a topic that this broker had not heard of: another one may have made it a moment ago.

        One look-up at a time, so that names which nobody has cost the store little.
        """
        async with self._looking_up:
            if name in self._catalogue.topics:
                return True  # the watch, or who asked before, has brought it meanwhile
            with suppress(StentorError):
                return bool(name) and await self._follower.learn_topic(name)
        return False


def _check_brokers(name: str, load: Load) -> None:
    """Whether every broker may hold what it would hold with this topic."""
    broker, held = max(load.replicas.items(), key=lambda item: item[1], default=("", 0))
    if held > limits.PARTITIONS_PER_BROKER_MAX:
        raise LimitExceeded(
            f"With topic {name} broker {broker} would hold {held} partitions; the limit is"
            f" {limits.PARTITIONS_PER_BROKER_MAX}.",
            hint="Delete topics, use keys inside one topic, or add brokers.",
            object=name,
        )


def _check_table(name: str, settings: TopicSettings) -> None:
    if settings.kind == "table" and (settings.retention_age_s or settings.retention_bytes is not None):
        raise InvalidArgument(
            f"Topic {name} is a table: retention would delete keys that are in use.",
            hint="Delete keys instead, or use a topic that is no table.",
            object=name,
        )


def _check_cleanup(name: str, settings: TopicSettings) -> None:
    if settings.kind == "table" and settings.cleanup == "compact,delete":
        raise InvalidArgument(
            f"Topic {name} is a table: it is compacted, and retention would delete keys that are in use.",
            hint="Leave out the cleanup, or use a topic that is no table.",
            object=name,
        )
    if settings.cleanup == "compact" and (settings.retention_age_s or settings.retention_bytes is not None):
        raise InvalidArgument(
            f"Topic {name} is compacted and has a retention; with cleanup=compact, retention deletes nothing.",
            hint="Use cleanup=compact,delete, or leave out the retention.",
            object=name,
        )


def check_queue(name: str, settings: TopicSettings) -> None:
    """What is for queues alone, and what is not for them."""
    default = TopicSettings()
    said = [each for each in _OF_QUEUES if getattr(settings, each) != getattr(default, each)]
    if settings.kind != "queue" and said:
        raise InvalidArgument(
            f"Topic {name} is no queue; {said[0]} is a setting of queues.",
            hint="Leave it out, or make the topic with kind=queue.",
            object=name,
        )
    if settings.kind == "queue" and settings.cleanup != "delete":
        raise InvalidArgument(
            f"Topic {name} is a queue: every job counts, and a queue cannot be compacted.",
            hint="Leave out the cleanup.",
            object=name,
        )
    if settings.dead_letter_topic:
        check_topic_name(settings.dead_letter_topic)


_OF_QUEUES: Final = ("ordered_by", "max_attempts", "lease_s", "retry_delay_ms", "dead_letter_topic")


def _check_minimum(name: str, settings: TopicSettings) -> None:
    if settings.min_replicas and settings.min_replicas > settings.replicas:
        raise InvalidArgument(
            f"Topic {name} has {settings.replicas} replicas; {settings.min_replicas} of them cannot be the minimum.",
            hint="Lower min_replicas, or ask for more replicas.",
            object=name,
        )


async def delete_all(store: CoordinationStore, keys: list[str]) -> None:
    """Delete keys, as many at a time as a swap may."""
    size = limits.COORDINATION_SWAP_OPERATIONS_MAX
    for start in range(0, len(keys), size):
        await store.swap(expect={}, put={}, delete=tuple(keys[start : start + size]))


def _changed_meanwhile(name: str) -> NotReady:
    return NotReady(f"Topic {name} was changed by someone else.", hint="Try again.", object=name)
