"""Responders: `client.serve(topic, handler)`. Runs handlers, in threads or in the event loop.

A handler takes a ServiceRequest. It returns an answer: bytes, text, None or a Reply. The parts of a generator are sent
one by one, as a streamed answer. What it raises is told to the caller.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

from stentor.client.help import explained
from stentor.client.service_core import ServiceCore
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.core import ClientCore
    from stentor.client.reply import ServiceRequest
    from stentor.client.service_core import Work

    Handler = Callable[[ServiceRequest], Any]

logger = logging.getLogger(__name__)

_STOP: Final = None


class ServiceCounts(TypedDict):
    """What a service counts; see Service.statistics."""

    topic: str
    answered: int
    failed: int
    in_work: int
    registered: bool


def check_handler(handler: object) -> None:
    """Something that can be called with a request."""
    if not callable(handler):
        raise InvalidArgument(
            f"A handler is a function, not {type(handler).__name__}.", hint="Pass a function that takes a request."
        )


def _streams(topic: str) -> InvalidArgument:
    return InvalidArgument(
        f"The handler of {topic} streams its answer.",
        hint="Call client.request_stream instead.",
        operation="serve",
        object=topic,
    )


def _log(work: Work, error: Exception) -> None:
    logger.warning("the handler of %s failed (%s)", work.request.topic, work.request.correlation, exc_info=error)


# --- threads --------------------------------------------------------------------------------------


class ThreadRunner:
    """Calls handlers in threads, as many as the service works on at a time; they are started when they are needed."""

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0  # works that are not finished; in the loop
        self._results: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False
        self._loop = asyncio.get_running_loop()

    def start(self, work: Work) -> None:
        """In the loop: hand a request to a thread."""
        self._busy += 1
        if self._busy > len(self._threads) < self._concurrency:
            name = f"stentor-serve-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._works.put(work)

    def stop(self) -> None:
        for _ in self._threads:
            self._works.put(_STOP)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            if not work.done:  # else it was given back
                work.begun = True
                self._handle(work)
            self._post(self._free)

    def _handle(self, work: Work) -> None:
        try:
            result = self._handler(work.request)
            if isinstance(result, Generator):
                self._stream(work, result)
            elif isinstance(result, Awaitable | AsyncGenerator):
                if inspect.iscoroutine(result):
                    result.close()
                self._post(work.fail, TypeError("a coroutine needs an event loop; serve it with connect_async"))
            else:
                self._post(work.reply, result)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the caller
            _log(work, error)
            self._post(work.fail, error)

    def _stream(self, work: Work, parts: Generator[Any, None, None]) -> None:
        if not work.streamed:
            parts.close()
            self._post(work.fail, _streams(work.request.topic))
            return
        changed = threading.Event()
        work.on_change(changed.set)
        for part in parts:
            flags, body = work.encode_part(part)
            while not work.has_credit and not work.request.cancelled:
                changed.wait()
                changed.clear()
            if work.request.cancelled:
                parts.close()
                break
            self._post(work.part, flags, body)
        self._post(work.end)

    def _free(self) -> None:
        self._busy -= 1

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Answers of one turn of the loop leave together."""
        self._results.append((call, arguments))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False
        while self._results:
            call, arguments = self._results.popleft()
            call(*arguments)


# --- the event loop -------------------------------------------------------------------------------


class TaskRunner:
    """Calls handlers in the event loop: coroutines as tasks, plain functions at once."""

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._waiting: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def start(self, work: Work) -> None:
        """Call the handler, or keep the request until another one is through."""
        if len(self._tasks) >= self._concurrency:
            self._waiting.append(work)
        else:
            self._call(work)

    def _call(self, work: Work) -> None:
        if work.done:  # it was given back
            return
        work.begun = True
        try:
            result = self._handler(work.request)
            if isinstance(result, Awaitable):
                task = self._loop.create_task(self._await(work, result))
            elif isinstance(result, AsyncGenerator | Generator):
                task = self._loop.create_task(self._stream(work, result))
            else:
                work.reply(result)
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the caller
            _log(work, error)
            work.fail(error)
            return
        self._tasks.add(task)
        task.add_done_callback(self._through)

    def _through(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        while self._waiting and len(self._tasks) < self._concurrency:
            self._call(self._waiting.popleft())

    async def _await(self, work: Work, result: Awaitable[Any]) -> None:
        try:
            work.reply(await result)
        except asyncio.CancelledError as error:
            work.fail(RuntimeError("the responder was stopped"))
            raise error from None
        except Exception as error:  # noqa: BLE001 - as above
            _log(work, error)
            work.fail(error)

    async def _stream(self, work: Work, parts: Any) -> None:
        try:
            if not work.streamed:
                work.fail(_streams(work.request.topic))
                return
            changed = asyncio.Event()
            work.on_change(changed.set)
            while not work.request.cancelled:
                try:
                    part = next(parts) if isinstance(parts, Generator) else await anext(parts)
                except (StopIteration, StopAsyncIteration):
                    break
                flags, body = work.encode_part(part)
                while not work.has_credit and not work.request.cancelled:
                    changed.clear()
                    await changed.wait()
                if not work.request.cancelled:
                    work.part(flags, body)
            work.end()
        except Exception as error:  # noqa: BLE001 - as above
            _log(work, error)
            work.fail(error)
        finally:
            if isinstance(parts, Generator):
                parts.close()
            else:
                await parts.aclose()

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()


async def open_service(
    core: ClientCore, topic: str, handler: Handler, concurrency: int, timeout: float | None, *, threads: bool
) -> tuple[ServiceCore, ThreadRunner | TaskRunner]:
    """Register a responder; requests come from then on."""
    core.check_loop()
    check_handler(handler)
    if core.tracing is not None:
        handler = core.tracing.traced(handler)
    runner = (ThreadRunner if threads else TaskRunner)(handler, concurrency)
    service = ServiceCore(core, topic, concurrency, runner.start)
    await service.open(core.deadline(timeout))
    return service, runner


# --- what applications hold -----------------------------------------------------------------------


@explained("Service")
class Service:
    """A topic that this client serves. Use as a context manager: leaving it takes no more requests, and finishes those
    that were begun.
    """

    def __init__(self, core: ServiceCore, runner: ThreadRunner | TaskRunner) -> None:
        self._core = core
        self._runner = runner
        self._ended = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody closes the service; False if the time is over before."""
        return self._ended.wait(timeout)

    def statistics(self) -> ServiceCounts:
        """How much it has answered."""
        return self._core.statistics()  # type: ignore[return-value]

    def close(self, timeout: float | None = None) -> None:
        """Take no more requests, and finish those that were begun. What was not begun goes to other responders."""
        if self._ended.is_set():
            return
        self._ended.set()
        if not self._core.core.closed:
            self._core.core.wait_for(self._core.close(timeout))
        self._runner.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("Service", asynchronous=True)
class AsyncService:
    """A topic that this client serves. Use as a context manager: leaving it takes no more requests, and finishes those
    that were begun.
    """

    def __init__(self, core: ServiceCore, runner: ThreadRunner | TaskRunner) -> None:
        self._core = core
        self._runner = runner
        self._ended = asyncio.Event()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody closes the service; False if the time is over before."""
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def statistics(self) -> ServiceCounts:
        """How much it has answered."""
        return self._core.statistics()  # type: ignore[return-value]

    async def close(self, timeout: float | None = None) -> None:
        """Take no more requests, and finish those that were begun. What was not begun goes to other responders."""
        if self._ended.is_set():
            return
        self._ended.set()
        await self._core.close(timeout)
        self._runner.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
