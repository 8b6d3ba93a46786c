"""What must hold after every step, whatever has failed (SAFETY §4)."""

from collections import defaultdict
from itertools import pairwise


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
        self.checked = {}  # (broker, life, key) -> up to where its committed batches were compared
        self.epochs = {}  # (broker, key, log id) -> stored epoch
        self.floors = {}
        self.acknowledgers = {}  # (key, epoch) -> (broker, life)
        self.producers = defaultdict(dict)  # key -> (producer, generation, sequence) -> offset

    def acknowledged(self, broker, key, epoch):
        """One head per epoch acknowledges."""
        first = self.acknowledgers.setdefault((key, epoch), (broker.name, broker.disk.incarnation))
        require(
            first == (broker.name, broker.disk.incarnation), "two heads acknowledged in one epoch", key, epoch, first
        )

    def __call__(self):
        touched, self.cluster.world.touched = self.cluster.world.touched, {}
        for broker in touched.values():
            if broker.up:
                for key, replica in broker.replicas.items():
                    self.check_replica(broker, key, replica)
            for key, log in broker.disk.logs.items():
                self.check_stored(broker, key, log)
        if touched:
            self.check_members()

    def check_replica(self, broker, key, replica):
        replica.check_invariants()
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

    def compare(self, place, key, batch):
        """One value per committed offset, and one offset per value."""
        known = self.values[key].setdefault(batch.base_offset, batch)
        require(known == batch, "two values at one committed offset", place, known, batch)
        name = (batch.producer_id, batch.generation, batch.sequence)
        offset = self.producers[key].setdefault(name, batch.base_offset)
        require(offset == batch.base_offset, "one batch at two offsets", place, name, offset, batch.base_offset)

    def check_stored(self, broker, key, log):
        place = (broker.name, key, log.log_id)
        require(log.epoch >= self.epochs.get(place, 0), "a stored epoch went back", place)
        require(log.floor >= self.floors.get(place, 0), "a stored commit floor went back", place)
        self.epochs[place], self.floors[place] = log.epoch, log.floor

    def check_members(self):
        """Every member of the newest record holds everything committed, on disk."""
        for name, (record, _) in self.cluster.store.entries.items():
            if name[0] != "chains":
                continue
            key = name[1]
            for member in record.chain:
                broker = self.cluster.brokers[member.broker]
                log = broker.disk.logs.get(key)
                if log is None or log.log_id != member.log_id:
                    require(self.committed[key] == 0 or broker.lost_disk, "a member without its log", member, record)
                elif not log.failed and not broker.lost_disk:
                    require(
                        log.synced_end >= self.committed[key],
                        "a member without all that is committed",
                        member,
                        log.synced_end,
                        self.committed[key],
                        record,
                    )

    def finish(self, key, acknowledged):
        """After everything has healed: all that was acknowledged at `all` is there, once, in order."""
        found = self.producers[key]
        for name, offset in acknowledged.items():
            require(
                found.get(name) == offset, "an acknowledged batch is lost or elsewhere", name, offset, found.get(name)
            )
        offsets = sorted(self.values[key])
        for before, after in pairwise(offsets):
            require(self.values[key][before].end_offset == after, "a gap in what is committed", before, after)
