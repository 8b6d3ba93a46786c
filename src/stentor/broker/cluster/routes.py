"""The tracker's face to clients: which brokers there are, and where every topic's partitions are.

A client gets the whole route table once and then what changes; changes of one turn of the loop leave together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.wire import messages

if TYPE_CHECKING:
    from stentor.broker.broker import Broker
    from stentor.broker.catalogue import HeldTopic


class Routes:
    """Tells clients what changed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[int, HeldTopic | None] = {}
        self._brokers = False
        self._announcing = False
        self._known: set[str] = set()

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
            self._broker.loop.call_soon(self.announce)

    def announce(self) -> None:
        """Tell everyone now."""
        self._announcing = False
        changed, self._topics = self._topics, {}
        brokers, self._brokers = self._brokers, False
        catalogue = self._broker.catalogue
        if not changed and not brokers:
            return
        change = messages.RouteChange(
            version=self._broker.next_route_version(),
            topics=[catalogue.route(topic) for topic in changed.values() if topic is not None],
            removed=[topic_id for topic_id, topic in changed.items() if topic is None],
            gone=self._gone() if brokers else [],
        )

        def told(listener: str) -> messages.RouteChange:
            return msgspec.structs.replace(change, brokers=self.brokers(listener)) if brokers else change

        self._broker.announce(told)

    def _gone(self) -> list[str]:
        known, self._known = self._known, set(self._broker.catalogue.brokers)
        return sorted(known - self._known)

    def brokers(self, listener: str = "") -> list[messages.BrokerInfo]:
        """All brokers, as clients see them that came in by a listener; one without it is told as brokers reach it."""
        broker, cluster = self._broker, self._broker.cluster
        return [
            broker.info(listener)
            if record.id == broker.broker_id
            else messages.BrokerInfo(
                id=record.id,
                cluster_id=broker.cluster_id,
                version=record.version,
                address=record.addresses.get(listener, record.address),
                http_address=record.http_address,
                zone=record.zone,
                alive=cluster.member is None or cluster.view(record.id) == "heard",
                load=0 if cluster.member is None else cluster.member.membership.load_of(record.id),
            )
            for record in broker.catalogue.brokers.values()
        ]
