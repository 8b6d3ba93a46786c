"""Where the committed messages of a partition end, for a reader (C30): certain, or refused, or said to be uncertain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from stentor import limits
from stentor.broker.catalogue import chain_key
from stentor.core import replica_events as r
from stentor.errors import EndUnknown, NotReady, StentorError

if TYPE_CHECKING:
    from stentor.core.records import Key
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEvent
    from stentor.ports import CoordinationStore

_POLL_S = 0.005  # a reader waits for the answer, so it is found soon


class Ended(Protocol):
    """The partition whose end is asked for."""

    loop: asyncio.AbstractEventLoop
    key: Key

    @property
    def ends(self) -> Ends: ...
    @property
    def name(self) -> str: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def committed(self) -> int: ...

    def step(self, event: ReplicaEvent) -> None: ...


class Ends:
    """The readers of one partition that wait to be told where its messages end."""

    def __init__(self, partition: Ended) -> None:
        self._partition = partition
        self._waiting: dict[int, asyncio.Future[r.End]] = {}
        self._tickets = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def ask(self, timeout_s: float) -> tuple[int, r.Certainty]:
        """The end, and how certain it is."""
        self._tickets += 1
        ticket = self._tickets
        waiting = self._waiting[ticket] = self._partition.loop.create_future()
        self._partition.step(r.AskEnd(ticket))
        try:
            async with asyncio.timeout(timeout_s):
                end = await waiting
        except TimeoutError:
            return self._partition.committed, "unknown"
        finally:
            del self._waiting[ticket]
        return end.end, end.certainty

    def found(self, end: r.End) -> None:
        """The replica machine answers."""
        waiting = self._waiting.get(end.ticket)
        if waiting is not None and not waiting.done():
            waiting.set_result(end)


async def find_end(partition: Ended, *, alone: bool, stale: bool, store: CoordinationStore) -> tuple[int, bool]:
    """The end, and whether it is certain; EndUnknown if it is not and the reader did not allow that."""
    if partition.replica.standing.storeless:  # C27: it takes part in no chain, and knows what it knew
        return _uncertain(partition, stale=stale, why="this broker waits for its coordination store")
    if alone and partition.replica.failed:
        return partition.committed, True  # there is no other copy that could know more
    end, certainty = await partition.ends.ask(limits.STALE_READ_S if stale else limits.CONFIRM_S)
    if certainty == "sure" or (certainty == "if_newest" and await _is_newest(store, partition)):
        await until_known(partition, end)
        return end, True
    return _uncertain(partition, stale=stale, why=_why(partition))


async def _is_newest(store: CoordinationStore, partition: Ended) -> bool:
    """Whether the store has no newer record: members that left a chain that is too short may lead again (C8)."""
    epoch = partition.replica.epoch
    try:
        found = await store.get(chain_key(partition.key))
    except StentorError:
        return False
    return found is not None and found.revision <= partition.replica.revision and partition.replica.epoch == epoch


async def until_known(partition: Ended, end: int) -> None:
    """Others may know of commits that this member will hear of in a moment."""
    deadline = partition.loop.time() + limits.CONFIRM_S
    while partition.committed < end:
        if partition.loop.time() > deadline:
            raise NotReady(
                f"{partition.name} is committed up to {end}; this broker has heard up to {partition.committed}.",
                hint="Another member knows more; try again in a moment.",
            )
        await asyncio.sleep(_POLL_S)


def _uncertain(partition: Ended, *, stale: bool, why: str) -> tuple[int, bool]:
    if stale:
        return partition.committed, False
    raise EndUnknown(
        f"Where the committed messages of {partition.name} end is not certain: {why}.",
        hint=f"Wait for more brokers, or allow a stale read: offsets below {partition.committed} are certain.",
        object=partition.name,
        sure_to=partition.committed,
    )


def _why(partition: Ended) -> str:
    record = partition.replica.record
    if record is None:
        return "this broker knows no chain of it"
    if record.is_short:
        return f"it has {len(record.chain)} of {record.factor} replicas and needs {record.min_replicas}"
    chain = ", ".join(member.broker for member in record.chain)
    return f"not every member of its chain ({chain}) confirmed it within {limits.CONFIRM_S:g} s"
