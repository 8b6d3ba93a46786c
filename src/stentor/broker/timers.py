"""What a broker does again and again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from stentor.broker.failures import Failures
    from stentor.broker.loop_watch import LoopWatch


class Timers:
    """Work that is repeated until the broker stops; a piece that fails is logged, and tried again the next time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: LoopWatch, failures: Failures) -> None:
        self._loop = loop
        self._watch = watch
        self._failures = failures
        self._handles: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._stopped = False

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        """Do it every so many seconds, from so many seconds on."""
        name = f"timer {_name(work)}"

        def run() -> None:
            if self._stopped:
                return
            self._failures.run(name, self._watch.run, name, work)
            self.every(seconds, work)

        self._handles[work] = self._loop.call_later(seconds, run)

    def stop(self) -> None:
        self._stopped = True
        for handle in self._handles.values():
            handle.cancel()


def _name(work: Any) -> str:
    """Return what the code calls it."""
    while isinstance(work, partial):
        work = work.func
    return str(getattr(work, "__qualname__", work))
