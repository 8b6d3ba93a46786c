"""Where workers take messages, and where they say what became of them: all that `client.workers` knows of a source.

    take ──► (waits in the plan) ──► begin ──► done
                     ▲                  │ ────► failed
                     └── recalled ──────┘
                                          back, when the workers stop

Whatever hands out messages that must be settled one by one can be worked on: a consumer group does it by
`client.group_work`, which moves positions, and a queue by `client.queue_work`, which acknowledges jobs.

Before a worker begins a message, the lease on it must be certain: `certain_until` says until when it is. Workers look
at the clock before each message, in the thread or process that begins it, and give back what is not certain any more;
then the source is asked (`ask`) before a worker gets it again.

All calls come from one event loop. A message that was taken is settled once: by `done`, `failed` or `back`. A source
gets back the very objects that it handed out, so the lists here have the type that each source knows.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any, Protocol

from stentor.client.job import sendable
from stentor.work_errors import HandlerError

logger = logging.getLogger(__name__)


class WorkItem(Protocol):
    """What is handed out: a message of a topic, or a job of a queue."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...


class WorkSource(Protocol):
    """Hands out messages, and hears what became of each."""

    async def take(self, limit: int) -> list[Any] | None:
        """Up to so many messages, all of one partition, in order; waits for the first. None: there will be no more.

        What it raises ends the work. It may be cancelled at any time, and has taken nothing then. The source bounds how
        many of one partition it hands out before some are settled, so that one slow partition does not hold up others.
        """
        ...

    def begin(self, messages: list[Any]) -> list[Any]:
        """A worker begins with these. Returns those that are still to be done: the others are not this source's any
        more, and need not be settled. It may be called again for a message that a worker died of or did not come to.
        """
        ...

    def certain_until(self, messages: list[Any]) -> float:
        """Until when these may be begun without asking, by the clock of `client.certain`.

        A time that is over: ask first. Infinity: nobody else can get them.
        """
        ...

    async def ask(self, messages: list[Any]) -> None:
        """Ask whether these may be begun. Then `begin` and `certain_until` know it."""
        ...

    def recalled(self, messages: list[Any]) -> None:
        """The worker did not come to these: they wait again."""
        ...

    def done(self, messages: list[Any]) -> None:
        """These are finished, all of one partition."""
        ...

    async def failed(self, message: Any, error: Exception) -> None:
        """The handler raised, took too long, or killed its workers. What this raises ends the work."""
        ...

    def back(self, messages: list[Any]) -> None:
        """The workers stop, and nobody has finished these."""
        ...


def log_failure(what: str, error: Exception) -> None:
    """Log that a handler failed, with the traceback of the process that it ran in."""
    if isinstance(error, HandlerError) and "traceback" in error.detail:
        trace = str(error.detail["traceback"])
    else:
        trace = "".join(traceback.format_exception(error))
    # As text that every terminal and log file takes: an error may say what is no Unicode, such as the name of a file.
    logger.warning("%s failed:\n%s", what, sendable(trace).rstrip())
