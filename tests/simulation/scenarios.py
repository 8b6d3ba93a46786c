"""Directed runs, for what chance alone brings about too seldom. Each raises what it finds."""

import msgspec
from tests.simulation.checks import require
from tests.simulation.clients import Producer
from tests.simulation.cluster import Cluster
from tests.simulation.faults import plan_for
from tests.simulation.store import CONTROLLER
from tests.simulation.world import SECOND, Rates

from stentor.core.acks import ALL, HEAD
from stentor.core.membership import ControllerKey
from stentor.core.records import HeldRecord, Member
from stentor.core.replica_events import Answer

KEY = (1, 0)


class Quiet(Cluster):
    """Three brokers, one partition, and no faults but those that are asked for."""

    def layout(self):
        self.build(["b0", "b1", "b2"], [], {1: plan_for(3)}, 1)


def restored_head():
    """C9, C13: the head's disk comes back from an old backup. Whatever it says, the others keep what is committed."""
    cluster = Quiet(1)
    cluster.checker.halts_allowed = True
    cluster.go(3 * SECOND)
    held = dict(cluster.checker.values[KEY])
    head, *others = (cluster.brokers[member.broker] for member in cluster.record(KEY).chain)
    for broker in (head, *others):
        broker.crash()
    log = head.disk.logs[KEY]
    log.excused, log.floor, log.checked = True, 0, 0
    log.cut(log.batches[len(log.batches) // 2].base_offset)
    cluster.checker.stored.clear()
    for broker in (head, *others):
        broker.start()
    cluster.world.run(cluster.world.now + 5 * SECOND, lambda _: None)
    for broker in others:
        log = broker.disk.logs[KEY]
        kept = {batch.base_offset: batch for batch in log.batches}
        require(held.items() <= kept.items(), "committed batches were cut off", broker.name, log.failed)


def replaced_controller():
    """C16: the controller is replaced while a change of its own is on the way to the store."""
    cluster = Quiet(2)
    cluster.go(2 * SECOND)
    store, swap = cluster.store, cluster.store.swap

    def intercepted(who, expect, put, done):
        swap(who, expect, put, done)
        if ("chains", KEY) in put and who == store.value(*CONTROLLER):
            other = next(broker for broker in cluster.brokers.values() if broker.name != who.broker)
            store.put({CONTROLLER: ControllerKey(other.name, other.disk.incarnation)})

    store.swap = intercepted
    store.put({("topics", 1): plan_for(2)})
    cluster.go(SECOND)
    require(store.value(*CONTROLLER) is not None, "there is no controller")


class Four(Cluster):
    """The same with four brokers in one chain, and slow disks."""

    def layout(self):
        self.world.rates = Rates(sync_us=20_000, delay_us=1_000)
        self.build(["b0", "b1", "b2", "b3"], [], {1: plan_for(4)}, 1)


def shorter_head():
    """C5: the last two have no room while the first two go on; then the last one leads, and all are cut back to it.

    What the third one heard from above in the old epoch is more than anybody has in the new one.
    """
    cluster = Four(3)
    cluster.go(2 * SECOND)
    chain = cluster.record(KEY).chain
    third, last = (cluster.brokers[member.broker] for member in chain[2:])
    for broker in (third, last):
        broker.full_until, broker.knows_disk = cluster.world.now + 400_000, False
    cluster.go(390_000)
    require(third.replicas[KEY]._above > last.replicas[KEY].end, "the first two are not ahead")
    record = msgspec.structs.replace(cluster.record(KEY), epoch=2, chain=(chain[3], *chain[:3]))
    cluster.store.check_change = None
    cluster.store.put({("chains", KEY): record})
    cluster.go(2 * SECOND)
    require(cluster.record(KEY).epoch >= 2, "the chain was not changed")


# --- C6: a head that is cut off ---------------------------------------------------------------------


def cut_off_head(cluster, cuts, *, store=True):
    """Clients reach the old head, and nobody else does. Sooner or later it takes nothing any more, at any level."""
    cluster.go(2 * SECOND)
    head = cluster.brokers[cluster.record(KEY).chain[0].broker]
    faithful = Producer(cluster, 99, KEY, HEAD)
    faithful.find_head = lambda: head.name
    cluster.network.cuts |= set(cuts(head.name, [name for name in cluster.brokers if name != head.name]))
    if store:
        cluster.store.cut.add(head.name)
    cluster.go(12 * SECOND)
    require(cluster.record(KEY).chain[0].broker != head.name, "the head was not replaced")


def isolated_head():
    cut_off_head(Quiet(4), lambda head, others: [pair for o in others for pair in ((head, o), (o, head))])


def mute_head():
    """It hears its successor; nobody hears it, and the controller does not get through to it."""
    cluster = controlled_by_the_last(5)
    cut_off_head(cluster, lambda head, others: [*((head, other) for other in others), (last_of(cluster), head)])


def sidelined_head():
    """It hears its successor, and is heard by it, which knows of the new chain; but neither controller nor store."""
    cluster = controlled_by_the_last(6)
    last = last_of(cluster)
    cut_off_head(cluster, lambda head, _: [(head, last), (last, head)])


def controlled_by_the_last(seed):
    cluster = Quiet(seed)
    cluster.go(SECOND)
    let_control(cluster, last_of(cluster))
    return cluster


def last_of(cluster):
    return cluster.record(KEY).chain[-1].broker


def let_control(cluster, broker):
    cluster.store.put({CONTROLLER: ControllerKey(broker, cluster.brokers[broker].disk.incarnation)})


# --- C14, C15: who has to leave, and who must not ---------------------------------------------------


SILENCE_US = 3 * SECOND  # the longest that publishers may wait for a member that is there and of no use
SLICE_US = 50_000


def longest_gap(cluster, duration_us):
    """For how long nothing was acknowledged, at most."""
    gap = longest = 0
    for _ in range(0, duration_us, SLICE_US):
        before = cluster.acknowledgements
        cluster.go(SLICE_US)
        gap = gap + SLICE_US if cluster.acknowledgements == before else 0
        longest = max(longest, gap)
    return longest


def trouble(seed, fault, *, limit_us=SILENCE_US, seconds=12, before=lambda _: None):
    """Something is wrong with one broker or one link: publishers wait for less than the limit."""
    cluster = Quiet(seed)
    cluster.go(SECOND)
    before(cluster)
    cluster.go(SECOND)
    fault(cluster, [cluster.brokers[member.broker] for member in cluster.record(KEY).chain])
    gap = longest_gap(cluster, seconds * SECOND)
    require(gap < limit_us, "publishers waited for too long", gap / SECOND, cluster.record(KEY), cluster.state())
    return cluster


def hang(broker, *, knows=False):
    broker.hangs, broker.knows_disk = True, knows


def fill(cluster, broker, *, knows=True, seconds=60):
    broker.full_until, broker.knows_disk = cluster.world.now + seconds * SECOND, knows


def grey_member():
    """C14: the disk of a member hangs, wherever it is, and only others can tell; a head can tell by itself (C31)."""
    for place in range(3):
        trouble(7, lambda _, chain, place=place: hang(chain[place]))


def full_member():
    """C31: the disk of a member is full, wherever it is; it says so, or others find out."""
    for place in range(3):
        cluster = trouble(13, lambda cluster, chain, place=place: fill(cluster, chain[place]))
        require(len(cluster.record(KEY).chain) == 2, "the full one is still there", cluster.record(KEY))
    trouble(13, lambda cluster, chain: fill(cluster, chain[2], knows=False))


def blame():
    """C14: the last of the chain stands still and does not know it: that one leaves, not the one before it."""
    for seed in range(30, 36):
        cluster = Quiet(seed)
        cluster.go(2 * SECOND)
        chain = [cluster.brokers[member.broker] for member in cluster.record(KEY).chain]
        fill(cluster, chain[2], knows=False, seconds=3)
        epoch = cluster.record(KEY).epoch
        require(cluster.go(4 * SECOND, lambda c=cluster, e=epoch: c.record(KEY).epoch > e), "nobody left")
        held = [member.broker for member in cluster.record(KEY).chain]
        require(held == [chain[0].name, chain[1].name], "the wrong one left", held)


def all_full():
    """K5, C31: when all disks are full, nobody leaves; everything goes on when there is room again."""
    cluster = Quiet(15)

    def full():
        for broker in cluster.brokers.values():
            fill(cluster, broker, seconds=6)

    nobody_leaves(cluster, full, 6)
    before = cluster.acknowledgements
    cluster.go(3 * SECOND)
    require(cluster.acknowledgements > before, "nothing goes on", cluster.state())


def useless_joiner():
    """C11: a joiner whose disk is full, or hangs, and that does not know it, hardly holds up the others."""

    def rejoin(how):
        def fault(cluster, chain):
            chain[2].crash()
            how(cluster, chain[2])
            cluster.world.at(SECOND, chain[2].start)

        return fault

    trouble(16, rejoin(lambda cluster, broker: fill(cluster, broker, knows=False)), limit_us=SECOND)
    trouble(17, rejoin(lambda _, broker: hang(broker)), limit_us=SECOND)


def joiner_hangs():
    """C11: a joiner's disk hangs while everybody waits for it."""
    waited = sum(joiner_that_hangs(seed) for seed in range(40, 52))
    require(waited >= 2, "the joiners were ready before they hung")


def joiner_that_hangs(seed):
    """Whether anybody waited for it; else it had become a member in that moment."""
    cluster = Quiet(seed)
    cluster.go(2 * SECOND)
    tail, joiner = (cluster.brokers[name_at(cluster, place)] for place in (1, 2))
    joiner.crash()
    cluster.world.at(SECOND // 2, joiner.start)

    def waits():
        below = tail.replicas[KEY].downstream
        return below.joint and not below.joiner_is_ready

    if not cluster.go(10 * SECOND, waits):
        return False
    hang(joiner)
    cluster.go(50_000)
    if not waits():
        return False
    gap = longest_gap(cluster, 8 * SECOND)
    require(gap < SECOND, "publishers waited for too long for a joiner", gap / SECOND, cluster.state())
    return True


def cut_between(first, second):
    def fault(cluster, chain):
        one, other = chain[first].name, chain[second].name
        cluster.network.cuts |= {(one, other), (other, one)}

    return fault


def neighbours_cut():
    """C15: two neighbours of a chain do not reach each other; everybody else reaches both."""
    for seed, (first, second) in enumerate([(0, 1), (1, 2), (0, 1), (1, 2)], 18):
        trouble(seed, cut_between(first, second), limit_us=2 * SECOND)
    for controller in range(3):
        trouble(
            22, cut_between(0, 1), limit_us=2 * SECOND, before=lambda c, n=controller: let_control(c, name_at(c, n))
        )


def one_way_cut():
    """C15: what a member sends does not reach its successor, or what that one answers does not come back."""
    for first, second in ((0, 1), (1, 0), (1, 2), (2, 1)):

        def fault(cluster, chain, pair=(first, second)):
            cluster.network.cuts.add(tuple(chain[place].name for place in pair))

        trouble(53, fault, limit_us=SILENCE_US)


def name_at(cluster, place):
    return cluster.record(KEY).chain[place].broker


def storeless_controller():
    """C29: the controller is cut off from the store alone, and then the head dies: somebody else takes over."""

    def fault(cluster, chain):
        cluster.store.cut.add(chain[1].name)
        cluster.go(SECOND // 2)
        chain[0].crash()

    cluster = trouble(23, fault, before=lambda cluster: let_control(cluster, name_at(cluster, 1)))
    require(cluster.store.value(*CONTROLLER).broker != cluster.record(KEY).chain[0].broker, "the office was not left")


def one_of_three_returns():
    """C30: all die, and one comes back alone: nobody is told an end that is too early, nor one at all."""
    cluster = Quiet(24)
    cluster.go(2 * SECOND)
    for broker in cluster.brokers.values():
        broker.disk.logs[KEY].floor = 0
        broker.crash()
    cluster.checker.stored.clear()
    cluster.go(SECOND)
    cluster.brokers[cluster.record(KEY).chain[1].broker].start()
    reader = cluster.end_readers[0]
    before = reader.answers
    cluster.go(10 * SECOND)
    require(reader.answers == before, "an end was told although nobody can know it")
    for broker in cluster.brokers.values():
        broker.start()
    cluster.go(5 * SECOND)
    require(reader.answers > before, "nobody tells the end")


def liar():
    """C28: a peer tells everybody of a chain that the store does not have, and that does without them."""

    def lie(cluster, chain):
        record = cluster.record(KEY)
        ghost = msgspec.structs.replace(record, epoch=record.epoch + 1, chain=(Member("ghost", 99, 1),))
        for broker in chain:
            broker.hear("push", [(KEY, HeldRecord(ghost, 2**60))])

    cluster = trouble(29, lie, limit_us=SECOND)
    require(cluster.record(KEY).epoch == 1, "somebody believed it", cluster.record(KEY))


def paused_head():
    """C30: a head is paused, replaced, and wakes up: it tells nobody where the messages ended when it fell asleep."""
    for seed in range(25, 29):
        cluster = Quiet(seed)
        cluster.go(2 * SECOND)
        head = cluster.brokers[name_at(cluster, 0)]
        reader = cluster.end_readers[0]
        head.pause(3 * SECOND)
        for wait in range(20):
            cluster.world.at(2 * SECOND + wait * 60_000, head.guard(reader.ask_now), head)
        cluster.go(8 * SECOND)


def unheard_complaint():
    """C15: the head is cut off from its successor, which is the controller, and hears of it by way of the third."""
    cluster = Quiet(12)
    cluster.go(SECOND)
    head, successor, _ = (member.broker for member in cluster.record(KEY).chain)
    let_control(cluster, successor)
    cluster.go(SECOND)
    cluster.network.cuts |= {(head, successor), (successor, head)}
    cluster.go(5 * SECOND)
    before = cluster.acknowledgements
    cluster.go(3 * SECOND)
    require(cluster.acknowledgements > before, "a cut between two members stops everyone", cluster.record(KEY))


def nobody_leaves(cluster, trouble, seconds):
    cluster.go(2 * SECOND)
    before = cluster.record(KEY)
    trouble()
    cluster.go(seconds * SECOND)
    after = cluster.record(KEY)
    require(before.epoch == after.epoch, "a member was removed that is well", before, after)


def standstill():
    """C15: all of it stood still, as when a machine is suspended: nobody was silent for anybody who was awake."""
    cluster = Quiet(8)
    nobody_leaves(cluster, lambda: [broker.pause(4 * SECOND) for broker in cluster.brokers.values()], 8)


def lone_observer():
    """C15: only one broker, the controller, does not hear another one; the others do."""
    cluster = Quiet(9)

    def cut():
        first, _, last = (member.broker for member in cluster.record(KEY).chain)
        let_control(cluster, first)
        cluster.network.cuts |= {(first, last), (last, first)}

    nobody_leaves(cluster, cut, 6)


def lapsed_leases():
    """C15: the store was paused, and all liveness keys lapsed at once: that is not the death of everybody."""
    cluster = Quiet(10)

    def lapse():
        controller = cluster.store.value(*CONTROLLER).broker  # of its own death nobody would act on
        for name in cluster.brokers:
            if name != controller:
                cluster.store.lapse(name)

    nobody_leaves(cluster, lapse, 5)


class Five(Cluster):
    """Five brokers in one chain."""

    def layout(self):
        self.build([f"b{number}" for number in range(5)], [], {1: plan_for(5)}, 1)


def wave_of_silence():
    """C15: two of five are silent, and when they are back the other two are: it is not given up one after the other."""
    cluster = Five(11)
    cluster.go(2 * SECOND)
    controller = cluster.store.value(*CONTROLLER).broker
    first, second, third, fourth = (cluster.brokers[name] for name in cluster.brokers if name != controller)
    for broker in (first, second):
        broker.pause(900_000)
    cluster.go(900_000)
    held = {member.broker for member in cluster.record(KEY).chain}
    require(not held & {first.name, second.name}, "the first two were not given up", held)
    for broker in (third, fourth):
        broker.pause(2_000_000)
    cluster.go(1_000_000)
    held = {member.broker for member in cluster.record(KEY).chain}
    require(held >= {third.name, fourth.name}, "four of five were given up in two seconds", held)


def poisoned_producer():
    """C32: somebody sends under another's id, with the highest generation. What its owner sends is found or unknown."""
    cluster = Quiet(12)
    cluster.go(2 * SECOND)
    head, owner, last = cluster.brokers[cluster.record(KEY).chain[0].broker], 77, 2**32 - 1

    def publish(generation, sequence, checksum):
        answers = []
        head.publish(KEY, (ALL, 1, owner, generation, sequence, checksum), answers.append)
        cluster.go(SECOND)
        return answers[0]

    written = [publish(5, sequence, sequence) for sequence in range(40)]
    require(all(isinstance(answer, Answer) for answer in written), "the owner cannot publish", written)
    forgotten = publish(5, 0, 0)
    require(isinstance(forgotten, Answer), "a batch that is in the log was not found", forgotten)
    publish(last, 0, 1)
    for sequence in (0, 39):
        again = publish(5, sequence, sequence)
        require(isinstance(again, Answer), "a batch that is in the log was not found", again)
        require(again.base_offset == written[sequence].base_offset, "found elsewhere", again, written[sequence])
    for never_written in ((5, 40, 40), (6, 0, 0), (5, 0, 99), (last, 0, 2)):
        answer = publish(*never_written)
        require(not isinstance(answer, Answer), "acknowledged, but not in the log", never_written, answer)


SCENARIOS = {
    "poisoned-producer": poisoned_producer,
    "shorter-head": shorter_head,
    "restored-head": restored_head,
    "replaced-controller": replaced_controller,
    "isolated-head": isolated_head,
    "mute-head": mute_head,
    "sidelined-head": sidelined_head,
    "grey-member": grey_member,
    "unheard-complaint": unheard_complaint,
    "standstill": standstill,
    "lone-observer": lone_observer,
    "lapsed-leases": lapsed_leases,
    "wave-of-silence": wave_of_silence,
    "full-member": full_member,
    "blame": blame,
    "all-full": all_full,
    "useless-joiner": useless_joiner,
    "joiner-hangs": joiner_hangs,
    "neighbours-cut": neighbours_cut,
    "one-way-cut": one_way_cut,
    "storeless-controller": storeless_controller,
    "one-of-three-returns": one_of_three_returns,
    "paused-head": paused_head,
    "liar": liar,
}
