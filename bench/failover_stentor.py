"""Stentor under faults: three brokers, a topic with three replicas, `ack=all`, every partition's messages synced."""

from __future__ import annotations

import itertools
import re
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from stentor.errors import StentorError
from stentor.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.failover import Aim

RATE = 200.0
"""Messages per second in each watched partition, or together if those are many."""
WATCHED = 10
SLOW_BITS_PER_S = 256_000
TOPIC = "failover"
_SUSPECTED = re.compile(r"stentor\.broker\.cluster +broker (\S+): (silent|refused)")


class StentorBrokers:
    """A cluster with a load; the same interface for all systems is in failover.py."""

    name = "stentor"

    def __init__(self, directory: Path, partitions: int, *, network: bool, disk_bytes: int = 0) -> None:
        self.partitions = partitions
        data = directory / f"stentor-{partitions}{'-disks' if disk_bytes else ''}"
        self._cluster = LocalCluster(3, data=data, network=network, disk_bytes=disk_bytes)
        self._watched = list(range(0, partitions, max(1, partitions // WATCHED)))[:WATCHED]
        self._answers: dict[int, list[float]] = {partition: [] for partition in self._watched}
        self._stop = threading.Event()
        self._victim = ""
        self._read_to: dict[str, int] = {}
        self._chain: list[str] = []  # of the partition that is aimed at

    def __enter__(self) -> Self:
        self._cluster.start()
        self._client = self._cluster.client(name="failover")
        self._client.create_topic(TOPIC, partitions=self.partitions, replicas=3, timeout=60)
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        with suppress(StentorError, TimeoutError):
            self._client.close()
        self._cluster.cleanup()

    def _publish(self) -> None:
        with self._cluster.client(name="load") as client:
            producer = client.producer(TOPIC)
            due = time.monotonic()
            rate = RATE * min(3, len(self._watched)) if len(self._watched) <= 3 else RATE
            for partition in itertools.cycle(self._watched):
                if self._stop.is_set():
                    return
                producer.send(b"x" * 100, partition=partition, on_delivery=partial(self._answered, partition))
                due = max(due + 1 / rate, time.monotonic() - 1)
                time.sleep(max(0.0, due - time.monotonic()))

    def _answered(self, partition: int, receipt: Any, error: StentorError | None) -> None:
        if error is None and receipt is not None:
            self._answers[partition].append(time.monotonic())

    # --- where to hit ---------------------------------------------------------------------------

    def aim(self, target: str) -> Aim | None:
        from bench.failover import Aim

        chains = {p.partition: list(p.chain) for p in self._client.describe_topic(TOPIC).partitions}
        controller = self._cluster.controller()
        for partition in self._watched:
            head, middle, tail = chains[partition]
            victim = {"head": head, "middle": middle, "tail": tail}.get(target, controller)
            leads = head == controller
            if (victim == controller) == ("controller" in target) and leads == (target == "head+controller"):
                self._chain = chains[partition]
                return Aim(victim, partition)
        # Whoever is the controller has to be somewhere: then the place in the chain is what counts.
        place = {"head": 0, "middle": 1, "tail": 2}.get(target)
        self._chain = chains[self._watched[0]]
        return None if place is None else Aim(self._chain[place], self._watched[0])

    def measured(self, partition: int) -> list[int]:
        return [partition] if len(self._watched) <= 3 else self._watched

    def acknowledged(self, partition: int) -> list[float]:
        return self._answers[partition]

    # --- faults ---------------------------------------------------------------------------------

    def strike(self, fault: str, victim: str) -> None:
        self._victim = victim
        self._read_to = {name: broker.log_file.stat().st_size for name, broker in self._cluster.brokers.items()}
        cluster = self._cluster
        strikes: dict[str, Callable[[str], None]] = {
            "kill": cluster.kill,
            "pause": cluster.pause,
            "cut": cluster.isolate,
            "hang": cluster.hang_disk,
            "full": cluster.fill_disk,
            "link": self._cut_link,
            "store": self._cut_store,
            "slow": lambda name: cluster.slow(name, SLOW_BITS_PER_S),
        }
        strikes[fault](victim)

    def _cut_link(self, victim: str) -> None:
        self._cluster.cut(self._chain[self._chain.index(victim) - 1], victim)

    def _cut_store(self, victim: str) -> None:
        """The victim dies while the controller cannot do anything about it."""
        self._cluster.cut(self._cluster.controller(), "etcd")
        time.sleep(0.5)
        self._cluster.kill(victim)

    def mend(self, fault: str, victim: str) -> None:
        cluster = self._cluster
        if fault in ("kill", "store"):
            cluster.heal()
            cluster.restart(victim)
        elif fault == "pause":
            cluster.resume(victim)
        elif fault in ("hang", "full"):
            cluster.mend_disks()
        else:
            cluster.heal()

    def is_whole(self) -> bool:
        """All replicas are back, and nobody is the head of more than its share."""
        try:
            chains = [partition.chain for partition in self._client.describe_topic(TOPIC, timeout=5).partitions]
        except StentorError:
            return False
        heads = [chain[0] for chain in chains]
        share = max(heads.count(name) for name in set(heads)) - len(heads) // 3
        return all(len(chain) == 3 for chain in chains) and share <= 1

    def suspicions(self) -> int:
        """How often a broker to which nothing was done was suspected by one to which nothing was done either."""
        found = 0
        for name, broker in self._cluster.brokers.items():
            if name == self._victim:
                continue
            with broker.log_file.open("rb") as log:
                log.seek(self._read_to.get(name, 0))
                text = log.read().decode("utf-8", "replace")
            found += sum(match[1] != self._victim for match in _SUSPECTED.finditer(text))
        return found
