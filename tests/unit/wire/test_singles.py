"""Many one-message batches are checked at once, and no damage gets through that a check one by one would find."""

import random
import struct
from array import array

import pytest
from crc32c import crc32c

from stentor import limits
from stentor.client.decode import offset_batches
from stentor.errors import CorruptData
from stentor.wire import batch, header, runs, singles

MANY = singles.SINGLES_MIN + 50
COUNT_AT, ATTRIBUTES_AT = 28, 44


def sealed(body, offset, *, count=1, attributes=0):
    """A stored batch with right checksums around any body."""
    encoded = batch.Encoded(body, crc32c(body), count, attributes, 0, 0)
    packed = batch.address(encoded, topic_id=1, partition=0, producer_id=3, generation=0, sequence=offset)
    header.stamp(memoryview(packed), 0, base_offset=offset, epoch=1, appended_at_us=5)
    return bytes(packed) + bytes(body)


def row(value, offset=0, headers=None):
    packed = None if headers is None else [headers]
    return batch.encode([1000 + offset], [b"key"], [value], packed)


def ones(many=MANY, first=40, seed=1):
    """One-message batches whose lengths differ."""
    chance = random.Random(seed)
    return [sealed(row(chance.randbytes(chance.randint(0, 60)), index).body, first + index) for index in range(many)]


def found(chunk, position=0, base=40):
    return singles.find(chunk, position, len(chunk), base)


def resealed(piece):
    """The same header, changed, with a right checksum."""
    changed = bytearray(piece)
    header.seal(memoryview(changed), 0)
    return bytes(changed)


def test_the_sum_of_a_body_and_the_next_header_follows_from_the_two_that_are_stored():
    chance = random.Random(2)
    for _ in range(50):
        body = chance.randbytes(chance.randint(0, 300))
        following = sealed(b"", chance.randrange(1 << 40))[: header.HEADER_BYTES]
        body_sum, header_sum = crc32c(body), struct.unpack_from("<I", following, 4)[0]
        assert singles.follows(body_sum, header_sum) == crc32c(body + following)


def test_the_tables_give_the_same_as_one_by_one():
    chance = random.Random(3)
    bodies = array("I", [0, 1, 0xFFFFFFFF, *(chance.getrandbits(32) for _ in range(300))])
    headers = array("I", [0, 0xFFFFFFFF, 7, *(chance.getrandbits(32) for _ in range(300))])
    expected = array("I", map(singles.follows, bodies, headers))
    assert singles._followed(bodies, headers) == expected.tobytes()


def test_singles_are_found_with_their_rows_and_fields():
    batches = ones()
    chunk = b"before" + b"".join(batches)
    begins = [len(b"before") + sum(map(len, batches[:index])) for index in range(len(batches))]
    result = found(chunk, len(b"before"))
    assert list(result.starts) == [begin + header.HEADER_BYTES for begin in begins]
    assert list(result.ends) == [*begins[1:], len(chunk)]
    rows = [struct.unpack_from("<qiii", chunk, start) for start in result.starts]
    times, keys, values, headers = zip(*rows, strict=True)
    assert array("q", result.fields.times.tobytes()).tolist() == list(times)
    assert array("i", result.fields.keys.tobytes()).tolist() == list(keys)
    assert array("i", result.fields.values.tobytes()).tolist() == list(values)
    assert array("i", result.fields.headers.tobytes()).tolist() == list(headers)


