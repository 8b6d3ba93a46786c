"""Listeners as the settings want them: names, hosts, ports, and what is told to others."""

from __future__ import annotations

import re
from typing import Final, Protocol

import msgspec

from stentor import limits
from stentor.errors import InvalidArgument
from stentor.transport.address import PORT_MAX

DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")


class ListenerSettings(Protocol):
    """The settings that say where a broker listens."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def advertised_address(self) -> str: ...
    @property
    def listeners(self) -> str: ...
    @property
    def advertised_addresses(self) -> str: ...


class ListenerPlan(msgspec.Struct, frozen=True):
    """One listener, as the settings want it."""

    name: str
    host: str
    port: int
    advertised: str = ""  # empty: what it listens on


def plan_listeners(config: ListenerSettings) -> list[ListenerPlan]:
    """All listeners of a broker, the one for other brokers first; InvalidArgument for settings that make no sense."""
    if not config.listeners:
        if config.advertised_addresses:
            raise _wrong("advertised_addresses", "needs listeners; a broker with one has advertised_address")
        return [ListenerPlan(DEFAULT, config.host, config.port, config.advertised_address)]
    if config.advertised_address:
        raise _wrong("advertised_address", "is for a broker without listeners; name them in advertised_addresses")
    listening = _named("listeners", config.listeners)
    advertised = _named("advertised_addresses", config.advertised_addresses) if config.advertised_addresses else {}
    if strange := sorted(set(advertised) - set(listening)):
        raise _wrong("advertised_addresses", f"names {strange[0]}, which is no listener")
    if len(listening) > limits.LISTENERS_MAX:
        raise _wrong("listeners", f"has more than {limits.LISTENERS_MAX}")
    plans = []
    for name, (host, port) in listening.items():
        told = advertised.get(name)
        if told is not None and not told[1]:
            raise _wrong("advertised_addresses", f"gives {name} no port")
        plans.append(ListenerPlan(name, host, port, "" if told is None else f"{told[0]}:{told[1]}"))
    return plans


def _named(setting: str, text: str) -> dict[str, tuple[str, int]]:
    """Hosts and ports by name, out of "internal=10.0.0.1:7440, public=0.0.0.0:7450"."""
    found: dict[str, tuple[str, int]] = {}
    for part in text.split(","):
        name, _, address = (piece.strip() for piece in part.partition("="))
        host, _, port = address.rpartition(":")
        if not _NAME.fullmatch(name) or not host or not port.isdigit() or int(port) > PORT_MAX:
            raise _wrong(setting, f"has {part.strip()!r}, which is not name=host:port")
        if name in found:
            raise _wrong(setting, f"names {name} twice")
        found[name] = host, int(port)
    return found


def _wrong(setting: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"A setting of the broker is wrong: {setting} {what}.",
        hint="See docs/configuration.md or `stentor serve --help`.",
        object=setting,
    )
