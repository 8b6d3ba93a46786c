"""What handlers run in. A pool has workers; each has a few parcels, and handles them one after the other.

`client.workers` gives parcels and takes reports, in its loop:

    hand(worker, parcel)      it is the worker's last one now
    recall(worker)            give back what was not begun: `recalled` says how many messages of each parcel that are
    give_up(worker)           whatever it does, it counts no more: a new one takes its place, `died` says what it had
    position(worker)          how far it is: so a worker that hangs is noticed

Threads and tasks are here, processes in `client.workers_process`.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from stentor.client.certain import boottime, clock_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.workers_plan import Parcel


WORKER_NAME: Final = "stentor-work"
"""How threads and tasks that run handlers are called."""


class PoolWorker:
    """One worker, as the loop of `client.workers` knows it."""

    def __init__(self) -> None:
        self.parcels: deque[Parcel] = deque()  # the first is in work
        self.position = (0, 0)  # where it was when it was last looked at
        self.since = 0.0  # since when it is there
        self.recalled = False  # what it had not begun was taken back since then
        self.asking = False  # somebody is asked whether it may begin with what it gets next


class WorkReports(Protocol):
    """Who hears from a pool; called in its loop."""

    def finished(self, worker: PoolWorker, seconds: float, rest: int) -> None:
        """A worker is done with its first parcel, but for so many messages at the end that it did not come to."""

    def recalled(self, worker: PoolWorker, rests: dict[int, int], position: tuple[int, int]) -> None:
        """By number of the parcel: how many messages at its end were taken back. How far the worker was then: what its
        handler raised up to there is known.
        """

    def died(self, worker: PoolWorker, done: int, error: Exception, *, again: bool) -> None:
        """A worker is gone: so many of its first parcel were done. It died of the next; whether to try that again."""

    def came(self) -> None:
        """Another worker is there."""

    def broke(self, error: Exception) -> None:
        """There will be no workers."""


class WorkerPool(Protocol):
    """What handlers run in."""

    workers: list[PoolWorker]

    async def open(self, reports: WorkReports) -> None:
        """Start the workers, until they can work."""

    def hand(self, worker: PoolWorker, parcel: Parcel) -> None:
        """Give it a parcel."""

    def recall(self, worker: PoolWorker) -> None:
        """Take back what it has not begun."""

    def position(self, worker: PoolWorker) -> tuple[int, int]:
        """The parcel that it is at, and how many messages of that are finished."""

    def started(self, worker: PoolWorker, parcel: Parcel) -> int:
        """How many messages of its first parcel its handler was called with, if the parcel is leased."""

    def give_up(self, worker: PoolWorker, error: Exception) -> None:
        """It hangs: another one takes its place."""

    async def close(self) -> None:
        """End all workers."""


class _SharedMemoryPool:
    """What threads and tasks have in common: they take from the parcels that the loop sees, too."""

    def __init__(self, handler: Callable[..., Any], workers: int, *, batch: bool, fatal: bool) -> None:
        self._handler = handler
        self._count = workers
        self._batch = batch
        self._fatal = fatal
        self.workers: list[PoolWorker] = []
        self._reports: WorkReports | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock = boottime

    def recall(self, worker: PoolWorker) -> None:
        """What was not begun is taken at once: whoever works on a parcel finds it used up."""
        assert self._reports is not None
        rests = {parcel.number: parcel.take_rest() for parcel in worker.parcels}
        self._reports.recalled(worker, rests, self.position(worker))

    @staticmethod
    def position(worker: PoolWorker) -> tuple[int, int]:
        """The parcel that it is at, and how many messages of that are finished."""
        if not worker.parcels:
            return 0, 0
        parcel = worker.parcels[0]
        return parcel.number, parcel.finished

    def _may_start(self, parcel: Parcel) -> bool:
        """Whether the next message of a leased parcel may begin: it counts as begun then. In its own thread."""
        if self._clock() >= parcel.until:
            return False
        parcel.started += 1
        return True

    @staticmethod
    def started(worker: PoolWorker, parcel: Parcel) -> int:  # noqa: ARG004 - the shape is WorkerPool's
        """How many messages of its first parcel its handler was called with, if the parcel is leased."""
        return parcel.started

    def _gave_up(self, worker: PoolWorker, error: Exception) -> None:
        """What it has in work is lost to it, but cannot be tried again: it may still be at work on that."""
        assert self._reports is not None
        self.recall(worker)
        self._reports.died(worker, self.position(worker)[1], error, again=False)

    def _finished(self, worker: PoolWorker, seconds: float, rest: int) -> None:
        assert self._reports is not None
        if worker in self.workers:  # else it was given up
            self._reports.finished(worker, seconds, rest)


class _ThreadWorker(PoolWorker):
    """A thread, or the one that called."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox: queue.SimpleQueue[Parcel | None] = queue.SimpleQueue()
        self.halted = False  # its handler raised, which ends the work


