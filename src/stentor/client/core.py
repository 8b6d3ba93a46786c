"""The client's core: one link that is kept alive, the route table, and who must hear of changes.

Lives in one loop. Sync and async clients are faces of it. While the link is down, calls wait for
it until their own deadline; producers and subscriptions are told when it is back, and send again
what was not answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client.link import Link
from stentor.core.names import check_topic_name
from stentor.errors import Closed, ConnectionFailed, DeadlineExceeded, ForkDetected, InvalidArgument, StentorError
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

logger = logging.getLogger(__name__)

DEFAULT_PORT = 7440
_REQUESTS_UNDER_WAY_MAX = 32  # half of what a broker allows one connection

# Requests that may be sent again when the link broke before their answer.
_REPEATABLE = (
    messages.DescribeTopic,
    messages.ListTopics,
    messages.FindOffset,
    messages.WatchRoutes,
    messages.ListClients,
    messages.GetStatistics,
)

_cores: weakref.WeakSet[ClientCore] = weakref.WeakSet()


def _mark_forked() -> None:
    """In a forked child no core works: its loop's thread stayed in the parent."""
    for core in _cores:
        core.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


def parse_url(url: str | None) -> list[str]:
    """Addresses out of "stentor://a:7440,b", "a:1,b:2" or nothing ($STENTOR_URL, else localhost)."""
    text = url if url is not None else os.environ.get("STENTOR_URL", "localhost")
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "stentor":
        raise InvalidArgument(
            f"{text!r} is not a Stentor URL.", hint="Use stentor://host:port or host:port.", object=text
        )
    addresses = []
    for part in (rest if separator else text).rstrip("/").split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part.strip(), str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidArgument(
                f"{part!r} is not an address.", hint="Use host:port, for example localhost:7440.", object=text
            )
        addresses.append(f"{host}:{port}")
    return addresses


def default_name() -> str:
    """What operators see when the application does not name its client."""
    program = Path(sys.argv[0] or "python").name or "python"
    return f"{program}@{socket.gethostname()}:{os.getpid()}"[: limits.CLIENT_NAME_CHARACTERS_MAX]


async def _no_alert(topic: str, text: str) -> None:
    """Replaced by the client that can publish."""


