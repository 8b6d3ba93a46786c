"""`stentor subscribe`: messages as they arrive."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stentor.cli import formats, options
from stentor.cli.failure import complain
from stentor.cli.output import LiveOutput
from stentor.cli.positions import check_order, parse_position
from stentor.cli.quantities import plural, read_duration
from stentor.core.names import is_pattern
from stentor.errors import Closed, DeadlineExceeded, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor import Client, Event, Message, Subscription

app = options.make_app()

_LOOK_MESSAGES: Final = 1_000  # how many are printed between two looks whether any are missing


MaxLag = Annotated[
    str | None,
    typer.Option(
        metavar="N|DURATION|N,DURATION",
        help="How far behind counts as slow: a number of messages, a duration such as 30s, or both.",
    ),
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def subscribe(
    topics: options.Topics,
    start: options.Start = "latest",
    end: Annotated[
        str | None,
        typer.Option(metavar="POSITION", help="Stop at this position. Without it, print messages until Ctrl-C."),
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N messages.")] = None,
    idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.001, help="Stop after this many seconds without a message.")
    ] = None,
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="|".join(formats.NAMES), help="How to print a message.")
    ] = "value",
    key: Annotated[bool, typer.Option("--key", help="Print the key and a tab before each value.")] = False,
    on_slow: Annotated[
        str,
        typer.Option(
            metavar="catch_up|raise|skip|disconnect",
            help="What to do when this subscriber is further behind than --max-lag.",
        ),
    ] = "catch_up",
    max_lag: MaxLag = None,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print messages as they arrive.

    Press Ctrl-C to stop. A subscriber that falls behind catches up from the log.

    \b
    Examples:
      stentor subscribe orders.eu
      stentor subscribe "orders.*" --start -1h --format table
      stentor subscribe "orders.>" --start earliest --count 10 --json
    """
    name = "json" if json else format
    shape = formats.choose(name, with_key=key)
    first, last = parse_position(start, "--start"), None if end is None else parse_position(end, "--end")
    if last is not None:
        check_order(first, last)
    choices: dict[str, Any] = {
        "start": first,
        "end": last,
        "on_slow": on_slow,
        "max_lag": _max_lag(max_lag),
    }
    with options.connect(url, timeout, "subscribe") as client:
        missing = _missing(client, topics) if last is None else []
        with client.subscribe(topics, **choices) as subscription:
            for topic in missing:
                complain(f"Topic {topic} did not exist, so it was created. Delete it if you mistyped its name.")
            missed = _Missed(subscription)
            try:
                arriving = _arriving(subscription, missed, count, idle)
                print_messages(subscription.close, arriving, shape, formats.heading(name))
            finally:
                missed.report_all()


def _missing(client: Client, topics: list[str]) -> list[str]:
    """Topics that a subscription will make, because it names them."""
    return [topic for topic in topics if not is_pattern(topic) and not client.topics(topic)]


def _max_lag(text: str | None) -> int | timedelta | tuple[int, timedelta] | None:
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    number, _, duration = text.partition(",")
    both = read_duration(duration) if number.isascii() and number.isdigit() else None
    if both is not None:
        return int(number), both
    lag = read_duration(text)
    if lag is None:
        raise InvalidArgument(
            f"--max-lag {text!r} is neither a number of messages nor a duration.",
            hint="Write it like 10000, 30s, or 10000,30s.",
        )
    return lag


def _arriving(subscription: Subscription, missed: _Missed, count: int | None, idle: float | None) -> Iterator[Message]:
    """Messages until enough of them came, or none for too long."""
    messages = iter(subscription) if idle is None else _until_idle(subscription, idle)
    for number, message in enumerate(messages, 1):
        yield message
        if number % _LOOK_MESSAGES == 0:
            missed.report_new()
        if number == count:
            return


def _until_idle(subscription: Subscription, idle: float) -> Iterator[Message]:
    while True:
        try:
            yield subscription.get(timeout=idle)
        except (DeadlineExceeded, Closed):
            return


def print_messages(
    close: Callable[[], None], messages: Iterator[Message], shape: formats.Format, heading: bytes
) -> None:
    """Print messages in a format; `close` ends them when nothing can be printed any more."""
    with LiveOutput(on_failure=close) as output:
        output.write(heading)
        for message in messages:
            output.write(shape(message))


class _Missed:
    """Reports on standard error which messages a subscription could not show."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._compacted: Counter[tuple[str, int]] = Counter()

    def report_new(self) -> None:
        """Report what was skipped since the last call, and that compactions removed messages, once a partition."""
        for event in self._subscription.events():
            place = event.topic, event.partition
            if event.kind == "compacted":
                if place not in self._compacted:
                    complain(f"A compaction removed messages of {_name(place)} before they could be shown.")
                self._compacted[place] += event.messages
            elif event.kind == "skipped":
                complain(_skipped(event))

    def report_all(self) -> None:
        """Report the same at the end, and how many messages compactions removed."""
        self.report_new()
        for place, messages in self._compacted.items():
            complain(f"Compactions removed {plural(messages, 'message')} of {_name(place)} before they could be shown.")


def _name(place: tuple[str, int]) -> str:
    topic, partition = place
    return f"{topic}/{partition}"


def _skipped(event: Event) -> str:
    place = _name((event.topic, event.partition))
    if event.unknown:
        return (
            f"{place} was lost with the memory of its brokers, and begins again at offset {event.next_offset}."
            " How many messages are missing is not known."
        )
    skipped = plural(event.next_offset - event.first_offset, "message")
    return f"{skipped} of {place} were skipped, from offset {event.first_offset} on."
