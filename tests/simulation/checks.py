"""What must hold after every step, whatever has failed."""

from collections import defaultdict
from itertools import pairwise

from tests.simulation.world import SECOND

from stentor import limits
from stentor.core.acks import ALL, QUORUM
from stentor.core.chain_messages import Adopt
from stentor.errors import UnknownOutcome

CONTROLLER = ("controller",)
REPLACED_US = int(5 * limits.PEER_SILENCE_S * SECOND)  # by then a head has heard that it was replaced, or hears nobody


class ViolationError(AssertionError):
    """An invariant does not hold."""


def require(holds, what, *details):
    if not holds:
        raise ViolationError(f"{what}: {details}")


class Checker:
    """Watches all brokers, disks and the store of a simulated cluster."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.values = defaultdict(dict)  # key -> base offset -> batch: what was committed somewhere
        self.committed = defaultdict(int)  # key -> the highest commit point anybody knew
        self.checked = {}  # (broker, life, key, log id) -> up to where its committed batches were compared
        self.stored = {}  # (broker, key, log id) -> (epoch, floor)
        self.acknowledgers = {}  # (key, epoch) -> (broker, incarnation)
        self.producers = defaultdict(dict)  # key -> (producer, generation, sequence) -> offset
        self.copies = defaultdict(set)  # (key, base offset, epoch) -> brokers that ever had it on disk
        self.starts = defaultdict(int)  # key -> the highest start that a head chose
        self.acked = defaultdict(dict)  # key -> epoch -> up to where was acknowledged at `all` while it lasted
        self.replaced = {}  # key -> (epoch, when): the newest head, and since when the store says so
        self.halts_allowed = False

    # --- what brokers say while they work -------------------------------------------------------

    def synced(self, broker, key, batches):
        for batch in batches:
            self.copies[key, batch.base_offset, batch.epoch].add(broker)

    def retired(self, key, start):
        self.starts[key] = max(self.starts[key], start)
        require(start <= self.committed[key], "retention passed the commit point", key, start, self.committed[key])

    def sent(self, broker, key, message):
        """C2: nothing is said of an epoch that is not on disk yet."""
        epoch = message.record.epoch if isinstance(message, Adopt) else message.epoch
        stored = broker.disk.logs[key].epoch
        require(epoch <= stored, "an epoch is used before it is on disk", broker.name, key, message, stored)

    def answered(self, broker, key, replica, publish, answer):
        """An answer promises as many copies on disk as its level says (C5, C7, C18)."""
        log = broker.disk.logs[key]
        index = log.position(answer.base_offset)
        gone = answer.base_offset < log.start
        held = None if gone or index == len(log.batches) else log.batches[index]
        name = (publish.producer_id, publish.generation, publish.sequence)
        place = (broker.name, key, publish, answer)
        require(gone or (held is not None and held.name == name), "answered with a wrong offset", place, held)
        require(gone or held.body_checksum == publish.checksum, "answered for another batch", place, held)
        self.check_replaced(broker, key, answer)
        if publish.ack == ALL:
            self.acknowledged(broker, key, answer.epoch)
            if not gone:
                before = self.acked[key].get(replica.epoch, 0)
                self.acked[key][replica.epoch] = max(before, held.end_offset)
                self.check_at_all(place, key, held)
        elif not gone:
            copies = self.copies[key, held.base_offset, held.epoch]
            needed = replica.record.quorum if publish.ack == QUORUM else 1
            require(len(copies) >= needed, "answered with too few copies", place, copies, needed)

    def acknowledged_end(self, key):
        """Up to where was acknowledged at `all`, by whichever head."""
        return max(self.acked[key].values(), default=0)

    def refused(self, broker, key, publish, error, *, taken):
        """C6: of a batch that is in a log nobody can say that it failed."""
        unknown = isinstance(error, UnknownOutcome)
        require(unknown or not taken, "a batch that was taken is said to have failed", broker.name, key, publish, error)

    def check_replaced(self, broker, key, answer):
        """C6: a head that was replaced does not go on for long, at any level."""
        epoch, since = self.replaced.get(key, (0, 0))
        quiet = self.cluster.world.now - max(since, broker.paused_until)
        require(
            answer.epoch >= epoch or quiet < REPLACED_US, "a head that was replaced goes on", broker.name, key, answer
        )

    def acknowledged(self, broker, key, epoch):
        """One head per epoch acknowledges."""
        me = (broker.name, broker.disk.incarnation)
        first = self.acknowledgers.setdefault((key, epoch), me)
        require(first == me, "two heads acknowledged in one epoch", key, epoch, first, me)

    def check_at_all(self, place, key, batch):
        record = self.cluster.record(key)
        for member in record.chain:
            log = self.log_of(key, member)
            if log is not None and log.whole and batch.base_offset >= log.start:
                index = log.position(batch.base_offset)
                held = log.batches[index] if index < log.synced else None
                require(held == batch, "acknowledged at `all`, but not at every member", place, member, held, batch)

    def halted(self, broker, key, reason):
        """While every rule is kept, nobody meets the reason for a halt."""
        require(self.halts_allowed, "a replica halted", broker.name, key, reason)

    def may_lose(self, broker, key):
        """Whether a copy may be lost: only while the newest record names another whole one."""
        record = self.cluster.record(key)
        others = [self.log_of(key, member) for member in record.chain if member.broker != broker]
        whole = sum(log is not None and log.whole for log in others)
        return whole == len(others) and whole >= (1 if len(record.chain) == 2 else 2)

    # --- after every step -----------------------------------------------------------------------

    def __call__(self, touched):
        keys = {}
        for name, key in touched:
            keys[key] = None
            broker = self.cluster.brokers.get(name)
            if broker is not None and key in broker.disk.logs:
                if broker.up and key in broker.replicas:
                    self.check_replica(broker, key, broker.replicas[key])
                self.check_stored(name, key, broker.disk.logs[key])
        for key in keys:
            self.check_members(key)

    def check_replica(self, broker, key, replica):
        replica.check_invariants()
        if replica.serves and not replica.record.is_short:
            self.check_serves(broker, key, replica)
        place = (broker.name, broker.life, key, replica.me.log_id)
        done = self.checked.get(place, 0)
        if replica.committed <= done:
            return
        self.committed[key] = max(self.committed[key], replica.committed)
        log = broker.disk.logs[key]
        if not replica.failed:
            require(log.end >= replica.committed, "a commit point beyond the log", place, log.end, replica.committed)
        for batch in reversed(log.batches):
            if batch.end_offset <= done:
                break
            if batch.end_offset <= replica.committed:
                self.compare(place, key, batch)
        self.checked[place] = replica.committed

    def check_serves(self, broker, key, replica):
        """C24: who shows anything to readers shows all that was acknowledged before its epoch."""
        before = max((end for epoch, end in self.acked[key].items() if epoch < replica.epoch), default=0)
        require(replica.committed >= before, "a member shows less than was acknowledged", broker.name, key, before)

    def compare(self, place, key, batch):
        """One value per committed offset, and one offset per value."""
        known = self.values[key].setdefault(batch.base_offset, batch)
        require(known == batch, "two values at one committed offset", place, known, batch)
        offset = self.producers[key].setdefault(batch.name, batch.base_offset)
        require(offset == batch.base_offset, "one batch at two offsets", place, batch.name, offset, batch.base_offset)

    def check_stored(self, name, key, log):
        place = (name, key, log.log_id)
        epoch, floor = self.stored.get(place, (0, 0))
        require(log.epoch >= epoch, "a stored epoch went back", place)
        require(log.floor >= floor, "a stored commit floor went back", place)
        self.stored[place] = (log.epoch, log.floor)
        require(log.start <= self.starts[key], "a log begins where no head let it begin", place, log.start)

    def log_of(self, key, member):
        log = self.cluster.brokers[member.broker].disk.logs.get(key)
        return log if log is not None and log.log_id == member.log_id else None

    def check_members(self, key):
        """Every member of the newest record holds everything committed, on disk."""
        record, committed = self.cluster.record(key), self.committed[key]
        for member in record.chain:
            log = self.log_of(key, member)
            if log is None:
                lost = member.log_id in self.cluster.brokers[member.broker].disk.lost
                require(committed == 0 or lost, "a member without its log", key, member, record)
            elif log.synced_end >= max(committed, log.checked):  # below that it is damaged (C13)
                log.excused = False
            elif log.synced_end < committed:
                require(
                    not log.whole,
                    "a member without all that is committed",
                    key,
                    member,
                    log.synced_end,
                    committed,
                    record,
                )

    # --- the store ------------------------------------------------------------------------------

    def check_change(self, key, before, after, who):
        """C1 and C16: which record may follow which, and who may say so."""
        if key[0] != "chains" or before is None:
            return
        require(who == self.cluster.store.value(*CONTROLLER), "changed by one who is not the controller", key, who)
        require(bool(after.chain), "an empty chain", key, after)
        if after.epoch == before.epoch:
            same = (before.chain, before.eligible, before.factor) == (after.chain, after.eligible, after.factor)
            require(same and before.joining is None, "a change without a new epoch", key, before, after)
            return
        if after.chain[:1] != before.chain[:1]:
            self.replaced[key[1]] = after.epoch, self.cluster.world.now
        require(after.epoch == before.epoch + 1, "an epoch was left out", key, before, after)
        require(after.committed >= before.committed, "the recorded commit point went back", key, before, after)
        was, logs = _logs(before.chain), _logs(after.chain)
        joined = [*was, *_logs([before.joining] if before.joining is not None else [])]
        revived = len(logs) == 1 and logs[0] in _logs(before.eligible)
        smaller = len(logs) == len(set(logs)) and set(logs) <= set(was)
        require(smaller or logs == joined or revived, "a chain that may not follow", key, before, after)

    # --- at the end -----------------------------------------------------------------------------

    def finish(self, key, acknowledged):
        """After everything has healed: all that was acknowledged at `all` is there, once, in order."""
        found, values = self.producers[key], self.values[key]
        for name, offset in acknowledged.items():
            place = found.get(name)
            require(place == offset, "an acknowledged batch is lost or elsewhere", key, name, offset, place)
        offsets = sorted(values)
        for before, after in pairwise(offsets):
            require(values[before].end_offset == after, "a gap in what is committed", before, after)
        for member in self.cluster.record(key).chain:
            self.check_copy(key, member, self.log_of(key, member))

    def check_copy(self, key, member, log):
        """A member's whole copy, read from its beginning."""
        position = log.start
        for batch in log.batches:
            require(batch.base_offset == position, "a gap in a log", key, member, position, batch)
            position = batch.end_offset
            if batch.end_offset <= self.committed[key]:
                known = self.values[key].get(batch.base_offset)
                require(known == batch, "a copy differs", key, member, known, batch)
        require(position >= self.committed[key], "a copy is too short", key, member, position)


def _logs(members):
    return [(member.broker, member.log_id) for member in members]
