"""Values as columns and columns as values, by Spark's own functions.

orders = parse_json(frame, "customer string, amount double")     # value → columns
out = to_json_value(totals, key="customer")                      # columns → key and value

All of it runs inside Spark, none of it in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def text_values(frame: DataFrame) -> DataFrame:
    """Key and value as text instead of bytes."""
    from pyspark.sql import functions as f

    names = [name for name in ("key", "value") if name in frame.columns]
    return frame.withColumns({name: f.col(name).cast("string") for name in names})


def parse_json(frame: DataFrame, schema: str, *, keep: str = "*") -> DataFrame:
    """The fields of JSON values as columns beside the topic's own; null where a value is not such JSON.

    `keep` names the topic's columns that stay, separated by commas; the value itself goes.
    """
    from pyspark.sql import functions as f

    kept = [name for name in frame.columns if name != "value"] if keep == "*" else _names(keep)
    parsed = frame.withColumn("_parsed", f.from_json(f.col("value").cast("string"), schema))
    return parsed.select(*kept, "_parsed.*")


def to_json_value(frame: DataFrame, *, key: str | None = None, timestamp: str | None = None) -> DataFrame:
    """All columns as one JSON value; a column of them as the key, one as the message's time."""
    from pyspark.sql import functions as f

    columns = [f.to_json(f.struct(*(f.col(f"`{name}`") for name in frame.columns))).alias("value")]
    if key is not None:
        columns.append(f.col(key).cast("string").alias("key"))
    if timestamp is not None:
        columns.append(f.col(timestamp).cast("timestamp").alias("timestamp"))
    return frame.select(*columns)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
