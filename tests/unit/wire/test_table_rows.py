"""Rows of tables: what a head takes as a change, and what it refuses before that gets an offset."""

import struct

import msgspec
import pytest

from stentor import limits
from stentor.core.table import ABSENT, TTL_S_MAX, KeyChange
from stentor.errors import InvalidArgument, LimitExceeded
from stentor.wire import batch, bodies, table_rows
from stentor.wire.header import CONDITIONAL, HEADER_BYTES, TIMED, check_header

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
    assert "twice" in refusal([b"a"], [b"1"], [[table_rows.condition(1), table_rows.condition(2)]])


@pytest.mark.parametrize("headers", [None, [[("other", b"x")]]])
def test_a_batch_that_claims_to_have_conditions_has_some(headers):
    assert "has no conditions, and says that it has" in refusal([b"a"], [b"1"], headers, conditional=True)


def test_a_condition_that_would_not_be_looked_at_is_refused():
    """Somebody meant it: it must not be a change that is made anyhow."""
    said = refusal([b"a"], [b"1"], [[table_rows.condition(3)]], conditional=False)
    assert "has conditions, and does not say so" in said


# --- keys that expire -----------------------------------------------------------------------------

SESSION = bytes(range(16))


def timed(keys, values, headers, *, says=True):
    header, body = rows(keys, values, headers, conditional=False)
    attributes = header.attributes | (TIMED if says else 0)
    return msgspec.structs.replace(header, attributes=attributes), body


def timed_refusal(*given, **more):
    header, body = timed(*given, **more)
    with pytest.raises(InvalidArgument) as caught:
        table_rows.check(header, body, "t")
    return str(caught.value)


def test_some_keys_expire_and_some_belong_to_a_session():
    headers = [table_rows.lease(5), None, table_rows.lease(7, SESSION)]
    header, body = timed([b"a", b"b", b"c"], [b"1", b"2", b"3"], headers)
    table_rows.check(header, body, "t")
    assert list(table_rows.changes(header, body)) == [
        KeyChange(b"a", SETS, None, 5),
        KeyChange(b"b", SETS),
        KeyChange(b"c", SETS, None, 7, SESSION),
    ]


@pytest.mark.parametrize("ttl_us", [0, TTL_S_MAX * 1_000_000 + 1, 2**64 - 1])
def test_an_impossible_ttl_is_refused(ttl_us):
    assert "impossible ttl" in timed_refusal([b"a"], [b"1"], [[(table_rows.TTL, struct.pack("<Q", ttl_us))]])


@pytest.mark.parametrize("value", [None, b"", b"\0" * 7], ids=["none", "empty", "short"])
@pytest.mark.parametrize("name", [table_rows.TTL, table_rows.SESSION])
def test_malformed_terms_are_refused(name, value):
    assert "malformed" in timed_refusal([b"a"], [b"1"], [[(name, value)]])


def test_a_ttl_that_would_not_be_looked_at_is_refused():
    said = timed_refusal([b"a"], [b"1"], [table_rows.lease(5)], says=False)
    assert "has keys that expire, and does not say so" in said
    assert "says that it has" in timed_refusal([b"a"], [b"1"], None)


def test_a_deleted_key_has_no_ttl():
    assert "gives it a ttl" in timed_refusal([b"a"], [None], [table_rows.lease(5)])


def test_a_session_without_a_ttl_is_refused():
    headers = [table_rows.lease(5), [(table_rows.SESSION, SESSION)]]
    assert "has a session and no ttl" in timed_refusal([b"a", b"b"], [b"1", b"2"], headers)


