"""`stentor replay`: recorded messages into topics again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import options, spark_session
from stentor.cli.positions import parse_moment
from stentor.cli.quantities import plural, show_seconds
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from datetime import datetime

    from stentor.spark.pipelines.replay import ReplayProgress

app = options.make_app()

Speed = Annotated[
    str,
    typer.Option(metavar="original|N|max", help="Pace of the replay: as it happened, N times as fast, or full speed."),
]
PaceBy = Annotated[
    str,
    typer.Option(
        metavar="appended|timestamp",
        help="Which time sets the pace: when the broker appended a message, or the message's own timestamp.",
    ),
]
RecordedTopics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="Recorded topics to publish. Default: all topics of the lake."),
]
Into = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Publish to this topic; a * in it stands for the recorded topic's name."),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Publish only messages with this key. Repeat it for more keys.",
        show_default=False,
    ),
]
Work = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Keep the selection and the progress in this directory, so that --resume can continue."
    ),
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def replay(
    lake: spark_session.LakeOption,
    topics: RecordedTopics = None,
    into: Into = None,
    speed: Speed = "original",
    pace_by: PaceBy = "appended",
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Publish messages from this time on.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Publish messages before this time.")] = None,
    key: Keys = None,
    work: Work = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the replay in --work.")] = False,
    master: spark_session.Master = None,
    conf: spark_session.Conf = None,
    url: options.Url = None,
) -> None:
    """Publish recorded messages again, at the original pace or faster.

    Messages are published in the order of their times, with the same keys, headers, times and partitions.

    Spark selects and sorts the messages. Then the command publishes them, each exactly once, at the pace you choose.
    --url may name another cluster than the one that was recorded.

    \b
    Examples:
      stentor replay --lake ./lake orders.eu --into again.orders.eu --speed max
      stentor replay --lake ./lake --into "replayed.*" --start 2026-11-14 --end 2026-11-15 --speed 10
      stentor replay --lake ./lake --work ./replay --resume
    """
    from stentor.spark.pipelines import replay as pipeline

    if resume and work is None:
        raise InvalidArgument("--resume needs --work.", hint="Name the directory of the replay to continue.")
    with tempfile.TemporaryDirectory(prefix="stentor-replay-") as temporary:
        place = Path(work or temporary)
        if not resume:
            selection = pipeline.Selection(
                topics=topics or [],
                start=_moment(start, "--start"),
                end=_moment(end, "--end"),
                keys=key or [],
                into=into,
                pace_by=_pace_by(pace_by),
            )
            with spark_session.spark_session("replay", master, conf) as spark:
                plan = pipeline.select(spark, lake, place, selection, speed=_speed(speed))
            print(f"selected {plural(plan.rows, 'message')} of {show_seconds((plan.last_us - plan.first_us) / 1e6)}")
        with spark_session.bar("replaying", None) as bar:
            published = pipeline.publish(place, url=url, on_progress=lambda progress: _show(bar, progress))
    print(f"published {plural(published, 'message')}")


def _show(bar: Any, progress: ReplayProgress) -> None:
    rate = f"{progress.rows / progress.seconds:,.0f}/s" if progress.seconds else ""
    late = f", {progress.behind_s:.1f} s late" if progress.behind_s > 0.5 else ""
    bar.update(bar.tasks[0].id, completed=progress.rows, total=progress.of_rows, rate=rate + late)


def _moment(text: str | None, option: str) -> datetime | None:
    return None if text is None else parse_moment(text, option)


def _pace_by(text: str) -> str:
    if text not in ("appended", "timestamp"):
        raise InvalidArgument(f"--pace-by {text!r} is unknown.", hint="Use appended or timestamp.")
    return "appended_at" if text == "appended" else text


def _speed(text: str) -> float:
    words = {"original": 1.0, "max": 0.0}
    try:
        speed = words[text] if text in words else float(text.removesuffix("x"))
    except ValueError:
        speed = -1.0
    if speed < 0 or (speed == 0 and text != "max"):
        raise InvalidArgument(f"--speed {text!r} is not a pace.", hint="Use original, max, or a number such as 10.")
    return speed
