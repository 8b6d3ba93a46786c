"""A thousand clients in one process: `python -m tests.cluster.crowd URL TOPIC COUNT`.

They live apart from the test, so that what it measures meanwhile is the brokers' doing and not the crowd's. Each
line of the standard input makes every client publish once; each answer is a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Self

import uvloop

from stentor.client.async_client import AsyncClient, connect_async
from stentor.client.link import BrokerLink
from stentor.transport.address import Address

TIMEOUT_S = 30.0
_AT_ONCE = 50  # clients that connect beside each other when the crowd gathers: that is no storm yet


class Crowd:
    """The test's side: starts the process and speaks to it."""

    def __init__(self, url: str, topic: str, count: int) -> None:
        command = [sys.executable, "-m", "tests.cluster.crowd", url, topic, str(count)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a thousand warnings that a broker is gone
            text=True,
        )

    def hear(self, timeout: float = TIMEOUT_S) -> Any:
        """The next answer."""
        assert self._process.stdout is not None
        said, _, _ = select.select([self._process.stdout], [], [], timeout)
        assert said, f"the crowd said nothing for {timeout:g} s"
        line = self._process.stdout.readline()
        assert line, "the crowd is gone"
        return json.loads(line)

    def publish(self) -> None:
        """Let every client publish once; `hear` waits for the outcome."""
        assert self._process.stdin is not None
        self._process.stdin.write("publish\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Attempts:
    """How many connections were tried, and how many were made."""

    tried: int = 0
    made: int = 0

    def watch(self) -> None:
        """Count what every link of this process does."""
        dial = BrokerLink._dial

        async def counted(link: BrokerLink, where: Address) -> None:
            self.tried += 1
            await dial(link, where)
            self.made += 1

        BrokerLink._dial = counted  # type: ignore[method-assign]


async def gather(url: str, count: int) -> list[AsyncClient]:
    """All clients, a few at a time."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> AsyncClient:
        async with turn:
            return await connect_async(url, name=f"crowd-{number}", timeout=TIMEOUT_S)

    return list(await asyncio.gather(*(one(number) for number in range(count))))


async def publish_all(clients: list[AsyncClient], topic: str) -> list[float]:
    """When each client's publish was acknowledged."""

    async def one(client: AsyncClient) -> float:
        await client.publish(topic, client.name, partition=0)
        return time.monotonic()

    return await asyncio.gather(*(one(client) for client in clients))


async def main(url: str, topic: str, count: int) -> None:
    """Gather, then publish whenever a line comes."""
    attempts = Attempts()
    attempts.watch()
    clients = await gather(url, count)
    loop = asyncio.get_running_loop()
    while True:
        answered = await publish_all(clients, topic)
        homes = [client._core.home.link.address if client._core.home.link else "" for client in clients]
        report = {"answered": answered, "homes": homes, "tried": attempts.tried, "made": attempts.made}
        attempts.tried = attempts.made = 0
        print(json.dumps(report), flush=True)
        if not await loop.run_in_executor(None, sys.stdin.readline):
            return


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
