"""Where a broker listens, and what it tells others about it.

A broker with several networks has a listener for each, with a name and an address that those who come by it can reach.
A client is told the addresses of all brokers by the name of the listener that it came in by. The first listener is for
the other brokers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from stentor import limits
from stentor.errors import InvalidArgument
from stentor.transport.listener import listen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from stentor.broker.config import BrokerConfig
    from stentor.transport.connection import Connection

DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
_PORT_MAX: Final = 65_535
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - to find out, not to listen


class ListenerPlan(msgspec.Struct, frozen=True):
    """One listener, as the settings want it."""

    name: str
    host: str
    port: int
    advertised: str = ""  # empty: what it listens on


def plan_listeners(config: BrokerConfig) -> list[ListenerPlan]:
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
        if not _NAME.fullmatch(name) or not host or not port.isdigit() or int(port) > _PORT_MAX:
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


class Listeners:
    """The listening sockets of a broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self.plans = plan_listeners(config)
        self._servers: list[asyncio.AbstractServer] = []
        self._ports: dict[str, int] = {}

    async def open(self, loop: asyncio.AbstractEventLoop, connection: Callable[[str], Connection]) -> None:
        """Listen on all of them; `connection` makes one for whoever comes in by a listener."""
        for plan in self.plans:
            wanted = plan.port or self._ports.get(plan.name, 0)  # opened again, it is where it was
            server, _, port = await listen(loop, _factory(connection, plan.name), plan.host.strip("[]"), wanted)
            self._servers.append(server)
            self._ports[plan.name] = port

    def close(self) -> None:
        """Nobody new comes in."""
        for server in self._servers:
            server.close()

    @property
    def port(self) -> int:
        """Of the first listener; 0 before it listens."""
        return self._ports.get(self.plans[0].name, 0)

    @property
    def address(self) -> str:
        """What other brokers, and clients of the first listener, connect to."""
        return self._address(self.plans[0])

    @property
    def addresses(self) -> dict[str, str]:
        """What is advertised, by the listener's name; nothing for a broker that has only one."""
        return {plan.name: self._address(plan) for plan in self.plans} if len(self.plans) > 1 else {}

    @property
    def local_address(self) -> str:
        """Where this very process reaches itself, whatever is advertised."""
        host = self.plans[0].host
        return f"{_ANYWHERE.get(host.strip('[]'), host)}:{self.port}"

    def _address(self, plan: ListenerPlan) -> str:
        return plan.advertised or f"{plan.host}:{self._ports.get(plan.name, plan.port)}"


def _factory(connection: Callable[[str], Connection], name: str) -> Callable[[], Connection]:
    return lambda: connection(name)
