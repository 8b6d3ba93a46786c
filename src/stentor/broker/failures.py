"""Work that a broker repeats for many things at a time: one that fails fails alone.

Timers look at groups, tables, logs and connections one after the other. What is wrong with one of them must not keep
the others from their turn, and must not fill the log: it is tried again with every beat. So each piece runs by itself;
a failure is counted, and logged once in a while for each thing that it concerns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from stentor.errors import StentorError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_LOGGED_AGAIN_S: Final = 60.0  # the same failure of the same thing
_REMEMBERED_MAX: Final = 200  # things whose failure was logged lately; more than these are only counted


class Failures:
    """Counts what failed in the background of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._logged: dict[str, float] = {}
        self.count = 0

    def each(self, what: str, work: Sequence[Callable[[], None]]) -> None:
        """Do all of these, whatever fails."""
        for one in work:
            self.run(what, one)

    def run(self, what: str, work: Callable[..., Any], *args: Any) -> Any:
        """Return what `work` returns; None if it failed. `what` names the thing that it is about."""
        try:
            return work(*args)
        except Exception as error:  # noqa: BLE001 - noted: a bug of ours, or what cannot be done now
            self.note(what, error)
            return None

    def note(self, what: str, error: Exception) -> None:
        """Something failed; it will be tried again, or somebody else will be told."""
        self.count += 1
        now = self._now()
        if now - self._logged.get(what, float("-inf")) < _LOGGED_AGAIN_S:
            return
        if len(self._logged) >= _REMEMBERED_MAX:
            self._logged = {name: at for name, at in self._logged.items() if now - at < _LOGGED_AGAIN_S}
            if len(self._logged) >= _REMEMBERED_MAX:
                return
        self._logged[what] = now
        if isinstance(error, StentorError | OSError):
            logger.error("%s failed, and is tried again: %s", what, error)
            return
        # A bug of ours: whoever watches the loop for those hears of it too.
        self._loop.call_exception_handler({"message": f"{what} failed, and is tried again", "exception": error})
