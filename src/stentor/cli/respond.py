"""`stentor respond`: answer requests by a command or a Python function."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import options
from stentor.core import service_limits
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor import ServiceRequest

    Handler = Callable[[ServiceRequest], Any]

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def respond(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to serve, such as svc.price.")],
    handler: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:FUNCTION]",
            help="A function that takes a request and returns the answer.",
            show_default=False,
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run this for each request: the request is its standard input, what it prints is the answer.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=5_000, help="Work on so many requests at a time.")
    ] = service_limits.RESPONDER_CONCURRENCY,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Answer requests of a topic until stopped.

    All responders of a topic share its requests. Press Ctrl-C to stop: what was begun is finished. A command that does
    not end with exit code 0 has failed; the caller is told what it printed to standard error. A command is not run in a
    shell.

    \b
    Examples:
      stentor respond svc.upper --command 'tr a-z A-Z'
      stentor respond svc.price shop.prices:price --concurrency 4
    """
    if (handler is None) == (command is None):
        raise InvalidArgument("Name either MODULE:FUNCTION or --command.")
    called = _function(handler) if handler is not None else _runner(command or "")
    ended = threading.Event()
    with (
        options.told_to_end(ended),
        options.connect(url, timeout, "respond") as client,
        client.serve(topic, called, concurrency=concurrency),
    ):
        print(f"serving {topic}", flush=True)
        ended.wait()


def _function(place: str) -> Handler:
    """A function, found as Python would find it in this directory."""
    module, colon, name = place.partition(":")
    if not colon or not module or not name:
        raise InvalidArgument(f"{place!r} names no function.", hint="Write it like shop.prices:price.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(
            f"{place} cannot be imported: {error}.", hint="Is it spelt right, and installed?"
        ) from error
    if not callable(found):
        raise InvalidArgument(f"{place} is no function.")
    return found  # type: ignore[no-any-return]


def _runner(command: str) -> Handler:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidArgument(f"--command cannot be read: {error}.") from error
    if not words:
        raise InvalidArgument("--command is empty.")

    def run(request: ServiceRequest) -> bytes:
        done = subprocess.run(  # noqa: S603 - the operator names the command
            words,
            input=request.value or b"",
            capture_output=True,
            check=False,
            timeout=max(0.01, request.time_left()),
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ChildProcessError(f"exit code {done.returncode}" + (f": {said}" if said else ""))
        return done.stdout

    return run
