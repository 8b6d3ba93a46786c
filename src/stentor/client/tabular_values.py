"""Rows of a tabular topic: Arrow columns to one JSON object for each row, and back.

A row's value is a JSON object, so that every other reader of the topic sees text that it can parse. Dates, times and
decimals are text in it (`2026-01-31`, `2026-01-31T12:00:00.000000Z`, `12.50`), in UTC if the column has a zone. JSON
has no NaN and no infinity: a NaN becomes null, as in pandas, and an infinity is refused.

Rows are decoded many at a time by Arrow's own JSON reader: text columns first, which are then cast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from stentor.errors import DecodeFailed, SchemaRefused
from stentor.wire.schemas import SchemaColumn

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLAIN: Final[dict[str, Any]] = {
    "bool": pa.bool_(),
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
}
_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}
_OBJECT: Final = b"{"


# --- schemas ------------------------------------------------------------------------------------


def columns_of(schema: Any, topic: str) -> list[SchemaColumn]:
    """A pyarrow.Schema as the columns that a topic keeps."""
    if not isinstance(schema, pa.Schema):
        raise SchemaRefused(
            f"A schema is a pyarrow.Schema, not {type(schema).__name__}.",
            hint="pa.Table.from_pandas(frame).schema is one.",
        )
    return [_column_of(field, topic, field.name) for field in schema]


def _column_of(field: Any, topic: str, path: str) -> SchemaColumn:
    kind, name, nullable = _usual(field.type), field.name, field.nullable
    if kind in _NAMES:
        return SchemaColumn(name=name, type=_NAMES[kind], nullable=nullable)  # type: ignore[arg-type]
    if pa.types.is_timestamp(kind):
        return SchemaColumn(name=name, type="timestamp", nullable=nullable, unit=kind.unit, zone=kind.tz or "")
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return SchemaColumn(name=name, type="decimal", nullable=nullable, precision=kind.precision, scale=kind.scale)
    if pa.types.is_struct(kind):
        inner = [_column_of(part, topic, f"{path}.{part.name}") for part in kind]
        return SchemaColumn(name=name, type="struct", nullable=nullable, columns=inner)
    if pa.types.is_list(kind):
        item = _column_of(kind.value_field.with_name("item"), topic, f"{path}.item")
        return SchemaColumn(name=name, type="list", nullable=nullable, columns=[item])
    raise SchemaRefused(
        f"Column {path} for topic {topic} is {field.type}, which rows cannot hold.",
        hint="Rows hold booleans, numbers, text, dates, times, decimals, and structs and lists of them: cast it first.",
        object=topic,
    )


def _usual(kind: Any) -> Any:
    """The type that stands for all that hold the same values."""
    if pa.types.is_dictionary(kind):
        return _usual(kind.value_type)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    return kind


def arrow_schema(columns: Iterable[SchemaColumn]) -> Any:
    """The pyarrow.Schema that a topic's columns describe."""
    return pa.schema([_field(column) for column in columns])


def _field(column: SchemaColumn) -> Any:
    return pa.field(column.name, _type(column), nullable=column.nullable)


def _type(column: SchemaColumn) -> Any:
    if column.type == "timestamp":
        return pa.timestamp(column.unit, tz=column.zone or None)
    if column.type == "decimal":
        return pa.decimal128(column.precision, column.scale)
    if column.type == "struct":
        return pa.struct([_field(part) for part in column.columns])
    return pa.list_(_field(column.columns[0])) if column.type == "list" else _PLAIN[column.type]


# --- a user's table -----------------------------------------------------------------------------