@pytest.mark.parametrize("place", ["first", "inner", "last"])
def test_every_flipped_bit_of_a_batch_is_noticed(place):
    batches = ones()
    index = {"first": 0, "inner": 130, "last": MANY - 1}[place]
    before, after = b"".join(batches[:index]), b"".join(batches[index + 1 :])
    assert found(before + batches[index] + after) is not None
    for bit in range(8 * len(batches[index])):
        damaged = bytearray(batches[index])
        damaged[bit // 8] ^= 1 << bit % 8
        result = found(before + damaged + after)
        assert result is None or result.ends[-1] <= len(before)


def test_a_body_and_the_next_header_that_are_both_damaged_are_noticed():
    batches = ones()
    chunk = b"".join(batches)
    chance = random.Random(4)
    body_at, next_at = len(b"".join(batches[:100])) + header.HEADER_BYTES, len(b"".join(batches[:101]))
    for _ in range(300):
        damaged = bytearray(chunk)
        damaged[chance.randrange(body_at, next_at)] ^= chance.randint(1, 255)
        damaged[next_at + chance.randrange(header.HEADER_BYTES)] ^= chance.randint(1, 255)
        result = found(bytes(damaged))
        assert result is None or result.ends[-1] <= next_at


def test_two_batches_with_the_same_damage_are_noticed():
    batches = [sealed(row(b"v" * 20, 0).body, 40 + index) for index in range(MANY)]
    for at in (3, 50, 100, 125):
        damaged = [bytearray(each) for each in batches]
        damaged[70][at] ^= 4
        damaged[90][at] ^= 4
        assert found(b"".join(damaged)) is None


@pytest.mark.parametrize("length", [0, 50, 95, 96, 115])
def test_a_batch_too_short_for_a_row_is_none_of_them(length):
    batches = ones()
    short = bytearray(batches[200])
    struct.pack_into("<I", short, 8, length)
    batches[200] = resealed(short)
    assert found(b"".join(batches)) is None


def test_a_batch_of_several_messages_ends_them():
    batches = ones()
    several = row(b"x").body * 3
    chunk = b"".join([*batches, sealed(several, 40 + MANY, count=3), *ones(first=43 + MANY)])
    result = found(chunk)
    assert len(result.starts) == MANY
    assert result.ends[-1] == len(b"".join(batches))
    assert len(list(offset_batches(chunk, "t", 0, 0, None))) == 2


@pytest.mark.parametrize("count", [0, 2, 2**32 - 1])
def test_a_batch_that_claims_another_number_of_messages_is_none_of_them(count):
    batches = ones()
    lying = bytearray(batches[200])
    struct.pack_into("<I", lying, COUNT_AT, count)
    batches[200] = resealed(lying)
    assert found(b"".join(batches)) is None


@pytest.mark.parametrize("attributes", [1, 2, 0x10, 0x200, 0x10000])
def test_another_encoding_or_a_schema_ends_them(attributes):
    batches = ones(2 * MANY)
    other = bytearray(batches[MANY])
    struct.pack_into("<I", other, ATTRIBUTES_AT, attributes)
    batches[MANY] = resealed(other)
    assert len(found(b"".join(batches)).starts) == MANY


def test_batches_with_and_without_headers_are_found_together():
    bodies = [row(b"value", 0, [("a", b"b")] if index % 3 else None) for index in range(MANY)]
    chunk = b"".join(sealed(each.body, 40 + index, attributes=each.attributes) for index, each in enumerate(bodies))
    assert len(found(chunk).starts) == MANY


@pytest.mark.parametrize("before", [100, 300])
def test_offsets_may_grow_beyond_32_bits(before):
    first = (1 << 32) - before
    chunk = b"".join(ones(700, first))
    offsets = []
    for base, rows in offset_batches(chunk, "t", 0, 0, None):
        offsets += range(base, base + rows.num_rows)
    assert offsets == list(range(first, first + 700))


def test_offsets_that_agree_in_their_lower_halves_alone_are_none_of_them():
    batches = ones()
    moved = bytearray(batches[200])
    struct.pack_into("<Q", moved, 32, (1 << 32) + 240)
    batches[200] = resealed(moved)
    assert found(b"".join(batches)) is None


def test_they_end_before_the_stop():
    batches = ones()
    chunk = b"".join(batches)
    stop = len(chunk) - len(batches[-1]) - 1
    result = singles.find(chunk, 0, stop, 40)
    assert len(result.starts) == MANY - 2
    assert result.ends[-1] <= stop


@pytest.mark.parametrize("left", [1, 20, 95, 96, 110])
def test_a_chunk_may_be_cut_off_behind_them(left):
    batches = ones()
    chunk = b"".join(batches) + sealed(row(b"next").body, 40 + MANY)[:left]
    assert len(found(chunk).starts) == MANY


def test_few_are_left_to_others():
    assert found(b"".join(ones(singles.SINGLES_MIN - 1))) is None


def test_a_run_has_no_more_messages_than_it_may():
    tiny = b"".join(sealed(struct.pack("<qiii", 0, -1, -1, -1), index) for index in range(limits.RUN_MESSAGES_MAX + 9))
    result = singles.find(tiny, 0, len(tiny), 0)
    assert len(result.starts) == limits.RUN_MESSAGES_MAX


def test_singles_behind_a_few_larger_batches_are_found_in_bulk_again():
    several = [sealed(row(b"x").body * 2, 2 * index, count=2) for index in range(300)]
    chunk = b"".join([*several, *ones(2000, 600)])
    parts, position = [], 0
    while position < len(chunk):
        run = runs.find(chunk, position)
        parts.append((len(run.starts), run.fields is not None))
        position = run.position
    assert sum(rows for rows, _ in parts) == 2600
    assert parts[-1][1]


def test_damage_among_singles_is_told_with_what_comes_before_it():
    batches = ones()
    damaged = bytearray(batches[270])
    damaged[-1] ^= 1
    batches[270] = bytes(damaged)
    parts = offset_batches(b"".join(batches), "t", 0, 0, None)
    assert sum(next(parts)[1].num_rows for _ in range(2)) == 270
    with pytest.raises(CorruptData, match="offset 310"):
        next(parts)
