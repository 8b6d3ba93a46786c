"""Takes requests from callers to responders, and answers back: performs what `core.services` decides.

A request never leaves this broker: clients send it to a broker that has responders of its topic, which they ask any
broker for (`directory`). A request and its answer cost two frames each, however large the cluster is, and nothing here
waits for another broker, a disk or the coordination store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from stentor.broker.cluster.trust import REQUESTS
from stentor.core import service_limits
from stentor.core.names import check_topic_name, is_reserved
from stentor.core.services import ENDED_AT_ONCE, CancelAsk, HandOver, RefuseAsk, Services
from stentor.errors import LimitExceeded, NotReady, StentorError, TopicReserved
from stentor.security.permissions import Action
from stentor.wire import asks, frames, messages
from stentor.wire.frames import Kind
from stentor.wire.statistics import ServiceStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.broker.cluster.trust import Trust
    from stentor.broker.environment import BrokerIdentity
    from stentor.broker.services.directory import ServiceDirectory
    from stentor.core.services import ServiceEffect
    from stentor.ports import Clock
    from stentor.security.permissions import Permissions, Principal
    from stentor.wire.service_messages import FindResponders, Serve, StopServing

_ASK: Final = int(Kind.ASK)
_REPLY: Final = int(Kind.REPLY)
_CREDIT_MAX: Final = 2**32 - 1  # what the field of an ASK_CREDIT holds


class ServiceClient(Protocol):
    """The connection of a client that asks or answers."""

    @property
    def principal(self) -> Principal: ...
    @property
    def takes_more(self) -> bool: ...
    def pass_on(self, frame: bytes) -> None: ...


class ServiceDesk:
    """The requests of all clients of this broker."""

    def __init__(
        self,
        identity: BrokerIdentity,
        clock: Clock,
        *,
        trust: Trust,
        permissions: Permissions,
        directory: ServiceDirectory,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._trust = trust
        self._permissions = permissions
        self.directory = directory
        self._services = Services()
        self._clients: dict[int, ServiceClient] = {}
        self._numbers: dict[ServiceClient, int] = {}
        self._last_number = 0
        self._owed: dict[int, dict[int, int]] = {}  # credit for responders that take nothing now, by request
        self._goes_on = False  # some requests end, or are handed over, in the next turn
        directory.own = self._services.counts

    def _number(self, client: ServiceClient) -> int:
        number = self._numbers.get(client)
        if number is None:
            self._last_number += 1
            number = self._numbers[client] = self._last_number
            self._clients[number] = client
        return number

    # --- responders -----------------------------------------------------------------------------

    def serve(self, client: ServiceClient, request: Serve) -> None:
        """A client answers requests of a topic."""
        check_topic_name(request.topic)
        if is_reserved(request.topic):
            raise TopicReserved(f"{request.topic} is the brokers' own.", hint="Use another name.", object=request.topic)
        if not self._identity.alone and self._trust.level < REQUESTS:
            raise NotReady(
                "The cluster is being upgraded; requests cannot be served until every broker knows them.",
                hint="Upgrade all brokers, then try again.",
            )
        number = self._number(client)
        self._perform(self._services.serve(number, request.topic, request.window, self._clock.monotonic()))
        self._go_on_soon()
        self.directory.changed(request.topic)

    def stop_serving(self, client: ServiceClient, request: StopServing) -> None:
        """It answers what it has, and gets no more."""
        self._perform(self._services.stop(self._number(client), request.topic))
        self._go_on_soon()
        self.directory.changed(request.topic)

    def find(self, request: FindResponders) -> list[tuple[str, int]]:
        """The brokers that have responders of a topic."""
        found = self.directory.find(request.topic)
        if not found and not self.directory.is_complete:
            raise NotReady(
                "This broker has not heard from all others yet who serves what.", hint="Try again in a moment."
            )
        return found

    def writable_changed(self, client: ServiceClient, writable: bool) -> None:
        """A client that does not take what it was handed gets no more."""
        number = self._numbers.get(client)
        if number is None:
            return
        if writable:
            for ask, size in self._owed.pop(number, {}).items():
                client.pass_on(frames.frame(Kind.ASK_CREDIT, ask, asks.ASK_CREDIT.pack(size)))
            self._perform(self._services.resume(number, self._clock.monotonic()))
            self._go_on_soon()
        else:
            self._services.pause(number)

    def gone(self, client: ServiceClient) -> None:
        """A client's connection is closed."""
        number = self._numbers.pop(client, None)
        if number is None:
            return
        del self._clients[number]
        self._owed.pop(number, None)
        served = self._services.serves(number)
        self._perform(self._services.gone(number))
        self._go_on_soon()
        for topic in served:
            self.directory.changed(topic)

    def _go_on_soon(self) -> None:
        """Of very many requests, each turn of the loop ends or hands over some (C35): those of a lost responder or
        caller, and those that a new responder has room for.
        """
        if self._services.unfinished and not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._perform(self._services.go_on(self._clock.monotonic()))
        self._go_on_soon()

    # --- requests -------------------------------------------------------------------------------

    def asked(self, client: ServiceClient, flags: int, correlation: int, body: memoryview) -> None:
        """A request."""
        try:
            if len(body) > service_limits.ASK_BYTES_MAX:
                raise LimitExceeded(f"A request has {len(body)} bytes; the limit is {service_limits.ASK_BYTES_MAX}.")
            topic, left_s = asks.routed(body)
            self._permissions.check(client.principal, Action.PUBLISH, topic)
        except StentorError as error:
            client.pass_on(_refusal(correlation, error))
            return
        deadline = self._clock.monotonic() + left_s
        effect = self._services.asked(self._number(client), correlation, topic, flags, body, deadline)
        if effect is not None:
            self._perform((effect,))

    def replied(self, client: ServiceClient, flags: int, number: int, body: memoryview) -> None:
        """An answer, or a part of one."""
        last = not flags & asks.MORE
        replied = self._services.replied(self._number(client), number, self._clock.monotonic(), last=last)
        if replied is None:
            return  # it was cancelled, or is too late
        caller = None if replied.caller is None else self._clients.get(replied.caller)
        if caller is not None:
            caller.pass_on(frames.HEADER.pack(len(body), _REPLY, flags, 0, replied.correlation) + body)
        if replied.effects:
            self._perform(replied.effects)
            self._go_on_soon()

    def credited(self, client: ServiceClient, correlation: int, body: memoryview) -> None:
        """A caller has taken a part of a streamed answer."""
        (size,) = asks.ASK_CREDIT.unpack(body)
        found = self._services.responder_of(self._number(client), correlation)
        if found is None:
            return
        connection, number = found
        responder = self._clients.get(connection)
        if responder is None:
            return  # it is gone; the caller is about to hear of it
        if responder.takes_more:
            responder.pass_on(frames.frame(Kind.ASK_CREDIT, number, bytes(body)))
        else:  # or callers could fill its buffer with credit until it is dropped
            owed = self._owed.setdefault(connection, {})
            owed[number] = min(_CREDIT_MAX, owed.get(number, 0) + size)

    def cancelled(self, client: ServiceClient, correlation: int) -> None:
        """A caller does not want an answer any more."""
        self._perform(self._services.cancel(self._number(client), correlation))

    def look(self) -> None:
        """Called by a timer: deadlines."""
        effects = self._services.expire(self._clock.monotonic())
        self._perform(effects)
        if len(effects) >= ENDED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self.look)

    def stop(self) -> None:
        """The broker stops: what waits for a responder was seen by nobody."""
        self._perform(self._services.drain())

    def _perform(self, effects: Iterable[ServiceEffect]) -> None:
        clients = self._clients
        told, failure = None, b""  # many are told the same
        for effect in effects:
            match effect:
                case HandOver(responder, number, flags, body, left_s):
                    sent = body if left_s is None else asks.with_left(bytes(body), left_s)
                    clients[responder].pass_on(frames.HEADER.pack(len(sent), _ASK, flags, 0, number) + sent)
                case RefuseAsk(caller, correlation, error) if caller in clients:
                    if error is not told:
                        told, failure = error, messages.encode(messages.failure(error, "request"))
                    clients[caller].pass_on(frames.frame(_REPLY, correlation, failure, asks.FAILED))
                case CancelAsk(responder, number) if responder in clients:
                    clients[responder].pass_on(frames.frame(Kind.ASK_CANCEL, number))

    # --- what others see ------------------------------------------------------------------------

    def statistics(self) -> ServiceStatistics:
        services, counts = self._services, self._services.counts()
        return ServiceStatistics(
            topics=len(counts),
            responders=sum(counts.values()),
            handed_over=services.handed_over,
            refused=services.refused,
            queued=services.queued,
            in_work=services.in_work,
        )


def _refusal(correlation: int, error: StentorError) -> bytes:
    return frames.frame(_REPLY, correlation, messages.encode(messages.failure(error, "request")), asks.FAILED)
