"""Who is heard, who is dead, who becomes the controller."""

import pytest

from stentor import limits
from stentor.core import cluster_events as e
from stentor.core.cluster import ClusterMember
from stentor.core.membership import ControllerKey, Heartbeat, Membership

SECOND = 1_000_000
BEAT = int(limits.PEER_HEARTBEAT_S * SECOND)
SILENCE = int(limits.PEER_SILENCE_S * SECOND)


class World:
    """Three brokers that tell each other what they hear, as far as they can."""

    def __init__(self, names="abc"):
        self.now = SECOND
        self.members = {name: Membership(name, 1, self.now) for name in names}
        self.cut = set()
        for member in self.members.values():
            member.register(self.members, self.now)
            member.controller_is(ControllerKey("a", 1), 5)

    def run(self, seconds, paused=()):
        for _ in range(round(seconds * SECOND / BEAT)):
            self.now += BEAT
            for name, member in self.members.items():
                if name not in paused:
                    member.tick(self.now)
            for name, member in self.members.items():
                if name in paused:
                    continue
                heartbeat = member.heartbeat(self.now)
                for other, hearer in self.members.items():
                    if other != name and other not in paused and (name, other) not in self.cut:
                        hearer.heard(heartbeat, self.now)

    def takers(self):
        return [name for name, member in self.members.items() if member.should_take_over(self.now)]

    def isolate(self, name):
        for other in self.members:
            self.cut |= {(name, other), (other, name)}


@pytest.fixture
def world():
    world = World()
    world.run(1)
    return world


def test_everyone_is_heard_and_confirmed(world):
    for member in world.members.values():
        assert all(member.view(other, world.now) == "heard" for other in world.members)
        assert member.is_confirmed(world.now)
        assert not any(member.is_dead(other, world.now) for other in world.members)
    assert world.takers() == []


def test_a_silent_broker_is_dead_only_when_a_second_observer_says_so(world):
    world.cut |= {("c", "a")}  # only a does not hear c
    world.run(2 * limits.PEER_SILENCE_S)
    assert world.members["a"].view("c", world.now) == "silent"
    assert not world.members["a"].is_dead("c", world.now)
    world.cut |= {("c", "b")}
    world.run(2 * limits.PEER_SILENCE_S)
    assert world.members["a"].is_dead("c", world.now)


def test_who_hears_the_others_and_is_not_heard_is_not_confirmed(world):
    world.cut |= {("c", "a"), ("c", "b")}
    world.run(limits.PEER_SILENCE_S + 0.2)
    assert world.members["c"].is_confirmed(world.now), "others may need a moment to hear one that was just started"
    world.run(limits.PEER_SILENCE_S + 0.2)
    assert world.members["c"].hears_majority(world.now)
    assert not world.members["c"].is_confirmed(world.now)
    world.cut.clear()
    world.run(0.3)
    assert world.members["c"].is_confirmed(world.now)


@pytest.mark.parametrize("cut", [{("c", "a")}, {("c", "a"), ("a", "c")}], ids=["one way", "both ways"])
def test_what_the_controller_should_know_goes_by_way_of_one_whom_it_hears(world, cut):
    c = world.members["c"]
    assert c.way_to_controller(world.now) == "a"
    world.cut |= cut
    world.run(2 * limits.PEER_SILENCE_S)
    assert c.way_to_controller(world.now) == "b"
    world.isolate("a")
    world.run(2 * limits.PEER_SILENCE_S)
    assert c.way_to_controller(world.now) == "a", "nobody hears it"
    assert world.members["a"].way_to_controller(world.now) == "a"


def test_no_more_than_a_minority_is_given_up_for_silence_in_a_short_time():
    world = World("abcde")
    a = world.members["a"]
    world.run(1)
    world.run(limits.PEER_SILENCE_S + 0.3, paused="de")
    assert a.dead(world.now) == {"d", "e"}
    world.run(limits.PEER_SILENCE_S + 0.3, paused="bc")
    assert [a.is_dead(name, world.now) for name in "bcde"] == [True, True, False, False]
    assert a.dead(world.now) == set(), "the others were given up a moment ago"
    assert a.refused("b")
    assert a.dead(world.now) == {"b"}, "a refused connection is no guess"
    world.run(limits.REMOVALS_S, paused="bc")
    assert a.dead(world.now) == {"b", "c"}


