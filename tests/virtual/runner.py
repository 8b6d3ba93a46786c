"""One seed: a cluster, its clients, faults for a while, healing, and what must hold then."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import warnings
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from tests.virtual.cluster import Cluster
from tests.virtual.copies import committed_cursors
from tests.virtual.expiry_load import EXPIRING, LATE_S, ExpiryLoad
from tests.virtual.faults import Faults
from tests.virtual.group_load import GroupLoad
from tests.virtual.operators import Operators
from tests.virtual.queue_load import DEAD, QUEUE, QueueLoad
from tests.virtual.request_load import RequestLoad
from tests.virtual.table_load import TABLE, TableLoad
from tests.virtual.transaction_load import OUTPUTS, TransactionLoad
from tests.virtual.workload import TOPIC, History, Workload
from tests.virtual.world import SECOND, BrokenError, World, number_objects

from stentor import limits
from stentor.broker.cursors import desk
from stentor.broker.partitions import compaction, compactions
from stentor.broker.queues.heads import queue_of
from stentor.broker.sessions import inline_sync
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import StentorError
from stentor.storage import compaction as storage_compaction
from stentor.storage.compaction import Compaction
from stentor.wire.messages import TopicSettings

SMALL = TopicSettings(partitions=1, segment_bytes=limits.SEGMENT_BYTES_MIN, retention_bytes=limits.SEGMENT_BYTES_MIN)
"""Of the topic that cursors are derived from: few chains, and snapshots that are soon needed."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key


TABLE_EVERY = 5  # seeds
OWNER_DIES = 0.15  # how often, after a fault

OFTEN: tuple[tuple[Any, str, Any], ...] = (
    (compactions, "COMPACTION_CHECK_S", 0.15),
    (compactions, "COMPACTION_BYTES_PER_S", 100_000),
    (compaction, "COMPACTION_BYTES_MIN", 1),
    (compaction, "COMPACTION_SHARE", 0.1),
    (storage_compaction, "COMPACTION_SLICE_BYTES", 2_000),
    (storage_compaction, "COMPACTED_BATCH_BYTES", 3_000),
)
"""What makes compactions frequent, and lets faults come between their steps."""


PIECE_BYTES = 100  # so that what is derived from a log goes to a new copy in several pieces


class FailedError(AssertionError):
    """A run in which something did not hold."""


class GivenUpError(Exception):
    """Only an operator who gives up what is committed could help: the run ends, and nothing more is expected of it."""


class Layout(NamedTuple):
    """What kind of topic, and how it is used."""

    factor: int
    minimum: bool  # nothing is taken while a member is missing
    placement: str
    partitions: int
    far_behind: bool  # joiners are filled for a while before the tail waits for them
    in_loop: bool  # loops sync for lone publishers
    retains: bool  # only the newest messages are kept
    ack: str  # of one of the producers
    table: bool  # there is a table, too
    compaction: bool = False  # logs of tables are compacted as soon as they can be, a few rows at a time
    groups: bool = False  # a consumer group reads it, too; never by chance
    transactions: bool = False  # and sends something out for each message, in transactions
    requests: bool = False  # clients ask and answer requests, too; never by chance
    memory: bool = False  # the topic is kept in memory; never by chance
    queues: bool = False  # there is a work queue, too; never by chance
    cursors: bool = False  # some move named cursors: never by chance, so that other runs stay as they are
    positions: bool = False  # some go on from positions that they kept; never by chance
    expiry: bool = False  # there is a table whose keys expire: never by chance either


