import random

import pytest

from stentor import limits
from stentor.broker.partitions.tail_cache import CHUNK_BYTES, TailBudget, TailCache, budget_of
from stentor.limits import MIB
from stentor.testing import broker


def filled(count, size=10, limit=10**6):
    cache = TailCache(limit)
    for number in range(count):
        cache.add(2 * number, 2 * number + 2, b"%d" % (number % 10) * size)
    return cache


def test_an_empty_cache_knows_nothing():
    assert TailCache().take(0, 10, 100) is None


def test_it_gives_whole_chunks_from_the_one_that_holds_the_offset():
    cache = filled(5)
    assert cache.take(4, 100, 25) == ([b"2" * 10, b"3" * 10], 8, 20)
    assert cache.take(5, 100, 25) == ([b"2" * 10, b"3" * 10], 8, 20), "from inside a chunk"
    assert cache.take(8, 100, 1) == ([b"4" * 10], 10, 10), "at least one"
    assert cache.take(10, 100, 25) is None, "beyond the end"


def test_it_gives_nothing_that_is_not_committed():
    cache = filled(5)
    assert cache.take(0, 4, 1000) == ([b"0" * 10, b"1" * 10], 4, 20)
    assert cache.take(4, 5, 1000) is None, "half a chunk is committed"


def test_it_forgets_from_the_front_and_stays_within_its_limit():
    cache = TailCache(100)
    for number in range(1000):
        cache.add(number, number + 1, bytes(7))
        assert cache.bytes <= 100
    assert cache.take(0, 1000, 10) is None
    assert cache.take(999, 1000, 10) == ([bytes(7)], 1000, 7)


def test_one_chunk_beyond_the_limit_is_not_kept():
    cache = TailCache(10)
    cache.add(0, 1, bytes(50))
    assert cache.bytes <= 10
    assert cache.take(0, 1, 100) is None
    cache.add(1, 2, bytes(5))
    assert cache.take(1, 2, 100) == ([bytes(5)], 2, 5)


def test_whatever_it_gives_is_what_was_added_without_gaps():
    for seed in range(50):
        chance = random.Random(seed)
        cache, chunks, end = TailCache(500), {}, 0
        for _ in range(200):
            count = chance.randrange(1, 5)
            chunk = chance.randbytes(chance.randrange(1, 80))
            cache.add(end, end + count, chunk)
            chunks[end] = (end + count, chunk)
            end += count
            position, committed = chance.randrange(end + 1), chance.randrange(end + 1)
            found = cache.take(position, committed, chance.randrange(1, 300))
            if found is None:
                continue
            given, next_offset, size = found
            base = max(start for start in chunks if start <= position)
            for piece in given:
                assert chunks[base][1] == piece
                base = chunks[base][0]
            assert base == next_offset <= committed
            assert size == sum(map(len, given))


# --- the budget of all ------------------------------------------------------------------------------


def caches_of(budget, count, limit=1_000):
    return [TailCache(limit, budget) for _ in range(count)]


def test_the_cache_that_got_nothing_for_longest_is_emptied_when_the_budget_is_used_up():
    budget = TailBudget(3 * (100 + CHUNK_BYTES))
    one, two, three, four = caches_of(budget, 4)
    for cache in (one, two, three):
        cache.add(0, 1, bytes(100))
    one.add(1, 2, b"")
    assert (one.bytes, two.bytes, three.bytes) == (100, 0, 100)
    four.add(0, 1, bytes(90))
    assert [cache.bytes for cache in (one, two, three, four)] == [100, 0, 0, 90]
    budget.check_invariants()
    two.add(1, 2, bytes(5))
    assert two.take(0, 2, 1_000) is None, "its log has it"
    assert two.take(1, 2, 1_000) == ([bytes(5)], 2, 5)


def test_many_tiny_chunks_count_with_what_they_take_beside_their_bytes():
    budget = TailBudget(100_000)
    caches = caches_of(budget, 100, limit=100_000)
    for number in range(10_000):
        caches[number % 100].add(number, number + 1, b"x")
    assert sum(len(cache._chunks) for cache in caches) <= 100_000 / CHUNK_BYTES


def test_what_is_idle_is_emptied_at_the_second_look():
    budget = TailBudget()
    one, two = caches_of(budget, 2)

    def look():
        for empty in budget.idle():
            empty()
        return one.bytes, two.bytes

    assert look() == (0, 0)
    one.add(0, 1, b"1")
    assert look() == (1, 0)
    two.add(0, 1, b"2")
    assert look() == (0, 1)
    two.add(1, 2, b"2")
    assert look() == (0, 2)
    assert look() == (0, 0)
    assert budget.used == 0


def test_the_budget_holds_whatever_is_added_and_forgotten():
    for seed in range(30):
        chance = random.Random(seed)
        budget = TailBudget(4_000)
        caches, ends = caches_of(budget, 12), [0] * 12
        for _ in range(500):
            index = chance.randrange(12)
            cache = caches[index]
            match chance.randrange(20):
                case 0:
                    cache.clear()
                case 1:
                    cache.forget_below(chance.randrange(ends[index] + 1))
                case 2:
                    for empty in budget.idle():
                        empty()
                case _:
                    cache.add(ends[index], ends[index] + 1, bytes(chance.choice([0, 1, 50, 300, 990, 1_500, 9_000])))
                    ends[index] += 1
            budget.check_invariants()


def test_small_machines_keep_less():
    assert budget_of(64 * 1024 * MIB) == limits.TAIL_CACHES_BYTES
    assert budget_of(512 * MIB) == 32 * MIB


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A broker that keeps 1 MB of all partitions, and that for long."""
    monkeypatch.setattr(limits, "TAIL_CACHES_BYTES", MIB)
    with broker(tmp_path / "data") as local:
        yield local


def test_all_partitions_of_a_broker_keep_no_more_than_its_budget_and_readers_get_everything(small):
    with small.client() as client:
        client.create_topic("t", partitions=16)
        sent = [b"%03d" % number + bytes(50_000) for number in range(96)]
        with client.subscribe("t", start="earliest") as live, client.producer("t") as producer:
            for number, value in enumerate(sent):
                producer.send(value, partition=number % 16)
                if number % 16 == 15:
                    producer.flush()
            memory = small.inner.statistics().broker.memory
            assert 0 < memory.tail_cache_bytes <= memory.tail_cache_bytes_max == MIB
            assert sorted(live.get(timeout=10).value for _ in sent) == sent
        with client.subscribe("t", start="earliest") as late:
            assert sorted(late.get(timeout=10).value for _ in sent) == sent


def test_a_topic_that_goes_away_keeps_nothing_in_memory(small, wait_until):
    with small.client() as client:
        client.create_topic("t", partitions=4)
        for partition in range(4):
            client.publish("t", bytes(20_000), partition=partition)
        before = small.inner.statistics().broker.memory.tail_cache_bytes
        client.delete_topic("t")
        held = small.inner.statistics
        wait_until(lambda: held().broker.memory.tail_cache_bytes <= before - 80_000, "what it kept is given back")


def test_partitions_that_get_nothing_keep_nothing_in_memory(tmp_path, monkeypatch, wait_until):
    monkeypatch.setattr(limits, "TAIL_CACHE_IDLE_S", 0.05)
    with broker(tmp_path / "data") as local, local.client() as client:
        client.publish("t", bytes(20_000))
        held = local.inner.statistics
        wait_until(lambda: held().broker.memory.tail_cache_bytes == 0, "what it kept is given back")
        with client.subscribe("t", start="earliest") as subscription:
            assert subscription.get(timeout=10).value == bytes(20_000)
