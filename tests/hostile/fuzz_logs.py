"""Logs of generated records, of every kind, through all that brokers do with a log (C33).

    python -m tests.hostile.fuzz_logs --logs 100 --records 1000 --seed 1

Three brokers in this process, with a real etcd. Each log is a partition with two copies. Records go to its head behind
everything that judges what clients send; then it is compacted, both brokers are started again, and one of them loses
its disk and gets its copies anew. All along: every broker starts, no copy stops, and copies are equal: their states,
and their rows per range of offsets under the same horizon. (Below a horizon, logs may differ as files.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from tests.hostile.records import Records
from tests.virtual.copies import versions

from stentor.broker.partitions import compaction, compactions, copies
from stentor.broker.partitions.interfaces import Request
from stentor.broker.partitions.states import states_of
from stentor.core.acks import ALL
from stentor.core.cursors import Cursors
from stentor.core.derived import States
from stentor.core.groups import Groups
from stentor.core.horizon import HorizonState
from stentor.core.transactions import Transactions
from stentor.errors import CorruptData, InvalidArgument, NotReady, StentorError
from stentor.testing.etcd import LocalEtcd
from stentor.testing.local import LocalBroker
from stentor.wire import group_records, sparse, transaction_records
from stentor.wire.header import CONDITIONAL, HEADER_BYTES, extents, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stentor import Client
    from stentor.broker.partitions.partition import Partition

WAIT_S = 60.0
UNACKNOWLEDGED_MAX = 50

KINDS: dict[str, dict[str, Any]] = {
    "messages": {},
    "compacted": {"cleanup": "compact"},
    "table": {"kind": "table"},
    "queue": {"kind": "queue"},
    "ordered queue": {"kind": "queue", "ordered_by": "key"},
    "internal": {},
}


class Finding(AssertionError):  # noqa: N818 - a finding is what it is
    """Something that must not be."""


def topic_of(kind: str) -> str:
    return kind.replace(" ", "-")


def internal_states(topic: Any) -> States:
    """Topics of the kind 'internal' have the states of the brokers' own topic."""
    if topic.record.name != topic_of("internal"):
        return states_of(topic)
    return States(
        Cursors(transaction_records.read_moves), Groups(group_records.read), Transactions(transaction_records.read)
    )


# --- the cluster ----------------------------------------------------------------------------------


