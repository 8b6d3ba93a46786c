"""What one broker keeps in memory of messages, beside its disk: memory topics, and the jobs of queues.

Every partition is bounded by itself, but anybody may make many, and a small compressed batch may hold many jobs. So all
of them together have one budget (S7). The head of a chain asks before it takes messages that need more of it; what a
head has taken is appended by the members after it, and whatever is derived from a log that is there is kept.

A memory topic that holds as much as its retention says does not grow: it goes on beside a budget that is used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stentor.errors import MemoryFull
from stentor.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Hashable

MACHINE_SHARE: Final = 4
"""Unless a setting says otherwise, the budget is the machine's memory divided by this: readers, connections, tables and
the system's own cache of the logs need the rest."""

BUDGET_BYTES_MIN: Final = 64 * MIB
"""The least that this makes, on the smallest machine: four partitions of memory topics as they are by default."""

FOLLOWERS_SHARE: Final = 5 / 4
"""A member whose budget is used up goes on taking what its head took, up to this multiple: heads look at their own
budgets, and a broker that holds more copies than they do would stop their chains. Beyond it, its life is worth more."""


class MemoryBudget:
    """How much of it is used, and by whom. Only the broker's loop uses it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.refused = 0
        """Publishes that were refused because of it."""
        self._held: dict[Hashable, int] = {}

    def hold(self, owner: Hashable, size: int) -> None:
        """Note what an owner holds now, in place of what it held before; 0 gives all of it back."""
        self.used += size - self._held.pop(owner, 0)
        if size:
            self._held[owner] = size

    @property
    def is_used_up(self) -> bool:
        """Whether nothing that grows is taken any more."""
        return self.used >= self.limit

    def check(self, what: str) -> None:
        """Raise MemoryFull if nothing more is taken for an object that grows."""
        if self.used >= self.limit:
            self.refused += 1
            raise MemoryFull(
                f"The memory for topics is used up: memory topics and queues hold {self.used:,} bytes on this broker;"
                f" the limit is {self.limit:,}.",
                hint="Let consumers finish jobs, delete memory topics or shorten their retention, or raise"
                " memory_budget_bytes.",
                object=what,
            )

    def follows(self) -> bool:
        """Whether a member takes what its head took."""
        return self.used < FOLLOWERS_SHARE * self.limit

    def check_invariants(self) -> None:
        """Called by tests."""
        assert self.used == sum(self._held.values())
        assert all(size > 0 for size in self._held.values())


def share_of(machine: int) -> int:
    """Return the budget that a broker takes by itself on a machine with this much memory."""
    return max(BUDGET_BYTES_MIN, machine // MACHINE_SHARE)
