"""Requests on a simulated cluster: responders that come, die and stand still, and what must hold of every request.

Callers and responders are the product's own clients, each a process of its own. Handlers count what they see.

- A request that is not idempotent is seen by one handler at most, once.
- One that was refused with NoResponders or NotHandled was seen by none, unless it is idempotent.
- One that was answered has the right answer, from a handler that has seen it.
- Every call ends by its deadline, and a moment after the faults have ended every request is answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.virtual.world import SECOND

from stentor.errors import StentorError
from stentor.request_errors import NoResponders, NotHandled

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster
    from tests.virtual.world import Process

TOPIC = "svc.virtual"
RESPONDERS = 3
CALLERS = 2
TIMEOUT_S = 4.0
LATE_S = 2.0  # a caller's process may be slow to notice its own deadline


class RequestLoad:
    """Callers and responders."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world, self.require = cluster, cluster.world, cluster.world.require
        self.responders: list[Process] = []
        self.seen: Counter[bytes] = Counter()
        self.answered = 0
        self.refused = 0
        self._enough: int | None = None  # answers, once the faults have ended
        self._numbers = 0

    def begin(self) -> None:
        for _ in range(RESPONDERS):
            self.add()
        for number in range(CALLERS):
            self.cluster.process(f"caller{number}").run(self._ask(f"caller{number}", idempotent=number == 0))

    def add(self) -> None:
        process = self.cluster.process(f"responder{self._numbers}")
        self._numbers += 1
        self.responders.append(process)
        process.run(self._serve(process.name))

    async def _serve(self, name: str) -> None:
        rng = self.world.rng

        async def handler(request: Any) -> bytes:
            self.seen[request.value] += 1
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.05]))
            return b"answer to " + request.value

        while True:
            try:
                client = await self.cluster.client(name)
                service = await client.serve(TOPIC, handler, concurrency=2, timeout=5)
                break
            except StentorError:
                await asyncio.sleep(0.1)
        await service.wait()

    async def _ask(self, name: str, *, idempotent: bool) -> None:
        rng, number, client = self.world.rng, 0, None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(rng.choice([0, 0.001, 0.02, 0.1]))
            number += 1
            value = f"{name}:{number}".encode()
            began = loop.time()
            try:
                client = client or await self.cluster.client(name)
                began = loop.time()
                reply = await client.request(TOPIC, value, timeout=TIMEOUT_S, idempotent=idempotent)
            except StentorError as error:
                self.refused += 1
                unseen = isinstance(error, NoResponders | NotHandled) and not idempotent
                self.require(not unseen or not self.seen[value], "a handler has seen what was refused", value)
            else:
                self.answered += 1
                self.require(reply.value == b"answer to " + value, "a wrong answer", value, reply.value)
                self.require(self.seen[value] > 0, "an answer without a handler", value)
            self.require(idempotent or self.seen[value] <= 1, "a request was handled twice", value)
            self.require(loop.time() - began < TIMEOUT_S + LATE_S, "a request did not end in time", value)

    def fail(self) -> None:
        """A responder dies, stands still, or comes."""
        rng = self.world.rng
        alive = [process for process in self.responders if not process.dead]
        what, one = rng.random(), rng.choice(alive) if alive else None
        if one is not None and what < 0.3:
            one.dead = True
            self.cluster.network.died(one, silently=False)
            self.add()
        elif one is not None and what < 0.5:
            one.paused_until = self.world.now + round(rng.choice([0.5, 3, 8]) * SECOND)
        elif what < 0.6 and len(alive) < RESPONDERS + 2:
            self.add()

    # --- the end --------------------------------------------------------------------------------

    def settled(self) -> bool:
        """After the faults: more requests are answered."""
        if self._enough is None:
            self._enough = self.answered + 50
        return self.answered >= self._enough

    def compare(self) -> None:
        """No request that is not idempotent was handled twice, also of those that nobody heard of."""
        twice = [value for value, count in self.seen.items() if count > 1 and not value.startswith(b"caller0:")]
        self.require(not twice, "requests were handled twice", twice)