def as_table(data: Any) -> Any:
    """A pandas or polars frame, or anything of Arrow's, as a pyarrow.Table."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if type(data).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaRefused(f"This {type(data).__name__} is no table for Arrow: {_first_line(error)}.") from error
    raise SchemaRefused(
        f"Rows come as a pyarrow Table, a pandas or polars DataFrame, not as {type(data).__name__}.",
        hint="pa.Table.from_pylist(rows) makes a table of dictionaries.",
    )


def conform(table: Any, schema: Any, topic: str) -> Any:
    """A user's table in the columns of a schema. Whatever would change a value is refused, with topic and column."""
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise SchemaRefused(
            f"The schema of topic {topic} has no column {unknown[0]}.",
            hint="Drop it, or register a version that has it: client.tabular(name, schema).",
            object=topic,
            column=unknown[0],
        )
    columns = [_conformed(table, field, topic) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _conformed(table: Any, field: Any, topic: str) -> Any:
    found = table.column_names.count(field.name)
    if found > 1:
        raise _refused(topic, field, "is there twice")
    free = _nullable(field.type)
    if not found:
        column = pa.nulls(table.num_rows, free)
    else:
        given = table.column(field.name)
        if not _is_like(given.type, field.type):
            raise _refused(topic, field, f"is {given.type}; {field.type} is needed")
        try:
            column = given.cast(free).combine_chunks() if len(given) else pa.nulls(0, free)
        except (pa.ArrowException, NotImplementedError) as error:
            raise _refused(topic, field, f"does not fit {field.type}: {_first_line(error)}") from error
    if why := _null_in(column, field, field.name):
        raise _refused(topic, field, why)
    return _read(column, field.type)


def _nullable(kind: Any) -> Any:
    """The same type with all its parts nullable: Arrow's cast takes the parts of a null struct for nulls of theirs."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _nullable(part.type)) for part in kind])
    return pa.list_(_nullable(kind.value_type)) if pa.types.is_list(kind) else kind


def _is_like(given: Any, wanted: Any) -> bool:
    """Whether a cast keeps the meaning: a number is not made of text, nor a moment of a time without a zone."""
    given = _usual(given)
    if pa.types.is_null(given):
        return True
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(given) and bool(given.tz) == bool(wanted.tz)
    if pa.types.is_struct(wanted):
        return (
            pa.types.is_struct(given)
            and {part.name for part in given} <= {part.name for part in wanted}
            and all(_is_like(part.type, wanted.field(part.name).type) for part in given)
        )
    if pa.types.is_list(wanted):
        return pa.types.is_list(given) and _is_like(given.value_type, wanted.value_type)
    if _is_number(wanted):
        return _is_number(given)
    return bool(given == wanted)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _null_in(column: Any, field: Any, path: str) -> str:
    """What is null and may not be; "" if nothing is."""
    if not field.nullable and column.null_count:
        return f"has a null at {path}, which is not nullable"
    if pa.types.is_struct(field.type):
        parts = column.drop_null().flatten()
        return next(
            filter(None, (_null_in(p, f, f"{path}.{f.name}") for p, f in zip(parts, field.type, strict=True))), ""
        )
    if pa.types.is_list(field.type):
        import pyarrow.compute as pc

        return _null_in(pc.list_flatten(column), field.type.value_field, f"{path}.item")
    return ""


def _refused(topic: str, field: Any, why: str) -> SchemaRefused:
    return SchemaRefused(
        f"Column {field.name} for topic {topic} {why}.",
        hint="Nothing was sent.",
        operation="publish",
        object=topic,
        column=field.name,
    )


# --- rows ---------------------------------------------------------------------------------------


def encode_rows(table: Any, topic: str) -> Any:
    """One JSON object for each row, as a binary array."""
    written = [
        _written(table.column(field.name).combine_chunks(), field, topic) if table.num_rows else pa.nulls(0)
        for field in table.schema
    ]
    rows = pa.RecordBatch.from_arrays(written, names=table.schema.names).to_pylist()
    return pa.array(map(msgspec.json.Encoder().encode, rows), pa.binary(), size=len(rows))


def _written(array: Any, field: Any, topic: str) -> Any:
    """A column as JSON has it."""
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_timestamp(kind):
        moments = array.cast(pa.timestamp(kind.unit, tz="UTC")) if kind.tz else array
        return pc.replace_substring(moments.cast(pa.string()), " ", "T")
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):
        if pc.any(pc.is_inf(array)).as_py():
            raise _refused(topic, field, "holds an infinity, which JSON has no number for")
        without = pc.if_else(pc.is_nan(array), pa.scalar(None, kind), array)
        if not field.nullable and without.null_count:
            raise _refused(topic, field, "holds a NaN, which is written as null, and is not nullable")
        return without
    if pa.types.is_struct(kind):
        parts = [_written(part, field, topic) for part in array.flatten()]
        return pa.StructArray.from_arrays(parts, names=[part.name for part in kind], mask=array.is_null())
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
        return pa.ListArray.from_arrays(offsets, _written(array.flatten(), field, topic), mask=array.is_null())
    return array


def decode_rows(values: Any, schema: Any, topic: str, partition: int, first_offset: int) -> Any:
    """Rows as a RecordBatch of the schema; columns that rows do not have are null, others of theirs are left out.

    DecodeFailed names the first row that does not fit.
    """
    try:
        return _decoded(values, schema)
    except (pa.ArrowException, ValueError) as error:
        if len(values) > 1:  # which one it is, by halves
            half = len(values) // 2
            decode_rows(values.slice(0, half), schema, topic, partition, first_offset)
            decode_rows(values.slice(half), schema, topic, partition, first_offset + half)
        place = f"{topic}/{partition}@{first_offset}"
        raise DecodeFailed(
            f"The value at {place} is no row of the schema: {_first_line(error)}.",
            hint="Something else than rows was written before the topic had a schema, or its producer is wrong.",
            operation="read",
            object=place,
            topic=topic,
            partition=partition,
            offset=first_offset,
        ) from error


def _decoded(values: Any, schema: Any) -> Any:
    import pyarrow.compute as pc
    from pyarrow import json

    if not len(values):
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    if values.null_count or not pc.all(pc.starts_with(values, _OBJECT)).as_py():
        raise ValueError("it is no JSON object")
    lines = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"\n")[0].as_buffer()
    stored = pa.schema([pa.field(field.name, _stored(field.type)) for field in schema])
    found = json.read_json(
        pa.BufferReader(lines),
        read_options=json.ReadOptions(use_threads=False, block_size=lines.size + 1),
        parse_options=json.ParseOptions(explicit_schema=stored, unexpected_field_behavior="ignore"),
    )
    if found.num_rows != len(values):  # each begins as an object: so one of them is several
        raise ValueError("it is more than one JSON object")
    columns = [_read(found.column(field.name).combine_chunks(), field.type) for field in schema]
    for column, field in zip(columns, schema, strict=True):
        if why := _null_in(column, field, field.name):
            raise ValueError(f"column {field.name} {why}")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _stored(kind: Any) -> Any:
    """The type that JSON is read as."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _stored(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", _stored(kind.value_type)))
    return kind


def _read(array: Any, kind: Any) -> Any:
    """A column as it was read from JSON, in its own type."""
    import pyarrow.compute as pc

    if pa.types.is_timestamp(kind) and kind.tz:
        return array.cast(pa.timestamp(kind.unit, tz="UTC")).cast(kind)
    if pa.types.is_struct(kind):
        parts = [_read(part, field.type) for part, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
        values = _read(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    return array if array.type == kind else array.cast(kind)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unreadable"])[0].rstrip(".")
