"""How far a log may be compacted: the horizon, logged by the head, known to every member once it is committed (C23).

A horizon is a control batch at offset X. It says: below X, a message may go if a later one below X has the same key;
and a deletion may go if it lies below `deletions_until`. So whoever reads the log from its start finds, at X and at
every offset above, exactly what the whole log would have given. Whoever stopped reading below `deletions_until` and
goes on may miss a deletion.

It is a permission: members use it when and as far as they like, each by itself. Below a horizon their logs may differ.
In its header, `generation` is the kind of control batch and `sequence` is `deletions_until`. Its body is the snapshot
of producers as of X: a copy that gets only what compactions left of the log knows them nevertheless (C19).
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.errors import CorruptData

if TYPE_CHECKING:
    from stentor.core.records import Batch

HORIZON: Final = 1
"""The kind of control batch."""

DELETIONS_KEPT_S: Final = 86_400
"""How long deletions stay in a compacted log: a copy of a table that was away for less misses none of them."""

DELETIONS_KEPT_S_MAX: Final = 10 * 365 * 86_400
"""Longer is for ever: then the log grows with every key that ever was."""


class Horizon(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a horizon says."""

    offset: int = 0  # below it, the last message of each key is enough
    deletions_until: int = 0  # below this, deletions may be gone too; never above `offset`


NOWHERE: Final = Horizon()
_decoder = msgspec.msgpack.Decoder(Horizon)  # made here, under the import lock: logs are opened in threads


class HorizonState:
    """The newest horizon of one partition: a `core.derived.DerivedState`."""

    name: Final = "horizon"
    wants_bodies: Final = True  # for `core.dedupe`, which finds its own snapshot there
    undoes: Final = True
    vital: Final = False
    came_later: Final = True  # tables were there before compactions

    def __init__(self) -> None:
        self.committed = NOWHERE
        self._pending: deque[Horizon] = deque()

    @property
    def applied(self) -> Horizon:
        """The newest in the log, committed or not."""
        return self._pending[-1] if self._pending else self.committed

    def apply(self, batch: Batch, _: bytes | memoryview = b"") -> None:
        """A batch is in the log now."""
        if batch.control and batch.generation == HORIZON:
            self._pending.append(Horizon(batch.base_offset, min(batch.sequence, batch.base_offset)))

    def allows(self, _: Batch, __: bytes | memoryview) -> bool:
        """It has no conditions."""
        return True

    def commit(self, end: int) -> None:
        """Everything below this offset is committed."""
        while self._pending and self._pending[0].offset < end:
            self.committed = self._pending.popleft()

    def cut(self, end: int) -> None:
        """The log ends here now."""
        while self._pending and self._pending[-1].offset >= end:
            self._pending.pop()

    def snapshot(self) -> bytes:
        """The newest horizon."""
        return msgspec.msgpack.encode(self.applied)

    def restore(self, snapshot: bytes | None) -> None:
        """Back to a snapshot; None: no horizon."""
        try:
            self.committed = NOWHERE if snapshot is None else _decoder.decode(snapshot)
        except msgspec.MsgspecError as error:
            raise CorruptData(f"A snapshot of a horizon cannot be read: {error}.") from error
        self._pending.clear()

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        known = [self.committed, *self._pending]
        for before, after in pairwise(known):
            assert before.offset < after.offset
            assert before.deletions_until <= after.deletions_until
        assert all(horizon.deletions_until <= horizon.offset for horizon in known)
