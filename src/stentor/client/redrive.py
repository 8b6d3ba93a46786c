"""Dead letters go back into their queue, as new jobs.

Whoever does this is a member of a consumer group of the dead-letter topic, and puts letters back in transactions. So
several may do it at once, and be killed meanwhile: each letter becomes one job.

    redrive.jobs     the group that puts letters back into the queue "jobs"; its lag says how many are left
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from zlib import crc32

from stentor import limits
from stentor.client.dead_letters import publish_once
from stentor.client.groups import describe_group
from stentor.core import group_limits
from stentor.errors import DeadlineExceeded, GroupNotFound, StaleGeneration, StentorError, TopicNotFound
from stentor.wire import batch
from stentor.wire.queue_rows import DEAD_PREFIX, own_headers

if TYPE_CHECKING:
    from stentor.client.async_client import AsyncClient
    from stentor.client.deadline import Deadline
    from stentor.client.group import AsyncGroup
    from stentor.client.message import Message
    from stentor.client.transaction import AsyncTransaction
    from stentor.wire.rows import Headers

_LETTERS_AT_ONCE: Final = 500  # in one transaction,
_BYTES_AT_ONCE: Final = group_limits.TRANSACTION_BYTES_MAX // 4  # unless these are more
_LARGE_BYTES: Final = group_limits.TRANSACTION_BYTES_MAX // 2  # a letter that may not fit into one
_GENERATIONS: Final = 2**31  # of one producer
_LOOK_S: Final = 0.25  # how often to look whether another one has put back what is left
_SILENCE_S: Final = 10.0  # others go on without one that stands still for so long

_EARLIER_CURSOR: Final = "redrive"
"""What earlier versions moved past the letters that were put back."""


async def redrive(client: AsyncClient, queue: str, topic: str, limit: int | None, timeout: float | None) -> int:
    """Put those dead letters of a queue back that are there now; how many this call has put back."""
    try:
        found = await client.describe_topic(topic, timeout=timeout)
    except TopicNotFound:
        return 0
    ends = {each.partition: each.committed for each in found.partitions}
    return await _Redrive(client, queue, topic, ends, timeout).put_back(limit)


class _Redrive:
    """The letters of one queue that are there: those before an end, in each partition."""

    def __init__(
        self, client: AsyncClient, queue: str, topic: str, ends: dict[int, int], timeout: float | None
    ) -> None:
        self._client = client
        self._queue = queue
        self._topic = topic
        self._ends = ends
        self._timeout = timeout
        self._group = _group_of(queue)

    async def put_back(self, limit: int | None) -> int:
        """All of them, or so many."""
        await self._heed_earlier_versions()
        left, done = await self._left(), 0
        if limit == 0 or not (left or await self._is_unfinished()):
            return 0
        joining = self._client.group(
            self._group, self._topic, start="earliest", auto_commit=False, silence=_SILENCE_S, timeout=self._timeout
        )
        async with joining as group:
            deadline = self._deadline()
            while left and (limit is None or done < limit):
                count = _count(left)
                done += await self._put_some_back(group, count if limit is None else min(count, limit - done))
                left = await self._left()
                if _count(left) < count:  # by this call, or by another one
                    deadline = self._deadline()
                elif not await self._holds_letters(left):
                    left = {}
                elif deadline.has_passed():
                    raise self._late(f"{count} dead letters of {self._topic} could not be read", done, deadline)
            if not left:
                await self._finish(group, done)
        return done

    def _deadline(self) -> Deadline:
        return self._client._core.deadline(self._timeout)  # noqa: SLF001 - a part of the client

    async def _heed_earlier_versions(self) -> None:
        if self._topic != f"{self._queue}.dead":
            return
        for cursor in await self._client.cursors(self._topic, timeout=self._timeout):
            if cursor.name == _EARLIER_CURSOR:
                await self._client.move_cursor(self._topic, self._group, cursor.positions, timeout=self._timeout)

    async def _left(self) -> dict[int, range]:
        """What the group has not come to, and retention has not deleted, by partition."""
        found = await self._client.describe_topic(self._topic, timeout=self._timeout)
        positions: dict[int, int] = {}
        for cursor in await self._client.cursors(self._topic, timeout=self._timeout):
            if cursor.name == self._group:
                positions = dict(cursor.positions)
        starts = {each.partition: max(each.start, positions.get(each.partition, 0)) for each in found.partitions}
        return {index: range(starts[index], end) for index, end in self._ends.items() if starts[index] < end}

    async def _holds_letters(self, left: dict[int, range]) -> bool:
        """Whether there is anything to read. A log also has the steps of a queue, and gaps where it was compacted."""
        start = {self._topic: {index: offsets.start for index, offsets in left.items()}}
        reading = self._client.read(self._topic, start=start, partition=list(left), limit=1, timeout=self._timeout)
        return bool([letter async for letter in reading])

    async def _is_unfinished(self) -> bool:
        """Whether somebody has decided to put letters back that are not in the queue yet."""
        try:
            state = await describe_group(self._client._core, self._group, self._deadline())  # noqa: SLF001 - as above
        except GroupNotFound:
            return False
        return bool(state.unfinished)

    async def _finish(self, group: AsyncGroup, done: int) -> None:
        """Until they are: one that was killed leaves them to the next member that gets its partitions."""
        deadline = self._deadline()
        with suppress(TimeoutError):
            async with deadline.bound():
                await group._core.transactions.tell()  # noqa: SLF001 - as above: this one's are
        while await self._is_unfinished():
            if deadline.has_passed():
                raise self._late(f"Dead letters of {self._topic} that another one took are not back", done, deadline)
            await asyncio.sleep(_LOOK_S)

    def _late(self, what: str, done: int, deadline: Deadline) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{what} within {deadline.seconds:g} s. {done} were put back.",
            hint=f"`stentor group describe {self._group}` shows who has them.",
            operation="redrive",
            object=self._topic,
        )

    async def _put_some_back(self, group: AsyncGroup, most: int) -> int:
        """As many as one transaction has room for, of those that are here soon; how many."""
        done = size = 0
        with suppress(StaleGeneration):  # another one came, and has these letters now
            async with group.transaction(self._timeout) as out:
                for _ in range(min(most, _LETTERS_AT_ONCE)):
                    try:
                        letter = await group.get(timeout=_LOOK_S)
                    except DeadlineExceeded:
                        break
                    if self._is_own(letter):
                        await self._put_one_back(out, letter)
                        done += 1
                    size += _size(letter)
                    if size > _BYTES_AT_ONCE:
                        break
            return done
        return 0

    def _is_own(self, letter: Message) -> bool:
        """Several queues may have one topic for their letters."""
        return dict(letter.headers).get(DEAD_PREFIX + "topic", b"") in (self._queue.encode(), b"")

    async def _put_one_back(self, out: AsyncTransaction, letter: Message) -> None:
        headers = own_headers(letter.headers) or None
        if _size(letter) < _LARGE_BYTES:
            await out.send(self._queue, letter.value, key=letter.key, headers=headers)
        else:
            await self._publish(letter, own_headers(letter.headers))

    async def _publish(self, letter: Message, headers: Headers) -> None:
        """One that is too large for a transaction, so that it is written once, whoever does this again."""
        core = self._client._core  # noqa: SLF001 - as above
        dead, queue = await core.topic(self._topic), await core.topic(self._queue)
        share = letter.offset if letter.key is None else crc32(letter.key)
        encoded = batch.encode([letter.timestamp_us], [letter.key], [letter.value], [headers] if headers else None)
        era, generation = divmod(letter.offset, _GENERATIONS)
        identity = f"redrive of {dead.id}/{letter.partition} {era}"
        partition, deadline = share % len(queue.partitions), self._deadline()
        try:
            async with deadline.bound():
                refused = await publish_once(self._client, self._queue, partition, [encoded], identity, generation)
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise core.late("redrive", deadline.seconds, core.refusals.get(self._queue)) from error
        for why in refused.values():
            raise why


def _group_of(queue: str) -> str:
    name = f"redrive.{queue}"
    if len(name) <= limits.TOPIC_NAME_CHARACTERS_MAX:
        return name
    return f"redrive.{blake2b(queue.encode(), digest_size=16).hexdigest()}"


def _count(left: dict[int, range]) -> int:
    return sum(map(len, left.values()))


def _size(letter: Message) -> int:
    own = len(letter.value or b"") + len(letter.key or b"")
    return own + sum(len(name.encode()) + len(value or b"") for name, value in letter.headers)
