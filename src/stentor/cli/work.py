"""`stentor work`: a Python function called with every message, in several workers.

The command is a member of a consumer group, and its workers are those of `Group.run`. It ends gracefully with Ctrl-C or
SIGTERM: what is in work is finished first, for a while. A second signal ends it at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stentor.cli import options
from stentor.cli.failure import EXIT_INTERRUPTED, complain
from stentor.cli.positions import parse_position
from stentor.cli.quantities import plural
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor import Group

app = options.make_app()

_ORDERS: Final = {"key": "key", "partition": "partition", "none": None}
_LINE_S: Final = 1.0  # how often the line of progress is written
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


DeadLetters = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Publish messages here whose call failed, and go on.")
]
Attempts = Annotated[int, typer.Option(metavar="N", min=1, help="How often a message may kill its worker process.")]
Order = Annotated[
    str, typer.Option(metavar="partition|key|none", help="What keeps its order while workers share messages.")
]
Batch = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Call the function with lists of up to N messages.")
]
Instance = Annotated[
    str | None, typer.Option(metavar="NAME", help="Makes the member static: started again, it has the same partitions.")
]
FinishWithin = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="How long calls may take to finish after Ctrl-C or SIGTERM.")
]
TimeLimit = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0.001, help="How long the function may take with a message.")
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def work(
    topics: Annotated[str, typer.Argument(metavar="TOPICS", help="A topic or pattern; several separated by commas.")],
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="The function to call, such as billing.jobs:handle.")
    ],
    group: Annotated[str, typer.Option(metavar="NAME", help="Name of the consumer group whose member this is.")],
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Messages in work at the same time.")] = 1,
    mode: Annotated[str, typer.Option(metavar="process|thread|async", help="Where the function runs.")] = "process",
    order: Order = "partition",
    batch: Batch = None,
    start: Annotated[str, typer.Option(metavar="POSITION", help="Where a new group starts.")] = "earliest",
    on_error: Annotated[
        str, typer.Option(metavar="raise|skip", help="What to do when the function fails: stop, or go on.")
    ] = "raise",
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Publish messages here whose call failed, and go on."),
    ] = None,
    attempts: Annotated[
        int, typer.Option(metavar="N", min=1, help="How often a message may kill its worker process.")
    ] = 3,
    time_limit: TimeLimit = None,
    instance: Instance = None,
    zone: Annotated[str | None, typer.Option(metavar="NAME", help="Where this process runs, such as eu-1a.")] = None,
    finish_within: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="How long calls may take to finish after Ctrl-C or SIGTERM."),
    ] = 30.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line of progress.")] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Call a Python function with every message, in several workers.

    The command is a member of a consumer group: start it on several machines, and they share the partitions. Modules
    are imported from the working directory, too. Press Ctrl-C to stop.

    \b
    Examples:
      stentor work orders.eu billing.jobs:handle --group billing --workers 4
      stentor work "orders.*" billing.jobs:handle --group billing --order key --dead-letters orders.failed
    """
    if order not in _ORDERS:
        raise InvalidArgument(f"--order {order!r} is unknown.", hint="Use partition, key or none.")
    sys.path.insert(0, str(Path.cwd()))
    joining: dict[str, Any] = {"start": parse_position(start, "--start"), "instance": instance, "zone": zone}
    running: dict[str, Any] = {
        "workers": workers,
        "mode": mode,
        "ordered_by": _ORDERS[order],
        "batch": batch,
        "on_error": on_error,
        "dead_letters": dead_letters,
        "attempts": attempts,
        "time_limit": time_limit,
        "finish_within": finish_within,
    }
    names = [topic.strip() for topic in topics.split(",")]
    with options.connect(url, timeout, "work") as client, client.group(group, names, **joining) as member:
        _run(member, handler, running, quiet=quiet)


def _run(member: Group, handler: str, running: dict[str, Any], *, quiet: bool) -> None:
    """Until a signal, or a failure."""
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        member.stop()

    if running["workers"] == 1 and running["mode"] == "thread":
        # The thread that calls would be the worker, and a signal would come in the middle of a message.
        thread = _Running(member, handler, running)
        with _signals(stop), _progress(member, quiet=quiet):
            thread.start()
            thread.finish()
    else:
        with _signals(stop), _progress(member, quiet=quiet):
            member.run(handler, **running)
    counted = member.statistics()
    complain(f"{plural(counted['done'], 'message')} done, {counted['failed']:,} failed, {counted['lag']:,} left.")
    if stopped and stopped[0] == signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


class _Running(threading.Thread):
    """A run in a thread of its own."""

    def __init__(self, member: Group, handler: str, running: dict[str, Any]) -> None:
        super().__init__(name="stentor-run", daemon=True)
        self._member, self._handler, self._running = member, handler, running
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._member.run(self._handler, **self._running)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error

    def finish(self) -> None:
        """Wait for it; raises what it raised."""
        while self.is_alive():
            self.join(_LINE_S)
        if self._failure is not None:
            raise self._failure


@contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    """The first signal stops the work, the second one ends the process."""
    heard: list[int] = []

    def hear(number: int, _: object) -> None:
        if heard:
            os._exit(128 + number)
        heard.append(number)
        stop(number)

    before = {number: signal.signal(number, hear) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(member: Group, *, quiet: bool) -> Iterator[None]:
    """A line on standard error that says how the work goes; for people only."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_write_lines, args=(member, over), name="stentor-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _write_lines(member: Group, over: threading.Event) -> None:
    done, at = 0, time.monotonic()
    while not over.wait(_LINE_S):
        counted, now = member.statistics(), time.monotonic()
        print("\r\x1b[K" + progress_line(counted, (counted["done"] - done) / (now - at)), end="", file=sys.stderr)
        sys.stderr.flush()
        done, at = counted["done"], now
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def progress_line(counted: Any, rate: float) -> str:
    """How the work goes, in one line."""
    parts = [
        f"{counted['done']:,} done",
        f"{rate:,.0f}/s",
        f"{counted['in_work']:,} in work",
        f"lag {counted['lag']:,}",
    ]
    if counted["failed"]:
        parts.append(f"{counted['failed']:,} failed")
    if counted["workers_died"]:
        parts.append(f"{counted['workers_died']:,} workers died")
    return "  ".join(parts)
