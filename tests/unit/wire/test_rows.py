import struct

import pytest

from stentor import limits
from stentor.errors import CorruptData
from stentor.wire import rows

ROW = struct.Struct("<qiii")
PAIR = struct.Struct("<Ii")


def decode(body: bytes, count: int = 1):
    return rows.decode(memoryview(body), count)


def with_headers(packed: bytes) -> bytes:
    return ROW.pack(0, -1, -1, len(packed)) + packed


def test_rows_are_laid_out_as_drawn():
    packed = rows.encode([7], [b"k"], [b"vv"], [[("n", b"x")]])
    headers = struct.pack("<I", 1) + PAIR.pack(1, 1) + b"nx"
    assert packed == ROW.pack(7, 1, 2, len(headers)) + b"k" + b"vv" + headers


def test_headers_are_none_when_no_message_has_any():
    assert decode(rows.encode([1, 2], [None, None], [b"", None], [None, None]), 2)[3] is None
    assert decode(rows.encode([1, 2], [None, None], [b"", None], [None, []]), 2)[3] == [None, []]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("length", [-2, -(2**31), 2**31 - 1, 9])
def test_a_length_beyond_the_body_is_refused(which, length):
    lengths = [-1, -1, -1]
    lengths[which] = length
    with pytest.raises(CorruptData, match="bytes"):
        decode(ROW.pack(0, *lengths) + b"12345678")


def test_bytes_that_no_row_claims_are_refused():
    with pytest.raises(CorruptData, match="too many"):
        decode(ROW.pack(0, -1, -1, -1) + b"x")


def test_fewer_rows_than_claimed_are_refused():
    with pytest.raises(CorruptData, match="cut off"):
        decode(ROW.pack(0, -1, -1, -1), 2)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\1\0\0",
        struct.pack("<I", 1),
        struct.pack("<I", 1) + PAIR.pack(5, -1),
        struct.pack("<I", 1) + PAIR.pack(0, 5),
        struct.pack("<I", 1) + PAIR.pack(0, -2),
        struct.pack("<I", 1) + PAIR.pack(2**32 - 1, -1),
        struct.pack("<I", 0) + b"x",
        struct.pack("<I", limits.MESSAGE_HEADERS_MAX + 1),
        struct.pack("<I", 2**32 - 1),
    ],
)
def test_headers_that_do_not_add_up_are_refused(packed):
    with pytest.raises(CorruptData):
        decode(with_headers(packed))


def test_a_header_key_that_is_not_text_is_refused():
    with pytest.raises(CorruptData, match="UTF-8"):
        decode(with_headers(struct.pack("<I", 1) + PAIR.pack(1, -1) + b"\xff"))


def test_as_many_headers_as_allowed_are_taken():
    pairs = [("n", None)] * limits.MESSAGE_HEADERS_MAX
    assert decode(rows.encode([0], [None], [None], [pairs]))[3] == [pairs]
