"""`stentor work`: a Python function called with every message or job, in several workers.

The command is a member of a consumer group, and its workers are those of `Group.run`. Of a queue it is a consumer, and
its workers are those of `Queue.run`. It ends gracefully with Ctrl-C or SIGTERM: what is in work is finished first, for
a while. A second signal ends it at once.
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
from stentor.errors import InvalidArgument, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor import Client, Group, Queue
    from stentor.client.group_run import GroupStatistics
    from stentor.client.queue_run import ConsumerStatistics

app = options.make_app()

_ORDERS: Final = {"key": "key", "partition": "partition", "none": None}
_LINE_S: Final = 1.0  # how often the line of progress is written
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


Topics = Annotated[
    str, typer.Argument(metavar="TOPICS", help="A queue; or a topic or pattern, several separated by commas.")
]
Handler = Annotated[
    str, typer.Argument(metavar="MODULE:FUNCTION", help="The function to call, such as billing.jobs:handle.")
]
GroupName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the consumer group whose member this is. Not for queues.")
]
Count = Annotated[int, typer.Option(metavar="N", min=1, help="Messages in work at the same time.")]
Mode = Annotated[str, typer.Option(metavar="process|thread|async", help="Where the function runs.")]
Order = Annotated[
    str, typer.Option(metavar="partition|key|none", help="What keeps its order while workers share messages.")
]
Batch = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Call the function with lists of up to N messages.")
]
Start = Annotated[str, typer.Option(metavar="POSITION", help="Where a new group starts.")]
OnError = Annotated[str, typer.Option(metavar="raise|skip", help="What to do when the function fails: stop, or go on.")]
Attempts = Annotated[int, typer.Option(metavar="N", min=1, help="How often a message may kill its worker process.")]
Zone = Annotated[str | None, typer.Option(metavar="NAME", help="Where this process runs, such as eu-1a.")]
FinishWithin = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="How long calls may take to finish after Ctrl-C or SIGTERM.")
]
DeadLetters = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Publish messages here whose call failed, and go on.")
]
Instance = Annotated[
    str | None, typer.Option(metavar="NAME", help="Makes the member static: started again, it has the same partitions.")
]
TimeLimit = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0.001, help="How long the function may take with a message.")
]
Prefetch = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Of a queue: how many jobs to hold at most. 1,000 unless given.")
]

_OF_GROUPS: Final = {  # options that a queue has no use for, and what says the same there
    "group": "Consumers of a queue share its jobs without a group.",
    "order": "A queue has its order from when it is made, by the setting ordered_by.",
    "start": "A queue hands out what is not done.",
    "on_error": "A job that fails is tried again.",
    "dead_letters": "Dead jobs go to the dead-letter topic of the queue.",
    "attempts": "The queue's own max_attempts says it.",
    "instance": "Consumers of a queue have no partitions of their own.",
    "zone": "Consumers of a queue have no partitions of their own.",
}


@app.command(context_settings=options.CONTEXT_SETTINGS)
def work(
    context: typer.Context,
    topics: Topics,
    handler: Handler,
    group: GroupName = None,
    workers: Count = 1,
    mode: Mode = "process",
    order: Order = "partition",
    batch: Batch = None,
    prefetch: Prefetch = None,
    start: Start = "earliest",
    on_error: OnError = "raise",
    dead_letters: DeadLetters = None,
    attempts: Attempts = 3,
    time_limit: TimeLimit = None,
    instance: Instance = None,
    zone: Zone = None,
    finish_within: FinishWithin = 30.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line of progress.")] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Call a Python function with every message or job, in several workers.

    On topics the command is a member of a consumer group: start it on several machines, and they share the partitions.
    On a queue it is one of its consumers, and a job whose call fails is tried again. Modules are imported from the
    working directory, too. Press Ctrl-C to stop.

    \b
    Examples:
      stentor work jobs billing.jobs:handle --workers 4
      stentor work orders.eu billing.jobs:handle --group billing --workers 4
      stentor work "orders.*" billing.jobs:handle --group billing --order key --dead-letters orders.failed
    """
    if order not in _ORDERS:
        raise InvalidArgument(f"--order {order!r} is unknown.", hint="Use partition, key or none.")
    joining: dict[str, Any] = {"start": parse_position(start, "--start"), "instance": instance, "zone": zone}
    settling = {"on_error": on_error, "dead_letters": dead_letters, "attempts": attempts}
    sys.path.insert(0, str(Path.cwd()))
    running: dict[str, Any] = {
        "workers": workers,
        "mode": mode,
        "batch": batch,
        "time_limit": time_limit,
        "finish_within": finish_within,
    }
    names = [topic.strip() for topic in topics.split(",")]
    with options.connect(url, timeout, "work", warnings=True) as client:
        if _is_queue(client, names, group):
            _check_queue_options(names[0], context)
            _work_on_queue(client, names[0], prefetch, handler, running, quiet=quiet)
        elif group is None or prefetch is not None:
            raise _not_a_queue(names, group)
        else:
            running |= {"ordered_by": _ORDERS[order], **settling}
            _work_in_group(client.group(group, names, **joining), handler, running, quiet=quiet)


