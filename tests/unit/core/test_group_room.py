"""Room for groups: one client, and one that comes again as others, leave room for the groups of others (S7)."""

import msgspec
import pytest
from tests.headers import Batch

from stentor.core import group_coordinator as c
from stentor.core import group_limits
from stentor.core.groups import GroupMember, Groups, GroupStep, HeldGroup

ORDERS, WIDE = {"orders": (7, 4)}, {"wide": (8, 27)}
MINE, OTHERS = b"m" * 16, b"o" * 16


def read(body):
    return (msgspec.json.decode(bytes(body), type=GroupStep),)


class Partition:
    """A partition of the internal topic, with the coordinators of its groups; steps are committed at once."""

    def __init__(self):
        self.groups = Groups(read)
        self.topics = ORDERS | WIDE
        self.coordinators = {}
        self.end, self.now, self.tickets = 0, 100.0, 0
        self.answers, self.steps = {}, []
        self.checks = True

    def step(self, name, event):
        coordinator = self.coordinators.get(name)
        if coordinator is None:
            coordinator = self.coordinators[name] = c.GroupCoordinator(name, self.groups, 1, self.now)
            self.step(name, c.TopicsAre(self.topics))
        for effect in coordinator.step(event, self.now):
            if isinstance(effect, c.AppendStep):
                self.append(effect.step)
                self.step(name, c.StepCommitted())
            else:
                self.answers[effect.ticket] = effect
        coordinator.check_invariants()

    def append(self, step):
        self.end += 1
        self.steps.append(step)
        self.groups.apply(Batch(self.end - 1, self.end, 1, 0, 0, 0, 0, 0), msgspec.json.encode(step))
        self.groups.commit(self.end)
        if self.checks:
            self.groups.check_invariants()

    def join(self, name, member, topic="orders", *, shown=MINE, number=1, **how):
        """What a member is answered; None if it has to wait."""
        self.tickets += 1
        about = GroupMember([topic], silence_ms=10_000, holder=shown if how.get("binds", True) else b"")
        beat = c.MemberBeat(member, about, number, shown=shown, **how)
        self.step(name, c.MemberHeard(beat, self.tickets, self.tickets))
        return self.answers.get(self.tickets)

    def leave(self, name, member, *, shown=MINE):
        self.step(name, c.MemberLeft(member, shown))

    def group(self, name):
        return self.groups.get(name)


def is_in(answer):
    return isinstance(answer, c.AnswerBeat)


