import struct

import pytest

from stentor import limits
from stentor.errors import CorruptData
from stentor.wire import header as wire


def test_the_header_has_96_bytes_and_round_trips(makes):
    data = makes.plain(3)
    header = wire.check_header(data)
    assert wire.HEADER_BYTES == 96
    assert bytes(wire.pack(header)) == data[:96]
    assert header.end_offset == header.base_offset + 3


def test_the_head_stamps_in_place_and_seals(makes):
    data = bytearray(b"junk" + makes.plain(3))
    wire.stamp(memoryview(data), 4, base_offset=2**40, epoch=9, appended_at_us=77)
    header = wire.check_header(data, 4)
    assert (header.base_offset, header.epoch, header.appended_at_us) == (2**40, 9, 77)
    wire.check_body(data, 4, header)


@pytest.mark.parametrize("name", wire.BatchHeader.__struct_fields__)
def test_a_field_can_be_read_without_the_others(makes, name):
    data = bytearray(makes.plain(3))
    wire.stamp(memoryview(data), 0, base_offset=2**40, epoch=9, appended_at_us=77)
    layout = struct.Struct(wire.excerpt(name))
    assert layout.size == wire.HEADER_BYTES
    assert layout.unpack_from(data) == (getattr(wire.check_header(data), name),)


def test_several_fields_come_in_the_order_of_the_header(makes):
    data = makes.plain(3)
    header = wire.check_header(data)
    found = struct.unpack_from(wire.excerpt("count", "magic", "length"), data)
    assert found == (wire.MAGIC, header.length, header.count)
    assert wire.topic_id_of(data) == header.topic_id
    assert wire.appended_at_us(data) == header.appended_at_us


def test_the_bodys_checksum_does_not_change_on_the_way(makes):
    data = bytearray(makes.plain(3))
    before = wire.check_header(data).body_checksum
    wire.stamp(memoryview(data), 0, base_offset=5, epoch=1, appended_at_us=1)
    assert wire.check_header(data).body_checksum == before


@pytest.mark.parametrize("size", [0, 1, 95])
def test_less_than_a_header_is_not_a_header(size):
    with pytest.raises(CorruptData, match="needs 96 bytes"):
        wire.check_header(bytes(size))


def test_other_bytes_are_not_a_header():
    with pytest.raises(CorruptData, match="magic"):
        wire.check_header(bytes(96))


@pytest.mark.parametrize("length", [0, 95, limits.BATCH_BYTES_MAX + 1, 2**32 - 1])
def test_an_impossible_length_is_refused_before_it_is_used(makes, length):
    data = bytearray(makes.plain(1))
    struct.pack_into("<I", data, 8, length)
    with pytest.raises(CorruptData, match="claims"):
        wire.check_header(data)


@pytest.mark.parametrize("offset", [wire.OFFSET_MAX + 1, 2**63, 2**64 - 1])
def test_an_impossible_offset_is_refused(makes, offset):
    data = bytearray(makes.plain(1))
    wire.stamp(memoryview(data), 0, base_offset=offset, epoch=1, appended_at_us=0)
    with pytest.raises(CorruptData, match="offset"):
        wire.check_header(data)


def stamped_run(makes, counts):
    """Batches one after the other, as they lie in a log."""
    run, offset = b"", 0
    for count in counts:
        data = bytearray(makes.plain(count))
        wire.stamp(memoryview(data), 0, base_offset=offset, epoch=1, appended_at_us=0)
        offset += count
        run += data
    return run


def test_extents_walk_whole_batches_and_stop_at_a_part_of_one(makes):
    run = stamped_run(makes, [1, 20, 3])
    walked = list(wire.extents(run))
    assert [(base, end) for _, _, base, end in walked] == [(0, 1), (1, 21), (21, 24)]
    assert sum(length for _, length, _, _ in walked) == len(run)
    assert len(list(wire.extents(run[:-1]))) == 2


def test_a_run_is_verified_up_to_its_last_whole_batch(makes):
    run = stamped_run(makes, [1, 20, 3])
    whole = len(run)
    assert wire.verify_run(run, 0, whole) == whole
    last = list(wire.extents(run))[-1][0]
    assert wire.verify_run(run, 0, whole - 1) == last


def test_a_flipped_bit_anywhere_in_a_run_is_found(makes):
    run = stamped_run(makes, [2, 17])
    for at in range(0, len(run), 3):
        damaged = bytearray(run)
        damaged[at] ^= 0x10
        try:
            stopped = wire.verify_run(damaged, 0, len(run))
        except CorruptData:
            continue
        # A length that grew makes the batch look cut off: it is not verified either.
        assert stopped < len(run)
