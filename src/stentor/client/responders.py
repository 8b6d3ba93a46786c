"""Where the responders of a topic are, as a client knows it, and which broker it asks next.

Any broker says which brokers have responders (FindResponders). The client sends its requests straight to one of these,
over the link that it has or makes: a request takes no hop more in a cluster than at a single broker.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.core import service_limits
from stentor.errors import ConnectionFailed, NotReady, StentorError
from stentor.request_errors import NoResponders
from stentor.transport.dial import jittered_s
from stentor.wire import frames
from stentor.wire.service_messages import FindResponders

if TYPE_CHECKING:
    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.link import BrokerLink

_AGAIN_S: Final = 0.05  # until a service that may be moving is looked for again
_TOPICS_MAX: Final = 1_000  # whose places a client remembers; the oldest are forgotten


class Place:
    """A broker that has responders of a topic."""

    __slots__ = ("broker", "busy", "responders", "sent")

    def __init__(self, broker: str, responders: int) -> None:
        self.broker = broker
        self.responders = responders
        self.busy = 0  # requests of this client that wait for an answer from there
        self.sent = 0  # requests of this client since the places last changed

    def comes_before(self, other: Place) -> bool:
        """Whether this one has less to do for each of its responders; or, as much, and had less."""
        mine, its = self.busy * other.responders, other.busy * self.responders
        return mine < its or (mine == its and self.sent * other.responders < other.sent * self.responders)


class _Known:
    """What is known of a topic's responders."""

    __slots__ = ("asking", "looked_at", "looking", "looks", "moving_until", "places")

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.looked_at = 0.0
        self.looking = False
        self.looks = 0  # how many such questions were begun
        self.asking: asyncio.Task[None] | None = None  # a question that all who wait for its answer share
        self.moving_until = 0.0  # a broker that had some was lost: they may be on their way to another


class ResponderPlaces:
    """The brokers to ask, by topic."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def knows(self, topic: object) -> bool:
        """Whether it was asked for before, so that its name is one."""
        return isinstance(topic, str) and topic in self._known

    def choose(self, topic: str) -> tuple[Place, BrokerLink] | None:
        """A place that is linked: the one with the fewest requests of this client for each of its responders."""
        known = self._known.get(topic)
        if known is None:
            return None
        now = self._core.loop.time()
        if now - known.looked_at > service_limits.RESPONDERS_LOOK_S and not known.looking:
            self._look_soon(topic, known)
        best: tuple[Place, BrokerLink] | None = None
        for place in known.places:
            link = self._core.links.existing(place.broker)
            if link is None:
                known.moving_until = now + service_limits.RESPONDERS_MOVE_S
            elif best is None or place.comes_before(best[0]):
                best = place, link
        if best is not None:
            best[0].sent += 1
        return best

    def failed(self, topic: str, place: Place, *, lost: bool) -> None:
        """A broker has no responders any more, or is gone: ask anew before the next request."""
        known = self._known.get(topic)
        if known is not None:
            known.places = [other for other in known.places if other is not place]
            if lost:
                known.moving_until = self._core.loop.time() + service_limits.RESPONDERS_MOVE_S

    async def find(self, topic: str, deadline: Deadline) -> tuple[Place, BrokerLink]:
        """Ask where responders are, until there is one that can be reached. NoResponders if there is none."""
        known = self._remembered(topic)
        before = known.looks
        try:
            async with deadline.bound():
                while True:
                    await self._look_together(topic, known)
                    found = self.choose(topic)
                    if found is not None:
                        return found
                    if known.places:  # a link is being made
                        await self._core.changes(limits.LINK_WATCH_S)
                    elif self._core.loop.time() < known.moving_until:
                        await asyncio.sleep(jittered_s(_AGAIN_S / 2, _AGAIN_S))
                    elif known.looks > before:  # else it was asked before this call, and somebody may serve it now
                        raise _nobody(topic)
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self._core.late("request", deadline.seconds) from error

    def _remembered(self, topic: str) -> _Known:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _TOPICS_MAX:
                self._known.popitem(last=False)
            known = self._known[topic] = _Known()
        return known

    async def _look_together(self, topic: str, known: _Known) -> None:
        """Ask where responders are, once for all who wait: thousands of questions would take longer than a deadline."""
        if known.asking is None:

            def asked(task: asyncio.Task[None]) -> None:
                self._tasks.discard(task)
                known.asking = None
                if not task.cancelled():
                    task.exception()  # who waited has heard of it

            known.looks += 1
            known.asking = self._core.loop.create_task(self._look(topic, known))
            self._tasks.add(known.asking)
            known.asking.add_done_callback(asked)
        await asyncio.shield(known.asking)

    async def _look(self, topic: str, known: _Known) -> None:
        link = await self._core.ready_link()
        if frames.REQUESTS not in link.features:
            raise NotReady(
                f"The broker at {link.address} does not know requests: its version is older.", hint="Upgrade it."
            )
        try:
            found = await link.request(FindResponders(topic=topic))
        except (ConnectionFailed, NotReady):  # the broker is gone, or has just come
            known.moving_until = self._core.loop.time() + service_limits.RESPONDERS_MOVE_S
            return
        before = {place.broker: place for place in known.places}
        known.places = []
        for broker, responders in found.brokers:
            place = before.get(broker) or Place(broker, responders)
            place.responders = max(1, responders)
            known.places.append(place)
            self._core.links.to(broker)
        if before.keys() != {place.broker for place in known.places}:
            for place in known.places:
                place.sent = 0  # a new one should not get everything until it has had as much as the others
        known.looked_at = self._core.loop.time()

    def _look_soon(self, topic: str, known: _Known) -> None:
        """Beside the requests: there may be more responders now, at other brokers."""
        known.looking = True
        task = self._core.loop.create_task(self._look_beside(topic, known))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_beside(self, topic: str, known: _Known) -> None:
        try:
            with suppress(StentorError, TimeoutError):
                async with asyncio.timeout(limits.LINK_OPEN_S):
                    await self._look(topic, known)
        finally:
            known.looked_at = self._core.loop.time()
            known.looking = False

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def _nobody(topic: str) -> NoResponders:
    return NoResponders(
        f"Nobody serves {topic}.",
        hint=f"Start a responder with client.serve({topic!r}, handler), or check the name.",
        operation="request",
        object=topic,
    )
