"""Back-pressure: how much of a producer may be unacknowledged, and who waits until there is room again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stentor import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.lane import Lane


class Room:
    """The room that one producer's lanes share."""

    def __init__(self, lanes: list[Lane], buffer_bytes: int) -> None:
        self._lanes = lanes
        self.buffer_bytes = buffer_bytes
        self._waiters: deque[Callable[[], None]] = deque()  # senders add to it from their own threads

    def outstanding_bytes(self) -> int:
        """What is sealed and not answered yet."""
        return sum(lane.sealed_bytes - lane.done_bytes for lane in self._lanes)

    def is_full(self) -> bool:
        """Whether senders must wait."""
        return self.outstanding_bytes() >= self.buffer_bytes or any(
            len(lane.pending) >= limits.PRODUCER_IN_FLIGHT_BATCHES_MAX for lane in self._lanes
        )

    def add_waiter(self, wake: Callable[[], None]) -> None:
        """`wake` is called in the loop when there is room again."""
        self._waiters.append(wake)

    def look(self) -> None:
        """Something was answered: wake those who wait, if there is room."""
        if self._waiters and not self._is_half_full():
            while self._waiters:
                self._waiters.popleft()()

    def _is_half_full(self) -> bool:
        """Senders sleep until half is free, so that they do not wake for every answer."""
        return self.outstanding_bytes() > self.buffer_bytes // 2 or any(
            len(lane.pending) > limits.PRODUCER_IN_FLIGHT_BATCHES_MAX // 2 for lane in self._lanes
        )
