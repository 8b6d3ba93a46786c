"""Rows of tables: what a head takes as a change, and what it refuses before that gets an offset."""

import struct

import msgspec
import pytest

from stentor.core.table import ABSENT, KeyChange
from stentor.errors import InvalidArgument
from stentor.wire import batch, table_rows
from stentor.wire.header import CONDITIONAL, HEADER_BYTES, check_header

NOW = 1_700_000_000_000_000
SETS, DELETES = False, True


def rows(keys, values, headers=None, *, conditional=None, compression=""):
    """A header and a body, as a producer sends them."""
    encoded = batch.encode([NOW] * len(keys), keys, values, headers, compression=compression)
    says = headers is not None if conditional is None else conditional
    if says:
        encoded = msgspec.structs.replace(encoded, attributes=encoded.attributes | CONDITIONAL)
    packed = batch.address(encoded, topic_id=1, partition=0, producer_id=7, generation=0, sequence=0)
    whole = bytes(packed) + bytes(encoded.body)
    header = check_header(whole)
    batch.validate(whole, header)
    return header, memoryview(whole)[HEADER_BYTES:]


def changes(*given, **more):
    header, body = rows(*given, **more)
    table_rows.check(header, body, "t")
    return list(table_rows.changes(header, body))


def refusal(*given, **more):
    header, body = rows(*given, **more)
    with pytest.raises(InvalidArgument) as caught:
        table_rows.check(header, body, "t")
    return str(caught.value)


@pytest.mark.parametrize("compression", ["", "lz4"])
def test_rows_set_and_delete(compression):
    assert changes([b"a", b"b/c"], [b"1", None], compression=compression) == [
        KeyChange(b"a", SETS),
        KeyChange(b"b/c", DELETES),
    ]


def test_an_empty_value_is_a_value():
    assert changes([b"a"], [b""]) == [KeyChange(b"a", SETS)]


@pytest.mark.parametrize("compression", ["", "lz4"])
def test_some_rows_come_with_conditions(compression):
    headers = [[table_rows.condition(7)], None, [("other", b"x"), table_rows.condition(ABSENT)]]
    found = changes([b"a", b"b", b"c"], [b"1", b"2", None], headers, compression=compression)
    assert found == [KeyChange(b"a", SETS, 7), KeyChange(b"b", SETS, None), KeyChange(b"c", DELETES, ABSENT)]


def test_other_headers_are_no_conditions():
    assert changes([b"a"], [b"1"], [[("trace", b"x")]], conditional=False) == [KeyChange(b"a", SETS)]


def test_the_largest_version_is_one():
    assert changes([b"a"], [b"1"], [[table_rows.condition(2**63 - 1)]]) == [KeyChange(b"a", SETS, 2**63 - 1)]


@pytest.mark.parametrize("key", [None, b""])
def test_a_row_without_a_key_is_refused(key):
    assert "without a key" in refusal([b"a", key], [b"1", b"2"])


def test_a_key_that_is_no_text_is_refused():
    assert "not UTF-8" in refusal([b"a", b"\xff\xfe"], [b"1", b"2"])
    assert changes(["ä".encode()], [b"1"]) == [KeyChange("ä".encode(), SETS)]


MALFORMED = {
    "none": None,
    "empty": b"",
    "short": b"\0" * 7,
    "long": b"\0" * 9,
}


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_malformed_condition_is_refused_wherever_it_is(value, before):
    """Also behind sound ones: what is not refused here would break the head."""
    headers = [[table_rows.condition(1)]] * before + [[(table_rows.CONDITION, value)]]
    assert "malformed" in refusal([b"a"] * len(headers), [b"1"] * len(headers), headers)


@pytest.mark.parametrize("version", [-2, -(2**63)])
def test_an_impossible_version_is_refused(version):
    assert "impossible version" in refusal([b"a"], [b"1"], [[(table_rows.CONDITION, struct.pack("<q", version))]])


def test_a_row_has_one_condition_at_most():
    assert "two conditions" in refusal([b"a"], [b"1"], [[table_rows.condition(1), table_rows.condition(2)]])


@pytest.mark.parametrize("headers", [None, [[("other", b"x")]]])
def test_a_batch_that_claims_to_have_conditions_has_some(headers):
    assert "has no conditions, and says that it has" in refusal([b"a"], [b"1"], headers, conditional=True)


def test_a_condition_that_would_not_be_looked_at_is_refused():
    """Somebody meant it: it must not be a change that is made anyhow."""
    said = refusal([b"a"], [b"1"], [[table_rows.condition(3)]], conditional=False)
    assert "has conditions, and does not say so" in said
