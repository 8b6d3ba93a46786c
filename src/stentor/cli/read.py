"""`stentor read`: what topics hold between two positions."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli import formats, options
from stentor.cli.positions import SYNTAX, parse_position
from stentor.cli.subscribe import print_messages
from stentor.errors import Closed, DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import Message, Subscription

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def read(
    topics: options.Topics,
    start: options.Start = "earliest",
    end: Annotated[str, typer.Option(metavar="POSITION", help=f"Where to stop, exclusive: {SYNTAX}.")] = "now",
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most N messages.")] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this partition.")] = None,
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="|".join(formats.NAMES), help="How to print a message.")
    ] = "value",
    key: Annotated[bool, typer.Option("--key", help="Print the key and a tab before each value.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print what topics hold between two positions, then end.

    Order holds within a partition. Dates without a zone are local time.

    \b
    Examples:
      stentor read orders.eu
      stentor read orders.eu --start last:10 --format table
      stentor read orders.eu --start 2026-01-31T12:00Z --end "15m ago"
      stentor read orders.eu --json | stentor publish orders.copy --json
    """
    name = "json" if json else format
    shape = formats.choose(name, with_key=key)
    first, last = parse_position(start, "--start"), parse_position(end, "--end")
    with (
        options.connect(url, timeout, "read") as client,
        client.subscribe(topics, start=first, end=last, partition=partition) as subscription,
    ):
        print_messages(islice(_until_end(subscription, timeout), count), shape, formats.heading(name))


def _until_end(subscription: Subscription, timeout: float) -> Iterator[Message]:
    """Everything up to the end; unlike a live subscription, it has no reason to wait for long."""
    while True:
        try:
            yield subscription.get(timeout=timeout)
        except Closed:
            return
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"Nothing came for {timeout:g} s, and the end is not reached.",
                hint="Is the broker still running? `stentor doctor` tells; --timeout waits longer.",
                operation="read",
            ) from error