@pytest.fixture
def partition(monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_SIZE_MAX", 100)
    monkeypatch.setattr(group_limits, "GROUP_MEMBERSHIPS_MAX", 100)
    return Partition()


def fill(partition, secrets, *, topic="orders", groups=50):
    """As many groups as one stranger may have who comes again and again, as another client each time."""
    for secret in range(secrets):
        for number in range(groups):
            if not is_in(partition.join(f"s{secret}-{number}", f"s{secret}", topic, shown=b"stranger %07d" % secret)):
                break


def test_one_client_leaves_room_for_the_groups_of_others(partition):
    assert is_in(partition.join("x", "m", "wide", shown=OTHERS))
    assert partition.join("y", "n", "wide", shown=OTHERS).why == "room"
    fill(partition, 1)
    assert is_in(partition.join("billing", "a"))


def test_who_is_refused_is_in_no_group_and_leaves_nothing_behind(partition):
    partition.join("x", "m", "wide", shown=OTHERS)
    partition.join("y", "n", "wide", shown=OTHERS)
    assert partition.group("y") is None
    assert partition.coordinators["y"].idle


def test_a_stranger_who_comes_again_as_others_leaves_room(monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_SIZE_MAX", 50_000)
    partition = Partition()
    partition.checks = False  # there is much to look at
    partition.topics = {"orders": (7, 4), "wide": (8, 8_192)}
    fill(partition, 3, topic="wide", groups=6)
    fill(partition, 16, groups=6_000)
    assert is_in(partition.join("billing", "a"))


def test_whoever_returns_to_a_group_finds_its_room(partition):
    """Also a sole member under another secret, when others have taken all that they may."""
    assert is_in(partition.join("x", "m", "wide"))
    partition.leave("x", "m")
    assert partition.group("x").members == {}
    fill(partition, 60)
    assert partition.join("new", "n", "wide", shown=b"a third").why == "room"
    assert is_in(partition.join("x", "again", "wide", shown=OTHERS))
    assert len(partition.group("x").owners) == 27


def test_the_room_that_a_group_keeps_counts_for_its_last_client(partition):
    for number in range(20):
        if not is_in(partition.join(f"x{number}", "m")):
            break
        partition.leave(f"x{number}", "m")
    assert 3 < number < 15
    assert is_in(partition.join("billing", "a", shown=OTHERS))


def test_more_members_share_what_a_group_claims(partition):
    partition.join("x", "a", "wide", shown=MINE)
    partition.join("x", "b", "wide", shown=OTHERS)
    assert is_in(partition.join("y", "a", shown=MINE)), "half of the large group is another's now"


def test_a_member_that_wants_more_than_there_is_room_for_stays_what_it_was(partition):
    partition.join("x", "m", shown=OTHERS)
    fill(partition, 4)
    before = partition.group("x")
    assert partition.join("x", "m", "wide", shown=OTHERS, number=2).why == "room"
    assert partition.group("x") == before


def test_topics_that_grow_beyond_a_share_keep_no_step_of_the_group_back(partition):
    partition.join("x", "m", shown=OTHERS)
    fill(partition, 3)
    partition.topics = {"orders": (7, 60), "wide": (8, 27)}
    partition.step("x", c.TopicsAre(partition.topics))
    coordinator = partition.coordinators["x"]
    assert len(partition.group("x").owners) == 4
    assert coordinator.short == 56
    assert is_in(partition.join("x", "n", shown=MINE)), "whoever comes to it can"
    partition.leave("x", "m", shown=OTHERS)
    assert len(partition.group("x").owners) == 4
    for name in partition.groups.names():
        if name != "x":
            partition.append(GroupStep(name, (9, 9), deleted=True))
    partition.topics = {"orders": (7, 20), "wide": (8, 27)}
    partition.step("x", c.TopicsAre(partition.topics))
    assert coordinator.short == 0
    assert len(partition.group("x").owners) == 20


def test_members_of_all_groups_leave_room_for_those_of_others(partition, monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_MEMBERSHIPS_MAX", 10)
    partition.join("x", "a", shown=OTHERS)
    answers = [partition.join("x", f"s{number}") for number in range(10)]
    assert [is_in(answer) for answer in answers].count(True) < 5
    assert answers[-1].why == "room"
    assert is_in(partition.join("x", "b", shown=b"a third"))


def test_one_client_cannot_be_all_members_of_a_group(partition, monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_MEMBERS_MAX", 10)
    answers = [partition.join("g", f"s{number}", shown=OTHERS) for number in range(10)]
    assert answers[-1].why == "crowded"
    assert is_in(partition.join("g", "a"))
    for number in range(10):
        partition.join("g", f"t{number}", shown=b"another %07d" % number)
    assert partition.join("g", "z", shown=b"the last").why == "full"


def test_below_the_feature_level_only_what_is_there_in_all_counts_and_nothing_new_is_written(partition):
    for number in range(15):
        assert is_in(partition.join(f"x{number}", "m", binds=False))
    assert partition.join("wide", "m", "wide", binds=False).why == "room"
    assert all(step.room is None for step in partition.steps)
    assert b"room" not in b"".join(msgspec.json.encode(step) for step in partition.steps)


def test_room_is_known_to_a_new_head_and_in_a_snapshot(partition):
    partition.join("x", "m", "wide")
    partition.join("y", "m")
    partition.leave("x", "m")
    restored = Groups(read)
    restored.restore(partition.groups.snapshot())
    restored.check_invariants()
    assert restored.snapshot() == partition.groups.snapshot()
    assert restored.get("x").room == 27
    assert restored.get("x").keeper == MINE
    joining = {"again": GroupMember(["wide"], holder=OTHERS)}
    assert restored.has_room_for_claim("x", restored.get("x").claim, joining, shared=True)
    assert not restored.has_room_for_claim("z", 60, joining, shared=True)


def test_a_cut_gives_back_what_is_undone(partition):
    partition.join("x", "m", "wide")
    step = GroupStep("y", (1, 1), joined={"n": GroupMember(["wide"], holder=MINE)}, room=27)
    partition.groups.apply(Batch(partition.end, partition.end + 1, 1, 0, 0, 0, 0, 0), msgspec.json.encode(step))
    partition.groups.check_invariants()
    partition.groups.cut(partition.end)
    partition.groups.check_invariants()


def test_snapshots_of_older_versions_have_no_room():
    old = msgspec.msgpack.encode([1, [["x", [1, 1], {"m": {"topics": ["a"]}}, [[7, 0, "m", [1, 1]]], {7: 1}, 5, []]]])
    groups = Groups(read)
    groups.restore(old)
    assert (groups.get("x").room, groups.get("x").claim) == (0, 3)


def test_deserted_groups_are_named_those_that_claim_most_first(partition):
    for name, topic in (("small", "orders"), ("large", "wide"), ("live", "orders")):
        partition.join(name, "m", topic, shown=name.encode())
    for name in ("small", "large"):
        partition.leave(name, "m", shown=name.encode())
    assert [name for name, _ in partition.groups.deserted()] == ["large", "small"]
    partition.append(GroupStep("large", (1, 9), room=0))
    assert [name for name, _ in partition.groups.deserted()] == ["small", "large"]


def test_a_group_without_members_claims_itself_alone():
    assert HeldGroup((1, 1), {}, {}, {}).claim == 1
