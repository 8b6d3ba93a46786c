"""A simulated broker: the real machines on a simulated disk, network and store.

What it does is what the real broker does around the same machines: perform effects, feed successors, tell the
controller. What survives a crash is in `Disk`, everything else is made anew at a start.
"""

import msgspec
from tests.simulation.disk import Batch, Disk, Log
from tests.simulation.member import MemberSide
from tests.simulation.store import Watcher
from tests.simulation.world import SECOND

from stentor import limits
from stentor.core import cluster_events as c
from stentor.core import refusals
from stentor.core import replica_events as r
from stentor.core.chain_messages import Linked
from stentor.core.cluster import ClusterMember
from stentor.core.dedupe import Dedupe, Resend
from stentor.core.records import Member
from stentor.core.replica import Replica

TICK_US = int(limits.PEER_HEARTBEAT_S * SECOND)
FLOOR_US = SECOND
RUN_BATCHES = 3


class Broker(MemberSide):
    """One broker of the simulated cluster."""

    def __init__(self, cluster, name):
        self.world, self.network, self.store = cluster.world, cluster.network, cluster.store
        self.checker = cluster.checker
        self.name = name
        self.disk = Disk()
        self.up = False
        self.paused_until = 0
        self.full_until = 0  # the disk has no room
        self.hangs = False  # the disk brings nothing to an end any more
        self.held_back = []  # what comes to an end when the disk goes on
        self.slow_until = 0
        self.knows_disk = True  # and this broker would notice and say so
        self.drift = 1.0
        self.wall_offset = 0
        self.life = 0  # which start; work of an earlier one is ignored
        self.replicas, self.feeds, self.waiting, self.cuts, self.taken, self.asking = {}, {}, {}, {}, set(), {}
        self.network.brokers[name] = self

    # --- life -----------------------------------------------------------------------------------

    def clock(self):
        """Counts on, but never quite right."""
        return int(self.world.now * self.drift)

    def wall(self):
        """May jump."""
        return int(self.world.now * self.drift) + self.wall_offset

    def start(self):
        if self.up:
            return
        self.up = True
        self.life += 1
        self.disk.incarnation += 1
        self.replicas, self.feeds, self.waiting, self.cuts, self.taken, self.asking = {}, {}, {}, {}, set(), {}
        self.known = {}  # key -> the newest revision heard of
        self.gone = set()  # ids of logs that were replaced in this life
        self.told, self.report_number = None, 0  # the last report: to whom, and what it said
        self.confirmed = {}  # key -> the newest record that the store itself has told
        self.seen = {}  # the store's key -> the newest revision heard of
        self.brokers, self.topics, self.tickets = {}, {}, 0
        self.cluster = ClusterMember(self.name, self.disk.incarnation, self.clock(), self.world.new_id)
        for key, log in self.disk.logs.items():
            log.synced = len(log.batches)  # recovery syncs what it found (K3a)
            self.checker.synced(self.name, key, log.batches)
            log.syncs = []
            self.open_replica(key, log)
        self.watcher = self.store.watchers[self.name] = Watcher(self.store, self.name, self.watched)
        self.register()
        self.store.read(self.name, self.guard(self.loaded_store))
        self.world.at(self.world.between(0, TICK_US), self.guard(self.tick))
        self.world.at(FLOOR_US, self.guard(self.every_second))
        self.world.note("start", self.name, self.disk.incarnation)

    def crash(self):
        if not self.up:
            return
        self.world.note("crash", self.name)
        self.up = False
        self.held_back = []
        self.life += 1
        self.watcher.closed = True
        self.network.drop(self.name)
        for key, log in self.disk.logs.items():
            self.world.touched[self.name, key] = None
            if self.world.chance(self.world.rates.torn):
                del log.batches[self.world.between(log.synced, len(log.batches)) :]

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

    def every_second(self):
        self.store.renew(self.name)
        for key, replica in list(self.replicas.items()):
            log = self.disk.logs[key]
            log.floor = max(log.floor, min(replica.committed, log.synced_end))
            log.checked = log.checked if replica.damaged else log.synced_end
            self.world.touched[self.name, key] = None
            if self.world.chance(self.world.rates.retention):
                self.retain(key, replica, log)
        self.world.at(FLOOR_US, self.guard(self.every_second))

    # --- replicas -------------------------------------------------------------------------------

    def open_replica(self, key, log):
        dedupe = Dedupe()
        log.derive(dedupe)
        self.replicas[key] = Replica(
            me=Member(self.name, log.log_id, self.disk.incarnation),
            epoch=log.epoch,
            start=log.start,
            end=log.end,
            committed=min(log.floor, log.end),
            dedupe=dedupe,
            table=log.table(),
            failed=log.failed,
            damaged=log.end < max(log.floor, log.checked) or bool(log.failed),
        )

    def ensure_log(self, key, record):
        """The record names this broker with a log that it does not have: begin it."""
        named = [m for m in (*record.chain, record.joining) if m is not None and m.broker == self.name]
        if not named or named[0].incarnation != self.disk.incarnation:
            return
        log = self.disk.logs.get(key)
        if log is None or log.log_id != named[0].log_id:
            if named[0].log_id in self.gone:
                self.report_replicas()  # C3: empty, it would pass for the copy that it was
                return
            if log is not None:
                self.gone.add(log.log_id)
            self.disk.logs[key] = log = Log(named[0].log_id, epoch=0 if log is None else log.epoch)
            self.feeds.pop(key, None)
            self.open_replica(key, log)
            self.report_replicas()

    def step(self, key, event):
        replica = self.replicas.get(key)
        self.world.touched[self.name, key] = None
        if replica is not None:
            self.perform(key, replica, replica.step(event, self.clock()))
            if key in self.feeds:
                self.pump(key)

    def perform(self, key, replica, effects):
        for effect in effects:
            if self.world.chance(self.world.rates.crash_between):
                self.crash()
            if not self.up or self.replicas.get(key) is not replica:
                return
            self.world.detail(self.name, key, effect)
            PERFORM[type(effect)](self, key, replica, effect)

    def soon(self, least_us, work, *arguments):
        """Work of the disk: done after a while, unless this life ends before."""
        slow = 20 if self.world.now < self.slow_until else 1
        delay_us = slow * self.world.between(least_us, max(least_us, self.world.rates.sync_us))
        self.world.at(delay_us, self.guard(self.finish), work, *arguments)

    def finish(self, work, *arguments):
        if self.hangs:
            self.held_back.append((self.guard(work), arguments))
        else:
            work(*arguments)

    def release(self):
        """The disk goes on."""
        self.hangs = False
        held_back, self.held_back = self.held_back, []
        for work, arguments in held_back:
            self.world.at(self.world.between(0, 1_000), work, *arguments)

    def do_sync(self, key, replica, _):
        log = self.disk.logs[key]
        sync = [len(log.batches), self.clock()]
        log.syncs.append(sync)
        self.soon(self.world.rates.sync_us // 4, self.synced, key, replica, sync)

    def synced(self, key, replica, sync):
        log = self.disk.logs[key]
        if self.replicas.get(key) is not replica or log.failed:
            return
        log.syncs = [other for other in log.syncs if other is not sync]
        if self.world.chance(self.world.rates.sync_error) and self.checker.may_lose(self.name, key):
            self.world.note("sync error", self.name, key)
            log.failed = "a sync failed"
            # What an unsuccessful sync leaves is not known: only the last successful one counts (K3).
            del log.batches[log.synced :]
            self.step(key, r.Fail("a sync failed"))
            self.report_replicas()
            return
        self.checker.synced(self.name, key, log.batches[log.synced : sync[0]])
        log.synced = max(log.synced, sync[0])
        if key in self.cuts and self.cuts[key][0] is replica:
            self.soon(100, self.truncate, key, *self.cuts.pop(key))
        else:
            self.step(key, r.Durable(log.synced_end))

    def do_store_epoch(self, key, replica, effect):
        self.soon(100, self.store_epoch, key, replica, effect.epoch)

    def store_epoch(self, key, replica, epoch):
        if self.replicas.get(key) is replica:
            log = self.disk.logs[key]
            log.epoch = max(log.epoch, epoch)
            self.step(key, r.EpochStored(epoch))

    def do_truncate(self, key, replica, effect):
        self.when_confirmed(key, self.truncate_soon, key, replica, effect)

    def truncate_soon(self, key, replica, effect):
        """A sync that is under way is waited for, and says nothing any more, as in a broker."""
        if self.disk.logs[key].syncs:
            self.cuts[key] = replica, effect
        else:
            self.soon(100, self.truncate, key, replica, effect)

    def truncate(self, key, replica, effect):
        if self.replicas.get(key) is not replica:
            return
        log = self.disk.logs[key]
        if effect.reset:
            log.begin(effect.end, effect.snapshot)
        else:
            log.cut(effect.end)
        assert log.end == effect.end, "cut inside a batch"
        self.derive_again(replica, log)
        self.step(key, r.Cut(effect.end))

    def derive_again(self, replica, log):
        log.derive(replica.dedupe)

    def do_send(self, key, _, effect):
        message = effect.message
        self.checker.sent(self, key, message)
        if isinstance(message, Linked) and message.reset:
            message = msgspec.structs.replace(message, snapshot=self.disk.logs[key].snapshot)
        self.tell(effect.to, "partition", key, self.name, message)

    def do_report(self, key, _, effect):
        self.tell_controller("member", key, effect.message)

    def do_feed(self, key, _, effect):
        self.feeds[key] = [effect, effect.base]

    def do_unfeed(self, key, *_):
        self.feeds.pop(key, None)

    def do_answer(self, key, replica, effect):
        found = self.waiting.pop(effect.ticket, None)
        if found is not None:
            publish, answer = found
            if isinstance(effect, r.Answer):
                self.checker.answered(self, key, replica, publish, effect)
            else:
                self.checker.refused(self, key, publish, effect.error, taken=effect.ticket in self.taken)
            self.taken.discard(effect.ticket)
            answer(effect)

    def do_find(self, key, replica, effect):
        """Look for that very batch in the log (C32); at once, since nothing is written meanwhile in a broker either."""
        found = self.find(self.disk.logs[key], effect.publish)
        if found is None:
            self.do_answer(key, replica, r.Refuse(effect.publish.ticket, refusals.not_found(effect.error)))
        else:
            resend = Resend(found.base_offset, found.end_offset, found.appended_at_us)
            self.step(key, msgspec.structs.replace(effect.publish, known=resend))

    def find(self, log, publish):
        name = (publish.producer_id, publish.generation, publish.sequence)
        same = (b for b in log.batches if b.name == name and b.body_checksum == publish.checksum)
        return next(same, None)

    def do_halt(self, key, _, effect):
        self.disk.logs[key].failed = effect.reason
        self.checker.halted(self, key, effect.reason)

    def do_end(self, key, _, effect):
        self.asking.pop(effect.ticket)(effect)

    def ask_end(self, key, answer):
        """A reader wants to know where the committed messages end."""
        if key not in self.replicas:
            answer(None)
            return
        self.tickets += 1
        self.asking[self.tickets] = answer
        self.step(key, r.AskEnd(self.tickets))

    def do_committed(self, key, _, effect):
        self.world.note("committed", self.name, key, effect.end)

    # --- retention (C23) ------------------------------------------------------------------------

    def retain(self, key, replica, log):
        """The head lets the beginning of its log go; some of what is committed, or all of it."""
        if not (replica.position.is_head and replica.active and log.whole):
            return
        committed = self.retirable(replica, log)
        count = committed if self.world.chance(0.2) else self.world.between(0, committed)
        if count:
            log.retire(count)
            self.checker.retired(key, log.start)
            self.world.note("retain", self.name, key, log.start)
            self.step(key, r.Started(log.start))

    def retirable(self, replica, log):
        """How many batches may go: nothing above the commit point."""
        return sum(batch.end_offset <= replica.committed for batch in log.batches[: log.synced])

    def do_retire(self, key, replica, effect):
        self.when_confirmed(key, self.retire, key, replica, effect)

    def retire(self, key, replica, effect):
        """Segments go as a whole: a few batches below may stay."""
        if self.replicas.get(key) is not replica:
            return
        log = self.disk.logs[key]
        count = sum(batch.end_offset <= effect.start for batch in log.batches[: log.synced])
        count = max(0, count - self.world.between(0, 2))
        if count and replica._cutting is None:
            log.retire(count)
            self.step(key, r.Started(log.start))

    # --- publishing and feeding -----------------------------------------------------------------

    def is_full(self):
        return self.world.now < self.full_until or self.world.chance(self.world.rates.disk_full)

    def publish(self, key, publish, answer):
        """A client's batch."""
        replica = self.replicas.get(key)
        if replica is None or not self.takes(replica):
            answer(None)
            return
        self.tickets += 1
        event = r.Publish(self.tickets, *publish, stamp_us=self.wall())
        self.waiting[self.tickets] = (event, answer)
        (effect,) = replica.step(event, self.wall())
        if not isinstance(effect, r.Append):
            self.perform(key, replica, [effect])
            return
        if self.is_full():
            del self.waiting[self.tickets]
            answer(None)
            return
        base, end = effect.base_offset, effect.base_offset + event.count
        named = (event.producer_id, event.generation, event.sequence, event.checksum)
        self.disk.logs[key].batches.append(Batch(base, end, effect.epoch, *named, effect.appended_at_us))
        self.taken.add(event.ticket)
        self.step(key, r.Appended(event, effect))

    def takes(self, replica):
        """C6: not where nobody who could have replaced it is heard, nor where its successor is not."""
        membership, now = self.cluster.membership, self.clock()
        successor = None if replica.position.is_tail else replica.position.successor
        heard = successor is None or membership.view(successor.broker, now) == "heard"
        return heard and membership.is_confirmed(now)

    def pump(self, key):
        """Send the successor what it does not have yet."""
        feed, replica = self.feeds[key], self.replicas[key]
        effect, position = feed
        log = self.disk.logs[key]
        if log.end <= position:
            return
        index = log.position(position)
        while index < len(log.batches):
            run = log.batches[index : index + RUN_BATCHES]
            base = run[0].base_offset
            previous, durable = replica.table.epoch_before(base), replica.durable_here()
            quorum = replica.quorum_wanted()
            offered = r.Offered(self.name, effect.epoch, effect.attempt, previous, base, durable, quorum)
            self.checker.sent(self, key, offered)
            self.tell(effect.to, "offered", key, offered, run)
            index += len(run)
            feed[1] = run[-1].end_offset

    def take(self, key, offered, run):
        replica = self.replicas.get(key)
        if replica is None:
            return
        effects = replica.step(offered, self.clock())
        if effects != [r.Take()]:
            self.world.touched[self.name, key] = None
            self.perform(key, replica, effects)
        elif self.is_full():
            self.step(key, r.NotTaken())
        else:
            self.disk.logs[key].batches.extend(run)
            self.step(key, r.Taken(run))

    # --- time -----------------------------------------------------------------------------------

    def tick(self):
        for other in self.network.brokers:
            if other != self.name:
                outcome = self.network.try_connect(self.name, other)
                if outcome == "connected":
                    # Each side notices in its own time, one perhaps after the other has linked already.
                    self.world.at(self.world.delay() * 3, self.guard(self.peer_connected), other)
                    peer = self.network.brokers[other]
                    self.world.at(self.world.delay() * 3, peer.guard(peer.peer_connected), self.name)
                elif outcome == "refused":
                    self.do(self.cluster.step(c.Refused(other), self.clock()))
        membership, now = self.cluster.membership, self.clock()
        writes = not self.knows_disk or not (self.hangs or self.world.now < self.full_until)
        self.do(self.cluster.step(c.StoreAsked(self.store.reachable(self.name)), now))
        self.do(self.cluster.step(c.Ticked(writes=writes), now))
        for key in list(self.replicas):
            began = min((began for _, began in self.disk.logs[key].syncs), default=None)
            self.step(key, r.Tick(membership.unreached(now), membership.awake_since_us, began))
        if self.up:
            self.world.at(TICK_US / self.drift, self.guard(self.tick))

    def peer_connected(self, other):
        for key in list(self.replicas):
            self.step(key, r.PeerConnected(other))
        if other == self.cluster.controller_broker:
            self.report_replicas()


PERFORM = {
    r.Sync: Broker.do_sync,
    r.StoreEpoch: Broker.do_store_epoch,
    r.Truncate: Broker.do_truncate,
    r.Send: Broker.do_send,
    r.Report: Broker.do_report,
    r.StartFeed: Broker.do_feed,
    r.StopFeed: Broker.do_unfeed,
    r.Answer: Broker.do_answer,
    r.Refuse: Broker.do_answer,
    r.Find: Broker.do_find,
    r.Halt: Broker.do_halt,
    r.Committed: Broker.do_committed,
    r.Retire: Broker.do_retire,
    r.End: Broker.do_end,
}