class Run:
    """Everything of one seed."""

    def __init__(self, seed: int, favour: tuple[str, ...] = (), **fixed: Any) -> None:
        """By chance, but for what is fixed: the faults, or something of the layout."""
        number_objects()
        self.seed = seed
        self.world = World(seed)
        rng = self.world.rng
        brokers, later = rng.choice([3, 3, 3, 4, 5]), rng.choice([0, 0, 0, 1])
        self._later = [f"b{brokers + number}" for number in range(later)]
        names = [*(f"b{number}" for number in range(brokers)), *self._later]
        self.cluster = Cluster(self.world, names, segment_bytes=limits.SEGMENT_BYTES_MIN)
        self.cluster.rates = {name: rng.uniform(0.97, 1.03) for name in names}
        self.layout = Layout(
            factor=rng.choice([3, 3, 3, 3, 3, 2, 1, brokers]),
            minimum=rng.random() < 0.25,
            placement=rng.choice(["spread", "spread", "multi-primary"]),
            partitions=rng.choice([1, 1, 2]),
            far_behind=rng.random() < 0.1,
            in_loop=rng.random() < 0.5,
            retains=rng.random() < 0.3,
            ack=rng.choice(["all", "head", "quorum"]),
            table=seed % TABLE_EVERY == 0,
        )._replace(**fixed)
        if self.layout.compaction:
            self.layout = self.layout._replace(table=True)
        if self.layout.groups or self.layout.transactions:  # a group must see every message
            self.layout = self.layout._replace(retains=False, groups=True)
        if self.layout.positions:  # so that each of them is there
            self.layout = self.layout._replace(retains=False)
        if self.layout.transactions:  # each costs several commits
            self.world.steps_max *= 3
        self.history = History(self.world)
        self.load = Workload(self.cluster, self.history, retains=self.layout.retains)
        self.tables = TableLoad(self.cluster)
        self.expiry = ExpiryLoad(self.cluster)
        self.groups = (TransactionLoad if self.layout.transactions else GroupLoad)(self.cluster)
        self.requests = RequestLoad(self.cluster)
        self.queues = QueueLoad(self.cluster, ordered=seed % 2 == 0)
        self.operators = Operators(self.cluster)
        self.faults = Faults(self.cluster, factor=self.layout.factor, favour=favour)

    def run(self, seconds: float = 10.0) -> None:
        lag = 3 if self.layout.far_behind else limits.JOIN_LAG_MESSAGES
        run_min = inline_sync.RUN_MIN if self.layout.in_loop else 1_000_000_000
        with (
            self.cluster.living(),
            self.expiry.promises.watching(),
            patch.object(limits, "JOIN_LAG_MESSAGES", lag),
            patch.object(limits, "STATE_PIECE_BYTES", PIECE_BYTES),
            patch.object(inline_sync, "RUN_MIN", run_min),
            patch.object(desk, "SETTINGS", SMALL),
            self._compacting(),
        ):
            try:
                self._begin()
                self._disturb(seconds)
                self._converge()
                self._compare()
            except GivenUpError:
                self.faults.note("committed messages would have to be given up")
            except BrokenError as error:
                told = [f"seed {self.seed}: {error}", *self.faults.done[-30:], *self.operators.done, self.state()]
                raise FailedError("\n".join(told)) from error

    @contextmanager
    def _compacting(self) -> Iterator[None]:
        """Compactions of a dead process are not tidied up: it was killed."""
        kept: list[Compaction] = []
        made = Compaction.__init__

        def make(job: Compaction, *arguments: Any) -> None:
            kept.append(job)
            made(job, *arguments)

        with ExitStack() as patches:
            patches.enter_context(patch.object(Compaction, "__init__", make))
            for module, name, value in OFTEN if self.layout.compaction else ():
                patches.enter_context(patch.object(module, name, value))
            yield

    def require(self, holds: bool, what: str) -> None:
        if not holds or self.world.broken:
            raise BrokenError(self.world.broken[0] if self.world.broken else what)

    def state(self) -> str:
        lines = []
        for name in self.cluster.disks:
            for key, partition in self.cluster.partitions(name).items():
                lines.append(f"{name} {key} {partition.replica.statistics()}")
        chains = [entry for key, entry in self.cluster.store.entries.items() if key.startswith("chains/")]
        return "\n".join([*lines, *map(str, chains)])

    def _begin(self) -> None:
        cluster = self.cluster
        for name in cluster.disks:
            if name not in self._later:
                cluster.start(name)
        self.require(cluster.go(10, cluster.ready), "the brokers do not start")
        layout = self.layout
        wishes: dict[str, Any] = {
            "partitions": layout.partitions,
            "replicas": layout.factor,
            "min_replicas": layout.factor if layout.minimum else 0,
            "placement": layout.placement,
        }
        topics = self._topics(wishes)

        async def create() -> None:
            while True:
                try:
                    async with await cluster.client("maker") as client:
                        for name, settings in topics.items():
                            await client.create_topic(name, exist_ok=True, **settings)
                except StentorError:  # not all brokers have heard of each other yet, or one died meanwhile
                    await asyncio.sleep(0.1)
                else:
                    return

        making = cluster.process("maker").run(create())
        made = cluster.go(10, making.done)
        self.require(made and making.exception() is None, f"the topic is not made: {made and making.exception()}")
        self._employ()
        cluster.go(0.5)

    def _topics(self, wishes: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The topics that there are, with their settings."""
        layout = self.layout
        topics = {TOPIC: wishes | self._retention()}
        if layout.table:
            topics[TABLE] = self._table_wishes(wishes)
        if layout.transactions:
            topics[OUTPUTS] = wishes | {"partitions": 2}
        if layout.queues:
            topics[QUEUE] = wishes | self.queues.settings
        if layout.expiry:
            topics[EXPIRING] = wishes | {"partitions": 1, "kind": "table"}
        return topics

    def _retention(self) -> dict[str, Any]:
        """How much the topic keeps, and where."""
        kept: dict[str, Any] = {"retention_bytes": 2 * limits.SEGMENT_BYTES_MIN} if self.layout.retains else {}
        return kept | {"durability": "memory"} if self.layout.memory else kept

    def _employ(self) -> None:
        cluster, layout = self.cluster, self.layout
        for number, ack in enumerate(["all", "all", layout.ack]):
            cluster.process(f"producer{number}").run(self.load.produce(f"p{number}", ack))
        for number in range(2):
            cluster.process(f"reader{number}").run(self.load.read(f"r{number}"))
        cluster.process("looker").run(self.load.look("looker"))
        for number in range(3 if layout.table else 0):
            cluster.process(f"table{number}").run(self.tables.work(f"c{number}"))
        if layout.expiry:
            self.expiry.employ(3)
        if layout.groups:
            self.groups.begin()
        if layout.requests:
            self.requests.begin()
        if layout.queues:
            self.queues.begin()
        self._employ_keepers()

    def _employ_keepers(self) -> None:
        """Those who keep positions: by themselves, and in named cursors."""
        cluster, layout = self.cluster, self.layout
        if layout.positions:
            for number in range(3):
                cluster.process(f"keeper{number}").run(self.load.resume(f"k{number}"))
        if layout.cursors:
            for number in range(2):
                cluster.process(f"mover{number}").run(self.load.move(f"m{number}"))
            cluster.process("lister").run(self.load.list_cursors("lister"))

    def _disturb(self, seconds: float) -> None:
        end = self.world.now + round(seconds * SECOND)
        while self.world.now < end:
            self.cluster.go(self.world.rng.uniform(0.02, 1.0))
            self.faults.one()
            if self.layout.expiry and self.world.rng.random() < OWNER_DIES:
                self.expiry.kill_one()
            if self.layout.groups:
                self.groups.fail()
            if self.layout.requests:
                self.requests.fail()
            if self.layout.queues:
                self.queues.fail()

    def _converge(self) -> None:
        cluster = self.cluster
        self.faults.heal()
        if not cluster.go(60, self._whole):
            self._ask_operators()
        self.load.stopping = self.tables.stopping = self.expiry.stopping = self.queues.stopping = True
        self.require(cluster.go(60, lambda: not self.load.outstanding), "publishes are not answered")
        self.require(cluster.go(60, lambda: not self.tables.outstanding), "changes of a table are not answered")
        self.require(cluster.go(60, self._let_go), "members keep what the head let go")
        self.require(cluster.go(60, self._read), f"readers do not get everything: {self.load.positions}")
        if self.layout.table:
            self.require(cluster.go(60, self._copied), f"copies of a table lag: {self.tables.copies}")
        if self.layout.expiry:
            self.require(cluster.go(60, self.expiry.settled), "keys do not expire")
            cluster.go(LATE_S)
        if self.layout.groups:
            self.require(self._group_gets_all(), f"the group does not get everything: {self.groups.positions}")
        if self.layout.requests:
            self.require(cluster.go(60, self.requests.settled), "requests are not answered")
        if self.layout.queues:
            self.require(self._queue_ends(), f"jobs do not end: {self._queue_states()}")
        if self.layout.cursors:
            self.require(cluster.go(60, self._moved), "moves of cursors do not come to an end")

    def _ask_operators(self) -> None:
        """Only for partitions that rightly wait for somebody (C13); all others must have come together by now."""
        self.require(self.cluster.ready(), "the brokers do not come back")
        waiting = [key for key in self._catalogue().chains if not self._is_whole(key)]
        self.require(bool(waiting) and all(map(self.operators.awaited, waiting)), "the chains do not come together")
        if any(map(self.operators.must_give_up, waiting)):
            raise GivenUpError
        for key in waiting:
            self.operators.help(key)
        self.world.steps_max *= 3  # what was put meanwhile must be worked off
        self.require(self.cluster.go(60, self._whole), "the chains do not come together, with an operator's help")

    def _whole(self) -> bool:
        """Every chain has its members, at work, in the newest epoch."""
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        keys = self._catalogue().chains
        return bool(keys) and all(map(self._is_whole, keys))

    def _catalogue(self) -> Catalogue:
        return next(iter(self.cluster.brokers.values())).parts.ground.catalogue

    def _is_whole(self, key: Key) -> bool:
        brokers, catalogue = self.cluster.brokers, self._catalogue()
        record, plan = catalogue.chains[key].record, catalogue.by_id[key[0]].plan
        if (record.factor, record.min_replicas) != (plan.factor, plan.min_replicas):
            return False
        if len(record.chain) != min(record.factor, len(brokers)) or record.joining is not None:
            return False
        for member in record.chain:
            partition = brokers[member.broker].partitions.get(key)
            if partition is None or not partition.replica.active or partition.replica.epoch != record.epoch:
                return False
        return True

    def _read(self) -> bool:
        """All members agree where the log ends, and all readers are there."""
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        ends = self._ends(TOPIC)
        return all(
            len(found) == 1
            and (
                all(read.get(partition, 0) == max(found) for read in self.load.positions.values())
                or max(found) in self.cluster.checker.began(partition, TOPIC)  # nothing was published since
            )
            for partition, found in ends.items()
        )

    def _copied(self) -> bool:
        """The same, of the table and the copies that clients hold."""
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        (found,) = self._ends(TABLE).values()
        return len(found) == 1 and self.tables.caught_up(max(found))

    def _group_gets_all(self) -> bool:
        """Whether it comes to the end; handlers take their time, so there is no limit while it gets on."""
        before: dict[int, int] | None = None
        while not self.cluster.go(60, self._handled):
            if before == self.groups.positions:
                return False
            before = dict(self.groups.positions)
        return True

    def _handled(self) -> bool:
        """The same, of the group."""
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        ends = self._ends(TOPIC)
        return all(len(found) == 1 for found in ends.values()) and self.groups.caught_up(ends)

    def _queue_ends(self) -> bool:
        """The same of a queue: a partition that waited for an operator has many jobs by then."""
        before = -1
        while not self.cluster.go(90, self._worked_off):
            ended = sum(state["finished"] + state["died"] for state in self._queue_states())
            if ended == before:
                return False
            before = ended
        return True

    def _worked_off(self) -> bool:
        """Every job of the queue has ended, and all members of its chains know it."""
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        ends = self._ends(QUEUE)
        return all(len(found) == 1 for found in ends.values()) and self.queues.settled(self._members_of_all(QUEUE))

    def _members_of_all(self, topic: str) -> list[Any]:
        catalogue = self._catalogue()
        keys = catalogue.topics[topic].keys if topic in catalogue.topics else ()
        return [
            partition
            for key in keys
            for member in catalogue.chains[key].record.chain
            if (partition := self.cluster.brokers[member.broker].partitions.get(key)) is not None
        ]

    def _heads_of(self, topic: str) -> list[Any]:
        return [each for each in self._members_of_all(topic) if each.replica.position.is_head]

    def _queue_states(self) -> list[Any]:
        return [queue_of(each).statistics() for each in self._members_of_all(QUEUE)]

    def _moved(self) -> bool:
        """The same, of the topic that cursors are derived from: its last move may still be on its way."""
        if self.world.steps % 50 or not self.cluster.ready():
            return False
        return all(len(found) == 1 for found in self._ends(CURSORS_TOPIC).values())

    def _let_go(self) -> bool:
        """Members let go of what the one before them let go, also when nobody publishes (C23); each whole segments."""
        if self.world.steps % 50:
            return False
        for name in self.cluster.disks:
            for key, partition in self.cluster.partitions(name).items():
                log = partition.log
                segments = log._segments if log.in_memory else log._state.segments
                before = partition.replica.position.predecessor
                if partition.replica.position.index is None or before is None or len(segments) == 1:
                    continue
                above = self.cluster.partitions(before.broker).get(key)
                if above is None or segments[1].base <= above.log.start:
                    return False
        return True

    def _starts(self) -> dict[int, int]:
        """Below which offset of a partition something was let go."""
        found: dict[int, int] = defaultdict(int)
        for name in self.cluster.disks:
            for key, partition in self.cluster.partitions(name).items():
                if partition.topic == TOPIC:
                    found[key[1]] = max(found[key[1]], partition.log.start)
        return found

    def _ends(self, topic: str) -> dict[int, set[int]]:
        ends: dict[int, set[int]] = defaultdict(set)
        for key, held in self._catalogue().chains.items():
            for member in held.record.chain:
                partition = self.cluster.brokers[member.broker].partitions.get(key)
                if partition is not None and partition.topic == topic:  # a topic that is being made is not there yet
                    ends[key[1]] |= {partition.replica.end, partition.replica.committed}
        return ends

    def _table_wishes(self, wishes: dict[str, Any]) -> dict[str, Any]:
        kept = {"deletions_kept_s": self.seed % 3} if self.layout.compaction else {}
        return {**wishes, "partitions": 1, "kind": "table", **kept}

    def _members(self, name: str) -> list[Partition]:
        """The copies of a table, the head's first; `Checker.finish` compares their logs."""
        (key,) = (topic.keys[0] for topic in self._catalogue().topics.values() if topic.record.name == name)
        chain = self._catalogue().chains[key].record.chain
        return [self.cluster.brokers[member.broker].partitions[key] for member in chain]

    def _compare(self) -> None:
        """Everything acknowledged is there once, in order; nothing that was refused is."""
        history = self.history
        places: dict[bytes, tuple[int, int]] = {}
        for place, value in sorted(history.shown.items()):
            history.require(value not in places, "a message is there twice", value, places.get(value), place)
            places[value] = place
        starts = self._starts()
        for value, place in history.at.items():
            may_go = self.layout.retains or self.layout.memory
            if may_go and place[1] < starts[place[0]] and value not in places:
                continue  # let go before a reader came by, or lost with every broker that held it
            history.require(
                places.get(value) == place, "an acknowledged message is lost", value, place, places.get(value)
            )
        for value in history.refused:
            history.require(value not in places, "a refused message is there", value, history.refused[value])
        last: dict[tuple[bytes, int], int] = {}
        for (partition, _), value in sorted(history.shown.items()):
            producer, _, number = value.partition(b":")
            history.require(last.get((producer, partition), -1) < int(number), "out of order", partition, value)
            last[producer, partition] = int(number)
        if self.layout.table:
            members = self._members(TABLE)
            self.tables.compare(members, self.cluster.checker.archive[members[0].key])
        if self.layout.expiry:
            members = self._members(EXPIRING)
            self.expiry.compare(members, self.cluster.checker.archive[members[0].key])
        self._compare_shared_work()
        self.cluster.checker.finish()
        if self.layout.cursors:
            self._compare_cursors()
        self.require(holds=True, what="")

    def _compare_shared_work(self) -> None:
        """What groups, responders and queues did with it."""
        if self.layout.groups:
            self.groups.compare(self.history.acknowledged, self._heads_of(OUTPUTS))
        if self.layout.queues:
            self.queues.compare(self._members_of_all(QUEUE), self._heads_of(DEAD))
        if self.layout.requests:
            self.requests.compare()

    def _compare_cursors(self) -> None:
        """Every member has every cursor at least where it was answered to be."""
        catalogue = next(iter(self.cluster.brokers.values())).parts.ground.catalogue
        for key in catalogue.topics[CURSORS_TOPIC].keys if CURSORS_TOPIC in catalogue.topics else ():
            for member in catalogue.chains[key].record.chain:
                states = self.cluster.brokers[member.broker].partitions[key].replica.states
                view = committed_cursors(states) or {}
                found = {name: cursor.positions for (name, _), cursor in view.items()}
                self.history.check_cursors(self.history.moved, found)


def prepare(module: str, log: bool = False) -> None:
    """Make runs the same every time: begin this program again, with sets of names walked in one order."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.unraisablehook = lambda _: None  # coroutines of dead processes complain when they are thrown away
    warnings.simplefilter("ignore")  # for the same reason
    logging.getLogger().setLevel(logging.INFO if log else logging.CRITICAL + 1)
