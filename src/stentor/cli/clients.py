"""`stentor clients`: who is connected."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from stentor.cli import options
from stentor.cli.output import print_json, print_table
from stentor.cli.quantities import show_bytes, show_seconds

if TYPE_CHECKING:
    from stentor import ClientInfo

app = options.make_app()

_HEADINGS = (
    "NAME",
    "ADDRESS",
    "LIBRARY",
    "CONNECTED",
    "PUBLISHES",
    "SUBSCRIBES",
    "RECEIVED",
    "SENT",
    "LAG",
    "LAG TIME",
)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def clients(json: options.Json = False, url: options.Url = None, timeout: options.Timeout = options.TIMEOUT_S) -> None:
    """List the clients that are connected to a broker.

    RECEIVED and SENT count the bytes that the broker received from the client and sent to it. LAG is how many messages
    the client's subscriptions are behind, and LAG TIME the age of the first of these messages. The list includes this
    command itself.
    """
    with options.connect(url, timeout, "clients") as client:
        found = client.clients()
    if json:
        print_json([msgspec.structs.asdict(client) for client in found])  # also what is nought
    else:
        print_table(_HEADINGS, map(_row, found), right=("CONNECTED", "RECEIVED", "SENT", "LAG", "LAG TIME"))


def _row(client: ClientInfo) -> tuple[str, ...]:
    connected_s = datetime.now(UTC).timestamp() - client.connected_at_us / 1e6
    return (
        client.name or "-",
        client.address,
        client.library or "-",
        show_seconds(max(0.0, connected_s)),
        ",".join(client.publishing) or "-",
        ",".join(client.subscriptions) or "-",
        show_bytes(client.bytes_in),
        show_bytes(client.bytes_out),
        str(client.lag) if client.subscriptions else "-",
        show_seconds(client.lag_s) if client.subscriptions else "-",
    )
