"""How work is to be done: what `run` takes besides the handler, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor.client.workers_plan import OrderedBy

WorkMode = Literal["thread", "process", "async"]
"""Where handlers run."""

WORKERS_MAX: Final = 1_000
"""Workers of one run: beyond that somebody mistook the unit."""

BATCH_MAX: Final = 100_000
"""Messages in one call of a handler."""

ATTEMPTS: Final = 3
"""How often a message may kill its worker process before it counts as failed."""

FINISH_S: Final = 30.0
"""How long handlers may finish when the work ends: as long as an orchestrator usually waits before it kills."""

AHEAD_MAX: Final = 131_072
"""Messages that are taken and not finished, over all partitions: enough for the fastest handler, bounded memory."""


AHEAD_PER_WORKER: Final = 32
"""Messages or batches that are taken however long they take: with order by key some wait for others of their key."""


AHEAD_S: Final = 2.0
"""How much work is taken ahead, if a worker needs about as long as lately: a pause of the source is not noticed, and
little is repeated after a crash.
"""


class WorkTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How work is to be done."""

    workers: int = 1
    mode: WorkMode = "thread"
    ordered_by: OrderedBy | None = "partition"
    batch: int | None = None  # call the handler with lists of up to so many messages
    attempts: int = ATTEMPTS  # how often a message may kill a worker process
    time_limit_s: float | None = None  # for one call of the handler
    finish_s: float = FINISH_S  # how long what is in work may finish at the end
    ahead: int = AHEAD_MAX  # messages that are taken and not finished
    ahead_per_worker: int = AHEAD_PER_WORKER  # of these, however long they take
    ahead_s: float = AHEAD_S  # work that is taken ahead
    fatal: bool = True  # the first error ends the work

    def check(self) -> None:
        """InvalidArgument if this is impossible."""
        _between("workers", self.workers, 1, WORKERS_MAX)
        _between("attempts", self.attempts, 1, WORKERS_MAX)
        if self.batch is not None:
            _between("batch", self.batch, 1, BATCH_MAX)
        if self.mode not in ("thread", "process", "async"):
            raise InvalidArgument(f"mode={self.mode!r} is unknown.", hint="Use 'thread', 'process' or 'async'.")
        if self.ordered_by not in ("key", "partition", None):
            raise InvalidArgument(
                f"ordered_by={self.ordered_by!r} is unknown.", hint="Use 'key', 'partition' or None (no order)."
            )
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise InvalidArgument(f"time_limit={self.time_limit_s!r} is not a number of seconds above 0.")
        if not self.finish_s >= 0:
            raise InvalidArgument(f"finish_within={self.finish_s!r} is not a number of seconds.")


def _between(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgument(f"{name}={value!r} is not a whole number from {least} to {most}.")
