"""`stentor read`: what topics hold between two positions."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, TypeGuard

import typer

from stentor.cli import formats, options
from stentor.cli.failure import complain
from stentor.cli.positions import SYNTAX, check_order, parse_position
from stentor.cli.subscribe import print_messages
from stentor.core.names import is_pattern, matches
from stentor.errors import Closed, DeadlineExceeded, OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import Client, Message, Subscription
    from stentor.client.positions import Place, Stale

    Spot = tuple[str, int]  # a topic and a partition

_NAMED_MAX: Final = 5

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def read(
    topics: options.Topics,
    start: options.Start = "earliest",
    end: Annotated[
        str,
        typer.Option(metavar="POSITION", help=f"Where to stop; the message at this position is not printed: {SYNTAX}."),
    ] = "now",
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most N messages.")] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0, help="Read only this partition.")] = None,
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="|".join(formats.NAMES), help="How to print a message.")
    ] = "value",
    key: Annotated[bool, typer.Option("--key", help="Print the key and a tab before each value.")] = False,
    stale: options.Stale = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print the messages between two positions, then stop.

    By default it reads up to the last message that is committed when it starts. It fails if no broker knows for certain
    within --timeout where that is; --stale allows a read that may end earlier. Messages keep their order within a
    partition. Dates without a zone are local time.

    \b
    Examples:
      stentor read orders.eu
      stentor read orders.eu --start last:10 --format table
      stentor read orders.eu --start 2026-01-31T12:00Z --end "15m ago"
      stentor read orders.eu --json | stentor publish orders.copy --json
    """
    name = "json" if json else format
    shape, heading = formats.choose(name, with_key=key), formats.heading(name)
    first, last = parse_position(start, "--start"), parse_position(end, "--end")
    check_order(first, last)
    allowed: Stale = "allow" if stale else "refuse"
    with options.connect(url, timeout, "read") as client:
        ends = _committed_ends(client, topics, partition, allowed)
        _check_start(client, first, ends)
        if _is_beyond(last, ends):
            each = _EachPartition(
                client, first, {place: min(last, end) for place, end in ends.items()}, timeout, allowed
            )
            print_messages(each.close, islice(each, count), shape, heading)
            return
        with client.subscribe(topics, start=first, end=last, partition=partition, stale=allowed) as subscription:
            print_messages(subscription.close, islice(_until_end(subscription, timeout), count), shape, heading)


def _committed_ends(client: Client, topics: list[str], partition: int | None, stale: Stale) -> dict[Spot, int]:
    """Where each partition ends now. A topic that is named must be there: a read makes none."""
    found = client.find_offsets(topics, "latest", stale=stale)
    unsure = sorted(name for name, topic in found.items() if not topic.sure)
    if unsure:
        more = f" and {len(unsure) - _NAMED_MAX} more" if len(unsure) > _NAMED_MAX else ""
        complain(f"More messages may be committed than were read from {', '.join(unsure[:_NAMED_MAX])}{more}.")
    for pattern in filter(is_pattern, topics):
        if not any(matches(pattern, name) for name in found):
            complain(f"No topic matches {pattern!r}.")
    return {
        (name, index): end
        for name, topic in sorted(found.items())
        for index, end in sorted(topic.offsets.items())
        if partition in (None, index)
    }


def _check_start(client: Client, first: Place, ends: dict[Spot, int]) -> None:
    """An offset that is not there yet is refused, as a subscription is."""
    for (topic, partition), end in ends.items():
        if isinstance(first, int) and first > end:
            start = client.offsets(topic, "earliest")[partition]
            raise OffsetOutOfRange(
                f"{topic}/{partition} holds offsets {start} to {end}; {first} was asked for.",
                hint="Start at 'earliest' or 'latest', or at an offset in that range.",
                operation="read",
                object=f"{topic}/{partition}",
                start=start,
                end=end,
            )


def _is_beyond(last: Place, ends: dict[Spot, int]) -> TypeGuard[int]:
    """Whether a partition ends before the offset where the read should: nobody waits for what is not there yet."""
    short = [
        f"{topic}/{index} at {end}" for (topic, index), end in ends.items() if isinstance(last, int) and end < last
    ]
    if short:
        more = f" and {len(short) - _NAMED_MAX} more" if len(short) > _NAMED_MAX else ""
        complain(f"Offset {last} does not exist yet. The read ends earlier: {', '.join(short[:_NAMED_MAX])}{more}.")
    return bool(short)


class _EachPartition:
    """One partition after the other, each up to an end of its own."""

    def __init__(self, client: Client, first: Place, ends: dict[Spot, int], timeout: float, stale: Stale) -> None:
        self._client = client
        self._first = first
        self._ends = ends
        self._timeout = timeout
        self._stale: Stale = stale
        self._closed = False
        self._current: Subscription | None = None

    def __iter__(self) -> Iterator[Message]:
        for (topic, partition), end in self._ends.items():
            if self._closed:
                return
            with self._client.subscribe(
                topic, start=self._first, end=end, partition=partition, stale=self._stale
            ) as subscription:
                self._current = subscription
                yield from _until_end(subscription, self._timeout)

    def close(self) -> None:
        """End it, from any thread."""
        self._closed = True
        if self._current is not None:
            self._current.close()


def _until_end(subscription: Subscription, timeout: float) -> Iterator[Message]:
    """Everything up to the end; unlike a live subscription, it has no reason to wait for long."""
    while True:
        try:
            yield subscription.get(timeout=timeout)
        except Closed:
            return
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"No message arrived for {timeout:g} s, and the read is not at its end.",
                hint="Check with `stentor doctor` that the broker runs, or wait longer with --timeout.",
                operation="read",
            ) from error
