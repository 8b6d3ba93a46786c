"""What every coordination store does, whichever it is."""

import asyncio
import time

import pytest

from stentor import limits
from stentor.errors import Closed, InvalidArgument, LeaseExpired, LimitExceeded
from stentor.ports import Changed, Entry, Resync


def pairs(found):
    return {entry.key: entry.value for entry in found}


# --- reading and swapping -----------------------------------------------------------------------


def test_a_range_is_sorted_and_says_at_which_revision_it_was_read(stores, tell):
    async def story():
        store = stores.open()
        empty = await store.range("")
        assert list(empty) == []
        first = await store.swap(expect={}, put={"b/2": b"2", "a": b"1", "b/1": b"\x00\xff"})
        second = await store.swap(expect={}, put={"c": b""})
        found = await store.range("b/")
        assert list(found) == [Entry("b/1", b"\x00\xff", first.revision), Entry("b/2", b"2", first.revision)]
        assert len(found) == 2
        assert empty.revision < first.revision < second.revision == found.revision
        assert await store.get("c") == Entry("c", b"", second.revision)
        assert await store.get("b/") is None

    tell(stores, story())


def test_a_swap_changes_all_keys_or_none(stores, tell):
    async def story():
        store = stores.open()
        first = await store.swap(expect={"a": 0}, put={"a": b"1", "b": b"2"})
        assert first.succeeded
        refused = await store.swap(expect={"a": 0}, put={"a": b"3", "c": b"4"})
        assert (refused.succeeded, refused.revision) == (False, first.revision)
        assert pairs(await store.range("")) == {"a": b"1", "b": b"2"}
        second = await store.swap(expect={"a": first.revision, "c": 0}, put={"a": b"5"}, delete=("b",))
        assert second.succeeded
        assert second.revision > first.revision
        assert list(await store.range("")) == [Entry("a", b"5", second.revision)]
        assert not (await store.swap(expect={"a": first.revision}, put={"a": b"6"})).succeeded

    tell(stores, story())


def test_of_many_concurrent_swaps_exactly_one_wins(stores, tell):
    async def story():
        store = stores.open()
        base = await store.swap(expect={}, put={"controller": b""})
        swaps = await asyncio.gather(
            *(
                store.swap(expect={"controller": base.revision}, put={"controller": b"%d" % index})
                for index in range(20)
            )
        )
        winners = [index for index, swap in enumerate(swaps) if swap.succeeded]
        assert len(winners) == 1
        held = await store.get("controller")
        assert (held.value, held.revision) == (b"%d" % winners[0], swaps[winners[0]].revision)

    tell(stores, story())


def test_a_swap_that_changes_nothing_compares_and_makes_no_revision(stores, tell):
    async def story():
        store = stores.open()
        base = await store.swap(expect={}, put={"a": b"1"})
        for expect, holds in (({"a": base.revision, "b": 0}, True), ({"a": 0}, False), ({}, True)):
            swap = await store.swap(expect=expect, put={})
            assert (swap.succeeded, swap.revision) == (holds, base.revision)
        assert (await store.swap(expect={}, put={}, delete=("never", "there"))).revision == base.revision

    tell(stores, story())


def test_what_no_store_could_do_at_once_is_refused_by_every_store(stores, tell):
    async def story():
        store = stores.open()
        most = limits.COORDINATION_SWAP_OPERATIONS_MAX
        assert (await store.swap(expect={}, put={f"k{index}": b"" for index in range(most)})).succeeded
        assert (await store.swap(expect={f"x{index}": 0 for index in range(most)}, put={"k0": b"1"})).succeeded
        before = await store.range("")
        for expect, put, delete in (
            ({}, {f"k{index}": b"2" for index in range(most)}, ("k",)),
            ({f"x{index}": 0 for index in range(most + 1)}, {}, ()),
            ({}, {"k": b"2" * (limits.COORDINATION_SWAP_BYTES_MAX + 1)}, ()),
        ):
            with pytest.raises(LimitExceeded):
                await store.swap(expect=expect, put=put, delete=delete)
        for put, delete in (({"a": b""}, ("a",)), ({"": b""}, ()), ({"k" * 2000: b""}, ())):
            with pytest.raises(InvalidArgument):
                await store.swap(expect={}, put=put, delete=delete)
        for ttl_s in (0, -1, 1.5, limits.COORDINATION_LEASE_S_MAX + 1):
            with pytest.raises(InvalidArgument):
                await store.lease(ttl_s)
        assert await store.range("") == before

    tell(stores, story())


