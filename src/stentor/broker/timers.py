"""What a broker does again and again."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from stentor.broker.loop_watch import LoopWatch

logger = logging.getLogger(__name__)


class Timers:
    """Work that is repeated until the broker stops; a piece that fails is told, and tried again the next time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: LoopWatch) -> None:
        self._loop = loop
        self._watch = watch
        self._handles: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._stopped = False

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        """Do it every so many seconds, from so many seconds on."""
        name = f"timer {_name(work)}"

        def run() -> None:
            if self._stopped:
                return
            try:
                self._watch.run(name, work)
            except Exception:
                logger.exception("a timer failed")
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
