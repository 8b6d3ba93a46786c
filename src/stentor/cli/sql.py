"""`stentor sql`: queries over topics and their recorded history."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import typer

from stentor.cli import options, spark_session
from stentor.cli.output import print_table
from stentor.cli.quantities import plural

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL query, in which every topic is a table.")],
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="DIR", help="Read the history from this lake, and the rest from the brokers."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Print at most N rows.")] = 1000,
    binary: Annotated[bool, typer.Option("--binary", help="Treat keys and values as bytes instead of text.")] = False,
    json: options.Json = False,
    master: spark_session.Master = None,
    conf: spark_session.Conf = None,
    url: options.Url = None,
) -> None:
    """Query topics and their recorded history with SQL.

    A topic is a table with the columns topic, partition, offset, timestamp, key, value and headers. With --lake the
    table includes the recorded history, without gap or overlap.

    \b
    Examples:
      stentor sql "select key, count(*) from orders.eu group by key order by 2 desc limit 10"
      stentor sql "select count(*) from orders.eu where timestamp > current_date()" --lake ./lake
      stentor sql "select avg(get_json_object(value, '$.amount')) from orders.eu"
    """
    from stentor.spark.pipelines.sql import query as run

    with spark_session.spark_session("sql", master, conf) as spark:
        with spark_session.saying("looking for the topics …"):
            frame = run(spark, query, url=url, lake=lake, binary=binary)
        with spark_session.saying("running the query …"):
            rows = frame.limit(limit + 1).collect()
        names = frame.columns
    cut = len(rows) > limit
    shown = rows[:limit]
    if json:
        for row in shown:
            print(json_module.dumps(row.asDict(recursive=True), default=_plain, ensure_ascii=False))
        return
    if names:
        print_table(names, ([_cell(value) for value in row] for row in shown))
    print(f"{plural(len(shown), 'row')}{', and more' if cut else ''}")


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    return _plain(value) if isinstance(value, bytes | bytearray) else str(value)


def _plain(value: Any) -> str:
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
