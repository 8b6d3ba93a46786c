"""The coordinator of a group and its members: no partition has two owners, whatever fails (C21, C22)."""

import heapq
import random

import msgspec
import pytest
from tests.headers import Batch

from stentor import limits
from stentor.core import group_coordinator as c
from stentor.core import group_limits, group_topics
from stentor.core.group_member import GroupMembership
from stentor.core.groups import GroupMember, Groups, GroupStep

ORDERS = {"orders.eu": (7, 8)}
SILENCE_S = 10.0


def read(body):
    return (msgspec.json.decode(bytes(body), type=GroupStep),)


class Head:
    """The log of the internal partition, and the coordinator at its head."""

    def __init__(self, topics=ORDERS):
        self.groups = Groups(read)
        self.topics = topics
        self.epoch, self.end, self.now = 1, 0, 100.0
        self.answers = {}
        self.at_once = True  # whether steps are committed as soon as they are appended
        self.activate()

    def activate(self):
        self.coordinator = c.GroupCoordinator("g", self.groups, self.epoch, self.now)
        self.step(c.TopicsAre(self.topics))

    def step(self, event):
        effects = self.coordinator.step(event, self.now)
        self.coordinator.check_invariants()
        for effect in effects:
            self.perform(effect)

    def perform(self, effect):
        if isinstance(effect, c.AppendStep):
            self.end += 1
            self.groups.apply(Batch(self.end - 1, self.end, 1, 0, 0, 0, 0, 0), msgspec.json.encode(effect.step))
            if self.at_once:
                self.commit()
        else:
            self.answers[effect.ticket] = effect

    def commit(self):
        self.groups.commit(self.end)
        self.groups.check_invariants()
        self.step(c.StepCommitted())

    def wait(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.now += group_limits.GROUP_TICK_S
            self.step(c.GroupTick())


class Member:
    """A member that obeys at once."""

    tickets = 0

    def __init__(self, head, name, *, instance="", topics=("orders.*",)):
        self.head = head
        self.about = GroupMember(list(topics), instance=instance, silence_ms=int(SILENCE_S * 1000))
        self.life = GroupMembership(name, SILENCE_S)
        self.connection = hash(name)

    def beat(self):
        Member.tickets += 1
        self.life.sent(self.head.now)
        beat = c.MemberBeat(
            self.life.member, self.about, self.life.number, self.life.seen, frozenset(self.life.holding)
        )
        self.ticket = Member.tickets
        self.head.step(c.MemberHeard(beat, self.ticket, self.connection))
        return self

    @property
    def answer(self):
        return self.head.answers.get(self.ticket)

    def obey(self):
        """Take the answer, and do as it says."""
        answer = self.answer
        assert isinstance(answer, c.AnswerBeat), answer
        self.life.answered(answer.number, answer.partitions)
        for key in self.life.asked_back:
            self.life.let_go(key)
        for key in self.life.gained:
            self.life.take(key)
        return self

    @property
    def held(self):
        return sorted(self.life.holding)


def settle(head, *members):
    """Everybody beats and obeys until nothing changes."""
    for _ in range(4):
        for member in members:
            member.beat()
            head.wait(group_limits.GROUP_POLL_S)
            if isinstance(member.answer, c.AnswerBeat):
                member.obey()


def test_the_first_member_gets_everything_once_that_is_committed():
    head = Head()
    head.at_once = False
    first = Member(head, "a").beat()
    assert first.answer is None
    head.commit()
    assert len(first.obey().held) == 8


def test_start_counts_for_what_was_there_when_the_group_began():
    head = Head()
    Member(head, "a").beat()
    assert head.coordinator.group.born == {7: 8}


def test_a_new_member_gets_a_partition_only_when_its_owner_let_go():
    head = Head()
    first = Member(head, "a").beat().obey()
    first.beat()
    second = Member(head, "b").beat()
    assert second.obey().held == []
    assert len(first.obey().held) == 4  # at once: there was news for it
    second.beat()
    assert second.answer is None
    first.beat()
    assert len(second.obey().held) == 4
    assert not set(first.held) & set(second.held)


def test_who_has_not_seen_the_answer_has_not_let_go():
    head = Head()
    first = Member(head, "a").beat()  # its answer, with all partitions, is on its way
    second = Member(head, "b").beat()
    late = first.answer
    first.beat()  # sent again: it holds nothing, and has seen nothing
    second.obey().beat()
    assert second.answer is None
    assert len(late.partitions) == 8


def test_there_is_no_news_for_a_while():
    head = Head()
    first = Member(head, "a").beat().obey().beat()
    assert first.answer is None
    head.wait(group_limits.GROUP_POLL_S)
    assert first.answer.partitions is None
    assert len(first.obey().held) == 8


def test_a_heartbeat_that_comes_again_takes_the_place_of_the_first():
    head = Head()
    first = Member(head, "a").beat().obey().beat()
    ticket = first.ticket
    first.beat()
    assert head.answers[ticket].why == "overtaken"


def test_a_heartbeat_that_was_overtaken_on_its_way_counts_no_more():
    head = Head()
    first = Member(head, "a").beat().obey()
    late = c.MemberBeat("a", first.about, 1, first.life.seen, frozenset())
    first.beat()
    head.step(c.MemberHeard(late, 1000, 99))
    assert head.answers[1000].why == "overtaken"
    head.step(c.ConnectionBroke(99))
    head.wait(group_limits.GROUP_GRACE_S)
    assert len(first.obey().held) == 8


def test_a_member_that_leaves_is_replaced_at_once():
    head = Head()
    first, second = Member(head, "a"), Member(head, "b")
    settle(head, first, second)
    second.beat()
    head.step(c.MemberLeft("a"))
    assert len(second.obey().held) == 8


def test_a_closed_connection_gives_a_member_a_short_time():
    head = Head()
    first, second = Member(head, "a"), Member(head, "b")
    settle(head, first, second)
    head.step(c.ConnectionBroke(first.connection))
    head.wait(group_limits.GROUP_GRACE_S - 0.5)
    assert "a" in head.coordinator.group.members
    head.wait(0.5)
    assert "a" not in head.coordinator.group.members
    assert len(second.beat().obey().held) == 8


def test_a_member_that_is_back_in_time_keeps_its_partitions():
    head = Head()
    first = Member(head, "a").beat().obey()
    head.step(c.ConnectionBroke(first.connection))
    head.wait(group_limits.GROUP_GRACE_S - 0.5)
    first.connection = 99
    first.beat()
    head.wait(group_limits.GROUP_GRACE_S)
    assert len(first.obey().held) == 8


def test_a_silent_member_on_an_open_connection_has_the_whole_limit():
    head = Head()
    Member(head, "a").beat().obey()
    head.wait(SILENCE_S - 0.5)
    assert "a" in head.coordinator.group.members
    head.wait(0.5)
    assert "a" not in head.coordinator.group.members


def test_a_new_head_gives_everybody_the_whole_limit():
    head = Head()
    first = Member(head, "a").beat().obey()
    head.wait(SILENCE_S - 0.5)
    head.epoch += 1
    head.activate()
    head.wait(SILENCE_S - 0.5)
    assert first.life.has_ended(head.now)
    assert len(first.beat().obey().held) == 8


def test_a_new_head_knows_whose_connection_was_closed():
    head = Head()
    first, second = Member(head, "a"), Member(head, "b")
    settle(head, first, second)
    head.step(c.ConnectionBroke(first.connection))
    head.epoch += 1
    head.activate()
    head.wait(group_limits.GROUP_GRACE_S - 0.5)
    assert "a" in head.coordinator.group.members
    head.wait(0.5)
    assert "a" not in head.coordinator.group.members
    assert len(second.beat().obey().held) == 8


def test_who_is_heard_again_is_answered_once_that_is_written_down():
    """A new head would give it a short time else, and it believes that it has all of its limit."""
    head = Head()
    first = Member(head, "a").beat().obey()
    head.step(c.ConnectionBroke(first.connection))
    assert head.coordinator.group.lost == {"a"}
    head.at_once = False
    first.connection = 99
    first.beat()
    head.wait(group_limits.GROUP_POLL_S * 2)
    assert first.answer is None
    head.commit()
    assert isinstance(first.answer, c.AnswerBeat)
    assert head.coordinator.group.lost == set()


def test_who_joined_under_the_head_before_is_known_once_that_is_committed():
    head = Head()
    head.at_once = False
    first = Member(head, "a").beat()
    head.epoch += 1
    head.activate()
    head.groups.commit(head.end)
    first.beat()
    assert isinstance(first.answer, c.AnswerBeat)


def test_a_head_that_stood_still_blames_nobody():
    head = Head()
    Member(head, "a").beat().obey()
    head.now += 100
    head.step(c.GroupTick())
    assert "a" in head.coordinator.group.members


def test_an_expelled_member_must_join_anew():
    head = Head()
    first = Member(head, "a").beat().obey()
    head.wait(SILENCE_S)
    assert first.beat().answer == c.RefuseBeat(first.ticket, "unknown")


def test_a_static_member_that_is_started_again_gets_its_partitions_back():
    head = Head()
    first, second = Member(head, "a", instance="one"), Member(head, "b", instance="two")
    settle(head, first, second)
    had, others = first.held, second.held
    head.step(c.ConnectionBroke(first.connection))
    head.wait(SILENCE_S - 5)
    second.beat()
    again = Member(head, "a2", instance="one").beat()
    settle(head, again, second)
    assert again.held == had
    assert second.held == others


def test_a_second_process_of_a_static_member_waits_until_the_first_is_gone():
    head = Head()
    first = Member(head, "a", instance="one").beat().obey()
    again = Member(head, "a2", instance="one").beat().obey()
    assert again.held == []
    assert first.beat().answer == c.RefuseBeat(first.ticket, "replaced")
    again.beat()
    head.step(c.MemberLeft("a"))
    assert len(again.obey().held) == 8


def test_new_partitions_and_topics_are_picked_up():
    head = Head()
    first = Member(head, "a").beat().obey().beat()
    head.step(c.TopicsAre({"orders.eu": (7, 9), "orders.us": (8, 2), "bills": (9, 1)}))
    assert len(first.obey().held) == 11
    assert head.coordinator.group.born == {7: 8}
    first.beat()
    head.step(c.TopicsAre({"orders.us": (8, 2)}))
    assert first.obey().held == [(8, 0), (8, 1)]
    first.beat()
    assert set(head.coordinator.group.owners) == {(8, 0), (8, 1)}


def test_a_changed_subscription_counts():
    head = Head({"orders.eu": (7, 2), "bills": (9, 1)})
    first = Member(head, "a").beat().obey()
    first.about = msgspec.structs.replace(first.about, topics=["bills"])
    settle(head, first)
    assert first.held == [(9, 0)]


def test_a_full_group_takes_nobody(monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_MEMBERS_MAX", 1)
    head = Head()
    Member(head, "a").beat()
    second = Member(head, "b").beat()
    assert second.answer == c.RefuseBeat(second.ticket, "full")


# --- random histories ---------------------------------------------------------------------------


class RandomMember:
    """A member behind a network that delays and loses, and a process that may be paused or killed."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.instance = f"i{number % 3}" if number % 4 == 0 else ""
        self.connection = world.new_number()
        self.paused_until = 0.0
        self.dead = False
        self.begin()

    def begin(self):
        self.life = GroupMembership(f"m{self.world.new_number()}", SILENCE_S)
        self.ticket = 0
        self.world.later(0, self.beat)

    def owns(self, now):
        """What it reads, as it knows."""
        ended = self.life.lease_ends is None or now >= self.life.lease_ends
        return set() if self.dead or ended else set(self.life.holding)

    def awake(self, then):
        """Whether it can do something now; else later."""
        if self.paused_until > self.world.head.now:
            self.world.later(self.paused_until - self.world.head.now, then)
            return False
        return not self.dead

    def beat(self):
        if not self.awake(self.beat):
            return
        world = self.world
        self.life.has_ended(world.head.now)
        self.ticket = ticket = world.new_number()
        world.tickets[ticket] = self
        self.life.sent(world.head.now)
        about = GroupMember(["orders.*"], instance=self.instance, silence_ms=int(SILENCE_S * 1000))
        beat = c.MemberBeat(self.life.member, about, self.life.number, self.life.seen, frozenset(self.life.holding))
        heard = c.MemberHeard(beat, ticket, self.connection)
        if not world.loses():
            world.later(world.delay(), lambda: world.head.step(heard))
        world.later(group_limits.GROUP_BEAT_S, lambda: self.ticket == ticket and self.beat())

    def hear(self, effect):
        if not self.awake(lambda: self.hear(effect)) or effect.ticket != self.ticket:
            return
        world = self.world
        if self.life.has_ended(world.head.now):
            self.beat()
            return
        if isinstance(effect, c.RefuseBeat):
            if effect.why == "unknown":
                self.begin()
            elif effect.why == "replaced":
                self.dead = True
                member = self.life.member
                world.later(world.delay(), lambda: world.head.step(c.MemberLeft(member)))
            return
        self.life.answered(effect.number, effect.partitions)
        if self.life.has_ended(world.head.now):
            self.beat()
            return
        for key in self.life.asked_back:
            self.world.later(world.chance.choice((0, 0, 3)), lambda key=key, life=self.life: self.release(life, key))
        for key in self.life.gained:
            self.life.take(key)
            world.check()
        self.beat()

    def release(self, life, key):
        if life is self.life and not self.dead and key in life.asked_back:
            life.let_go(key)
            self.beat()

    def lose_link(self):
        if self.dead:
            return
        if self.paused_until <= self.world.head.now:
            self.life.link_lost(self.world.head.now)
            broken, self.connection = self.connection, self.world.new_number()
            self.world.later(self.world.delay(), lambda: self.world.head.step(c.ConnectionBroke(broken)))
            self.beat()

    def kill(self):
        self.dead = True
        self.world.later(self.world.delay(), lambda: self.world.head.step(c.ConnectionBroke(self.connection)))


class World:
    """Random failures, the same for the same seed; after each event no partition has two owners."""

    def __init__(self, seed, mutate=lambda _: None):
        self.chance = random.Random(seed)
        self.queue, self.numbers, self.tickets = [], 0, {}
        self.head = Head()
        self.head.at_once = False
        self.head.perform = self.perform
        self.mutate = mutate
        mutate(self.head)
        self.members = []
        self.problems = []
        self.failing = False
        for _ in range(4):
            self.add()
        self.tick()

    def new_number(self):
        self.numbers += 1
        return self.numbers

    def later(self, seconds, work):
        heapq.heappush(self.queue, (self.head.now + seconds, self.new_number(), work))

    def delay(self):
        return self.chance.choice((0.001, 0.01, 0.2, 1.5)) if self.failing else 0.01

    def loses(self):
        return self.failing and self.chance.random() < 0.05

    def add(self):
        self.members.append(RandomMember(self, len(self.members)))

    def perform(self, effect):
        head = self.head
        if isinstance(effect, c.AppendStep):
            head.end += 1
            head.groups.apply(Batch(head.end - 1, head.end, 1, 0, 0, 0, 0, 0), msgspec.json.encode(effect.step))
            epoch = head.epoch
            self.later(self.delay(), lambda: head.epoch == epoch and head.commit())
            return
        member = self.tickets.pop(effect.ticket)
        if not self.loses():
            self.later(self.delay(), lambda: member.hear(effect))

    def fail(self):
        alive = [member for member in self.members if not member.dead]
        match self.chance.randrange(8):
            case 0 | 1 if alive:
                self.chance.choice(alive).lose_link()
            case 2 if len(alive) > 2:
                self.chance.choice(alive).kill()
            case 3 if alive:
                self.chance.choice(alive).paused_until = self.head.now + self.chance.choice((1, 5, 15))
            case 4 if len(alive) < 6:
                self.add()
            case 5:
                self.change_head()
            case 6 if len(alive) > 2:
                member = self.chance.choice(alive)
                member.dead, left = True, member.life.member
                self.later(self.delay(), lambda: self.head.step(c.MemberLeft(left)))
            case _:
                count = self.chance.randint(4, 10)
                self.head.topics = {"orders.eu": (7, count), "orders.us": (8, 3)}
                self.head.step(c.TopicsAre(self.head.topics))

    def change_head(self):
        head = self.head
        head.epoch += 1
        if self.chance.random() < 0.5 and head.groups._pending:
            head.end = self.chance.choice(head.groups._pending)[0] - 1
            head.groups.cut(head.end)
        head.groups.commit(head.end)
        head.activate()
        self.mutate(head)

    def check(self):
        owned = {}
        for member in self.members:
            for key in member.owns(self.head.now):
                if key in owned:
                    self.problems.append((self.head.now, key, owned[key].life.member, member.life.member))
                owned[key] = member
        return owned

    def tick(self):
        self.later(group_limits.GROUP_TICK_S, self.tick)
        self.head.step(c.GroupTick())
        if self.failing and self.chance.random() < 0.1:
            self.fail()

    def run(self, seconds, *, failing=True):
        self.failing = failing
        until = self.head.now + seconds
        while self.head.now < until and not self.problems:
            self.head.now, _, work = heapq.heappop(self.queue)
            work()
            self.check()


@pytest.mark.parametrize("seed", range(40))
def test_no_partition_ever_has_two_owners(seed):
    world = World(seed)
    world.run(120)
    assert not world.problems
    world.run(3 * SILENCE_S, failing=False)
    assert not world.problems
    owned = world.check()
    wanted = {(topic, index) for topic, count in world.head.topics.values() for index in range(count)}
    assert owned.keys() == wanted


def _give_away_before_let_go(head):
    head.coordinator._has_let_go = lambda *_: True


def _count_what_was_not_seen(head):
    def let_go(member, key):
        beat = head.coordinator._contacts[member].beat
        return beat is not None and key not in beat.holding

    head.coordinator._has_let_go = let_go


def _short_leases(head):
    ends_at = head.coordinator.ends_at
    head.coordinator.ends_at = lambda *given, **options: ends_at(*given, **options) - 4


@pytest.mark.parametrize("mutation", [_give_away_before_let_go, _count_what_was_not_seen, _short_leases])
def test_every_broken_rule_is_noticed(mutation):
    for seed in range(60):
        world = World(seed, mutation)
        world.run(120)
        if world.problems:
            return
    pytest.fail("nobody noticed")


def test_patterns_are_compared_with_topics_once_for_all_members(monkeypatch):
    """The head's broker does nothing else meanwhile: thousands of topics times hundreds of members would stop it."""
    compared = []
    matches = group_topics.matches
    monkeypatch.setattr(group_topics, "matches", lambda pattern, name: compared.append(name) or matches(pattern, name))
    head = Head({f"orders.{number}": (number + 1, 1) for number in range(50)})
    members = [Member(head, f"m{number}") for number in range(5)]
    settle(head, *members)
    assert sum(len(member.held) for member in members) == 50
    assert len(compared) == 50
    head.topics = head.topics | {"orders.more": (99, 1)}
    head.step(c.TopicsAre(head.topics))
    settle(head, *members)
    assert sum(len(member.held) for member in members) == 51
    assert len(compared) == 51, "only the new one"


# --- rights -------------------------------------------------------------------------------------

MINE, YOURS = b"m" * 16, b"y" * 16


def joined(holder=MINE):
    """A head with one member, which has shown a secret or not; and what it would say next."""
    head = Head()
    about = GroupMember(["orders.*"], silence_ms=10_000, holder=holder)
    beat = c.MemberBeat("a", about, 1, shown=holder)
    head.step(c.MemberHeard(beat, 1, 1))
    return head, beat


@pytest.mark.parametrize("shown", [YOURS, b""])
def test_whoever_shows_another_secret_is_not_heard_as_a_member(shown):
    head, beat = joined()
    foreign = msgspec.structs.replace(beat, number=2**63 - 1, shown=shown)
    head.step(c.MemberHeard(foreign, 2, 2))
    assert head.answers[2] == c.RefuseBeat(2, "foreign")
    head.step(c.MemberHeard(msgspec.structs.replace(beat, number=2), 3, 1))
    head.wait(2)
    assert isinstance(head.answers[3], c.AnswerBeat), "its numbers are its own"
    head.step(c.MemberLeft("a", shown))
    assert "a" in head.groups.get("g").members
    head.step(c.MemberLeft("a", MINE))
    assert "a" not in head.groups.get("g").members


def test_nobody_takes_an_id_whose_joining_is_not_committed_yet():
    head = Head()
    head.at_once = False
    about = GroupMember(["orders.*"], silence_ms=10_000, holder=MINE)
    head.step(c.MemberHeard(c.MemberBeat("a", about, 1, shown=MINE), 1, 1))
    head.step(c.MemberHeard(c.MemberBeat("a", about, 2, shown=YOURS), 2, 2))
    assert head.answers == {2: c.RefuseBeat(2, "foreign")}


def test_a_member_without_a_secret_is_bound_to_the_first_that_it_shows():
    head, beat = joined(holder=b"")
    assert head.groups.get("g").members["a"].holder == b""
    shown = msgspec.structs.replace(beat, about=msgspec.structs.replace(beat.about, holder=MINE), shown=MINE, number=2)
    head.step(c.MemberHeard(shown, 2, 1))
    assert head.groups.get("g").members["a"].holder == MINE
    unbinding = msgspec.structs.replace(beat, shown=MINE, number=3)  # the head does not write holders down
    head.step(c.MemberHeard(unbinding, 3, 1))
    head.wait(2)
    assert head.groups.get("g").members["a"].holder == MINE


# --- steps have a bound ---------------------------------------------------------------------------


def test_many_members_and_partitions_come_in_steps_that_fit_into_a_message(monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_STEP_PARTITIONS_MAX", 10)
    monkeypatch.setattr(group_limits, "GROUP_STEP_MEMBERS_MAX", 2)
    head = Head({"orders.eu": (7, 64)})
    head.at_once = False
    steps, perform = [], head.perform

    def noted(effect):
        if isinstance(effect, c.AppendStep):
            steps.append(effect.step)
        perform(effect)

    head.perform = noted
    members = [Member(head, f"m{number}").beat() for number in range(7)]
    for _ in range(20):
        head.commit()
    head.at_once = True
    settle(head, *members)
    assert sorted(key for member in members for key in member.held) == [(7, index) for index in range(64)]
    assert max(len(member.held) for member in members) - min(len(member.held) for member in members) <= 1
    assert len(steps) > 7
    assert max(len(step.owners) for step in steps) == 10
    assert max(len(step.joined) for step in steps) == 2


def test_the_largest_step_fits_into_a_message():
    members = [f"{number:064}" for number in range(group_limits.GROUP_STEP_MEMBERS_MAX)]
    label = "\U0001f600" * limits.CLIENT_NAME_CHARACTERS_MAX
    topics = ["x" * limits.TOPIC_NAME_CHARACTERS_MAX] * group_limits.GROUP_TOPICS_MAX
    about = GroupMember(topics, label, label, label, 2**31, bytes(16))
    keys = range(group_limits.GROUP_STEP_PARTITIONS_MAX)
    owners = [(2**63 - 1, index + limits.PARTITIONS_PER_TOPIC_MAX, members[0]) for index in keys]
    gone = [f"{number:064}" for number in range(group_limits.GROUP_MEMBERS_MAX)]
    born = {2**62 + number: limits.PARTITIONS_PER_TOPIC_MAX for number in range(limits.TOPICS_MAX)}
    step = GroupStep("g" * 200, (2**32, 2**63), dict.fromkeys(members, about), gone, owners, born, gone, gone)
    assert len(msgspec.json.encode(step)) < limits.MESSAGE_VALUE_BYTES_MAX / 2


# --- what a member says it holds ------------------------------------------------------------------


def colliding(count):
    """Pairs of a topic's id and the number 1 that all have one hash, as anybody can choose them."""
    mask, prime_1, prime_2, prime_5 = 2**64 - 1, 11400714785074694791, 14029467366897019727, 2870177450012600261
    inverse_1, inverse_2, modulus = pow(prime_1, -1, 2**64), pow(prime_2, -1, 2**64), 2**61 - 1

    def rotated(value, by):
        return (value << by | value >> (64 - by)) & mask

    found, second = [], 0
    while len(found) < count:
        second += 1  # the number of a partition; the topic's id makes up for it
        after = rotated(12345 * inverse_1 & mask, 33)
        before = after - second * prime_2 & mask  # what the first number must have led to
        first = (rotated(before * inverse_1 & mask, 33) - prime_5) * inverse_2 & mask
        if first < modulus:
            found.append((first, second))
    return found


def test_the_pairs_of_this_test_collide():
    assert len({hash(pair) for pair in colliding(50)}) == 1


def test_what_a_member_holds_is_looked_up_without_hashing_what_it_chose():
    """20 heartbeats with 3,000 such pairs took 4 s as sets of pairs."""
    pairs = colliding(200)
    holding = c.HeldPartitions({topic_id: [index] for topic_id, index in pairs})
    compared = []

    class Noted(int):
        def __eq__(self, other):
            compared.append(other)
            return int.__eq__(self, other)

        __hash__ = int.__hash__

    assert all((Noted(topic_id), index) in holding for topic_id, index in pairs)
    assert (7, 0) not in holding
    assert len(compared) < 20 * len(pairs)
    assert holding
    assert not c.HeldPartitions({})
    assert not c.HeldPartitions({7: []})
