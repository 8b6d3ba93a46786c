"""State that is derived from a partition's log: a function of the log's prefix, and of nothing else (C19).

    a batch is in the log     ──► apply ──► applied view      up to the log's end: what the head decides on
    the commit point moves    ──► commit ─► committed view    what readers are served
    the log was cut back      ──► cut ────► the applied view, without what is gone
    a segment begins          ──► snapshot, as of the log's end, kept beside the segment
    the log is opened, a copy begins  ──► restore, then apply for every batch after the snapshot

Every member of a chain derives the same states from the same batches, so a new head has them at once. `States` are
those of one partition; producers (`core.dedupe`) are always among them.

Every fold is total (C33). A batch that a state cannot read (CorruptData, InvalidArgument: which it is depends on its
bytes alone) is passed over by that state, on every replica and at every replay, and counted; a state looks at all of a
batch before it changes anything. Any other error is ours or the machine's: it stops the copy.

Snapshots. A state chooses the form of its own; `States` puts them together. One that was taken beyond the commit point
holds what may yet be undone: a state with both views is restored from an older one. A state that gives none is derived
from the log's first batch on, so its log must not lose its start. What producers alone need is stored as they give it:
older versions know no other state. A copy that begins anew gets its predecessor's snapshot in pieces
(`core.state_transfer`).

While a log is being opened or cut, in a thread, nobody else asks or changes its states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from stentor.core.dedupe import Dedupe
from stentor.core.horizon import HorizonState
from stentor.errors import CorruptData, InternalError, InvalidArgument, StentorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.core.records import Batch

_MAP_MARKS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
"""How a snapshot of several states begins in msgpack; that of producers alone is a list."""

_decoder = msgspec.msgpack.Decoder(dict[str, bytes])  # made here, under the import lock: logs are opened in threads


class DerivedState(Protocol):
    """One state that is derived from a log."""

    @property
    def name(self) -> str:
        """Names it in snapshots; never changes."""
        ...

    @property
    def wants_bodies(self) -> bool:
        """Whether `apply` needs whole batches. Most states need only their headers."""
        ...

    @property
    def undoes(self) -> bool:
        """Whether it keeps what is not committed apart, and can undo that when the log is cut. Otherwise it has the
        applied view only, and is derived again after a cut.
        """
        ...

    @property
    def vital(self) -> bool:
        """Whether nobody may go on without it: a copy whose snapshot is lost is damaged, not merely forgetful."""
        ...

    @property
    def came_later(self) -> bool:
        """Whether logs may have snapshots from before there was such a state: where one lacks it, it was empty."""
        ...

    def apply(self, batch: Batch, body: bytes | memoryview) -> None:
        """A batch is in the log now. `body` is empty unless it is wanted, and valid only during the call.

        CorruptData or InvalidArgument if it cannot be read, and then nothing changed.
        """
        ...

    def allows(self, batch: Batch, body: bytes | memoryview) -> bool:
        """Whether a batch that comes with conditions would take effect; decided on the applied view."""
        ...

    def commit(self, end: int) -> None:
        """Everything below this offset is committed."""
        ...

    def cut(self, end: int) -> None:
        """The log ends here now, not below what is committed. Asked only of a state that undoes."""
        ...

    def snapshot(self) -> bytes | None:
        """The applied view as of the log's end; None: not now."""
        ...

    def restore(self, snapshot: bytes | None) -> None:
        """Back to a snapshot; None is the empty state. CorruptData if it cannot be read, and then nothing changed."""
        ...

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        ...


