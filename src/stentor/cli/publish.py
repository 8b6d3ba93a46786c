"""`stentor publish`: messages from arguments, standard input or files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import options
from stentor.cli.failure import complain
from stentor.cli.output import print_json
from stentor.cli.progress import InputProgress
from stentor.cli.publish_input import PublishInput, Sending, open_feed
from stentor.cli.quantities import plural, show_bytes, show_seconds
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor import Client

app = options.make_app()

Values = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="VALUE",
        help="Messages to publish. Without them, each line of --file or standard input is a message.",
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Publish each line of this file. Repeat it for more files; - is standard input.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Key of the messages. Messages with the same key go to the same partition."),
]
Headers = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Header of the messages. Repeat it for more headers.")
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, such as orders.eu.")],
    values: Values = None,
    file: Files = None,
    whole: Annotated[bool, typer.Option("--whole", help="Publish each file as one message.")] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Read JSON objects with value, key, headers and timestamp, and print JSON."),
    ] = False,
    key: Key = None,
    header: Headers = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Publish to this partition, whatever the key.")
    ] = None,
    ack: options.Ack = "all",
    compression: Annotated[str | None, typer.Option(metavar="lz4|zstd", help="Compress batches.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Publish messages from arguments, standard input or files.

    Messages from arguments are published one by one, and the command prints the offset of each. Lines are sent in
    batches, and the command prints how many were acknowledged. In JSON, bytes that are not text are
    {"base64": "..."}.

    \b
    Examples:
      stentor publish orders.eu "hello" --key 42 --header source=shop
      tail -f app.log | stentor publish logs.app
      stentor publish orders.eu --file orders.jsonl --json
      echo '{"key": "42", "value": "hi", "headers": {"a": "b"}}' | stentor publish orders.eu --json
    """
    if values and file:
        raise InvalidArgument("Values and --file cannot be used together.", hint="Use one of them.")
    if whole and not file:
        raise InvalidArgument("--whole needs --file.", hint="Name the file to publish as one message.")
    sending = Sending(
        topic=topic, key=_bytes(key), headers=_headers(header or []), partition=partition, as_json=json, whole=whole
    )
    with options.connect(url, timeout, "publish") as client:
        if values:
            _publish_values(client, sending, values, {"ack": ack}, quiet=quiet)
        else:
            _publish_feed(client, sending, file or [], {"ack": ack, "compression": compression}, quiet=quiet)


def _bytes(text: str | None) -> bytes | None:
    """An argument as it was typed, also where it is not UTF-8."""
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _headers(pairs: list[str]) -> list[tuple[str, bytes]]:
    headers = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"--header {pair!r} has no name or no value.", hint="Write it like source=shop.")
        headers.append((name, value.encode("utf-8", "surrogateescape")))
    return headers


def _publish_values(
    client: Client, sending: Sending, values: list[str], settings: dict[str, Any], *, quiet: bool
) -> None:
    """Publish arguments one by one and say where each one is."""
    for number, text in enumerate(values, 1):
        value = text.encode("utf-8", "surrogateescape")
        entry = sending.entry(value, f"value {number}")
        receipt = client.publish(sending.topic, partition=sending.partition, **entry, **settings)
        if quiet:
            continue
        if sending.as_json:
            print_json({"topic": receipt.topic, "partition": receipt.partition, "offset": receipt.offset})
        else:
            print(f"{receipt.topic} partition {receipt.partition} offset {receipt.offset}")


def _publish_feed(
    client: Client, sending: Sending, files: list[Path], settings: dict[str, Any], *, quiet: bool
) -> None:
    """Publish lines or files in batches and say how many were acknowledged."""
    started = time.monotonic()
    with open_feed(files, sending) as feed, InputProgress(feed.bytes_total) as progress:
        _explain_terminal(feed)
        with client.producer(sending.topic, **settings) as producer:
            try:
                for messages, size in feed.send_through(producer):
                    progress.show(messages, size)
            except KeyboardInterrupt:
                # What was handed over is not taken back: see it through, then say how far it got.
                producer.flush()
                complain(f"Interrupted after {plural(feed.messages, 'message')}, all acknowledged.")
                raise
    if not quiet:
        _print_result(sending, feed, time.monotonic() - started)


def _explain_terminal(feed: PublishInput) -> None:
    if feed.is_terminal:
        print("Each line is a message. Press Ctrl-D to end.", file=sys.stderr, flush=True)


def _print_result(sending: Sending, feed: PublishInput, seconds: float) -> None:
    if sending.as_json:
        result = {"topic": sending.topic, "messages": feed.messages, "bytes": feed.bytes, "seconds": round(seconds, 3)}
        print_json(result)
    else:
        size, spent = show_bytes(feed.bytes), show_seconds(seconds)
        print(f"published {plural(feed.messages, 'message')} to {sending.topic} ({size} in {spent})")
