"""A client's links to the brokers of a cluster: made when somebody needs them, watched, made again.

One of them is the *home* link, over which the client asks its questions and hears of new routes; any broker
serves as home. Publishes go to the link of a partition's head, streams come from one of its members. With a
single broker all of them are one and the same link.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client.link import BrokerLink
from stentor.core.holders import SECRET_BYTES
from stentor.errors import ConnectionFailed, StentorError
from stentor.transport.dial import Backoff, jittered_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.wire.messages import BrokerInfo

logger = logging.getLogger(__name__)

_POLL_S = 0.002  # a client that closes waits for this


class Links:
    """Links by the broker's id."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.holder_secret = secrets.token_bytes(SECRET_BYTES)  # what this client holds is bound to it (C36)
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, BrokerLink] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self.brokers: dict[str, BrokerInfo] = {}
        self.on_linked: Callable[[BrokerLink], None] = lambda _: None
        self.on_lost: Callable[[BrokerLink, StentorError], None] = lambda *_: None
        self.on_unreachable: Callable[[], None] = lambda: None
        self._watch: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._closed = False
        self._lost_once: set[str] = set()  # brokers that were linked, and are not
        self._unreachable: set[str] = set()  # brokers whose last attempt failed
        self._dialling: set[asyncio.Task[BrokerLink]] = set()  # to brokers that are spoken to through others meanwhile
        self._made: list[BrokerLink] = []  # all that may still have a socket

    # --- finding --------------------------------------------------------------------------------

    def to(self, broker: str) -> BrokerLink | None:
        """The link to a broker; None while it is being made, which begins now if it has not."""
        link = self.existing(broker)
        if link is not None:
            return link
        if broker in self.brokers and broker not in self._connecting and not self._closed:
            self._connecting[broker] = self._loop.create_task(self._connect(broker))
        return None

    def existing(self, broker: str) -> BrokerLink | None:
        """The link to a broker if there is one that works: nobody would make another in the place of a dead one."""
        link = self._links.get(broker)
        if link is not None and not link.alive:
            del self._links[broker]
            return None
        return link

    def has(self, link: BrokerLink) -> bool:
        """Whether it is one of these, which others may be using."""
        return any(known is link for known in self._links.values())

    def is_coming(self, broker: str) -> bool:
        """Whether a link is being made, and nothing speaks against it."""
        info = self.brokers.get(broker)
        promising = broker not in self._unreachable and broker not in self._lost_once
        return promising and broker in self._connecting and info is not None and info.alive

    def alive(self) -> list[BrokerLink]:
        return [link for link in self._links.values() if link.alive]

    def disown(self, publishes: set[Any]) -> None:
        """Nobody waits for answers to these any more: they will be published anew."""
        for link in self.alive():
            link.disown(publishes)

    def learned(self, brokers: Iterable[BrokerInfo]) -> None:
        """The route table names these brokers."""
        for info in brokers:
            self.brokers[info.id] = info

    def forget(self, brokers: Iterable[str]) -> None:
        """These are gone for good."""
        for broker in brokers:
            self.brokers.pop(broker, None)
            self._lost_once.discard(broker)

    def spread_s(self, broker: str) -> float:
        """Over which time clients that lost a broker spread their first attempts: the more it had, the longer."""
        info = self.brokers.get(broker)
        load = 0 if info is None else info.load
        return min(load * limits.RECONNECT_SPREAD_S, limits.RECONNECT_DELAY_S_MAX)

    # --- making ---------------------------------------------------------------------------------

    async def _connect(self, broker: str) -> None:
        """Try until it works, or the broker is not needed any more; back off with full jitter."""
        backoff, attempt = Backoff(), 0
        try:
            if broker in self._lost_once:  # so has everyone else who was linked to it
                backoff = Backoff(max(limits.RECONNECT_DELAY_S, self.spread_s(broker)))
                await asyncio.sleep(jittered_s(0, self.spread_s(broker)))
            while not self._closed and broker in self.brokers:
                try:
                    link = await self._open(broker, attempt)
                    link.check()  # nobody would be told any more that it broke
                except (StentorError, TimeoutError, OSError):
                    attempt += 1
                    self._note_unreachable(broker)
                    if broker in self.brokers and not self.brokers[broker].alive:
                        backoff.slow_down()  # the others say so too: it will not answer soon
                    await asyncio.sleep(backoff.next_s())
                    continue
                if self.existing(broker) is not None:  # somebody made one meanwhile
                    link.close()
                else:
                    self.add(link)
                return
        finally:
            self._connecting.pop(broker, None)

    def _note_unreachable(self, broker: str) -> None:
        if broker not in self._unreachable:
            self._unreachable.add(broker)
            self.on_unreachable()

    async def _open(self, broker: str, attempt: int) -> BrokerLink:
        """Directly, and beside that, where it takes long, through a broker that is linked already. Where it fails at
        once, in turn: nobody can be there, and a thousand clients need not ask others about that at once.
        """
        if attempt % 2 == 1 and self._relays(broker):
            return await self._make_relayed(broker)
        dialling = self._loop.create_task(self._make(self.brokers[broker].address, limits.LINK_OPEN_S))
        kept = False
        try:
            while not (await asyncio.wait([dialling], timeout=limits.LINK_RELAY_S))[0]:
                if self._relays(broker):
                    with suppress(StentorError):
                        link = await self._make_relayed(broker)
                        kept = True
                        self._keep_dialling(broker, dialling)
                        return link
            link = await dialling
            kept = True
            return link
        finally:
            if not kept:
                await _abandon(dialling)

    def _relays(self, broker: str) -> list[str]:
        """The addresses of brokers that can be asked to pass on what is for this one."""
        info = self.brokers.get(broker)
        if info is None or not info.alive:
            return []
        others = (link for name, link in self._links.items() if name != broker)
        return [link.address for link in others if link.alive and not link.relayed]

    async def _make_relayed(self, broker: str) -> BrokerLink:
        return await self._make(random.choice(self._relays(broker)), limits.LINK_OPEN_S, broker)  # noqa: S311

    def _keep_dialling(self, broker: str, dialling: asyncio.Task[BrokerLink]) -> None:
        """A broker that is only slow is spoken to directly as soon as it answers: a relay is work for another one."""
        self._dialling.add(dialling)

        def done(task: asyncio.Task[BrokerLink]) -> None:
            self._dialling.discard(task)
            if task.cancelled() or task.exception() is not None:
                return
            link, known = task.result(), self.existing(broker)
            if self._closed or not link.alive or (known is not None and not known.relayed):
                link.close()
            else:
                self.add(link)

        dialling.add_done_callback(done)

    async def _make(self, address: str, timeout: float, target: str = "") -> BrokerLink:
        self._made = [link for link in self._made if not link.gone]
        return await BrokerLink.open(address, self._name, timeout, target, self._made, self.holder_secret)

    def add(self, link: BrokerLink) -> None:
        """A link that was made, here or for the home."""
        assert link.broker is not None
        known = self._links.get(link.broker.id)
        if known is link:
            return
        link.on_lost = self._lost
        self._links[link.broker.id] = link
        self._lost_once.discard(link.broker.id)
        self._unreachable.discard(link.broker.id)
        if self._watch is None:
            self._looked_at = self._loop.time()
            self._watch = self._loop.call_later(limits.LINK_WATCH_S, self._look)
        self.on_linked(link)
        if known is not None:
            known.give_way()

    def _lost(self, link: BrokerLink, error: StentorError) -> None:
        if link.broker is not None and self._links.get(link.broker.id) is link:
            del self._links[link.broker.id]
            self._lost_once.add(link.broker.id)
        if not self._closed:
            self.on_lost(link, error)

    def _look(self) -> None:
        """Where there are others to go to, a silent broker is left quickly; it may be paused or cut off."""
        several = sum(info.alive for info in self.brokers.values()) > 1 or len(self.brokers) > 1
        now, looked_at = self._loop.time(), self._looked_at
        self._looked_at = now
        for link in self.alive():
            # C15: while this loop stood still nobody was asked, and what came has not been read yet.
            link.excuse(max(0.0, now - looked_at - limits.LINK_WATCH_S))
            link.look(impatient=several)
        self._watch = None if self._closed else self._loop.call_later(limits.LINK_WATCH_S, self._look)

    async def race(self, addresses: list[str], timeout: float) -> BrokerLink:
        """The first of several brokers that answers, asked one after the other with a small head start each: a silent
        one holds up nobody for long, and a thousand clients that lost a broker do not knock at all others at once.
        """
        error: StentorError | None = None
        for start in range(0, len(addresses), limits.LINK_RACE_MAX):
            part = addresses[start : start + limits.LINK_RACE_MAX]
            if len(part) == 1:
                try:
                    return await self._make(part[0], timeout)
                except StentorError as failure:
                    error = failure
                    continue
            link, error = await self._race(part, min(timeout, limits.LINK_OPEN_S), error)
            if link is not None:
                return link
        raise error or ConnectionFailed("There is no address to connect to.")

    async def _race(
        self, addresses: list[str], timeout: float, error: StentorError | None
    ) -> tuple[BrokerLink | None, StentorError | None]:
        waiting, running = list(addresses), set[asyncio.Task[BrokerLink]]()
        winner: BrokerLink | None = None
        try:
            while winner is None and (waiting or running):
                if waiting:
                    running.add(self._loop.create_task(self._make(waiting.pop(0), timeout)))
                head_start = limits.LINK_HEAD_START_S if waiting else None
                done, running = await asyncio.wait(running, timeout=head_start, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    winner, error = _outcome(task, winner, error)
        finally:
            for task in running:
                task.cancel()
            for outcome in await asyncio.gather(*running, return_exceptions=True):
                if isinstance(outcome, BrokerLink):
                    outcome.close()
        return winner, error

    async def close(self) -> None:
        """Say goodbye to all, and leave no attempt behind."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        attempts = [*self._connecting.values(), *self._dialling]
        for task in attempts:
            task.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for link in self.alive():
            link.close()
        self._links.clear()
        await self._until_gone()

    async def _until_gone(self) -> None:
        """A loop that is closed over open sockets complains, or worse."""
        if not await self._gone_within(limits.LINK_CLOSE_S):
            for link in self._made:
                link.connection.abort()
            await self._gone_within(limits.LINK_CLOSE_S)

    async def _gone_within(self, seconds: float) -> bool:
        deadline = self._loop.time() + seconds
        while any(link.opened and not link.gone for link in self._made):
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True


async def _abandon(dialling: asyncio.Task[BrokerLink]) -> None:
    """Nobody wants its link any more, nor why there is none; it may have come to an end meanwhile."""
    dialling.cancel()
    (outcome,) = await asyncio.gather(dialling, return_exceptions=True)
    if isinstance(outcome, BrokerLink):
        outcome.close()


def _outcome(
    task: asyncio.Task[BrokerLink], winner: BrokerLink | None, error: StentorError | None
) -> tuple[BrokerLink | None, StentorError | None]:
    """What a finished attempt adds to a race."""
    try:
        link = task.result()
    except StentorError as failure:
        return winner, failure
    if winner is not None:  # two answered in the same moment
        link.close()
        return winner, error
    return link, error
