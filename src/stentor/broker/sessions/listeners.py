"""Where a broker listens, and what it tells others about it.

A broker with several networks has a listener for each, with a name and an address that those who come by it can reach.
A client is told the addresses of all brokers by the name of the listener that it came in by. The first listener is for
the other brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stentor.broker.listener_plans import ListenerPlan, ListenerSettings, plan_listeners
from stentor.transport.listener import listen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from stentor.transport.connection import Connection

_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - to find out, not to listen


class Listeners:
    """The listening sockets of a broker."""

    def __init__(self, config: ListenerSettings) -> None:
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
