"""What the coordination store says, as this broker knows it: topics, chains, brokers.

Keys: `topics/<name>` holds a TopicRecord, `chains/<topic id>/<partition>` a ChainRecord, `brokers/<id>` a
BrokerRecord, `controller` a ControllerKey, `active` the broker that serves active-passive topics,
`recorded/<topic id>/<partition>` how far a partition has been recorded, `deleted/<topic id>` marks directories
that may be removed, `tidied/<id>` how far a broker has done so, `live/<id>` says that a broker is there, and
`identity/…` holds the cluster's id, its secret and its feature level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from stentor.core.controller import BrokerRecord, TopicPlan
from stentor.core.membership import ControllerKey
from stentor.core.placement import Tally
from stentor.core.records import ChainRecord, HeldRecord, Key
from stentor.errors import TopicNotFound
from stentor.wire.messages import PartitionRoute, TopicRoute, TopicSettings
from stentor.wire.schemas import SchemaColumn

if TYPE_CHECKING:
    from stentor.ports import Entry

CONTROLLER = "controller"
ACTIVE = "active"
KEY_KINDS: Final = (
    "topics/", "chains/", "brokers/", "recorded/", "deleted/", "identity/", "live/", "tidied/", CONTROLLER, ACTIVE,
)  # fmt: skip
"""All keys of a cluster; what ends in / has more behind it."""


class TopicRecord(msgspec.Struct, frozen=True):
    """The authority on a topic."""

    name: str
    id: int
    settings: TopicSettings
    created_at_us: int
    schemas: list[list[SchemaColumn]] = []  # of its rows, version 1 first; none: messages are any bytes


class RecordedEnd(msgspec.Struct, frozen=True):
    """Everything below this offset of a partition has been recorded elsewhere."""

    end: int


class HeldTopic(msgspec.Struct):
    """A topic and the revision that changes must compare."""

    record: TopicRecord
    revision: int

    @property
    def keys(self) -> list[Key]:
        return [(self.record.id, index) for index in range(self.record.settings.partitions)]

    @property
    def plan(self) -> TopicPlan:
        settings = self.record.settings
        return TopicPlan(
            settings.replicas_wanted, settings.replicas_needed, settings.placement, settings.durability == "memory"
        )

    @property
    def in_memory(self) -> bool:
        """Whether its logs are never written to disk."""
        return self.record.settings.durability == "memory"


def topic_key(name: str) -> str:
    """Where a topic's record is."""
    return f"topics/{name}"


def chain_key(key: Key) -> str:
    """Where a chain's record is."""
    return f"chains/{key[0]:016x}/{key[1]}"


def chains_prefix(topic_id: int) -> str:
    """Below it, the records of all chains of a topic."""
    return f"chains/{topic_id:016x}/"


def broker_key(broker: str) -> str:
    """Where a broker's registration is."""
    return f"brokers/{broker}"


def recorded_prefix(topic_id: int) -> str:
    """Below it, how far each partition of a topic has been recorded."""
    return f"recorded/{topic_id:016x}/"


def recorded_key(key: Key) -> str:
    """Where it is written how far a partition has been recorded."""
    return f"{recorded_prefix(key[0])}{key[1]}"


def deleted_key(topic_id: int) -> str:
    """The mark of a topic whose directories may be removed."""
    return f"deleted/{topic_id:016x}"


def tidied_key(broker: str) -> str:
    """Where a broker says up to which revision it holds nothing of deleted topics."""
    return f"tidied/{broker}"


def _key(rest: str) -> Key:
    """The partition that the rest of a key names."""
    topic_id, _, partition = rest.partition("/")
    return int(topic_id, 16), int(partition)


encode = msgspec.msgpack.encode
# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_topics = msgspec.msgpack.Decoder(TopicRecord)
_chains = msgspec.msgpack.Decoder(ChainRecord)
_brokers = msgspec.msgpack.Decoder(BrokerRecord)
_controllers = msgspec.msgpack.Decoder(ControllerKey)
_recorded = msgspec.msgpack.Decoder(RecordedEnd)


def decode_topic(value: bytes) -> TopicRecord:
    """A topic as the store holds it."""
    return _topics.decode(value)


def decode_broker(value: bytes) -> BrokerRecord:
    """A broker's registration, as it is in the store."""
    return _brokers.decode(value)