_SLICE_S = 1.0  # a thread that waits longer looks up this often, so that Ctrl-C is heard


class ThreadPool(_SharedMemoryPool):
    """Threads. With `here` the only worker is the thread that calls `work_here`."""

    def __init__(
        self, handler: Callable[..., Any], workers: int, *, batch: bool, fatal: bool, here: bool = False
    ) -> None:
        super().__init__(handler, workers, batch=batch, fatal=fatal)
        self.here = here
        self._first = _ThreadWorker()

    async def open(self, reports: WorkReports) -> None:
        """Start them."""
        self._reports, self._loop = reports, asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        if self.here:
            self.workers = [self._first]
        else:
            for _ in range(self._count):
                self._start()

    def _start(self) -> None:
        worker = _ThreadWorker()
        name = f"{WORKER_NAME}-{len(self.workers)}"
        threading.Thread(target=self._work, args=(worker,), name=name, daemon=True).start()
        self.workers.append(worker)

    def hand(self, worker: PoolWorker, parcel: Parcel) -> None:
        """To its thread."""
        assert isinstance(worker, _ThreadWorker)
        worker.parcels.append(parcel)
        worker.inbox.put(parcel)

    def give_up(self, worker: PoolWorker, error: Exception) -> None:
        """A thread cannot be ended: it is left alone, and ends when its handler does."""
        assert isinstance(worker, _ThreadWorker)
        self.workers.remove(worker)
        worker.inbox.put(None)
        if not self.here:
            self._start()
        self._gave_up(worker, error)
        if self.here and self._reports is not None:
            self._reports.broke(error)  # it was the only one

    async def close(self) -> None:
        """Let them end."""
        for worker in [*self.workers, self._first]:
            assert isinstance(worker, _ThreadWorker)
            worker.inbox.put(None)

    def work_here(self) -> None:
        """Be the only worker, until the end."""
        self._work(self._first)

    def release(self) -> None:
        """Let `work_here` end, from any thread."""
        self._first.inbox.put(None)

    def _work(self, worker: _ThreadWorker) -> None:
        while True:
            try:
                parcel = worker.inbox.get(timeout=_SLICE_S)
            except queue.Empty:
                continue
            if parcel is None:
                return
            began = time.perf_counter()
            rest = 0
            try:
                rest = self._handle(worker, parcel)
            except BaseException:  # Ctrl-C came to the thread that called
                worker.halted, rest = True, parcel.take_rest()
                raise
            finally:
                self._report(worker, time.perf_counter() - began, rest)

    def _handle(self, worker: _ThreadWorker, parcel: Parcel) -> int:
        """Call the handler; how many messages were not come to."""
        if worker.halted:
            return parcel.take_rest()
        if self._batch:
            return self._handle_batch(worker, parcel)
        handler, leased = self._handler, parcel.leased
        for message in parcel.left:
            if leased and not self._may_start(parcel):
                return parcel.take_rest() + 1
            try:
                handler(message)
            except Exception as error:  # noqa: BLE001 - as above
                parcel.errors.append((message, error))
                if self._fatal:
                    worker.halted = True
                    return parcel.take_rest()
            except BaseException as error:
                parcel.errors.append((message, Interrupted(error)))
                raise
            parcel.finished += 1
        return 0

    def _handle_batch(self, worker: _ThreadWorker, parcel: Parcel) -> int:
        if self._clock() >= parcel.until:
            return parcel.take_rest()
        if not list(parcel.left):
            return 0  # it was taken back
        parcel.started = len(parcel.messages)
        try:
            self._handler(parcel.messages)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is told
            parcel.errors += [(message, error) for message in parcel.messages]
            worker.halted = self._fatal
        except BaseException as error:
            parcel.errors += [(message, Interrupted(error)) for message in parcel.messages]
            raise
        return 0

    def _report(self, worker: _ThreadWorker, seconds: float, rest: int) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._finished, worker, seconds, rest)


