"""Where workers take messages, and where they say what became of them: all that `client.workers` knows of a source.

    take ──► (waits in the plan) ──► begin ──► done
                     ▲                  │ ────► failed
                     └── recalled ──────┘
                                          back, when the workers stop

Whatever hands out messages that must be settled one by one can be worked on: a consumer group does it by
`client.group_work`, which moves positions. A queue would acknowledge.

All calls come from one event loop. A message that was taken is settled once: by `done`, `failed` or `back`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stentor.client.message import Message


class WorkSource(Protocol):
    """Hands out messages, and hears what became of each."""

    async def take(self, limit: int) -> list[Message] | None:
        """Up to so many messages, all of one partition, in order; waits for the first. None: there will be no more.

        What it raises ends the work. It may be cancelled at any time, and has taken nothing then. The source bounds how
        many of one partition it hands out before some are settled, so that one slow partition does not hold up others.
        """
        ...

    def begin(self, messages: list[Message]) -> None:
        """A worker begins with these. It may be called again for a message that a worker died of or did not come to."""
        ...

    def done(self, messages: list[Message]) -> None:
        """These are finished, all of one partition."""
        ...

    async def failed(self, message: Message, error: Exception) -> None:
        """The handler raised, took too long, or killed its workers. What this raises ends the work."""
        ...

    def back(self, messages: list[Message]) -> None:
        """The workers stop, and nobody has finished these."""
        ...
