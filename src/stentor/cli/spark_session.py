"""What the commands that run on Spark share: the session, its options, and errors in one sentence."""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stentor.cli.failure import complain
from stentor.cli.noise import Filter
from stentor.errors import InternalError, InvalidArgument, StentorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark cluster to run on, such as spark://host:7077. Default: this machine."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="Setting for Spark. Repeat it for more settings.", show_default=False
    ),
]
LakeOption = Annotated[str, typer.Option("--lake", metavar="DIR", help="Directory of the lake.")]

SILENT_S: Final = 1.0
_OURS: Final = re.compile(r"stentor\.(?:errors|spark\.java)\.(\w+): (.+)")


@contextmanager
def spark_session(app: str, master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """A session for the length of a command; what goes wrong in it is told in one sentence."""
    from stentor.spark import session

    before = _running()
    settings = _settings(conf)
    noise = Filter() if before is None and os.environ.get("STENTOR_DEBUG") != "1" else None
    with saying("starting Spark …"), noise.starting() if noise is not None else nullcontext():
        spark = session(master, app=f"stentor {app}", config=settings)
    address = spark.sparkContext.uiWebUrl
    if address and sys.stderr.isatty():
        complain(f"Spark is running; its page is {address}")
    try:
        with _sentences():
            yield spark
    finally:
        if noise is not None:
            noise.end()
        if before is None:  # otherwise it belongs to whoever runs this command in its own process
            spark.stop()


def _running() -> Any:
    """The session that there is already, in a notebook or in tests."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


@contextmanager
def saying(sentence: str) -> Iterator[None]:
    """Tell a person who waits for longer than a second what is going on."""
    timer = threading.Timer(SILENT_S, complain, (sentence,))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _settings(conf: list[str] | None) -> dict[str, str]:
    settings = {}
    for item in conf or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise InvalidArgument(f"--conf {item!r} is not KEY=VALUE.")
        settings[key.strip()] = value.strip()
    return settings


@contextmanager
def _sentences() -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise told(str(error)) from error
    except Py4JError as error:
        raise InternalError(f"Spark ended: {str(error).splitlines()[0]}.") from error


def told(text: str) -> StentorError:
    """Our own error out of what Spark made of it; otherwise Spark's first line."""
    ours = _OURS.findall(text)
    if ours:
        name, sentence = ours[-1]
        return InvalidArgument(sentence) if name == "InvalidArgument" else StentorError(sentence)
    line = text.strip().splitlines()[0] if text.strip() else "Spark failed"
    sentence = re.sub(r"\s*SQLSTATE:.*", "", re.sub(r"^\[[A-Z_.]+\]\s*", "", line))
    return InvalidArgument(sentence.rstrip(" .;") + ".")


def bar(description: str, total: int | None) -> Any:
    """A progress bar on standard error with rate and remaining time; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    progress.add_task(description, total=total, rate="")
    return progress
