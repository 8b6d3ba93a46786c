"""The root of the command line: which commands there are, and where every failure ends.

Commands live in modules of their own. The root knows only their names and one line about each, so that
help and shell completion load none of them. A failure of any kind is turned into one sentence here.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from stentor.cli.failure import EXIT_INTERRUPTED, EXIT_OK, report
from stentor.cli.options import make_app
from stentor.cli.standard import drop_unwritten, writing_output

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final = {
    "serve": "Run a broker until it is stopped.",
    "topic": "Create, list, describe, alter, delete and recover topics.",
    "table": "Create, read, change, watch, dump and load tables.",
    "names": "Register, resolve, list and watch the names of services.",
    "snapshot": "Write a table, as it is at one sequence, to a Parquet, CSV or JSON file.",
    "publish": "Publish messages from arguments, standard input or files.",
    "subscribe": "Print messages as they arrive.",
    "request": "Ask a responder of a topic, and print its answer.",
    "respond": "Answer requests of a topic until stopped.",
    "read": "Print the messages between two positions, then stop.",
    "offsets": "Print the offset of a position in each partition.",
    "queue": "Create, list, describe, redrive and purge work queues.",
    "group": "List, describe, reset and delete consumer groups.",
    "work": "Call a Python function with every message or job, in several workers.",
    "cursor": "List, move and delete the named cursors of a topic.",
    "describe": "Print an overview of a broker and its topics.",
    "broker": "List, drain and forget the brokers of a cluster.",
    "clients": "List the clients that are connected to a broker.",
    "record": "Record topics into a lake of Parquet or Delta files.",
    "replay": "Publish recorded messages again, at the original pace or faster.",
    "sql": "Query topics and their recorded history with SQL.",
    "pipeline": "Compute metrics and snapshots, and compact lakes, on Spark.",
    "bench": "Measure a running broker.",
    "gateway": "Run gateways for clients of other systems.",
    "cluster": "Run a cluster on this machine, to try it out and to break it.",
    "lb-config": "Write a configuration for a load balancer in front of the brokers.",
    "doctor": "Check a data directory and a connection, and say what is wrong.",
}

HELP: Final = """\
Publish/subscribe with no single point of failure.

Start a broker, publish to it and subscribe to it:

\b
  stentor serve
  stentor publish orders.eu "hello" --key 42
  stentor subscribe "orders.*" --start earliest

Exit codes: 0 success, 1 something failed, 2 the command line is wrong, 130 interrupted with Ctrl-C. A failure
prints one sentence on standard error; STENTOR_DEBUG=1 adds the traceback.
"""


class LazyCommands(TyperGroup):
    """Commands that are imported when one of them is called, and not for help about all of them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the shape is typer's
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the shape is typer's
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"stentor.cli.{cmd_name.replace('-', '_')}").app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the shape is typer's
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            ctx.fail(f"There is no command '{name}'." + (f" Did you mean '{close[0]}'?" if close else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever read our output had enough of it (`| head`). That is no failure.
            raise typer.Exit(EXIT_OK) from None


app = make_app(cls=LazyCommands, help=HELP, invoke_without_command=True, add_completion=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from stentor import __version__

        print(f"stentor {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Print help when no command was given; what the help says is in HELP."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; failures are reported on standard error."""
    try:
        return _run(arguments)
    finally:
        drop_unwritten()


def _run(arguments: Sequence[str]) -> int:
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="stentor", standalone_mode=False)
        with writing_output():
            sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as leaving:  # shell completion leaves this way
        return leaving.code if isinstance(leaving.code, int) else EXIT_OK
    except BrokenPipeError:
        return EXIT_OK
    except Exception as error:  # noqa: BLE001 - the one place where everything that went wrong ends
        return report(error)
    return code if isinstance(code, int) else EXIT_OK
