"""The home link: the broker over which a client asks its questions and hears of new routes; kept alive.

Any broker serves as home. One that is lost is replaced: by a broker that is linked already, else by whoever answers
first of all that the client knows. A broker that is cut off from its cluster says so and is passed over; only if nobody
else answers the client *settles* for it, with the routes as they were, and goes on looking for a better one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from stentor import limits
from stentor.errors import ConnectionFailed, DeadlineExceeded, NotReady, StentorError
from stentor.transport.dial import Backoff, jittered_s
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.link import BrokerLink
    from stentor.client.links import Links

logger = logging.getLogger(__name__)


def _ignore_routes(change: messages.RouteChange) -> None:
    """A link that did not become home has no say."""


class Candidates:
    """Where a home may be found: the addresses given, and all brokers heard of since."""

    def __init__(self, addresses: list[str], links: Links) -> None:
        self.addresses = addresses
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._avoided: dict[str, float] = {}  # addresses that are no home at present, and until when

    def avoid(self, address: str) -> None:
        """This one said that it is none."""
        self._avoided[address] = self._loop.time() + limits.LINK_AVOIDED_S

    def avoids_some(self) -> bool:
        """Whether some broker ever said so: then somebody is there."""
        return bool(self._avoided)

    def all(self, lost: str = "") -> list[str]:
        """In any order, so that clients spread over the brokers, but the one that was lost last."""
        learned = [info.address for info in self._links.brokers.values() if info.alive]
        homes = list(dict.fromkeys([*self.addresses, *learned]))
        random.shuffle(homes)
        homes.sort(key=lambda address: address == lost)
        return homes

    def fresh(self, homes: list[str]) -> list[str]:
        """Those that did not say a moment ago that they are none."""
        now = self._loop.time()
        return [address for address in homes if self._avoided.get(address, 0.0) <= now]


class Home:
    """The home link of one client."""

    def __init__(self, addresses: list[str], links: Links, timeout: float) -> None:
        self.link: BrokerLink | None = None
        self.links_made = 0
        self.last_error: StentorError | None = None
        self.settled = False  # nobody else answered when this home was taken: it may only know what was
        self.on_table: Callable[[messages.RouteTable], None] = lambda _: None
        self.on_routes: Callable[[messages.RouteChange], None] = _ignore_routes
        self.on_changed: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._links = links
        self._timeout = timeout
        self._candidates = Candidates(addresses, links)
        self._ready = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None  # for a better home than this
        self._linked_at = 0.0
        self._backoff = Backoff(first_s=0.0)
        self._cut_off_heard = False  # some broker said, since there was a home, that it is cut off from its cluster
        self._settles = False  # nobody else answers: one that only knows what was will do

    @property
    def addresses(self) -> list[str]:
        """Where brokers are, as it was given."""
        return self._candidates.addresses

    # --- finding --------------------------------------------------------------------------------

    async def start(self) -> None:
        """The first connection must succeed within the client's timeout."""
        deadline = self._loop.time() + self._timeout
        backoff = Backoff()
        while True:
            try:
                link = await self._links.race(self._homes(), max(0.05, deadline - self._loop.time()))
                return await self.adopt(link)
            except StentorError as error:
                # A broker that refuses connections is not there; do not keep a person waiting for it.
                nobody = isinstance(error, ConnectionFailed) and (self._settles or not self._candidates.avoids_some())
                pause_s = backoff.next_s()
                if nobody or self._loop.time() + pause_s > deadline or not error.retriable:
                    raise
                self._settles = isinstance(error, ConnectionFailed) or not self._candidates.fresh(self._homes())
            await asyncio.sleep(pause_s)

    async def adopt(self, link: BrokerLink, timeout: float | None = None) -> None:
        """Make a link the home link, if its broker tells the routes."""
        settles = self._settles
        try:
            table = await self._ask_table(link, timeout or self._timeout, stale=settles)
        except BaseException:
            link.on_routes = _ignore_routes
            if not self._links.has(link):  # a link that others use is only no home
                link.close()
            raise
        self.link = link
        self._settles = self._cut_off_heard = False
        self.settled = settles
        if settles:
            self._looking = self._loop.create_task(self._look_elsewhere(link))
        self.links_made += 1
        if self.links_made > 1:
            logger.warning("Connected again, to the broker at %s.", link.address)
        self._linked_at = self._loop.time()
        self.on_table(table)
        self._ready.set()
        self._links.add(link)
        self.on_changed()

    async def _ask_table(self, link: BrokerLink, timeout: float, *, stale: bool) -> messages.RouteTable:
        link.on_routes = self.on_routes
        try:
            table: messages.RouteTable = await asyncio.wait_for(
                link.request(messages.WatchRoutes(stale=stale)), timeout
            )
        except NotReady:
            self._cut_off_heard = True
            self._candidates.avoid(link.address)
            raise
        except TimeoutError as error:
            raise self.late("connect", timeout) from error
        link.check()  # it may have broken while its answer was on the way
        return table

    def _homes(self, lost: str = "") -> list[str]:
        homes = self._candidates.all(lost)
        return homes if self._settles else self._candidates.fresh(homes) or homes

    # --- finding again --------------------------------------------------------------------------

    def lost(self, link: BrokerLink, error: StentorError) -> None:
        """A link broke; if it was home, another one is looked for."""
        if link is not self.link:
            return
        self.link = None
        if self._loop.time() - self._linked_at > limits.LINK_PROVEN_S:
            self._backoff.reset()
        self._ready.clear()
        self.last_error = error
        logger.warning("%s Trying to connect again.", error.message)
        self._connecting = self._loop.create_task(self._reconnect(link))

    async def _reconnect(self, lost: BrokerLink) -> None:
        """Back off with full jitter, so that a thousand clients do not come at once."""
        spread_s = self._links.spread_s(lost.broker.id if lost.broker is not None else "")
        while True:
            for link in self._links.alive():  # another broker that is linked already can be home at once
                with suppress(StentorError, TimeoutError):
                    return await self.adopt(link, limits.LINK_OPEN_S)
            await asyncio.sleep(self._backoff.next_s(spread_s))
            try:
                link = await self._links.race(self._homes(lost.address), limits.HANDSHAKE_S)
                return await self.adopt(link)
            except (StentorError, TimeoutError, OSError) as error:
                self.last_error = error if isinstance(error, StentorError) else None
                nobody_else = not isinstance(error, NotReady) or not self._candidates.fresh(self._homes())
                self._settles = self._cut_off_heard and nobody_else

    async def _look_elsewhere(self, settled: BrokerLink) -> None:
        """A home that may only know what was is one until it knows what is, or another answers."""
        while True:
            await asyncio.sleep(jittered_s(limits.LINK_AVOIDED_S, 2 * limits.LINK_AVOIDED_S))
            if self.link is not settled:
                return
            with suppress(StentorError, TimeoutError, OSError):
                table = await self._ask_table(settled, limits.LINK_OPEN_S, stale=False)
                if self.link is settled:
                    self.settled = False
                    self.on_table(table)
                    self.on_changed()
                return
            with suppress(StentorError, TimeoutError, OSError):
                others = [address for address in self._homes() if address != settled.address]
                link = await self._links.race(others, limits.LINK_OPEN_S)
                if self.link is settled:
                    await self.adopt(link)
                else:
                    link.close()

    # --- waiting --------------------------------------------------------------------------------

    async def changed(self) -> None:
        """Wait until there is a home, or the client is closed."""
        await self._ready.wait()

    def late(self, operation: str, timeout: float, refusal: StentorError | None = None) -> StentorError:
        """The error for a deadline that passed, with the reason if there is one."""
        known = self.last_error if self.link is None else refusal
        why = "" if known is None else f" ({known.message.rstrip('.')})"
        hint = "" if known is None or known is not refusal else known.hint
        return DeadlineExceeded(
            f"{operation} did not finish within {timeout:g} s{why}.",
            hint=hint or "Check the broker, or allow more time with timeout=.",
            operation=operation,
        )

    async def end(self) -> None:
        """Look for no other one."""
        for task in (self._connecting, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def release(self) -> None:
        """The client is closed: whoever waits for a home looks, and is told."""
        self.link = None
        self._ready.set()
