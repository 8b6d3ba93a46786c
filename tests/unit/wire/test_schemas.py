"""Schemas of tabular topics: what one is, and what may change between two versions."""

import msgspec
import pytest

from stentor import limits
from stentor.errors import LimitExceeded, SchemaRefused
from stentor.wire import batch, schemas
from stentor.wire.header import SCHEMA_SHIFT
from stentor.wire.schemas import SchemaColumn


def column(name, kind="int64", *columns, **more):
    return SchemaColumn(name=name, type=kind, columns=list(columns), **more)


BASE = [column("a"), column("b", "struct", column("x"), column("y", "string")), column("c", "list", column("item"))]

SAME = {
    "nothing": BASE,
    "a column at the end": [*BASE, column("d", "string")],
    "a column in front": [column("d", "date"), *BASE],
    "a column within a struct": [
        BASE[0],
        column("b", "struct", column("x"), column("z"), column("y", "string")),
        BASE[2],
    ],
}
CHANGED = {
    "a column is gone": (BASE[1:], "column a is missing"),
    "another type": ([column("a", "string"), *BASE[1:]], "column a was int64 and is string"),
    "a narrower type": ([column("a", "int32"), *BASE[1:]], "column a was int64 and is int32"),
    "not nullable any more": ([column("a", nullable=False), *BASE[1:]], "column a was nullable and is not nullable"),
    "a new one that is needed": ([*BASE, column("d", nullable=False)], "column d is new and not nullable"),
    "another order": ([BASE[1], BASE[0], BASE[2]], "column b stands before column a"),
    "a part is gone": ([BASE[0], column("b", "struct", column("x")), BASE[2]], "column b.y is missing"),
    "another element": ([*BASE[:2], column("c", "list", column("item", "string"))], "column c.item was int64"),
    "another name": ([column("A"), *BASE[1:]], "column a is missing"),
}


@pytest.mark.parametrize("new", SAME.values(), ids=SAME.keys())
def test_a_version_may_add_nullable_columns(new):
    assert schemas.difference(BASE, new) == ""


@pytest.mark.parametrize(("new", "words"), CHANGED.values(), ids=CHANGED.keys())
def test_any_other_change_is_named(new, words):
    assert words in schemas.difference(BASE, new)


def test_units_zones_and_digits_are_part_of_a_type():
    moment, amount = column("t", "timestamp", unit="us"), column("d", "decimal", precision=10, scale=2)
    later = [column("t", "timestamp", unit="us", zone="UTC"), amount]
    assert schemas.difference([moment, amount], later) == "column t was timestamp[us] and is timestamp[us, UTC]"
    wider = [moment, column("d", "decimal", precision=12, scale=2)]
    assert "decimal(10, 2) and is decimal(12, 2)" in schemas.difference([moment, amount], wider)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([column("a"), column("a")], "two columns a"),
        ([column("")], "no name"),
        ([column("a", "list")], "elements"),
        ([column("a", "struct")], "some columns of its own"),
        ([column("a", "int64", column("b"))], "no columns of its own"),
        ([column("a", "decimal")], "digits"),
        ([column("a", "struct", column("b"), column("b"))], "there are two columns a.b"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(columns, words):
    with pytest.raises(SchemaRefused, match=words):
        schemas.check("orders", columns)


def test_a_schema_is_bounded():
    with pytest.raises(LimitExceeded):
        schemas.check("orders", [column(f"c{number}") for number in range(limits.SCHEMA_COLUMNS_MAX + 1)])
    deep = column("a")
    for _ in range(limits.SCHEMA_DEPTH_MAX):
        deep = column("a", "struct", deep)
    with pytest.raises(LimitExceeded):
        schemas.check("orders", [deep])


def test_columns_travel_as_they_are():
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(BASE), type=schemas.Columns) == BASE


def test_the_id_of_a_schema_is_in_the_attributes_of_a_batch():
    from stentor.wire import arrow_body
    from stentor.wire.header import check_header

    rows = arrow_body.record_batch([1, 2], [None, None], [b"{}", b"{}"], None)
    for compression in ("", "lz4"):
        encoded = batch.encode_arrow(rows, compression=compression, schema_id=65_535)
        header = batch.address(encoded, topic_id=1, partition=0, producer_id=0, generation=0, sequence=0)
        found = check_header(header)
        assert (found.schema_id, found.encoding) == (65_535, 1)
        assert (
            found.attributes & ((1 << SCHEMA_SHIFT) - 1) == batch.encode_arrow(rows, compression=compression).attributes
        )
        batch.validate(bytes(header) + bytes(encoded.body), found)
