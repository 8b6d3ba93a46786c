"""Schemas of tabular topics: columns by name and type, and what may change from one version to the next.

A schema belongs to a topic. Its versions count from 1, and the number of a version is the schema id in the header of
every batch that was written by it. A version may add columns that are nullable, at any place and at any depth, and
change nothing else: then rows of every version can be read by every version.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stentor import limits
from stentor.errors import LimitExceeded, SchemaRefused

Unit = Literal["s", "ms", "us", "ns"]
ColumnType = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
    "string", "date", "timestamp", "decimal", "struct", "list",
]  # fmt: skip
Digits = Annotated[int, msgspec.Meta(ge=0, le=38)]
Text = Annotated[str, msgspec.Meta(max_length=limits.SCHEMA_NAME_CHARACTERS_MAX)]


class SchemaColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One column, or a part of a nested one."""

    name: Text
    type: ColumnType
    nullable: bool = True
    unit: Unit = "us"  # timestamp: what it counts
    zone: Text = ""  # timestamp: the zone it is shown in; "" is a time of no zone
    precision: Digits = 0  # decimal: digits in all
    scale: Digits = 0  # decimal: digits behind the point
    columns: Annotated[list[SchemaColumn], msgspec.Meta(max_length=limits.SCHEMA_COLUMNS_MAX)] = []  # struct, list


Columns = Annotated[list[SchemaColumn], msgspec.Meta(min_length=1, max_length=limits.SCHEMA_COLUMNS_MAX)]


def check(topic: str, columns: list[SchemaColumn]) -> None:
    """Whether columns make a schema at all."""
    if _count(columns, 1) > limits.SCHEMA_COLUMNS_MAX:
        raise LimitExceeded(
            f"The schema for topic {topic} has more than {limits.SCHEMA_COLUMNS_MAX} columns.", object=topic
        )
    wrong = _wrong(columns, "")
    if wrong:
        raise SchemaRefused(f"The schema for topic {topic} is not one: {wrong}.", operation="register", object=topic)


def _count(columns: list[SchemaColumn], depth: int) -> int:
    if depth > limits.SCHEMA_DEPTH_MAX:
        raise LimitExceeded(f"A schema is nested more than {limits.SCHEMA_DEPTH_MAX} deep.")
    return len(columns) + sum(_count(column.columns, depth + 1) for column in columns if column.columns)


def _wrong(columns: list[SchemaColumn], path: str) -> str:
    names = set()
    for column in columns:
        name = f"{path}{column.name}"
        if column.name in names:
            return f"there are two columns {name}"
        names.add(column.name)
        if not column.name:
            return f"a column of {path.rstrip('.') or 'it'} has no name"
        if column.type == "list" and len(column.columns) != 1:
            return f"column {name} is a list, and must name exactly one type for its elements"
        if column.type == "decimal" and not column.scale <= column.precision >= 1:
            return f"column {name} is a decimal of {column.precision} digits, {column.scale} of them after the point"
        if (column.type in ("struct", "list")) != bool(column.columns):
            return f"column {name} is {column.type}, which has {'no' if column.columns else 'some'} columns of its own"
        if column.columns and (inner := _wrong(column.columns, f"{name}.")):
            return inner
    return ""


def difference(old: list[SchemaColumn], new: list[SchemaColumn], path: str = "") -> str:
    """The first change between two versions that is more than a nullable addition; "" if there is none."""
    known = {column.name: column for column in old}
    later = {column.name: column for column in new}
    for column in old:
        if column.name not in later:
            return f"column {path}{column.name} is missing"
        if found := _changed(column, later[column.name], path):
            return found
    for column in new:
        if column.name not in known and not column.nullable:
            return f"column {path}{column.name} is new and not nullable"
    kept = [column.name for column in new if column.name in known]
    for was, found in zip(known, kept, strict=True):
        if was != found:
            return f"column {path}{found} stands before column {path}{was}"
    return ""


def _changed(old: SchemaColumn, new: SchemaColumn, path: str) -> str:
    name = f"{path}{old.name}"
    if _words(old) != _words(new):
        return f"column {name} was {_words(old)} and is {_words(new)}"
    if old.nullable != new.nullable:
        words = ("not nullable", "nullable")
        return f"column {name} was {words[old.nullable]} and is {words[new.nullable]}"
    return difference(old.columns, new.columns, f"{name}.")


def in_words(columns: list[SchemaColumn]) -> str:
    """A schema for people: names, types, and what may not be null."""
    return ", ".join(f"{column.name} {_whole(column)}{'' if column.nullable else ' not null'}" for column in columns)


def _whole(column: SchemaColumn) -> str:
    """A column's type in words, with what is nested in it."""
    if column.type == "list":
        return f"list<{_whole(column.columns[0])}>"
    return f"struct<{in_words(column.columns)}>" if column.type == "struct" else _words(column)


def _words(column: SchemaColumn) -> str:
    """A column's type in words, without what is nested in it."""
    if column.type == "timestamp":
        return f"timestamp[{column.unit}{f', {column.zone}' if column.zone else ''}]"
    return f"decimal({column.precision}, {column.scale})" if column.type == "decimal" else column.type
