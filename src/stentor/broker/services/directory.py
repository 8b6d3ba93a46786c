"""Where the responders of each topic are: at this broker, and at the others, as these say.

A broker tells all others when a topic gets its first responder here, another one, or loses one; everything when a
connection to one of them is made; and everything again every RESPONDERS_TELL_S, in case something was lost. What others
say is forgotten when they are not heard any more. Nothing of it is written down: a broker that restarts has no
responders, and learns of the others' from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from stentor.core import service_limits
from stentor.wire import frames
from stentor.wire.peer import Responders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.broker.cluster.peer_links import Peers
    from stentor.broker.environment import BrokerIdentity, Environment

_PIECE: Final = 1_000  # topics in one message: it leaves room for heartbeats


class HeardOf(Protocol):
    """Who is heard."""

    def view(self, name: str) -> str: ...


class ServiceDirectory:
    """The responders of the cluster, by topic and broker."""

    def __init__(self, environment: Environment, identity: BrokerIdentity, peers: Peers, views: HeardOf) -> None:
        self._clock = environment.clock
        self._coalescing = environment.coalescing
        self._identity = identity
        self._peers = peers
        self._views = views
        self.own: Callable[[], Mapping[str, int]] = dict  # all topics that are served here; set by the desk
        self._changed: set[str] = set()
        self._others: dict[str, dict[str, int]] = {}  # by broker
        self._heard_at: dict[str, float] = {}

    # --- what this broker says ------------------------------------------------------------------

    def changed(self, topic: str) -> None:
        """The responders of a topic here; told at the end of this turn of the loop."""
        if self._peers.names:
            self._changed.add(topic)
            self._coalescing.gather(self._tell_changes)

    def _tell_changes(self) -> None:
        own, changed, self._changed = self.own(), self._changed, set()
        told = Responders(topics=[(topic, own.get(topic, 0)) for topic in sorted(changed)])
        for name in self._peers.names:
            if self._peers.knows(name, frames.RESPONDERS):
                self._peers.send(name, told)

    def tell_all(self) -> None:
        """Everything to everybody; called now and then."""
        for name in self._peers.names:
            self.tell(name)

    def tell(self, name: str) -> None:
        """Everything to one broker, in pieces."""
        if not self._peers.knows(name, frames.RESPONDERS):
            return
        topics = sorted(self.own().items())
        for start in range(0, max(1, len(topics)), _PIECE):
            self._peers.send(name, Responders(topics=topics[start : start + _PIECE], complete=start == 0))

    # --- what others say ------------------------------------------------------------------------

    def heard(self, sender: str, told: Responders) -> None:
        """Another broker's responders."""
        known = self._others.setdefault(sender, {})
        if told.complete:
            known.clear()
        self._heard_at[sender] = self._clock.monotonic()
        for topic, count in told.topics:
            if count <= 0:
                known.pop(topic, None)
            elif topic in known or len(known) < service_limits.SERVICES_MAX:
                known[topic] = count

    @property
    def is_complete(self) -> bool:
        """Whether all brokers that are heard have said what they have: one that was just started knows of nobody."""
        return all(
            name in self._heard_at
            or self._views.view(name) != "heard"
            or not self._peers.knows(name, frames.RESPONDERS)
            for name in self._peers.names
        )

    def find(self, topic: str) -> list[tuple[str, int]]:
        """The brokers with responders of a topic, this one first."""
        here = self.own().get(topic, 0)
        found = [(self._identity.broker_id, here)] if here else []
        fresh_from = self._clock.monotonic() - 3 * service_limits.RESPONDERS_TELL_S
        for broker, topics in list(self._others.items()):
            if self._heard_at[broker] < fresh_from:
                del self._others[broker], self._heard_at[broker]
            elif topic in topics and self._views.view(broker) == "heard":
                found.append((broker, topics[topic]))
        return found
