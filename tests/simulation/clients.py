"""Producers and readers of a simulated cluster."""

from tests.simulation.checks import require

from stentor.core.acks import ALL
from stentor.core.replica_events import Answer

IN_FLIGHT = 4


class Producer:
    """An idempotent producer: a few batches under way, resent in order until they are answered."""

    def __init__(self, cluster, producer_id, key, ack):
        self.cluster, self.world = cluster, cluster.world
        self.id, self.key, self.ack = producer_id, key, ack
        self.generation = 0
        self.next = 0  # the next sequence
        self.under_way = {}  # sequence -> (checksum, size)
        self.acknowledged = {}  # (producer, generation, sequence) -> offset
        self.target = None
        self.stopped = False
        self.world.at(self.world.between(0, 50_000), self.turn)

    def turn(self):
        world, fresh = self.world, None
        if not self.stopped and len(self.under_way) < IN_FLIGHT:
            fresh = self.next
            self.under_way[fresh] = (world.rng.getrandbits(32), world.between(1, 5))
            self.next += 1
        if self.under_way:
            self.send(fresh)
        if not self.stopped or self.under_way:
            world.at(world.between(5_000, 80_000), self.turn)

    def send(self, fresh):
        """What is new, if all goes well; everything in order after a change, and now and then anyway."""
        changed = self.target is None or self.world.chance(0.05)
        if changed:
            self.target = self.find_head()
        broker = self.cluster.brokers.get(self.target)
        if broker is None or not broker.up:
            self.target = None
            return
        everything = changed or fresh is None or self.world.chance(0.3)
        for sequence in sorted(self.under_way) if everything else [fresh]:
            checksum, size = self.under_way[sequence]
            publish = (self.ack, size, self.id, self.generation, sequence, checksum)
            answer = self.on_answer(broker, min(self.under_way), self.generation, sequence)
            if not self.world.chance(self.world.rates.loss):
                self.world.at(self.world.delay(), broker.guard(broker.publish), self.key, publish, answer)

    def on_answer(self, broker, oldest, generation, sequence):
        def answer(effect):
            if not isinstance(effect, Answer) and self.is_stale(broker):
                effect = None  # what a deposed head refuses says nothing (C26)
            if not self.world.chance(self.world.rates.loss):
                self.world.at(self.world.delay(), self.answered, oldest, generation, sequence, effect)

        return answer

    def is_stale(self, broker):
        replica = broker.replicas.get(self.key)
        return replica is None or replica.epoch < self.cluster.record(self.key).epoch

    def find_head(self):
        if self.world.chance(0.2):
            return self.world.rng.choice(list(self.cluster.brokers))
        record = self.cluster.record(self.key)
        return record.chain[0].broker

    def answered(self, oldest, generation, sequence, effect):
        if generation != self.generation or sequence not in self.under_way:
            return
        if isinstance(effect, Answer):
            self.under_way.pop(sequence)
            if self.ack == ALL:
                self.acknowledged[self.id, generation, sequence] = effect.base_offset
                self.cluster.acknowledgements += 1
            return
        self.target = None
        error = getattr(effect, "error", None)
        reason = error.detail.get("reason") if error is not None else None
        if reason in ("gap", "unknown_producer", "old_generation", "forgotten"):
            self.lost_something(error, reason, oldest)

    def lost_something(self, error, reason, oldest):
        """An acknowledgement below `all` was provisional: what it covered may be gone. Go on under a new generation.

        `oldest` was the first one under way when the batch was sent.
        """
        expected = error.detail.get("expected", 0)
        if reason in ("gap", "unknown_producer") and expected >= oldest:
            return  # overtaken on the way
        require(self.ack != ALL, "a producer that waits for `all` lost a batch", self.id, reason, expected, oldest)
        waiting = [self.under_way[sequence] for sequence in sorted(self.under_way)]
        self.generation += 1
        self.under_way = dict(enumerate(waiting))
        self.next = len(waiting)


class EndReader:
    """Asks members where the messages end, now and then: never below what was acknowledged before it asked (C30)."""

    def __init__(self, cluster, key):
        self.cluster, self.world, self.key = cluster, cluster.world, key
        self.answers = 0
        self.world.at(self.world.between(0, 300_000), self.turn)

    def turn(self):
        broker = self.world.rng.choice(list(self.cluster.brokers.values()))
        if broker.up:
            self.world.at(self.world.delay(), broker.guard(self.ask), broker)
        self.world.at(self.world.between(50_000, 400_000), self.turn)

    def ask_now(self, broker):
        self.ask(broker)

    def ask(self, broker):
        acknowledged = self.cluster.checker.acknowledged_end(self.key)
        broker.ask_end(self.key, lambda answer: self.answered(broker, acknowledged, answer))

    def answered(self, broker, acknowledged, answer):
        if answer is None or answer.certainty == "unknown":
            return
        if answer.certainty == "if_newest":
            record, known = self.cluster.record(self.key), broker.replicas[self.key].record
            if record != known:
                return
        self.answers += 1
        require(answer.end >= acknowledged, "a reader was told an end too early", broker.name, answer, acknowledged)


class Reader:
    """Reads at any broker that holds a copy: committed batches, in order, each once, the same everywhere."""

    def __init__(self, cluster, key):
        self.cluster, self.world, self.key = cluster, cluster.world, key
        self.position = 0
        self.seen = {}  # base offset -> batch
        self.last = -1
        self.world.at(self.world.between(0, 100_000), self.turn)

    def turn(self):
        broker = self.world.rng.choice(list(self.cluster.brokers.values()))
        if broker.up and broker.paused_until <= self.world.now and self.key in broker.replicas:
            if self.world.chance(0.1):
                self.position = 0  # from the beginning again
            self.read(broker)
        self.world.at(self.world.between(20_000, 200_000), self.turn)

    def read(self, broker, *, count=50):
        """What this broker shows; a member that is behind has nothing to show yet (C24)."""
        replica, log = broker.replicas[self.key], broker.disk.logs[self.key]
        if replica.failed or replica.committed <= self.position:
            return
        self.position = max(self.position, log.start)  # the reader is told that the beginning is gone (C23)
        begin = log.position(self.position)
        for batch in log.batches[begin : begin + count]:
            if batch.end_offset > replica.committed:
                break
            require(batch.base_offset == self.position, "a reader met a gap", broker.name, self.position, batch)
            known = self.seen.setdefault(batch.base_offset, batch)
            require(known == batch, "a reader saw another value before", broker.name, known, batch)
            self.position = batch.end_offset
