"""`stentor cursor`: list, move and delete the named cursors of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli import options
from stentor.cli.output import print_json, print_table
from stentor.cli.positions import SYNTAX, parse_position
from stentor.core.names import check_cursor_name, check_topic_name
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor import CursorInfo

app = options.make_app(invoke_without_command=True, help="List, move and delete the named cursors of a topic.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the cursor, such as recorder.")]


@app.callback()
def cursor(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_cursors(
    topic: Topic,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List the named cursors of a topic: where each is, how far behind, who moved it last and when.

    \b
    Examples:
      stentor cursor list orders.eu
      stentor cursor list orders.eu --json
    """
    check_topic_name(topic)
    with options.connect(url, timeout, "cursor list") as client:
        found = client.cursors(topic)
    _print_cursors(found, as_json=json)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def move(
    topic: Topic,
    name: Name,
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTITION:OFFSET", help="Position in one partition, such as 0:1200. May be repeated."),
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="POSITION", help=f"In all partitions: {SYNTAX}.")] = None,
    back: Annotated[bool, typer.Option("--back", help="Allow positions to go back. Else they only advance.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Move a named cursor; a new one is created.

    Everything below its positions counts as done with: retention that waits for the cursor may delete it.

    \b
    Examples:
      stentor cursor move orders.eu billing --to 0:1200 --to 1:1180
      stentor cursor move orders.eu billing --at latest
      stentor cursor move orders.eu billing --at -1h --back
    """
    check_topic_name(topic)
    check_cursor_name(name)
    if bool(to) == bool(at):
        raise InvalidArgument("The new place is missing or named twice.", hint="Use either --to or --at.")
    named = dict(_parse_place(text) for text in to or ())
    position = None if at is None else parse_position(at, "--at")
    with options.connect(url, timeout, "cursor move") as client:
        positions = named if position is None else client.offsets(topic, position)
        client.move_cursor(topic, name, positions, back=back)
        found = [cursor for cursor in client.cursors(topic) if cursor.name == name]
    _print_cursors(found, as_json=json)


def _parse_place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise InvalidArgument(f"--to {text} is no position.", hint="Use PARTITION:OFFSET, such as 0:1200.")
    return int(partition), int(offset)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def delete(
    topic: Topic,
    name: Name,
    yes: options.Yes = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Delete a named cursor.

    Retention that waits for it then waits for a cursor at 0: alter the topic, too.

    \b
    Examples:
      stentor cursor delete orders.eu billing
      stentor cursor delete orders.eu billing --yes
    """
    check_topic_name(topic)
    check_cursor_name(name)
    with options.connect(url, timeout, "cursor delete") as client:
        if not any(cursor.name == name for cursor in client.cursors(topic)):
            look = f"Look with `stentor cursor list {topic}`."
            raise InvalidArgument(f"Topic {topic} has no cursor {name}.", hint=look)
        if not yes:
            options.confirm(f"Delete cursor {name} of {topic}?", f"Deleting cursor {name}")
        client.delete_cursor(topic, name)
    print(f"deleted cursor {name} of {topic}")


def _print_cursors(found: list[CursorInfo], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    headings = ("CURSOR", "PARTITION", "POSITION", "LAG", "MOVED BY", "MOVED AT")
    rows = (
        (
            each.name,
            partition,
            each.positions.get(partition, "-"),
            f"{lag:,}",
            each.moved_by or "-",
            f"{each.moved_at:%Y-%m-%d %H:%M:%S}Z",
        )
        for each in found
        for partition, lag in sorted(each.lag.items())
    )
    print_table(headings, rows, right=headings[1:4])
