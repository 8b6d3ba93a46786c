"""`stentor pipeline`: what else runs on Spark beside record, replay and sql."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stentor.cli import options, spark_session
from stentor.cli.output import print_json, print_table
from stentor.cli.positions import parse_moment
from stentor.cli.quantities import parse_bytes, parse_seconds, plural
from stentor.errors import InvalidArgument

app = options.make_app(help="Compute metrics and snapshots, and compact lakes, on Spark.")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def metrics(
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="DIR", help="Directory in which Spark keeps its progress.")
    ],
    window: Annotated[str, typer.Option(metavar="DURATION", help="Length of a window.")] = "1m",
    late: Annotated[
        str, typer.Option(metavar="DURATION", help="How late a record may arrive and still count.")
    ] = "30s",
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the present end, instead of running until Ctrl-C.")
    ] = False,
    into_table: Annotated[
        str | None,
        typer.Option(
            "--into-table",
            metavar="NAME",
            help="Put the newest window of each topic into this table, instead of all windows into a topic.",
        ),
    ] = None,
    master: spark_session.Master = None,
    conf: spark_session.Conf = None,
    url: options.Url = None,
) -> None:
    """Sum up the brokers' metrics by topic and window, into the topic _metrics.windows or into a table.

    \b
    Examples:
      stentor pipeline metrics --checkpoint ./metrics-state --window 1m
      stentor pipeline metrics --checkpoint ./newest-state --into-table ops.load
      stentor pipeline show
    """
    from stentor.spark.pipelines.metrics import TARGET, run

    with spark_session.spark_session("metrics", master, conf) as spark:
        window_s, late_s = parse_seconds(window, "--window"), parse_seconds(late, "--late")
        query = run(spark, checkpoint, url=url, window_s=window_s, late_s=late_s, once=once, into_table=into_table)
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
    print(f"windows are in the topic {TARGET}" if into_table is None else f"windows are in the table {into_table}")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def show(
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="Read the windows from this table.")
    ] = None,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print the newest window of every topic, as `stentor pipeline metrics` computed it."""
    from stentor.spark.pipelines.metrics import last_windows

    with options.connect(url, timeout, "pipeline show") as client:
        found = last_windows(client, table)
    if json:
        print_json(found)
        return
    numbers = ("messages/s", "bytes each", "delivered/s", "subscriptions", "lag", "p50 µs", "p99 µs")
    print_table(("topic", "until", *numbers), (_row(window) for window in found), right=numbers)


def _row(window: Any) -> tuple[object, ...]:
    latencies = (window.latency_us_p50, window.latency_us_p99)
    return (
        window.topic,
        window.end,
        f"{window.messages_per_second:,.1f}",
        f"{window.bytes_per_message:,.0f}",
        f"{window.delivered_per_second:,.1f}",
        window.subscriptions,
        window.lag,
        *("" if value is None else f"{value:,.0f}" for value in latencies),
    )


@app.command(context_settings=options.CONTEXT_SETTINGS)
def snapshot(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to take the snapshot of.")],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write Parquet files here, and replace an earlier snapshot."),
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="TOPIC", help="Publish the snapshot to this topic.")
    ] = None,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="DIR", help="Read the history from this lake.", show_default=False)
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Take the snapshot as of this time.")] = None,
    master: spark_session.Master = None,
    conf: spark_session.Conf = None,
    url: options.Url = None,
) -> None:
    """Write the latest value of every key of a topic, as of now or of a time.

    A table needs no Spark: see `stentor snapshot`. Here it is written in parallel, to a directory or a topic.

    \b
    Examples:
      stentor pipeline snapshot prices --out ./prices
      stentor pipeline snapshot prices --lake ./lake --until 2026-11-14T18:00 --into prices.closing
    """
    from stentor.spark.pipelines import snapshot as pipeline

    if (out is None) == (into is None):
        raise InvalidArgument(
            "Exactly one of --out and --into is needed.", hint="--out DIR writes files, --into publishes."
        )
    with spark_session.spark_session("snapshot", master, conf) as spark:
        moment = None if until is None else parse_moment(until, "--until")
        sequence = pipeline.table_sequence(topic, url=url) if lake is None and moment is None else None
        if sequence is None:
            frame = pipeline.latest(spark, topic, url=url, lake=lake, until=moment).cache()
        else:
            frame = pipeline.of_table(spark, topic, sequence, url=url).cache()
        keys = frame.count()
        if out is not None:
            pipeline.to_lake(frame, out, None if sequence is None else {"table": topic, "sequence": sequence})
        elif into is not None:
            pipeline.to_topic(frame, into, url=url)
    at = "" if sequence is None else f" at sequence {','.join(map(str, sequence))}"
    print(f"{plural(keys, 'key')} of {topic}{at} in {out or into}")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def compact(
    lake: spark_session.LakeOption,
    target: Annotated[str, typer.Option(metavar="SIZE", help="Size that joined files should have.")] = "128MiB",
    master: spark_session.Master = None,
    conf: spark_session.Conf = None,
) -> None:
    """Join the small files of a lake."""
    from stentor.spark.pipelines.lake import open_lake

    place = open_lake(lake)
    place.check()
    with spark_session.spark_session("compact", master, conf) as spark, place.writing():
        fewer = place.compact(spark, parse_bytes(target, "--target"))
    print(f"{plural(max(0, fewer), 'file')} fewer in {place.path}")