class News(msgspec.Struct):
    """What changed in the catalogue, for whoever must act on it."""

    topics: dict[int, HeldTopic | None] = {}
    chains: dict[Key, HeldRecord | None] = {}
    brokers: bool = False
    controller: tuple[ControllerKey | None, int] | None = None
    active: bool = False
    identity: bool = False
    vanished: list[str] = []  # topics that are not in the store any more, and that nobody deleted


class Catalogue:
    """Everything that is in the store, decoded."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: nothing is known."""
        self.topics: dict[str, HeldTopic] = {}
        self.by_id: dict[int, HeldTopic] = {}
        self.chains: dict[Key, HeldRecord] = {}
        self.confirmed: dict[Key, HeldRecord] = {}  # the same, as far as the store itself has said so (C28)
        self.brokers: dict[str, BrokerRecord] = {}
        self.recorded: dict[Key, tuple[int, int]] = {}  # end and revision
        self.deleted: dict[int, int] = {}  # topics, and at which revision they were marked
        self.tidied: dict[str, int] = {}  # broker -> up to which of these it holds nothing of them
        self.active = ""  # active-passive: the one broker that serves (C26)
        self.active_revision = 0
        self.identity: dict[str, bytes] = {}  # what the whole cluster has in common (cluster.trust)
        self.changes = 0  # of topics, chains and brokers
        self.tally = Tally()  # what every broker holds, counted as chains change
        self._partitions = 0

    # --- changes --------------------------------------------------------------------------------

    def put(self, entry: Entry, news: News) -> None:
        """A key has this value now."""
        kind, _, rest = entry.key.partition("/")
        if kind == "topics":
            self.put_topic(HeldTopic(_topics.decode(entry.value), entry.revision), news)
        elif kind == "chains":
            self._put_stored_chain(_key(rest), entry, news)
        elif kind == "brokers":
            record = _brokers.decode(entry.value)
            if self.brokers.get(record.id) != record:
                self.brokers[record.id] = record
                news.brokers = True
                self.changes += 1
        elif kind == "recorded":
            self.put_recorded(_key(rest), _recorded.decode(entry.value).end, entry.revision)
        elif kind in ("deleted", "tidied"):
            self._put_mark(kind, rest, entry)
        elif kind == "identity":
            self.identity[rest] = entry.value
            news.identity = True
        elif kind == CONTROLLER:
            news.controller = (_controllers.decode(entry.value), entry.revision)
        elif kind == ACTIVE and entry.revision > self.active_revision:
            self.active, self.active_revision = entry.value.decode(), entry.revision
            news.active = True

    def _put_mark(self, kind: str, rest: str, entry: Entry) -> None:
        """A topic was deleted, or a broker says up to which of these deletions it has nothing of them."""
        if kind == "deleted":
            self.deleted[int(rest, 16)] = entry.revision
            return
        # Only what is older than the key is believed: another etcd, to which keys were copied, counts otherwise.
        told = int(entry.value) if entry.value.isdigit() else 0
        self.tidied[rest] = told if told < entry.revision else 0

    def put_topic(self, topic: HeldTopic, news: News) -> None:
        """A topic's record; only a newer one is news."""
        known = self.topics.get(topic.record.name)
        if known is not None and known.revision >= topic.revision:
            return
        if known is not None:
            self._partitions -= known.record.settings.partitions
        self._partitions += topic.record.settings.partitions
        self.topics[topic.record.name] = self.by_id[topic.record.id] = topic
        news.topics[topic.record.id] = topic
        self.changes += 1

    def put_chain(self, key: Key, held: HeldRecord, news: News, *, confirmed: bool) -> None:
        """A chain's record; only a newer one is news. `confirmed`: the store has it, no peer only says so (C28)."""
        if confirmed and (key not in self.confirmed or self.confirmed[key].revision < held.revision):
            self.confirmed[key] = held
        known = self.chains.get(key)
        if known is None or known.revision < held.revision:
            self.chains[key] = held
            self.tally.put(key, held.record)
            news.chains[key] = held
            self.changes += 1

    def _put_stored_chain(self, key: Key, entry: Entry, news: News) -> None:
        """What is known already is not decoded: whoever reads the whole store again knows nearly all of it."""
        known, confirmed = self.chains.get(key), self.confirmed.get(key)
        if known is None or confirmed is None or min(known.revision, confirmed.revision) < entry.revision:
            self.put_chain(key, HeldRecord(_chains.decode(entry.value), entry.revision), news, confirmed=True)

    def unconfirmed(self, key: Key) -> HeldRecord | None:
        """A record that only a peer has told so far."""
        held, confirmed = self.chains.get(key), self.confirmed.get(key)
        return held if held is not None and (confirmed is None or confirmed.revision < held.revision) else None

    def drop_rumour(self, key: Key, news: News) -> None:
        """The store does not have what a peer has told: go back to what it has."""
        held = self.confirmed.get(key)
        self.changes += 1
        self.tally.put(key, None if held is None else held.record)
        if held is None:
            del self.chains[key]
        else:
            self.chains[key] = news.chains[key] = held

    def put_recorded(self, key: Key, end: int, revision: int) -> None:
        """How far a partition has been recorded; only a newer word counts."""
        if self.recorded.get(key, (0, 0))[1] < revision:
            self.recorded[key] = end, revision

    def delete(self, key: str, revision: int, news: News) -> None:
        """A key was gone at this revision; what is known to be newer stays, and so does a topic without its mark."""
        self.changes += 1
        kind, _, rest = key.partition("/")
        if kind == "topics" and (topic := self.topics.get(rest)) is not None and topic.revision <= revision:
            self._delete_topic(topic, news)
        elif kind == "chains":
            chain = _key(rest)
            held = self.chains.get(chain)
            if held is not None and held.revision <= revision and not self._vanished(chain[0]):
                self.drop_chain(chain)
                news.chains[chain] = None
        elif kind == "brokers" and self.brokers.pop(rest, None) is not None:
            news.brokers = True
        elif kind == "recorded" and self.recorded.get(_key(rest), (0, revision + 1))[1] <= revision:
            del self.recorded[_key(rest)]
        elif kind == "deleted" and self.deleted.get(int(rest, 16), revision + 1) <= revision:
            del self.deleted[int(rest, 16)]
        elif kind == "tidied":
            self.tidied.pop(rest, None)
        elif kind == CONTROLLER:
            news.controller = (None, 0)

    def _delete_topic(self, topic: HeldTopic, news: News) -> None:
        if self._vanished(topic.record.id):
            news.vanished.append(topic.record.name)
            return
        self.drop_topic(topic)
        news.topics[topic.record.id] = None

    def drop_topic(self, topic: HeldTopic) -> None:
        """It was deleted."""
        if self.topics.pop(topic.record.name, None) is not None:
            self._partitions -= topic.record.settings.partitions
        self.by_id.pop(topic.record.id, None)

    def drop_chain(self, key: Key) -> None:
        """Its topic was deleted."""
        if self.chains.pop(key, None) is not None:
            self.tally.put(key, None)

    def _vanished(self, topic_id: int) -> bool:
        """C27: deleting a topic leaves a mark; without it the store has lost the topic, and logs are not removed."""
        return topic_id in self.by_id and topic_id not in self.deleted

    def replace(self, entries: list[Entry], revision: int, news: News) -> None:
        """This was all there was at a revision: whatever else was known by then is gone."""
        for entry in entries:  # first: marks of deletion are among them
            self.put(entry, news)
        keys = {entry.key for entry in entries}
        known = [topic_key(name) for name in self.topics]
        known += [chain_key(key) for key in self.chains]
        known += [broker_key(broker) for broker in self.brokers]
        known += [recorded_key(key) for key in self.recorded]
        known += [tidied_key(broker) for broker in self.tidied]
        known += [deleted_key(topic_id) for topic_id in self.deleted]  # last: topics above are gone for good by them
        for key in known:
            if key not in keys:
                self.delete(key, revision, news)

    # --- questions ------------------------------------------------------------------------------

    def get(self, name: str) -> HeldTopic:
        """A topic by name."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(
                f"There is no topic {name}.",
                hint=f"Make it with `stentor topic create {name}`, or look with `stentor topic list`.",
                object=name,
            )
        return topic

    def route(self, topic: HeldTopic) -> TopicRoute:
        """Where a topic's partitions are."""
        held = [self.chains.get(key) for key in topic.keys]
        return TopicRoute(
            name=topic.record.name,
            id=topic.record.id,
            settings=topic.record.settings,
            partitions=[
                PartitionRoute(epoch=h.record.epoch, chain=[m.broker for m in h.record.chain])
                if h is not None
                else PartitionRoute(epoch=0, chain=[])
                for h in held
            ],
        )

    def partitions(self) -> int:
        """How many there are in all."""
        return self._partitions
