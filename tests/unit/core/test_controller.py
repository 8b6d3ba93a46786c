"""The next step of every chain, from what is to what should be."""

from itertools import count

import msgspec
import pytest

from stentor import limits
from stentor.core.chain_messages import Complaint, JoinerReady, ReplicaReport
from stentor.core.controller import BrokerRecord, Controller, TopicPlan
from stentor.core.records import ChainRecord, HeldRecord, Member
from stentor.core.slowness import SyncPace

KEY = (1, 0)


def member(broker, incarnation=1):
    return Member(broker, ord(broker), incarnation)


class Cluster:
    """A controller, and a store that takes whatever it proposes."""

    def __init__(self, brokers="abc", *, factor=3, minimum=2, chain=None, **record):
        self.ids = count(1000)
        self.controller = Controller(lambda: next(self.ids))
        chain = chain or brokers[:factor]
        first = ChainRecord(5, tuple(member(name) for name in chain), factor=factor, min_replicas=minimum, **record)
        self.revision = 10
        self.brokers = {name: BrokerRecord(name, 1) for name in brokers}
        self.controller.load(self.brokers, {1: TopicPlan(factor, minimum)}, {KEY: HeldRecord(first, self.revision)})
        self.alive(brokers)
        for name in brokers:
            self.report(name, holds=name in chain)

    def alive(self, names, **incarnations):
        self.controller.heard_alive({name: incarnations.get(name, 1) for name in names})
        self.controller.heard_disks(frozenset(names), frozenset())
        self.controller.heard_somewhere = set(names)

    def report(self, name, *, incarnation=1, end=100, committed=0, holds=True, **more):
        told = ReplicaReport(member(name, incarnation), 5, end, committed, **more)
        self.controller.heard_reports(name, incarnation, {KEY: told} if holds else {})

    def settle(self, *, steps=20):
        """Let it change the chain until there is nothing left to do."""
        for _ in range(steps):
            proposals = self.controller.plan(0)
            if not proposals:
                break
            for propose in proposals:
                self.revision += 1
                self.controller.proposed(propose, self.revision)
        return self.record

    @property
    def record(self):
        return self.controller.records[KEY].record

    @property
    def chain(self):
        return "".join(m.broker for m in self.record.chain)


def test_a_whole_chain_is_left_alone():
    cluster = Cluster()
    assert cluster.settle().epoch == 5
    assert cluster.controller.plan(0) == []


@pytest.mark.parametrize(("dead", "left"), [("a", "bc"), ("b", "ac"), ("c", "ab")])
def test_a_dead_member_leaves_and_the_next_takes_its_place(dead, left):
    cluster = Cluster()
    cluster.alive(left)
    record = cluster.settle()
    assert (cluster.chain, record.epoch, record.eligible) == (left, 6, ())


def test_who_leaves_by_crossing_the_minimum_may_still_lead():
    cluster = Cluster(chain="ab")
    cluster.alive("a")
    record = cluster.settle()
    assert cluster.chain == "a"
    assert record.is_short
    assert [m.broker for m in record.eligible] == ["b"]
    cluster.alive("b")
    record = cluster.settle()
    assert cluster.chain == "b", "the last one died: the eligible one leads"
    assert [m.broker for m in record.eligible] == ["a"]


def test_nobody_is_removed_when_nobody_answers_and_others_wait():
    cluster = Cluster("abc", factor=1, minimum=1, chain="a")
    cluster.alive("bc")
    assert cluster.settle().epoch == 5
    assert cluster.chain == "a"


def test_on_the_minoritys_side_nobody_is_judged():
    cluster = Cluster()
    cluster.controller.may_remove = False
    cluster.alive("a")
    assert cluster.settle().epoch == 5


def test_a_restarted_member_is_named_anew_in_its_place():
    cluster = Cluster()
    cluster.alive("abc", b=2)
    assert cluster.settle().epoch == 5, "it has not said yet what it holds"
    cluster.report("b", incarnation=2)
    record = cluster.settle()
    assert (cluster.chain, record.epoch) == ("abc", 6)
    assert record.chain[1].incarnation == 2


