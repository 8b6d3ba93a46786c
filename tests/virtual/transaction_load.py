"""A consumer group on a simulated cluster whose members send something out for each message, in transactions.

What they send is another thing each time a message is handled: so nobody can make up for what is missing by handling it
again. In the end there is one output for every message.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.virtual.group_load import GroupLoad, Member

from stentor.errors import StentorError
from stentor.wire import sparse
from stentor.wire.header import HEADER_BYTES, extents, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.client.group import AsyncGroup

OUTPUTS = "outputs"
PATIENCE_S = (0.003, 0.5, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)  # of a transaction: some are given up half-way


FAR_BEHIND = 500  # messages: then transactions are larger and quicker, so that a run comes to its end


class GaveUpError(Exception):
    """A handler fails."""


class TransactionLoad(GroupLoad):
    """Members, until they are told to stop."""

    async def _work(self, name: str, member: Member) -> None:
        await self._join(name, member)
        while (group := member.group) is not None:
            try:
                await self._handle_some(member, group)
            except GaveUpError:
                continue
            except StentorError:
                await asyncio.sleep(0.05)

    async def _handle_some(self, member: Member, group: AsyncGroup) -> None:
        rng = self.world.rng
        fails = rng.random() < 0.05
        first = await group.get(timeout=1) if rng.random() < 0.5 else None  # it is in work when the transaction begins
        async with group.transaction(timeout=rng.choice(PATIENCE_S)) as out:
            self.hurries = sum(group.lag().values()) > FAR_BEHIND
            for _ in range(FAR_BEHIND // 10 if self.hurries else rng.choice([1, 1, 2, 5])):
                message = first or await group.get(timeout=1)
                first = None
                await self._handle(member, message)
                nonce = rng.getrandbits(32)
                await out.send(OUTPUTS, f"{message.partition} {message.offset} {nonce}", partition=rng.choice([0, 1]))
            if fails:
                raise GaveUpError

    def caught_up(self, ends: dict[int, set[int]]) -> bool:
        """Whether everything is handled and committed, and all outputs are there."""
        return super().caught_up(ends) and not self.unfinished

    def compare(self, acknowledged: Any, outputs: list[Any] | None = None) -> None:
        """There is one output for every message."""
        super().compare(acknowledged)
        found = Counter(place for partition in outputs or () for place in _places(partition))
        for place in acknowledged:
            self.require(found[place] > 0, "a message has no output", place)
        for place, times in found.items():
            self.require(times == 1, "a message has more than one output", place, times)


def _places(partition: Any) -> Iterator[tuple[int, int]]:
    """Which messages the outputs of a partition were made of."""
    offset = partition.log.start
    while offset < partition.committed:  # a read ends with its segment
        data = partition.log.read(offset, partition.committed, 1 << 26).data
        for position, length, _, _ in extents(data):
            header = unpack(data, position)
            rows = sparse.rows_of(header, memoryview(data)[position + HEADER_BYTES : position + length])
            for value in rows.values:
                index, number, _ = value.decode().split()
                yield int(index), int(number)
            offset = header.end_offset
