"""Publishes that are in the log and wait for their ack level: a place in the chain (C7)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from stentor.core.replica_events import Answer

HEAD: Final = 1
QUORUM: Final = 2
ALL: Final = 3


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    end: int
    answer: Answer


class Acks:
    """A queue for each level, in offset order."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[_Waiting]] = {HEAD: deque(), QUORUM: deque(), ALL: deque()}

    def add(self, ack: int, end: int, answer: Answer) -> None:
        """A batch was appended at the end of the log."""
        self._queues[ack].append(_Waiting(end, answer))

    def insert(self, ack: int, end: int, answer: Answer) -> None:
        """A resend waits among those of its own offset."""
        queue = self._queues[ack]
        position = len(queue)
        while position and queue[position - 1].end > end:
            position -= 1
        queue.insert(position, _Waiting(end, answer))

    def levels(self) -> list[int]:
        """The levels that somebody waits for."""
        return [ack for ack, queue in self._queues.items() if queue]

    def reached(self, ack: int, end: int) -> list[Answer]:
        """The level is reached up to here: who is to be answered."""
        queue = self._queues[ack]
        answers = []
        while queue and queue[0].end <= end:
            answers.append(queue.popleft().answer)
        return answers

    def last_end(self, ack: int) -> int:
        """Up to where somebody waits for a level; 0 when nobody does."""
        queue = self._queues[ack]
        return queue[-1].end if queue else 0

    def give_up(self) -> list[int]:
        """Nobody will be answered: the tickets of all."""
        tickets = [waiting.answer.ticket for queue in self._queues.values() for waiting in queue]
        for queue in self._queues.values():
            queue.clear()
        return tickets

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def first_ends(self) -> dict[int, int]:
        """Who waits longest at each level, by offset; also checks the order. For invariants."""
        for queue in self._queues.values():
            ends = [waiting.end for waiting in queue]
            assert ends == sorted(ends)
        return {ack: queue[0].end for ack, queue in self._queues.items() if queue}
