"""Ports for programs that must be told theirs.

Not from those that the system gives to outgoing connections: between the choice and its use, any connection of any
program could take one of these.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

from stentor.errors import LimitExceeded

_FIRST: Final = 15_000
_LAST: Final = 32_000  # outgoing connections begin at 32768 on Linux, and higher elsewhere
_ATTEMPTS: Final = 200


def free_ports(count: int, host: str) -> list[int]:
    """Ports of a host at which nobody listens."""
    found: list[int] = []
    with ExitStack() as held:
        for _ in range(_ATTEMPTS):
            port = random.SystemRandom().randint(_FIRST, _LAST)
            try:
                held.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise LimitExceeded(f"There are no {count} free ports between {_FIRST} and {_LAST} on {host}.")
