"""`stentor request`: ask a responder, print its answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli import options
from stentor.cli.output import print_json
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor import Reply

app = options.make_app()

Headers = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Header of the request. Repeat it for more headers.")
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def request(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that responders serve, such as svc.price.")],
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="What to ask. - takes standard input.", show_default=False)
    ] = None,
    header: Headers = None,
    idempotent: Annotated[
        bool,
        typer.Option(
            "--idempotent", help="The request may be handled twice: ask another responder if the first one is lost."
        ),
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the parts of a streamed answer as they come, one a line.")
    ] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Ask a responder of a topic, and print its answer.

    The command fails at once if nobody serves the topic, and prints the handler's own message if the handler fails.

    \b
    Examples:
      stentor request svc.price apples
      stentor request svc.report "2024" --stream --timeout 60
      stentor request svc.resize - < photo.jpg > small.jpg
    """
    asked = sys.stdin.buffer.read() if value == "-" else _bytes(value)
    headers = _headers(header or [])
    with options.connect(url, timeout, "request") as client:
        if stream:
            for part in client.request_stream(topic, asked, headers=headers, timeout=timeout, idempotent=idempotent):
                _show(part, as_json=json, end=b"\n")
        else:
            reply = client.request(topic, asked, headers=headers, timeout=timeout, idempotent=idempotent)
            _show(reply, as_json=json, end=b"\n" if sys.stdout.isatty() else b"")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _headers(pairs: list[str]) -> list[tuple[str, bytes]]:
    headers = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"--header {pair!r} has no name or no value.", hint="Write it like source=shop.")
        headers.append((name, value.encode("utf-8", "surrogateescape")))
    return headers


def _show(reply: Reply, *, as_json: bool, end: bytes) -> None:
    assert not isinstance(reply.value, str)
    if as_json:
        headers = {name: (value or b"").decode(errors="replace") for name, value in reply.headers}
        value = None if reply.value is None else reply.value.decode(errors="replace")
        print_json({"value": value, "headers": headers, "correlation": reply.correlation})
        return
    sys.stdout.buffer.write((reply.value or b"") + end)
    sys.stdout.flush()
