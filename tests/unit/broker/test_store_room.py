"""Room in the coordination store: what clients cause is refused in time, and history is compacted where it is ours."""

import asyncio
from types import SimpleNamespace

import pytest

from stentor.broker.cluster.store_room import (
    HISTORY_FULL_S,
    HISTORY_S,
    QUOTA_BYTES,
    ROOM_FRESH_S,
    ROOM_LOOK_S,
    StoreKeeper,
)
from stentor.broker.config import BrokerConfig
from stentor.errors import CoordinationRefused, CoordinationUnavailable, StoreFull
from stentor.limits import MIB
from stentor.ports import StoreRoom

QUOTA = 32 * MIB


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nobody waits for etcd to count."""
    monkeypatch.setattr("stentor.broker.cluster.store_room.COUNTED_S", 0.0)


class Store:
    """A store that says how full it is."""

    has_quota = True

    def __init__(self):
        self.revision, self.bytes, self.in_use, self.alarm = 1, 0, 0, False
        self.quota = 0
        self.others = False
        self.compactions = []
        self.leases = []
        self.looks = 0
        self.error = None

    async def room(self):
        self.looks += 1
        if self.error is not None:
            raise self.error
        return StoreRoom(self.revision, max(self.bytes, self.in_use), self.in_use, self.quota, self.alarm)

    async def lease(self, _):
        return 7

    async def revoke(self, lease):
        self.leases.append(lease)

    async def is_shared(self, kinds):
        assert {"topics/", "deleted/", "controller"} <= set(kinds)
        return self.others

    async def compact(self, revision):
        if self.error is not None:
            raise self.error
        self.compactions.append(revision)


class Keeping:
    """A keeper, its clock, and what it was started with."""

    def __init__(self, store, *, controls=True, **settings):
        self.store = store
        self.now = 1000.0
        self.controls = controls
        clock = SimpleNamespace(monotonic=lambda: self.now)
        config = BrokerConfig(**{"coordination_quota_bytes": QUOTA, **settings})
        environment = SimpleNamespace(clock=clock, config=config)
        background = SimpleNamespace(spawn=asyncio.run)
        self.keeper = StoreKeeper(environment, store, background, lambda: self.controls)

    def check(self, size=100):
        asyncio.run(self.keeper.check(size, "topic"))

    def look(self, seconds=ROOM_LOOK_S):
        """Time passes, a change is made, and the timer comes."""
        self.now += seconds
        self.store.revision += 1
        self.keeper.look_soon()


def test_clients_are_refused_while_half_of_the_quota_is_in_use():
    keeping = Keeping(store := Store())
    keeping.check()
    store.in_use = QUOTA // 2
    keeping.now += ROOM_FRESH_S
    with pytest.raises(StoreFull) as error:
        keeping.check()
    assert error.value.retriable
    assert error.value.object == "topic"
    assert keeping.keeper.statistics().refused == 1
    (problem,) = keeping.keeper.problems()
    assert problem.severity == "error"
    store.in_use = QUOTA // 2 - 1  # no room worth speaking of
    keeping.now += ROOM_FRESH_S
    with pytest.raises(StoreFull):
        keeping.check()
    store.in_use = QUOTA * 7 // 16 - 1
    keeping.now += ROOM_FRESH_S
    keeping.check()
    assert keeping.keeper.problems() == []


def test_it_is_looked_at_again_when_much_was_written_or_some_time_has_passed():
    keeping = Keeping(store := Store())
    for _ in range(10):
        keeping.check()
    assert store.looks == 1
    keeping.check(MIB)
    assert store.looks == 2
    keeping.now += ROOM_FRESH_S
    keeping.check()
    assert store.looks == 3


def test_a_store_that_does_not_say_refuses_nobody():
    keeping = Keeping(store := Store())
    store.error = CoordinationUnavailable("away")
    keeping.check()
    keeping.look()
    assert keeping.keeper.problems() == []


def test_the_quota_is_the_setting_or_what_the_store_says_or_etcds_default():
    store = Store()
    assert Keeping(store).keeper.quota == QUOTA
    keeping = Keeping(store, coordination_quota_bytes=0)
    assert keeping.keeper.quota == QUOTA_BYTES
    store.quota = 5 * MIB
    keeping.check()
    assert keeping.keeper.quota == 5 * MIB


def test_the_controller_compacts_what_is_older_than_ten_minutes():
    keeping = Keeping(store := Store())
    keeping.look()
    first = store.revision
    while not store.compactions:
        keeping.look()
    assert store.compactions == [first]
    assert HISTORY_S <= keeping.now - 1030.0 < HISTORY_S + ROOM_LOOK_S
    keeping.look()
    assert store.compactions == [first, first + 1]


def test_while_clients_are_refused_only_a_minute_is_kept():
    keeping = Keeping(store := Store())
    store.in_use = QUOTA // 2
    keeping.look()
    while not store.compactions:
        keeping.look()
    assert keeping.now - 1030.0 < HISTORY_FULL_S + ROOM_LOOK_S
    assert store.leases, "a change, with which etcd counts what is free"


@pytest.mark.parametrize(
    ("settings", "others", "controls", "compacts"),
    [
        ({}, False, True, True),
        ({}, True, True, False),
        ({}, False, False, False),
        ({"coordination_compaction": "on"}, True, True, True),
        ({"coordination_compaction": "off"}, False, True, False),
    ],
)
def test_who_compacts(settings, others, controls, compacts):
    keeping = Keeping(store := Store(), controls=controls, **settings)
    store.others = others
    for _ in range(30):
        keeping.look()
    assert bool(store.compactions) == compacts


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize(
    ("settings", "others", "says"),
    [
        ({}, False, "The controller compacts its history"),
        ({}, True, "Others use this etcd, too"),
        ({"coordination_compaction": "on"}, True, "The controller compacts its history"),
        ({"coordination_compaction": "off"}, False, "No broker compacts its history"),
    ],
)
def test_every_broker_says_who_compacts_as_soon_as_it_is_full(settings, others, says, controls):
    keeping = Keeping(store := Store(), controls=controls, **settings)
    store.in_use, store.others = QUOTA // 2, others
    keeping.look()
    (problem,) = keeping.keeper.problems()
    assert problem.hint.startswith(says)


def test_a_controller_whose_compaction_is_refused_says_so_until_it_is_not():
    keeping = Keeping(store := Store())
    store.in_use = QUOTA // 2
    compact = store.compact

    async def refuse(_):
        raise CoordinationRefused("not for this user")

    store.compact = refuse
    for _ in range(5):
        keeping.look()
    (problem,) = keeping.keeper.problems()
    assert "not for this user" in problem.hint
    store.compact = compact
    keeping.look()
    (problem,) = keeping.keeper.problems()
    assert problem.hint.startswith("The controller compacts its history")


def test_a_compaction_that_is_refused_is_said_once(caplog):
    keeping = Keeping(store := Store())
    for _ in range(25):
        keeping.look()

    async def refuse(_):
        raise CoordinationRefused("not for this user")

    store.compact = refuse
    for _ in range(5):
        keeping.look()
    assert sum("cannot be compacted" in record.message for record in caplog.records) == 1


def test_doctor_says_when_to_defragment_and_how_to_clear_the_alarm():
    keeping = Keeping(store := Store())
    store.bytes = 3 * QUOTA // 4
    keeping.look()
    (problem,) = keeping.keeper.problems()
    assert (problem.severity, "defrag" in problem.hint) == ("warning", True)
    keeping.check()
    store.bytes = 9 * QUOTA // 10 + 1
    keeping.look()
    (problem,) = keeping.keeper.problems()
    assert (problem.severity, "defrag" in problem.hint) == ("error", True)
    with pytest.raises(StoreFull):
        keeping.check()
    store.alarm = True
    keeping.look()
    (problem,) = keeping.keeper.problems()
    assert "etcdctl alarm disarm" in problem.hint
    with pytest.raises(StoreFull):
        keeping.check()