def test_when_every_copy_was_cut_at_its_end_the_longest_leads_once_all_are_there():
    """A loss of power everywhere, in the middle of writing."""
    cluster = Cluster(committed=50)
    cluster.alive("abc", a=2, b=2, c=2)
    cluster.report("a", incarnation=2, end=60, damaged=True)
    cluster.report("b", incarnation=2, end=70, damaged=True)
    assert cluster.settle().epoch == 5, "c has not said yet what it holds"
    cluster.report("c", incarnation=2, end=65, damaged=True)
    cluster.settle(steps=1)
    assert (cluster.chain, cluster.record.epoch) == ("b", 6)
    assert {m.broker for m in cluster.record.eligible} == {"a", "c"}, "nothing is committed before one of them joined"
    assert cluster.settle().joining is not None


def test_a_whole_copy_leads_before_any_that_was_cut():
    cluster = Cluster(committed=50)
    cluster.alive("abc", a=2, b=2, c=2)
    cluster.report("a", incarnation=2, end=90, damaged=True)
    cluster.report("b", incarnation=2, end=60)
    cluster.report("c", incarnation=2, end=65, damaged=True)
    cluster.settle(steps=1)
    assert cluster.chain == "b"


@pytest.mark.parametrize(
    "flaw", [{"failed": "its disk"}, {"halted": True}, {"end": 5}], ids=["failed", "halted", "all are too short"]
)
def test_copies_that_were_cut_wait_for_an_operator_when_one_of_them_is_not_well(flaw):
    cluster = Cluster(committed=50)
    cluster.alive("abc", a=2, b=2, c=2)
    for name in "abc":
        more = flaw if name == "c" or "end" in flaw else {}
        cluster.report(name, incarnation=2, **{"end": 60, **more}, damaged=True)
    assert cluster.settle().epoch == 5


def test_a_copy_that_was_cut_and_is_the_only_one_waits_for_an_operator():
    cluster = Cluster(chain="a", committed=50)
    cluster.alive("abc", a=2)
    cluster.report("a", incarnation=2, end=60, damaged=True)
    assert cluster.settle().epoch == 5


@pytest.mark.parametrize("flaw", [{"damaged": True}, {"failed": "a sync failed"}, {"end": 5}, {"holds": False}])
def test_a_restarted_member_that_lost_something_joins_again_instead(flaw):
    cluster = Cluster(committed=50)
    cluster.alive("abc", b=2)
    cluster.report("b", incarnation=2, **flaw)
    record = cluster.settle()
    assert cluster.chain == "ac"
    assert record.joining.broker == "b"


def test_a_joiner_becomes_the_tail_when_it_is_ready_and_not_before():
    cluster = Cluster(chain="ab")
    record = cluster.settle()
    assert (cluster.chain, record.epoch) == ("ab", 5), "naming a joiner is no new epoch"
    assert record.joining.broker == "c"
    cluster.controller.heard_member(KEY, JoinerReady(4, record.joining))
    assert cluster.settle().joining is not None, "of an older epoch"
    cluster.controller.heard_member(KEY, JoinerReady(5, record.joining))
    record = cluster.settle()
    assert (cluster.chain, record.epoch, record.joining) == ("abc", 6, None)


def test_a_joiner_that_dies_leaves_with_a_new_epoch():
    cluster = Cluster(chain="ab")
    cluster.settle()
    cluster.alive("ab")
    record = cluster.settle()
    assert (cluster.chain, record.joining, record.epoch) == ("ab", None, 6)


def test_a_member_that_stands_still_leaves_if_enough_stay():
    cluster = Cluster()
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still"))
    cluster.settle(steps=1)
    assert cluster.chain == "ac"
    cluster = Cluster("ab", chain="ab")
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab", "two must stay, and nobody else is there"


