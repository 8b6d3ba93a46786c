"""Which responder of a broker gets which request: a pure machine, one for each broker.

    caller ── ASK ──► asked ──► the next responder with room ── ASK ──► its client
                        └─────► a queue, while none has room

Rules:

- A responder has a *window*: it is handed so many requests at a time, and gets another one for each that it answers.
  Of two that have room, the one with fewer gets the next request.
- What was handed to a responder may have been seen by its handler. If it is lost, the caller is told so
  (ResponderLost), and decides itself whether to ask again. The machine never hands a request out twice.
- What waits in the queue was seen by nobody. It goes to whoever has room next. When the last responder leaves, it is
  answered with NoResponders; when its deadline comes, with NotHandled.
- A caller that is gone or gives up frees its queued requests at once. What is handed out keeps its place in the window
  until the responder answers: the handler works on it. It also keeps counting for the caller, or who asks and gives up
  in turn would have no bound.

Numbers stand for connections. A request is known by a number of the machine's own towards the responder, and by the
caller's correlation id towards the caller.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.core import service_limits as bounds
from stentor.errors import InvalidArgument, LimitExceeded, StentorError
from stentor.request_errors import NoResponders, NotHandled, ResponderLost

if TYPE_CHECKING:
    from collections.abc import Iterator


ENDED_AT_ONCE: Final = 1_000
"""Requests that end in one step when a responder or a caller is lost or a deadline comes, or are handed over in one: a
few milliseconds. A connection may have a hundred thousand; for the rest there are further steps (`go_on`)."""

HANDED_AT_ONCE: Final = 100
"""Requests that a responder gets at once when it begins: a connection may begin a thousand in one turn of the loop."""

_GONE_MIN: Final = 64  # requests that were given up, before a queue is looked through for them


class HandOver(msgspec.Struct, frozen=True):
    """A responder gets a request."""

    responder: int
    number: int
    flags: int
    body: bytes | memoryview
    left_s: float | None  # None: it has not waited


class RefuseAsk(msgspec.Struct, frozen=True):
    """A caller is told that its request is not answered."""

    caller: int
    correlation: int
    error: StentorError


class CancelAsk(msgspec.Struct, frozen=True):
    """A responder is told that nobody waits for an answer any more."""

    responder: int
    number: int


ServiceEffect = HandOver | RefuseAsk | CancelAsk


class Replied(msgspec.Struct, frozen=True):
    """Where an answer goes."""

    caller: int | None  # None: nobody wants it any more
    correlation: int
    effects: list[ServiceEffect]  # what else there is to do


class _Responder:
    """One connection that serves one topic."""

    __slots__ = ("asks", "connection", "filling", "listed", "paused", "service", "stopped", "window")

    def __init__(self, connection: int, service: _Service, window: int) -> None:
        self.connection = connection
        self.service = service
        self.window = window
        self.asks: dict[int, _Waiting] = {}  # what it was handed and has not answered, by number
        self.paused = False  # its connection takes no more now
        self.stopped = False  # it takes no more at all
        self.listed = False  # it is among those of its service that have room
        self.filling = False  # it gets what waits in further steps

    @property
    def has_room(self) -> bool:
        return len(self.asks) < self.window and not self.paused and not self.stopped


class _Service:
    """A topic that is served."""

    __slots__ = ("gone", "queue", "ready", "responders", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.responders: dict[int, _Responder] = {}
        self.ready: deque[_Responder] = deque()  # those that have room, in turn; some may have lost it
        self.queue: deque[_Waiting] = deque()
        self.gone = 0  # of these: given up, and passed over

    def forget_gone(self) -> None:
        """Take out what was given up, once it is more than what waits: each request is moved once or twice at most."""
        if self.gone > _GONE_MIN and 2 * self.gone > len(self.queue):
            self.queue = deque(ask for ask in self.queue if ask.caller is not None)
            self.gone = 0


class _Waiting:
    """A request: it waits for a responder, or for its answer."""

    __slots__ = ("asker", "body", "caller", "correlation", "deadline", "flags", "number", "responder", "service")

    def __init__(self, asker: _Caller, service: _Service, correlation: int, flags: int, deadline: float) -> None:
        self.caller: int | None = asker.number  # None: nobody wants the answer any more
        self.asker = asker
        self.service = service
        self.correlation = correlation
        self.flags = flags
        self.deadline = deadline
        self.number = 0
        self.body = b""  # only while it waits for a responder
        self.responder: _Responder | None = None


class _Caller:
    """A connection that asks."""

    __slots__ = ("abandoned", "asks", "number", "queued_bytes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.asks: dict[int, _Waiting] = {}  # by correlation id
        self.abandoned = 0  # requests that it gave up, and that responders have yet
        self.queued_bytes = 0

    @property
    def counted(self) -> int:
        """Its requests, as far as they are bounded."""
        return len(self.asks) + self.abandoned


class Services:
    """The services of one broker, with everything that is asked of them."""

    def __init__(self) -> None:
        self._services: dict[str, _Service] = {}
        self._serving: dict[int, dict[str, _Responder]] = {}  # by connection
        self._stopped: dict[int, list[_Responder]] = {}  # that have something to answer yet, by connection
        self._handed: dict[int, _Waiting] = {}  # by number
        self._callers: dict[int, _Caller] = {}
        self._numbers = 0
        self._ending: deque[_Waiting] = deque()  # their responders are gone: they end in turn
        self._filling: deque[_Responder] = deque()  # they have room for what waits, and get it in turn
        self._gone: deque[_Caller] = deque()  # their connections are closed: what they asked is given up in turn
        self._queued = 0
        self._queued_bytes = 0
        self.handed_over = 0
        self.refused = 0

    # --- responders -----------------------------------------------------------------------------

    def serve(self, connection: int, topic: str, window: int, now: float) -> list[ServiceEffect]:
        """A connection answers requests of a topic from now on."""
        serving = self._serving.setdefault(connection, {})
        if topic in serving:
            raise InvalidArgument(f"This connection serves {topic} already.", object=topic)
        if len(serving) >= bounds.SERVICES_PER_CONNECTION_MAX:
            raise LimitExceeded(
                f"This connection serves {len(serving)} topics; that is the limit.", hint="Open another client."
            )
        if sum(len(stopped.asks) for stopped in self._stopped.get(connection, ())) >= bounds.RESPONDER_WINDOW_MAX:
            raise LimitExceeded(
                f"This connection has stopped serving and has {bounds.RESPONDER_WINDOW_MAX} requests to answer yet.",
                hint="Answer them, or open another client.",
            )
        if sum(other.window for other in serving.values()) + window > bounds.RESPONDER_WINDOWS_MAX:
            raise LimitExceeded(
                f"The services of this connection would get more than {bounds.RESPONDER_WINDOWS_MAX} requests.",
                hint="Lower their concurrency, or open another client.",
            )
        if topic not in self._services and len(self._services) >= bounds.SERVICES_MAX:
            raise LimitExceeded(f"{len(self._services)} topics are served at this broker; that is the limit.")
        service = self._services.setdefault(topic, _Service(topic))
        responder = serving[topic] = service.responders[connection] = _Responder(connection, service, window)
        return list(self._has_room(responder, now))

    def stop(self, connection: int, topic: str) -> list[ServiceEffect]:
        """It takes no more requests of a topic; those that it has are still answered."""
        responder = self._serving.get(connection, {}).pop(topic, None)
        if responder is None:
            return []
        if responder.asks:
            stopped = self._stopped.setdefault(connection, [])
            stopped[:] = [other for other in stopped if other.asks] + [responder]
        self._leave(responder)
        return self._end_some()

    def gone(self, connection: int) -> list[ServiceEffect]:
        """A connection is closed: as a responder, as a caller, or as both."""
        serving = list(self._serving.pop(connection, {}).values())
        for responder in serving:
            self._leave(responder)
        for responder in serving + self._stopped.pop(connection, []):
            self._ending.extend(responder.asks.values())
        caller = self._callers.get(connection)
        if caller is not None:
            self._gone.append(caller)
        effects = self._end_some()
        return effects + self._give_up_some(ENDED_AT_ONCE - len(effects))

    def _leave(self, responder: _Responder) -> None:
        service = responder.service
        responder.stopped = True
        service.responders.pop(responder.connection, None)
        if responder.listed:
            service.ready.remove(responder)
            responder.listed = False
        if service.responders:
            return
        del self._services[service.topic]
        self._ending.extend(service.queue)

    @property
    def unfinished(self) -> bool:
        """Whether requests end or are handed over in further steps."""
        return bool(self._ending or self._gone or self._filling)

    def go_on(self, now: float) -> list[ServiceEffect]:
        """End some of the requests whose responders or callers are gone; hand over some to those who have room."""
        effects = self._end_some()
        effects += self._give_up_some(ENDED_AT_ONCE - len(effects))
        return effects + self._fill_some(now, ENDED_AT_ONCE - len(effects))

    def _fill_some(self, now: float, most: int) -> list[ServiceEffect]:
        """Hand over some of what waits to those who have room for much of it, each a little in turn."""
        effects: list[ServiceEffect] = []
        while self._filling and len(effects) < most:
            responder = self._filling.popleft()
            responder.filling = False
            effects += self._fill(responder, now, min(HANDED_AT_ONCE, most - len(effects)))
        return effects

    def _give_up_some(self, most: int) -> list[ServiceEffect]:
        """Give up some of what callers asked that are gone."""
        effects: list[ServiceEffect] = []
        while self._gone and most > 0:
            caller = self._gone[0]
            for ask in list(islice(caller.asks.values(), most)):
                effects += self._give_up(ask)
                most -= 1
            if not caller.asks:
                self._gone.popleft()
                self._callers.pop(caller.number, None)
        return effects

    def _end_some(self) -> list[ServiceEffect]:
        """End some of the requests whose responders are gone."""
        effects: list[ServiceEffect] = []
        lost, nobody = _lost(), _nobody("")
        for _ in range(min(ENDED_AT_ONCE, len(self._ending))):
            ask = self._ending.popleft()
            if ask.responder is not None:
                del self._handed[ask.number]
            if ask.caller is None:
                if ask.responder is not None:
                    self._is_over(ask)
                continue
            if ask.responder is None:
                self._take_out(ask)
                if nobody.object != ask.service.topic:
                    nobody = _nobody(ask.service.topic)
            effects.append(self._end(ask, nobody if ask.responder is None else lost))
            ask.caller = None
        return effects

    def pause(self, connection: int) -> None:
        """Its socket takes no more now."""
        for responder in self._serving.get(connection, {}).values():
            responder.paused = True

    def resume(self, connection: int, now: float) -> list[ServiceEffect]:
        """It does again."""
        effects: list[ServiceEffect] = []
        for responder in self._serving.get(connection, {}).values():
            responder.paused = False
            if not responder.filling:
                effects += self._fill(responder, now, 0)  # nothing yet: it may serve a thousand topics
        return effects + self._fill_some(now, HANDED_AT_ONCE)

    # --- requests -------------------------------------------------------------------------------

    def asked(
        self, caller: int, correlation: int, topic: str, flags: int, body: memoryview | bytes, deadline: float
    ) -> ServiceEffect | None:
        """A request: it is handed over, refused, or waits."""
        service = self._services.get(topic)
        if service is None:
            return self._refuse(caller, correlation, _nobody(topic))
        asker = self._callers.get(caller)
        if asker is None:
            asker = self._callers[caller] = _Caller(caller)
        if correlation in asker.asks or asker.counted >= bounds.ASKS_PER_CONNECTION_MAX:
            return self._refuse(caller, correlation, _too_many(topic, asker.counted))
        if len(self._handed) >= bounds.ASKS_IN_WORK_MAX:
            return self._refuse(caller, correlation, _too_many(topic, len(self._handed)))
        ask = _Waiting(asker, service, correlation, flags, deadline)
        responder = self._next(service)
        if responder is not None:
            asker.asks[correlation] = ask
            return self._hand(ask, responder, body, None)
        if not self._has_queue_room(asker, len(body)):
            return self._refuse(caller, correlation, _too_many(topic, self._queued))
        asker.asks[correlation] = ask
        ask.body = bytes(body)
        self._queued += 1
        self._queued_bytes += len(body)
        asker.queued_bytes += len(body)
        service.queue.append(ask)
        return None

    def _has_queue_room(self, asker: _Caller, size: int) -> bool:
        return (
            self._queued < bounds.ASKS_QUEUED_MAX
            and self._queued_bytes + size <= bounds.ASKS_QUEUED_BYTES_MAX
            and asker.queued_bytes + size <= bounds.ASKS_QUEUED_PER_CONNECTION_BYTES_MAX
        )

    def _next(self, service: _Service) -> _Responder | None:
        """The one with less to do of the next two that have room; it goes to the end of the line."""
        ready = service.ready
        while ready and not ready[0].has_room:
            ready.popleft().listed = False
        if not ready:
            return None
        first = ready.popleft()
        while ready and not ready[0].has_room:
            ready.popleft().listed = False
        if ready and len(ready[0].asks) < len(first.asks):
            chosen = ready.popleft()
            ready.appendleft(first)
        else:
            chosen = first
        ready.append(chosen)
        return chosen

    def _hand(
        self, ask: _Waiting, responder: _Responder, body: memoryview | bytes, left_s: float | None
    ) -> ServiceEffect:
        self._numbers += 1
        self.handed_over += 1
        ask.number, ask.responder = self._numbers, responder
        responder.asks[ask.number] = self._handed[ask.number] = ask
        return HandOver(responder.connection, ask.number, ask.flags, body, left_s)

    def _has_room(self, responder: _Responder, now: float) -> Iterator[ServiceEffect]:
        """A responder can take more: what waits first, then it stands in line for what comes."""
        return iter(()) if responder.filling else self._fill(responder, now, HANDED_AT_ONCE)

    def _fill(self, responder: _Responder, now: float, most: int) -> Iterator[ServiceEffect]:
        """Hand over so much of what waits. If there is more that it has room for, it gets that in further steps."""
        queue = responder.service.queue
        while queue and responder.has_room:
            if most <= 0:
                responder.filling = True
                self._filling.append(responder)
                return
            ask = queue.popleft()
            if ask.caller is None:
                responder.service.gone -= 1
                continue
            body, most = ask.body, most - 1
            self._take_out(ask)
            if ask.deadline <= now:
                yield self._end(ask, _late())
            else:
                yield self._hand(ask, responder, body, ask.deadline - now)
        if responder.has_room and not responder.listed:
            responder.listed = True
            responder.service.ready.append(responder)

    def replied(self, connection: int, number: int, now: float, *, last: bool) -> Replied | None:
        """A responder answers: who gets it, and what the responder gets instead. None if it was not asked that."""
        ask = self._handed.get(number)
        if ask is None or ask.responder is None or ask.responder.connection != connection:
            return None
        effects: list[ServiceEffect] = []
        if last:
            responder = ask.responder
            del self._handed[number], responder.asks[number]
            if not responder.listed:
                effects += self._has_room(responder, now)
            if ask.caller is not None:
                self._forget(ask)
            else:
                self._is_over(ask)
        return Replied(ask.caller, ask.correlation, effects)

    def responder_of(self, caller: int, correlation: int) -> tuple[int, int] | None:
        """Who works on a request, and its number there; None if nobody does."""
        asker = self._callers.get(caller)
        ask = None if asker is None else asker.asks.get(correlation)
        return None if ask is None or ask.responder is None else (ask.responder.connection, ask.number)

    def cancel(self, caller: int, correlation: int) -> list[ServiceEffect]:
        """A caller gives up."""
        asker = self._callers.get(caller)
        ask = None if asker is None else asker.asks.get(correlation)
        return [] if ask is None else self._give_up(ask)

    def expire(self, now: float) -> list[ServiceEffect]:
        """Called now and then: what waits beyond its deadline is answered, what is worked on is given up."""
        effects: list[ServiceEffect] = []
        error = _late()
        for service in self._services.values():
            late = [ask for ask in service.queue if ask.caller is not None and ask.deadline <= now]
            effects += [self._unqueue(ask, error) for ask in late[: max(0, ENDED_AT_ONCE - len(effects))]]
            if service.gone:
                service.queue = deque(ask for ask in service.queue if ask.caller is not None)
                service.gone = 0
        for ask in self._handed.values() if len(effects) < ENDED_AT_ONCE else ():
            if ask.caller is not None and ask.deadline + bounds.ASK_OVERDUE_S <= now:
                effects += self._give_up(ask)  # a handler may wait for credit that nobody gives
                if len(effects) >= ENDED_AT_ONCE:
                    break  # the next call finds the others
        return effects

    # --- the end of a request -------------------------------------------------------------------

    def _refuse(self, caller: int, correlation: int, error: StentorError) -> RefuseAsk:
        self.refused += 1
        return RefuseAsk(caller, correlation, error)

    def _end(self, ask: _Waiting, error: StentorError) -> RefuseAsk:
        assert ask.caller is not None
        self._forget(ask)
        return self._refuse(ask.caller, ask.correlation, error)

    def _unqueue(self, ask: _Waiting, error: StentorError) -> RefuseAsk:
        self._take_out(ask)
        refusal = self._end(ask, error)
        ask.caller = None
        ask.service.gone += 1
        return refusal

    def _give_up(self, ask: _Waiting) -> list[ServiceEffect]:
        if ask.responder is None:
            self._take_out(ask)  # the queue still has it, and passes it over
            self._forget(ask)
            ask.caller = None
            ask.service.gone += 1
            ask.service.forget_gone()
            return []
        ask.asker.abandoned += 1
        self._forget(ask)
        ask.caller = None
        return [CancelAsk(ask.responder.connection, ask.number)]

    def _take_out(self, ask: _Waiting) -> None:
        """It does not wait for a responder any more."""
        self._queued -= 1
        self._queued_bytes -= len(ask.body)
        asker = None if ask.caller is None else self._callers.get(ask.caller)
        if asker is not None:
            asker.queued_bytes -= len(ask.body)
        ask.body = b""

    def _forget(self, ask: _Waiting) -> None:
        ask.asker.asks.pop(ask.correlation, None)
        self._forget_caller(ask.asker)

    def _is_over(self, ask: _Waiting) -> None:
        """A responder is done with a request that its caller had given up."""
        ask.asker.abandoned -= 1
        self._forget_caller(ask.asker)

    def _forget_caller(self, asker: _Caller) -> None:
        if not asker.counted and not asker.queued_bytes and self._callers.get(asker.number) is asker:
            del self._callers[asker.number]

    def drain(self) -> list[ServiceEffect]:
        """The broker stops: nothing that waits is handed out any more."""
        waiting = [ask for service in self._services.values() for ask in service.queue if ask.caller is not None]
        effects: list[ServiceEffect] = [self._unqueue(ask, NotHandled("The broker is stopping.")) for ask in waiting]
        while self._ending:
            effects += self._end_some()
        return effects

    # --- what others see ------------------------------------------------------------------------

    def serves(self, connection: int) -> list[str]:
        """The topics that a connection serves."""
        return list(self._serving.get(connection, {}))

    def counts(self) -> dict[str, int]:
        """The responders of each topic here."""
        return {topic: len(service.responders) for topic, service in self._services.items()}

    def responders(self, topic: str) -> int:
        service = self._services.get(topic)
        return 0 if service is None else len(service.responders)

    @property
    def queued(self) -> int:
        """Requests that wait for a responder."""
        return self._queued

    @property
    def in_work(self) -> int:
        """Requests that responders have."""
        return len(self._handed)

    def check(self) -> None:
        """The invariants, for tests and simulations."""
        queued = [ask for service in self._services.values() for ask in service.queue if ask.caller is not None]
        queued += [ask for ask in self._ending if ask.responder is None and ask.caller is not None]
        assert len(queued) == self._queued, "a request waits in no queue"
        assert sum(len(ask.body) for ask in queued) == self._queued_bytes
        for service in self._services.values():
            assert service.responders, "a service has no responder"
            assert service.gone == sum(ask.caller is None for ask in service.queue), "what was given up is miscounted"
            assert service.gone <= max(_GONE_MIN, len(service.queue) // 2) + 1, "what was given up has no bound"
            for responder in service.responders.values():
                assert len(responder.asks) <= responder.window, "a responder has more than it takes"
                waits = responder.has_room and not responder.filling and self._live(service)
                assert not waits, "a request waits beside a free responder"
                assert responder.filling == (responder in self._filling)
                assert responder.listed == (responder in service.ready)
        at_work = [ask for every in self._serving.values() for each in every.values() for ask in each.asks]
        at_work += [ask for every in self._stopped.values() for each in every for ask in each.asks]
        at_work += [ask.number for ask in self._ending if ask.responder is not None]
        assert sorted(at_work) == sorted(self._handed), "a request is in work at nobody"
        for number, caller in self._callers.items():
            asks = caller.asks.values()
            assert all(ask.caller == number for ask in asks), "a caller has what is not its own"
            assert caller.queued_bytes == sum(len(ask.body) for ask in asks)
            left = sum(ask.asker is caller and ask.caller is None for ask in self._handed.values())
            assert caller.abandoned == left, "what a caller gave up is miscounted"

    @staticmethod
    def _live(service: _Service) -> bool:
        return any(ask.caller is not None for ask in service.queue)


def _nobody(topic: str) -> NoResponders:
    return NoResponders(
        f"Nobody serves {topic}.",
        hint=f"Start a responder with client.serve({topic!r}, handler), or check the name.",
        object=topic,
    )


def _lost() -> ResponderLost:
    return ResponderLost(
        "The responder was lost after it got the request; its handler may or may not have run.",
        hint="Pass idempotent=True if the request may be handled twice.",
    )


def _too_many(topic: str, waiting: int) -> NotHandled:
    return NotHandled(
        f"{waiting} requests wait already.", hint="Start more responders, or ask more slowly.", object=topic
    )


def _late() -> NotHandled:
    return NotHandled("No responder was free before the deadline.", hint="Start more responders, or allow more time.")
