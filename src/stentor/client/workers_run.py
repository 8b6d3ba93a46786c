"""What runs of groups and of queues share: the pool that a handler needs, and how a thread waits for a run."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from stentor.client.loop_thread import GRACE_S, closed_error
from stentor.client.workers_handler import load_handler, name_handler
from stentor.client.workers_pool import WORKER_NAME, TaskPool, ThreadPool
from stentor.client.workers_process import ProcessPool
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.tracing import Tracing
    from stentor.client.workers_pool import WorkerPool
    from stentor.client.workers_terms import WorkMode, WorkTerms

_SLICE_S: Final = 1.0  # a thread that waits longer looks up this often, so that Ctrl-C is heard


class HandlerRun(Protocol):
    """A run, in the client's loop."""

    terms: WorkTerms

    async def run(self) -> None:
        """Until it ends."""

    def stop(self) -> None:
        """Let it end."""


def check_handler(handler: object) -> None:
    """InvalidArgument if it cannot be one."""
    if not (callable(handler) or isinstance(handler, str)):
        raise InvalidArgument(f"A handler is a function or its name, not {type(handler).__name__}.")


def mode_for(handler: Callable[..., Any] | str, mode: WorkMode | None, *, asynchronous: bool) -> WorkMode:
    """Where a handler runs if nobody says it."""
    if mode is not None:
        return mode
    return "async" if asynchronous or inspect.iscoroutinefunction(handler) else "thread"


def make_pool(
    handler: Callable[..., Any] | str,
    terms: WorkTerms,
    *,
    asynchronous: bool,
    here: bool,
    tracing: Tracing | None,
    group: str = "",
) -> WorkerPool:
    """The workers that a handler needs. With `here` the only thread is the one that calls."""
    batch = terms.batch is not None
    if terms.mode == "process":
        traced = None if tracing is None else group
        return ProcessPool(name_handler(handler), terms.workers, batch=batch, fatal=terms.fatal, traced=traced)
    function = load_handler(name_handler(handler)) if isinstance(handler, str) else handler
    awaited = inspect.iscoroutinefunction(function)
    if tracing is not None:
        function = tracing.traced(function, group or None)
    if terms.mode == "thread":
        if awaited:
            raise InvalidArgument("An async handler needs mode='async'.")
        return ThreadPool(function, terms.workers, batch=batch, fatal=terms.fatal, here=here)
    return TaskPool(function, terms.workers, batch=batch, fatal=terms.fatal, own_loop=not asynchronous)


def run_here(loop: asyncio.AbstractEventLoop, run: HandlerRun, pool: WorkerPool) -> None:
    """Wait for a run in this thread. Ctrl-C ends it: what is in work is finished first, for a while."""
    future = asyncio.run_coroutine_threadsafe(run.run(), loop)
    here = pool if isinstance(pool, ThreadPool) and pool.here else None
    if here is not None:
        future.add_done_callback(lambda _: here.release())
    try:
        if here is not None:
            here.work_here()
        _wait(future)
    except BaseException:
        if not future.done():
            loop.call_soon_threadsafe(run.stop)
            with suppress(Exception):
                future.result(run.terms.finish_s + GRACE_S)
        raise


def _wait(future: Any) -> None:
    while True:
        try:
            future.result(_SLICE_S)
        except CancelledError:
            raise closed_error() from None
        except TimeoutError:
            if future.done():
                raise
        else:
            return


def is_handler() -> bool:
    """Whether a handler asks, in a thread or task of the workers."""
    if threading.current_thread().name.startswith(WORKER_NAME):
        return True
    with suppress(RuntimeError):
        task = asyncio.current_task()
        return task is not None and task.get_name() == WORKER_NAME
    return False
