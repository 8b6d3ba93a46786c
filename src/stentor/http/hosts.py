"""Which names HTTP may be asked by.

A page in somebody's browser can make its own name point to a broker's address, and then read what the broker answers to
that name (DNS rebinding). So pages that tell something answer only to names that are the broker's: addresses in digits,
which no name can stand for, those of this machine, those that the broker advertises, and those that an operator adds.
Health is told to everyone: load balancers ask by any name, and learn only yes or no.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Final

from stentor.transport.address import split

if TYPE_CHECKING:
    from collections.abc import Iterable

ANY: Final = "*"
_LOCAL: Final = ("localhost", "localhost.localdomain")


def host_of(address: str) -> str:
    """The host of "host", "host:port" or "[address]:port", in small letters."""
    return split(address)[0].rstrip(".").lower()


class Hosts:
    """The names of one broker."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._names = frozenset(map(host_of, (*addresses, socket.gethostname(), *_LOCAL))) - {""}

    def allows(self, header: str | None) -> bool:
        """Whether a request with this Host header is answered. Browsers always send one."""
        if header is None or ANY in self._names:
            return True
        host = host_of(header)
        return host in self._names or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
