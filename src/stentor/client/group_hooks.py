"""What an application hears of the partitions that come to a member of its group and go from it.

    assigned   the partition is this member's; its messages come once the hook has returned
    revoked    it goes to another member, in good order: nothing of it is in work, and what is finished can be committed
    lost       it may have gone to another member already: this one was silent for too long

Hooks are called one after the other: those of `async` code in the client's loop, the others in a thread of their own,
so that a slow one stops no heartbeat. A hook may commit. That counts what is finished, and not the message in work.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.reader import Event

    Hook = Callable[[Event], object]

logger = logging.getLogger(__name__)

_inside: Final = ContextVar("stentor_group_hook", default=False)


def in_hook() -> bool:
    """Return whether a hook of a group asks: the message in work is not its to finish."""
    return _inside.get()


class GroupHooks:
    """The hooks of one member, called from the client's loop."""

    def __init__(self, on_assigned: Hook | None, on_revoked: Hook | None, *, asynchronous: bool) -> None:
        for name, hook in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if hook is not None and not callable(hook):
                raise InvalidArgument(f"{name} is a function, not {type(hook).__name__}.")
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._asynchronous = asynchronous
        self._turn = asyncio.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] | None = None  # of the thread, once there is one

    async def call(self, event: Event) -> None:
        """Call the hook for an event, and wait for it. What it raises is logged."""
        hook = self._on_assigned if event.kind == "assigned" else self._on_revoked
        if hook is None:
            return
        async with self._turn:
            if self._asynchronous:
                await self._await(hook, event)
            else:
                await self._in_thread(hook, event)

    async def _await(self, hook: Hook, event: Event) -> None:
        token = _inside.set(True)
        try:
            answer = hook(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001 - the member goes on, whatever a hook raises
            _log(hook, event, error)
        finally:
            _inside.reset(token)

    async def _in_thread(self, hook: Hook, event: Event) -> None:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def call() -> None:
            _inside.set(True)
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - as above
                _log(hook, event, error)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_end, over)

        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._calls,), name="stentor-hooks", daemon=True).start()
        self._calls.put(call)
        await over

    def close(self) -> None:
        """Let the thread end."""
        if self._calls is not None:
            self._calls.put(None)


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():  # else nobody waits any more
        over.set_result(None)


def _work(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


def _log(hook: Hook, event: Event, error: Exception) -> None:
    name, place = getattr(hook, "__name__", repr(hook)), f"{event.topic}/{event.partition}"
    logger.error("the hook %s failed for %s, which is %s", name, place, event.kind, exc_info=error)
