"""Requests and their responders, as clients call them, sync and async."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, TypeVar

from stentor.client.asking import asking_of
from stentor.client.inbox import AsyncInbox
from stentor.client.opening import Opening
from stentor.client.reply_stream import AsyncReplyStream, ReplyStream, StreamCore
from stentor.client.service import AsyncService, Service, open_service
from stentor.core import service_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from stentor.client.asking import Question
    from stentor.client.core import ClientCore
    from stentor.client.options import HeadersLike
    from stentor.client.reply import Reply, ServiceRequest

R = TypeVar("R")


class AsyncRequesting:
    """What an async client asks of responders, and answers as one."""

    _core: ClientCore

    async def request(
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        headers: HeadersLike | None = None,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> Reply:
        """Ask a responder of a topic, and wait for its answer. Nothing is stored.

        NoResponders comes at once if nobody serves the topic, HandlerFailed with the handler's own message. If the
        responder dies with the request, another one is asked, provided that the request is `idempotent` or no handler
        has seen it; else ResponderLost says that the outcome is unknown.
        """
        asking = asking_of(self._core)
        return await asking.request(asking.question(topic, value, headers, timeout, idempotent=idempotent))

    def request_stream(
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        headers: HeadersLike | None = None,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> AsyncReplyStream:
        """Ask a responder whose handler is a generator: iterate over the parts of its answer as they come.

        The timeout is that of the whole answer. Another responder is asked only before the first part.
        """
        self._core.check_loop()
        inbox = AsyncInbox()
        question = _question(self._core, topic, value, headers, timeout, idempotent)
        return AsyncReplyStream(_stream(self._core, question, inbox.put), inbox)

    def serve(
        self,
        topic: str,
        handler: Callable[[ServiceRequest], Any],
        *,
        concurrency: int = service_limits.RESPONDER_CONCURRENCY,
        timeout: float | None = None,
    ) -> Opening[AsyncService]:
        """Answer requests of a topic. All responders of a topic share its requests. Enter it with `async with`, or
        await it.

        The handler returns bytes, text, None or a Reply; a generator streams its answer. What it raises is told to the
        caller. Handlers of `connect` run in threads. Those of `connect_async` are coroutine functions, or short plain
        ones, which run in the event loop.
        """
        return Opening(self._serve(topic, handler, concurrency, timeout))

    async def _serve(
        self, topic: str, handler: Callable[[ServiceRequest], Any], concurrency: int, timeout: float | None
    ) -> AsyncService:
        return AsyncService(*await open_service(self._core, topic, handler, concurrency, timeout, threads=False))


class Requesting:
    """The same without `await`."""

    _core: ClientCore

    def _call(self, work: Coroutine[Any, Any, R]) -> R:
        """Let the client's loop do it, and wait."""
        raise NotImplementedError

    def request(
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        headers: HeadersLike | None = None,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> Reply:
        """Ask a responder of a topic, and wait for its answer. Nothing is stored.

        NoResponders comes at once if nobody serves the topic, HandlerFailed with the handler's own message. If the
        responder dies with the request, another one is asked, provided that the request is `idempotent` or no handler
        has seen it; else ResponderLost says that the outcome is unknown.
        """
        asking = asking_of(self._core)
        question = asking.question(topic, value, headers, timeout, idempotent=idempotent)
        return self._call(asking.request(question))

    def request_stream(
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        headers: HeadersLike | None = None,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> ReplyStream:
        """Ask a responder whose handler is a generator: iterate over the parts of its answer as they come.

        The timeout is that of the whole answer. Another responder is asked only before the first part.
        """
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        question = _question(self._core, topic, value, headers, timeout, idempotent)

        async def begin() -> StreamCore:
            return _stream(self._core, question, inbox.put)

        return ReplyStream(self._call(begin()), inbox)

    def serve(
        self,
        topic: str,
        handler: Callable[[ServiceRequest], Any],
        *,
        concurrency: int = service_limits.RESPONDER_CONCURRENCY,
        timeout: float | None = None,
    ) -> Service:
        """Answer requests of a topic. All responders of a topic share its requests.

        The handler returns bytes, text, None or a Reply; a generator streams its answer. What it raises is told to the
        caller. Handlers of `connect` run in threads. Those of `connect_async` are coroutine functions, or short plain
        ones, which run in the event loop.
        """
        return Service(*self._call(open_service(self._core, topic, handler, concurrency, timeout, threads=True)))


def _question(
    core: ClientCore,
    topic: str,
    value: bytes | str | None,
    headers: HeadersLike | None,
    timeout: float | None,
    idempotent: bool,
) -> Question:
    """In the thread of the caller, whose span it belongs to."""
    credit = service_limits.STREAM_CREDIT_BYTES
    return asking_of(core).question(topic, value, headers, timeout, idempotent=idempotent, credit=credit)


def _stream(core: ClientCore, question: Question, put: Callable[[Any], None]) -> StreamCore:
    stream = StreamCore(core, asking_of(core), question, put)
    stream.start()
    return stream
