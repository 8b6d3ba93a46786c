"""Gives a successor that begins anew what was derived from everything below the log's start, piece by piece (C19)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from stentor import limits
from stentor.core.chain_messages import AskState, StatePiece

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.disk_threads import DiskThreads
    from stentor.core.replica_events import GiveState
    from stentor.errors import StentorError
    from stentor.storage.memory_log import AnyLog


class Described(Protocol):
    """The partition whose state is given away."""

    log: AnyLog
    reads: DiskThreads

    def read_failed(self, error: StentorError) -> StentorError: ...


class StatePieces:
    """The state at the start of one log, kept in memory while a successor takes it."""

    def __init__(self, partition: Described) -> None:
        self._partition = partition
        self._log: AnyLog | None = None
        self._start = 0
        self._state: bytes | None = None

    def give(self, effect: GiveState, tell: Callable[[str, StatePiece], None]) -> None:
        """Answer a question; the disk is read in a thread, and only for the first piece."""
        partition, ask = self._partition, effect.ask
        if self._is_for(ask):
            tell(effect.to, self._piece(ask))
            return
        log = partition.log
        partition.reads.submit(
            lambda: (log.start, log.start_snapshot() or b"", log.start), partial(self._loaded, log, effect, tell)
        )

    def forget(self) -> None:
        """Nobody asks any more."""
        self._log = self._state = None

    def _is_for(self, ask: AskState) -> bool:
        return self._state is not None and self._log is self._partition.log and self._start == ask.cut

    def _loaded(
        self,
        log: AnyLog,
        effect: GiveState,
        tell: Callable[[str, StatePiece], None],
        found: tuple[int, bytes, int],
        error: StentorError | None,
    ) -> None:
        ask = effect.ask
        if error is not None:
            self._partition.read_failed(error)
            return
        start, state, start_after = found
        if (start, start_after) != (ask.cut, ask.cut) or log is not self._partition.log:
            tell(effect.to, StatePiece(ask.epoch, ask.attempt, ask.position, gone=True))
            return
        self._log, self._start, self._state = log, start, state
        tell(effect.to, self._piece(ask))

    def _piece(self, ask: AskState) -> StatePiece:
        assert self._state is not None
        total = len(self._state)
        data = self._state[ask.position : ask.position + limits.STATE_PIECE_BYTES]
        if ask.position + len(data) >= total:
            self.forget()  # one that is asked for again is read again
        return StatePiece(ask.epoch, ask.attempt, ask.position, total, data)
