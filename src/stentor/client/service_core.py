"""A client as a responder: registered at its home broker, and again at the next one when that is lost.

    ASK ──► asked ──► Work ──► a handler (`client.service`) ──► reply, part, end or fail ──► REPLY

The broker hands over as many requests as the *window* allows: twice what the handlers work on at a time, so that these
do not wait for the network. What was handed over and is not begun goes back when the service is closed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from stentor.client.asking import asking_of
from stentor.client.job import text_of
from stentor.client.reply import ServiceRequest, answer_of, shown
from stentor.core import service_limits
from stentor.core.names import check_topic_name, printable
from stentor.errors import ConnectionFailed, InvalidArgument, NotReady, StentorError
from stentor.request_errors import HandlerFailed, NotHandled
from stentor.transport.dial import jittered_s
from stentor.wire import asks, frames, messages
from stentor.wire.service_messages import Serve, StopServing

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.link import BrokerLink
    from stentor.client.link_asks import LinkAsks

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 0.5  # until a broker that is not ready is asked again
_MESSAGE_CHARACTERS_MAX: Final = 2_000  # of what a handler's error says


class Work:
    """One request at its responder. Its methods are for the client's loop; `request` is for the handler."""

    __slots__ = ("_granted", "_sent", "_service", "_signal", "begun", "done", "link", "number", "request", "streamed")

    def __init__(self, service: ServiceCore, link: LinkAsks, number: int, ask: asks.Ask) -> None:
        self.request = ServiceRequest(ask.topic, ask.value, ask.headers, shown(ask.correlation), ask.left_s)
        self.link = link
        self.number = number
        self.streamed = ask.credit > 0
        self._granted = ask.credit  # bytes of a streamed answer that the caller has asked for
        self._sent = 0  # bytes of it that the handler has made
        self.begun = False  # the handler was called
        self.done = False
        self._service = service
        self._signal: Callable[[], None] | None = None

    # --- answers --------------------------------------------------------------------------------

    def reply(self, result: object) -> None:
        """The whole answer."""
        try:
            value, headers = answer_of(result, self.request.topic)
            body = asks.encode_reply(value, headers)
        except StentorError as error:
            self.fail(error)
            return
        self._end(asks.NO_VALUE if value is None else 0, body)

    @property
    def has_credit(self) -> bool:
        """Whether the caller has room for another part; in the thread of the handler."""
        return self._sent < self._granted

    def encode_part(self, result: object) -> tuple[int, bytes]:
        """A part of a streamed answer as flags and body; in the thread of the handler. Raises what is wrong with it."""
        value, headers = answer_of(result, self.request.topic)
        body = asks.encode_reply(value, headers)
        self._sent += len(body)
        return asks.MORE | (asks.NO_VALUE if value is None else 0), body

    def part(self, flags: int, body: bytes) -> None:
        """A part of a streamed answer."""
        if not self.done and self.link.alive:
            self.link.reply(self.number, flags, body)

    def end(self) -> None:
        """A streamed answer is complete."""
        self._end(asks.END, asks.encode_reply(None, None))

    def fail(self, error: Exception) -> None:
        """The handler raised something; or it was not called."""
        if isinstance(error, NotHandled) and not self.begun:
            told: StentorError = error
        elif isinstance(error, InvalidArgument) and error.operation == "serve":
            told = error
        else:
            kind, text = type(error).__name__, printable(text_of(error))[:_MESSAGE_CHARACTERS_MAX]
            message = f"The handler of {self.request.topic} failed: {kind}: {text}".rstrip(": ")
            told = HandlerFailed(message, operation="request", object=self.request.topic, error=kind)
            self._service.failed += 1
        self._end(asks.FAILED, messages.encode(messages.failure(told, "request")))

    def _end(self, flags: int, body: bytes) -> None:
        if self.done:
            return
        self.done = True
        self._service.finished(self)
        if self.link.alive:
            self.link.reply(self.number, flags, body)

    # --- what the caller says -------------------------------------------------------------------

    def on_change(self, signal: Callable[[], None]) -> None:
        """Call this whenever there is more credit, or the caller has given up."""
        self._signal = signal

    def granted(self, size: int) -> None:
        self._granted += size
        self._tell()

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self.request.cancelled = True
        self._tell()

    def _tell(self) -> None:
        if self._signal is not None:
            self._signal()