class Interrupted(Exception):  # noqa: N818 - it is no error: somebody pressed Ctrl-C
    """A handler was interrupted by what is not an error: Ctrl-C, or the end of the program."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _TaskWorker(PoolWorker):
    """A task."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox: asyncio.Queue[Parcel] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        self.halted = False


class TaskPool(_SharedMemoryPool):
    """Tasks of an event loop: that of the caller, or one of their own in a thread of its own."""

    def __init__(self, handler: Callable[..., Any], workers: int, *, batch: bool, fatal: bool, own_loop: bool) -> None:
        super().__init__(handler, workers, batch=batch, fatal=fatal)
        self._own_loop = own_loop
        self._work_loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def open(self, reports: WorkReports) -> None:
        """Start them."""
        self._reports, self._loop = reports, asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._work_loop = self._loop
        if self._own_loop:
            self._work_loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run_loop, name="stentor-work", daemon=True)
            self._thread.start()
        for _ in range(self._count):
            self._start()

    def _run_loop(self) -> None:
        assert self._work_loop is not None
        asyncio.set_event_loop(self._work_loop)
        self._work_loop.run_forever()
        self._work_loop.close()

    def _there(self, call: Callable[..., Any], *arguments: Any) -> None:
        """In the loop of the handlers."""
        assert self._work_loop is not None
        if self._work_loop is self._loop:
            call(*arguments)
        else:
            with suppress(RuntimeError):  # it has ended
                self._work_loop.call_soon_threadsafe(call, *arguments)

    def _start(self) -> None:
        worker = _TaskWorker()
        self.workers.append(worker)
        self._there(self._begin, worker)

    def _begin(self, worker: _TaskWorker) -> None:
        assert self._work_loop is not None
        worker.task = self._work_loop.create_task(self._work(worker), name=WORKER_NAME)

    def hand(self, worker: PoolWorker, parcel: Parcel) -> None:
        """To its task."""
        assert isinstance(worker, _TaskWorker)
        worker.parcels.append(parcel)
        self._there(worker.inbox.put_nowait, parcel)

    def give_up(self, worker: PoolWorker, error: Exception) -> None:
        """Cancel the task, and start another one."""
        assert isinstance(worker, _TaskWorker)
        self.workers.remove(worker)
        self._there(_cancel, worker)
        self._start()
        self._gave_up(worker, error)

    async def close(self) -> None:
        """Cancel all."""
        for worker in self.workers:
            assert isinstance(worker, _TaskWorker)
            self._there(_cancel, worker)
        if self._own_loop and self._work_loop is not None:
            self._there(self._work_loop.create_task, _stop_soon(self._work_loop))
        else:
            tasks = [worker.task for worker in self.workers if isinstance(worker, _TaskWorker) and worker.task]
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, worker: _TaskWorker) -> None:
        loop = asyncio.get_running_loop()
        while True:
            parcel = await worker.inbox.get()
            began = loop.time()
            rest = await self._handle(worker, parcel)
            seconds = loop.time() - began
            if self._own_loop:
                assert self._loop is not None
                with suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._finished, worker, seconds, rest)
            else:
                self._finished(worker, seconds, rest)
                await asyncio.sleep(0)  # a handler that never waits would hold up the loop

    async def _handle(self, worker: _TaskWorker, parcel: Parcel) -> int:
        if worker.halted:
            return parcel.take_rest()
        if self._batch:
            return await self._handle_batch(worker, parcel)
        handler, leased = self._handler, parcel.leased
        for message in parcel.left:
            if leased and not self._may_start(parcel):
                return parcel.take_rest() + 1
            try:
                answer = handler(message)
                if answer is not None and inspect.isawaitable(answer):
                    await answer
            except Exception as error:  # noqa: BLE001 - as above
                parcel.errors.append((message, error))
                if self._fatal:
                    worker.halted = True
                    return parcel.take_rest()
            parcel.finished += 1
        return 0

    async def _handle_batch(self, worker: _TaskWorker, parcel: Parcel) -> int:
        if self._clock() >= parcel.until:
            return parcel.take_rest()
        if not list(parcel.left):
            return 0  # it was taken back
        parcel.started = len(parcel.messages)
        try:
            answer = self._handler(parcel.messages)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is told
            parcel.errors += [(message, error) for message in parcel.messages]
            worker.halted = self._fatal
        return 0


def _cancel(worker: _TaskWorker) -> None:
    if worker.task is not None:
        worker.task.cancel()


async def _stop_soon(loop: asyncio.AbstractEventLoop) -> None:
    """Once those who were cancelled have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    loop.call_soon(loop.stop)
