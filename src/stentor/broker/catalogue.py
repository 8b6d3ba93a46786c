"""The topics and chains of the coordination store, as this broker sees them.

Keys: `topics/<name>` holds a TopicRecord, `chains/<topic id>/<partition>` a ChainRecord, and
`deleted/<topic id>` marks directories that may be removed. A topic exists with its `topics/` key: where
its chains are too many for one swap, they are written before it and deleted after it.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor.core.names import check_topic_name
from stentor.core.records import ChainRecord, Member
from stentor.errors import (
    CoordinationError,
    InvalidArgument,
    LimitExceeded,
    NotReady,
    StorageError,
    TopicExists,
    TopicNotFound,
)
from stentor.wire.messages import PartitionRoute, TopicRoute, TopicSettings, merge_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stentor.ports import CoordinationStore


class TopicRecord(msgspec.Struct, frozen=True):
    """The authority on a topic."""

    name: str
    id: int
    settings: TopicSettings
    created_at_us: int


class Topic(msgspec.Struct):
    """A topic and its chains, with the revisions that changes must compare."""

    record: TopicRecord
    revision: int
    chains: list[ChainRecord]
    chain_revisions: list[int]

    def route(self) -> TopicRoute:
        return TopicRoute(
            name=self.record.name,
            id=self.record.id,
            settings=self.record.settings,
            partitions=[
                PartitionRoute(epoch=chain.epoch, chain=[member.broker for member in chain.chain])
                for chain in self.chains
            ],
        )


def _chain_key(topic_id: int, partition: int) -> str:
    return f"chains/{topic_id:016x}/{partition}"


def _parts(keys: Iterable[str]) -> Iterator[list[str]]:
    """As many as one swap takes at a time."""
    rest = iter(keys)
    while part := list(islice(rest, limits.COORDINATION_SWAP_OPERATIONS_MAX)):
        yield part


_encode = msgspec.msgpack.encode
# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_topic_decoder = msgspec.msgpack.Decoder(TopicRecord)
_chain_decoder = msgspec.msgpack.Decoder(ChainRecord)


class Catalogue:
    """All topics, kept in step with the store."""

    def __init__(self, store: CoordinationStore, broker_id: str, incarnation: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._incarnation = incarnation
        self.topics: dict[str, Topic] = {}

    async def load(self) -> None:
        """Read everything, and open a new epoch in which this start of the broker is the chain."""
        for entry in await self._store.range("topics/"):
            record = _topic_decoder.decode(entry.value)
            self.topics[record.name] = Topic(record, entry.revision, [], [])
        chains = {entry.key: entry for entry in await self._store.range("chains/")}
        expect: dict[str, int] = {}
        put: dict[str, bytes] = {}
        for topic in self.topics.values():
            for partition in range(topic.record.settings.partitions):
                key = _chain_key(topic.record.id, partition)
                old = _chain_decoder.decode(chains[key].value)
                renewed = ChainRecord(old.epoch + 1, (self._member(old.chain[0].log_id),))
                expect[key], put[key] = chains[key].revision, _encode(renewed)
                topic.chains.append(renewed)
        revisions: dict[str, int] = {}
        for part in _parts(put):
            swap = await self._store.swap(
                expect={key: expect[key] for key in part}, put={key: put[key] for key in part}
            )
            revisions.update(dict.fromkeys(part, swap.revision))
        for topic in self.topics.values():
            keys = (_chain_key(topic.record.id, index) for index in range(len(topic.chains)))
            topic.chain_revisions = [revisions[key] for key in keys]

    def _member(self, log_id: int) -> Member:
        return Member(self._broker_id, log_id, self._incarnation)

    def plan(self, name: str, settings: TopicSettings, now_us: int) -> Topic:
        """A new topic with its ids; it exists once it was added."""
        check_topic_name(name)
        if name in self.topics:
            raise TopicExists(f"Topic {name} exists already.", hint="Use it, or delete it first.", object=name)
        if len(self.topics) >= limits.TOPICS_MAX or self._partitions() + settings.partitions > (
            limits.PARTITIONS_PER_BROKER_MAX
        ):
            raise LimitExceeded(
                f"There are {len(self.topics)} topics with {self._partitions()} partitions; the limits are"
                f" {limits.TOPICS_MAX} and {limits.PARTITIONS_PER_BROKER_MAX}.",
                hint="Delete topics, or use keys inside one topic.",
            )
        record = TopicRecord(name, secrets.randbits(62) + 1, settings, now_us)
        chains = [ChainRecord(1, (self._member(secrets.randbits(62) + 1),)) for _ in range(settings.partitions)]
        return Topic(record, 0, chains, [])

    async def add(self, topic: Topic) -> None:
        """Write a planned topic, whose partitions are open, to the store."""
        name = topic.record.name
        chains = {_chain_key(topic.record.id, index): _encode(chain) for index, chain in enumerate(topic.chains)}
        revisions: dict[str, int] = {}
        for part in _parts([*chains, f"topics/{name}"]):
            put = {key: chains.get(key) or _encode(topic.record) for key in part}
            expect = {key: 0 for key in part if key not in chains}
            swap = await self._store.swap(expect=expect, put=put)
            if not swap.succeeded:
                with suppress(CoordinationError, StorageError):
                    await self._remove(revisions)
                raise TopicExists(f"Topic {name} exists already.", object=name)
            revisions.update(dict.fromkeys(part, swap.revision))
        topic.revision, topic.chain_revisions = revisions.pop(f"topics/{name}"), list(revisions.values())
        self.topics[name] = topic

    async def _remove(self, keys: Iterable[str]) -> None:
        for part in _parts(keys):
            await self._store.swap(expect={}, put={}, delete=tuple(part))

    def _partitions(self) -> int:
        return sum(len(topic.chains) for topic in self.topics.values())

    async def alter(self, name: str, changes: dict[str, Any]) -> Topic:
        topic = self.get(name)
        if changes.get("partitions", topic.record.settings.partitions) != topic.record.settings.partitions:
            raise InvalidArgument(
                f"Topic {name} has {topic.record.settings.partitions} partitions, and that cannot be changed.",
                hint="Keys would move between partitions and lose their order; make a new topic instead.",
                object=name,
            )
        settings = merge_settings(topic.record.settings, changes)
        record = msgspec.structs.replace(topic.record, settings=settings)
        key = f"topics/{name}"
        swap = await self._store.swap(expect={key: topic.revision}, put={key: _encode(record)})
        if not swap.succeeded:
            raise NotReady(f"Topic {name} was changed by someone else.", hint="Try again.", object=name)
        topic.record, topic.revision = record, swap.revision
        return topic

    async def delete(self, name: str) -> Topic:
        topic = self.get(name)
        key = f"topics/{name}"
        chain_keys = tuple(_chain_key(topic.record.id, index) for index in range(len(topic.chains)))
        fitting = limits.COORDINATION_SWAP_OPERATIONS_MAX - 2
        swap = await self._store.swap(
            expect={key: topic.revision},
            put={f"deleted/{topic.record.id:016x}": b""},
            delete=(key, *chain_keys[:fitting]),
        )
        if not swap.succeeded:
            raise NotReady(f"Topic {name} was changed by someone else.", hint="Try again.", object=name)
        del self.topics[name]
        # The topic is gone; records of its chains that stay behind are never read again.
        with suppress(CoordinationError, StorageError):
            await self._remove(chain_keys[fitting:])
        return topic

    async def deleted_ids(self) -> list[int]:
        """Topics whose directories may still be on disk."""
        return [int(entry.key.split("/")[1], 16) for entry in await self._store.range("deleted/")]

    async def forget_deleted(self, topic_ids: list[int]) -> None:
        """Their directories are gone."""
        await self._remove(f"deleted/{topic_id:016x}" for topic_id in topic_ids)

    def get(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(
                f"There is no topic {name}.",
                hint=f"Make it with `stentor topic create {name}`, or look with `stentor topic list`.",
                object=name,
            )
        return topic
