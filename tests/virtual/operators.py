"""What people do about a partition that rightly waits for them (C13), as the documentation says; and when it does.

A chain is put together again by itself while one of its copies is whole, or when all of them were cut by a loss of
power and are there. Otherwise somebody has to say that a copy leads which may lack something. The disks of a run keep
their word, so that nothing committed is given up by that: this is required, and no message is excused.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stentor.errors import StentorError

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster

    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key, Member

COPIES_MIN = 2  # one copy that was cut, alone, is no proof of anything
WAIT_S = 30.0


class Operators:
    """Look after a cluster that is well, and whose chains have had time to come together."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._checker = cluster, cluster.checker
        self.done: list[str] = []

    def awaited(self, key: Key) -> bool:
        """Whether a partition waits for them: all that its newest record knows is torn or has failed, by our faults."""
        record = self._checker.record(key)
        members = (*record.chain, *record.eligible)
        if not all(self._is_cut(key, member) for member in members):
            return False
        copies = [copy for member in members if (copy := self._copy(key, member)) is not None]
        sound = [copy for copy in copies if not copy.replica.failed]
        together = COPIES_MIN <= len(members) == len(sound)
        return not (together and max(copy.log.end for copy in sound) >= record.committed)

    def must_give_up(self, key: Key) -> bool:
        """Whether all copies are cut below what is committed: a sync failed while they were opened, and the journal
        knows an older end. What is behind it was on disk, but nobody can tell that any more.
        """
        record = self._checker.record(key)
        for member in (*record.chain, *record.eligible):
            copy, place = self._copy(key, member), (key, member.broker, member.log_id)
            if place not in self._checker.failed_in_recovery:
                return False
            if copy is not None and copy.log.end >= self._checker.committed[key]:
                return False
        return True

    def _copy(self, key: Key, member: Member) -> Partition | None:
        found: Partition | None = self._cluster.partitions(member.broker).get(key)
        return found if found is not None and found.replica.me.same_log(member) else None

    def _is_cut(self, key: Key, member: Member) -> bool:
        """Whether a copy may not lead alone, and a fault of this run is the reason."""
        copy, place = self._copy(key, member), (key, member.broker, member.log_id)
        failed = place in self._checker.failed_syncs
        if copy is None or copy.replica.failed:
            return failed  # one that failed was perhaps put aside for a new one
        return copy.replica.damaged and (failed or place in self._checker.torn)

    def help(self, key: Key) -> None:
        """Mend disks that failed, and start their brokers `--unclean`; then, if that is not enough, let a copy lead."""
        record = self._checker.record(key)
        for broker in dict.fromkeys(member.broker for member in (*record.chain, *record.eligible)):
            partition = self._cluster.partitions(broker).get(key)
            if partition is not None and partition.replica.failed:
                self.done.append(f"start {broker} --unclean")
                self._cluster.kill(broker, power=False)
                self._cluster.start(broker, unclean=True)
        self._cluster.go(WAIT_S, lambda: self._cluster.ready() and not self.awaited(key))
        if self.awaited(key):
            self.recover(key)

    def recover(self, key: Key, broker: str | None = None) -> None:
        """`stentor topic recover`, of one partition. Publishers are waiting, and go on as soon as a copy leads."""
        committed = self._checker.committed[key]
        self._checker.recovering.add(key)
        asking = self._cluster.process("operator").run(self._insist(self._checker.topics[key[0]], key[1], broker))
        self._cluster.go(WAIT_S, asking.done)
        self._checker.recovering.discard(key)
        self._checker.require(asking.done(), "an operator cannot let a copy lead", key, self._checker.record(key))
        if asking.done():
            end = asking.result().end
            self.done.append(f"recover {key[1]} at {end}")
            self._checker.require(end >= committed, "an operator gives up what is committed", key, end, committed)

    async def _insist(self, topic: str, index: int, broker: str | None) -> Any:
        async with await self._cluster.client("operator") as client:
            while True:
                with suppress(StentorError):
                    return await client.recover_partition(topic, index, broker, timeout=5.0)
                await asyncio.sleep(0.5)
