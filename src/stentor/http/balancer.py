"""Configurations for load balancers that spread clients over brokers and ask each whether it is ready.

A balancer is for reaching *a* broker. What a client learns there names every broker, and it connects to those that
hold its partitions directly; so a balancer carries little, and clients outlive its death.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from stentor.errors import InvalidArgument
from stentor.transport.address import DEFAULT_PORT, PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_HTTP_PORT: Final = 7441
READY_PATH: Final = "/health/ready"

_BACKEND: Final = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::(?P<port>\d+))?(?:/(?P<http_port>\d+))?", re.ASCII
)


class Backend(NamedTuple):
    """A broker as a balancer sees it."""

    host: str
    port: int = DEFAULT_PORT
    http_port: int = DEFAULT_HTTP_PORT

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def parse_backends(text: str) -> list[Backend]:
    """Brokers out of "host:port/http_port,…"; ports that are not named are 7440 and 7441."""
    found: list[Backend] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        matched = _BACKEND.fullmatch(part)
        ports = (
            (int(matched["port"] or DEFAULT_PORT), int(matched["http_port"] or DEFAULT_HTTP_PORT)) if matched else ()
        )
        if matched is None or not all(0 < port <= PORT_MAX for port in ports):
            raise InvalidArgument(
                f"{part!r} is not a broker's address.",
                hint="Use host:port or host:port/http_port, for example 10.0.0.1:7440/7441.",
            )
        found.append(Backend(matched["host"], *ports))
    if not found:
        raise InvalidArgument("No broker is named.", hint="Use --brokers host:port/http_port,…")
    if len({broker.address for broker in found}) < len(found):
        raise InvalidArgument("A broker is named twice.", hint="Name each once in --brokers.")
    return found


def render(kind: str, brokers: Sequence[Backend], *, host: str = "", port: int = DEFAULT_PORT) -> str:
    """The configuration for one of KINDS; the balancer listens on `host` (empty: everywhere) and `port`."""
    if kind not in KINDS:
        raise InvalidArgument(f"There is no configuration for {kind!r}.", hint=f"Use {' or '.join(KINDS)}.")
    return KINDS[kind](brokers, host, port)


_HAPROXY: Final = """\
# HAProxy in front of Stentor, by TCP. A broker gets clients only while it says that it is ready.
# Check with `haproxy -c -f FILE`, start with `haproxy -f FILE`. Start two, and give clients both addresses.

global
    maxconn 10000
    # If the system does not allow that many open files, start with fewer.
    no strict-limits

defaults
    mode tcp
    # Clients and brokers send something every few seconds. A side that is silent for a minute is gone.
    timeout client 1m
    timeout server 1m
    timeout connect 2s
    timeout check 1s
    # If a broker does not accept the connection, try the next one.
    retries 3
    option redispatch 1

frontend stentor
    bind {bind}
    default_backend brokers

backend brokers
    balance leastconn
    option httpchk
    http-check send meth HEAD uri {ready}
    http-check expect status 200
    # Close connections to a broker that is no longer ready: clients reconnect and get another broker.
    default-server check inter 500ms fastinter 250ms fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""


def _haproxy(brokers: Sequence[Backend], host: str, port: int) -> str:
    servers = [
        f"    server broker-{index} {broker.address} port {broker.http_port}" for index, broker in enumerate(brokers, 1)
    ]
    return _HAPROXY.format(bind=f"{host or '*'}:{port}", ready=READY_PATH, servers="\n".join(servers))


_NGINX: Final = """\
# nginx in front of Stentor, by TCP. Check with `nginx -t -c FILE`, start with `nginx -c FILE`. It needs nginx's stream
# module, which is a package of its own in Debian: libnginx-mod-stream.
#
# nginx notices by itself that a broker accepts no connections, and leaves it out for a while. Only NGINX Plus can ask
# a broker whether it is ready: with it, remove the # from the lines below. HAProxy always asks.

worker_processes auto;
include /etc/nginx/modules-enabled/*.conf;

events {{
    worker_connections 10000;
}}

stream {{
    upstream brokers {{
        least_conn;
{servers}
    }}

    # match ready {{
    #     send "HEAD {ready} HTTP/1.0\\r\\n\\r\\n";
    #     expect ~ " 200 ";
    # }}

    server {{
        listen {listen};
        proxy_pass brokers;
        proxy_connect_timeout 2s;
        proxy_next_upstream on;
        # Clients and brokers send something every few seconds. A side that is silent for a minute is gone.
        proxy_timeout 1m;
        # health_check port={http_port} interval=1 fails=1 passes=1 match=ready;
    }}
}}
"""


def _nginx(brokers: Sequence[Backend], host: str, port: int) -> str:
    servers = [f"        server {broker.address} max_fails=1 fail_timeout=2s;" for broker in brokers]
    return _NGINX.format(
        servers="\n".join(servers),
        ready=READY_PATH,
        listen=f"{host}:{port}" if host else port,
        http_port=brokers[0].http_port,
    )


KINDS: Final[dict[str, Callable[[Sequence[Backend], str, int], str]]] = {"haproxy": _haproxy, "nginx": _nginx}