def _work_on_queue(
    client: Client, name: str, prefetch: int | None, handler: str, running: dict[str, Any], *, quiet: bool
) -> None:
    holding = {} if prefetch is None else {"prefetch": prefetch}
    with client.queue(name, **holding) as queue:
        stopped = _run(queue, handler, running, quiet=quiet)
        counted = queue.statistics()
    info = client.describe_queue(name)
    _conclude("job", counted, info.waiting + info.held, stopped)


def _work_in_group(joining: Group, handler: str, running: dict[str, Any], *, quiet: bool) -> None:
    with joining as member:
        stopped = _run(member, handler, running, quiet=quiet)
        counted = member.statistics()
        _conclude("message", counted, counted["lag"], stopped)


def _is_queue(client: Client, names: list[str], group: str | None) -> bool:
    """Whether a queue is named; it must be named alone."""
    plain = [name for name in names if not set(name) & set("*>")]
    kinds = {}
    for name in plain:
        try:
            kinds[name] = client.describe_topic(name).settings.kind
        except TopicNotFound:
            if group is None:
                raise
    queues = [name for name, kind in kinds.items() if kind == "queue"]
    if queues and len(names) > 1:
        raise InvalidArgument(
            f"{queues[0]} is a queue, and was named with others.",
            hint="Work on one queue at a time: start the command once for each.",
            object=queues[0],
        )
    return bool(queues)


def _check_queue_options(name: str, context: typer.Context) -> None:
    for option, why in _OF_GROUPS.items():
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            flag = "--" + option.replace("_", "-")
            raise InvalidArgument(f"{name} is a queue, and {flag} is for topics.", hint=why, object=name)


def _not_a_queue(names: list[str], group: str | None) -> InvalidArgument:
    what = f"{names[0]} is a topic" if len(names) == 1 else "These are topics"
    if group is None:
        return InvalidArgument(
            f"{what}, and no --group was given.",
            hint="Name the group that shares its messages, such as --group billing. Only queues need none.",
            object=",".join(names),
        )
    return InvalidArgument(f"{what}, and --prefetch is for queues.", hint="Leave it out.", object=",".join(names))


def _conclude(what: str, counted: GroupStatistics | ConsumerStatistics, left: int, stopped: list[int]) -> None:
    complain(f"{plural(counted['done'], what)} done, {counted['failed']:,} failed, {left:,} left.")
    if stopped and stopped[0] == signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


def _run(member: Group | Queue, handler: str, running: dict[str, Any], *, quiet: bool) -> list[int]:
    """Until a signal, or a failure; which signals came."""
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
    return stopped


class _Running(threading.Thread):
    """A run in a thread of its own."""

    def __init__(self, member: Group | Queue, handler: str, running: dict[str, Any]) -> None:
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
def _progress(member: Group | Queue, *, quiet: bool) -> Iterator[None]:
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


def _write_lines(member: Group | Queue, over: threading.Event) -> None:
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
        f"lag {counted['lag']:,}" if "lag" in counted else f"{counted['waiting']:,} waiting here",
    ]
    if counted["failed"]:
        parts.append(f"{counted['failed']:,} failed")
    if counted["workers_died"]:
        parts.append(f"{counted['workers_died']:,} workers died")
    return "  ".join(parts)
