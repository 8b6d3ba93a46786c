"""The thread in which a sync client's loop runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stentor.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Coroutine

GRACE_S: Final = 5.0  # on top of a call's own deadline, for the loop to report it


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        try:
            import uvloop

            self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        except ImportError:
            self.loop = asyncio.new_event_loop()
        self._stopping = False
        self._posting = threading.Lock()  # what is posted comes before the stop, or not at all
        self._thread = threading.Thread(target=self._run, name="stentor-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(_end_others())
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine in the loop and wait for it here; Closed if the loop ends before it."""
        with self._posting:
            if self._stopping:
                work.close()
                raise closed_error()
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except CancelledError:
            raise closed_error() from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop, and every call that still waits for something in it."""
        with self._posting:
            self._stopping = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(GRACE_S)


async def _end_others() -> None:
    """Whoever waits for one of these in another thread would wait for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await asyncio.gather(*others, return_exceptions=True)


def closed_error() -> Closed:
    """Why a call of a closed client does nothing."""
    return Closed("This client is closed.", hint="Make a new one with stentor.connect().")
