"""The options that all commands share, and the connection they lead to."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stentor.cli.positions import SYNTAX
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    import stentor

TIMEOUT_S: Final = 30.0

CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="STENTOR_URL",
        show_envvar=True,
        metavar="URL",
        help="Address of the broker: stentor://host:port, host:port, or several with commas. Default: localhost:7440.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.001, help="Wait at most this long for a connection or an answer."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Stale = Annotated[
    bool,
    typer.Option(
        "--stale", help="When no broker knows for certain where the messages end, read those known to be committed."
    ),
]
Ack = Annotated[
    str,
    typer.Option(
        metavar="none|head|quorum|all", help="Which copies must have a message before it counts as published."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC", help="Topics or patterns: orders.eu, 'orders.*' (one part), 'orders.>' (the rest)."
    ),
]
Start = Annotated[str, typer.Option("--start", metavar="POSITION", help=f"Where to start: {SYNTAX}.")]


def make_app(*, add_completion: bool = False, **settings: Any) -> typer.Typer:
    """A command or a group of them. Plain text help: quick to print, and the same in a pipe."""
    return typer.Typer(
        add_completion=add_completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT_SETTINGS,
        **settings,
    )


def confirm(question: str, doing: str) -> None:
    """Ask a person; without one, `--yes` must have been said."""
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{doing} needs a confirmation, and there is no terminal to ask on.", hint="Add --yes.")
    typer.confirm(question, abort=True)


@contextlib.contextmanager
def told_to_end(end: threading.Event) -> Iterator[None]:
    """SIGTERM sets this, so that the command ends in order, as with Ctrl-C."""
    import signal

    before = signal.signal(signal.SIGTERM, lambda *_: end.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def connect(url: str | None, timeout: float, command: str, *, warnings: bool = False) -> stentor.Client:
    """Connect under a name that tells an operator which command of whom this is.

    With `warnings`, the client's log lines of that level are printed on standard error: for commands that run on after
    something went wrong.
    """
    import logging
    import socket

    import stentor

    if os.environ.get("STENTOR_DEBUG") == "1":
        logging.basicConfig(level=logging.DEBUG)
    elif warnings:
        from stentor.cli.log_lines import print_warnings

        print_warnings()
    else:
        # What went wrong arrives here as an error and is printed once, as a sentence.
        logging.getLogger("stentor").addHandler(logging.NullHandler())
    name = f"stentor {command}@{socket.gethostname()}:{os.getpid()}"
    return stentor.connect(url, name=name, timeout=timeout)
