"""Requests of a client: sent to a broker with responders, answered, or tried again.

What may be tried again is what no handler has seen, and with `idempotent` everything:

    NoResponders, NotHandled        no handler has seen it      always tried again, until the deadline
    ResponderLost, a lost link      one may have seen it        tried again only if it is idempotent
    HandlerFailed, the deadline     it is over

NoResponders is raised at once when no broker knows a responder, unless one that had some was lost a moment ago.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stentor.client.convert import as_bytes, as_headers
from stentor.client.reply import Reply, shown
from stentor.client.responders import ResponderPlaces
from stentor.core import service_limits
from stentor.core.names import check_topic_name
from stentor.errors import ConnectionFailed, InvalidArgument, ProtocolError, StentorError
from stentor.request_errors import HandlerFailed, NoResponders, NotHandled, RequestError, ResponderLost
from stentor.transport.dial import jittered_s
from stentor.wire import asks, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.link import BrokerLink
    from stentor.client.responders import Place
    from stentor.client.tracing import SendSpan
    from stentor.wire.rows import Headers

_AGAIN_S: Final = 0.01  # after the first refusal; it doubles
_AGAIN_S_MAX: Final = 0.2  # a responder that is free again should not wait long for work

STREAM_END: Final = object()
"""Behind the last part of a streamed answer."""


class Question(NamedTuple):
    """A request, checked."""

    topic: str
    value: bytes | None
    headers: Headers | None
    deadline: Deadline
    idempotent: bool
    correlation: int
    credit: int = 0  # of a streamed answer
    sending: SendSpan | None = None  # its span, until the answer


class _Attempt:
    """One request on one link, until its answer, its loss or its deadline."""

    __slots__ = ("_put", "done", "parts")

    def __init__(self, done: asyncio.Future[Any], put: Callable[[Any], None] | None) -> None:
        self.done = done
        self.parts = 0
        self._put = put  # takes the parts of a streamed answer

    def replied(self, flags: int, body: memoryview) -> None:
        if self.done.done():
            return
        try:
            self._take(flags, body)
        except ProtocolError as error:  # no broker looked into it: the responder's fault, not the link's
            self.done.set_exception(HandlerFailed(f"The answer cannot be understood: {error.message}"))

    def _take(self, flags: int, body: memoryview) -> None:
        if flags & asks.FAILED:
            self.done.set_exception(messages.raised(messages.decode(body, messages.Failure)))
        elif self._put is None:
            self.done.set_result(asks.decode_reply(body, flags))
        else:
            if not flags & asks.END:
                self.parts += 1
                self._put((*asks.decode_reply(body, flags), len(body)))
            if not flags & asks.MORE:
                self.done.set_result(None)

    def lost(self, error: StentorError) -> None:
        if not self.done.done():
            self.done.set_exception(error if isinstance(error, ConnectionFailed) else ConnectionFailed(error.message))

    def late(self) -> None:
        if not self.done.done():
            self.done.set_exception(TimeoutError())


class Asking:
    """Everything that one client asks, in its loop."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._places = ResponderPlaces(core)
        self.serving: set[str] = set()  # topics that this client answers requests of
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()  # calls beyond what may be under way
        self._correlation = random.getrandbits(48) << 16

    def question(
        self,
        topic: str,
        value: Any,
        headers: Any,
        timeout: float | None,
        *,
        idempotent: bool,
        credit: int = 0,
    ) -> Question:
        """Check what a caller passes."""
        if not self._places.knows(topic):
            check_topic_name(topic)
        deadline = self._core.deadline(timeout)
        if not 0 < deadline.seconds <= service_limits.ASK_S_MAX:
            raise InvalidArgument(
                f"timeout={deadline.seconds:g} is no deadline of a request.",
                hint=f"Use a number of seconds above 0, up to {service_limits.ASK_S_MAX:g}.",
            )
        self._correlation = (self._correlation + 1) % 2**64
        named, data, correlation = as_headers(headers), as_bytes(value, "request"), self._correlation
        tracing = self._core.tracing
        if tracing is None:
            return Question(topic, data, named, deadline, idempotent, correlation, credit)
        sending = tracing.sending(topic, named, operation="request", conversation=shown(correlation))
        return Question(topic, data, as_headers(sending.headers), deadline, idempotent, correlation, credit, sending)

    async def request(self, question: Question) -> Reply:
        """Ask, and wait for the answer."""
        asked = self.ask(question, None, lambda *_: None)
        value, headers = await (asked if question.sending is None else question.sending.awaited(asked))
        return Reply(value, headers, shown(question.correlation))

    async def ask(
        self,
        question: Question,
        put: Callable[[Any], None] | None,
        begun: Callable[[BrokerLink, int], None],
    ) -> Any:
        """Ask until there is an answer, or it is known that there is none. Parts of a streamed answer are put."""
        core = self._core
        core.check_loop()
        core.check_open()
        if self._under_way >= service_limits.ASKS_PER_CLIENT_MAX:
            await self._room(question.deadline)
        self._under_way += 1
        again_s = _AGAIN_S
        try:
            while True:
                found = self._places.choose(question.topic)
                place, link = found or await self._places.find(question.topic, question.deadline)
                attempt = _Attempt(core.loop.create_future(), put)
                try:
                    return await self._try(question, place, link, attempt, begun)
                except TimeoutError as error:
                    raise self._late(question) from error
                except (RequestError, ConnectionFailed) as error:
                    self._judge(question, place, attempt, error)
                    refusal: StentorError = error
                if isinstance(refusal, NoResponders | NotHandled):
                    await self._pause(again_s, question, refusal)
                    again_s = min(2 * again_s, _AGAIN_S_MAX)
        finally:
            self._under_way -= 1
            self._wake()

    async def _try(
        self,
        question: Question,
        place: Place,
        link: BrokerLink,
        attempt: _Attempt,
        begun: Callable[[BrokerLink, int], None],
    ) -> Any:
        left_s = question.deadline.left() or 0.0
        if left_s <= 0:
            raise TimeoutError
        topic, value = question.topic.encode(), question.value
        body = asks.encode_ask(topic, value, question.headers, left_s, question.correlation, question.credit)
        number = link.asks.ask(body, asks.NO_VALUE if value is None else 0, attempt)
        begun(link, number)
        timer = self._core.loop.call_later(left_s, attempt.late)
        place.busy += 1
        try:
            return await attempt.done
        finally:
            place.busy -= 1
            timer.cancel()
            link.asks.give_up(number)  # does nothing if it was answered

    def _judge(self, question: Question, place: Place, attempt: _Attempt, error: StentorError) -> None:
        """Raise what ends the request; return if it may be tried again."""
        self._core.check_open()
        gone = isinstance(error, ConnectionFailed)
        if gone or isinstance(error, NoResponders):
            self._places.failed(question.topic, place, lost=gone)
        if isinstance(error, NoResponders | NotHandled):
            return
        if not gone and not isinstance(error, ResponderLost):
            raise error
        if question.idempotent and not attempt.parts:
            return
        what = "The broker was lost" if gone else "The responder was lost"
        raise ResponderLost(
            f"{what} before it answered the request to {question.topic}; the handler may or may not have run.",
            hint="Pass idempotent=True if the request may be handled twice.",
            operation="request",
            object=question.topic,
        ) from error

    async def _pause(self, seconds: float, question: Question, refusal: StentorError) -> None:
        left_s = question.deadline.left() or 0.0
        await asyncio.sleep(min(left_s, jittered_s(seconds / 2, seconds)))
        if question.deadline.has_passed():
            raise self._core.late("request", question.deadline.seconds, refusal)

    def _late(self, question: Question) -> StentorError:
        error = self._core.late("request", question.deadline.seconds)
        error.object = question.topic
        error.message += " A handler may have seen it."
        return error

    # --- how many at once -----------------------------------------------------------------------

    async def _room(self, deadline: Deadline) -> None:
        """Wait until another request may be under way."""
        while self._under_way >= service_limits.ASKS_PER_CLIENT_MAX:
            waiting = self._core.loop.create_future()
            self._waiting.append(waiting)
            try:
                async with deadline.bound():
                    await waiting
            except TimeoutError as error:
                raise self._core.late("request", deadline.seconds) from error
            except BaseException:
                self._wake()  # the turn is another one's
                raise

    def _wake(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return


_making = threading.Lock()


def asking_of(core: ClientCore) -> Asking:
    """What a client asks: made at its first request."""
    found = core.asking
    if found is None:
        with _making:
            found = core.asking = core.asking or Asking(core)
    return found
