"""A simulated broker: the real machines on a simulated disk, network and store.

What it does is what the real broker does around the same machines: perform effects, feed successors, tell the
controller. What survives a crash is in `Disk`, everything else is made anew at a start.
"""

from dataclasses import dataclass, field

import msgspec
from tests.simulation.world import Watcher

from stentor import limits
from stentor.core import cluster as c
from stentor.core import replica as r
from stentor.core.chain import Replica
from stentor.core.cluster import ClusterMember
from stentor.core.controller import BrokerRecord, Held, Propose, TopicPlan
from stentor.core.dedupe import Dedupe
from stentor.core.membership import ControllerKey
from stentor.core.peers import Adopt, Linked, ReplicaReport
from stentor.core.records import EpochTable, Member

TICK_US = int(limits.PEER_HEARTBEAT_S * 1_000_000)
FLOOR_US = 1_000_000
CONTROLLER = ("controller",)


@dataclass(frozen=True)
class Batch:
    """A batch by its header; `body_checksum` stands for its content."""

    base_offset: int
    end_offset: int
    epoch: int
    producer_id: int
    generation: int
    sequence: int
    body_checksum: int
    appended_at_us: int


@dataclass
class Log:
    """One copy of a partition's log."""

    log_id: int
    start: int = 0
    batches: list = field(default_factory=list)
    synced: int = 0  # how many batches are on disk
    snapshot: bytes | None = None  # of the state derived from what is below `start`
    epoch: int = 0  # stored: the highest adopted
    floor: int = 0  # stored: the commit floor
    failed: str = ""

    @property
    def end(self):
        return self.batches[-1].end_offset if self.batches else self.start

    @property
    def synced_end(self):
        return self.batches[self.synced - 1].end_offset if self.synced else self.start

    def cut(self, end):
        while self.batches and self.batches[-1].end_offset > end:
            self.batches.pop()
        self.synced = len(self.batches)

    def table(self):
        return EpochTable((b.epoch, b.base_offset) for b in self.batches).entries()


@dataclass
class Disk:
    """What a crash leaves."""

    incarnation: int = 0
    logs: dict = field(default_factory=dict)  # key -> Log


