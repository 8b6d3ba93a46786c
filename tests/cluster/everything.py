"""Everything at once on a real cluster, while processes die and sleep: ``make chaos-everything MINUTES=10``.

Three brokers. A plain topic is published to and followed; a group of processes shares a topic; processes work off a
queue; one process changes a thousand keys of a table, so fast that brokers compact it all the time; others watch it,
and others change a few keys on conditions; requests are answered by processes. Meanwhile brokers are killed and stopped
(SIGSTOP), workers of all kinds are killed, stopped for longer than their leases last and woken, and others come and go.

At the end everything is mended, and this must hold:

    plain topic     nothing acknowledged is lost, doubled or out of order; copies are equal (tests/cluster/history.py)
    group           every message is handled; positions never go back; each generation has one owner for a partition
    queue           every job is done or dead; none is begun after it was done and acknowledged elsewhere, or
                    acknowledged twice; none is dead that no handler began
    table           each watcher ends with the table as it is, and never misses more changes than it was told of; what
                    clients did on conditions can be explained by one register for each key
    requests        every answer is that of its question; every failure is one of our errors, in time; at the end they
                    are answered
    processes       none ends by itself

Exits 1 on any anomaly.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster import everything_roles as roles
from tests.cluster.group_work import GROUP, PARTITIONS, TOPIC, Feed, Worker, owners_by_generation
from tests.cluster.linear import Operation, explain
from tests.cluster.load import Load

from stentor.errors import StentorError
from stentor.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor.client.sync_client import Client

SETTLE_S = 180.0
FAULT_S = (0.2, 2.0)  # between faults
ASLEEP_S = (0.5, 2 * roles.LEASE_S)
FAULTS = {
    "kill broker": 1,
    "stop broker": 2,
    "kill worker": 3,
    "stop worker": 6,
    "end worker": 2,
    "come": 3,
    "kill member": 1,
    "stop member": 2,
    "end member": 1,
    "member comes": 2,
}
"""What happens, and how likely each is beside the others."""

REQUEST_S = 5.0
REQUEST_LATE_S = 3.0  # beyond its timeout, on a machine of two cores that starts processes meanwhile


class Process:
    """A process of one role, which writes lines of JSON to a file."""

    def __init__(self, cluster: LocalCluster, folder: Path, role: str, name: str) -> None:
        self.role, self.name, self.file = role, name, folder / f"{role}-{name}"
        self.killed_at = inf
        self.asleep_until = 0.0
        self._errors = (folder / f"{role}-{name}.errors").open("wb")
        command = [sys.executable, "-m", "tests.cluster.everything_roles", role, cluster.url, name, str(self.file)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._errors)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def lines(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        whole = self.file.read_text(encoding="utf-8")
        return [json.loads(line) for line in whole[: whole.rfind("\n") + 1].splitlines()]

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.killed_at = time.monotonic()
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self, wait_s: float = 40.0) -> str:
        """Let it stop in order; return what was wrong with that."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.role} {self.name} did not end within {wait_s:g} s of SIGTERM"
        finally:
            self._errors.close()
        if self.process.returncode not in (0, -signal.SIGKILL):
            return f"{self.role} {self.name} ended with {self.process.returncode}: {self.last_words()}"
        return ""

    def last_words(self) -> str:
        return Path(self._errors.name).read_text(encoding="utf-8", errors="replace")[-1_500:]