def test_a_reported_member_leaves_below_the_minimum_if_another_can_take_its_place():
    cluster = Cluster(chain="ab")
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b cannot be linked"))
    record = cluster.settle()
    assert cluster.chain == "a"
    assert [m.broker for m in record.eligible] == ["b"], "nothing is committed without it meanwhile"
    assert record.joining.broker == "c"


def test_nobody_leaves_for_a_complaint_while_those_that_stay_do_not_say_that_they_can_write():
    cluster = Cluster()
    cluster.controller.heard_disks(frozenset("ab"), frozenset())
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still", "a"))
    cluster.settle(steps=1)
    assert cluster.chain == "abc", "c has not said so"
    cluster.controller.heard_disks(frozenset("abc"), frozenset())
    cluster.settle(steps=1)
    assert cluster.chain == "ac"


@pytest.mark.parametrize(("full", "left"), [("a", "bc"), ("c", "ab"), ("bc", "abc"), ("abc", "abc")])
def test_members_on_full_disks_leave_if_enough_stay_that_can_write(full, left):
    cluster = Cluster()
    cluster.controller.heard_disks(frozenset("abc") - set(full), frozenset(full))
    cluster.settle()
    assert (cluster.chain, cluster.record.joining) == (left, None), "and who is full does not come back at once"


@pytest.mark.parametrize("joining", [None, member("c")], ids=["nobody joins", "another one joins"])
def test_a_member_on_a_full_disk_leaves_below_the_minimum_if_another_can_take_its_place(joining):
    """Nothing else removes it: what it would complain about may wait behind other work of the same disk."""
    cluster = Cluster(chain="ab", joining=joining)
    cluster.controller.heard_disks(frozenset("bc"), frozenset("a"))
    record = cluster.settle()
    assert cluster.chain == "b"
    assert [m.broker for m in record.eligible] == ["a"], "nothing is committed without it meanwhile"
    assert record.joining.broker == "c"


