"""The client's core: its links, its home, its routes, the calls that are under way, and who must hear of changes.

Lives in one loop. Sync and async clients are faces of it. While the home link is down, calls wait for
it until their own deadline, and traffic on other links goes on; producers and subscriptions are told when a link
is there, and send again what was not answered.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client import questions
from stentor.client.convert import as_seconds
from stentor.client.deadline import Deadline
from stentor.client.home import Home
from stentor.client.identity import DrawnIds
from stentor.client.links import Links
from stentor.client.routing import Routing
from stentor.client.seen import Seen
from stentor.core.names import check_topic_name
from stentor.errors import (
    Closed,
    ConnectionFailed,
    CoordinationUnavailable,
    ForkDetected,
    InvalidArgument,
    StentorError,
    UnknownSwap,
)
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from stentor.client.asking import Asking
    from stentor.client.async_client import AsyncClient
    from stentor.client.link import BrokerLink
    from stentor.client.selectors import Selector
    from stentor.client.tracing import Tracing

    Timeout = float | Deadline | None  # of a call, or of the call that this is a step of

_GIVING_UP_S = 0.5  # on top of the time that `close` was given, for what is not through to be given up

_cores: weakref.WeakSet[ClientCore] = weakref.WeakSet()


def _mark_forked() -> None:
    """In a forked child no core works: its loop's thread stayed in the parent."""
    for core in _cores:
        core.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


class ClientCore:
    """What all faces of a client share."""

    def __init__(
        self,
        addresses: list[str],
        *,
        name: str,
        timeout: float,
        read_from: Selector | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.loop = asyncio.get_running_loop()
        self.links = Links(name)
        self.links.on_linked = self._linked
        self.links.on_lost = self._lost
        self.links.on_unreachable = self._tell_routes
        self.seen = Seen()
        self.home = Home(addresses, self.links, timeout)
        self.routing = Routing(self.home, self.links, self.seen, read_from)
        self.home.on_table = self.routing.take_table
        self.home.on_routes = self._routes_changed
        self.home.on_changed = self._tell_routes
        self.closed = False
        self.forked = False
        self._thread_id = threading.get_ident()
        self.link_listeners: set[Callable[[BrokerLink], None]] = set()
        self.route_listeners: set[Callable[[], None]] = set()
        self.closers: set[Callable[[], Awaitable[None]]] = set()
        self.leavers: set[Callable[[], Awaitable[None]]] = set()  # have something to say before anything is closed
        self.drawn_ids = DrawnIds()  # of producers without an identity
        self.asking: Asking | None = None  # requests to responders; made at the first one
        self.refusals: dict[str, StentorError] = {}  # by topic: why a question is not answered yet
        self.wait_for: Callable[[Coroutine[Any, Any, Any]], Any] = self._wait_for
        self.client: AsyncClient | None = None  # who publishes, for parts that only read
        self.ending: Deadline | None = None  # until when `close` waits, if it was given a time
        self.tracing = tracing  # makes spans; None if nobody wants any
        _cores.add(self)

    @property
    def addresses(self) -> list[str]:
        """Where brokers are, as it was given."""
        return self.home.addresses

    @property
    def link(self) -> BrokerLink | None:
        """The home link; None while there is none."""
        return self.home.link

    @property
    def links_made(self) -> int:
        """How often there was a home."""
        return self.home.links_made

    @property
    def routes(self) -> dict[str, messages.TopicRoute]:
        """The routes as they are known now, by topic."""
        return self.routing.routes

    # --- news -----------------------------------------------------------------------------------

    def _linked(self, link: BrokerLink) -> None:
        for listener in list(self.link_listeners):
            listener(link)

    def _lost(self, link: BrokerLink, error: StentorError) -> None:
        if self.closed:
            return
        self.home.lost(link, error)
        self._tell_routes()  # whoever used this link looks for another way

    def _routes_changed(self, change: messages.RouteChange) -> None:
        self.routing.take_change(change)
        self._tell_routes()

    def _tell_routes(self) -> None:
        for listener in list(self.route_listeners):
            listener()

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

    # --- waiting --------------------------------------------------------------------------------

    async def ready_link(self) -> BrokerLink:
        """The link, waiting for it if need be; the caller sets the deadline."""
        self.check_loop()
        while True:
            self.check_open()
            if self.home.link is not None:
                return self.home.link
            await self.home.changed()

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
        """Ask a named broker; repeat what may be repeated when the link breaks."""
        deadline = self.deadline(timeout)
        try:
            async with deadline.bound():
                while True:
                    await self.ready_link()
                    if broker not in self.links.brokers:
                        raise InvalidArgument(f"There is no broker {broker}.", object=broker)
                    while (link := self.links.to(broker)) is None:
                        await self.changes(limits.LINK_WATCH_S)
                    try:
                        return await link.request(request)
                    except ConnectionFailed as error:
                        questions.check_repeatable(request, error)
                    await self.changes(limits.LINK_WATCH_S)
        except TimeoutError as error:
            raise self.late(type(request).__name__, deadline.seconds) from error

    async def call(self, request: Any, timeout: Timeout = None) -> Any:
        """Send a request and return its answer; repeat what may be repeated when the outcome is not known.

        Raises ConnectionFailed where the link broke and the request may not be repeated.
        """
        deadline = self.deadline(timeout)
        try:
            async with deadline.bound():
                while True:
                    link = await self.ready_link()
                    try:
                        return await link.request(request)
                    except CoordinationUnavailable as error:
                        return await questions.ask_elsewhere(self, request, link, error)
                    except ConnectionFailed as error:
                        questions.check_repeatable(request, error)
                    except UnknownSwap as error:
                        questions.check_repeatable(request, error)
                        await self.changes(limits.LINK_WATCH_S)
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
        return self.home.late(operation, timeout, refusal)

    # --- topics ---------------------------------------------------------------------------------

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
        self.routing.take_table(await self.call(messages.WatchRoutes(stale=True), timeout))

    # --- the end --------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> None:
        """Flush producers, close subscriptions, say goodbye; what is not through within the time is given up."""
        if self.closed:
            return
        self.check_loop()
        self.ending = None if timeout is None else Deadline(timeout)
        patience_s = None if self.ending is None else self.ending.seconds + _GIVING_UP_S
        outcomes: list[Any] = []
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.gather(*(leave() for leave in list(self.leavers)), return_exceptions=True)
                outcomes = await asyncio.gather(*(closer() for closer in list(self.closers)), return_exceptions=True)
        except TimeoutError as error:
            raise self.late("close", Deadline(timeout).seconds) from error
        finally:
            await self._disconnect()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _disconnect(self) -> None:
        self.closed = True
        await self.home.end()
        await self.links.close()
        self.home.release()