@dataclass
class Asked:
    """What became of the requests."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Scene:
    """The cluster, all processes, and the faults."""

    def __init__(self, cluster: LocalCluster, folder: Path, chance: random.Random) -> None:
        self.cluster, self.folder, self.chance = cluster, folder, chance
        self.counts: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.members: list[Worker] = []
        self.asked = Asked()
        self.client: Client = cluster.client(timeout=60, name="everything")
        self.put: set[str] = set()  # ids of jobs whose put was acknowledged
        self.back: list[str] = []  # positions of the group that went back
        self.worked_off: Any = None  # the queue at the end
        self.stopped = threading.Event()
        self._numbers = itertools.count()
        self._asleep: dict[str, float] = {}  # brokers that are stopped, and until when
        self._threads: list[threading.Thread] = []
        self._trouble: list[BaseException] = []

    # --- before ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the topics and start everybody."""
        client = self.client
        client.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, segment_bytes=1 << 18)
        client.create_topic(
            roles.QUEUE,
            kind="queue",
            partitions=2,
            lease_s=roles.LEASE_S,
            max_attempts=roles.ATTEMPTS,
            retry_delay_ms=100,
            segment_bytes=1 << 18,
        )
        client.create_topic(roles.TABLE, kind="table", replicas=3, segment_bytes=1 << 18)
        client.create_topic(roles.SERVICE)
        for role, count in (("job", 4), ("writer", 1), ("watcher", 3), ("changer", 2), ("responder", 2)):
            for _ in range(count):
                self.add(role)
        for number in range(3):
            self.add_member(workers=number % 2 * 3)
        self.feed = Feed(self.cluster, pause_s=0.01)
        self.feed.start()
        for work in (self._put_jobs, self._ask, self._watch_group):
            self._threads.append(threading.Thread(target=self._guarded, args=(work,), daemon=True))
            self._threads[-1].start()

    def add(self, role: str) -> Process:
        self.processes.append(Process(self.cluster, self.folder, role, f"{next(self._numbers)}"))
        return self.processes[-1]

    def add_member(self, workers: int = 0) -> Worker:
        self.members.append(
            Worker(self.cluster, self.folder, f"member-{next(self._numbers)}", silence=6.0, workers=workers)
        )
        return self.members[-1]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whoever waits next raises it
            self._trouble.append(error)

    def _put_jobs(self) -> None:
        numbers = itertools.count()
        with self.cluster.client(timeout=60, name="putter") as client, client.queue(roles.QUEUE) as queue:
            while not self.stopped.wait(0.05):
                names = [f"j{next(numbers)}" for _ in range(4)]
                with suppress(StentorError):
                    queue.put_many([name.encode() for name in names], timeout=60)
                    self.put.update(names)

    def _ask(self) -> None:
        with self.cluster.client(timeout=60, name="asker") as client:
            for number in itertools.count():
                if self.stopped.wait(0.02):
                    return
                began = time.monotonic()
                try:
                    answer = client.request(roles.SERVICE, f"{number}", timeout=REQUEST_S).value
                except StentorError as error:
                    self.asked.failed[type(error).__name__] += 1
                else:
                    self.asked.answered += 1
                    if answer != f"answer to {number}".encode():
                        self.asked.wrong.append(f"request {number} was answered with {answer!r}")
                took = time.monotonic() - began
                if took > REQUEST_S + REQUEST_LATE_S:
                    self.asked.wrong.append(f"request {number} with a timeout of {REQUEST_S:g} s took {took:.1f} s")

    def _watch_group(self) -> None:
        known: dict[int, int] = {}
        with self.cluster.client(timeout=20, name="group watcher") as client:
            while not self.stopped.wait(0.3):
                try:
                    found = client.describe_group(GROUP)
                except StentorError:
                    continue
                for each in found.partitions:
                    position = each.position or 0
                    if position < known.get(each.partition, 0):
                        self.back.append(f"partition {each.partition}: {known[each.partition]} to {position}")
                    known[each.partition] = position

    # --- faults ---------------------------------------------------------------------------------

    def fault(self) -> None:
        """Do one thing to somebody, and wake those who have slept long enough."""
        kind = self.chance.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.counts[kind] += 1
        getattr(self, f"_{kind.replace(' ', '_')}")()

    def _awake(self) -> list[str]:
        return [name for name, broker in self.cluster.brokers.items() if broker.running and name not in self._asleep]

    def _kill_broker(self) -> None:
        if len(self._awake()) == len(self.cluster.brokers):
            name = self.chance.choice(self._awake())
            self.cluster.kill(name)
            self.cluster.brokers[name].launch()
            self.cluster.brokers[name].wait_ready()

    def _stop_broker(self) -> None:
        if len(self._awake()) == len(self.cluster.brokers):
            name = self.chance.choice(self._awake())
            self.cluster.pause(name)
            self._asleep[name] = time.monotonic() + self.chance.uniform(0.2, 4.0)

    def _workers(self, *kinds: str) -> list[Process]:
        return [one for one in self.processes if one.role in kinds and one.alive and not one.asleep_until]

    def _kill_worker(self) -> None:
        victim = self.chance.choice(self._workers("job", "responder", "watcher"))
        victim.kill()
        self.add(victim.role)

    def _stop_worker(self) -> None:
        victim = self.chance.choice(self._workers("job", "job", "responder", "watcher", "writer"))
        victim.signal(signal.SIGSTOP)
        victim.asleep_until = time.monotonic() + self.chance.uniform(*ASLEEP_S)

    def _end_worker(self) -> None:
        victim = self.chance.choice(self._workers("job", "responder"))
        if wrong := victim.end():
            self.asked.wrong.append(wrong)
        self.add(victim.role)

    def _come(self) -> None:
        role = self.chance.choice(["job", "responder", "watcher"])
        if len(self._workers(role)) < 6:
            self.add(role)

    def _members(self) -> list[Worker]:
        return [one for one in self.members if one.process.poll() is None]

    def _kill_member(self) -> None:
        if len(self._members()) > 1:
            victim = self.chance.choice(self._members())
            victim.process.kill()
            victim.process.wait()

    def _stop_member(self) -> None:
        victim = self.chance.choice(self._members())
        victim.signal(signal.SIGSTOP)
        timer = threading.Timer(self.chance.uniform(0.5, 12.0), victim.signal, (signal.SIGCONT,))
        timer.daemon = True
        timer.start()

    def _end_member(self) -> None:
        if len(self._members()) > 2:
            self.chance.choice(self._members()).end()

    def _member_comes(self) -> None:
        if len(self._members()) < 5:
            self.add_member(workers=self.chance.choice((0, 3)))

    def wake(self, *, everybody: bool = False) -> None:
        """Let those go on whose time is over."""
        now = time.monotonic()
        for one in self.processes:
            if one.asleep_until and (everybody or now > one.asleep_until):
                one.signal(signal.SIGCONT)
                one.asleep_until = 0.0
        for name, until in list(self._asleep.items()):
            if everybody or now > until:
                self.cluster.resume(name)
                del self._asleep[name]
        if self._trouble:
            raise self._trouble[0]

    # --- after ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everybody wakes up; what was put is worked off; everybody leaves."""
        self.wake(everybody=True)
        for member in self._members():
            member.signal(signal.SIGCONT)
        self.stopped.set()
        self.feed.stopped.set()
        for thread in (*self._threads, self.feed):
            thread.join(90)
            if thread.is_alive():
                raise AssertionError(f"{thread.name} does not end")
        self.wake()
        if not self._members():
            self.add_member()
        self.cluster.wait_for(self._handled_all, SETTLE_S, "the group to handle everything")
        self.cluster.wait_for(self._worked_off, SETTLE_S, "the queue to be worked off")
        for one in self.processes:
            if one.role in ("writer", "changer") and (wrong := one.end()):
                self.asked.wrong.append(wrong)
        with self.client.table(roles.TABLE) as table:
            table.sync(timeout=60)
            self.final = {key: bytes(table[key]) for key in table}
        watchers = [one for one in self.processes if one.role == "watcher" and one.alive]
        self.cluster.wait_for(lambda: all(self._caught_up(one) for one in watchers), SETTLE_S, "watchers to catch up")
        self._ask_once_more()
        for one in self.processes:
            if one.alive and (wrong := one.end()):
                self.asked.wrong.append(wrong)
        for member in self.members:
            member.end()

    def _ask_once_more(self) -> None:
        """What must work when everybody is awake; and how much the queue has done."""
        if self.client.request(roles.SERVICE, "the last one", timeout=60).value != b"answer to the last one":
            self.asked.wrong.append("the last request was answered with something else")
        self.worked_off = self.client.describe_queue(roles.QUEUE)

    def end(self) -> None:
        """Leave no process behind."""
        self.stopped.set()
        for one in self.processes:
            if one.alive:
                one.kill()
        for member in self._members():
            member.process.kill()
            member.process.wait()

    def _handled_all(self) -> bool:
        handled = {(one.partition, one.offset) for worker in self.members for one in worker.handled()}
        return not self.feed.sent - handled

    def _worked_off(self) -> bool:
        found = self.client.describe_queue(roles.QUEUE)
        return not found.waiting + found.held + sum(each.dead for each in found.partitions)

    def _caught_up(self, watcher: Process) -> bool:
        return self.seen_by(watcher)[0] == {key: value.decode() for key, value in self.final.items()}

    def seen_by(self, watcher: Process) -> tuple[dict[str, str], list[str]]:
        """Return the table as a watcher has seen it, and where it had missed more changes than it was told of.

        What a compaction has removed is told with the next change, whichever keys it was of. So both are sums.
        """
        held: dict[str, str] = {}
        wrong: list[str] = []
        missed = told = 0
        for line in watcher.lines():
            if line["what"] == "begin":
                held = dict(line["rows"])
            elif line["what"] == "change":
                key, new = line["key"], line["new"]
                told += line["skipped"]
                if key.startswith("row/"):
                    before, after = number_of(held.get(key)), number_of(new)
                    missed += max(0, after - before - 1)
                    if missed > told:
                        wrong.append(
                            f"watcher {watcher.name}, {key}: {before} to {after}; it missed {missed}, told of {told}"
                        )
                if new is None:
                    held.pop(key, None)
                else:
                    held[key] = new
        return held, wrong

    def anomalies(self) -> Iterator[str]:
        """Say everything that must not be."""
        yield from self.asked.wrong
        yield from (f"a position of the group went back: {one}" for one in self.back)
        handled = [one for worker in self.members for one in worker.handled()]
        for generation, owners in owners_by_generation(handled).items():
            if len(owners) > 1:
                yield f"partition {generation[0]} had several owners in one generation: {owners}"
        yield from self._of_the_queue()
        for one in self.processes:
            if one.killed_at == inf and one.process.returncode not in (0, None):
                yield f"{one.role} {one.name} ended by itself with {one.process.returncode}: {one.last_words()}"
        for member in self.members:
            if member.process.returncode == 1:
                yield f"{member.name} of the group ended by itself"
        for watcher in (one for one in self.processes if one.role == "watcher"):
            held, missed = self.seen_by(watcher)
            yield from missed[:3]
            if watcher.killed_at == inf and held != {key: value.decode() for key, value in self.final.items()}:
                yield f"watcher {watcher.name} ended with another table than there is"
        history = [
            Operation(**{**line, "ended": inf if line["ended"] is None else line["ended"]})
            for one in self.processes
            if one.role == "changer"
            for line in one.lines()
        ]
        if wrong := explain(history):
            yield wrong

    def _of_the_queue(self) -> Iterator[str]:
        begun, finished, dead = self._begun(), self._finished(), self._dead()
        open_ended = self._open_ended()
        for job in sorted(self.put):
            if job not in finished and job not in dead and job not in open_ended:
                yield f"job {job} is lost: neither done nor dead, and begun {len(begun[job])} times"
        ended = self.worked_off.finished + len(dead)
        if ended < len(self.put):
            yield f"{len(self.put)} jobs were put, and {ended} ended"
        times = Counter(line["job"] for _, line in self._job_lines() if line["what"] == "acknowledged")
        yield from (f"job {job} was acknowledged {count} times" for job, count in times.items() if count > 1)
        for job, (at, who) in finished.items():
            for began, other in begun[job]:
                if began > at:
                    yield f"job {job} was acknowledged by {who} and begun by {other} {began - at:.3f} s later"
        yield from (f"job {job} is dead, and no handler ever began it" for job in dead if not begun[job])

    def _job_lines(self) -> Iterator[tuple[Process, dict[str, Any]]]:
        return ((one, line) for one in self.processes if one.role == "job" for line in one.lines())

    def _begun(self) -> dict[str, list[tuple[float, str]]]:
        """Return when each job was begun, and by whom."""
        found: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for one, line in self._job_lines():
            if line["what"] == "begun":
                found[line["job"]].append((line["at"], one.name))
        return found

    def _finished(self) -> dict[str, tuple[float, str]]:
        """Return when the acknowledgement of each job was answered first, and by whom it was done."""
        found: dict[str, tuple[float, str]] = {}
        for one, line in self._job_lines():
            if line["what"] == "acknowledged":
                said = line["at"], one.name
                found[line["job"]] = min(said, found.get(line["job"], said))
        return found

    def _open_ended(self) -> set[str]:
        """Return the jobs that may have been acknowledged: their process was killed, or got no certain answer."""
        found: set[str] = set()
        for one in self.processes:
            begun: set[str] = set()
            for line in one.lines() if one.role == "job" else ():
                if line["what"] == "begun":
                    begun.add(line["job"])
                elif line["what"] == "unknown":
                    found.add(line["job"])
                else:
                    begun.discard(line["job"])
            found |= begun
        return found

    def _dead(self) -> set[str]:
        if not any(topic.name == f"{roles.QUEUE}.dead" for topic in self.client.topics()):
            return set()
        return {bytes(letter.value).decode() for letter in self.client.read(f"{roles.QUEUE}.dead")}

    def summary(self) -> str:
        jobs = [line["what"] for one in self.processes if one.role == "job" for line in one.lines()]
        changes = sum(len(one.lines()) for one in self.processes if one.role == "watcher")
        sleeps = self.counts["stop worker"] + self.counts["stop member"] + self.counts["stop broker"]
        return (
            f"{sum(self.counts.values())} faults ({sleeps} stops), {len(self.processes)} processes and"
            f" {len(self.members)} members; {len(self.feed.sent)} messages for the group,"
            f" {sum(len(worker.handled()) for worker in self.members)} handled; {len(self.put)} jobs,"
            f" {jobs.count('begun')} begun, {jobs.count('lost')} leases lost; {changes} changes watched;"
            f" {self.asked.answered} requests answered, {dict(self.asked.failed)} failed"
        )


