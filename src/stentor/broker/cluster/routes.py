"""The tracker's face to clients: which brokers there are, and where every topic's partitions are.

A client gets the whole route table once and then what changes; changes of one turn of the loop leave together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from stentor.broker.long_requests import encoded
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from stentor.broker.catalogue import Catalogue, HeldTopic, News
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.core.cluster import ClusterMember
    from stentor.core.records import HeldRecord


_PARTITIONS_PIECE: Final = 256  # whose routes are looked at, and perhaps encoded, in one piece


class _Encoded(NamedTuple):
    topic: HeldTopic
    chains: list[HeldRecord | None]  # what the route says
    route: Any


class Watcher(Protocol):
    """A client that wants to hear of changes."""

    @property
    def listener(self) -> str: ...

    def routes_changed(self, change: bytes) -> None: ...


class RouteViews(Protocol):
    """How this broker sees the others."""

    @property
    def member(self) -> ClusterMember | None: ...

    def view(self, name: str) -> str: ...


class Routes:
    """Tells clients what changed."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        catalogue: Catalogue,
        control: RouteViews,
        *,
        own: Callable[[str], messages.BrokerInfo],
        watchers: Callable[[], Iterable[Watcher]],
    ) -> None:
        self._loop = environment.loop
        self._identity = identity
        self._catalogue = catalogue
        self._control = control
        self._own = own  # this broker, as those see it who came in by a listener
        self._watchers = watchers
        self._version = 1
        self._views: dict[str, str] = {}
        self._topics: dict[int, HeldTopic | None] = {}
        self._brokers = False
        self._announcing = False
        self._known: set[str] = set()
        self._encoded: dict[int, _Encoded] = {}  # routes as they were sent, by topic

    def take_news(self, news: News) -> None:
        """What the store says."""
        if news.brokers:
            self.brokers_changed()
        for topic_id, topic in news.topics.items():
            self.topic_changed(topic_id, topic)
        for key in news.chains:
            if (topic := self._catalogue.by_id.get(key[0])) is not None:
                self.topic_changed(key[0], topic)

    def look_at_view(self, name: str, view: str) -> None:
        """A broker is seen otherwise than before."""
        if self._views.get(name) != view:
            self._views[name] = view
            self.brokers_changed()

    def topic_changed(self, topic_id: int, topic: HeldTopic | None) -> None:
        """A topic, or where its partitions are; None: it is gone."""
        self._topics[topic_id] = topic
        self._announce_soon()

    def brokers_changed(self) -> None:
        self._brokers = True
        self._announce_soon()

    def _announce_soon(self) -> None:
        if not self._announcing:
            self._announcing = True
            self._loop.call_soon(self.announce)

    def announce(self) -> None:
        """Tell everyone now."""
        self._announcing = False
        changed, self._topics = self._topics, {}
        brokers, self._brokers = self._brokers, False
        if not changed and not brokers:
            return
        change = messages.RouteChange(
            version=self._next_version(),
            topics=[self._catalogue.route(topic) for topic in changed.values() if topic is not None],
            removed=[topic_id for topic_id, topic in changed.items() if topic is None],
            gone=self._gone() if brokers else [],
        )

        bodies: dict[str, bytes] = {}  # in the words of the listener that a client came in by
        for watcher in self._watchers():
            listener = watcher.listener
            if listener not in bodies:
                told = msgspec.structs.replace(change, brokers=self.brokers(listener)) if brokers else change
                bodies[listener] = messages.encode(told)
            watcher.routes_changed(bodies[listener])

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def prepare(self) -> Generator[None, None, None]:
        """Encode the routes that are not encoded yet, in pieces; then `table` has little to do (C35)."""
        self._encoded = {key: known for key, known in self._encoded.items() if key in self._catalogue.by_id}
        partitions = 0
        for name in list(self._catalogue.topics):
            topic = self._catalogue.topics.get(name)
            if topic is not None:
                self._route(topic)
                partitions += 1 + topic.record.settings.partitions
                if partitions >= _PARTITIONS_PIECE:
                    partitions = 0
                    yield

    def table(self, listener: str) -> messages.RouteTable:
        """Everything, for a client that begins to watch."""
        return messages.RouteTable(
            version=self._version,
            brokers=self.brokers(listener),
            topics=[self._route(topic) for topic in self._catalogue.topics.values()],
        )

    def _route(self, topic: HeldTopic) -> Any:
        """Where a topic's partitions are, encoded; once for all who ask, until it changes."""
        chains, topic_id = self._catalogue.chains, topic.record.id
        held = [chains.get((topic_id, index)) for index in range(topic.record.settings.partitions)]
        known = self._encoded.get(topic_id)
        # Records are never changed, only replaced: comparing them stops at the first glance where nothing happened.
        if known is None or known.topic is not topic or known.chains != held:
            known = self._encoded[topic_id] = _Encoded(topic, held, encoded(self._catalogue.route(topic)))
        return known.route

    def _gone(self) -> list[str]:
        known, self._known = self._known, set(self._catalogue.brokers)
        return sorted(known - self._known)

    def brokers(self, listener: str = "") -> list[messages.BrokerInfo]:
        """All brokers, as clients see them that came in by a listener; one without it is told as brokers reach it."""
        me, cluster_id, control = self._identity.broker_id, self._identity.cluster_id, self._control
        return [
            self._own(listener)
            if record.id == me
            else messages.BrokerInfo(
                id=record.id,
                cluster_id=cluster_id,
                version=record.version,
                address=record.addresses.get(listener, record.address),
                http_address=record.http_address,
                zone=record.zone,
                alive=control.member is None or control.view(record.id) == "heard",
                load=0 if control.member is None else control.member.membership.load_of(record.id),
            )
            for record in self._catalogue.brokers.values()
        ]
