"""`stentor names`: where services are."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli import options
from stentor.errors import Closed, DeadlineExceeded, KeyNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import NameChange
    from stentor.client.names import NameWatch

app = options.make_app(invoke_without_command=True, help="Register, resolve, list and watch the names of services.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A path such as billing/1: the service, and which one of it.")
]
Service = Annotated[
    str, typer.Argument(metavar="NAME", help="A service such as billing, or one of it such as billing/1.")
]
AnyName = Annotated[
    str, typer.Argument(metavar="[NAME]", help="A service such as billing. Without it: all.", show_default=False)
]


@app.callback()
def names(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(context_settings=options.CONTEXT_SETTINGS)
def register(
    name: Name,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where the service is, such as 10.0.0.5:80.")],
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="How long the name stays when this command is killed. Default: 10.",
            show_default=False,
        ),
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the name until somebody unregisters it.")] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Say where a service is, for as long as this command runs.

    Press Ctrl-C to stop: the name goes at once. If the command is killed, the name goes after the grace. With --stay
    the command ends at once, and the name stays. A name that is registered already is replaced.

    \b
    Examples:
      stentor names register billing/1 10.0.0.5:80
      stentor names register database 10.0.0.9:5432 --stay
    """
    with _told_to_end() as end, options.connect(url, timeout, "names register") as client:
        client.names.register(name, address, not stay, grace=grace)
        print(f"{name} is at {address}", flush=True)
        if not stay:
            end.wait()


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """SIGTERM ends it in order, as Ctrl-C does."""
    import signal

    end = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: end.set())
    try:
        yield end
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def unregister(name: Name, url: options.Url = None, timeout: options.Timeout = options.TIMEOUT_S) -> None:
    """Remove a name.

    \b
    Examples:
      stentor names unregister database
    """
    with options.connect(url, timeout, "names unregister") as client:
        client.names.unregister(name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def resolve(
    name: Service,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Wait at most this long until somebody registers.", show_default=False
        ),
    ] = None,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print the address of a service, one of them by chance if there are several.

    \b
    Examples:
      stentor names resolve billing
      curl "http://$(stentor names resolve billing --wait 30)/"
    """
    with options.connect(url, timeout, "names resolve") as client:
        try:
            print(client.names.resolve(name, wait=wait))
        except KeyNotFound as error:
            hint = "`stentor names list` shows all there are; --wait waits for it."
            raise KeyNotFound(error.message, hint=hint, object=name) from error


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_names(
    name: AnyName = "",
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List names with their addresses.

    \b
    Examples:
      stentor names list
      stentor names list billing --json
    """
    from stentor.cli.output import print_json, print_table

    with options.connect(url, timeout, "names list") as client:
        found = client.names.resolve_all(name)
    if json:
        print_json(found)
    else:
        print_table(("NAME", "ADDRESS"), list(found.items()))


@app.command(context_settings=options.CONTEXT_SETTINGS)
def watch(
    name: AnyName = "",
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N changes.")] = None,
    idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.001, help="Stop after this many seconds without a change.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each change.")] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print names as services come, move and go. Press Ctrl-C to stop.

    \b
    Examples:
      stentor names watch
      stentor names watch billing --json
    """
    import msgspec

    from stentor.cli.output import LiveOutput

    with (
        options.connect(url, timeout, "names watch") as client,
        client.names.watch(name) as changes,
        LiveOutput(on_failure=client.close) as output,
    ):
        for number, change in enumerate(_arriving(changes, idle), 1):
            output.write(msgspec.json.encode(change) + b"\n" if json else _line(change))
            if number == count:
                return


def _arriving(changes: NameWatch, idle: float | None) -> Iterator[NameChange]:
    while True:
        try:
            yield changes.get(timeout=idle)
        except (Closed, DeadlineExceeded):  # nobody reads our output any more, or nothing happened for long enough
            return


def _line(change: NameChange) -> bytes:
    from stentor.core.names import printable

    if change.new is not None:
        text = f"{'here' if change.old is None else 'moved'}  {change.name}  {change.new}"
    else:
        text = f"{'lost' if change.expired else 'gone'}  {change.name}"
    return printable(text).encode() + b"\n"
