"""`stentor gateway`: programs that let other clients use Stentor."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli import options

if TYPE_CHECKING:
    from stentor.gateways.zmq.gateway import GatewayOptions

app = options.make_app(invoke_without_command=True, help="Run gateways for clients of other systems.")

ThreeFrames = Annotated[
    bool,
    typer.Option(
        "--three-frames", help="Send three frames instead of five, for clients of the ZeroMQ Guide's models 1 to 4."
    ),
]
ShortSequences = Annotated[
    bool,
    typer.Option(
        "--short-sequences",
        help="Send three frames with sequences of four bytes, for the Guide's Python clients of models 1 to 4.",
    ),
]


@app.callback()
def gateway(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("zmq", context_settings=options.CONTEXT_SETTINGS)
def zmq(
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_531,
            help="First of five ports: snapshots, changes out, changes in, topics out, topics in.",
        ),
    ] = 5556,
    table: Annotated[
        str,
        typer.Option(
            metavar="TABLE",
            help="Table for Clone clients. The gateway creates it if it does not exist.",
            show_default=False,
        ),
    ] = "",
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Topic for SUB and PUSH sockets. Can be repeated."),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    three_frames: ThreeFrames = False,
    short_sequences: ShortSequences = False,
    log_level: Annotated[
        str, typer.Option(metavar="debug|info|warning|error", help="How much to log on standard error.")
    ] = "info",
    log_format: Annotated[str, typer.Option(metavar="text|json", help="Format of the log.")] = "text",
    child: Annotated[bool, typer.Option("--child", hidden=True, help="End when standard input ends.")] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Run a gateway for ZeroMQ clients until it is stopped.

    The gateway serves a table by the Clustered Hashmap Protocol (RFC 12), and topics to SUB and PUSH sockets. When it
    is ready, it prints one line on standard output.

    \b
    Examples:
      stentor gateway zmq --table config
      stentor gateway zmq --port 6000 --host 0.0.0.0 --table config --topic orders --url b1:7440,b2:7440
    """
    from stentor.gateways.zmq.gateway import GatewayOptions

    wanted = GatewayOptions(
        url=url or None,
        host=host,
        port=port,
        table=table,
        topics=topic or [],
        three_frames=three_frames,
        short_sequences=short_sequences,
        timeout=timeout,
    )
    wanted.check()
    _run(wanted, log_level, log_format, child=child)


def _run(wanted: GatewayOptions, log_level: str, log_format: str, *, child: bool) -> None:
    from stentor.broker.config import load_config
    from stentor.gateways.zmq.process import serve
    from stentor.node import configure_logging

    configure_logging(load_config({"log_level": log_level, "log_format": log_format}))
    what = [f"table {wanted.table}"] if wanted.table else []
    what += [f"topic {name}" for name in wanted.topics]
    line = f"stentor zmq gateway ready on tcp://{wanted.host}:{wanted.port}  {', '.join(what)}"
    asyncio.run(serve(wanted, lambda: print(line, flush=True), child=child))
