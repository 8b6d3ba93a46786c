"""An event loop in virtual time: what asyncio and the product call of one, and no more."""

from __future__ import annotations

import asyncio
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.virtual.network import Network
    from tests.virtual.world import Process

TURN_US = (1, 60)  # from one turn of a loop to the next
THREAD_US = (20, 3_000)  # until a thread has done something


class NumberedTask(asyncio.Task[Any]):
    """Sets of tasks are walked in the order in which these were made, not by where they lie in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._world = process.world
        self._ready: deque[asyncio.Handle] = deque()
        self._turning = False
        self.network: Network | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # of a dead process too: none of them runs to its end any more

    # --- callbacks ------------------------------------------------------------------------------

    def time(self) -> float:
        return self._world.now * self.process.rate / 1_000_000

    boottime = time  # what leases are counted by: nothing sleeps here but with the whole world

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._turn_soon()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at(round(when * 1_000_000 / self.process.rate), self.process, self._due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when it is due."""

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._world.at(self._world.now + self._world.between(*TURN_US), self.process, self._turn)

    def _turn(self) -> None:
        """One turn: everything that was ready when it began."""
        self._turning = False
        events._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if self.process.dead:
                    return
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
        if self._ready:
            self._turn_soon()

    # --- futures, tasks, threads ----------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        self._world.tasks += 1
        NumberedTask.number = self._world.tasks  # asked for before it has one of its own
        task = NumberedTask(coro, loop=self, name=name, context=context)
        task.number = self._world.tasks
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        self._world.at(self._world.now + self._world.between(*THREAD_US), self.process, self._work, future, func, args)
        return future

    def _work(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._world.in_thread = True
        try:
            result = func(*args)
        except BaseException as error:  # noqa: BLE001 - it is for whoever waits
            self.call_soon(_settle, future, None, error)
        else:
            self.call_soon(_settle, future, result, None)
        finally:
            self._world.in_thread = False

    # --- the network ----------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: str, port: int, **_: Any) -> Any:
        assert self.network is not None
        return await self.network.dial(self.process, protocol_factory, f"{host}:{port}")

    async def create_server(self, protocol_factory: Any, host: str, port: int, **_: Any) -> Any:
        assert self.network is not None
        return self.network.listen(self.process, protocol_factory, f"{host}:{port}")

    # --- what asyncio asks ----------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.process.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.dead:
            return  # what was under way ends with its process
        error = context.get("exception")
        lines = "".join(traceback.format_exception(error)) if error is not None else ""
        self._world.broken.append(f"{self.process.name}: {context.get('message')}\n{lines}")


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