class States:
    """The states of one partition."""

    def __init__(self, *more: DerivedState) -> None:
        self.dedupe = Dedupe()
        self._all: tuple[DerivedState, ...] = (self.dedupe, *more)
        self.wants_bodies = any(state.wants_bodies for state in self._all)
        self.passed_over = 0  # batches that a state could not read, in this life of the copy
        self._committed = 0
        self._missing: set[str] = set()  # states that must be derived from the log (again)
        self._since: dict[str, int] = {}  # while a log is read: from which offset on each of those needs batches
        self._oldest: dict[str, tuple[int, bytes]] = {}  # snapshots that seem too new, each state's oldest

    @property
    def deletions_until(self) -> int:
        """Below this offset, a compaction may have removed deletions: a copy that ends there cannot be continued.

        By the newest horizon in the log. A copy that was filled from a compacted log lacks the deletions before it has
        heard that the horizon is committed.
        """
        return max((state.applied.deletions_until for state in self._all if isinstance(state, HorizonState)), default=0)

    def __iter__(self) -> Iterator[DerivedState]:
        return iter(self._all)

    # --- live -----------------------------------------------------------------------------------

    def apply(self, batch: Batch, body: bytes | memoryview = b"") -> None:
        """A batch is in the log now."""
        for state in self._all:
            self._fold(state, batch, body)

    def _fold(self, state: DerivedState, batch: Batch, body: bytes | memoryview) -> None:
        """Have one state take a batch, or count that it cannot (C33). InternalError if this copy must stop."""
        try:
            state.apply(batch, body)
        except (CorruptData, InvalidArgument):
            self.passed_over += 1
        except StentorError:
            raise
        except Exception as error:
            raise InternalError(
                f"The state {state.name} cannot be derived from the batch at offset {batch.base_offset}: {error!r}."
            ) from error

    def commit(self, end: int) -> None:
        """Everything below this offset is committed."""
        self._committed = end
        for state in self._all:
            state.commit(end)

    def allows(self, batch: Batch, body: bytes | memoryview) -> bool:
        """Whether a batch that comes with conditions would take effect."""
        return all(state.allows(batch, body) for state in self._all)

    def snapshot(self) -> bytes:
        """All of them as of the log's end."""
        if len(self._all) == 1:
            return self.dedupe.snapshot()
        taken = {state.name: state.snapshot() for state in self._all}
        return msgspec.msgpack.encode({name: data for name, data in taken.items() if data is not None})

    # --- from a log -----------------------------------------------------------------------------

    def begin(self, committed: int) -> None:
        """All states are about to be derived from a log: `restore`, the newest snapshot first, then `replay`."""
        self._committed = committed
        self._missing = {state.name for state in self._all}
        self._since, self._oldest = {}, {}

    def cut(self, end: int) -> bool:
        """The log ends here now. False: some states cannot undo; derive them from the log, as after `begin`."""
        self._missing = {state.name for state in self._all if not state.undoes}
        self._since, self._oldest = {}, {}
        for state in self._all:
            if state.undoes:
                state.cut(end)
        return not self._missing

    def restore(self, snapshot: bytes | None, offset: int) -> bool:
        """Take what is missing from a snapshot as of `offset`; whether nothing is missing any more.

        None: there is no older snapshot, and the log begins at `offset`. What is missing then is empty, or as a
        snapshot of that very offset says: all before a log's start is committed (C23), whether that was heard or not.
        """
        found = {} if snapshot is None else _separate(snapshot)
        for state in self._all:
            data = found.get(state.name)
            if snapshot is None and self._oldest.get(state.name, (-1, b""))[0] == offset:
                data = self._oldest[state.name][1]
            if state.name not in self._missing or (data is None and snapshot is not None and not state.came_later):
                continue
            if data is not None and state.undoes and snapshot is not None and offset > self._committed:
                self._oldest[state.name] = offset, data
                continue  # it could not undo what lies between
            if data is None and offset and state.vital and snapshot is None:
                raise CorruptData(f"The log begins at {offset}, and its snapshot of {state.name} is lost.")
            state.restore(data)
            self._since[state.name] = offset
            self._missing.discard(state.name)
        return not self._missing

    def replay(self, batch: Batch, body: bytes | memoryview) -> None:
        """The next batch of a log that is being read. What is committed is so at once: nothing piles up."""
        committed = batch.end_offset <= self._committed
        for state in self._all:
            since = self._since.get(state.name)
            if since is not None and batch.base_offset >= since:
                self._fold(state, batch, body)
                if committed:
                    state.commit(batch.end_offset)

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        for state in self._all:
            state.check_invariants()


def _separate(snapshot: bytes) -> dict[str, bytes]:
    if snapshot[:1] and snapshot[0] in _MAP_MARKS:
        try:
            return _decoder.decode(snapshot)
        except msgspec.MsgspecError as error:
            raise CorruptData(f"A snapshot of derived states cannot be read: {error}.") from error
    return {Dedupe.name: snapshot}