class FuzzedCluster:
    """Three brokers in threads."""

    def __init__(self, directory: Path, store: str) -> None:
        self._directory = directory
        self.brokers: dict[str, LocalBroker] = {}
        for name in ("b0", "b1", "b2"):
            self.brokers[name] = LocalBroker(directory / name, coordination=store, broker_id=name)
            self.brokers[name].start()

    def stop(self) -> None:
        for local in self.brokers.values():
            local.stop()

    def restart(self, name: str, *, empty: bool = False) -> None:
        local = self.brokers[name]
        local.stop()
        if empty:
            shutil.rmtree(self._directory / name)
        local.start()

    def in_loop(self, local: LocalBroker, work: Callable[[], Any]) -> Any:
        """Run this in a broker's loop; what comes out."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), local.inner.loop).result(WAIT_S)

    def copies(self, topic_id: int, index: int) -> dict[str, Partition]:
        """Those that are members of the chain."""
        found = {name: local.inner.partitions.get((topic_id, index)) for name, local in self.brokers.items()}
        return {
            name: partition
            for name, partition in found.items()
            if partition is not None and partition.replica.position.index is not None
        }

    def head(self, topic_id: int, index: int) -> tuple[LocalBroker, Partition]:
        for name, partition in self.copies(topic_id, index).items():
            if partition.replica.position.is_head and partition.replica.active:
                return self.brokers[name], partition
        raise NotReady("There is no head yet.")


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    deadline, pause = time.monotonic() + WAIT_S, threading.Event()
    while time.monotonic() < deadline:
        try:
            if (found := holds()) is not None and found is not False:
                return found
        except (NotReady, StentorError, RuntimeError):  # brokers change what is looked at
            pass
        pause.wait(0.02)
    raise Finding(f"{what}: not within {WAIT_S:g} s")


class _Nobody:
    """Publishes, and wants to know nothing."""

    def published(self, *_: Any) -> None: ...
    def fail(self, *_: Any) -> None: ...
    def flush(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def defer_sync(self, _: Any) -> bool:
        return False


# --- one log --------------------------------------------------------------------------------------


def fill(cluster: FuzzedCluster, records: Records, topic_id: int, index: int, count: int) -> None:
    """Let a head take what it would refuse: as if it had been taken before heads looked."""
    done = 0
    while done < count:
        local, partition = wait_until(lambda: cluster.head(topic_id, index), "a head")
        slice_end = min(count, done + UNACKNOWLEDGED_MAX)

        def publish(partition: Partition = partition, first: int = done, end: int = slice_end) -> None:
            for _ in range(first, end):
                data = records.next(partition.replica.end, partition.committed)
                try:
                    partition.publish(memoryview(data), unpack(data), Request(_Nobody(), 0), ALL)
                except (CorruptData, InvalidArgument):  # a head cannot judge its conditions: then without them
                    header = unpack(data)
                    plain = msgspec.structs.replace(header, attributes=header.attributes & ~CONDITIONAL)
                    data[:HEADER_BYTES] = pack(plain)
                    partition.publish(memoryview(data), plain, Request(_Nobody(), 0), ALL)

        cluster.in_loop(local, publish)
        done = slice_end
        if partition.replica.failed:
            raise Finding(f"{partition.name}: the copy stopped: {partition.replica.failed}")
        wait_until(lambda p=partition: p.committed >= p.replica.end, f"{partition.name} commits")


def rows_of(partition: Partition) -> Iterator[tuple[int, Any]]:
    """Every row by its offset; of a batch that nobody can read, its bytes by the first one."""
    log = partition.log
    offset = log.start
    while offset < partition.committed:
        found = log.read(offset, partition.committed, 1 << 20)
        for position, length, base, _ in extents(found.data):
            header, body = unpack(found.data, position), found.data[position + HEADER_BYTES : position + length]
            try:
                rows = sparse.rows_of(header, body)
                yield from zip(rows.offsets, zip(rows.keys, rows.values, rows.headers, strict=True), strict=True)
            except CorruptData:
                yield base, body
        offset = found.next_offset


def horizon_of(partition: Partition) -> int:
    states = partition.replica.states
    return next((state.committed.offset for state in states if isinstance(state, HorizonState)), 0)


def latest(partition: Partition, below: int) -> tuple[dict[Any, Any], list[Any]]:
    """What the log says of each key below a horizon, and every row from there on."""
    keys: dict[Any, Any] = {}
    others = []
    for offset, row in rows_of(partition):
        if offset >= below or isinstance(row, bytes) or row[0] is None:
            others.append((offset, row))
            continue
        keys.pop(row[0], None)
        if row[1] is not None:
            keys[row[0]] = offset, row[1:]
    return keys, others


def compare(cluster: FuzzedCluster, topic_id: int, index: int, replicas: int) -> None:
    """All copies have the same states and rows."""
    found = wait_until(lambda: equal_ends(cluster, topic_id, index, replicas), f"whole chain of {topic_id}/{index}")
    states = {name: [(s.name, s.snapshot(), versions(s)) for s in p.replica.states] for name, p in found.items()}
    first, *others = states
    for other in others:
        for mine, theirs in zip(states[first], states[other], strict=True):
            if mine != theirs:
                raise Finding(f"{found[first].name}: the state {mine[0]} differs on {first} and {other}")
    below = max(map(horizon_of, found.values()))
    rows = {name: latest(partition, below) for name, partition in found.items()}
    for other in others:
        if rows[first] != rows[other]:
            raise Finding(f"{found[first].name}: the rows differ on {first} and {other}")


def equal_ends(cluster: FuzzedCluster, topic_id: int, index: int, replicas: int) -> dict[str, Partition] | None:
    found = cluster.copies(topic_id, index)
    ends = {(p.replica.end, p.committed, p.replica.epoch) for p in found.values()}
    whole = len(found) == replicas and len(ends) == 1 and all(p.committed == p.replica.end for p in found.values())
    return found if whole else None


# --- all of them ----------------------------------------------------------------------------------


class Campaign:
    """Logs of every kind, filled, compacted, opened again, joined."""

    def __init__(
        self, cluster: FuzzedCluster, client: Client, kinds: Sequence[str], *, logs: int, records: int, seed: int
    ) -> None:
        self.cluster, self.client, self.kinds = cluster, client, kinds
        self.logs, self.records, self.seed = logs, records, seed
        self.topics: dict[str, int] = {}
        self.seconds: Counter[str] = Counter()

    def run(self) -> dict[str, Any]:
        self._timed("create", self._create)
        self._timed("fill", self._fill)
        self._timed("compare", self._compare)
        self._timed("compact", self._compact)
        for name in self.cluster.brokers:
            self._timed("restart", lambda name=name: self._restart(name))
        self._timed("compare", self._compare)
        self._timed("join", lambda: self._restart("b2", empty=True))
        self._timed("compare", self._compare)
        passed_over = sum(p.replica.states.passed_over for p in self._partitions())
        return {"logs": len(self.topics) * self.logs, "passed_over": passed_over, "seconds": dict(self.seconds)}

    def _timed(self, what: str, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        self.seconds[what] += round(time.monotonic() - began, 1)
        print(f"{what}: {self.seconds[what]:g} s", file=sys.stderr, flush=True)

    def _partitions(self) -> Iterator[Partition]:
        for local in self.cluster.brokers.values():
            yield from (p for key, p in local.inner.partitions.items() if key[0] in self.topics.values())

    def _create(self) -> None:
        for kind in self.kinds:
            topic = topic_of(kind)
            self.client.create_topic(topic, partitions=self.logs, replicas=3, **KINDS[kind])
            self.topics[kind] = self.client.describe_topic(topic).id

    def _fill(self) -> None:
        for kind, topic_id in self.topics.items():
            for index in range(self.logs):
                chance = random.Random(f"{self.seed} {kind} {index}")
                fill(self.cluster, Records(chance, kind, topic_id, index), topic_id, index, self.records)

    def _compare(self) -> None:
        for topic_id in self.topics.values():
            for index in range(self.logs):
                compare(self.cluster, topic_id, index, replicas=3)
        unopened = [
            name for each in self.cluster.brokers.values() for name in each.inner.parts.copies.unopened.values()
        ]
        failed = [(p.name, p.replica.failed) for p in self._partitions() if p.replica.failed]
        if unopened or failed:
            raise Finding(f"copies that are not opened: {unopened}; that stopped: {failed}")

    def _compact(self) -> None:
        compacted = [topic_id for kind, topic_id in self.topics.items() if kind in ("compacted", "table")]
        filled = {p.key: p.replica.end for p in self._partitions() if p.key[0] in compacted}

        def is_done() -> bool:
            here = [p for p in self._partitions() if p.key in filled]
            return all(p.compaction.statistics().compacted_to >= filled[p.key] for p in here)

        with patch.object(compaction.PartitionCompaction, "is_worth_it", lambda *_: True):
            wait_until(is_done, "every log is compacted")

    def _restart(self, name: str, *, empty: bool = False) -> None:
        self.cluster.restart(name, empty=empty)
        wait_until(lambda: self.cluster.brokers[name].inner.ready, f"{name} starts")


def run(logs: int, records: int, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> dict[str, Any]:
    """Run one campaign; return what it did. Finding if something must not be."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(copies, "states_of", internal_states))
        stack.enter_context(patch.object(compactions, "COMPACTION_CHECK_S", 0.2))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stentor-fuzz-")))
        etcd = stack.enter_context(LocalEtcd())
        cluster = FuzzedCluster(directory, f"{etcd.url}/fuzz")
        stack.callback(cluster.stop)
        client = stack.enter_context(cluster.brokers["b0"].client(timeout=60))
        all_heard = ["heard"] * len(cluster.brokers)
        wait_until(lambda: [each.view for each in client.brokers()] == all_heard, "all are heard")
        return Campaign(cluster, client, kinds, logs=logs, records=records, seed=seed).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=100, help="of each kind")
    parser.add_argument("--records", type=int, default=1_000, help="in each log")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="these kinds alone")
    options = parser.parse_args()
    try:
        print(json.dumps(run(options.logs, options.records, options.seed, options.kind or list(KINDS))))
    except Finding as error:
        print(
            f"{error}\nagain: python -m tests.hostile.fuzz_logs --logs {options.logs} --records {options.records}"
            f" --seed {options.seed}"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
