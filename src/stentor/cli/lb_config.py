"""`stentor lb-config`: a configuration for the load balancer in front of the brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from stentor.cli import options
from stentor.cli.failure import complain
from stentor.http.balancer import KINDS, parse_backends, render
from stentor.transport.address import DEFAULT_PORT

app = options.make_app()

_CHECKS: Final = {"haproxy": "haproxy -c -f", "nginx": "nginx -t -c"}


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def lb_config(
    kind: Annotated[
        str, typer.Argument(metavar="|".join(KINDS), help="Load balancer to write for.", autocompletion=_complete_kind)
    ],
    brokers: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT/HTTP_PORT,…",
            help="Addresses of the brokers. Default ports: 7440, and 7441 for health.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address that the load balancer listens on. Default: all addresses.",
            show_default=False,
        ),
    ] = "",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65_535, help="Port that the load balancer listens on.")
    ] = DEFAULT_PORT,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to this file instead of standard output.", show_default=False),
    ] = None,
) -> None:
    """Write a configuration for a load balancer in front of the brokers.

    The load balancer spreads connections over the brokers that answer 200 to /health/ready on their HTTP port. Clients
    that connect through it learn the brokers' own addresses, and keep working when the load balancer fails.

    \b
    Examples:
      stentor lb-config haproxy --brokers 10.0.0.1,10.0.0.2,10.0.0.3 --out haproxy.cfg
      stentor lb-config nginx --brokers a:7440/7441,b:7442/7443 --port 7500
    """
    text = render(kind, parse_backends(brokers), host=host, port=port)
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    complain(f"Wrote {out}. Check it with `{_CHECKS[kind]} {out}`.")
