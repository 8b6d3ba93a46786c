"""`stentor bench`: measure a running broker."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, cast

import typer

from stentor.cli import options
from stentor.cli.failure import EXIT_ERROR
from stentor.cli.output import print_facts, print_json, print_table
from stentor.cli.quantities import show_bytes
from stentor.errors import InvalidArgument, StentorError
from stentor.limits import MESSAGE_VALUE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.cli.load import LoadPlan
    from stentor.cli.measurement import Result
    from stentor.client.options import AckLevel, Compression
    from stentor.wire.topic_settings import Flush

app = options.make_app()

WORKERS_MAX: Final = 64
"""Each is a process; for a larger fan-out see `make bench`."""

Producers = Annotated[int, typer.Option(metavar="N", min=1, max=WORKERS_MAX, help="Number of processes that publish.")]
Subscribers = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=WORKERS_MAX, help="Number of processes that subscribe to all messages."),
]
Rate = Annotated[
    float,
    typer.Option(
        metavar="N", min=0, help="Messages per second of all producers together. 0 means as fast as possible."
    ),
]
OneByOne = Annotated[
    bool,
    typer.Option("--one-by-one", help="Wait for the acknowledgement of each message, and measure how long it takes."),
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def bench(
    size: Annotated[int, typer.Option(metavar="BYTES", help="Size of a value.")] = 100,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Messages per batch.")] = 1000,
    producers: Producers = 1,
    subscribers: Subscribers = 1,
    rate: Rate = 0,
    seconds: Annotated[float, typer.Option(metavar="S", min=0.1, help="Publish for this many seconds.")] = 5,
    one_by_one: OneByOne = False,
    partitions: Annotated[int, typer.Option(metavar="N", min=1, help="Number of partitions of the topic.")] = 1,
    flush: Annotated[str, typer.Option(metavar="always|interval", help="Flush setting of the topic.")] = "always",
    ack: options.Ack = "all",
    compression: Annotated[str | None, typer.Option(metavar="lz4|zstd", help="Compress batches.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the topic afterwards.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Measure a running broker.

    Bench creates a topic, publishes to it and subscribes to it from separate processes. It checks every message that
    arrives (count, order, no duplicates), and prints speed and end-to-end latency. With --rate, the latency of a
    message counts from the time at which it was due, so that stalls are not hidden. The exit code is 1 if a check
    fails.

    \b
    Examples:
      stentor bench
      stentor bench --size 1000 --producers 2 --subscribers 4 --seconds 10
      stentor bench --rate 50000 --batch 100
      stentor bench --one-by-one --subscribers 0
    """
    from stentor.cli.load import SIZE_MIN, LoadPlan

    if size < SIZE_MIN:
        raise InvalidArgument(f"--size {size} is too small.", hint=f"The checks need {SIZE_MIN} bytes in each message.")
    if size > MESSAGE_VALUE_BYTES_MAX:
        raise InvalidArgument(
            f"--size {size:,} is too large.", hint=f"A message's value has at most {MESSAGE_VALUE_BYTES_MAX:,} bytes."
        )
    plan = LoadPlan(
        url=url, timeout=timeout, topic=f"bench.{os.urandom(4).hex()}", partitions=partitions, size=size, batch=batch,
        producers=producers, subscribers=subscribers, rate=rate, seconds=seconds,
        ack=cast("AckLevel", ack), compression=cast("Compression | None", compression),
        one_by_one=one_by_one,
    )  # fmt: skip
    result = _run(plan, flush=cast("Flush", flush), keep=keep)
    if json:
        print_json(result)
    else:
        _print_result(plan, result)
    if not result.verified:
        raise typer.Exit(EXIT_ERROR)


def _run(plan: LoadPlan, *, flush: Flush, keep: bool) -> Result:
    """Make the topic, measure, clean up: also when it fails, or is told to end."""
    from stentor.cli.measurement import measure

    with options.connect(plan.url, plan.timeout, "bench") as client, _ended_by_signal():
        try:
            client.create_topic(plan.topic, partitions=plan.partitions, flush=flush)
            result = measure(plan)
        except BaseException:
            if not keep:
                with contextlib.suppress(StentorError):  # what went wrong before is what to tell
                    client.delete_topic(plan.topic)
            raise
        if not keep:
            client.delete_topic(plan.topic)
        return result


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, with time to clean up."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_result(plan: LoadPlan, result: Result) -> None:
    print_facts(
        [
            ("published", _speed(result.published, result.published_per_second, plan.size)),
            ("delivered", _speed(result.delivered, result.delivered_per_second, plan.size)),
            ("verified", _verdict(plan, result)),
        ]
    )
    rows = [
        (name, *(f"{value:,}" for value in latency))
        for name, latency in (
            ("publish to acknowledgement", result.acknowledged_us),
            ("publish to delivery", result.latency_us),
        )
        if latency is not None
    ]
    if rows:
        print()
        headings = ("LATENCY, MICROSECONDS", "P50", "P90", "P99", "P99.9", "MAX")
        print_table(headings, rows, right=headings[1:])


def _speed(messages: int, per_second: float, size: int) -> str:
    return f"{messages:,} messages, {per_second:,.0f} per second, {show_bytes(per_second * size)}/s"


def _verdict(plan: LoadPlan, result: Result) -> str:
    if not plan.subscribers:
        return "nothing to verify without subscribers"
    if result.verified:
        return f"{result.delivered:,} of {result.published * plan.subscribers:,}, in order, none twice"
    return f"FAILED: {result.lost:,} lost, {result.doubled:,} doubled, {result.disordered:,} out of order"