def test_the_largest_swap_that_is_allowed_is_taken(stores, tell):
    async def story():
        store = stores.open()
        most = limits.COORDINATION_SWAP_OPERATIONS_MAX
        value = b"\xff" * (limits.COORDINATION_SWAP_BYTES_MAX // most - 10)
        put = {f"k{index}": value for index in range(most)}
        assert (await store.swap(expect=dict.fromkeys(put, 0), put=put)).succeeded
        assert pairs(await store.range("")) == put

    tell(stores, story())


# --- watching -----------------------------------------------------------------------------------


def test_a_watch_gives_each_change_below_its_prefix_once_and_in_order(stores, tell, follow):
    async def story():
        store = stores.open()
        await store.swap(expect={}, put={"x/old": b"", "x/gone": b""})
        base = await store.range("x/")
        follower = follow(store.watch("x/", base.revision))
        one = await store.swap(expect={}, put={"x/1": b"1", "x/2": b"2", "y": b""})
        await store.swap(expect={}, put={"y": b"not below it"})
        two = await store.swap(expect={}, put={"x/1": b"3"}, delete=("x/gone", "y"))
        await follower.knows({"x/1": b"3", "x/2": b"2"})
        first, second = follower.events
        assert isinstance(first, Changed)
        assert first.revision == one.revision
        assert first.deleted == []
        assert sorted(first.put, key=lambda entry: entry.key) == [
            Entry("x/1", b"1", one.revision),
            Entry("x/2", b"2", one.revision),
        ]
        assert second == Changed(two.revision, [Entry("x/1", b"3", two.revision)], ["x/gone"])
        await follower.stop()

    tell(stores, story())


def test_a_watch_that_starts_in_the_past_is_told_what_happened_since(stores, tell, follow):
    async def story():
        store = stores.open()
        revisions = [(await store.swap(expect={}, put={"k": b"%d" % index})).revision for index in range(5)]
        follower = follow(store.watch("", revisions[1]))
        await follower.knows({"k": b"4"})
        assert follower.revisions == revisions[2:]
        await follower.stop()

    tell(stores, story())


def test_range_and_watch_together_miss_nothing_while_others_write(stores, tell, follow):
    async def story():
        store = stores.open()
        final = {}

        async def write(writer):
            for index in range(40):
                key, value = f"{writer}/{index % 7}", b"%d" % index
                if index % 5 == 4:
                    await store.swap(expect={}, put={}, delete=(key,))
                    final.pop(key, None)
                else:
                    await store.swap(expect={}, put={key: value})
                    final[key] = value

        writers = [asyncio.ensure_future(write(writer)) for writer in "abc"]
        followers = []
        for _ in range(5):
            found = await store.range("")
            follower = follow(store.watch("", found.revision))
            follower.known.update(pairs(found))
            followers.append(follower)
        await asyncio.gather(*writers)
        assert pairs(await store.range("")) == final
        for follower in followers:
            await follower.knows(final)
            assert follower.revisions == sorted(set(follower.revisions))
            assert not follower.resyncs
            await follower.stop()

    tell(stores, story())


def test_a_watch_whose_history_is_forgotten_is_given_everything_and_goes_on(stores, tell, follow):
    async def story():
        store = stores.open()
        old = await store.swap(expect={}, put={"gone": b""})
        await store.swap(expect={}, put={"a": b"1"}, delete=("gone",))
        now = await store.swap(expect={}, put={"b": b"2"})
        stores.forget_history(now.revision)
        follower = follow(store.watch("", old.revision))
        await follower.knows({"a": b"1", "b": b"2"})
        (resync,) = follower.events
        assert isinstance(resync, Resync)
        assert resync.revision >= now.revision
        await store.swap(expect={}, put={"a": b"3"})
        await follower.knows({"a": b"3", "b": b"2"})
        assert isinstance(follower.events[-1], Changed)
        assert store.statistics().resyncs == 1
        await follower.stop()

    tell(stores, story())


def test_a_store_that_is_behind_what_was_seen_of_it_says_so_with_a_resync(stores, tell, follow, monkeypatch):
    monkeypatch.setattr(limits, "COORDINATION_POLL_S", 0.1)

    async def story():
        store = stores.open()
        now = await store.swap(expect={}, put={"a": b"1"})
        follower = follow(store.watch("", now.revision + 1000))
        await follower.knows({"a": b"1"})
        assert follower.resyncs[0].revision < now.revision + 1000
        await follower.stop()

    tell(stores, story())


def test_a_watch_that_is_closed_leaves_nothing_behind(stores, tell, eventually):
    async def story():
        store = stores.open()
        base = await store.swap(expect={}, put={"a": b"1"})
        watch = store.watch("", base.revision - 1)
        assert (await anext(watch)).revision == base.revision
        assert store.statistics().watches == 1
        await watch.aclose()
        assert store.statistics().watches == 0

    tell(stores, story())


# --- leases -------------------------------------------------------------------------------------


def test_keys_live_as_long_as_their_lease_is_kept_alive(stores, tell, follow, eventually):
    async def story():
        store = stores.open()
        dying, kept = await store.lease(1), await store.lease(2)
        await store.swap(expect={}, put={"dying/1": b"", "dying/2": b""}, lease=dying)
        await store.swap(expect={}, put={"kept": b""}, lease=kept)
        put = await store.swap(expect={}, put={"hard": b""})
        follower = follow(store.watch("", put.revision))
        follower.known = pairs(await store.range(""))

        async def keep():
            while True:
                assert 0 < await store.keep_alive(kept) <= 3
                await asyncio.sleep(0.2)

        keeping, longer_than_both = asyncio.ensure_future(keep()), time.monotonic() + 2.5
        await eventually(
            lambda: keeping.done() or ("dying/1" not in follower.known and time.monotonic() > longer_than_both)
        )
        assert keeping.cancel(), "keeping alive failed"
        await follower.knows({"kept": b"", "hard": b""})
        assert [sorted(event.deleted) for event in follower.events] == [["dying/1", "dying/2"]], "in one change"
        with pytest.raises(LeaseExpired):
            await store.keep_alive(dying)
        with pytest.raises(LeaseExpired):
            await store.swap(expect={}, put={"late": b""}, lease=dying)
        assert await store.get("late") is None
        await follower.stop()

    tell(stores, story())


def test_a_revoked_lease_takes_its_keys_with_it(stores, tell):
    async def story():
        store = stores.open()
        lease, other = await store.lease(60), await store.lease(60)
        assert lease != other
        await store.swap(expect={}, put={"a": b"", "b": b"", "c": b""}, lease=lease)
        await store.swap(expect={}, put={"b": b"put again without a lease"})
        await store.swap(expect={}, put={"c": b"put again with another"}, lease=other)
        await store.revoke(lease)
        assert sorted(pairs(await store.range(""))) == ["b", "c"]
        await store.revoke(lease)
        with pytest.raises(LeaseExpired):
            await store.keep_alive(lease)
        await store.revoke(other)
        assert sorted(pairs(await store.range(""))) == ["b"]

    tell(stores, story())


def test_a_swap_that_does_not_hold_says_so_even_if_its_lease_is_gone(stores, tell):
    async def story():
        store = stores.open()
        lease = await store.lease(60)
        await store.revoke(lease)
        assert not (await store.swap(expect={"a": 99}, put={"a": b""}, lease=lease)).succeeded

    tell(stores, story())


# --- the end ------------------------------------------------------------------------------------


def test_closing_ends_watches_and_refuses_calls(stores, tell, follow, eventually):
    async def story():
        store = stores.open()
        base = await store.range("")
        follower = follow(store.watch("", base.revision))
        await eventually(lambda: store.statistics().watches == 1)
        await store.swap(expect={}, put={"a": b""})
        await follower.knows({"a": b""})
        await store.close()
        await eventually(lambda: follower.ended, "the end of the watch")
        for call in (store.get("a"), store.range(""), store.swap(expect={}, put={"a": b""}), store.lease(5)):
            with pytest.raises(Closed):
                await call
        async for _ in store.watch("", 0):
            pytest.fail("a closed store is watched")
        await store.close()

    tell(stores, story())


def test_its_statistics_say_what_it_is_and_how_it_is(stores, tell):
    async def story():
        store = stores.open()
        await store.range("")
        statistics = store.statistics()
        assert statistics.kind == stores.kind
        assert statistics.available
        assert statistics.requests == 1
        assert statistics.failures == statistics.reconnects == statistics.resyncs == 0

    tell(stores, story())
