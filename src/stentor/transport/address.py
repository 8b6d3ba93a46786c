"""Addresses: where a broker, or anything else with a port, is reached.

As text an address is `host:port`. An IPv6 address stands in brackets, `[::1]:7440`, so that its own colons are not
taken for the one before the port. It is also understood without them, as some brokers advertise it: then the last
number is the port.
"""

from __future__ import annotations

import ipaddress
from typing import Final

import msgspec

from stentor.errors import InvalidArgument

DEFAULT_PORT: Final = 7440
"""The port of a broker that names no other."""

PORT_MAX: Final = 65_535  # what TCP has room for


class Address(msgspec.Struct, frozen=True):
    """A host and a port."""

    host: str  # a name or an IP address, without brackets
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Address:
        """The address that a text names; InvalidArgument if it names none. Without a default the port must be there."""
        host, port = split(text)
        if not port and ":" in host and not text.strip().endswith("]"):
            host, port = _split_bare(host)
        if not port and default_port is not None and not text.strip().endswith(":"):
            port = str(default_port)
        if not _is_host(host) or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= PORT_MAX:
            raise InvalidArgument(
                f"{text!r} is not an address.",
                hint="Use host:port, for example localhost:7440. An IPv6 address stands in brackets: [::1]:7440.",
                object=text,
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def split(text: str) -> tuple[str, str]:
    """The host without brackets, and what stands behind its colon; nothing is checked. Colons without brackets are all
    the host's, unless there is one only.
    """
    text = text.strip()
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        return (host, rest[1:]) if closed and rest[:1] in ("", ":") else (text, "")
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, ""


def _split_bare(text: str) -> tuple[str, str]:
    """An IPv6 address without brackets, and the port behind it if the rest is still an address."""
    host, _, port = text.rpartition(":")
    return (host, port) if _is_ipv6(host) else (text, "")


def _is_host(text: str) -> bool:
    """Whether a resolver could take it; it would raise what is no connection error."""
    if ":" in text:
        return _is_ipv6(text)
    try:
        return bool(text.encode("idna")) and "\0" not in text and not any(map(str.isspace, text))
    except UnicodeError:
        return False


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
