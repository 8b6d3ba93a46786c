"""Snapshots of tables as files: Parquet, CSV, or the lines of JSON that `stentor table load` reads.

A file appears under its name when it is complete; until then it has another name beside it.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from stentor.cli import table_lines
from stentor.client.table_copy import TableEntry
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
SUFFIXES: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}


def format_of(path: Path, chosen: str | None) -> str:
    """Parquet, CSV or JSON: as it was chosen, or as the file is called."""
    found = chosen or SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidArgument(
            f"{path} does not say by its suffix what it shall hold.",
            hint="Call it .parquet, .csv or .json, or choose with --format.",
        )
    if found not in SUFFIXES.values():
        raise InvalidArgument(f"--format {found!r} is unknown.", hint="Use parquet, csv or json.")
    return found


def write_file(path: Path, kind: str, batches: Iterable[Any], facts: dict[str, str]) -> int:
    """Write all rows and replace an earlier file; the number of rows. Parquet holds the facts, too."""
    part = path.with_name(f".{path.name}.part")
    rows = 0
    try:
        with part.open("wb") as file:
            with closing(_WRITERS[kind](file, SCHEMA.with_metadata(facts))) as writer:
                for batch in batches:
                    columns = [batch.column(field.name).cast(field.type) for field in SCHEMA]
                    writer.write(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
                    rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    return rows


class _Writer(Protocol):
    def __init__(self, file: Any, schema: Any) -> None: ...
    def write(self, batch: Any) -> None: ...
    def close(self) -> None: ...


class _Parquet:
    def __init__(self, file: Any, schema: Any) -> None:
        import pyarrow.parquet as pq  # not at the start of every command

        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    def __init__(self, file: Any, schema: Any) -> None:
        import pyarrow.csv as pc

        self._schema = schema.remove_metadata().set(1, pa.field("value", pa.string(), nullable=False))
        self._writer = pc.CSVWriter(file, self._schema)

    def write(self, batch: Any) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        try:
            columns["value"] = columns["value"].cast(pa.string())
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"The value of {_first_binary(batch)} is no text, and CSV holds nothing else.",
                hint="Write Parquet or JSON.",
            ) from error
        self._writer.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _first_binary(batch: Any) -> str:
    for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
        try:
            value.decode()
        except UnicodeDecodeError:
            return str(key)
    return "a key"


class _Json:
    def __init__(self, file: Any, _: Any) -> None:
        self._file = file

    def write(self, batch: Any) -> None:
        columns = (batch.column(name).to_pylist() for name in ("key", "value", "version"))
        self._file.writelines(map(table_lines.write_line, map(TableEntry, *columns)))

    def close(self) -> None:
        """Each line is complete by itself."""


_WRITERS: Final[dict[str, type[_Writer]]] = {"parquet": _Parquet, "csv": _Csv, "json": _Json}
