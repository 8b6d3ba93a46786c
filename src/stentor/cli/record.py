"""`stentor record`: topics into a lake."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import options, spark_session
from stentor.cli.failure import complain
from stentor.cli.quantities import plural, show_bytes

if TYPE_CHECKING:
    from stentor.spark.pipelines.record import Round

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def record(
    topics: options.Topics,
    lake: spark_session.LakeOption,
    format: Annotated[
        str | None, typer.Option("--format", metavar="parquet|delta", help="Format of a new lake. Default: parquet.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep recording until Ctrl-C, instead of stopping at the present end.")
    ] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="With --follow: how often to look for new messages.")
    ] = 10.0,
    compact: Annotated[bool, typer.Option("--compact", help="Join small files afterwards.")] = False,
    allow_data_loss: Annotated[
        bool,
        typer.Option("--allow-data-loss", help="Continue even if messages were deleted before they were recorded."),
    ] = False,
    master: spark_session.Master = None,
    conf: spark_session.Conf = None,
    url: options.Url = None,
) -> None:
    """Record topics into a lake of Parquet or Delta files.

    The files are sorted by topic and day, and each message is in them exactly once.

    The lake stores how far it has recorded. Run the same command again to continue, also after a crash.

    \b
    Examples:
      stentor record "orders.*" --lake ./lake
      stentor record "orders.>" --lake ./lake --format delta --follow
    """
    from stentor.spark.pipelines.lake import open_lake
    from stentor.spark.pipelines.record import record as run

    place = open_lake(lake, format)
    stop = threading.Event()
    with spark_session.spark_session("record", master, conf) as spark:
        if follow:
            _stop_on_signals(stop)
        with spark_session.bar("recording", None) as bar:
            recorded = run(
                spark,
                topics,
                place,
                url=url,
                once=not follow,
                interval_s=interval,
                fail_on_data_loss=not allow_data_loss,
                on_round=lambda done: _show(bar, done),
                stop=stop,
            )
        if compact:
            with place.writing():
                complain(f"joined {plural(max(0, place.compact(spark)), 'small file')}")
    print(f"recorded {plural(recorded, 'message')} into {place.path}")


def _show(bar: Any, done: Round) -> None:
    task = bar.tasks[0]
    rate = f"{done.rows / max(done.seconds, 1e-9):,.0f}/s, {show_bytes(done.file_bytes)}"
    bar.update(task.id, completed=task.completed + done.rows, rate=rate)
    bar.update(task.id, total=task.completed + done.waiting_rows)


def _stop_on_signals(stop: threading.Event) -> None:
    """A round that has begun is finished; nothing is lost if it is not."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