class ServiceCore:
    """A topic that this client serves, in the client's loop."""

    def __init__(self, core: ClientCore, topic: str, concurrency: int, start: Callable[[Work], None]) -> None:
        check_topic_name(topic)
        if type(concurrency) is not int or not 0 < concurrency <= service_limits.RESPONDER_WINDOW_MAX // 2:
            raise InvalidArgument(
                f"concurrency={concurrency!r} is no number of requests to work on at a time.",
                hint=f"Use 1 to {service_limits.RESPONDER_WINDOW_MAX // 2}.",
            )
        self.core = core
        self.topic = topic
        self.concurrency = concurrency
        self.answered = 0
        self.failed = 0
        self._start = start
        self._works: dict[tuple[LinkAsks, int], Work] = {}
        self._link: BrokerLink | None = None
        self._lost = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._keeping: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------

    async def open(self, deadline: Deadline) -> None:
        """Register; from then on, requests come. It is done again at another broker when this one is lost."""
        served = asking_of(self.core).serving
        if self.topic in served:
            raise InvalidArgument(
                f"This client serves {self.topic} already.", hint="Raise its concurrency instead.", object=self.topic
            )
        served.add(self.topic)
        self.core.closers.add(self.close)
        try:
            async with deadline.bound():
                while not await self._register():
                    pass
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError) and not isinstance(error, StentorError):
                raise self.core.late("serve", deadline.seconds) from error
            raise
        self._keeping = self.core.loop.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            await self._lost.wait()
            try:
                while not await self._register():
                    pass
            except NotReady as error:
                logger.info("%s cannot be served yet: %s", self.topic, error)
                await asyncio.sleep(jittered_s(_AGAIN_S / 2, _AGAIN_S))
            except StentorError:
                if self.core.closed or self._closing:
                    return
                logger.exception("%s could not be served again", self.topic)
                await asyncio.sleep(_AGAIN_S)

    async def _register(self) -> bool:
        """At the home broker; False if it was lost meanwhile."""
        link = await self.core.ready_link()
        if frames.REQUESTS not in link.features:
            raise NotReady(
                f"The broker at {link.address} does not know requests: its version is older.", hint="Upgrade it."
            )
        self._lost.clear()
        link.asks.serve(self.topic, self)
        try:
            await link.request(Serve(topic=self.topic, window=2 * self.concurrency))
        except ConnectionFailed:
            return False
        except StentorError:
            link.asks.stop_serving(self.topic)
            self._lost.set()
            raise
        self._link = link
        return True

    async def close(self, timeout: float | None = None) -> None:
        """Take no more requests, finish what was begun within the time, and give the rest back."""
        if self._closing:
            return
        self._closing = True
        deadline = self.core.deadline(timeout)
        if self._keeping is not None:
            self._keeping.cancel()
        link = self._link
        try:
            async with deadline.bound():
                if link is not None and link.alive:
                    await link.request(StopServing(topic=self.topic))
                self._give_back()
                await self._idle.wait()
        except (StentorError, TimeoutError):
            logger.warning("%d requests to %s were not finished in time", len(self._works), self.topic)
        finally:
            self._give_back()
            if link is not None:
                link.asks.stop_serving(self.topic)
            asking_of(self.core).serving.discard(self.topic)
            self.core.closers.discard(self.close)

    def _give_back(self) -> None:
        for work in list(self._works.values()):
            if not work.begun:
                work.fail(NotHandled("The responder is stopping."))

    # --- requests -------------------------------------------------------------------------------

    def asked(self, link: LinkAsks, number: int, ask: asks.Ask) -> None:
        """A request came."""
        work = Work(self, link, number, ask)
        self._works[link, number] = work
        self._idle.clear()
        if self._closing:
            work.fail(NotHandled("The responder is stopping."))
        else:
            self._start(work)

    def credited(self, link: LinkAsks, number: int, size: int) -> None:
        work = self._works.get((link, number))
        if work is not None:
            work.granted(size)

    def cancelled(self, link: LinkAsks, number: int) -> None:
        work = self._works.get((link, number))
        if work is not None:
            work.cancel()

    def link_lost(self, link: LinkAsks) -> None:
        """Its broker has told the callers; handlers that are at work go on, and nobody hears of it."""
        for (where, _), work in list(self._works.items()):
            if where is link:
                work.cancel()
                if not work.begun:
                    work.fail(NotHandled("The broker was lost."))
        self._lost.set()

    def finished(self, work: Work) -> None:
        self._works.pop((work.link, work.number), None)
        self.answered += 1
        if not self._works:
            self._idle.set()

    def statistics(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "answered": self.answered,
            "failed": self.failed,
            "in_work": len(self._works),
            "registered": not self._lost.is_set() and self._link is not None,
        }