def test_a_refused_connection_means_dead_now(world):
    assert world.members["a"].refused("c")
    assert not world.members["a"].refused("c"), "it is news only once"
    assert world.members["a"].is_dead("c", world.now)
    world.run(0.2)
    assert not world.members["a"].is_dead("c", world.now), "it is back"


def test_a_liveness_key_that_expired_is_a_second_observer(world):
    world.isolate("c")
    world.cut |= {("b", "a")}
    world.run(2 * limits.PEER_SILENCE_S)
    member = world.members["a"]
    assert not member.is_dead("c", world.now)
    member.liveness("c", alive=False)
    assert member.is_dead("c", world.now)


def test_liveness_keys_that_lapse_all_at_once_make_nobody_a_majority(world):
    """The store was paused: brokers renew their keys, one a moment before the other."""
    world.isolate("c")
    world.run(2 * limits.PEER_SILENCE_S)
    c = world.members["c"]
    for name in "abc":
        c.liveness(name, alive=False)
    world.run(0.3)
    c.liveness("c", alive=True)
    world.run(0.5)
    assert not c.is_confirmed(world.now)
    world.run(limits.LEASE_S)
    assert c.is_confirmed(world.now), "they are gone from the store as well: nobody is left on another side"


def test_an_observer_that_stood_still_itself_counts_anew(world):
    world.now += 10 * SECOND
    member = world.members["a"]
    member.tick(world.now)
    assert member.lags == 1
    assert member.view("b", world.now) == "heard"


def test_who_is_heard_again_counts_as_heard_lately_for_a_moment(world):
    """What comes first after a pause may have been sent long ago."""
    observer = world.members["a"]
    assert observer.heard_lately(world.now) == frozenset()
    world.isolate("b")
    world.run(2)
    world.cut.clear()
    world.run(limits.PEER_HEARTBEAT_S)
    assert observer.heard_lately(world.now) == {"b"}
    world.run(5 * limits.PEER_HEARTBEAT_S)
    assert observer.heard_lately(world.now) == frozenset()


def test_who_stood_still_has_heard_everybody_only_lately(world):
    world.run(2, paused="a")
    world.run(limits.PEER_HEARTBEAT_S)
    assert world.members["a"].heard_lately(world.now) == {"b", "c"}


def test_an_echo_of_an_earlier_life_is_not_heard(world):
    member = world.members["a"]
    member.heard(Heartbeat("b", 2), world.now)
    assert member.incarnation_of("b") == 2
    assert not member.heard(Heartbeat("b", 1), world.now + 10 * SECOND)
    assert member.view("b", world.now + 10 * SECOND) == "silent"


def test_the_controller_is_replaced_by_one_of_the_majority_and_by_rank(world):
    world.isolate("a")
    world.run(limits.CONTROLLER_SILENCE_S + 3 * limits.PEER_HEARTBEAT_S)
    assert world.takers() == ["b"], "c waits for its turn"
    world.run(0.2)
    assert world.takers() == ["b", "c"], "b may be gone too"


def test_a_broker_that_alone_does_not_hear_the_controller_leaves_it_alone(world):
    world.cut |= {("a", "c")}
    world.run(3 * limits.CONTROLLER_SILENCE_S)
    assert not world.members["c"].hears_controller(world.now)
    assert world.takers() == []


def test_an_isolated_controller_is_not_confirmed_by_hearing_itself(world):
    world.isolate("a")
    world.run(2 * limits.PEER_SILENCE_S)
    assert not world.members["a"].is_confirmed(world.now)
    assert world.members["b"].is_confirmed(world.now)


def test_a_controller_on_the_minoritys_side_confirms_nobody():
    world = World("abcde")
    world.run(1)
    for one in "ab":
        for other in "cde":
            world.cut |= {(one, other), (other, one)}
    world.run(2 * limits.PEER_SILENCE_S)
    assert world.members["b"].hears_controller(world.now)
    assert not world.members["b"].is_confirmed(world.now)
    assert world.members["c"].is_confirmed(world.now)


def test_the_last_of_two_is_confirmed_once_the_others_key_expired():
    world = World("ab")
    world.run(1)
    world.isolate("b")
    world.run(2 * limits.PEER_SILENCE_S)
    assert not world.members["a"].is_confirmed(world.now)
    world.members["a"].liveness("b", alive=False)
    assert world.members["a"].is_confirmed(world.now)


def test_a_restarted_controller_takes_its_own_key_again(world):
    again = Membership("a", 2, world.now)
    again.register(world.members, world.now)
    again.controller_is(ControllerKey("a", 1), 5)
    assert not again.is_controller
    assert again.should_take_over(world.now)


