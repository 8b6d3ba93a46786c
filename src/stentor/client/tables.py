"""Arrow, pandas and polars views of messages."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stentor import limits
from stentor.errors import InvalidArgument, LimitExceeded, MissingPackage
from stentor.wire.arrow_body import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RAMP_MIN: Final = 4096  # smaller batches share one ramp

MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        *SCHEMA,
    ]
)


def with_position(batch: Any, topic: str, partition: int, first_offset: Any) -> Any:
    """Put topic, partition and offset in front of a batch's columns. The offsets follow the first one, or are given."""
    count = batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            offsets(first_offset, count) if isinstance(first_offset, int) else first_offset,
            *batch.columns,
        ],
        schema=MESSAGE_SCHEMA,
    )


def offsets(first: int, count: int) -> Any:
    """Consecutive offsets as an Arrow array."""
    import pyarrow.compute as pc  # not at the start of every command

    return pc.add(_ramp(max(_RAMP_MIN, 1 << (count - 1).bit_length())).slice(0, count), first)


def runs(first: Any, batch: Any) -> Iterator[tuple[int, Any]]:
    """A batch as parts whose offsets follow each other one by one, each with its first offset."""
    if isinstance(first, int):
        yield first, batch
        return
    begin, found = 0, first.to_pylist()
    for index in range(1, len(found) + 1):
        if index == len(found) or found[index] != found[index - 1] + 1:
            yield found[begin], batch.slice(begin, index - begin)
            begin = index


@lru_cache(maxsize=32)
def _ramp(count: int) -> Any:
    return pa.array(range(count), pa.int64())


def to_table(batches: Iterable[Any]) -> Any:
    """All batches as one pyarrow.Table."""
    return pa.Table.from_batches(list(batches), schema=MESSAGE_SCHEMA)


def entries_table(entries: Iterable[Any]) -> Any:
    """Entries of a table by key: one row each."""
    rows = list(entries)
    return pa.table(
        {
            "key": pa.array([entry.key for entry in rows], pa.string()),
            "value": pa.array([entry.value for entry in rows], pa.binary()),
            "version": pa.array([entry.version for entry in rows], pa.int64()),
        }
    )


def to_polars(table: Any) -> Any:
    """As a polars.DataFrame."""
    try:
        import polars as pl
    except ImportError as error:
        raise MissingPackage("polars is not installed.", hint="pip install 'polars>=1.20'") from error
    return pl.from_arrow(table)


def to_pandas(table: Any) -> Any:
    """As a pandas.DataFrame."""
    try:
        import pandas as _  # noqa: F401, ICN001 - only to give a better error than pyarrow's
    except ImportError as error:
        raise MissingPackage("pandas is not installed.", hint="pip install 'pandas>=2.2'") from error
    return table.to_pandas()


def as_batches(data: Any) -> list[Any]:
    """A user's table or batch as record batches of the message schema's own columns."""
    if isinstance(data, pa.Table):
        parts = data.combine_chunks().to_batches()
    elif isinstance(data, pa.RecordBatch):
        parts = [data]
    else:
        raise InvalidArgument(
            f"send_batch takes a pyarrow Table or RecordBatch, not {type(data).__name__}.",
            hint="For lists of bytes use send_many.",
        )
    return [part for part in parts if part.num_rows]


def conform(batch: Any, now_us: int) -> Any:
    """Cast a user's batch to the schema; missing key and headers are null, missing time is now."""
    unknown = set(batch.schema.names) - {*SCHEMA.names, "topic", "partition", "offset"}
    if "value" not in batch.schema.names or unknown:
        raise InvalidArgument(
            f"A batch needs a `value` column and may have key, timestamp and headers; it has"
            f" {', '.join(batch.schema.names)}.",
            hint="Rename or drop columns first.",
        )
    columns = []
    for field in SCHEMA:
        if field.name in batch.schema.names:
            columns.append(_cast(batch.column(batch.schema.names.index(field.name)), field))
        elif field.name == "timestamp":
            columns.append(pa.repeat(pa.scalar(now_us, pa.int64()), batch.num_rows).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def with_headers(data: Any, headers: Any) -> Any:
    """A table or batch whose rows all have these headers; as it is if its rows have headers of their own."""
    if not hasattr(data, "append_column") or "headers" in data.schema.names:
        return data
    field = SCHEMA.field("headers")
    same = pa.scalar([{"key": key, "value": value} for key, value in headers], field.type)
    return data.append_column(field, pa.repeat(same, data.num_rows))


def check_sizes(batch: Any, where: str = "this batch", rows_before: int = 0) -> None:
    """Refuse a batch with a message that is too large for every producer; LimitExceeded says which row it is."""
    if batch.nbytes <= limits.MESSAGE_KEY_BYTES_MAX:
        return
    import pyarrow.compute as pc  # not at the start of every command

    for name, most in (("value", limits.MESSAGE_VALUE_BYTES_MAX), ("key", limits.MESSAGE_KEY_BYTES_MAX)):
        sizes = pc.binary_length(batch.column(name)) if name in batch.schema.names else None
        size = None if sizes is None else pc.max(sizes).as_py()
        if size is not None and size > most:
            row = rows_before + pc.index(pc.greater(sizes, most), True).as_py()
            raise LimitExceeded(
                f"Row {row} of {where}, counted from 0, has a {name} of more than the {most} bytes that a message may"
                " have.",
                hint="Leave such rows out; put what is large into an object store, and publish where it is.",
                operation="publish",
            )


def _cast(column: Any, field: Any) -> Any:
    try:
        cast = column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"Column {field.name} is {column.type}; {field.type} is needed.") from error
    if not field.nullable and cast.null_count:
        raise InvalidArgument(f"Column {field.name} has nulls.")
    return cast
