"""Two thousand updates a second on three brokers while they fail: nothing acknowledged may be lost or made twice.

In each round the head of the table's chain is killed, comes back, and then the tail is cut off: its packets vanish. A
producer goes on all the while. A copy follows from the start, and another is made at the end. What counts is compared
with the log and with the acknowledgements that the producer got:

    lost            acknowledged updates that the copy which followed was not told of as the acknowledgement says, or
                    that are not in the log there, nor a later update of the same key (the log is compacted meanwhile)
    applied twice   updates that are in the log twice, or that the copy that followed was told of twice

Without network namespaces (they need root), the tail is paused instead.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.model import BenchError
from bench.patterns import data
from bench.patterns.rows import Row, add
from bench.programs import run
from stentor.errors import StentorError
from stentor.testing.cluster import LocalCluster
from stentor.testing.network import why_no_network

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.patterns.plan import Plan

TOPIC = "table"
KEYS = 1000
TICK_S = 0.01
WAIT_S = 60.0
STEADY_S = 1.0


@dataclass(slots=True)
class Account:
    """What happened, by the numbers of updates."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """The offset that each was acknowledged at."""
    log: list[tuple[int, int]] = field(default_factory=list)
    """Offset and number of each row in the log."""
    told: list[tuple[int, int]] = field(default_factory=list)
    """Version and number of each change that the copy was told of."""
    followed: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """The copy that followed: the version and the value of each key."""
    fresh: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """A copy that was made in the end."""

    def lost(self) -> int:
        """Acknowledged, and not where it must be."""
        at, told = dict(self.log), dict(self.told)
        last = {number % KEYS: offset for offset, number in self.log}
        return sum(
            told.get(offset) != number or at.get(offset, number) != number or last.get(number % KEYS, -1) < offset
            for number, offset in self.acknowledged.items()
        )

    def doubled(self) -> int:
        """Made or told twice."""
        made = Counter(number for _, number in {*self.log, *self.told})
        repeated = sum(before[0] >= after[0] for before, after in pairwise(self.told))
        return sum(count - 1 for count in made.values()) + repeated

    def wrong(self) -> int:
        """Keys of which a copy has another version or value than the log."""
        expected = {data.key_of(number % KEYS): (offset, data.value_of(number)) for offset, number in self.log}
        keys = expected.keys() | self.followed.keys() | self.fresh.keys()
        return sum(not expected.get(key) == self.followed.get(key) == self.fresh.get(key) for key in keys)


class Writer:
    """Updates keys in turn, at a rate, whatever happens."""

    def __init__(self, client: Any, rate: int, account: Account) -> None:
        self._producer = client.producer(TOPIC)
        self._rate = rate
        self._account = account
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.times: list[float] = []
        self.refused = 0
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self._producer.flush(WAIT_S)

    def _write(self) -> None:
        began, each = time.monotonic(), max(1, round(self._rate * TICK_S))
        while not self._stop.is_set():
            for number in range(self.sent, self.sent + each):
                key, answered = data.key_of(number % KEYS).encode(), partial(self._answered, number)
                self._producer.send(data.value_of(number), key, on_delivery=answered)
            self.sent += each
            time.sleep(max(0.0, began + self.sent / self._rate - time.monotonic()))

    def _answered(self, number: int, receipt: Any, error: StentorError | None) -> None:
        if error is not None or receipt is None:
            self.refused += 1
            return
        self._account.acknowledged[number] = receipt.offset
        self.times.append(time.monotonic())

    def flows(self, since: float) -> bool:
        """Whether acknowledgements have come without a long gap for a while."""
        now = time.monotonic()
        times = [at for at in self.times[-2 * self._rate :] if at > now - STEADY_S]
        gaps = [after - before for before, after in pairwise([now - STEADY_S, *times, now])]
        return now - since > STEADY_S and max(gaps) < STEADY_S / 2


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    reason = why_no_network()
    account = Account()
    with run() as (directory, _):
        longest = broken(plan, directory, account, say, network=not reason)
    note = f"the tail was paused, not cut off: {reason}" if reason else ""
    lost, doubled, wrong = account.lost(), account.doubled(), account.wrong()
    add(rows, "faults", "stentor", "updates", note, updates_lost=lost, updates_applied_twice=doubled)
    add(rows, "faults", "stentor", "keys", keys_that_differ=wrong)
    add(rows, "faults", "stentor", "updates", updates_acknowledged=len(account.acknowledged))
    add(rows, "faults", "stentor", "s", longest_gap=longest)
    if wrong:
        raise BenchError(f"{wrong} keys of the copies are not what the log says")
    return rows


def broken(plan: Plan, directory: Path, account: Account, say: Callable[[str], None], *, network: bool) -> float:
    """Runs the load and the faults, and keeps account; the longest time without an acknowledgement."""
    cluster = LocalCluster(3, data=directory / "cluster", network=network)
    try:
        cluster.start()
        with cluster.client(name="bench", timeout=WAIT_S) as client:
            client.create_topic(TOPIC, kind="table", replicas=3)
            cluster.wait_for_chain(TOPIC, 3)
            with client.table(TOPIC) as table, table.watch(on_slow="raise") as watch:
                threading.Thread(target=_listen, args=(watch, account), daemon=True).start()
                writer = Writer(client, plan.faults_per_s, account)
                writer.start()
                for turn in range(plan.fault_rounds):
                    _round(cluster, writer, network=network)
                    say(f"faults: round {turn + 1}, {len(account.acknowledged):,} updates acknowledged")
                writer.finish()
                _conclude(cluster, table, account)
            return max((after - before for before, after in pairwise(writer.times)), default=float("nan"))
    finally:
        cluster.cleanup()


def _listen(watch: Any, account: Account) -> None:
    try:
        for change in watch:
            account.told.append((change.new.version, data.number_of(change.new.value)))
    except StentorError:
        return  # the copy is closed


def _round(cluster: LocalCluster, writer: Writer, *, network: bool) -> None:
    cluster.wait_for(lambda: writer.flows(0.0), WAIT_S, "a steady flow")
    head = cluster.head(TOPIC)
    struck = time.monotonic()
    cluster.kill(head)
    cluster.wait_for(lambda: writer.flows(struck), WAIT_S, "acknowledgements after the head's death")
    cluster.restart(head)
    cluster.wait_for_chain(TOPIC, 3, timeout=WAIT_S)
    tail = cluster.tail(TOPIC)
    struck = time.monotonic()
    if network:
        cluster.isolate(tail)
    else:
        cluster.pause(tail)
    cluster.wait_for(lambda: writer.flows(struck), WAIT_S, "acknowledgements without the tail")
    if network:
        cluster.heal()
    else:
        cluster.resume(tail)
    cluster.wait_for_chain(TOPIC, 3, timeout=WAIT_S)


def _conclude(cluster: LocalCluster, table: Any, account: Account) -> None:
    """The log, the copy that followed and a fresh one, once nothing moves any more."""
    sequence = table.sync(timeout=WAIT_S)
    with cluster.client(name="check", timeout=WAIT_S) as client:
        account.log = [(message.offset, data.number_of(message.value or b"")) for message in client.read(TOPIC)]
        with client.table(TOPIC) as fresh:
            fresh.wait(sequence, timeout=WAIT_S)
            account.fresh = {entry.key: (entry.version, entry.value) for entry in fresh.entries()}
    account.followed = {entry.key: (entry.version, entry.value) for entry in table.entries()}
    last = max(account.acknowledged.values(), default=-1)
    cluster.wait_for(
        lambda: bool(account.told) and account.told[-1][0] >= last, WAIT_S, "the changes that were watched"
    )
