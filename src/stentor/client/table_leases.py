"""Keys of a table that go by themselves: how long they stay, and the session that keeps a copy's own ones alive.

A copy of a table has a session. Ephemeral keys that were put through it carry its id, and are its own for as long as
the newest row of their key does: that is seen in the copy itself. Three times in each grace the session says to the
head of each partition with such keys that it is alive.

    sent ──► the head begins their times anew ──► answered, with the end of the log that it looked at
      │                                             └─► once the copy is there: all own keys that are left
      └──────────── stay for a grace from here, by the owner's clock ────────────►
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stentor.client.certain import Certainty, clock_of
from stentor.core.holders import NOBODY, holder_of, may_use
from stentor.core.table import GRACE_S, GRACE_S_MIN, SESSION_BYTES, TTL_S_MAX
from stentor.errors import ConditionFailed, InvalidArgument, LimitExceeded, StentorError
from stentor.wire import messages, table_rows

if TYPE_CHECKING:
    from stentor.client.deadline import Deadline
    from stentor.client.table_copy import TableCopy, TableEntry
    from stentor.wire.rows import Headers

logger = logging.getLogger(__name__)

_TIMES_A_GRACE: Final = 3  # the session is heard: two may be lost
_AGAIN_S: Final = 0.1  # after a refusal
_CLOSED_AT_ONCE: Final = 1_000  # keys in one change
_CLOSING_S: Final = 5.0  # for the deletes of a session that ends; what is left expires


class NewLease(NamedTuple):
    """How long the keys of a change stay."""

    seconds: float
    session: bytes = b""
    holder: bytes = NOBODY  # the hash of this client's secret, if it has a session

    def headers(self) -> Headers:
        return table_rows.lease(round(self.seconds * 1_000_000), self.session, self.holder)


def checked_seconds(value: Any, what: str, least: float = 0.0) -> float:
    """A number of seconds that a key may have, or why it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidArgument(f"{what}={value!r} is no number of seconds.")
    if value <= 0 or value < least or value > TTL_S_MAX:
        bounds = f"at least {least:g}" if least else "above 0"
        raise InvalidArgument(f"{what}={value!r} must be {bounds} and at most {TTL_S_MAX:,} seconds.")
    return max(round(float(value), 6), 0.000_001)


def lease_of(
    copy: TableCopy, ttl: float | None, ephemeral: bool = False, grace: float | None = None
) -> NewLease | None:
    """What a call says of how long a key stays; None: for ever."""
    if not ephemeral:
        if grace is not None:
            raise InvalidArgument("Only ephemeral keys have a grace.", hint="Say ephemeral=True, or use ttl.")
        return None if ttl is None else NewLease(checked_seconds(ttl, "ttl"))
    if ttl is not None:
        raise InvalidArgument("An ephemeral key has a grace and no ttl.", hint="Say ephemeral=True, grace=seconds.")
    seconds = GRACE_S if grace is None else checked_seconds(grace, "grace", GRACE_S_MIN)
    return NewLease(seconds, copy.leases.session, copy.leases.holder)


class OwnKey(NamedTuple):
    """An ephemeral key of this session."""

    entry: TableEntry
    partition: int


