"""`group.run`: what it takes, checked; and how a thread waits for it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict

from stentor.client.group_work import GroupRun, dead_letter, raise_it, skip_it
from stentor.client.loop_thread import GRACE_S, closed_error
from stentor.client.workers_handler import load_handler, name_handler
from stentor.client.workers_pool import WORKER_NAME, Interrupted, TaskPool, ThreadPool
from stentor.client.workers_process import ProcessPool
from stentor.client.workers_terms import WorkTerms
from stentor.core.names import check_topic_name
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.group_core import GroupCore
    from stentor.client.group_work import OnFailed
    from stentor.client.message import Message
    from stentor.client.options import OnFailure
    from stentor.client.workers_plan import OrderedBy
    from stentor.client.workers_pool import WorkerPool
    from stentor.client.workers_terms import WorkMode

_SLICE_S = 1.0  # a thread that waits longer looks up this often, so that Ctrl-C is heard


class RunOptions(TypedDict):
    """What `run` takes besides the handler."""

    workers: int
    mode: WorkMode | None
    ordered_by: OrderedBy | None
    batch: int | None
    on_error: OnFailure
    dead_letters: str | None
    attempts: int
    time_limit: float | None
    finish_within: float


class GroupStatistics(TypedDict):
    """What a member of a group counts."""

    done: int  # messages that `run` has finished
    failed: int  # those whose handler failed
    in_work: int  # those that workers have
    waiting: int  # those that wait for a worker
    workers_died: int  # worker processes that were replaced
    lag: int  # committed messages of all partitions that are not finished


def make_run(
    core: GroupCore, handler: Callable[..., Any] | str, options: RunOptions, *, asynchronous: bool
) -> tuple[GroupRun, WorkerPool]:
    """A run that can be begun; InvalidArgument if it cannot be."""
    mode = options["mode"]
    dead, on_error = options["dead_letters"], options["on_error"]
    if on_error not in ("raise", "skip"):
        raise InvalidArgument(f"on_error={on_error!r} is unknown.", hint="Use 'raise' or 'skip'.")
    if not (callable(handler) or isinstance(handler, str)):
        raise InvalidArgument(f"A handler is a function or its name, not {type(handler).__name__}.")
    if mode is None:
        mode = "async" if asynchronous or inspect.iscoroutinefunction(handler) else "thread"
    time_limit = core.tie.time_limit_s if options["time_limit"] is None else options["time_limit"]
    terms = WorkTerms(
        workers=options["workers"],
        mode=mode,
        ordered_by=options["ordered_by"],
        batch=options["batch"],
        attempts=options["attempts"],
        time_limit_s=time_limit,
        finish_s=options["finish_within"],
        fatal=on_error == "raise" and dead is None,
    )
    terms.check()
    if dead is not None:
        check_topic_name(dead)
    pool = _make_pool(core, handler, terms, asynchronous=asynchronous)
    return GroupRun(core, pool, terms, _on_failed(core, on_error, dead)), pool


def _make_pool(
    core: GroupCore, handler: Callable[..., Any] | str, terms: WorkTerms, *, asynchronous: bool
) -> WorkerPool:
    tracing = core.core.tracing
    if terms.mode == "process":
        name, traced = name_handler(handler), core.name if tracing is not None else None
        return ProcessPool(name, terms.workers, batch=terms.batch is not None, fatal=terms.fatal, traced=traced)
    function = load_handler(name_handler(handler)) if isinstance(handler, str) else handler
    awaited = inspect.iscoroutinefunction(function)
    if tracing is not None:
        function = tracing.traced(function, core.name)
    if terms.mode == "thread":
        if awaited:
            raise InvalidArgument("An async handler needs mode='async'.")
        here = terms.workers == 1 and not asynchronous
        return ThreadPool(function, terms.workers, batch=terms.batch is not None, fatal=terms.fatal, here=here)
    batch = terms.batch is not None
    return TaskPool(function, terms.workers, batch=batch, fatal=terms.fatal, own_loop=not asynchronous)


def _on_failed(core: GroupCore, on_error: OnFailure, dead_letters: str | None) -> OnFailed:
    if dead_letters is None:
        return raise_it if on_error == "raise" else skip_it

    async def bury(message: Message, error: Exception) -> None:
        if isinstance(error, Interrupted):
            raise error
        headers = [*message.headers, *dead_letter(message, error).items()]
        assert core.core.client is not None
        await core.core.client.publish(dead_letters, message.value, key=message.key, headers=headers)

    return bury


def run_here(core: GroupCore, run: GroupRun, pool: WorkerPool) -> None:
    """Wait for a run in this thread. Ctrl-C ends it: what is in work is finished first, for a while."""
    loop = core.core.loop
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
