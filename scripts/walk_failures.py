"""Break a real cluster in every way that docs/failures.md tells of, and write down what happened.

    python scripts/walk_failures.py                 all scenarios, printed
    python scripts/walk_failures.py head etcd       some of them
    python scripts/walk_failures.py --write         all, written into docs/failures.md

While a scenario runs, one client publishes one message after the other at ack=all and another one subscribes. In
the end every acknowledged message must have been received once and in order. Times are of this machine and this run.
The scenarios `cut` and `minority` cut networks, which needs root.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import stentor
from stentor.testing.cluster import LocalCluster
from stentor.testing.network import why_no_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs" / "failures.md"
TOPIC: Final = "orders"
STEADY_S: Final = 1.0
WAIT_S: Final = 60.0
LINE: Final = re.compile(r"(\S+Z) (\w+) +stentor\.(\S+)  (.*)")
SCENARIOS: dict[str, Callable[[], Iterator[str]]] = {}


def scenario(work: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
    """A scenario by the name of its function."""
    SCENARIOS[work.__name__] = work
    return work


# --- who watches --------------------------------------------------------------------------------


class Witness:
    """Publishes and subscribes all the time, and knows in the end what was lost, doubled or out of order."""

    def __init__(self, url: str, reading: str = "") -> None:
        self._publishing = stentor.connect(url, name="publisher")
        self._reading = stentor.connect(reading or url, name="subscriber")
        self._subscription = self._reading.subscribe(TOPIC, start="earliest")
        self.acknowledged: list[tuple[float, int]] = []
        self.received: list[tuple[float, int]] = []
        self.refusals: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._publish, self._receive)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        number = 0
        while not self._ended.is_set():
            try:
                self._publishing.publish(TOPIC, str(number), timeout=WAIT_S)
            except stentor.StentorError as error:
                self.refusals.append(f"{type(error).__name__}: {error}")
            else:
                self.acknowledged.append((time.time(), number))
            number += 1

    def _receive(self) -> None:
        with suppress(stentor.Closed):
            for message in self._subscription:
                self.received.append((time.time(), int(message.value)))

    def wait_for_more(self, count: int = 20) -> None:
        """Until so many more are acknowledged."""
        target = len(self.acknowledged) + count
        _until(lambda: len(self.acknowledged) >= target, "acknowledgements")

    def verdict(self) -> str:
        """What became of the messages."""
        self._ended.set()
        self._threads[0].join(WAIT_S)
        wanted = [number for _, number in self.acknowledged]
        with suppress(TimeoutError):
            _until(lambda: bool(self.received) and self.received[-1][1] >= wanted[-1], "the last message")
        self._subscription.close()
        self._reading.close()
        self._publishing.close()
        received = [number for _, number in self.received]
        return (
            f"{len(wanted)} acknowledged, {len(set(wanted) - set(received))} lost,"
            f" {len(received) - len(set(received))} doubled,"
            f" {sum(a > b for a, b in pairwise(received))} out of order;"
            f" longest gap between acknowledgements {_gap(self.acknowledged)}, between deliveries {_gap(self.received)}"
        )


def _gap(moments: list[tuple[float, int]]) -> str:
    return f"{max((after - before for (before, _), (after, _) in pairwise(moments)), default=0.0):.2f} s"


class Story:
    """What was done to a cluster and what its brokers logged, on one clock."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.began = time.time()
        self._told: list[tuple[float, str]] = []

    def did(self, what: str) -> None:
        self._told.append((time.time(), what))

    def lines(self) -> Iterator[str]:
        """Everything since the beginning, in order."""
        logged = [entry for entry in self._logged() if entry[0] >= self.began]
        for at, text in sorted([*self._told, *logged]):
            yield f"{at - self.began:+8.2f} s  {text}"

    def _logged(self) -> Iterator[tuple[float, str]]:
        for broker in self.cluster.brokers.values():
            for line in broker.log_file.read_text(encoding="utf-8").splitlines():
                found = LINE.match(line)
                if found is None:
                    continue
                yield datetime.fromisoformat(found[1]).timestamp(), f"  {broker.name} {found[2].lower():7}  {found[4]}"