class Leases:
    """The session of one copy."""

    def __init__(self, copy: TableCopy) -> None:
        self._session = b""  # none yet: most copies need none
        self.holder = holder_of(copy.core.links.holder_secret)  # keys of this session that name another are not its own
        self.own: dict[str, OwnKey] = {}  # as the copy has them
        self._copy = copy
        # By a clock that counts suspension and that any thread may ask: a process that was stopped must know at once.
        self.clock = clock_of(copy.core.loop)
        self._put: dict[str, tuple[int, float]] = {}  # by key: its version, and when it was asked for
        self._heard: dict[int, tuple[int, float]] = {}  # by partition: up to where the head looked, and when asked
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._shortest: dict[int, float] = {}  # by partition: the grace that it is kept alive for
        self._hurry = asyncio.Event()  # a key came with a shorter one

    @property
    def session(self) -> bytes:
        """Its id, which nobody else draws."""
        with self._copy.lock:  # several threads may put their first key
            self._session = self._session or secrets.token_bytes(SESSION_BYTES)
        return self._session

    # --- what the copy sees ---------------------------------------------------------------------

    def see(self, key: str, entry: TableEntry | None, partition: int, *, expired: bool, holder: bytes = NOBODY) -> None:
        """A row of the copy sets or deletes a key; told of all rows that have terms, and of all for own keys."""
        is_own = entry is not None and entry.session and entry.session == self._session
        if entry is not None and is_own and may_use(holder, self.holder):
            self.own[key] = OwnKey(entry, partition)
            self._copy.core.leavers.add(self.end)
            if (entry.ttl or 0.0) < self._shortest.get(partition, math.inf):
                self._hurry.set()
            if partition not in self._keeping:
                self._keeping[partition] = self._copy.core.loop.create_task(self._keep(partition))
        elif self.own.pop(key, None) is not None:
            self._put.pop(key, None)
            if expired:
                logger.warning("key %s of table %s expired: its brokers did not hear this client", key, self._copy.name)

    # --- keeping --------------------------------------------------------------------------------

    def _grace(self, partition: int) -> float:
        """The shortest of a partition's keys; 0 if there are none."""
        return min((kept.entry.ttl or 0.0 for kept in self.own.values() if kept.partition == partition), default=0.0)

    async def _keep(self, partition: int) -> None:
        """Say that this client is alive, until it has no more keys there."""
        loop = self._copy.core.loop
        asked = loop.time()
        while grace := self._grace(partition):
            self._shortest[partition] = grace
            left = asked + grace / _TIMES_A_GRACE - loop.time()
            if left > 0:
                self._hurry.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._hurry.wait()
                continue  # the shortest grace may be another now
            asked = loop.time()
            try:
                await self.touch(partition, [], self.session, grace)
            except StentorError as error:
                logger.info("table %s: could not keep keys alive yet: %s", self._copy.name, error)
                if self._copy.failure is not None:
                    break
                await asyncio.sleep(_AGAIN_S)
                asked = -math.inf
        self._keeping.pop(partition, None)
        self._shortest.pop(partition, None)

    async def touch(self, partition: int, keys: list[bytes], session: bytes, timeout: float | Deadline) -> None:
        """Ask the head to begin times anew; returns when it has, and the copy is as far as the head was."""
        copy = self._copy
        deadline, began = copy.core.deadline(timeout), self.clock()
        request = messages.Touch(topic_id=copy.topic_id, partition=partition, keys=keys, session=session)
        told = await copy.core.call_partition(request, copy.name, deadline, head_first=True)
        wanted = list(copy.applied)
        wanted[partition] = told.end
        await copy.wait(tuple(wanted), deadline)
        if session:
            self._heard[partition] = told.end, began

    # --- what owners ask ------------------------------------------------------------------------

    def put_at(self, key: str, version: int, asked: float) -> None:
        """An ephemeral key was put through this copy."""
        self._put[key] = version, asked

    def holds(self, key: str) -> float:
        """For how many seconds an ephemeral key is surely there, by this client's clock; 0.0 if it may be gone.

        A margin is left for the way from the question to what is begun.
        """
        kept = self.own.get(key)
        if kept is None or self._copy.failure is not None:
            return 0.0
        entry = kept.entry
        version, since = self._put.get(key, (-1, 0.0))
        since = since if version == entry.version else -math.inf
        end, asked = self._heard.get(kept.partition, (0, 0.0))
        if entry.version < end:
            since = max(since, asked)
        certainty = Certainty(self.clock)
        certainty.renewed(since, entry.ttl or 0.0)
        return max(0.0, certainty.sure_until - self.clock())

    async def confirm(self, key: str, deadline: Deadline) -> float:
        """For how many seconds it is surely there, asked at the head of its partition unless that is certain."""
        left = self.holds(key)
        kept = self.own.get(key)
        if left or kept is None or self._copy.failure is not None:
            return left
        await self.touch(kept.partition, [], self.session, deadline)
        return self.holds(key)

    # --- the end --------------------------------------------------------------------------------

    async def end(self) -> None:
        """The session is over: its keys go now, if the brokers can be told; else they expire."""
        self._copy.core.leavers.discard(self.end)
        for task in self._keeping.values():
            task.cancel()
        self._keeping.clear()
        copy = self._copy
        if not self.own or copy.failure is not None or copy.core.link is None:
            return
        deadline = copy.core.deadline(_CLOSING_S)
        with suppress(StentorError):
            for partition in sorted({kept.partition for kept in self.own.values()}):
                own = [(key, kept.entry.version) for key, kept in self.own.items() if kept.partition == partition]
                for start in range(0, len(own), _CLOSED_AT_ONCE):
                    await self._delete(dict(own[start : start + _CLOSED_AT_ONCE]), deadline)
        self.own.clear()

    async def _delete(self, own: dict[str, int], deadline: Deadline) -> None:
        """Those that are still at their versions."""
        try:
            await self._copy.change(dict.fromkeys(own), own, deadline)
        except (ConditionFailed, LimitExceeded):  # somebody else changed one of them: one by one
            for key, version in own.items() if len(own) > 1 else ():
                await self._delete({key: version}, deadline)