def test_an_older_key_is_not_news(world):
    member = world.members["b"]
    member.controller_is(ControllerKey("b", 1), 9)
    member.controller_is(ControllerKey("a", 1), 7)
    assert member.is_controller


# --- the store (C29) ------------------------------------------------------------------------------


def controlling(now_us=0):
    """Broker a as the controller of a cluster of three, hearing both others."""
    member = ClusterMember("a", 1, now_us, lambda: 1)
    member.membership.register("abc", now_us)
    member.step(e.ControllerSeen(ControllerKey("a", 1), 5), 0)
    assert member.controller is not None
    return member


def beat(member, name, now_us, **said):
    member.step(e.Beaten(Heartbeat(name, 1, controller_revision=5, **said)), now_us)


def lose_store(member, until_us, **others):
    """Time passes without the store; what the others say of it is told by `others`."""
    for now_us in range(0, until_us, 100_000):
        member.membership.store_answers(answers=False, now_us=now_us)
        for name in "bc":
            beat(member, name, now_us, reaches_store=others.get(name, True))
        member.step(e.Ticked(), now_us)
    return until_us


def test_a_controller_that_lost_the_store_resigns_if_another_broker_reaches_it():
    member = controlling()
    lose_store(member, int(limits.RESIGN_S * SECOND), b=False)
    assert member.controller is not None, "it may be back in a moment"
    now_us = lose_store(member, 2 * SECOND, b=False)
    assert (member.controller, member.membership.resigned) == (None, True)
    assert member.membership.heartbeat(now_us).resigned
    assert not member.membership.should_take_over(now_us), "who does not reach the store is no candidate"


def test_nobody_resigns_while_nobody_reaches_the_store():
    member = controlling()
    lose_store(member, 5 * SECOND, b=False, c=False)
    assert member.controller is not None


def test_who_resigned_takes_the_office_again_when_the_store_is_back_and_nobody_else_did():
    member = controlling()
    now_us = lose_store(member, 2 * SECOND)
    member.membership.store_answers(answers=True, now_us=now_us)
    assert member.membership.should_take_over(now_us)
    member.step(e.TookOver(ControllerKey("a", 1), 9), 0)
    assert member.controller is not None
    assert member.office_revision == 9


def test_a_controller_that_resigned_counts_as_not_heard(world):
    observer = Membership("b", 1, 0)
    observer.register("abc", 0)
    observer.controller_is(ControllerKey("a", 1), 5)
    observer.heard(Heartbeat("a", 1, controller_revision=5), 0)
    assert observer.hears_controller(0)
    observer.heard(
        Heartbeat("a", 1, controller_revision=5, hears_controller=False, reaches_store=False, resigned=True), 0
    )
    assert not observer.hears_controller(0)
    assert observer.should_take_over(0), "its own word and this one's are a majority of three"


def test_a_broker_without_the_store_hears_of_the_new_controller_from_its_peers_and_changes_nothing_any_more():
    """C16: its changes would compare the key of another one's office."""
    member = controlling()
    member.membership.store_answers(answers=False, now_us=0)
    newer = Heartbeat("b", 1, controller_revision=8, controller="b", controller_incarnation=1)
    member.step(e.Beaten(newer), 0)
    assert member.controller is None
    assert member.controller_broker == "b"
    assert member.office_revision == 5
    member.step(e.ControllerSeen(ControllerKey("c", 1), 7), 0)
    assert member.controller_broker == "c", "the store's word counts, whatever a peer has said"


def test_who_reaches_the_store_believes_no_peer_about_the_controller():
    member = controlling()
    member.step(e.Beaten(Heartbeat("b", 1, controller_revision=8, controller="b", controller_incarnation=1)), 0)
    assert member.controller is not None


# --- disks (C31) -----------------------------------------------------------------------------------


def test_a_disk_counts_as_unable_only_after_a_while_and_as_able_only_while_it_says_so():
    member = controlling()
    beat(member, "b", 0, writes=False)
    beat(member, "c", 0)
    assert member.membership.writers(0) == (frozenset("ac"), frozenset())
    later_us = int(limits.UNABLE_S * SECOND)
    beat(member, "b", later_us, writes=False)
    assert member.membership.writers(later_us) == (frozenset("ac"), frozenset("b"))
    silent_us = later_us + 2 * SECOND
    assert member.membership.writers(silent_us) == (frozenset("a"), frozenset()), "nobody else has said anything lately"
