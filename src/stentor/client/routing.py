"""The way to a partition: the routes as a client knows them, and whose link leads to whom.

Publishes go to the head of a partition's chain, reads to whoever of it is linked already. What is known is replaced by
a whole table or by changes of it, and never by something older (C26).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.client import routes
from stentor.client.selectors import tail_first
from stentor.wire import messages

if TYPE_CHECKING:
    from stentor.client.home import Home
    from stentor.client.link import BrokerLink
    from stentor.client.links import Links
    from stentor.client.seen import Seen
    from stentor.client.selectors import Selector
    from stentor.errors import StentorError


class Routing:
    """The routes of one client, and the links that they lead to."""

    def __init__(self, home: Home, links: Links, seen: Seen, read_from: Selector | None) -> None:
        self.routes: dict[str, messages.TopicRoute] = {}  # by topic
        self._home = home
        self._links = links
        self._seen = seen
        self._read_from = read_from or tail_first
        self._chooses = read_from is not None

    # --- what brokers say -----------------------------------------------------------------------

    def take_table(self, table: messages.RouteTable) -> None:
        """All topics and brokers; of a home that may only know what was, beside what is known."""
        if self._home.settled:
            self.routes = routes.merged(self.routes, table.topics)
            self._links.learned(info for info in table.brokers if info.id not in self._links.brokers)
        else:
            self.routes = routes.replaced(self.routes, table.topics)
            self._links.learned(table.brokers)

    def take_change(self, change: messages.RouteChange) -> None:
        """What changed of it."""
        self._links.learned(change.brokers)
        self._links.forget(change.gone)
        removed = set(change.removed)
        if removed:
            self._seen.forget(removed)
            self.routes = {name: topic for name, topic in self.routes.items() if topic.id not in removed}
        for topic in change.topics:
            self.routes[topic.name] = routes.newest(self.routes, topic)

    def redirected(self, topic: str, partition: int, error: StentorError) -> None:
        """A broker says who the head is; only a newer epoch is believed (C26)."""
        route, head, epoch = self.routes.get(topic), error.detail.get("head"), error.detail.get("epoch", 0)
        if route is None or not head or epoch <= route.partitions[partition].epoch:
            return
        partitions = list(route.partitions)
        rest = [broker for broker in partitions[partition].chain if broker != head]
        partitions[partition] = messages.PartitionRoute(epoch=epoch, chain=[head, *rest])
        self.routes[topic] = msgspec.structs.replace(route, partitions=partitions)

    # --- whose link ------------------------------------------------------------------------------

    def head_link(self, topic: str, topic_id: int, partition: int) -> BrokerLink | None:
        """The link to a partition's head; None while there is none."""
        route = self.routes.get(topic)
        if route is None or route.id != topic_id:
            return self._home.link  # home knows whether the topic is gone
        chain = route.partitions[partition].chain
        return self._links.to(chain[0]) if chain else None

    def member_link(
        self,
        topic: str,
        topic_id: int,
        partition: int,
        avoid: frozenset[str] | set[str] = frozenset(),
        *,
        head_first: bool = False,
    ) -> BrokerLink | None:
        """The link to a member to read from: whoever of the chain is linked already, and is not avoided.

        An application that chooses for itself gets whom it prefers, for the price of a connection. So does a
        question that only the head answers exactly.
        """
        route = self.routes.get(topic)
        if route is None or route.id != topic_id:
            return self._home.link
        chain = route.partitions[partition].chain
        head = [broker for broker in chain[:1] if broker not in avoid]
        order = chain[:1] if route.settings.placement == "active-passive" else self._reading_order(chain)
        chain = [broker for broker in order if broker not in avoid]
        for broker in (head if head_first else []) + (chain if self._chooses else []):
            link = self._links.to(broker)
            if link is not None or self._links.is_coming(broker):
                return link
        for broker in chain:
            if (link := self._links.existing(broker)) is not None:
                return link
        for broker in chain:
            self._links.to(broker)
        return None

    def _reading_order(self, chain: list[str]) -> list[str]:
        """Whom to read from first, by the client's selector."""
        known = [self._links.brokers[broker] for broker in chain if broker in self._links.brokers]
        return [info.id for info in self._read_from(known)]
