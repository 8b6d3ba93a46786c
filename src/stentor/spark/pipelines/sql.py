"""SQL over topics: every topic that a query names is a table, with its recorded history if there is a lake.

Topic names have dots, and so do SQL's names: topics may stand in the query as they are, or in backquotes. Keys and
values are text in these tables; JSON in them is reached with Spark's own functions:

    select try_variant_get(try_parse_json(value), '$.amount', 'double') from orders.eu
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stentor.spark.connections import Connection
from stentor.spark.pipelines.lake import open_lake
from stentor.spark.pipelines.views import topic_view
from stentor.spark.values import text_values

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_QUOTED: Final = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_AFTER: Final = r"(?i)(?<![\w.-])(from|join)(\s+)(`?){name}\3(?![\w.-])"


def query(
    spark: SparkSession, text: str, *, url: str | None = None, lake: str | Path | None = None, binary: bool = False
) -> DataFrame:
    """The result of a query over topics; `binary` keeps keys and values as bytes."""
    place = None if lake is None else open_lake(lake)
    if place is not None:
        place.check()
    names = {topic.name for topic in Connection(url).client().topics()} | (set() if place is None else place.topics())
    for number, name in enumerate(sorted(names, key=len, reverse=True)):
        changed = _replaced(text, name, f"stentor_topic_{number}")
        if changed != text:
            frame = topic_view(spark, name, url=url, lake=place)
            (frame if binary else text_values(frame)).createOrReplaceTempView(f"stentor_topic_{number}")
            text = changed
    return spark.sql(text)


def _replaced(text: str, topic: str, view: str) -> str:
    """Put a view's name where a topic is named as a table; not inside of quotes."""
    pattern = re.compile(_AFTER.format(name=re.escape(topic)))
    parts = _QUOTED.split(text)
    return "".join(
        part if index % 2 else pattern.sub(rf"\1\2{view} as `{topic.rpartition('.')[2]}`", part)
        for index, part in enumerate(parts)
    )
