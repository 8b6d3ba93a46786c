"""A steady load on a cluster under test: producers and live consumers in threads, recorded in a History.

with Load(cluster, "orders") as load:
    cluster.kill(cluster.head("orders"))
    load.wait_for_acks()
# leaving the block: everyone finishes, fresh consumers read everything, the checker judges
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec
from tests.cluster.copies import differences
from tests.cluster.history import ACKNOWLEDGED, FAILED, UNKNOWN, History, Poll

from stentor.broker.catalogue import chain_key
from stentor.client.sync_client import Client
from stentor.coordination.etcd import open_etcd
from stentor.core.records import ChainRecord
from stentor.errors import DeadlineExceeded, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.testing.cluster import LocalCluster

logger = logging.getLogger(__name__)

KEYS = 12
FINISH_S = 45.0


class Load:
    """Producers that send at a steady rate with ack=all, and consumers that follow from the start."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        *,
        partitions: int = 3,
        replicas: int = 3,
        producers: int = 2,
        consumers: int = 2,
        rate: float = 60.0,
        timeout: float = 30.0,
        size: int = 64,
        **settings: Any,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.replicas = replicas
        self.history = History()
        self.settings = settings
        self._producers = producers
        self._consumers = consumers
        self._rate = rate
        self._timeout = timeout
        self._size = size
        self._sending = threading.Event()
        self._following = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: list[Client] = []
        self._ends: dict[int, int] = {}
        self._probes = itertools.count()
        self._clock = threading.Event()  # never set: its waiting is the producers' pace
        self._subscriptions: dict[str, Any] = {}
        self.positions: dict[str, dict[int, int]] = {}  # of live consumers, by partition
        self.answered: dict[int, list[float]] = {}  # by partition: when publishes were acknowledged
        self.ends_acknowledged: dict[int, int] = {}  # by partition: the offset after the last one acknowledged
        self.bounded_reads = 0  # how often the end was asked for, and told
        self.bounded_refusals = 0  # and not told
        self.stale_reads: list[str] = []  # ends that were too early (C30)
        self.errors: list[StentorError] = []
        self.trouble: list[Exception] = []  # what ended a thread that should have gone on

    # --- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.client = self._connect("watcher")
        self.client.create_topic(self.topic, partitions=self.partitions, replicas=self.replicas, **self.settings)
        self._sending.set()
        self._following.set()
        for number in range(self._consumers):
            self._start(partial(self._consume, f"consumer-{number}"))
        for number in range(self._producers):
            self._start(partial(self._produce, f"producer-{number}"))
        self._start(self._ask_ends)
        self.wait_for_acks()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.conclude()
                self.client.delete_topic(self.topic)
        finally:
            self._sending.clear()
            self._following.clear()
            for client in self._clients:
                closing = threading.Thread(target=_close, args=(client,), daemon=True)
                closing.start()
                closing.join(None if kind is None else 0)  # after a failure nobody waits for what cannot be sent

    def _connect(self, name: str) -> Client:
        client = self.cluster.client(name=name, timeout=self._timeout)
        self._clients.append(client)
        return client

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whoever waits next raises it
                if self._following.is_set():
                    self.trouble.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    # --- producing ------------------------------------------------------------------------------

    def _produce(self, name: str) -> None:
        producer = self._connect(name).producer(self.topic, timeout=self._timeout)
        due = time.monotonic()
        for number in itertools.count():
            if not self._sending.is_set():
                break
            value = f"{name}-{number} ".encode().ljust(self._size, b".")
            self.history.sent(name, number, value)
            key = b"key-%d" % (number % KEYS)
            producer.send(value, key, on_delivery=partial(self._answered, value))
            due = max(due + 1 / self._rate, time.monotonic() - 0.5)
            self._clock.wait(max(0.0, due - time.monotonic()))
        with suppress(StentorError):  # each callback has heard what there is to say
            producer.flush(self._timeout + 5)

    def _answered(self, value: bytes, receipt: Any, error: StentorError | None) -> None:
        if error is not None:
            self.errors.append(error)
            self.history.refused(value, error)
            return
        self.history.acknowledged(value, receipt.partition, receipt.offset)
        ended = self.ends_acknowledged
        ended[receipt.partition] = max(ended.get(receipt.partition, 0), receipt.offset + 1)
        self.answered.setdefault(receipt.partition, []).append(time.monotonic())

    def probe(self, timeout: float, client: Client | None = None, partition: int = 0) -> StentorError | None:
        """Publish one message; the error it failed with, if it did."""
        number = next(self._probes)
        value = f"probe-{number} ".encode().ljust(self._size, b".")
        self.history.sent(f"probe-{number}", 0, value)
        outcome: queue.SimpleQueue[StentorError | None] = queue.SimpleQueue()

        def answered(receipt: Any, error: StentorError | None) -> None:
            self._answered(value, receipt, error)
            outcome.put(error)

        producer = (client or self.client).producer(self.topic, timeout=timeout)
        producer.send(value, partition=partition, on_delivery=answered)
        return outcome.get(timeout=timeout + 10)

    # --- consuming ------------------------------------------------------------------------------

    def _consume(self, name: str) -> None:
        polls = self.history.consumer(name)
        subscription = self._connect(name).subscribe(self.topic, start="earliest")
        at = self.positions.setdefault(name, {})
        self._subscriptions[name] = subscription
        while self._following.is_set():
            if self._ends and all(at.get(partition, 0) >= end for partition, end in self._ends.items()):
                return
            try:
                message = subscription.get(timeout=0.2)
            except DeadlineExceeded:
                continue
            polls.append(Poll(message.partition, message.offset, message.value))
            at[message.partition] = message.offset + 1

    def _ask_ends(self) -> None:
        """C30: whoever asks where the messages end is told no less than was acknowledged before, or nothing."""
        client = self._connect("asker")
        while self._sending.is_set():
            before = dict(self.ends_acknowledged)
            try:
                if self.bounded_reads % 2:
                    found = client.offsets(self.topic, timeout=3)
                else:
                    found = self._read_last(client, before)
            except StentorError:
                self.bounded_refusals += 1
            else:
                self.bounded_reads += 1
                early = {p: (found.get(p, 0), end) for p, end in before.items() if found.get(p, 0) < end}
                if early:
                    self.stale_reads.append(f"told and acknowledged: {early}")
            self._clock.wait(0.05)

    def _read_last(self, client: Client, before: dict[int, int]) -> dict[int, int]:
        """Where a bounded read ends."""
        partition = next(iter(before), 0)
        history = client.read(self.topic, start=max(0, before.get(partition, 0) - 5), partition=partition)
        ends = [message.offset + 1 for message in history]
        return {**before, partition: max(ends, default=0)}

    # --- waiting --------------------------------------------------------------------------------

    def wait_for(self, holds: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
        """Wait for a condition; a thread of the load that has ended says why."""

        def now() -> bool:
            assert not self.trouble, self.trouble
            with suppress(StentorError):  # a broker that is asked may be the one that was killed
                return holds()
            return False

        self.cluster.wait_for(now, timeout, what)

    def wait_for_acks(self, count: int = 5, partitions: list[int] | None = None, timeout: float = 30.0) -> None:
        """Wait until so many publishes that were sent from now on are acknowledged in each partition."""
        since = time.monotonic()
        wanted = range(self.partitions) if partitions is None else partitions

        def done() -> bool:
            return all(sum(at > since for at in list(self.answered.get(p, ()))[-count:]) == count for p in wanted)

        self.wait_for(done, f"{count} acknowledgements in each partition of {self.topic}", timeout)

    def chains(self) -> list[list[str]]:
        return [list(found.chain) for found in self.client.describe_topic(self.topic, timeout=5).partitions]

    def topic_id(self) -> int:
        return self.client.describe_topic(self.topic, timeout=5).id

    def chain_in_store(self, topic_id: int, partition: int) -> list[str]:
        """A chain as etcd has it, whatever brokers believe."""

        async def read() -> Any:
            store = open_etcd(self.cluster.etcd.url)
            try:
                return await store.get(chain_key((topic_id, partition)))
            finally:
                await store.close()

        record = msgspec.msgpack.decode(asyncio.run(read()).value, type=ChainRecord)
        return [member.broker for member in record.chain]

    def routes_at(self, name: str) -> list[list[str]]:
        """The chains as one broker tells them to its clients."""
        with Client(f"stentor://{self.cluster.brokers[name].address}", timeout=5) as client:
            return _chains(client._core.routes[self.topic])

    def wait_for_agreement(self, timeout: float = 30.0) -> None:
        """Wait until all brokers tell their clients the same."""
        self.wait_for(
            lambda: len({str(self.routes_at(name)) for name in self.cluster.brokers}) == 1, "all to agree", timeout
        )

    def wait_until_whole(self, timeout: float = 30.0) -> None:
        """Wait until every partition has all its replicas again."""
        self.wait_for(
            lambda: all(len(chain) == self.replicas for chain in self.chains()),
            f"{self.replicas} replicas of {self.topic}",
            timeout,
        )

    def wait_until_without(self, *names: str, timeout: float = 30.0) -> None:
        """Wait until these brokers are in no chain any more."""
        self.wait_for(
            lambda: not any(name in chain for chain in self.chains() for name in names),
            f"chains of {self.topic} without {', '.join(names)}",
            timeout,
        )

    @property
    def acknowledged(self) -> int:
        return sum(len(times) for times in list(self.answered.values()))

    # --- the end --------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Everyone finishes; then no anomaly, and all replicas equal."""
        self.finish()
        anomalies = self.history.check()
        assert not anomalies, self.history.report()
        assert not self.stale_reads, self.stale_reads[:3]

    def finish(self) -> None:
        """Stop sending, let live consumers come to the end, read everything afresh, compare the copies."""
        self.wait_until_whole(FINISH_S)
        self.wait_for_agreement()
        self._sending.clear()
        for thread in self._threads[self._consumers :]:
            thread.join(self._timeout + 10)
            assert not thread.is_alive(), "a producer or asker does not end"
        self._ends = self.client.offsets(self.topic)
        for number in range(2):
            self._read_all(f"final-{number}")
        deadline = time.monotonic() + FINISH_S
        for thread in self._threads[: self._consumers]:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), self._behind()
        assert not self.trouble, self.trouble
        self._read_every_copy()
        self.compare_copies()

    def _behind(self) -> str:
        """Which live consumers have not come to the end, and what they say about it."""
        found = [f"live consumers stay behind {self._ends}"]
        for name, at in self.positions.items():
            if any(at.get(partition, 0) < end for partition, end in self._ends.items()):
                found.append(f"{name} is at {at}")
                for (_, partition), reader in self._subscriptions[name]._core.readers.items():
                    link = reader.link
                    where = "" if link is None or link.broker is None else f"{link.broker.id} alive={link.alive}"
                    found.append(f"{partition}: stream {reader.stream_id} from {where}, told {reader.committed}")
                core = self._subscriptions[name]._core.core
                home = None if core.link is None or core.link.broker is None else core.link.broker.id
                found.append(f"its home is {home}, its routes {_chains(core.routes[self.topic])}")
        found += [f"routes at {name}: {self.routes_at(name)}" for name in self.cluster.brokers]
        return "; ".join(found)

    def _read_all(self, name: str) -> None:
        polls = self.history.consumer(name, final=True)
        with self.cluster.client(name=name) as client:
            for message in client.read(self.topic):
                polls.append(Poll(message.partition, message.offset, message.value))

    def _read_every_copy(self) -> None:
        """K2: a start does not read closed segments. What is damaged in them is found by whoever reads it there."""
        for name in self.cluster.brokers:
            with self.cluster.client(name=f"reader of {name}", read_from=partial(_this_first, name)) as client:
                count = sum(1 for _ in client.read(self.topic))
            assert count == sum(self._ends.values()), f"{count} messages by way of {name}, where {self._ends} end"

    def compare_copies(self) -> None:
        """Byte for byte, up to the commit point, in the directories of all members, once damaged ones are replaced."""
        deadline = time.monotonic() + FINISH_S
        while found := self._differences():
            assert time.monotonic() < deadline, found
            self.wait_until_whole(FINISH_S)
            self._read_every_copy()  # one that joined since nobody has read yet

    def _differences(self) -> list[str]:
        topic = self.client.describe_topic(self.topic)
        found: list[str] = []
        for partition, chain in enumerate(self.chains()):
            directories = {name: self.cluster.brokers[name].directory for name in chain}
            found += differences(directories, topic.id, partition, self._ends[partition])
        return found

    def outcomes(self) -> tuple[int, int, int]:
        """(acknowledged, failed, unknown)."""
        counted = self.history.outcomes()
        return counted[ACKNOWLEDGED], counted[FAILED], counted[UNKNOWN]

    def longest_gap_s(self, since: float) -> float:
        """The longest time between two acknowledgements of a partition, of those that ended after `since`."""
        gaps = [0.0]
        for times in self.answered.values():
            gaps += [after - before for before, after in itertools.pairwise(times) if after >= since]
        return max(gaps)


def _this_first(name: str, infos: Any) -> Any:
    return sorted(infos, key=lambda info: info.id != name)


def _chains(route: Any) -> list[list[str]]:
    return [list(partition.chain) for partition in route.partitions]


def _close(client: Client) -> None:
    with suppress(StentorError, TimeoutError, RuntimeError):
        client.close()
