"""SQL over topics: every topic that a query names is a table, with its recorded history if there is a lake.

Topic names have dots, and so do SQL's names: topics may stand in the query as they are, or in backquotes, and their
columns may be called `orders.eu.key`. Keys and values are text in these tables; JSON in them is reached with Spark's
own functions:

    select try_variant_get(try_parse_json(value), '$.amount', 'double') from orders.eu
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from stentor.errors import InvalidArgument, TopicNotFound
from stentor.spark.connections import SparkConnection
from stentor.spark.pipelines.lake import open_lake
from stentor.spark.pipelines.times import Times, asked_for
from stentor.spark.pipelines.views import topic_view
from stentor.spark.values import text_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_TOKEN: Final = re.compile(
    r"""(?P<passed>\s+|--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<name>`[^`]+`|\w+(?:[.-]\w+)*)|(?P<sign>.)""",
    re.DOTALL,
)
_NO_TABLE: Final = ("TABLE_OR_VIEW_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE")
_BEFORE_TABLES: Final = ("from", "join")
_BEFORE_OTHERS: Final = (
    "select where group order having limit union intersect except minus window with values".split()  # noqa: SIM905
)


def query(
    spark: SparkSession, text: str, *, url: str | None = None, lake: str | Path | None = None, binary: bool = False
) -> DataFrame:
    """The result of a query over topics; `binary` keeps keys and values as bytes."""
    place = None if lake is None else open_lake(lake)
    if place is not None:
        place.check()
    names = {topic.name for topic in SparkConnection(url).client().topics()} | (
        set() if place is None else place.topics()
    )
    rewritten, topics, others = tables_quoted(text, names)

    def planned(times: dict[str, Times]) -> DataFrame:
        for name in topics:
            frame = topic_view(spark, name, url=url, lake=place, times=times.get(f"topic={name}"))
            (frame if binary else text_values(frame)).createOrReplaceTempView(f"`{name}`")
        return spark.sql(rewritten)

    try:
        frame = planned({})
        times = {} if place is None else asked_for(frame)
        return planned(times) if any(asked.is_bounded for asked in times.values()) else frame
    except AnalysisException as error:
        if error.getCondition() not in _NO_TABLE or not others:
            raise
        raise _unknown(str(error), others, names) from None


def _unknown(sentence: str, others: list[str], names: set[str]) -> TopicNotFound:
    """Spark's complaint about a table, in the words of who thinks of topics."""
    meant = next((other for other in others if f"`{other}`" in sentence.replace("`.`", ".")), others[0])
    close = get_close_matches(meant, names, 1)
    hint = f"Did you mean {close[0]}?" if close else "List topics with `stentor topic list`."
    return TopicNotFound(f"There is no topic {meant}.", hint=hint, object=meant)


def tables_quoted(text: str, names: Iterable[str]) -> tuple[str, set[str], list[str]]:
    """A query with its topics in backquotes; which topics those are, and which other tables it names.

    Strings and comments stay as they are.
    """
    tokens = list(_TOKEN.finditer(text))
    known = {name.casefold(): name for name in sorted(names)} | {name: name for name in names}
    tables: dict[int, str] = {}
    others: list[str] = []
    for index in _table_places(tokens):
        name = tokens[index][0].strip("`")
        found = known.get(name) or known.get(name.casefold())
        if found is None:
            others.append(name)
        if found is not None or "-" in name:  # Spark would take a dash for a minus
            tables[index] = found or name
    topics = set(tables.values()) - set(others)
    if len({name.casefold() for name in topics}) < len(topics):
        raise InvalidArgument("Two topics of this query differ only by case.", hint="Query them separately.")
    parts = [
        f"`{tables[index]}`" if index in tables else _qualified(token, topics) for index, token in enumerate(tokens)
    ]
    return "".join(parts), topics, others


def _table_places(tokens: list[re.Match[str]]) -> Iterator[int]:
    """Which tokens are names where SQL expects a table: after FROM and JOIN, and after commas in that list."""
    expected = listing = False
    outer: list[bool] = []
    for index, token in enumerate(tokens):
        word = token[0].lower()
        if token["passed"]:
            continue
        if word in _BEFORE_TABLES:
            expected = listing = True
        elif word in _BEFORE_OTHERS:
            expected = listing = False
        elif word == "(":
            outer.append(listing)
            listing = expected
        elif word == ")":
            listing, expected = bool(outer and outer.pop()), False
        elif word == ",":
            expected = listing
        else:
            if expected and token["name"]:
                yield index
            expected = False


def _qualified(token: re.Match[str], topics: set[str]) -> str:
    """A column that is called by its topic's name, which has dots itself."""
    text = token[0]
    if not token["name"] or text.startswith("`"):
        return text
    for name in sorted(topics, key=len, reverse=True):
        changed = re.sub(rf"(?<![\w.`]){re.escape(name)}(?=\.\w)", f"`{name}`", text)
        if changed != text:
            return changed
    return text
