"""Keys that expire: the pure machine that counts their time, at the head of a table's partition and nowhere else (C21).

Rules. A key with a lease is due when its ttl has passed since the row that set it was committed, and since it was last
touched; one that belongs to a session, since the session was last heard. Then the head deletes it, by a row in the log
like any other, on the condition that the key is still at that version. Whoever replaces the head begins all times in
full, so what was touched needs no place in the log, and no key expires early.

Theory of operation. Times are counted, not looked up: only while the head may change the table, and not while its
broker stood still (C15). A touch that waited in a socket meanwhile is read before anything is due.

    leases that changed ──news──► timers ──placed──► slots of a tenth of a second ──due──► looked at again:
                                                                    touched meanwhile: placed anew
                                                                    still at its version: to be deleted

Each key is in one slot, never in a later one than it may be due in. A touch is one assignment; where the key belongs is
found out when its slot comes. So nothing here costs more than a step for each key and a bounded number of them a tick.
All roundings are late ones.

Invariants: timers, and the keys in slots, are the same; a session is known while one of its keys has a timer.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from stentor.core.holders import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.core.table import KeyLease, Owner, TableState

_SLOT_US: Final = 100_000  # as often as it is looked: brokers beat ten times a second
_STOOD_STILL_US: Final = 500_000  # whoever looks so late did not run in between; it counts as one slot
_AGAIN_US: Final = 1_000_000  # when a key is looked at again whose delete is on its way, or was not taken
_LOOKED_MAX: Final = 5_000  # keys in a tick, of each kind of work: some milliseconds
_EXPIRED_BYTES_MAX: Final = 256 * 1024  # of keys in one batch of deletes, give or take one
_EMPTY_SLOTS_MAX: Final = 1_000  # numbers of slots whose keys have moved, beyond as many as there are slots


class _Timer:
    """When the time of a key began."""

    __slots__ = ("lease", "since_us", "slot")

    def __init__(self, lease: KeyLease, since_us: int) -> None:
        self.lease = lease
        self.since_us = since_us
        self.slot = -1  # in none yet


class _Session:
    """A client that keeps keys alive."""

    __slots__ = ("heard_us", "keys")

    def __init__(self) -> None:
        self.heard_us = 0
        self.keys = 0  # how many timers are its own


class Expiry:
    """The times of one partition's keys."""

    def __init__(self, table: TableState) -> None:
        self._table = table
        self._epoch: int | None = None  # in which this member leads
        self._counted_us = 0  # the time of this machine
        self._at_us: int | None = None  # when it was last told the time
        self._timers: dict[bytes, _Timer] = {}
        self._sessions: dict[Owner, _Session] = {}
        self._slots: dict[int, dict[bytes, None]] = {}
        self._order: list[int] = []  # a heap of the slots' numbers, and of some that are gone

    # --- who leads ------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """This member is the head in an epoch: if that is news, all times begin in full."""
        if epoch != self._epoch:
            self.rest()
            self._epoch = epoch
            self._table.news = dict.fromkeys(self._table.leases)

    def rest(self) -> None:
        """It is not: others count, and what was counted here is worth nothing."""
        self._epoch = self._table.news = self._at_us = None
        self._timers, self._sessions, self._slots, self._order = {}, {}, {}, []

    # --- time -----------------------------------------------------------------------------------

    def touched(self, keys: Iterable[bytes], session: bytes, now_us: int, holder: bytes | None = None) -> None:
        """Keys, and all that belong to a session, begin anew: those of its holder, who says so, and those that were put
        without a secret, which whoever knows the session keeps alive (C36). Without a `holder`, all of them: while a
        cluster is upgraded, some brokers do not pass on what a client has shown.
        """
        self._count(now_us)
        for key in keys:
            if (timer := self._timers.get(key)) is not None:
                timer.since_us = self._counted_us
        owners = (
            [owner for owner in self._sessions if owner[0] == session]
            if holder is None
            else (
                (session, NOBODY),
                (session, holder),
            )
        )
        for owner in owners:
            if (known := self._sessions.get(owner)) is not None:
                known.heard_us = self._counted_us

    def tick(self, now_us: int, *, counts: bool) -> list[tuple[bytes, int]]:
        """Keys that are due, with their versions. The time since the last tick counts only if touches could come in."""
        if self._epoch is None:
            return []
        if not counts:
            self._at_us = now_us
            return []
        self._count(now_us)
        self._take_news()
        return self._due()

    def _count(self, now_us: int) -> None:
        passed = 0 if self._at_us is None else now_us - self._at_us
        self._counted_us += passed if passed <= _STOOD_STILL_US else _SLOT_US
        self._at_us = now_us

    def _take_news(self) -> None:
        """Times begin when the head hears that their rows are committed; as many at a time as a step may take."""
        leases = self._table.leases
        for key in self._some_news():
            before = self._timers.get(key)
            lease = leases.get(key)
            if before is not None and before.lease is lease:
                continue
            if before is not None:
                self._forget(key, before, keep_slot=lease is not None)
            if lease is not None:
                self._begin(key, lease, -1 if before is None else before.slot)

    def _some_news(self) -> Iterable[bytes]:
        """The oldest; a dict that was large is not gone through again when it is empty."""
        news = self._table.news
        assert news is not None
        if len(news) <= _LOOKED_MAX:
            if news:
                self._table.news = {}
            return news
        first = list(islice(news, _LOOKED_MAX))
        for key in first:
            del news[key]
        return first

    def _begin(self, key: bytes, lease: KeyLease, slot: int) -> None:
        timer = self._timers[key] = _Timer(lease, self._counted_us)
        timer.slot = slot
        if lease.session:
            self._sessions.setdefault(lease.owner, _Session()).keys += 1
        self._place(key, timer, self._due_us(timer))

    def _forget(self, key: bytes, timer: _Timer, *, keep_slot: bool) -> None:
        del self._timers[key]
        if not keep_slot:
            self._leave_slot(key, timer)
        owner = timer.lease.owner
        if timer.lease.session and (known := self._sessions.get(owner)) is not None:
            known.keys -= 1
            if not known.keys:
                del self._sessions[owner]

    def _due_us(self, timer: _Timer) -> int:
        since_us = timer.since_us
        if timer.lease.session:
            since_us = max(since_us, self._sessions[timer.lease.owner].heard_us)
        return since_us + timer.lease.ttl_us

    # --- slots ----------------------------------------------------------------------------------

    def _place(self, key: bytes, timer: _Timer, due_us: int) -> None:
        """Into the slot in which it is due, unless it is in an earlier one: it is looked at there first."""
        slot = -(-due_us // _SLOT_US)
        if 0 <= timer.slot <= slot:
            return
        self._leave_slot(key, timer)
        keys = self._slots.get(slot)
        if keys is None:
            keys = self._slots[slot] = {}
            heappush(self._order, slot)
        keys[key] = None
        timer.slot = slot

    def _leave_slot(self, key: bytes, timer: _Timer) -> None:
        keys = self._slots.get(timer.slot)
        if keys is not None:
            del keys[key]
            if not keys:
                del self._slots[timer.slot]
                if len(self._order) > 2 * len(self._slots) + _EMPTY_SLOTS_MAX:
                    self._order = list(self._slots)
                    heapify(self._order)
        timer.slot = -1

    def _due(self) -> list[tuple[bytes, int]]:
        due: list[tuple[bytes, int]] = []
        looked, size = 0, 0
        while self._order and self._order[0] * _SLOT_US <= self._counted_us:
            keys = self._slots.get(self._order[0])
            if keys is None:
                heappop(self._order)
                continue
            if looked >= _LOOKED_MAX or size >= _EXPIRED_BYTES_MAX:
                break
            looked += 1
            key, _ = keys.popitem()
            if not keys:
                del self._slots[heappop(self._order)]
            timer = self._timers[key]
            timer.slot = -1
            due_us = self._due_us(timer)
            if due_us <= self._counted_us:
                due_us = self._counted_us + _AGAIN_US
                if self._still_there(key, timer.lease):
                    due.append((key, timer.lease.version))
                    size += len(key)
            self._place(key, timer, due_us)
        return due

    def _still_there(self, key: bytes, lease: KeyLease) -> bool:
        """Whether nothing that is on its way changes the key: else its time begins anew, or it is gone."""
        return self._table.version(key) == lease.version

    # --- what others see ------------------------------------------------------------------------

    @property
    def timers(self) -> int:
        """How many keys' times are counted here."""
        return len(self._timers)

    def check_invariants(self) -> None:
        """Called by tests and the simulator."""
        placed = {key: slot for slot, keys in self._slots.items() for key in keys}
        assert placed == {key: timer.slot for key, timer in self._timers.items()}
        assert self._slots.keys() <= set(self._order)
        assert all(self._slots.values())
        owned = [timer.lease.owner for timer in self._timers.values() if timer.lease.session]
        assert {owner: known.keys for owner, known in self._sessions.items()} == {
            owner: owned.count(owner) for owner in owned
        }