def test_a_member_on_a_full_disk_stays_below_the_minimum_while_no_other_says_that_it_can_write():
    cluster = Cluster(chain="ab")
    cluster.controller.heard_disks(frozenset("b"), frozenset("a"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab", "c has not said so"


@pytest.mark.parametrize("why", ["its disk is full", "it is complained about"])
def test_nobody_leaves_to_one_who_was_restarted_and_has_not_said_what_it_holds(why):
    """Its disk may have been lost with it; then the one who left would have been the last copy."""
    cluster = Cluster("abc", factor=2, minimum=1, chain="ab")
    cluster.alive("abc", a=2)
    if why == "its disk is full":
        cluster.controller.heard_disks(frozenset("ac"), frozenset("b"))
    else:
        cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still", "c"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab"
    cluster.report("a", incarnation=2)
    cluster.settle(steps=2)
    assert cluster.chain == "a"


@pytest.mark.parametrize("why", ["its disk is full", "it is complained about", "it is dead"])
def test_nobody_leaves_to_one_who_was_only_heard_again(why):
    """What was heard may have been held up on its way, and its sender be dead."""
    cluster = Cluster("abc", factor=2, minimum=1, chain="ab")
    alive = dict.fromkeys("ac" if why == "it is dead" else "abc", 1)
    cluster.controller.heard_alive(alive, frozenset("a"))
    if why == "its disk is full":
        cluster.controller.heard_disks(frozenset("ac"), frozenset("b"))
    elif why == "it is complained about":
        cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still", "c"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab"
    cluster.controller.heard_alive(alive)
    cluster.settle(steps=1)
    assert cluster.chain == "a"


def test_of_several_complaints_the_one_about_the_last_of_the_chain_counts():
    cluster = Cluster("abcd", factor=4, minimum=3)
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still", "a"))
    cluster.controller.heard_member(KEY, Complaint(5, member("c"), "c stands still", "b"))
    cluster.settle(steps=1)
    assert cluster.chain == "abd"


def stands_still(name, by, epoch=5):
    return Complaint(epoch, member(name), f"{name} stands still", by, stalls=True)


def test_whoever_starves_its_successor_leaves_if_another_broker_says_that_it_stands_still_itself():
    """All that b sends is slow: c gets nothing from it, and a does not hear what it has."""
    cluster = Cluster()
    cluster.controller.heard_member(KEY, stands_still("c", by="b"))
    cluster.controller.heard_member(KEY, stands_still("b", by="a"))
    cluster.settle(steps=1)
    assert cluster.chain == "ac"


def test_where_all_are_slow_nobody_leaves_for_standing_still_unless_much_longer():
    cluster = Cluster()
    cluster.controller.heard_paces(dict.fromkeys("abc", SyncPace(1_500_000, waits_us=2_000_000)))
    proposals = {}
    for tenth in range(100):
        cluster.controller.heard_member(KEY, stands_still("c", by="b"))
        proposals[tenth] = cluster.controller.plan(tenth * 100_000)
    first = next(tenth for tenth, found in proposals.items() if found)
    assert limits.STALL_TIMES * 20 < first <= limits.STALL_TIMES * 20 + 2
    assert [m.broker for m in proposals[first][0].changes[0].record.chain] == ["a", "b"]


def test_a_complaint_that_is_not_repeated_begins_again():
    cluster = Cluster()
    cluster.controller.heard_paces(dict.fromkeys("abc", SyncPace(2_500_000, waits_us=2_000_000)))
    for second in range(0, 60, 2):
        cluster.controller.heard_member(KEY, stands_still("c", by="b"))
        assert cluster.controller.plan(second * 1_000_000) == []


def test_a_slow_disk_that_keeps_nobody_else_waiting_is_no_excuse():
    cluster = Cluster()
    cluster.controller.heard_paces({**dict.fromkeys("bc", SyncPace(waits_us=2_000_000)), "a": SyncPace(4_000)})
    cluster.controller.heard_member(KEY, stands_still("c", by="b"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab"


@pytest.mark.parametrize(("stalls", "left"), [(True, "abc"), (False, "ac")])
def test_where_all_are_slow_a_disk_that_is_full_leaves_and_one_that_is_late_does_not(stalls, left):
    cluster = Cluster()
    slow = SyncPace(2_500_000, waits_us=2_500_000)
    cluster.controller.heard_paces({"a": slow, "b": msgspec.structs.replace(slow, stalls=stalls), "c": slow})
    cluster.controller.heard_disks(frozenset("ac"), frozenset("b"))
    cluster.settle(steps=1)
    assert cluster.chain == left


def test_what_is_said_of_another_chain_counts_too():
    """b is the head of this chain, where nobody could complain about it."""
    cluster = Cluster("abc", chain="bca")
    cluster.controller.heard_member((1, 7), stands_still("b", by="a"))
    cluster.controller.heard_member(KEY, stands_still("c", by="b"))
    cluster.settle(steps=1)
    assert cluster.chain == "ca"


def test_two_that_blame_each_other_are_no_witnesses():
    cluster = Cluster()
    cluster.controller.heard_member((1, 7), stands_still("b", by="c"))
    cluster.controller.heard_member(KEY, stands_still("c", by="b"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab"


def test_what_was_said_long_ago_is_no_evidence():
    cluster = Cluster()
    cluster.controller.plan(0)
    cluster.controller.heard_member((1, 7), stands_still("b", by="a"))
    cluster.controller.plan(4_000_000)
    cluster.controller.heard_member(KEY, stands_still("c", by="b"))
    (propose,) = cluster.controller.plan(4_000_000)
    assert [m.broker for m in propose.changes[0].record.chain] == ["a", "b"]


def test_whoever_blames_one_after_the_other_leaves_itself():
    """a is the head, and all that it sends is slow; it is in no other chain, where somebody could complain about it."""
    cluster = Cluster()
    cluster.controller.heard_member(KEY, stands_still("b", by="a"))
    cluster.settle(steps=1)
    assert cluster.chain == "ac"
    cluster.controller.heard_member(KEY, stands_still("c", by="a", epoch=cluster.record.epoch))
    cluster.settle(steps=1)
    assert cluster.chain == "c"
    assert cluster.settle().joining.broker == "b"


def test_whoever_blames_the_same_one_again_is_believed_again():
    cluster = Cluster()
    cluster.controller.heard_member(KEY, stands_still("c", by="b"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab"
    joining = cluster.settle().joining
    assert joining.broker == "c"
    cluster.controller.heard_member(KEY, JoinerReady(cluster.record.epoch, joining))
    cluster.settle(steps=1)
    assert cluster.chain == "abc"
    complaint = Complaint(cluster.record.epoch, joining, "c stands still", "b", stalls=True)
    cluster.controller.heard_member(KEY, complaint)
    cluster.settle(steps=1)
    assert cluster.chain == "ab"


def test_a_broker_that_has_too_much_to_do_is_not_blamed_for_its_complaints():
    cluster = Cluster()
    cluster.controller.overloaded = frozenset("b")
    cluster.controller.heard_member(KEY, stands_still("b", by="a"))
    cluster.controller.heard_member(KEY, stands_still("c", by="b"))
    cluster.settle(steps=1)
    assert cluster.chain == "ab"


def test_a_broker_that_has_too_much_to_do_does_not_leave_for_standing_still():
    cluster = Cluster()
    cluster.controller.overloaded = frozenset("b")
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still", "a", stalls=True))
    cluster.settle(steps=1)
    assert cluster.chain == "abc"
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b is not heard", "a"))
    cluster.settle(steps=1)
    assert cluster.chain == "ac"


def test_a_complaint_about_a_broker_that_nobody_hears_is_left_to_those_who_judge_silence():
    cluster = Cluster()
    cluster.controller.heard_somewhere = set("ac")
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b is not heard", "a"))
    cluster.settle(steps=1)
    assert cluster.chain == "abc"


def test_a_joiner_that_was_complained_about_is_not_tried_again_at_once():
    cluster = Cluster(chain="ab")
    joining = cluster.settle().joining
    epoch = cluster.record.epoch
    cluster.controller.heard_member(KEY, Complaint(epoch, joining, "c stands still", "b"))
    cluster.settle()
    assert (cluster.record.joining, cluster.record.epoch) == (None, epoch + 1), "joint mode may be on"
    assert not cluster.controller.plan(4_900_000)
    (propose,) = cluster.controller.plan(5_100_000)
    assert propose.changes[0].record.joining.broker == joining.broker


def test_nobody_is_filled_by_a_tail_that_does_not_hear_it():
    cluster = Cluster("abcd", chain="ab")
    cluster.controller.heard_suspicions({"b": frozenset("c")})
    assert cluster.settle().joining.broker == "d"


def test_a_drained_broker_is_replaced_before_it_leaves():
    cluster = Cluster("abcd", chain="abc")
    cluster.controller.heard_broker(BrokerRecord("a", 1, draining=True))
    record = cluster.settle()
    assert (cluster.chain, record.joining.broker) == ("abc", "d")
    cluster.controller.heard_member(KEY, JoinerReady(record.epoch, record.joining))
    cluster.settle()
    assert sorted(cluster.chain) == ["b", "c", "d"]


def test_a_longer_minimum_keeps_who_may_lead_and_a_shorter_one_forgets_them():
    cluster = Cluster(chain="ab")
    cluster.alive("a")
    cluster.settle()
    cluster.controller.topic(1, TopicPlan(3, 1))
    record = cluster.settle()
    assert record.min_replicas == 1
    assert record.eligible == (), "it commits alone from now on"


def test_members_that_are_further_than_the_store_are_left_to_the_operator():
    cluster = Cluster()
    cluster.controller.heard_reports("a", 1, {KEY: ReplicaReport(member("a"), 9, 100, 90)})
    cluster.alive("ab")
    assert cluster.settle().epoch == 5
    assert cluster.controller.behind == {KEY}


def test_a_proposal_that_failed_is_made_again_from_what_is_true():
    cluster = Cluster()
    cluster.alive("bc")
    (propose,) = cluster.controller.plan(0)
    assert cluster.controller.plan(0) == [], "one at a time"
    assert cluster.controller.proposed(propose, None) == []
    (again,) = cluster.controller.plan(0)
    assert again.changes[0].record.proposal != propose.changes[0].record.proposal
    assert [m.broker for m in again.changes[0].record.chain] == ["b", "c"]


def test_proposals_are_of_bounded_size():
    ids = count(1)
    controller = Controller(lambda: next(ids))
    record = ChainRecord(1, (member("a"), member("b")), factor=2)
    records = {(1, index): HeldRecord(record, 1) for index in range(300)}
    controller.load({name: BrokerRecord(name, 1) for name in "ab"}, {1: TopicPlan(2, 1)}, records)
    controller.heard_alive({"b": 1})
    sizes = [len(propose.changes) for propose in controller.plan(0)]
    assert sum(sizes) == 300
    assert max(sizes) < 128


def test_heads_that_piled_up_are_spread_again():
    ids = count(1)
    controller = Controller(lambda: next(ids))
    record = ChainRecord(1, (member("a"), member("b"), member("c")), factor=3, min_replicas=2)
    records = {(1, index): HeldRecord(record, 1) for index in range(6)}
    controller.load({name: BrokerRecord(name, 1) for name in "abc"}, {1: TopicPlan(3, 2)}, records)
    controller.heard_alive(dict.fromkeys("abc", 1))
    for _ in range(10):
        for propose in controller.plan(0):
            controller.proposed(propose, 2)
    heads = sorted(held.record.chain[0].broker for held in controller.records.values())
    assert heads == ["a", "a", "b", "b", "c", "c"]


def test_a_complaint_that_is_not_said_again_is_over():
    """A member that stood still for a moment is not removed much later, when somebody else could replace it."""
    cluster = Cluster("ab", factor=2, minimum=2)
    cluster.controller.plan(1_000_000)
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still"))
    assert cluster.controller.plan(1_100_000) == []  # nobody could take its place
    cluster.controller.heard_broker(BrokerRecord("c", 1))
    cluster.alive("abc")
    cluster.report("c", holds=False)
    assert cluster.controller.plan(60_000_000) == []
    cluster.controller.heard_member(KEY, Complaint(5, member("b"), "b stands still"))
    assert cluster.controller.plan(60_100_000) != []


def test_a_chain_with_a_member_that_halted_is_left_to_an_operator():
    """It holds what is committed and its head does not: nobody replaces it."""
    cluster = Cluster()
    cluster.report("a", end=99)
    cluster.report("b", end=100, committed=100, failed="would cut", halted=True)
    assert cluster.settle().epoch == 5
    assert cluster.chain == "abc"
    cluster.alive("ac")
    cluster.settle()
    assert cluster.chain == "ac", "nobody waits for one that is gone"


def test_a_chain_with_a_member_whose_disk_failed_goes_on_without_it():
    cluster = Cluster()
    cluster.report("b", end=100, committed=100, failed="its disk")
    cluster.settle()
    assert cluster.chain == "ac"


def test_after_a_restore_nothing_changes_before_all_brokers_have_reported():
    """Else an epoch is given a second time, which somebody who is not there yet has used already."""
    ids = count(1000)
    controller = Controller(lambda: next(ids))
    controller.awaited = True
    record = ChainRecord(5, (member("a"), member("b")), factor=2, min_replicas=1)
    brokers = {name: BrokerRecord(name, 1) for name in "abc"}
    controller.load(brokers, {1: TopicPlan(2, 1)}, {KEY: HeldRecord(record, 10)})
    controller.heard_alive({"a": 1, "c": 1})
    controller.heard_reports("a", 1, {KEY: ReplicaReport(member("a"), 5, 100, 0)})
    controller.heard_reports("c", 1, {})
    assert controller.unheard == ["b"]
    assert controller.plan(0) == []
    controller.heard_broker(BrokerRecord("d", 1))
    assert controller.unheard == ["b", "d"]
    controller.forgot_broker("d")
    controller.heard_alive({"a": 1, "b": 1, "c": 1})
    controller.heard_reports("b", 1, {KEY: ReplicaReport(member("b"), 6, 110, 110)})
    assert controller.unheard == []
    assert controller.plan(0) == []
    assert controller.behind == {KEY}


def test_what_was_left_alone_without_a_majority_is_looked_at_again_with_one():
    cluster = Cluster()
    cluster.controller.set_may_remove(False)
    cluster.alive("c")
    assert cluster.settle().epoch == 5
    cluster.controller.set_may_remove(True)
    cluster.settle()
    assert cluster.chain == "c"


def many_partitions(count):
    """A controller of so many whole chains, and the keys."""
    ids = iter(range(10**9))
    controller = Controller(lambda: next(ids))
    chain = tuple(member(name) for name in "abc")
    keys = [(1, number) for number in range(count)]
    records = {key: HeldRecord(ChainRecord(5, chain, factor=3, min_replicas=2), 10) for key in keys}
    controller.load({name: BrokerRecord(name, 1) for name in "abc"}, {1: TopicPlan(3, 2)}, records)
    controller.heard_alive(dict.fromkeys("bc", 1))
    controller.heard_disks(frozenset("bc"), frozenset())
    return controller, keys


def test_one_plan_looks_at_a_bounded_number_of_chains_and_the_next_ones_at_the_rest(monkeypatch):
    controller, keys = many_partitions(3_000)
    looked = []
    look = controller.next_record

    def count_looks(key, *arguments):
        looked.append(key)
        return look(key, *arguments)

    monkeypatch.setattr(controller, "next_record", count_looks)
    monkeypatch.setattr(limits, "PROPOSALS_MAX", 1_000)
    proposals, before = [], 0
    while controller.has_more:
        proposals += controller.plan(0)
        assert 0 < len(looked) - before <= limits.PLANNED_PARTITIONS_MAX
        before = len(looked)
    assert looked == keys
    assert [change.key for propose in proposals for change in propose.changes] == keys
    assert all(len(propose.changes) < limits.COORDINATION_SWAP_OPERATIONS_MAX for propose in proposals)


def test_a_chain_is_looked_at_again_once_its_change_is_through():
    controller, keys = many_partitions(100)
    proposals = controller.plan(0)
    for key in keys:  # the watch is faster than the answer
        change = next(c for propose in proposals for c in propose.changes if c.key == key)
        controller.heard_record(key, HeldRecord(change.record, 11))
    while controller.has_more:
        assert not controller.plan(0), "it is under way"
    for propose in proposals:
        controller.proposed(propose, 11)
    assert controller.has_more


def test_few_transactions_are_under_way_at_one_time_and_others_follow():
    controller, keys = many_partitions(3_000)
    changed = []
    while controller.has_more:
        under_way = controller.plan(0)
        assert not controller.has_more or len(under_way) < limits.PROPOSALS_MAX
        assert len(under_way) <= limits.PROPOSALS_MAX
        assert len(under_way) < limits.PROPOSALS_MAX or not controller.plan(0), "the store has enough to do"
        for propose in under_way:
            changed += [change.key for change in propose.changes]
            controller.proposed(propose, 11)
    assert sorted(changed) == keys


def test_a_copy_that_lacks_offsets_in_the_middle_is_not_filled_up_but_begun_anew():
    """K2: of a topic with one replica it may serve what is left; elsewhere others have all of it."""
    for incomplete in (False, True):
        cluster = Cluster("ab", chain="a", factor=2)
        cluster.report("b", incomplete=incomplete)
        joining = cluster.settle(steps=1).joining
        assert joining.broker == "b"
        assert joining.same_log(member("b")) is not incomplete


def test_a_lone_copy_that_lacks_offsets_in_the_middle_still_leads():
    cluster = Cluster("a", chain="a", factor=1)
    cluster.alive("a", a=2)
    cluster.report("a", incarnation=2, incomplete=True)
    cluster.settle()
    assert cluster.record.chain == (member("a", 2),)