class Broker:
    """One broker of the simulated cluster."""

    replica_type = Replica
    member_type = ClusterMember

    def __init__(self, world, network, store, name, topics):
        self.world, self.network, self.store = world, network, store
        self.name = name
        self.topics = topics  # topic id -> TopicPlan
        self.disk = Disk()
        self.up = False
        self.paused_until = 0
        self.drift = 1.0
        self.life = 0  # which start; work of an earlier one is ignored
        self.halted = []
        network.brokers[name] = self

    # --- life -----------------------------------------------------------------------------------

    def clock(self):
        return int(self.world.now * self.drift)

    def start(self):
        if self.up:
            return
        self.up = True
        self.life += 1
        self.disk.incarnation += 1
        self.replicas, self.feeds, self.waiting, self.offers = {}, {}, {}, {}
        self.brokers, self.tickets = {}, 0
        self.cluster = self.member_type(self.name, self.disk.incarnation, self.clock(), self.world.new_id)
        for key, log in self.disk.logs.items():
            log.synced = len(log.batches)  # recovery syncs what it found (K3a)
            self.open_replica(key, log)
        self.watcher = self.store.watchers[self.name] = Watcher(self.store, self.watched)
        self.register()
        self.store.read(self.guard(self.loaded_store))
        self.world.at(self.world.rng.randint(0, TICK_US), self.guard(self.tick))
        self.world.at(FLOOR_US, self.guard(self.store_floors))
        self.world.note("start", self.name, self.disk.incarnation)

    def crash(self):
        if not self.up:
            return
        self.world.note("crash", self.name)
        self.world.touched[self.name] = self
        self.up = False
        self.life += 1
        self.watcher.closed = True
        self.network.drop(self.name)
        for log in self.disk.logs.values():
            if self.world.chance(self.world.rates.torn):
                keep = self.world.rng.randint(log.synced, len(log.batches))
                del log.batches[keep:]

    def pause(self, duration_us):
        self.paused_until = max(self.paused_until, self.world.now + duration_us)
        self.world.note("pause", self.name, duration_us)

    def guard(self, work):
        """The work of this life only, and only while awake."""
        life = self.life

        def run(*arguments):
            if self.life == life:
                self.when_awake(work, *arguments)

        return run

    def when_awake(self, work, *arguments):
        if not self.up:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until - self.world.now, self.guard(work), *arguments)
            return
        work(*arguments)

    def register(self):
        record = BrokerRecord(self.name, self.disk.incarnation)
        held = self.store.entries.get(("brokers", self.name), (None, 0))[1]
        self.store.swap({("brokers", self.name): held}, {("brokers", self.name): record}, self.guard(self.registered))

    def registered(self, revision):
        if not isinstance(revision, int):
            self.world.at(20_000, self.guard(self.register))

    def store_floors(self):
        for key, replica in self.replicas.items():
            log = self.disk.logs[key]
            log.floor = max(log.floor, min(replica.committed, log.synced_end))
        self.world.at(FLOOR_US, self.guard(self.store_floors))

    # --- replicas -------------------------------------------------------------------------------

    def open_replica(self, key, log):
        dedupe = Dedupe()
        derive(dedupe, log)
        self.replicas[key] = self.replica_type(
            me=Member(self.name, log.log_id, self.disk.incarnation),
            epoch=log.epoch,
            start=log.start,
            end=log.end,
            committed=log.floor,
            dedupe=dedupe,
            table=log.table(),
            failed=log.failed,
            damaged=log.end < log.floor or bool(log.failed),
        )

    def ensure_log(self, key, record):
        """The record names this broker with a log that it does not have: begin it."""
        named = [m for m in (*record.chain, record.joining) if m is not None and m.broker == self.name]
        if not named or named[0].incarnation != self.disk.incarnation:
            return
        log = self.disk.logs.get(key)
        if log is None or log.log_id != named[0].log_id:
            self.disk.logs[key] = log = Log(named[0].log_id, epoch=0 if log is None else log.epoch)
            self.feeds.pop(key, None)
            self.open_replica(key, log)
            self.report_replicas()

    def step(self, key, event):
        replica = self.replicas.get(key)
        self.world.touched[self.name] = self
        if replica is not None:
            self.perform(key, replica, replica.step(event, self.clock()))
            self.pump(key)

    def perform(self, key, replica, effects):
        for effect in effects:
            if self.world.chance(self.world.rates.crash_between):
                self.crash()
            if not self.up or self.replicas.get(key) is not replica:
                return
            PERFORM[type(effect)](self, key, replica, effect)

    def soon(self, least_us, work, *arguments):
        """Work of the disk: done after a while, unless this life ends before."""
        self.world.at(self.world.rng.randint(least_us, self.world.rates.sync_us), self.guard(work), *arguments)

    def do_sync(self, key, replica, _):
        self.soon(self.world.rates.sync_us // 4, self.sync, key, replica, len(self.disk.logs[key].batches))

    def do_store_epoch(self, key, replica, effect):
        self.soon(100, self.store_epoch, key, replica, effect.epoch)

    def do_truncate(self, key, replica, effect):
        self.soon(100, self.truncate, key, replica, effect)

    def do_send(self, key, _, effect):
        message = effect.message
        if isinstance(message, Linked) and message.reset:
            message = msgspec.structs.replace(message, snapshot=self.disk.logs[key].snapshot)
        self.tell(effect.to, "partition", key, self.name, message)

    def do_report(self, key, _, effect):
        self.tell(self.cluster.controller_broker, "member", key, effect.message)

    def do_feed(self, key, _, effect):
        self.feeds[key] = [effect, effect.base]

    def do_unfeed(self, key, *_):
        self.feeds.pop(key, None)

    def do_answer(self, _, __, effect):
        found = self.waiting.pop(effect.ticket, None)
        if found is not None:
            found[1](effect)

    def do_halt(self, key, _, effect):
        self.halted.append(effect.reason)
        self.disk.logs[key].failed = effect.reason

    def do_committed(self, key, _, effect):
        self.world.note("committed", self.name, key, effect.end)

    def sync(self, key, replica, batches):
        if self.replicas.get(key) is not replica:
            return
        log = self.disk.logs[key]
        if self.world.chance(self.world.rates.sync_error):
            log.failed = "a sync failed"
            # What an unsuccessful sync leaves is not known: only the last successful one counts (K3).
            del log.batches[log.synced :]
            self.step(key, r.Fail("a sync failed"))
            self.report_replicas()
            return
        log.synced = max(log.synced, min(batches, len(log.batches)))
        self.step(key, r.Durable(log.synced_end))

    def store_epoch(self, key, replica, epoch):
        if self.replicas.get(key) is replica:
            log = self.disk.logs[key]
            log.epoch = max(log.epoch, epoch)
            self.step(key, r.EpochStored(epoch))

    def truncate(self, key, replica, effect):
        if self.replicas.get(key) is not replica:
            return
        log = self.disk.logs[key]
        if effect.reset:
            log.batches, log.synced, log.start, log.snapshot = [], 0, effect.end, effect.snapshot
        else:
            log.cut(effect.end)
        assert log.end == effect.end, "cut inside a batch"
        derive(replica.dedupe, log)
        self.step(key, r.Cut(effect.end))

    # --- publishing and feeding -----------------------------------------------------------------

    def publish(self, key, ack, producer, answer):
        """A client's batch: producer = (id, generation, sequence, checksum, count)."""
        replica = self.replicas.get(key)
        if replica is None:
            answer(None)
            return
        if not self.cluster.membership.is_confirmed(self.clock()):
            answer(None)
            return
        self.tickets += 1
        producer_id, generation, sequence, checksum, size = producer
        event = r.Publish(self.tickets, ack, size, producer_id, generation, sequence, checksum)
        self.waiting[self.tickets] = (key, answer)
        (effect,) = replica.step(event, self.clock())
        if not isinstance(effect, r.Append):
            self.perform(key, replica, [effect])
            return
        if self.world.chance(self.world.rates.disk_full):
            del self.waiting[self.tickets]
            answer(None)
            return
        batch = Batch(
            effect.base_offset,
            effect.base_offset + size,
            effect.epoch,
            producer_id,
            generation,
            sequence,
            checksum,
            effect.appended_at_us,
        )
        self.disk.logs[key].batches.append(batch)
        self.step(key, r.Appended(event, effect))

    def pump(self, key):
        """Send the successor what it does not have yet."""
        feed, replica = self.feeds.get(key), self.replicas.get(key)
        if feed is None or replica is None:
            return
        effect, position = feed
        batches = self.disk.logs[key].batches
        index = len(batches)
        while index and batches[index - 1].base_offset >= position:
            index -= 1
        while index < len(batches):
            run = batches[index : index + 3]
            offered = r.Offered(
                self.name,
                effect.epoch,
                effect.attempt,
                replica.table.epoch_before(run[0].base_offset),
                run[0].base_offset,
                replica.durable_here(),
            )
            self.tell(effect.to, "offered", key, offered, run)
            index += len(run)
            feed[1] = run[-1].end_offset

    def take(self, key, offered, run):
        replica = self.replicas.get(key)
        if replica is None:
            return
        effects = replica.step(offered, self.clock())
        if effects == [r.Take()]:
            if self.world.chance(self.world.rates.disk_full):
                self.step(key, r.NotTaken())
                return
            self.disk.logs[key].batches.extend(run)
            self.step(key, r.Taken(run))
        else:
            self.perform(key, replica, effects)

    # --- the cluster ----------------------------------------------------------------------------

    def tell(self, to, what, *arguments):
        if to == self.name:
            self.world.at(0, self.guard(self.hear), what, *arguments)
        elif to:
            self.network.send(self.name, to, self.network.brokers[to].hear, what, *arguments)

    def hear(self, what, *arguments):
        if self.up:
            HEAR[what](self, *arguments)

    def hear_heartbeat(self, heartbeat):
        self.do(self.cluster.heard(heartbeat, self.clock()))

    def hear_partition(self, key, sender, message):
        if isinstance(message, Adopt):
            self.know(key, Held(message.record, message.revision))
        else:
            self.step(key, r.Received(sender, message))

    def hear_member(self, key, message):
        self.do(self.cluster.heard_member(key, message, self.clock()))

    def hear_reports(self, sender, incarnation, reports):
        self.do(self.cluster.heard_reports(sender, incarnation, reports, self.clock()))

    def hear_push(self, records):
        for key, held in records:
            self.know(key, held)

    def know(self, key, held):
        self.ensure_log(key, held.record)
        self.step(key, r.Configure(held.record, held.revision))

    def report_replicas(self, _=None):
        reports = {key: replica.report() for key, replica in self.replicas.items()}
        assert all(isinstance(report, ReplicaReport) for report in reports.values())
        self.tell(self.cluster.controller_broker, "reports", self.name, self.disk.incarnation, reports)

    def tick(self):
        for other in sorted(self.network.brokers):
            if other != self.name:
                outcome = self.network.try_connect(self.name, other)
                if outcome == "connected":
                    self.peer_connected(other)
                    peer = self.network.brokers[other]
                    peer.when_awake(peer.peer_connected, self.name)
                elif outcome == "refused":
                    self.do(self.cluster.refused(other, self.clock()))
        self.do(self.cluster.tick(self.clock()))
        for key in list(self.replicas):
            self.step(key, r.Tick())
        if self.up:
            self.world.at(TICK_US / self.drift, self.guard(self.tick))

    def peer_connected(self, other):
        for key in list(self.replicas):
            self.step(key, r.PeerConnected(other))
        if other == self.cluster.controller_broker:
            self.report_replicas()

    def do(self, effects):
        for effect in effects:
            if self.up:
                DO[type(effect)](self, effect)

    def to_all(self, *what):
        for other in sorted(self.network.brokers):
            if other != self.name:
                self.tell(other, *what)

    def beat(self, effect):
        self.to_all("heartbeat", effect.heartbeat)

    def push(self, effect):
        self.tell(self.name, "push", effect.records)
        self.to_all("push", effect.records)

    def take_over(self, effect):
        key = ControllerKey(self.name, self.disk.incarnation)
        self.store.swap({CONTROLLER: effect.revision}, {CONTROLLER: key}, self.guard(self.took_over))

    def load_all(self, _):
        self.store.read(self.guard(self.loaded_store))

    def took_over(self, revision):
        if isinstance(revision, int):
            self.do(self.cluster.took_over(ControllerKey(self.name, self.disk.incarnation), revision, self.clock()))
        else:
            self.cluster.takeover_failed(self.clock())
            self.store.read(self.guard(self.loaded_store))

    def propose(self, propose):
        expect = {("chains", change.key): change.revision for change in propose.changes}
        expect[CONTROLLER] = self.cluster.membership.controller_revision
        put = {("chains", change.key): change.record for change in propose.changes}

        def done(revision):
            self.do(self.cluster.proposed(propose, revision if isinstance(revision, int) else None, self.clock()))

        self.store.swap(expect, put, self.guard(done))

    def watched(self, entries):
        self.when_awake(self.take_entries, entries)

    def take_entries(self, entries):
        for key, (value, revision) in entries.items():
            if key == CONTROLLER:
                self.do(self.cluster.controller_is(value, revision))
            elif key[0] == "brokers":
                self.brokers[value.id] = value
                self.do(self.cluster.registered(self.brokers, self.clock()))
            elif key[0] == "chains":
                self.cluster.heard_record(key[1], Held(value, revision))
                self.know(key[1], Held(value, revision))

    def loaded_store(self, entries, _):
        self.take_entries(entries)
        if self.up and self.cluster.controller is not None:
            records = {k[1]: Held(*v) for k, v in entries.items() if k[0] == "chains"}
            self.do(self.cluster.loaded(self.brokers, self.topics, records, self.clock()))


def derive(dedupe, log):
    """State derived from the log's prefix (C19)."""
    dedupe.restore(log.snapshot)
    for b in log.batches:
        dedupe.record(
            b.producer_id, b.generation, b.sequence, b.body_checksum, b.base_offset, b.end_offset, b.appended_at_us
        )


PERFORM = {
    r.Sync: Broker.do_sync,
    r.StoreEpoch: Broker.do_store_epoch,
    r.Truncate: Broker.do_truncate,
    r.Send: Broker.do_send,
    r.Report: Broker.do_report,
    r.Feed: Broker.do_feed,
    r.Unfeed: Broker.do_unfeed,
    r.Answer: Broker.do_answer,
    r.Refuse: Broker.do_answer,
    r.Halt: Broker.do_halt,
    r.Committed: Broker.do_committed,
}

HEAR = {
    "heartbeat": Broker.hear_heartbeat,
    "partition": Broker.hear_partition,
    "offered": Broker.take,
    "member": Broker.hear_member,
    "reports": Broker.hear_reports,
    "push": Broker.hear_push,
}

DO = {
    c.Beat: Broker.beat,
    c.TakeOver: Broker.take_over,
    c.LoadAll: Broker.load_all,
    c.Push: Broker.push,
    c.ReportReplicas: Broker.report_replicas,
    Propose: Broker.propose,
}

__all__ = ["Batch", "Broker", "Disk", "Log", "TopicPlan"]
