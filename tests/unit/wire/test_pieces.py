"""Large columns become Python objects in pieces, and between them other threads run (C35)."""

import pyarrow as pa
import pytest

from stentor.wire import arrow_body, pieces, sparse
from stentor.wire.header import HEADER_BYTES, check_header

NOW_US = 1_700_000_000_000_000
COUNT = 2 * pieces.PIECE + 5


class Watched(list):
    """A list that knows how much of it was asked for at once."""

    largest = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        if isinstance(place, slice):
            self.largest = max(self.largest, len(found))
        return found

    def __iter__(self):
        raise AssertionError("all of it at once")


@pytest.mark.parametrize("make", [pieces.listed, lambda values: pieces.chosen(values, [True] * len(values))])
def test_a_long_column_is_copied_in_pieces(make):
    values = Watched(range(COUNT))
    found = make(values)
    assert len(found) == COUNT
    assert found[-1] == COUNT - 1
    assert values.largest == pieces.PIECE


def test_those_that_are_wanted_are_chosen():
    for count in (0, 10, COUNT):
        assert pieces.chosen(range(count), [each % 3 == 0 for each in range(count)]) == list(range(0, count, 3))


@pytest.mark.parametrize("some_headers", [None, 2, 1])
def test_large_batches_are_read_and_cut_as_small_ones(makes, some_headers):
    numbers = range(COUNT)
    keys = [b"k%d" % each if each % 7 else None for each in numbers]
    values = [b"v%d" % each if each % 5 else None for each in numbers]
    headers = None
    if some_headers:
        headers = [None if each % some_headers else [("n", b"%d" % each)] * (each % 3) for each in numbers]
    times = [NOW_US + each for each in numbers]
    data = makes.batch(times, keys, values, headers)
    header = check_header(data)
    rows = sparse.rows_of(header, data[HEADER_BYTES:])
    assert rows == (list(numbers), times, keys, values, headers or [None] * COUNT)
    kept = sparse.keep(header, data[HEADER_BYTES:], range(1, COUNT, 2))
    odd = sparse.rows_of(check_header(kept), kept[HEADER_BYTES:])
    assert odd == rows.chosen([bool(each % 2) for each in numbers])
    assert odd == tuple(column[1::2] for column in rows)


def test_a_slice_of_headers_is_read_as_what_it_is():
    headers = [[("a", b"1"), ("b", None)], None, [], [("c", b"2")]] * pieces.PIECE
    column = arrow_body.headers_array(headers, len(headers))
    assert arrow_body.header_lists(column.slice(3, 2 * pieces.PIECE)) == headers[3 : 3 + 2 * pieces.PIECE]
    assert arrow_body.header_lists(pa.array([], arrow_body.HEADER_TYPE)) == []