def number_of(value: str | None) -> int:
    """Return which change of its key a value is; 0 for a key that is not there."""
    return 0 if value is None else int(value.partition(" ")[0])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.everything", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the faults; their effects depend on the machine")
    parser.add_argument("--data", type=Path, default=None, help="kept afterwards: logs of brokers and of processes")
    chosen = parser.parse_args()
    seed = random.randrange(2**32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chance, pause = random.Random(seed), threading.Event()
    folder = Path(tempfile.mkdtemp(prefix="stentor-everything-")) if chosen.data is None else chosen.data / "processes"
    folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    with LocalCluster(3, data=chosen.data and chosen.data / "cluster") as cluster:
        scene = Scene(cluster, folder, chance)
        try:
            scene.begin()
            with Load(cluster, "plain", partitions=3, rate=40, timeout=60, segment_bytes=1 << 18):
                until = time.monotonic() + 60 * chosen.minutes
                while time.monotonic() < until:
                    scene.fault()
                    pause.wait(chance.uniform(*FAULT_S))
                    scene.wake()
                scene.wake(everybody=True)
            scene.settle()
        except (AssertionError, StentorError) as error:
            wrong.append(f"{type(error).__name__}: {error}")
        finally:
            scene.end()
        if not wrong:
            wrong += scene.anomalies()
        print(scene.summary())
        for name, count in scene.counts.most_common():
            print(f"  {count:4} × {name}")
    for text in wrong[:40]:
        print(text)
    print(f"seed {seed}, files in {folder}: {f'{len(wrong)} ANOMALIES' if wrong else 'no anomaly'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
