"""Directed runs, for what chance alone brings about too seldom. While every rule is kept, they find nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from tests.virtual import directed_compaction, directed_cursors, directed_expiry, directed_operators
from tests.virtual.scene import WAIT_S, Scene, require, scene
from tests.virtual.store import StoreAccess
from tests.virtual.workload import TOPIC

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, broker_key, decode_broker, encode
from stentor.broker.partitions.interfaces import Request
from stentor.core.acks import ALL
from stentor.core.membership import ControllerKey
from stentor.core.records import Member
from stentor.errors import UnknownSwap
from stentor.wire import batch, peer
from stentor.wire.header import check_header

if TYPE_CHECKING:
    from collections.abc import Callable

_replace = msgspec.structs.replace


# --- C5, C9, C13, C16: logs and records that are older than they should be --------------------------


def restored_head() -> None:
    """C9, C13: the head's disk comes back from an old backup. Whatever it says, the others keep what is committed."""
    with scene(1) as s:
        s.checker.halts_allowed = True
        s.go(2)
        chain = s.chain
        for name in chain:
            s.kill(name, power=False)
        copy = s.checker.newest[s.key, chain[0], s.record.chain[0].log_id]
        copy.partition.log.truncate(copy.batches[len(copy.batches) // 2].base_offset, committed=0)
        s.disks[chain[0]].forget()
        s.checker.excuse(chain[0])
        s.forget_floors(chain[0])
        for name in chain:
            s.start(name)
        s.go(5)
        s.load.stopping = True
        for name in chain[1:]:
            end, committed = s.partition(name).log.end, s.checker.committed[s.key]
            require(end >= committed, "committed batches were cut off", name, end, committed)


def restored_in_vain() -> None:
    """C3: a data directory comes back from a copy, and its broker is started while the store is away, more than once.
    It is as old as before when the store is back: its log counts for nothing.
    """
    with scene(64, replicas=2, min_replicas=2) as s:  # so that the copy has all that the store knows of
        head, last = s.chain
        spare = next(name for name in s.disks if name not in s.chain)
        s.ask(lambda client: client.drain_broker(spare), 5)
        directory = s.disks[last].directory
        s.kill(last, power=False)
        kept = shutil.copytree(directory, directory.with_name("kept"))
        s.go(1)
        s.start(last)
        require(s.go(5, lambda: s.chain == [head, last]), "it does not come back", s.record)
        s.go(1)
        for name in s.chain:
            s.kill(name, power=False)
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)
        s.disks[last].forget()
        s.checker.forget_journal(last)
        s.checker.excuse(last)
        s.store.away = True
        for _ in range(3):
            s.start(last)
            s.go(0.5)
            s.kill(last, power=False)
        s.store.away = False
        s.start(last)
        s.go(3)
        require(s.chain == [head, last], "an old copy leads", s.record)
        s.start(head)
        s.waits_less_than(1.0, 5)


def shortened_head() -> None:
    """C13: the head's disk has lost what it had synced. It does not lead, and nobody follows it."""
    with scene(63) as s:
        s.go(0.9)
        chain = s.chain
        for name in chain:
            s.kill(name, power=False)
        s.shorten(chain[0])
        for name in chain:
            s.start(name)
        s.go(3)
        s.waits_less_than(1.0, 3)


def shortened_alone() -> None:
    """C13: the same of a member that comes back alone. It waits for the others."""
    with scene(62) as s:
        s.go(0.9)
        chain = s.chain
        for name in chain:
            s.kill(name, power=False)
        s.shorten(chain[1])
        s.start(chain[1])
        s.go(8)
        for name in chain:
            s.start(name)
        s.go(3)
        s.waits_less_than(1.0, 3)


def early_retention() -> None:
    """C23: the head has much more than it keeps, and the others have not: it lets nothing go that is not committed."""
    with scene(63, retention_bytes=2 * limits.SEGMENT_BYTES_MIN) as s:
        head, _, last = s.chain
        s.publish_eagerly(6)
        s.hang(last)
        s.go(1.5)
        log = s.partition(head).log
        require(log.bytes > 5 * limits.SEGMENT_BYTES_MIN, "there is not enough to let go", log.bytes)
        s.processes[head].loop.call_soon(s.broker(head)._retain)
        s.go(0.3)


def restored_store() -> None:
    """C27: the store comes back from a backup that knows older chains. That is noticed, and messages flow on."""
    with scene(60) as s:
        kept, last = s.store.keep(), s.chain[2]
        s.kill(last, power=False)
        s.go(1)
        s.start(last)
        require(s.go(5, lambda: len(s.chain) == 3 and s.record.epoch > 2), "the member does not come back", s.record)
        s.go(1)
        epoch = s.record.epoch
        s.store.restore(kept)
        s.waits_less_than(1.0, 5)
        for name in s.disks:
            require(s.broker(name).parts.cluster.rollback.noticed, "nobody noticed", name)
            require(s.partition(name).replica.epoch == epoch, "an older chain was followed", name)


def replaced_controller() -> None:
    """C16: the controller is replaced while a change of its own is on the way to the store."""
    with scene(2) as s:
        swap = s.store.swap

        def intercepted(expect: Any, put: Any, delete: Any, lease: int, by: Any) -> Any:
            if any(key.startswith("chains/") for key in put) and by.name == s.controller:
                other = next(name for name in s.disks if name != by.name)
                s.store.change({CONTROLLER: encode(ControllerKey(other, s.incarnation(other)))}, ())
            return swap(expect, put, delete, lease, by)

        s.store.swap = intercepted
        s.ask(lambda client: client.alter_topic(TOPIC, replicas=2), 5)
        s.go(1)


def lost_proposal() -> None:
    """C17: a change of a chain does not reach the store, and nobody can say so: it is not taken for done."""
    with scene(64) as s:
        swap, lost = s.store.swap, []

        def intercepted(expect: Any, put: Any, delete: Any, lease: int, by: Any) -> Any:
            if not lost and any(key.startswith("chains/") for key in put):
                lost.append(put)
                raise UnknownSwap("The answer was lost.")
            return swap(expect, put, delete, lease, by)

        s.store.swap = intercepted
        s.kill(next(name for name in s.chain if name != s.controller), power=False)
        s.waits_less_than(WAIT_S, 5)
        require(bool(lost), "nothing was proposed")


def shorter_head() -> None:
    """C5: the last of four hears nothing for a moment while the others go on; then it leads, and all are cut back.

    What the third one heard from above in the old epoch is more than anybody has in the new one.
    """
    for seed in range(3, 7):
        with scene(seed, brokers=4) as s:
            _lead_by_the_shorter(s)


def _lead_by_the_shorter(s: Scene) -> None:
    chain = s.record.chain
    third, last = chain[2].broker, chain[3].broker
    s.publish_eagerly(4)
    s.cut((third, last))
    s.go(0.5)
    require(s.partition(third).replica._above > s.partition(last).log.end, "the others are not ahead")
    s.disks[last].slow = 20
    s.put_record(_replace(s.record, epoch=s.record.epoch + 1, chain=(chain[3], *chain[:3])))
    s.network.break_between(third, last)
    s.network.heal()
    s.go(2)
    require(s.record.epoch > 1, "the chain was not changed")


# --- C6: a head that is cut off ---------------------------------------------------------------------


def _cut_off_head(s: Scene, cuts: Callable[[str, list[str]], list[tuple[str, str]]]) -> None:
    """Clients reach the old head, and nobody else does. Sooner or later it takes nothing any more, at any level."""
    head, *others = s.chain
    s.faithful(head, lambda client: client.publish(TOPIC, b"faithful", ack="head", timeout=1.0))
    s.go(0.5)
    for sender, receiver in cuts(head, others):
        s.network.cut(sender, receiver)
    s.store.cut.add(head)
    s.go(12)
    require(s.chain[0] != head, "the head was not replaced", s.record)


def isolated_head() -> None:
    with scene(4) as s:
        _cut_off_head(s, lambda head, others: [pair for o in others for pair in ((head, o), (o, head))])


def mute_head() -> None:
    """It hears its successor; nobody hears it, and the controller does not get through to it."""
    with scene(5) as s:
        s.let_control(s.chain[-1])
        _cut_off_head(s, lambda head, others: [*((head, other) for other in others), (others[-1], head)])


def sidelined_head() -> None:
    """It hears its successor, and is heard by it, which knows of the new chain; but neither controller nor store."""
    with scene(6) as s:
        s.let_control(s.chain[-1])
        _cut_off_head(s, lambda head, others: [(head, others[-1]), (others[-1], head)])


def paused_head() -> None:
    """C30: a head is paused, replaced, and wakes up cut off: it tells nobody where the messages ended before that."""
    for seed in range(25, 28):
        with scene(seed) as s:
            head, *others = s.chain
            s.faithful(head, lambda client: client.offsets(TOPIC))
            s.go(0.5)
            s.pause(head, 3)
            s.cut(*((head, other) for other in others))
            s.store.cut.add(head)
            s.go(5)


# --- C14, C15, C31: who has to leave, and who must not ----------------------------------------------


def grey_member() -> None:
    """C14: the disk of a member hangs, wherever it is, and only others can tell; a head can tell by itself (C31)."""
    for place in range(3):
        with scene(7) as s:
            s.hang(s.chain[place])
            s.waits_less_than(WAIT_S, 12)


def full_member() -> None:
    """C31: the disk of a member is full, wherever it is."""
    for place in range(3):
        with scene(13) as s:
            s.disks[s.chain[place]].full = True
            s.waits_less_than(WAIT_S, 8)
            require(len(s.chain) == 2, "the full one is still there", s.record)


def blame() -> None:
    """C14: the last of the chain stands still: that one leaves, not the one before it."""
    for seed in range(30, 34):
        with scene(seed) as s:
            chain, epoch = s.chain, s.record.epoch
            s.hang(chain[2])
            require(s.go(4, lambda s=s, epoch=epoch: s.record.epoch > epoch), "nobody left")
            require(s.chain == chain[:2], "the wrong one left", s.record)


def all_full() -> None:
    """K5, C31: when all disks are full, nobody leaves; everything goes on when there is room again."""
    with scene(15) as s:
        for disk in s.disks.values():
            disk.full = True
        s.nobody_leaves(6)
        for disk in s.disks.values():
            disk.full = False
        before = s.checker.acknowledgements
        s.go(3)
        require(s.checker.acknowledgements > before, "nothing goes on", s.record)


def slow_member() -> None:
    """C14: every sync of one member takes 1.5 s, wherever it is: it leaves, and comes back after a pause."""
    for place in range(3):
        with scene(90 + place) as s:
            name = s.chain[place]
            s.go(3)
            s.disks[name].adds_us = 1_500_000
            require(s.go(9, lambda s=s, name=name: name not in s.chain), "the slow one stays", s.record)
            require(len(s.chain) == 2, "not only the slow one left", s.record)
            s.waits_less_than(1, 5)
            s.disks[name].mend()
            require(s.go(60, lambda s=s, name=name: name in s.chain), "it does not come back", s.record)


def all_slow() -> None:
    """C14: where all members are slow, nobody leaves; nor where as many are slow that too few would stay (C8)."""
    for seed, count, adds_us in ((93, 3, 1_500_000), (94, 2, 1_500_000), (95, 3, 2_500_000), (96, 3, 6_000_000)):
        with scene(seed) as s:
            s.go(3)
            for name in s.chain[:count]:
                s.disks[name].adds_us = adds_us
            if count == len(s.chain):
                s.nobody_leaves(20)
            else:
                s.go(20)
                require(len(s.chain) >= 2, "two left, one after the other", s.record)


def joins_among_slow() -> None:
    """C11, C14: all disks are slow, and a member that was restarted comes back."""
    for seed, adds_us in ((201, 2_500_000), (202, 4_000_000)):
        with scene(seed) as s:
            s.go(3)
            for disk in s.disks.values():
                disk.adds_us = adds_us
            s.go(5)
            name = s.chain[1]
            s.kill(name, power=False)
            s.go(4)
            require(name not in s.chain, "the one that is gone stays", s.record)
            s.start(name)
            require(s.go(60, lambda s=s: len(s.chain) == 3), "it does not come back", s.record)
            s.nobody_leaves(20)


def hangs_among_slow() -> None:
    """C14, C31: all members are slow, and the disk of one hangs: that one leaves, and no other."""
    for place in range(3):
        with scene(98 + place) as s:
            name = s.chain[place]
            s.go(3)
            for disk in s.disks.values():
                disk.adds_us = 1_500_000
            s.go(6)
            s.hang(name)
            require(s.go(15, lambda s=s, name=name: name not in s.chain), "the one that hangs stays", s.record)
            s.go(10)
            require(len(s.chain) == 2, "not only the one that hangs left", s.record)


def useless_joiner() -> None:
    """C11: a joiner whose disk is full, or hangs, hardly holds up the others."""
    for seed, hangs in ((16, False), (17, True)):
        with scene(seed) as s:
            name = s.chain[2]
            s.kill(name, power=False)
            s.go(1)
            if hangs:
                s.hang(name)
            else:
                s.disks[name].full = True
            s.start(name)
            s.waits_less_than(1.2, 10)


def slow_joiner() -> None:
    """C11: a joiner with a slow disk becomes a member once it has all that is committed."""
    for seed in range(65, 69):
        with scene(seed) as s:
            s.publish_eagerly(2)
            joiner = s.chain[2]
            s.kill(joiner, power=False)
            s.go(0.5)
            s.disks[joiner].slow = 100
            s.start(joiner)
            require(s.go(10, lambda s=s: len(s.chain) == 3), "the joiner does not become a member", s.record)
            s.go(0.3)


def joiner_hangs() -> None:
    """C11: a joiner's disk hangs while everybody waits for it."""
    waited = sum(_joiner_that_hangs(seed) for seed in range(40, 48))
    require(waited >= 2, "the joiners were ready before they hung")


def _joiner_that_hangs(seed: int) -> bool:
    """Whether anybody waited for it; else it had become a member in that moment."""
    with scene(seed) as s:
        tail, joiner = s.chain[1:]
        s.kill(joiner, power=False)
        s.go(0.5)
        s.disks[joiner].slow = 100
        s.start(joiner)

        def waits() -> bool:
            below = s.partition(tail).replica.downstream
            return below.joint and not below.joiner_is_ready

        if not s.go(3, waits):
            return False
        s.hang(joiner)
        s.go(0.05)
        if not waits():
            return False
        s.waits_less_than(1.0, 8)
        return True


def neighbours_cut() -> None:
    """C15: two neighbours of a chain do not reach each other; everybody else reaches both."""
    for seed, first, controller in ((18, 0, None), (19, 1, None), (22, 0, 0), (22, 0, 1), (22, 0, 2)):
        with scene(seed) as s:
            if controller is not None:
                s.let_control(s.chain[controller])
            s.cut((s.chain[first], s.chain[first + 1]))
            s.waits_less_than(2.0, 8)


def one_way_cut() -> None:
    """C15: what a member sends does not reach its successor, or what that one answers does not come back."""
    for first, second in ((0, 1), (1, 0), (1, 2), (2, 1)):
        with scene(53) as s:
            s.network.cut(s.chain[first], s.chain[second])
            s.waits_less_than(WAIT_S, 8)


def unheard_complaint() -> None:
    """C15: the head is cut off from its successor, which is the controller, and hears of it by way of the third."""
    with scene(12) as s:
        head, successor, _ = s.chain
        s.let_control(successor)
        s.cut((head, successor))
        s.go(5)
        before = s.checker.acknowledgements
        s.go(3)
        require(s.checker.acknowledgements > before, "a cut between two members stops everyone", s.record)


def standstill() -> None:
    """C15: all of it stood still, as when a machine is suspended: nobody was silent for anybody who was awake."""
    with scene(8) as s:
        for name in s.disks:
            s.pause(name, 4)
        s.nobody_leaves(8)


def lone_observer() -> None:
    """C15: only one broker, the controller, does not hear another one; the others do."""
    with scene(9) as s:
        first, _, last = s.chain
        s.let_control(first)
        s.cut((first, last))
        s.nobody_leaves(6)


def lapsed_leases() -> None:
    """C15: the store was paused, and all liveness keys lapsed at once: that is not the death of everybody."""
    for seed in (10, 110, 111):
        with scene(seed) as s:
            for name in s.disks:
                if name != s.controller:  # on its own death nobody would act
                    s.store.lapse(name)
            s.nobody_leaves(4)


def wave_of_silence() -> None:
    """C15: two of five are silent, and when they are back the other two are: they are not all given up in turn."""
    with scene(11, brokers=5) as s:
        first, second, third, fourth = (name for name in s.disks if name != s.controller)
        for name in (first, second):
            s.pause(name, 0.9)
        s.go(0.9)
        require(not {*s.chain} & {first, second}, "the first two were not given up", s.record)
        for name in (third, fourth):
            s.pause(name, 2)
        s.go(1)
        require({*s.chain} >= {third, fourth}, "four of five were given up in two seconds", s.record)


# --- C28, C29, C30, C32 -----------------------------------------------------------------------------


def storeless_controller() -> None:
    """C29: the controller is cut off from the store alone, and then the head dies: somebody else takes over."""
    with scene(23) as s:
        head, controller, _ = s.chain
        s.let_control(controller)
        s.store.cut.add(controller)
        s.go(0.5)
        s.kill(head, power=False)
        s.waits_less_than(WAIT_S, 10)
        require(s.controller != controller, "the office was not left")


def one_of_three_returns() -> None:
    """C30: all die, and one comes back alone: nobody is told an end that is too early, nor one at all."""
    with scene(24) as s:
        chain = s.chain
        for name in chain:
            s.kill(name, power=False)
        s.forget_floors(chain[1])
        s.start(chain[1])
        s.go(10)
        for name in chain:
            s.start(name)
        before = s.checker.acknowledgements
        s.go(5)
        require(s.checker.acknowledgements > before, "nothing goes on", s.record)


def liar() -> None:
    """C28: a peer tells everybody of a chain that the store does not have, and that does without them."""
    with scene(29) as s:
        record = s.record
        ghost = _replace(record, epoch=record.epoch + 1, chain=(Member("ghost", 99, 1),))
        lie = memoryview(peer.encode([peer.Pushed([(*s.key, ghost, 2**60)], complete=False)]))
        for name in s.chain:
            sender = s.controller if name != s.controller else next(n for n in s.disks if n != name)
            s.processes[name].loop.call_soon(s.broker(name).parts.cluster.input.heard, sender, lie)
        s.waits_less_than(1.2, 6)
        require(s.record.epoch == record.epoch, "somebody believed it", s.record)


class _Listener:
    """Hears what becomes of publishes, as a session does."""

    def __init__(self) -> None:
        self.answers: dict[int, Any] = {}

    def published(self, correlation: int, answer: Any) -> None:
        self.answers[correlation] = answer.base_offset

    def fail(self, correlation: int, error: Exception, *_: str) -> None:
        self.answers[correlation] = error

    def defer_sync(self, _: Any) -> bool:
        return False

    def flush(self) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...


def poisoned_producer() -> None:
    """C32: somebody sends under another's id, with the highest generation. What its owner sends is found or unknown."""
    with scene(12) as s:
        owner, last, listener = 77, 2**32 - 1, _Listener()
        head = s.chain[0]

        def publish(generation: int, sequence: int, value: int) -> Any:
            encoded = batch.encode([1], [None], [str(value).encode()])
            named = {"producer_id": owner, "generation": generation, "sequence": sequence}
            view = batch.address(encoded, topic_id=s.key[0], partition=s.key[1], **named) + encoded.body
            request = Request(listener, len(listener.answers))
            work = s.partition(head).publish, memoryview(view), check_header(view), request, ALL
            s.processes[head].loop.call_soon(*work)
            require(s.go(5, lambda: request.correlation in listener.answers), "a publish is not answered", named)
            return listener.answers[request.correlation]

        written = [publish(5, sequence, sequence) for sequence in range(40)]
        require(all(isinstance(answer, int) for answer in written), "the owner cannot publish", written)
        require(publish(5, 0, 0) == written[0], "a batch that is in the log was not found")
        publish(last, 0, 1)
        for sequence in (0, 39):
            again = publish(5, sequence, sequence)
            require(again == written[sequence], "a batch that is in the log was not found there", again, sequence)
        for never_written in ((5, 40, 40), (6, 0, 0), (5, 0, 99), (last, 0, 2)):
            answer = publish(*never_written)
            require(not isinstance(answer, int), "acknowledged, but not in the log", never_written, answer)


def unreached_head() -> None:
    """C30: a member that has never reached the head since it was started cannot say where the messages end."""
    with scene(70) as s:
        head, middle, last = s.chain
        s.let_control(middle)
        s.kill(last, power=False)
        s.go(0.3)
        s.cut((head, last))
        s.start(last)
        require(s.go(10, lambda: s.chain == [head, middle, last]), "the member does not come back", s.record)
        s.disks[head].slow = 40
        s.publish_eagerly(3)
        s.faithful(last, lambda client: client.offsets(TOPIC))
        s.go(1)
        s.cut((head, middle))
        s.go(1)


def overtaken_reading() -> None:
    """A reading of the store that is older than what the watch has told since does not take anything back."""
    for seed in (10, 66):
        with scene(seed) as s:
            for name in s.disks:
                broker = s.broker(name).parts.ground
                registered, alive = set(broker.catalogue.brokers), {key for key in s.store.entries if "live/" in key}
                require(registered == set(s.disks), "a broker is forgotten that is registered", name, registered)
                expired = s.broker(name).parts.cluster.control.machine.membership._expired
                require(not {f"live/{one}" for one in expired} & alive, "a key is gone that is there", name, expired)
            require(s.record.epoch == 1, "a member was removed that is well", s.record)


def undrained_meanwhile() -> None:
    """What an operator asks for while a broker starts is not undone when it registers."""
    with scene(71) as s:
        last = s.chain[2]
        s.ask(lambda client: client.drain_broker(last), 5)
        s.kill(last, power=False)
        get, key = StoreAccess.get, broker_key(last)

        async def intercepted(access: StoreAccess, wanted: str) -> Any:
            if wanted == key and access.process.name == last:
                record = decode_broker(s.store.entries[key].value)
                if record.draining:
                    s.store.change({key: encode(_replace(record, draining=False))}, ())
            return await get(access, wanted)

        with patch.object(StoreAccess, "get", intercepted):
            s.start(last)
            s.go(2)
        record = decode_broker(s.store.entries[key].value)
        require(not record.draining, "a broker is drained again that an operator had let back", record)


# --- C19: state derived from a log -------------------------------------------------------------------


def state_in_pieces() -> None:
    """C19: a member comes back to others that have let go of all it has. It gets what they derived piece by piece."""
    with scene(71, retention_bytes=2 * limits.SEGMENT_BYTES_MIN) as s, patch.object(limits, "STATE_PIECE_BYTES", 24):
        s.publish_eagerly(6)
        s.go(1)
        head, middle, last = s.chain
        end = s.partition(last).log.end
        s.kill(last, power=False)
        s.go(3)
        s.processes[head].loop.call_soon(s.broker(head)._retain)
        require(s.go(3, lambda: s.partition(middle).log.start > end), "the others keep what it has", end)
        s.start(last)
        require(s.go(10, lambda: _takes_state(s, last)), "nothing is asked for in pieces")
        s.cut((middle, last))
        s.go(1)
        s.network.heal()
        require(s.go(10, lambda: _takes_state(s, last)), "nothing is asked for again")
        s.kill(middle, power=False)
        s.go(1)
        s.start(middle)
        require(s.go(20, lambda: len(s.chain) == 3), "the members do not come back", s.record)
        s.load.stopping = True
        s.go(2)
        states = {s.partition(name).replica.states.snapshot() for name in s.chain}
        require(len(states) == 1, "state derived from the same log differs")


def _takes_state(s: Scene, name: str) -> bool:
    partition = s.broker(name).partitions.get(s.key)
    return partition is not None and len(partition.replica.links.transfer._received) > 48


RUNS: dict[str, Callable[[], None]] = {
    run.__name__: run
    for run in (
        restored_head, restored_in_vain, shortened_head, shortened_alone, early_retention, restored_store,
        replaced_controller, lost_proposal, shorter_head, isolated_head, mute_head, sidelined_head, paused_head,
        grey_member, full_member, blame, all_full, useless_joiner, slow_joiner, joiner_hangs, neighbours_cut,
        slow_member, all_slow, hangs_among_slow, joins_among_slow,
        one_way_cut, unheard_complaint, standstill, lone_observer, lapsed_leases, wave_of_silence,
        storeless_controller, one_of_three_returns, liar, poisoned_producer, unreached_head, overtaken_reading,
        undrained_meanwhile, state_in_pieces,
    )
} | directed_operators.RUNS | directed_cursors.RUNS | directed_expiry.RUNS | directed_compaction.RUNS  # fmt: skip