def test_only_the_head_says_that_a_key_expired():
    assert "says why" in refusal([b"a"], [None], [[(table_rows.WHY, table_rows.EXPIRED)]], conditional=False)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_the_head_deletes_keys_that_are_at_their_versions(count):
    due = [(b"%d" % number, number) for number in range(count)]
    whole = bytes(table_rows.expired(due, NOW, topic_id=1, partition=0))
    header = check_header(whole)
    batch.validate(whole, header)
    body = memoryview(whole)[HEADER_BYTES:]
    assert header.conditional
    assert list(table_rows.changes(header, body)) == [KeyChange(key, DELETES, version) for key, version in due]
    told = batch.columns(whole, 0, header)[3]
    assert {table_rows.terms(named).why for named in told} == {table_rows.EXPIRED}


# --- how much one change may be -------------------------------------------------------------------


def many(count, headers=None):
    keys = [b"%d" % number for number in range(count)]
    encoded = batch.encode([1] * count, keys, [b"1"] * count, headers)
    return batch.address(encoded, topic_id=7, partition=0, producer_id=0, generation=0, sequence=0), encoded


def check_rows(count, headers=None, attributes=0):
    header, encoded = many(count, headers)
    read = check_header(bytes(header) + bytes(encoded.body))
    read = msgspec.structs.replace(read, attributes=read.attributes | attributes)
    table_rows.check(read, memoryview(encoded.body), "config")


def test_a_change_has_no_more_rows_than_a_chain_can_fold_at_once():
    check_rows(limits.TABLE_BATCH_ROWS_MAX)
    with pytest.raises(LimitExceeded, match=r"has 32769 rows; the limit is 32768\."):
        check_rows(limits.TABLE_BATCH_ROWS_MAX + 1)


@pytest.mark.parametrize(
    ("attribute", "term"), [(CONDITIONAL, table_rows.condition(ABSENT)), (TIMED, table_rows.lease(1_000)[0])]
)
def test_rows_with_terms_are_fewer(attribute, term):
    most = limits.TABLE_BATCH_TERMS_ROWS_MAX
    check_rows(most, [[term]] * most, attribute)
    with pytest.raises(LimitExceeded, match="has 4097 rows with conditions or a ttl; the limit is 4096"):
        check_rows(most + 1, [[term]] + [None] * most, attribute)


def test_the_headers_of_a_change_have_a_bound_together():
    most = limits.TABLE_BATCH_HEADERS_MAX
    check_rows(most // 8, [[("a", b"")] * 8] * (most // 8))
    with pytest.raises(LimitExceeded, match="have 16392 headers together; the limit is 16384"):
        check_rows(most // 8 + 1, [[("a", b"")] * 8] * (most // 8 + 1))


@pytest.mark.parametrize("compression", ["", "lz4"])
@pytest.mark.parametrize("keys", [[b"a"] * 20 + [None], [b"a"] * 20 + [b""], [None] * 21])
def test_a_compacted_topic_refuses_messages_without_a_key(keys, compression):
    encoded = batch.encode([1] * 21, keys, [b"1"] * 21, compression=compression)
    header = batch.address(encoded, topic_id=7, partition=0, producer_id=0, generation=0, sequence=0)
    read = check_header(bytes(header) + bytes(encoded.body))
    with pytest.raises(InvalidArgument, match="a message has no key"):
        table_rows.check_keys(read, memoryview(encoded.body), "config")


@pytest.mark.parametrize("compression", ["", "zstd"])
def test_headers_are_read_as_they_were_written_wherever_they_are(compression):
    headers = [None, [], [("a", b"1"), ("b", None)], None, [("c", b"")]] * 10
    encoded = batch.encode([1] * 50, [b"k"] * 50, [b"1"] * 50, headers, compression=compression)
    arrow = bodies.arrow()
    decoded = arrow.decode(memoryview(encoded.body), 50)
    assert arrow.header_lists(decoded.column(3)) == headers
    assert arrow.header_lists(decoded.slice(3, 20).column(3)) == headers[3:23]
    assert batch.header_count(encoded_header(encoded), memoryview(encoded.body)) == 30


def encoded_header(encoded):
    header = batch.address(encoded, topic_id=7, partition=0, producer_id=0, generation=0, sequence=0)
    return check_header(bytes(header) + bytes(encoded.body))
