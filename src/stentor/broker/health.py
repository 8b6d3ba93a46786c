"""How this broker is: the one place that knows, for everybody who tells people (Health).

The disk (`disk_health`) and the coordination store (`store_contact`) are watched elsewhere, and say in the log when
they fail and when they are back. Logs and chains are counted here, a few partitions at a time, and said here.

A broker is *not ready* when it can take nothing and nobody takes it instead: a single broker whose disk takes no writes
or whose every log has failed. In a cluster other brokers lead in its place and clients find them by themselves, so it
stays ready: it still serves readers, and answers where things are.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.wire.statistics import Health, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.background import Background
    from stentor.broker.cluster.cluster import Cluster
    from stentor.broker.environment import BrokerIdentity
    from stentor.broker.partitions.partition import Partition
    from stentor.core.memory_budget import MemoryBudget
    from stentor.core.records import Key
    from stentor.core.standing import Standing

logger = logging.getLogger(__name__)

_MEMORY_WARNED: Final = 0.9  # of the budget: early enough to do something
_NAMES_TOLD_MAX: Final = 5  # a sentence that names more is not read


class HealthWatch:
    """Looks at a broker now and then, and says what has changed."""

    def __init__(
        self,
        identity: BrokerIdentity,
        standing: Standing,
        *,
        partitions: Mapping[Key, Partition],
        unopened: Mapping[Key, str],
        cluster: Cluster,
        background: Background,
        memory: MemoryBudget,
    ) -> None:
        self._identity = identity
        self._standing = standing
        self._partitions = partitions
        self._unopened = unopened
        self._cluster = cluster
        self._background = background
        self._memory = memory
        self._failed: list[str] = []
        self._short: list[str] = []
        self._refusing: list[str] = []
        self._overrun: list[str] = []
        self._passed_over: list[str] = []
        self._looking = False

    def look_soon(self) -> None:
        """Called by a timer."""
        if not self._looking:
            self._looking = True
            self._background.spawn(self._look())

    async def _look(self) -> None:
        try:
            failed, short, refusing, overrun, passed_over = [], [], [], [], []
            for number, partition in enumerate(list(self._partitions.values()), 1):
                if partition.replica.failed:
                    failed.append(partition.name)
                if (there := _members(partition)) < partition.settings.replicas_wanted:
                    short.append(partition.name)
                    if there < partition.settings.replicas_needed:
                        refusing.append(partition.name)
                if partition.waiting.overrun and partition.replica.position.is_head:
                    overrun.append(partition.name)
                if partition.replica.states.passed_over:
                    passed_over.append(partition.name)
                if number % limits.STATISTICS_SLICE == 0:
                    await asyncio.sleep(0)
            self._tell(failed, short, refusing, overrun, passed_over)
        finally:
            self._looking = False

    def _tell(self, *found: list[str]) -> None:
        """One line when it begins and one when it is over."""
        before = self._failed, self._short, self._refusing, self._overrun, self._passed_over
        self._failed, self._short, self._refusing, self._overrun, self._passed_over = found
        said = (
            (logging.ERROR, self._logs(), "no log is failed any more"),
            (logging.WARNING, self._chains(), "every chain has all its replicas again"),
            (logging.ERROR, self._refused(), "every chain has enough replicas to take messages again"),
            (logging.ERROR, self._deleted(), "no cursor that retention waits for is behind what was deleted any more"),
            (logging.ERROR, self._unreadable(), "no log holds batches any more that cannot be read"),
        )
        for was, (level, problems, over) in zip(before, said, strict=True):
            if bool(was) != bool(problems):
                logger.log(level if problems else logging.INFO, "%s", problems[0].message if problems else over)

    # --- what is wrong --------------------------------------------------------------------------

    def now(self) -> Health:
        """The disk and the store as they are now, logs and chains as they were last counted."""
        disk, store = self._disk(), self._store()
        found = [
            *disk,
            *self._logs(),
            *self._copies(),
            *self._refused(),
            *self._deleted(),
            *self._unreadable(),
            *self._memory_left(),
            *self._chains(),
            *store,
            *self._cluster.store_keeper.problems(),
        ]
        return Health(
            disk_writable=not disk,
            store_reachable=not store,
            log_failed=len(self._failed),
            chain_short=len(self._short),
            chain_refusing=len(self._refusing),
            retention_overrun=len(self._overrun),
            unready=self._unready(disk) if self._identity.alone else "",
            problems=sorted(found, key=lambda problem: problem.severity),
        )

    def _unready(self, disk: list[Problem]) -> str:
        if disk:
            return disk[0].message
        if self._failed and len(self._failed) >= len(self._partitions):
            return "Every log of this broker has failed."
        return ""

    def _disk(self) -> list[Problem]:
        why = self._cluster.disk.why_not()
        hint = "It takes no messages; reads go on. Free some space or check the disk; writes go on by themselves."
        return [Problem("error", "disk", why, hint)] if why else []

    def _store(self) -> list[Problem]:
        if self._cluster.store_answers and not self._standing.storeless:
            return []
        message = "The coordination store does not answer."
        hint = "Messages flow on, but no dead broker is replaced and no topic made. Check etcd and the way to it."
        return [Problem("warning", "coordination store", message, hint)]

    def _memory_left(self) -> list[Problem]:
        memory = self._memory
        if memory.used < _MEMORY_WARNED * memory.limit:
            return []
        share = f"{memory.used:,} of {memory.limit:,} bytes"
        if memory.is_used_up:
            message = f"The memory for memory topics and jobs is used up: {share}."
            hint = (
                "Messages that need more are refused. Let consumers finish jobs, delete memory topics or shorten their"
            )
            return [Problem("error", "memory", message, f"{hint} retention, or raise memory_budget_bytes.")]
        message = f"The memory for memory topics and jobs is nearly used up: {share}."
        return [Problem("warning", "memory", message, "When it is, messages that need more are refused.")]

    def _logs(self) -> list[Problem]:
        count = len(self._failed)
        message = f"{count} {'log has' if count == 1 else 'logs have'} failed: {_named(self._failed)}."
        hint = "They take no writes. Check the disk, then restart the broker."
        return [Problem("error", "logs", message, hint)] if count else []

    def _copies(self) -> list[Problem]:
        message = f"Copies on this disk that cannot be opened: {_named(sorted(self._unopened.values()))}."
        hint = "The broker's log says why. Nothing of them was changed; see stentor doctor with the data directory."
        return [Problem("error", "logs", message, hint)] if self._unopened else []

    def _unreadable(self) -> list[Problem]:
        message = f"Batches were passed over that cannot be read: {_named(self._passed_over)}."
        hint = "Every replica passes over the same ones. Please report it: a broker should not have taken them."
        return [Problem("error", "logs", message, hint)] if self._passed_over else []

    def _chains(self) -> list[Problem]:
        message = f"Partitions with fewer replicas than they should have: {_named(self._short)}."
        hint = "Start the brokers that are missing, or wait until the new copies are filled."
        return [Problem("warning", "chains", message, hint)] if self._short else []

    def _refused(self) -> list[Problem]:
        message = f"Partitions with too few replicas to take messages: {_named(self._refusing)}."
        hint = "Start the brokers that are missing."
        return [Problem("error", "chains", message, hint)] if self._refusing else []

    def _deleted(self) -> list[Problem]:
        message = f"Retention deleted messages that a cursor had not passed: {_named(self._overrun)}."
        hint = "See that whoever moves the cursor runs and keeps up, or raise retention_wait_bytes."
        return [Problem("error", "retention", message, hint)] if self._overrun else []


def _members(partition: Partition) -> int:
    """How many members the chain has; a copy that is outside of it cannot say, and is taken for well."""
    replica = partition.replica
    if replica.record is None or replica.position.index is None:
        return partition.settings.replicas_wanted
    return len(replica.position.brokers)


def _named(partitions: list[str]) -> str:
    more = len(partitions) - _NAMES_TOLD_MAX
    return ", ".join(partitions[:_NAMES_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
