"""`stentor offsets`: from a position to offsets."""

from __future__ import annotations

from typing import Annotated

import typer

from stentor.cli import options
from stentor.cli.failure import complain
from stentor.cli.output import print_json, print_table
from stentor.cli.positions import SYNTAX, parse_position
from stentor.core.names import check_topic_name

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def offsets(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    at: Annotated[str, typer.Option(metavar="POSITION", help=f"The position: {SYNTAX}.")] = "latest",
    stale: options.Stale = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print the offset of a position in each partition.

    \b
    Examples:
      stentor offsets orders.eu
      stentor offsets orders.eu --at -1h
      stentor offsets orders.eu --at 2026-01-31T12:00Z --json
    """
    check_topic_name(topic)
    position = parse_position(at, "--at")
    with options.connect(url, timeout, "offsets") as client:
        found = client.offsets(topic, position, stale="allow" if stale else "refuse")
    if not found.sure:
        complain(f"The end of {topic} is not certain: more messages may be committed.")
    if json:
        print_json({str(partition): offset for partition, offset in sorted(found.items())})
    else:
        print_table(("PARTITION", "OFFSET"), sorted(found.items()), right=("PARTITION", "OFFSET"))
