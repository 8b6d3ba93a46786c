import random

from stentor.broker.partitions.tail_cache import TailCache


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
