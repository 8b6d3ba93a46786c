"""The client's core: a home link that is kept alive, links to other brokers, the route table, and who must hear
of changes.

Lives in one loop. Sync and async clients are faces of it. While the home link is down, calls wait for
it until their own deadline, and traffic on other links goes on; producers and subscriptions are told when a link
is there, and send again what was not answered.
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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor.client import questions, routes
from stentor.client.convert import as_seconds
from stentor.client.deadline import Deadline
from stentor.client.links import Links
from stentor.client.seen import Seen
from stentor.client.selectors import tail_first
from stentor.core.names import check_topic_name
from stentor.errors import (
    Closed,
    ConnectionFailed,
    CoordinationUnavailable,
    DeadlineExceeded,
    ForkDetected,
    InvalidArgument,
    NotReady,
    StentorError,
)
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from stentor.client.link import BrokerLink
    from stentor.client.selectors import Selector

    Timeout = float | Deadline | None  # of a call, or of the call that this is a step of

logger = logging.getLogger(__name__)

DEFAULT_PORT = 7440
_REQUESTS_UNDER_WAY_MAX = 32  # half of what a broker allows one connection

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
    if not isinstance(text, str):
        raise InvalidArgument(
            f"A URL is text, not {type(text).__name__}.", hint='Several addresses are one text: "a:7440,b:7440".'
        )
    if "@" in text:
        # Whatever stands before it may be a password: it is not repeated here.
        raise InvalidArgument(
            "The URL holds a user or a password; Stentor has no users.", hint="Use stentor://host:port or host:port."
        )
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
        if not _is_host(host) or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
            raise InvalidArgument(
                f"{part!r} is not an address.", hint="Use host:port, for example localhost:7440.", object=text
            )
        addresses.append(f"{host}:{port}")
    return addresses


def _is_host(text: str) -> bool:
    """Whether a resolver could take it; it would raise what is no connection error."""
    try:
        return bool(text.encode("idna")) and "\0" not in text
    except UnicodeError:
        return False


def default_name() -> str:
    """What operators see when the application does not name its client."""
    program = Path(sys.argv[0] or "python").name or "python"
    return f"{program}@{socket.gethostname()}:{os.getpid()}"[: limits.CLIENT_NAME_CHARACTERS_MAX]


def _ignore_routes(change: messages.RouteChange) -> None:
    """A link that did not become home has no say."""


async def _no_alert(topic: str, text: str) -> None:
    """Replaced by the client that can publish."""


class ClientCore:
    """What all faces of a client share."""

    def __init__(self, addresses: list[str], *, name: str, timeout: float, read_from: Selector | None = None) -> None:
        self.addresses = addresses
        self.name = name
        self.timeout = timeout
        self.read_from = read_from or tail_first
        self._chooses = read_from is not None
        self.loop = asyncio.get_running_loop()
        self.link: BrokerLink | None = None  # home
        self.links = Links(name)
        self.links.on_linked = self._linked
        self.links.on_lost = self._lost
        self.links.on_unreachable = self._tell_routes
        self.closed = False
        self.forked = False
        self._thread_id = threading.get_ident()
        self.routes: dict[str, messages.TopicRoute] = {}
        self.seen = Seen()
        self.link_listeners: set[Callable[[BrokerLink], None]] = set()
        self.route_listeners: set[Callable[[], None]] = set()
        self.closers: set[Callable[[], Awaitable[None]]] = set()
        self._ready = asyncio.Event()
        self._asking = asyncio.Semaphore(_REQUESTS_UNDER_WAY_MAX)
        self._connecting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None  # for a better home than this
        self._last_error: StentorError | None = None
        self.refusals: dict[str, StentorError] = {}  # by topic: why a question is not answered yet
        self.links_made = 0
        self._linked_at = 0.0
        self._backoff_s = 0.0
        self._avoided: dict[str, float] = {}  # addresses that are no home at present, and until when
        self._cut_off_heard = False  # some broker said, since there was a home, that it is cut off from its cluster
        self._settles = False  # nobody else answers: one that only knows what was will do
        self._settled = False  # so this home was taken, and may only know what was
        self.wait_for: Callable[[Coroutine[Any, Any, Any]], Any] = self._wait_for
        self.alert: Callable[[str, str], Coroutine[Any, Any, None]] = _no_alert
        _cores.add(self)

    # --- the link -------------------------------------------------------------------------------

    async def start(self) -> None:
        """The first connection must succeed within the client's timeout."""
        deadline = self.loop.time() + self.timeout
        delay = limits.RECONNECT_DELAY_S
        while True:
            try:
                link = await self.links.race(self._homes(), max(0.05, deadline - self.loop.time()))
                return await self._adopt(link)
            except StentorError as error:
                # A broker that refuses connections is not there; do not keep a person waiting for it.
                nobody = isinstance(error, ConnectionFailed) and (self._settles or not self._avoided)
                if nobody or self.loop.time() + delay > deadline or not error.retriable:
                    raise
                self._settles = isinstance(error, ConnectionFailed) or not self._fresh(self._homes())
            await asyncio.sleep(delay)

    async def _adopt(self, link: BrokerLink, timeout: float | None = None) -> None:
        settles = self._settles
        try:
            table = await self._ask_table(link, timeout or self.timeout, stale=settles)
        except BaseException:
            link.on_routes = _ignore_routes
            if not self.links.has(link):  # a link that others use is only no home
                link.close()
            raise
        self.link = link
        self._settles = self._cut_off_heard = False
        self._settled = settles
        if settles:
            self._looking = self.loop.create_task(self._look_elsewhere(link))
        self.links_made += 1
        if self.links_made > 1:
            logger.warning("Connected again, to the broker at %s.", link.address)
        self._linked_at = self.loop.time()
        self._take_table(table)
        self._ready.set()
        self.links.add(link)
        self._tell_routes()

    async def _ask_table(self, link: BrokerLink, timeout: float, *, stale: bool) -> messages.RouteTable:
        link.on_routes = self._routes_changed
        try:
            table: messages.RouteTable = await asyncio.wait_for(
                link.request(messages.WatchRoutes(stale=stale)), timeout
            )
        except NotReady:
            self._cut_off_heard = True
            self._avoided[link.address] = self.loop.time() + limits.LINK_AVOIDED_S
            raise
        except TimeoutError as error:
            raise self.late("connect", timeout) from error
        link.check()  # it may have broken while its answer was on the way
        return table

    def _linked(self, link: BrokerLink) -> None:
        for listener in list(self.link_listeners):
            listener(link)

    def _lost(self, link: BrokerLink, error: StentorError) -> None:
        if self.closed:
            return
        if link is self.link:
            self.link = None
            if self.loop.time() - self._linked_at > limits.LINK_PROVEN_S:
                self._backoff_s = 0.0
            self._ready.clear()
            self._last_error = error
            logger.warning("%s Trying to connect again.", error.message)
            self._connecting = self.loop.create_task(self._reconnect(link))
        self._tell_routes()  # whoever used this link looks for another way

    async def _reconnect(self, lost: BrokerLink) -> None:
        """Back off exponentially with full jitter, so that a thousand clients do not come at once."""
        spread_s = self.links.spread_s(lost.broker.id if lost.broker is not None else "")
        while True:
            for link in self.links.alive():  # another broker that is linked already can be home at once
                with suppress(StentorError, TimeoutError):
                    return await self._adopt(link, limits.LINK_OPEN_S)
            await asyncio.sleep(random.uniform(0, max(self._backoff_s, spread_s)))  # noqa: S311 - jitter, not a secret
            self._backoff_s = min(max(2 * self._backoff_s, limits.RECONNECT_DELAY_S), limits.RECONNECT_DELAY_S_MAX)
            try:
                link = await self.links.race(self._homes(lost.address), limits.HANDSHAKE_S)
                return await self._adopt(link)
            except (StentorError, TimeoutError, OSError) as error:
                self._last_error = error if isinstance(error, StentorError) else None
                nobody_else = not isinstance(error, NotReady) or not self._fresh(self._homes())
                self._settles = self._cut_off_heard and nobody_else

    async def _look_elsewhere(self, settled: BrokerLink) -> None:
        """A home that may only know what was is one until it knows what is, or another answers."""
        while True:
            wait_s = limits.LINK_AVOIDED_S
            await asyncio.sleep(random.uniform(wait_s, 2 * wait_s))  # noqa: S311 - jitter, not a secret
            if self.link is not settled:
                return
            with suppress(StentorError, TimeoutError, OSError):
                table = await self._ask_table(settled, limits.LINK_OPEN_S, stale=False)
                if self.link is settled:
                    self._settled = False
                    self._take_table(table)
                    self._tell_routes()
                return
            with suppress(StentorError, TimeoutError, OSError):
                link = await self.links.race([a for a in self._homes() if a != settled.address], limits.LINK_OPEN_S)
                if self.link is settled:
                    await self._adopt(link)
                else:
                    link.close()

    def _homes(self, lost: str = "") -> list[str]:
        """Where a home may be found: the addresses given, and all brokers heard of since; in any order, so that
        clients spread over the brokers, but the one that was lost last.
        """
        learned = [info.address for info in self.links.brokers.values() if info.alive]
        homes = list(dict.fromkeys([*self.addresses, *learned]))
        random.shuffle(homes)
        homes.sort(key=lambda address: address == lost)
        return homes if self._settles else self._fresh(homes) or homes

    def _fresh(self, homes: list[str]) -> list[str]:
        """Those that did not say a moment ago that they are none."""
        now = self.loop.time()
        return [address for address in homes if self._avoided.get(address, 0.0) <= now]

    # --- the way to a partition -----------------------------------------------------------------

    def head_link(self, topic: str, topic_id: int, partition: int) -> BrokerLink | None:
        """The link to a partition's head; None while there is none."""
        route = self.routes.get(topic)
        if route is None or route.id != topic_id:
            return self.link  # home knows whether the topic is gone
        chain = route.partitions[partition].chain
        return self.links.to(chain[0]) if chain else None

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
            return self.link
        chain = route.partitions[partition].chain
        head = [broker for broker in chain[:1] if broker not in avoid]
        order = chain[:1] if route.settings.placement == "active-passive" else self.reading_order(chain)
        chain = [broker for broker in order if broker not in avoid]
        for broker in (head if head_first else []) + (chain if self._chooses else []):
            link = self.links.to(broker)
            if link is not None or self.links.is_coming(broker):
                return link
        for broker in chain:
            if (link := self.links.existing(broker)) is not None:
                return link
        for broker in chain:
            self.links.to(broker)
        return None

    def reading_order(self, chain: list[str]) -> list[str]:
        """Whom to read from first, by the client's selector."""
        known = [self.links.brokers[broker] for broker in chain if broker in self.links.brokers]
        return [info.id for info in self.read_from(known)]

    def redirected(self, topic: str, partition: int, error: StentorError) -> None:
        """A broker says who the head is; only a newer epoch is believed (C26)."""
        route, head, epoch = self.routes.get(topic), error.detail.get("head"), error.detail.get("epoch", 0)
        if route is None or not head or epoch <= route.partitions[partition].epoch:
            return
        partitions = list(route.partitions)
        rest = [broker for broker in partitions[partition].chain if broker != head]
        partitions[partition] = messages.PartitionRoute(epoch=epoch, chain=[head, *rest])
        self.routes[topic] = msgspec.structs.replace(route, partitions=partitions)

    # --- waiting --------------------------------------------------------------------------------

    async def ready_link(self) -> BrokerLink:
        """The link, waiting for it if need be; the caller sets the deadline."""
        self.check_loop()
        while True:
            self.check_open()
            if self.link is not None:
                return self.link
            await self._ready.wait()

    def check_loop(self) -> None:
        """A client's links and locks belong to the event loop that it was opened in."""
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidArgument(
                "This client belongs to another event loop.",
                hint="Open one in each loop that uses it: with every asyncio.run() a new loop begins.",
            )

    async def link_within(self, timeout: Timeout, operation: str) -> BrokerLink:
        """The link, within a call's deadline."""
        deadline = self.deadline(timeout)
        try:
            async with deadline.bound():
                return await self.ready_link()
        except TimeoutError as error:
            raise self.late(operation, deadline.seconds) from error

    def check_open(self) -> None:
        if self.forked:
            raise ForkDetected(
                "This client was made before a fork and cannot be used in the child.",
                hint="Connect in the child process, after the fork.",
            )
        if self.closed:
            raise Closed("This client is closed.", hint="Make a new one with stentor.connect().")

    def _wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        """From another thread: run this in the loop and wait for it. The owner of the loop's thread knows better."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

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

    async def call_partition(
        self, request: Any, topic: str, timeout: Timeout = None, *, head_first: bool = False
    ) -> Any:
        """Ask a member of the partition that a request names; ask another when that one is gone."""
        return await questions.ask_member(self, request, topic, self.deadline(timeout), head_first=head_first)

    async def find_offset(self, wish: messages.FindOffset, topic: str, timeout: Timeout = None) -> messages.OffsetFound:
        """Where a position is, by a member that knows at least of what this client has seen (C24)."""
        return await questions.find_offset(self, wish, topic, self.deadline(timeout))

    async def ask_link(self, link: BrokerLink, request: Any) -> Any:
        """One question over one link, in turn with all others of this client."""
        async with self._asking:
            return await link.request(request)

    async def ask_others(self, request: Any, brokers: set[str], seconds: float) -> dict[str, Any]:
        """Ask some of the other brokers the same; whoever does not answer in time is left out."""

        async def ask(broker: str) -> Any:
            while (link := self.links.to(broker)) is None:
                await self.changes(limits.LINK_WATCH_S)
            return await link.request(request)

        home = self.link.broker.id if self.link is not None and self.link.broker is not None else ""
        known = self.links.brokers
        names = sorted(name for name in brokers - {home} if name in known and known[name].alive)
        answers = await asyncio.gather(
            *(asyncio.wait_for(ask(name), seconds) for name in names), return_exceptions=True
        )
        return {
            name: answer for name, answer in zip(names, answers, strict=True) if not isinstance(answer, BaseException)
        }

    async def ask_one(self, request: Any, broker: str, timeout: Timeout) -> Any:
        """Ask a named broker."""
        deadline = self.deadline(timeout)
        try:
            async with deadline.bound():
                await self.ready_link()
                if broker not in self.links.brokers:
                    raise InvalidArgument(f"There is no broker {broker}.", object=broker)
                while (link := self.links.to(broker)) is None:
                    await self.changes(limits.LINK_WATCH_S)
                return await link.request(request)
        except TimeoutError as error:
            raise self.late(type(request).__name__, deadline.seconds) from error

    async def changes(self, seconds: float) -> None:
        """Wait until something about links or routes changed, for a while at most."""
        waiting = self.loop.create_future()

        def wake(*_: Any) -> None:
            if not waiting.done():
                waiting.set_result(None)

        self.link_listeners.add(wake)
        self.route_listeners.add(wake)
        try:
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the change, and
            # whoever loops over this with a deadline would wait for ever.
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiting
        finally:
            self.link_listeners.discard(wake)
            self.route_listeners.discard(wake)

    async def call(self, request: Any, timeout: Timeout = None) -> Any:
        """Send a request, wait for its answer; repeat what may be repeated when the link breaks."""
        deadline = self.deadline(timeout)
        try:
            async with deadline.bound():
                while True:
                    link = await self.ready_link()
                    try:
                        return await self.ask_link(link, request)
                    except CoordinationUnavailable as error:
                        return await questions.ask_elsewhere(self, request, link, error)
                    except ConnectionFailed:
                        if not isinstance(request, messages.QUESTIONS):
                            raise
        except TimeoutError as error:
            raise self.late(type(request).__name__, deadline.seconds) from error

    def deadline(self, timeout: Timeout) -> Deadline:
        """The deadline of a call that begins now; a step of a call has that of the call."""
        return timeout if isinstance(timeout, Deadline) else Deadline(self.seconds(timeout))

    def seconds(self, timeout: float | None) -> float:
        """How long a call may take: what it says itself, else what the client says."""
        return self.timeout if timeout is None else as_seconds(timeout)

    def late(self, operation: str, timeout: float, refusal: StentorError | None = None) -> StentorError:
        """The error for a deadline that passed, with the reason if there is one."""
        known = self._last_error if self.link is None else refusal
        why = "" if known is None else f" ({known.message.rstrip('.')})"
        hint = "" if known is None or known is not refusal else known.hint
        return DeadlineExceeded(
            f"{operation} did not finish within {timeout:g} s{why}.",
            hint=hint or "Check the broker, or allow more time with timeout=.",
            operation=operation,
        )

    def late_publish(self, timeout: float, refusal: StentorError | None) -> StentorError:
        """The same for a publish whose caller waits no longer; the producer behind it has its own deadline."""
        error = self.late("publish", timeout, refusal)
        error.message += " The message may still be taken."
        return error

    # --- routes ---------------------------------------------------------------------------------

    def _take_table(self, table: messages.RouteTable) -> None:
        if self._settled:
            self.routes = routes.merged(self.routes, table.topics)
            self.links.learned(info for info in table.brokers if info.id not in self.links.brokers)
        else:
            self.routes = routes.replaced(self.routes, table.topics)
            self.links.learned(table.brokers)

    def _routes_changed(self, change: messages.RouteChange) -> None:
        self.links.learned(change.brokers)
        self.links.forget(change.gone)
        removed = set(change.removed)
        if removed:
            self.seen.forget(removed)
            self.routes = {name: topic for name, topic in self.routes.items() if topic.id not in removed}
        for topic in change.topics:
            self.routes[topic.name] = routes.newest(self.routes, topic)
        self._tell_routes()

    def _tell_routes(self) -> None:
        for listener in list(self.route_listeners):
            listener()

    async def topic(self, name: str, timeout: Timeout = None) -> messages.TopicRoute:
        """A topic's route; made on the way if the broker makes topics by itself."""
        check_topic_name(name)
        deadline = self.deadline(timeout)
        await self.link_within(deadline, f"find topic {name}")
        while name not in self.routes:  # somebody may delete it meanwhile
            await self.call(messages.CreateTopic(name=name, automatic=True), deadline)
            await self.refresh_routes(deadline)
        return self.routes[name]

    async def refresh_routes(self, timeout: Timeout = None) -> None:
        """Ask for the table, instead of waiting for news of it."""
        self._take_table(await self.call(messages.WatchRoutes(stale=True), timeout))

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush producers, close subscriptions, say goodbye."""
        if self.closed:
            return
        self.check_loop()
        outcomes = await asyncio.gather(*(closer() for closer in list(self.closers)), return_exceptions=True)
        await self._disconnect()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _disconnect(self) -> None:
        self.closed = True
        for task in (self._connecting, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.links.close()
        self.link = None
        self._ready.set()
