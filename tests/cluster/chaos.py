"""Random faults on a real cluster under load, for as long as you like: ``python -m tests.cluster.chaos --minutes 60``.

Five brokers in network namespaces, with disks of their own, and an etcd of three. In each round a topic is published
to and followed while brokers are killed, paused, cut off, wiped and damaged, disks fill up and hang, links are slow,
clocks jump and etcd fails, alone and two at a time. All the while a reader asks where the messages end and compares
that with what was acknowledged before. At the end of a round everything is mended; then the history is checked
(history.py) and all replicas are compared, byte for byte. Exits 1 on any anomaly, or if publishing does not go on
within a minute after everything was mended.

Disks are damaged only while every other copy is whole: what is lost everywhere, nobody can give back.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tests.cluster.copies import positions
from tests.cluster.load import Load

from stentor.errors import StentorError
from stentor.storage.directory import JOURNAL_FILE, list_partitions
from stentor.storage.journal import load_journal
from stentor.testing.cluster import LocalCluster
from stentor.testing.disks import why_no_disks, why_no_hanging
from stentor.testing.etcd import find_etcd
from stentor.testing.network import why_no_network

if TYPE_CHECKING:
    from collections.abc import Callable

ROUND_S = 90.0
STUCK_S = 60.0
HOLD_S = (0.1, 4.0)
DISK_BYTES = 1 << 30
DISK_FAULTS = ("wiped", "truncated", "flipped", "unsynced")
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


class Chaos:
    """One cluster, and the means to hurt it; everything that is done is in the log."""

    def __init__(self, cluster: LocalCluster, chance: random.Random, log: TextIO, *, network: bool) -> None:
        self.cluster = cluster
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self._log = log
        self._clock = cluster.directory / "clock"
        self._clock.write_text("+0\n")
        self._paused: set[str] = set()
        self.flow: Load | None = None
        self._hold = threading.Event()  # never set: faults last for a while
        self._faults: dict[str, Callable[[], str]] = {
            "kill": self._kill,
            "kill two": lambda: f"{self._kill()} {self._kill()}",
            "kill all": self._kill_all,
            "one returns alone": self._return_alone,
            "kill the controller": lambda: self._kill(self.cluster.controller()),
            "pause": self._pause,
            "pause and kill": lambda: f"{self._pause()} {self._kill()}",
            "stop": self._stop,
            "kill twice": self._kill_twice,
            "etcd's leader is paused": self._pause_etcd,
            "all of etcd is paused": self._pause_all_etcd,
        }
        if not find_etcd()[1]:  # the wheel's can lose data when it is killed (E6)
            self._faults["etcd's leader is killed"] = self._kill_etcd
        if network:
            self._faults |= {
                "isolate": self._isolate,
                "majority and minority": self._partition,
                "ring": self._ring,
                "one way": self._one_way,
                "pair": self._pair,
                "neighbours": self._neighbours,
                "the controller loses etcd": self._storeless_controller,
                "slow link": self._slow,
            }
        if not why_no_disks():
            self._faults["full disk"] = self._fill
        if not why_no_hanging():
            self._faults["hanging disk"] = self._hang
        if FAKETIME is not None:
            self._faults["clock"] = self._jump

    def say(self, text: str) -> None:
        line = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}"
        print(line, file=self._log, flush=True)

    # --- one episode ----------------------------------------------------------------------------

    def episode(self, flow: Load) -> None:
        """One fault or two at a time, a while, and everything is well again."""
        self.flow = flow
        if self.chance.random() < 0.15:
            self.damage(flow)
        else:
            for name in self.chance.sample(sorted(self._faults), self.chance.choice((1, 1, 1, 2))):
                self._strike(name, self._faults[name])
                self._hold.wait(self.chance.uniform(*HOLD_S))
        self.mend()
        if self.chance.random() < 0.7:
            flow.wait_for_acks(timeout=STUCK_S)

    def _strike(self, name: str, fault: Callable[[], str]) -> None:
        self.counts[name] += 1
        try:
            self.say(f"{name}: {fault()}")
        except (StentorError, OSError, IndexError) as error:
            self.say(f"{name}: not possible now: {error}")

    def mend(self) -> None:
        """Everyone runs, is awake and hears everyone."""
        cluster = self.cluster
        cluster.mend_disks()
        cluster.heal()
        for index in range(len(cluster.etcd.endpoints)):
            with suppress(AssertionError, ProcessLookupError):
                cluster.etcd.resume(index)
        cluster.etcd.start()
        for name in self._paused:
            if cluster.brokers[name].running:
                cluster.resume(name)
        self._paused.clear()
        down = [broker for broker in cluster.brokers.values() if not broker.running]
        for broker in down:
            broker.launch()
        for broker in down:
            broker.wait_ready()
        self.say(f"mended: {' '.join(broker.name for broker in down)}")

    # --- processes ------------------------------------------------------------------------------

    def _running(self) -> list[str]:
        return [name for name, broker in self.cluster.brokers.items() if broker.running and name not in self._paused]

    def _kill(self, name: str = "") -> str:
        name = name or self.chance.choice(self._running())
        self.cluster.kill(name)
        self._paused.discard(name)
        return name

    def _kill_all(self) -> str:
        names = list(self.cluster.brokers)
        self.chance.shuffle(names)
        return " ".join(self._kill(name) for name in names if self.cluster.brokers[name].running)

    def _kill_twice(self) -> str:
        name = self._kill()
        self.cluster.brokers[name].launch()
        self._hold.wait(self.chance.uniform(0, 2))
        return self._kill(name)

    def _return_alone(self) -> str:
        """All die, and one of them is back before the others."""
        self._kill_all()
        name = self.chance.choice(list(self.cluster.brokers))
        self.cluster.brokers[name].launch()
        self._hold.wait(self.chance.uniform(2, 8))
        return name

    def _pause(self) -> str:
        name = self.chance.choice(self._running())
        self.cluster.pause(name)
        self._paused.add(name)
        return name

    def _stop(self) -> str:
        name = self.chance.choice(self._running())
        self.cluster.terminate(name)
        return name

    def _jump(self) -> str:
        """A broker that runs on another clock, until it is started again."""
        name = self._kill()
        broker = self.cluster.brokers[name]
        plain = broker._prefix
        clock = [f"LD_PRELOAD={FAKETIME}", f"FAKETIME_TIMESTAMP_FILE={self._clock}"]
        broker._prefix = [*plain, "env", *clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
        try:
            broker.launch()
            broker.wait_ready()
        finally:
            broker._prefix = plain
        jump = self.chance.randrange(-7200, 7200)
        self._clock.write_text(f"{jump:+d}\n")
        return f"{name} by {jump} s"

    # --- the network ----------------------------------------------------------------------------

    def _names(self) -> list[str]:
        names = list(self.cluster.brokers)
        self.chance.shuffle(names)
        return names

    def _isolate(self) -> str:
        name = self._names()[0]
        options = {"from_etcd": self.chance.random() < 0.5, "from_clients": self.chance.random() < 0.5}
        self.cluster.isolate(name, **options)
        return f"{name} {options}"

    def _partition(self) -> str:
        names = self._names()
        minority, majority = names[:2], names[2:]
        (minority if self.chance.random() < 0.3 else majority).append("etcd")
        self.cluster.partition([majority, minority])
        return f"{majority} | {minority}"

    def _ring(self) -> str:
        self.cluster.ring()
        return ""

    def _one_way(self) -> str:
        a, b, *_ = self._names()
        self.cluster.cut(a, b, one_way=True)
        return f"{a} to {b}"

    def _pair(self) -> str:
        a, b, *_ = self._names()
        self.cluster.cut(a, b)
        return f"{a} and {b}"

    def _neighbours(self) -> str:
        """Two that follow each other in a chain."""
        assert self.flow is not None
        chain = self.chance.choice(self.flow.chains())
        place = self.chance.randrange(len(chain) - 1)
        self.cluster.cut(chain[place], chain[place + 1])
        return f"{chain[place]} and {chain[place + 1]}"

    def _storeless_controller(self) -> str:
        name = self.cluster.controller()
        self.cluster.cut(name, "etcd")
        if self.chance.random() < 0.5:
            self._hold.wait(self.chance.uniform(0, 2))
            return f"{name}, and {self._kill()} dies"
        return name

    def _slow(self) -> str:
        name, rate = self._names()[0], self.chance.choice((64_000, 256_000, 2_000_000))
        self.cluster.slow(name, rate)
        return f"{name}, {rate} bit/s"

    # --- disks that are of no use ---------------------------------------------------------------

    def _fill(self) -> str:
        names = self._names()[: self.chance.choice((1, 1, 1, 2, len(self.cluster.brokers)))]
        for name in names:
            self.cluster.fill_disk(name)
        return " ".join(names)

    def _hang(self) -> str:
        name = self.chance.choice(self._running())
        self.cluster.hang_disk(name)
        return name

    # --- etcd -----------------------------------------------------------------------------------

    def _pause_etcd(self) -> str:
        leader = self.cluster.etcd.leader()
        self.cluster.etcd.pause(leader)
        return str(leader)

    def _kill_etcd(self) -> str:
        leader = self.cluster.etcd.leader()
        self.cluster.etcd.kill(leader)
        return str(leader)

    def _pause_all_etcd(self) -> str:
        for index in range(len(self.cluster.etcd.endpoints)):
            self.cluster.etcd.pause(index)
        return ""

    # --- disks ----------------------------------------------------------------------------------

    def damage(self, flow: Load) -> None:
        """Something happens to the files of one broker while it is down, and nothing else until it is whole again."""
        flow.wait_until_whole(STUCK_S)
        kind = self.chance.choice(DISK_FAULTS)
        name = self._kill()
        directory = self.cluster.brokers[name].directory
        self.counts[kind] += 1
        self.say(f"{kind}: {name}")
        if kind == "wiped":
            _empty(directory)
        elif kind == "unsynced":
            self._cut_back(directory)
        else:
            self._hurt(directory, kind)
        self.cluster.restart(name)
        flow.wait_until_whole(STUCK_S)

    def _hurt(self, directory: Path, kind: str) -> None:
        files = [file for found in list_partitions(directory)[0] for file in found.path.glob("*.log")]
        for file in self.chance.sample(files, min(len(files), self.chance.randint(1, 3))):
            batches = positions(file)
            if not batches:
                continue
            _, start, stop = self.chance.choice(batches)
            at = self.chance.randrange(start, stop)
            with file.open("r+b") as content:
                if kind == "truncated":
                    content.truncate(at)
                    continue
                content.seek(at)
                byte = content.read(1)[0]
                content.seek(at)
                content.write(bytes([byte ^ 1 << self.chance.randrange(8)]))

    def _cut_back(self, directory: Path) -> None:
        """What was written since the last recorded sync is gone, as after a power cut."""
        content = load_journal(directory / JOURNAL_FILE)
        assert content is not None
        ends = {(topic_id, partition): state.synced_end for topic_id, partition, state in content.replicas}
        for found in list_partitions(directory)[0]:
            for file in found.path.glob("*.log"):
                end = ends.get((found.topic_id, found.partition), 0)
                at = next((start for offset, start, _ in positions(file) if offset >= end), None)
                if at is not None and file == max(found.path.glob("*.log")):
                    with file.open("r+b") as log:
                        log.truncate(at)


def _empty(directory: Path) -> None:
    """A new disk; the folder itself may be where it is mounted."""
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def one_round(chaos: Chaos, number: int, until: float) -> list[str]:
    """A topic's life; what was wrong with it."""
    flow = Load(
        chaos.cluster,
        f"chaos-{number}",
        partitions=6,
        producers=3,
        rate=40,
        timeout=20,
        size=200,
        segment_bytes=1 << 16,
    )
    wrong: list[str] = []
    try:
        with flow:
            try:
                while time.monotonic() < until:
                    chaos.episode(flow)
            finally:
                chaos.mend()
            flow.wait_for_acks(timeout=STUCK_S)
    except (AssertionError, StentorError) as error:
        wrong.append(f"{type(error).__name__}: {error}")
    acknowledged, failed, unknown = flow.outcomes()
    chaos.say(
        f"round {number}: {acknowledged} acknowledged, {failed} failed, {unknown} unknown;"
        f" longest gap {flow.longest_gap_s(0):.1f} s; {flow.bounded_reads} ends told, {flow.bounded_refusals} refused,"
        f" {len(flow.stale_reads)} stale; {'; '.join(wrong) or 'no anomaly'}"
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--brokers", type=int, default=5)
    parser.add_argument("--etcd", type=int, default=3, choices=(1, 3))
    parser.add_argument("--seed", type=int, default=None, help="of the faults; their effects depend on the machine")
    parser.add_argument("--data", type=Path, default=None, help="kept afterwards: logs of brokers and of faults")
    chosen = parser.parse_args()
    seed = random.randrange(2**32) if chosen.seed is None else chosen.seed
    reason = why_no_network()
    print(f"seed {seed}{'; no cuts: ' + reason if reason else ''}")
    end = time.monotonic() + 60 * chosen.minutes
    wrong: list[str] = []
    rounds = 0
    disk_bytes = 0 if why_no_disks() else DISK_BYTES
    made = LocalCluster(chosen.brokers, etcd=chosen.etcd, data=chosen.data, network=not reason, disk_bytes=disk_bytes)
    with made as cluster:
        chaos = Chaos(cluster, random.Random(seed), sys.stdout, network=not reason)
        while time.monotonic() < end and not wrong:
            wrong += one_round(chaos, rounds, min(end, time.monotonic() + ROUND_S))
            rounds += 1
    print(f"{rounds} rounds, {sum(chaos.counts.values())} faults:")
    for name, count in chaos.counts.most_common():
        print(f"  {count:4} × {name}")
    for text in wrong:
        print(text)
    print(f"seed {seed}: {'ANOMALIES' if wrong else 'no anomaly'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