class ClientCore:
    """What all faces of a client share."""

    def __init__(self, addresses: list[str], *, name: str, timeout: float) -> None:
        self.addresses = addresses
        self.name = name
        self.timeout = timeout
        self.loop = asyncio.get_running_loop()
        self.link: Link | None = None
        self.closed = False
        self.forked = False
        self._thread_id = threading.get_ident()
        self.routes: dict[str, messages.TopicRoute] = {}
        self.link_listeners: set[Callable[[Link], None]] = set()
        self.route_listeners: set[Callable[[], None]] = set()
        self.closers: set[Callable[[], Awaitable[None]]] = set()
        self._ready = asyncio.Event()
        self._asking = asyncio.Semaphore(_REQUESTS_UNDER_WAY_MAX)
        self._connecting: asyncio.Task[None] | None = None
        self._last_error: StentorError | None = None
        self.links_made = 0
        self._linked_at = 0.0
        self._backoff_s = 0.0
        self.alert: Callable[[str, str], Coroutine[Any, Any, None]] = _no_alert
        _cores.add(self)

    # --- the link -------------------------------------------------------------------------------

    async def start(self) -> None:
        """The first connection must succeed within the client's timeout."""
        deadline = self.loop.time() + self.timeout
        error: StentorError | None = None
        delay = limits.RECONNECT_DELAY_S
        while True:
            for address in self.addresses:
                try:
                    link = await Link.open(address, self.name, max(0.05, deadline - self.loop.time()))
                    return await self._adopt(link)
                except StentorError as failure:
                    error = failure
                    if not failure.retriable:
                        raise
            # A broker that refuses connections is not there; do not keep a person waiting for it.
            if error is not None and (isinstance(error, ConnectionFailed) or self.loop.time() + delay > deadline):
                raise error
            await asyncio.sleep(delay)

    async def _adopt(self, link: Link) -> None:
        link.on_lost = self._lost
        link.on_routes = self._routes_changed
        try:
            table = await asyncio.wait_for(link.request(messages.WatchRoutes()), self.timeout)
        except TimeoutError as error:
            link.close()
            raise self.late("connect", self.timeout) from error
        link.check()  # it may have broken while its answer was on the way
        self.link = link
        self.links_made += 1
        if self.links_made > 1:
            logger.warning("Connected again, to the broker at %s.", link.address)
        self._linked_at = self.loop.time()
        self.routes = {topic.name: topic for topic in table.topics}
        self._ready.set()
        for listener in list(self.link_listeners):
            listener(link)
        self._tell_routes()

    def _lost(self, link: Link, error: StentorError) -> None:
        if link is self.link and not self.closed:
            self.link = None
            if self.loop.time() - self._linked_at > limits.LINK_PROVEN_S:
                self._backoff_s = 0.0
            self._ready.clear()
            self._last_error = error
            logger.warning("%s Trying to connect again.", error.message)
            self._connecting = self.loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Back off exponentially with full jitter, so that a thousand clients do not come at once."""
        while True:
            await asyncio.sleep(random.uniform(0, self._backoff_s))  # noqa: S311 - jitter, not a secret
            self._backoff_s = min(max(2 * self._backoff_s, limits.RECONNECT_DELAY_S), limits.RECONNECT_DELAY_S_MAX)
            for address in self.addresses:
                try:
                    link = await Link.open(address, self.name, limits.HANDSHAKE_S)
                    return await self._adopt(link)
                except (StentorError, TimeoutError, OSError) as error:
                    self._last_error = error if isinstance(error, StentorError) else None

    async def ready_link(self) -> Link:
        """The link, waiting for it if need be; the caller sets the deadline."""
        while True:
            self.check_open()
            if self.link is not None:
                return self.link
            await self._ready.wait()

    async def link_within(self, timeout: float | None, operation: str) -> Link:
        """The link, within a call's deadline."""
        limit = self.timeout if timeout is None else timeout
        try:
            return await asyncio.wait_for(self.ready_link(), limit)
        except TimeoutError as error:
            raise self.late(operation, limit) from error

    def check_open(self) -> None:
        if self.forked:
            raise ForkDetected(
                "This client was made before a fork and cannot be used in the child.",
                hint="Connect in the child process, after the fork.",
            )
        if self.closed:
            raise Closed("This client is closed.", hint="Make a new one with stentor.connect().")

    def in_own_thread(self) -> bool:
        """Whether this is the thread of the client's loop, as in a callback."""
        return threading.get_ident() == self._thread_id

    def check_caller(self) -> None:
        """Waiting for the loop inside the loop would last for ever."""
        if self.in_own_thread():
            raise InvalidArgument(
                "A client cannot be called from its own callback.", hint="Hand the work to another thread."
            )

    # --- calls ----------------------------------------------------------------------------------

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        """Send a request, wait for its answer; repeat what may be repeated when the link breaks."""
        operation = type(request).__name__
        try:
            async with asyncio.timeout(self.timeout if timeout is None else timeout):
                while True:
                    link = await self.ready_link()
                    try:
                        async with self._asking:
                            return await link.request(request)
                    except ConnectionFailed:
                        if not isinstance(request, _REPEATABLE):
                            raise
        except TimeoutError as error:
            raise self.late(operation, self.timeout if timeout is None else timeout) from error

    def late(self, operation: str, timeout: float) -> StentorError:
        """The error for a deadline that passed, with the reason if there is one."""
        why = f" ({self._last_error.message})" if self.link is None and self._last_error else ""
        return DeadlineExceeded(
            f"{operation} did not finish within {timeout:g} s{why}.",
            hint="Check the broker, or allow more time with timeout=.",
            operation=operation,
        )

    # --- routes ---------------------------------------------------------------------------------

    def _routes_changed(self, change: messages.RouteChange) -> None:
        removed = set(change.removed)
        if removed:
            self.routes = {name: topic for name, topic in self.routes.items() if topic.id not in removed}
        for topic in change.topics:
            self.routes[topic.name] = topic
        self._tell_routes()

    def _tell_routes(self) -> None:
        for listener in list(self.route_listeners):
            listener()

    async def topic(self, name: str, timeout: float | None = None) -> messages.TopicRoute:
        """A topic's route; made on the way if the broker makes topics by itself."""
        check_topic_name(name)
        await self.link_within(timeout, f"find topic {name}")
        route = self.routes.get(name)
        if route is None:
            await self.call(messages.CreateTopic(name=name, automatic=True), timeout)
            table = await self.call(messages.WatchRoutes(), timeout)
            self.routes.update({topic.name: topic for topic in table.topics})
            route = self.routes[name]
        return route

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush producers, close subscriptions, say goodbye."""
        if self.closed:
            return
        outcomes = await asyncio.gather(*(closer() for closer in list(self.closers)), return_exceptions=True)
        self._disconnect()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _disconnect(self) -> None:
        self.closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self.link is not None:
            self.link.close()
            self.link = None
        self._ready.set()
