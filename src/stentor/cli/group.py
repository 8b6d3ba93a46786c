"""`stentor group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stentor.cli import options
from stentor.cli.output import print_json, print_table
from stentor.cli.positions import SYNTAX, parse_position
from stentor.core.names import check_group_name
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor import GroupInfo

app = options.make_app(invoke_without_command=True, help="List, describe, reset and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group, such as billing.")]


@app.callback()
def group(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_groups(
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List the consumer groups with the number of their members.

    \b
    Examples:
      stentor group list
      stentor group list --json
    """
    with options.connect(url, timeout, "group list") as client:
        found = client.groups()
    if json:
        print_json(found)
        return
    headings = ("GROUP", "MEMBERS", "TOPICS", "HEAD", "CHANGED AT")
    rows = (
        (
            each.name,
            len(each.members),
            " ".join(sorted({topic for member in each.members for topic in member.topics})) or "-",
            each.head,
            f"{each.changed_at:%Y-%m-%d %H:%M:%S}Z",
        )
        for each in found
    )
    print_table(headings, rows, right=("MEMBERS",))


@app.command(context_settings=options.CONTEXT_SETTINGS)
def describe(
    name: Name,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Show the members of a group, and the owner, position and lag of each partition.

    BEHIND is the age of the first message that is not done with.

    \b
    Examples:
      stentor group describe billing
      stentor group describe billing --json
    """
    check_group_name(name)
    with options.connect(url, timeout, "group describe") as client:
        found = client.describe_group(name)
    _print(found, as_json=json)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def reset(
    name: Name,
    to: Annotated[str | None, typer.Option(metavar="POSITION", help=f"Where the group goes on: {SYNTAX}.")] = None,
    like: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Go on from where this other group is, instead of --to.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only in this topic. May be repeated.")
    ] = None,
    yes: options.Yes = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Let a group go on from another position. It must have no members.

    \b
    Examples:
      stentor group reset billing --to earliest
      stentor group reset billing --to -1h --topic orders.eu --yes
      stentor group reset billing-new --like billing
    """
    check_group_name(name)
    if (to is None) == (like is None):
        raise InvalidArgument("Either --to or --like is needed.", hint="For example --to earliest, or --like billing.")
    position = None if to is None else parse_position(to, "--to")
    with options.connect(url, timeout, "group reset") as client:
        if not yes:
            where = f"to {to}" if like is None else f"to where group {like} is"
            options.confirm(f"Reset group {name} {where}?", f"Resetting group {name}")
        found = client.reset_group(name, position, like=like, topics=topic)
    _print(found, as_json=json)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def delete(
    name: Name,
    yes: options.Yes = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Delete a group and its positions. It must have no members.

    \b
    Examples:
      stentor group delete billing
      stentor group delete billing --yes
    """
    check_group_name(name)
    with options.connect(url, timeout, "group delete") as client:
        client.describe_group(name)
        if not yes:
            options.confirm(f"Delete group {name} and its positions?", f"Deleting group {name}")
        client.delete_group(name)
    print(f"deleted group {name}")


def _print(found: GroupInfo, *, as_json: bool) -> None:
    if as_json:
        told = msgspec.to_builtins(found, builtin_types=(type(found.changed_at),))
        print_json(told)
        return
    print(f"group       {found.name}")
    print(f"head        {found.head}")
    print(f"members     {len(found.members)}")
    print(f"lag         {found.lag:,}")
    if found.unfinished:
        print(f"unfinished  {found.unfinished} transactions")
    names = {member.id: member.instance or member.name for member in found.members}
    if found.partitions:
        print()
    headings = ("TOPIC", "PARTITION", "POSITION", "LAG", "BEHIND", "MEMBER", "CLIENT")
    rows = (
        (
            each.topic,
            each.partition,
            "-" if each.position is None else each.position,
            f"{each.lag:,}",
            f"{each.behind_s:.1f} s" if each.behind_s else "-",
            each.member or "-",
            names.get(each.member, "-"),
        )
        for each in found.partitions
    )
    print_table(headings, rows, right=headings[1:5])
