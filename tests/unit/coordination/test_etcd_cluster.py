"""Three members of etcd, of which one fails."""

import asyncio

import pytest

from stentor import limits
from stentor.coordination.etcd import open_etcd
from stentor.errors import CoordinationUnavailable, InvalidArgument, UnknownSwap
from stentor.testing.etcd import LocalEtcd, find_etcd


class Cluster:
    """Opens stores on three members."""

    def __init__(self, local):
        self.local = local
        self.stores = []

    def open(self, first=0, **options):
        """A store that asks this member first."""
        endpoints = self.local.endpoints
        url = "etcd://" + ",".join(endpoints[first:] + endpoints[:first])
        self.stores.append(open_etcd(url, **options))
        return self.stores[-1]


@pytest.fixture(scope="module")
def members():
    try:
        find_etcd()
    except InvalidArgument as error:
        pytest.skip(str(error))
    with LocalEtcd(members=3) as local:
        yield local


@pytest.fixture
def cluster(members):
    return Cluster(members)


async def count(store, key, acknowledged, unknown, enough):
    """Count upwards by swaps, as a controller would: after an unknown outcome it looks before it goes on."""
    while not enough.is_set():
        try:
            held = await store.get(key)
            number = int(held.value) + 1 if held else 0
            swap = await store.swap(expect={key: held.revision if held else 0}, put={key: b"%d" % number})
            if swap.succeeded:
                acknowledged.append((number, swap.revision))
            else:
                assert unknown, "nobody else counts, but an unknown swap may be made late"
        except UnknownSwap:
            unknown.append(number)
        except CoordinationUnavailable:
            continue


def test_a_killed_leader_costs_no_acknowledged_swap_and_no_event(cluster, tell, follow, eventually):
    async def story():
        local = cluster.local
        leader = local.leader()
        # The counter and its watcher use the member that is killed; another watcher does not.
        store, other = cluster.open(first=leader), cluster.open(first=(leader + 1) % 3)
        base = await store.range("")
        followers = [follow(store.watch("count", base.revision)), follow(other.watch("count", base.revision))]
        acknowledged, unknown, enough = [], [], asyncio.Event()
        counting = asyncio.ensure_future(count(store, "count", acknowledged, unknown, enough))
        await eventually(lambda: counting.done() or len(acknowledged) > 20)
        local.kill(leader)
        before = len(acknowledged)
        await eventually(lambda: counting.done() or len(acknowledged) > before + 20, "counting on")
        enough.set()
        await counting  # to its end: a swap that is given up may still be made
        held = await other.get("count")
        last = int(held.value)
        numbers = [number for number, _ in acknowledged]
        assert set(range(last)) <= set(numbers) | set(unknown)
        assert sorted(set(numbers)) == numbers, "no number twice"
        for follower in followers:
            await follower.knows({"count": held.value})
            assert not follower.resyncs
            seen = [(int(event.put[0].value), event.revision) for event in follower.events]
            assert [number for number, _ in seen] == list(range(last + 1)), "each number once, in order"
            assert set(acknowledged) <= set(seen)
            await follower.stop()
        await asyncio.to_thread(local.start)
        assert (await cluster.open(first=leader).get("count")).value == held.value

    tell(cluster, story())


def test_a_paused_member_is_left_for_another(cluster, tell, follow, eventually, monkeypatch):
    monkeypatch.setattr(limits, "COORDINATION_POLL_S", 0.3)
    monkeypatch.setattr(limits, "COORDINATION_POLL_TIMEOUT_S", 0.7)

    async def story():
        local = cluster.local
        paused = (local.leader() + 1) % 3
        store, other = cluster.open(first=paused), cluster.open(first=local.leader())
        base = await store.range("")
        assert store.statistics().endpoint == local.endpoints[paused]
        follower = follow(store.watch("", base.revision))
        await eventually(lambda: store.statistics().requests >= 2)
        local.pause(paused)
        try:
            await other.swap(expect={}, put={"while": b"paused"})
            await follower.knows({"while": b"paused"}, 6)
            assert (await store.swap(expect={}, put={"while": b"still"})).succeeded
            await follower.knows({"while": b"still"}, 6)
        finally:
            local.resume(paused)
        assert store.statistics().endpoint != local.endpoints[paused]
        await follower.stop()

    tell(cluster, story())


def test_a_local_etcd_has_one_member_or_three():
    with pytest.raises(InvalidArgument, match="one member or three"):
        LocalEtcd(members=2)
