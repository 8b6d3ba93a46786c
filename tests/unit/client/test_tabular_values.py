"""Rows of a schema: whatever values a table holds, JSON and back leaves them as they were."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.client import tabular_values
from stentor.errors import DecodeFailed, SchemaRefused

INNER = pa.struct([pa.field("text", pa.string()), pa.field("at", pa.timestamp("us", tz="UTC"))])
SCHEMA = pa.schema(
    [
        pa.field("i64", pa.int64()),
        pa.field("u64", pa.uint64()),
        pa.field("i8", pa.int8(), nullable=False),
        pa.field("f64", pa.float64()),
        pa.field("f32", pa.float32()),
        pa.field("text", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("plain", pa.timestamp("us")),
        pa.field("zoned", pa.timestamp("us", tz="America/New_York")),
        pa.field("price", pa.decimal128(20, 3)),
        pa.field("struct", INNER),
        pa.field("list", pa.list_(pa.list_(INNER))),
    ]
)

days = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
plain_times = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001 - a time of no zone
moments = plain_times.map(lambda moment: moment.replace(tzinfo=dt.UTC))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
inner = st.fixed_dictionaries({"text": st.none() | texts, "at": st.none() | moments})
values = {
    "i64": st.integers(-(2**63), 2**63 - 1),
    "u64": st.integers(0, 2**64 - 1),
    "f64": st.floats(allow_nan=False, allow_infinity=False),
    "f32": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "text": texts,
    "flag": st.booleans(),
    "day": days,
    "plain": plain_times,
    "zoned": moments,
    "price": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3)),
    "struct": inner,
    "list": st.lists(st.none() | st.lists(st.none() | inner, max_size=3), max_size=3),
}
rows = st.lists(
    st.fixed_dictionaries(
        {"i8": st.integers(-128, 127), **{name: st.none() | value for name, value in values.items()}}
    ),
    min_size=1,
    max_size=8,
)


def there_and_back(table):
    encoded = tabular_values.encode_rows(tabular_values.conform(table, SCHEMA, "t"), "t")
    return pa.Table.from_batches([tabular_values.decode_rows(encoded, SCHEMA, "t", 0, 0)])


@settings(deadline=None, max_examples=150)
@given(rows)
def test_values_come_back_as_they_were(sent):
    table = pa.Table.from_pylist(sent, schema=SCHEMA)
    assert there_and_back(table).equals(table)


@settings(deadline=None, max_examples=50)
@given(rows, rows)
def test_chunks_and_slices_are_no_matter(first, second):
    table = pa.Table.from_pylist([*first, *second], schema=SCHEMA)
    chunked = pa.concat_tables([table.slice(0, len(first)), table.slice(len(first))])
    assert there_and_back(chunked).equals(table)
    assert there_and_back(table.slice(len(first))).equals(table.slice(len(first)))


def test_types_that_hold_the_same_values_are_one_type():
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.list_(pa.int64())), pa.field("c", pa.date32())])
    table = pa.table(
        {
            "a": pa.array(["x", "y", "x"]).dictionary_encode(),
            "b": pa.array([[1], None, []], pa.large_list(pa.int64())),
            "c": pa.array([0, None, 86_400_000], pa.date64()),
        }
    )
    assert tabular_values.columns_of(table.schema, "t") == tabular_values.columns_of(schema, "t")
    found = tabular_values.conform(table, schema, "t")
    assert found.to_pylist() == table.to_pylist()
    large = table.set_column(0, "a", pa.array(["x", "y", "x"], pa.large_string()))
    assert tabular_values.conform(large, schema, "t").equals(found)


def test_a_schema_comes_back_from_its_columns():
    assert tabular_values.arrow_schema(tabular_values.columns_of(SCHEMA, "t")).equals(SCHEMA)


def test_an_empty_table_makes_no_rows():
    assert len(tabular_values.encode_rows(SCHEMA.empty_table(), "t")) == 0


NEEDED = pa.schema(
    [
        pa.field("s", pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])),
        pa.field("l", pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ]
)


@pytest.mark.parametrize(
    ("row", "where"),
    [({"s": {"x": None, "y": 1}}, "s.x"), ({"l": [1, None]}, "l.item")],
)
def test_a_null_inside_a_column_is_found_on_both_ways(row, where):
    given = pa.Table.from_pylist([{"s": None, "l": None}, {"s": {"x": 1, "y": None}, "l": []}, row])
    with pytest.raises(SchemaRefused, match=f"null at {where}"):
        tabular_values.conform(given.select([name for name in NEEDED.names if name in row]), NEEDED, "t")
    stored = pa.array([b"{}", b'{"s": {"x": 1}, "l": [1]}', *map(_json, [row])], pa.binary())
    with pytest.raises(DecodeFailed, match=f"t/0@12 .*null at {where}"):
        tabular_values.decode_rows(stored, NEEDED, "t", 0, 10)


def test_what_is_needed_inside_a_column_is_not_missed_where_the_column_is_null():
    sent = [{"s": None, "l": None}, {"s": {"x": 1, "y": None}, "l": [5]}, {"s": None, "l": []}]
    table = tabular_values.conform(pa.Table.from_pylist(sent), NEEDED, "t")
    assert table.schema.equals(NEEDED)
    assert tabular_values.decode_rows(tabular_values.encode_rows(table, "t"), NEEDED, "t", 0, 0).to_pylist() == sent


def _json(row):
    import json

    return json.dumps(row).encode()


def test_a_nan_is_null_and_refused_where_none_may_be():
    schema = pa.schema([pa.field("f", pa.float64(), nullable=False)])
    with pytest.raises(SchemaRefused, match="NaN"):
        tabular_values.encode_rows(pa.table({"f": [1.0, float("nan")]}, schema=schema), "t")
    free = pa.schema([pa.field("f", pa.float64())])
    encoded = tabular_values.encode_rows(pa.table({"f": [1.0, float("nan")]}, schema=free), "t")
    assert tabular_values.decode_rows(encoded, free, "t", 0, 0).to_pydict() == {"f": [1.0, None]}