def _until(holds: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


@contextmanager
def staged(*, at_tail: bool = False, **options: Any) -> Iterator[tuple[LocalCluster, Witness]]:
    """A cluster of three at work, with one topic, and the witness."""
    with LocalCluster(3, **options) as local:
        with local.client() as client:
            client.create_topic(TOPIC)
        witness = Witness(local.url, local.brokers[local.tail(TOPIC)].address if at_tail else "")
        try:
            witness.wait_for_more()
            time.sleep(STEADY_S)
            yield local, witness
        finally:
            witness.verdict()


def _returns(cluster: LocalCluster, story: Story, witness: Witness, name: str, length: int = 3) -> None:
    story.did(f"{name} is started again")
    cluster.restart(name)
    cluster.wait_for_chain(TOPIC, length)
    witness.wait_for_more()


# --- a broker -----------------------------------------------------------------------------------


def _kill(place: int) -> Iterator[str]:
    with staged() as (cluster, witness):
        chain = cluster.chain(TOPIC)
        name, story = chain[place], Story(cluster)
        role = ("head", "middle", "tail")[place]
        too = " and the controller" if name == cluster.controller() else ""
        story.did(f"kill -9 {name}, the {role}{too}; the chain is {'→'.join(chain)}")
        cluster.kill(name)
        cluster.wait_for_chain(TOPIC, 2)
        witness.wait_for_more()
        _returns(cluster, story, witness, name)
        yield from story.lines()
        yield witness.verdict()


@scenario
def head() -> Iterator[str]:
    """The head dies."""
    yield from _kill(0)


@scenario
def middle() -> Iterator[str]:
    """A member between head and tail dies."""
    yield from _kill(1)


@scenario
def tail() -> Iterator[str]:
    """The tail dies."""
    yield from _kill(2)


@scenario
def pause() -> Iterator[str]:
    """The head stands still and closes nothing."""
    with staged() as (cluster, witness):
        name, story = cluster.head(TOPIC), Story(cluster)
        story.did(f"kill -STOP {name}, the head")
        cluster.pause(name)
        witness.wait_for_more()
        _until(lambda: time.time() - story.began > 4, "four seconds")
        story.did(f"kill -CONT {name}")
        cluster.resume(name)
        cluster.wait_for_chain(TOPIC, 3)
        witness.wait_for_more()
        yield from story.lines()
        yield witness.verdict()


@scenario
def rolling() -> Iterator[str]:
    """Every broker is stopped and started again, one after the other."""
    with staged() as (cluster, witness):
        story = Story(cluster)
        for name in list(cluster.brokers):
            story.did(f"kill -TERM {name}")
            cluster.terminate(name)
            _returns(cluster, story, witness, name)
        yield from story.lines()
        yield witness.verdict()


@scenario
def wiped() -> Iterator[str]:
    """A broker loses its disk."""
    with staged() as (cluster, witness):
        name, story = cluster.tail(TOPIC), Story(cluster)
        story.did(f"kill -9 {name}, the tail; rm -r its data directory")
        cluster.kill(name)
        shutil.rmtree(cluster.brokers[name].directory)
        cluster.wait_for_chain(TOPIC, 2)
        _returns(cluster, story, witness, name)
        yield from story.lines()
        yield witness.verdict()


# --- too many brokers ---------------------------------------------------------------------------


@scenario
def short() -> Iterator[str]:
    """Two of three replicas are gone."""
    with staged() as (cluster, witness):
        names, story = cluster.chain(TOPIC), Story(cluster)
        story.did(f"kill -9 {names[0]} and {names[1]}; the chain was {'→'.join(names)}")
        cluster.kill(names[0])
        cluster.kill(names[1])
        time.sleep(4)
        _ask(story, cluster.brokers[names[2]].address)
        _returns(cluster, story, witness, names[1], 2)
        _returns(cluster, story, witness, names[0])
        yield from story.lines()
        yield witness.verdict()


def _ask(story: Story, address: str) -> None:
    """What a client is told by the one broker that is left."""
    with stentor.connect(address) as client:
        try:
            client.publish(TOPIC, "-1", timeout=3)
        except stentor.StentorError as error:
            story.did(f"publish: {type(error).__name__}: {error}")
        try:
            count = sum(1 for _ in client.read(TOPIC, timeout=5))
        except stentor.StentorError as error:
            story.did(f"read: {type(error).__name__}: {error}")
        else:
            story.did(f"read: {count} messages")


@scenario
def last() -> Iterator[str]:
    """All replicas go, one after the other; the last one that had everything must come back."""
    with staged() as (cluster, witness):
        names, story = cluster.chain(TOPIC), Story(cluster)
        for name in names:
            story.did(f"kill -9 {name}")
            cluster.kill(name)
            time.sleep(1.5)
        for name in names:
            story.did(f"{name} is started again")
            cluster.restart(name)
            time.sleep(2)
        cluster.wait_for_chain(TOPIC, 3)
        witness.wait_for_more()
        yield from story.lines()
        yield witness.verdict()


# --- the coordination store ---------------------------------------------------------------------


@scenario
def etcd() -> Iterator[str]:
    """All of etcd is gone; then a broker dies as well."""
    with staged() as (cluster, witness):
        name, story = cluster.tail(TOPIC), Story(cluster)
        story.did("kill -9 etcd, its only member")
        cluster.etcd.kill()
        time.sleep(3)
        before = len(witness.acknowledged)
        witness.wait_for_more(100)
        story.did(f"publishing goes on: {len(witness.acknowledged) - before} acknowledged since")
        with cluster.client() as client:
            try:
                client.create_topic("other", timeout=8)
            except stentor.StentorError as error:
                story.did(f"create_topic: {type(error).__name__}: {error}")
        story.did(f"kill -9 {name}, the tail")
        cluster.kill(name)
        time.sleep(4)
        story.did("etcd is started again")
        cluster.etcd.start()
        witness.wait_for_more()
        _returns(cluster, story, witness, name)
        yield from story.lines()
        yield witness.verdict()


@scenario
def etcd_leader() -> Iterator[str]:
    """One of three members of etcd dies, the leader, and a broker with it."""
    with staged(etcd=3) as (cluster, witness):
        name, story = cluster.head(TOPIC), Story(cluster)
        leader = cluster.etcd.leader()
        story.did(f"kill -9 etcd-{leader}, the leader of three, and {name}, the head")
        cluster.etcd.kill(leader)
        cluster.kill(name)
        cluster.wait_for_chain(TOPIC, 2)
        witness.wait_for_more()
        _returns(cluster, story, witness, name)
        yield from story.lines()
        yield witness.verdict()


# --- the load balancer --------------------------------------------------------------------------


@scenario
def balancer() -> Iterator[str]:
    """Clients came through a load balancer, and it dies."""
    program = shutil.which("haproxy")
    if program is None:
        yield "there is no haproxy on this machine"
        return
    with LocalCluster(3) as cluster:
        configuration = cluster.directory / "haproxy.cfg"
        servers = "\n".join(f"  server {b.name} {b.address} check inter 500" for b in cluster.brokers.values())
        configuration.write_text(
            "defaults\n  mode tcp\n  timeout connect 1s\n  timeout client 1h\n  timeout server 1h\n"
            f"listen stentor\n  bind 127.0.0.1:17440\n{servers}\n",
            encoding="utf-8",
        )
        proxy = subprocess.Popen([program, "-f", str(configuration)], stderr=subprocess.DEVNULL)  # noqa: S603
        time.sleep(1)
        with cluster.client() as client:
            client.create_topic(TOPIC)
        witness = Witness("stentor://127.0.0.1:17440")
        witness.wait_for_more()
        time.sleep(STEADY_S)
        story = Story(cluster)
        story.did("kill -9 haproxy, the only address that the clients were given")
        proxy.kill()
        proxy.wait()
        witness.wait_for_more(100)
        name = cluster.head(TOPIC)
        story.did(f"kill -9 {name}, the head")
        cluster.kill(name)
        witness.wait_for_more()
        _returns(cluster, story, witness, name)
        yield from story.lines()
        yield witness.verdict()


# --- the network --------------------------------------------------------------------------------


def _cut(*, from_etcd: bool) -> Iterator[str]:
    if reason := why_no_network():
        yield reason
        return
    with staged(network=True) as (cluster, witness):
        name, story = cluster.head(TOPIC), Story(cluster)
        too = ", and etcd," if from_etcd else ""
        story.did(f"the network between {name}, the head, and the other brokers{too} is cut; clients reach everyone")
        cluster.isolate(name, from_etcd=from_etcd, from_clients=False)
        witness.wait_for_more()
        _until(lambda: time.time() - story.began > 5, "five seconds")
        try:
            stentor.connect(cluster.brokers[name].address, timeout=2).close()
        except stentor.StentorError as error:
            story.did(f"connecting to {name}: {type(error).__name__}: {error}")
        cluster.heal()
        story.did("the network is mended")
        cluster.wait_for_chain(TOPIC, 3)
        witness.wait_for_more()
        yield from story.lines()
        yield witness.verdict()


@scenario
def cut() -> Iterator[str]:
    """The head is cut off from the other brokers; it still reaches etcd."""
    yield from _cut(from_etcd=False)


@scenario
def reader() -> Iterator[str]:
    """Clients are cut off from the tail, from which the subscriber reads."""
    if reason := why_no_network():
        yield reason
        return
    with staged(network=True, at_tail=True) as (cluster, witness):
        name, story = cluster.tail(TOPIC), Story(cluster)
        story.did(f"the network between clients and {name}, the tail, is cut; brokers reach each other")
        cluster.cut("clients", name)
        _until(lambda: time.time() - story.began > 4, "four seconds")
        story.did(f"{len(witness.received)} delivered of {len(witness.acknowledged)} acknowledged so far")
        cluster.heal()
        story.did("the network is mended")
        witness.wait_for_more()
        yield from story.lines()
        yield witness.verdict()


@scenario
def minority() -> Iterator[str]:
    """The head is cut off from the other brokers and from etcd."""
    yield from _cut(from_etcd=True)


# --- the document -------------------------------------------------------------------------------


def main() -> int:
    """Walk, and print or write."""
    names = [word for word in sys.argv[1:] if not word.startswith("--")] or list(SCENARIOS)
    for name in names:
        text = "\n".join(SCENARIOS[name]())
        print(f"{name}:\n{text}", flush=True)
        if "--write" in sys.argv:
            part = re.compile(rf"(<!-- recorded: {name} -->\n).*?(<!-- /recorded -->)", re.DOTALL)
            document = DOCUMENT.read_text(encoding="utf-8")
            DOCUMENT.write_text(part.sub(lambda found: f"{found[1]}```text\n{text}\n```\n{found[2]}", document))  # noqa: B023
    return 0


if __name__ == "__main__":
    sys.exit(main())
