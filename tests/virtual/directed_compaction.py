"""Directed runs with compaction (C23)."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.virtual.runner import OFTEN
from tests.virtual.scene import Scene, require, scene
from tests.virtual.table_load import Watched, all_rows, folded, held_rows, written

from stentor import limits
from stentor.broker.partitions import chain_feed, compactions
from stentor.broker.partitions.chain_feed import ChainFeed
from stentor.broker.partitions.compaction import PartitionCompaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor.broker.partitions.partition import Partition
    from stentor.client.table_reload import TableResync
    from stentor.core.records import ChainRecord, Key

SHRINKING = "shrinking"
KEYS = 40
ROUNDS = 3
LAST = "last"

SLOWLY: tuple[tuple[Any, str, Any], ...] = (
    (compactions, "COMPACTION_BYTES_PER_S", 5_000),
    (limits, "DELIVERY_BYTES", 2_000),
    (limits, "JOIN_LAG_MESSAGES", 5),
    (limits, "REPLICA_STALL_S", 60.0),
    (chain_feed, "_PUSHES_PER_TURN", 1),
)
"""What makes a joiner of a small table take as long as that of a large one."""


class Shrinking:
    """A table whose deletions go at once, compacted when the run says so; and a feed that stops where it says."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.worth_it = False
        self.feed_stops_at: int | None = None
        self._feeds: list[ChainFeed] = []

    @property
    def key(self) -> Key:
        catalogue = next(iter(self.s.cluster.brokers.values())).parts.ground.catalogue
        return catalogue.get(SHRINKING).record.id, 0

    @property
    def record(self) -> ChainRecord:
        return self.s.checker.record(self.key)

    @property
    def chain(self) -> list[str]:
        return [member.broker for member in self.record.chain]

    def partition(self, name: str) -> Partition:
        return self.s.broker(name).partitions[self.key]

    def fill(self, rounds: int = 1) -> None:
        """Keys that come, and all but one go again."""

        async def change(client: Any) -> None:
            table = await client.table(SHRINKING)
            for number in list(range(KEYS)) * rounds:
                await table.put(f"k{number}", b"v" * 200)
            for number in range(1, KEYS):
                await table.delete(f"k{number}")
            await table.close()

        self.s.ask(change, 60)

    def pump(self, pump: Callable[[ChainFeed], None]) -> Callable[[ChainFeed], None]:
        def stopped(feed: ChainFeed) -> None:
            stops_at = self.feed_stops_at
            if stops_at is None or feed.position < stops_at or not self._is_joiner(feed):
                pump(feed)
            else:
                self._feeds.append(feed)

        return stopped

    def _is_joiner(self, feed: ChainFeed) -> bool:
        return feed.partition.key == self.key and feed.link.name not in self.chain

    def is_stopped(self) -> bool:
        return bool(self._feeds)

    def go_on(self) -> None:
        self.feed_stops_at = None
        for feed in self._feeds:
            if not feed.closed:
                feed.wake()

    def compare(self) -> None:
        """Every member has the same table."""
        self.s.go(1)
        for name in self.chain:
            log = self.partition(name).log
            found = folded(held_rows(log), log.end)
            require(found.keys() - {LAST} == {"k0"}, "a key that was deleted is there again", name, found)


@contextmanager
def shrinking(seed: int) -> Iterator[Shrinking]:
    with ExitStack() as patches:
        for module, name, value in (*OFTEN, *SLOWLY):
            patches.enter_context(patch.object(module, name, value))
        k = Shrinking(s := patches.enter_context(scene(seed)))
        patches.enter_context(patch.object(PartitionCompaction, "is_worth_it", lambda *_: k.worth_it))
        patches.enter_context(patch.object(ChainFeed, "_pump", k.pump(ChainFeed._pump)))
        s.ask(lambda client: client.create_topic(SHRINKING, kind="table", replicas=3, deletions_kept_s=0), 10)
        s.go(1)
        yield k
        k.compare()


def filled_meanwhile() -> None:
    """C11, C23: deletions that a joiner has not got yet would go from the log it is filled from. One that is being
    filled holds them back; one that came while the compaction ran begins anew.
    """
    for seed, comes_later in ((1, False), (2, True)):
        with shrinking(seed) as k:
            joiner = k.chain[-1]
            k.s.kill(joiner, power=False)
            require(k.s.go(10, lambda k=k: len(k.chain) == 2), "it stays in the chain", k.record)
            k.fill()
            compaction = k.partition(k.chain[-1]).compaction
            k.worth_it = comes_later
            require(k.s.go(10, lambda c=compaction: c.running) or not comes_later, "nothing is compacted")
            k.feed_stops_at = KEYS // 2
            k.s.start(joiner)
            require(k.s.go(10, k.is_stopped), "it is not fed", k.record)
            require(compaction.running == comes_later, "the compaction is not where it should be")
            k.worth_it = True
            require(k.s.go(20, lambda c=compaction: c.statistics().runs > 0), "the compaction does not end")
            k.worth_it = False
            k.go_on()
            require(k.s.go(20, lambda k=k: len(k.chain) == 3), "the joiner does not become a member", k.record)


async def follow(client: Any, watched: Watched, news: list[TableResync], ended: list[bool]) -> None:
    """Watch until a key says that this was all."""
    table = await client.table(SHRINKING)
    table.on_resync(news.append)
    watch = table.watch()
    watched.start = watch.sequence[0]
    ended.append(False)
    async for change in watch:
        watched.told.append((change.version, change.skipped))
        if change.key == LAST:
            ended[0] = True


def cut_off_watcher() -> None:
    """C23: a client is cut off while its table is compacted. It hears that changes are missing."""
    with shrinking(1) as k:
        process = k.s.cluster.process("watcher")
        watched, news, ended = Watched(process.name, 0), [], []

        async def watch() -> None:
            await follow(await k.s.cluster.client(process.name), watched, news, ended)

        process.run(watch())
        require(k.s.go(10, lambda: bool(ended)), "nothing is watched")
        k.s.cut(*((process.name, name) for name in k.s.disks))
        k.fill(rounds=ROUNDS)
        compactions = [k.partition(name).compaction for name in k.chain]
        k.worth_it = True
        require(k.s.go(90, lambda: all(each.statistics().runs for each in compactions)), "nothing is compacted")
        k.worth_it = False
        k.s.ask(put_last, 10)
        k.s.network.heal()
        require(k.s.go(20, lambda: ended[0]), "the watcher does not go on", watched.told)
        batches = written(k.partition(k.chain[0]).log, k.s.checker.archive[k.key])
        sets = [offset for offset, _, value in all_rows(batches) if value is not None]
        require(len(watched.told) < len(sets), "it missed nothing: this run shows nothing", len(sets))
        missed = watched.misses(sets)
        require(missed is None, "a watcher misses changes and is not informed", watched.told, missed)
        require(bool(news), "the copy does not say that it was overtaken", watched.told)


async def put_last(client: Any) -> None:
    table = await client.table(SHRINKING)
    await table.put(LAST, b"")
    await table.close()


RUNS: dict[str, Callable[[], None]] = {run.__name__: run for run in (filled_meanwhile, cut_off_watcher)}
