"""Keys of tables that expire: the heads on this broker count their time, and delete what is due (C21).

    beat ──► Expiry.tick ──► due keys ──► a batch of conditional deletes ──► the head's log, chain, copies
    client's Touch ──► Expiry.touched ──► the chain confirms the epoch (C30) ──► answer

A touch is in no log: whoever becomes the head begins all times in full. So a head may promise only what it can say as
the head. It answers once every member of its chain has confirmed, after the touch arrived, that there is no newer
epoch; then whoever replaces it begins its times later than that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.broker.partitions.interfaces import Request
from stentor.broker.partitions.read_end import until_known
from stentor.core import decisions
from stentor.core.acks import ALL
from stentor.core.expiry import Expiry
from stentor.core.table import ABSENT, TableState
from stentor.errors import InvalidArgument, KeyNotFound, NotReady
from stentor.wire import table_rows
from stentor.wire.header import unpack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.environment import Environment
    from stentor.broker.partitions.interfaces import DeferredSync
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.core.replica_events import Answer
    from stentor.errors import StentorError

logger = logging.getLogger(__name__)

_FIND_EVERY: Final = 5  # beats: all topics are looked through for tables; late, times only begin later


class _Timed:
    """A partition of a table, and the times of its keys."""

    def __init__(self, partition: Partition, table: TableState) -> None:
        self.partition = partition
        self.table = table
        self.expiry = Expiry(table)

    def leads(self) -> bool:
        """Whether this member counts; if it leads since a moment ago, it begins."""
        replica = self.partition.replica
        if not replica.position.is_head or not replica.active or replica.wedged:
            self.expiry.rest()
            return False
        self.expiry.lead(replica.epoch)
        return True


class Expiring:
    """The tables on this broker."""

    def __init__(
        self,
        environment: Environment,
        catalogue: Catalogue,
        partitions: Mapping[Key, Partition],
        confirm: Callable[[Partition], Awaitable[object]],
    ) -> None:
        """`confirm`: that this member still leads, or why that is not certain (C30)."""
        self._clock = environment.clock
        self._failures = environment.failures
        self._catalogue = catalogue
        self._partitions = partitions
        self._confirm = confirm
        self._timed: dict[Key, _Timed] = {}
        self._beats = 0

    def _now_us(self) -> int:
        """By a clock that never jumps."""
        return int(self._clock.monotonic() * 1_000_000)

    # --- time -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """With every beat of the broker."""
        if self._beats % _FIND_EVERY == 0:
            self._find()
        self._beats += 1
        for timed in self._timed.values():
            timed.table.take_over()
            if not timed.table.leases:
                timed.expiry.rest()  # times begin when there are some
                continue
            self._failures.run(f"{timed.partition.name}: looking for keys that expire", self._look, timed)

    def _find(self) -> None:
        """Tables that came, and copies that went or were made anew."""
        topics = self._catalogue.topics.values()
        keys = [key for topic in topics if topic.record.settings.kind == "table" for key in topic.keys]
        self._timed = {key: found for key in keys if (found := self._of(key)) is not None}

    def _of(self, key: Key) -> _Timed | None:
        partition = self._partitions.get(key)
        known = self._timed.get(key)
        if partition is None or (known is not None and known.partition is partition):
            return None if partition is None else known
        table = table_of(partition)
        return None if table is None else _Timed(partition, table)

    def _look(self, timed: _Timed) -> None:
        if not timed.leads():
            return
        replica = timed.partition.replica
        takes = decisions.may_publish(replica, ALL) is None
        due = timed.expiry.tick(self._now_us(), counts=takes)
        short = [each for each in due if len(each[0]) <= limits.MESSAGE_KEY_BYTES_MAX]
        if short:
            self._delete(timed.partition, short)
        if len(short) < len(due):
            self._delete_long(timed.partition, [each for each in due if len(each[0]) > limits.MESSAGE_KEY_BYTES_MAX])

    def _delete_long(self, partition: Partition, due: list[tuple[bytes, int]]) -> None:
        """Earlier versions took keys of any length; to delete one may take more than a batch holds."""
        for each in due:
            self._failures.run(
                f"{partition.name}: deleting a key of {len(each[0])} bytes", self._delete, partition, [each]
            )

    def _delete(self, partition: Partition, due: list[tuple[bytes, int]]) -> None:
        topic_id, index = partition.key
        batch = table_rows.expired(due, self._clock.now_us(), topic_id=topic_id, partition=index)
        partition.publish(memoryview(batch), unpack(batch), Request(_Deletes(), 0), ALL)
        logger.debug("%s: the time of %d keys is over", partition.name, len(due))

    # --- touching -------------------------------------------------------------------------------

    async def touch(self, partition: Partition, keys: list[bytes], session: bytes, holder: bytes | None = None) -> int:
        """Keys, and those of a session, begin anew; up to where the log was looked at. NotHead if another leads.
        `holder` is who asks for it.
        """
        replica = partition.replica
        if (refusal := decisions.may_publish(replica, ALL)) is not None:
            raise refusal
        timed = self._of(partition.key)
        if timed is None or timed.partition is not partition:
            raise InvalidArgument(f"Topic {partition.topic} is no table; it has no keys that expire.")
        self._timed[partition.key] = timed
        if not timed.leads():
            raise _not_now(partition)
        epoch, end = replica.epoch, replica.end
        wrong = next(filter(None, (_untouchable(timed, key) for key in keys)), None)
        if wrong is None:
            timed.expiry.touched(keys, session, self._now_us(), holder)
        await self._certain(partition)
        await until_known(partition, end)  # what was looked at is so (C20)
        if replica.epoch != epoch or replica.wedged or not replica.active:
            raise _not_now(partition)
        if wrong is not None:
            raise wrong
        return end

    async def _certain(self, partition: Partition) -> None:
        """C30: that it was the head when the touch came. Then whoever replaces it begins all times after that."""
        await self._confirm(partition)

    def check_invariants(self) -> None:
        """Called by the simulator."""
        for timed in self._timed.values():
            timed.expiry.check_invariants()


class _Deletes:
    """Publishes deletes, and does not care how they end: what is still there is looked at again."""

    def published(self, correlation: int, answer: Answer) -> None: ...
    def fail(self, correlation: int, error: StentorError, operation: str, what: str = "") -> None: ...
    def flush(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def defer_sync(self, sync: DeferredSync) -> bool:  # noqa: ARG002
        return False


def table_of(partition: Partition) -> TableState | None:
    """The table that is derived from a partition's log, if it is one."""
    return next((state for state in partition.replica.states if isinstance(state, TableState)), None)


def _untouchable(timed: _Timed, key: bytes) -> StentorError | None:
    """Why a key cannot be touched, if so."""
    table, topic = timed.table, timed.partition.topic
    lease, name = table.lease(key), key.decode(errors="replace")
    if lease is not None and not lease.session:
        return None
    if lease is not None:
        return InvalidArgument(
            f"{name} of table {topic} is ephemeral: only its owner keeps it.",
            hint="The owner's table does that by itself.",
            object=topic,
        )
    if table.version(key) == ABSENT:
        return KeyNotFound(f"Table {topic} has no key {name}; it may have expired.", hint="Put it again.", object=topic)
    return InvalidArgument(
        f"{name} of table {topic} has no ttl; there is nothing to touch.", hint="Put it with ttl.", object=topic
    )


def _not_now(partition: Partition) -> NotReady:
    return NotReady(
        f"The chain of {partition.name} changed; whether the keys were touched is not certain.",
        hint="Touch them again.",
        object=partition.name,
    )
