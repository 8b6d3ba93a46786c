"""The transactions of one member of a group, in the client's loop (`core.transactions` says how they work).

One at a time. If it cannot be found out whether one was committed, the member begins a new life: it leaves its group
and joins it again, and is told how far the group has come. So nothing is handed out again whose outputs are decided.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client.transaction_copies import TransactionCopies
from stentor.core import group_limits
from stentor.core.dedupe import lasting_id
from stentor.errors import (
    Closed,
    ConnectionFailed,
    CoordinationUnavailable,
    DeadlineExceeded,
    DiskFull,
    InternalError,
    InvalidArgument,
    LogFailed,
    MemoryFull,
    NotHead,
    NotReady,
    PublishError,
    SequenceError,
    StaleGeneration,
    StentorError,
    TopicNotFound,
    UnknownOutcome,
)
from stentor.wire import frames, group_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from stentor.client.deadline import Deadline
    from stentor.client.group_core import GroupCore
    from stentor.client.group_progress import GroupProgress
    from stentor.client.link import BrokerLink
    from stentor.client.reader import Reader
    from stentor.core.group_member import GroupMembership
    from stentor.core.records import Key

    Outputs = list[tuple[str, bytes]]

logger = logging.getLogger(__name__)

_NOT_TAKEN = (CoordinationUnavailable, DiskFull, MemoryFull, NotReady)  # such an answer says that nothing was written
_BROKEN = (InternalError, LogFailed)  # it may have been, before something went wrong
_DOUBTFUL = (ConnectionFailed, UnknownOutcome)
_PAUSE_S = 1.0  # before a topic is looked for again that a transaction sends to


class _Author:
    """Who makes transactions: one life of the member."""

    def __init__(self, life: GroupMembership) -> None:
        self.life = life
        self.producer_id = 0  # until it is settled
        self.token = b""  # of that id; empty: older brokers know none
        self.number = 0  # of the last transaction that may have been committed
        self.done = 0  # of the last one whose outputs are all in their topics
        self.told = 0  # the same, as the head knows


class _Asked:
    """What is known of a transaction that the head was asked for."""

    def __init__(self) -> None:
        self.doubtful = False  # it may have been committed
        self.refusal: StentorError | None = None  # why it was not, the last time


class MemberTransactions:
    """Begins, commits and finishes the transactions of a member, and finishes those that others left."""

    def __init__(self, owner: GroupCore, progress: GroupProgress) -> None:
        self._owner = owner
        self._core = owner.core
        self._progress = progress
        self._author = _Author(owner.tie.life)
        self._copies = TransactionCopies(owner.core)  # of this author
        self._copying: asyncio.Task[None] | None = None
        self._finishing: Callable[[], Coroutine[Any, Any, None]] | None = None  # what it does
        self._readers: dict[
            Reader, tuple[int, int]
        ] = {}  # of the one that is open: since when their partitions are owned
        self.leaving: set[Reader] = set()  # of partitions that are let go of as soon as what is in work is done
        self._lost = False  # what it took may be handed out again: the member's lease ended since it began

    @property
    def is_open(self) -> bool:
        """Whether there is one that is neither committed nor given up."""
        return self._progress.held is not None

    # --- one transaction ------------------------------------------------------------------------

    async def begin(self, deadline: Deadline) -> None:
        """From now on, what is finished counts when the transaction is committed."""
        self._core.check_open()
        if self._owner.closed:
            raise Closed(f"This member of group {self._owner.name} is closed.")
        if self._owner.progress is not self._progress:
            raise InvalidArgument(
                "A transaction cannot be made while `run` hands messages to workers.",
                hint="Iterate the group, or take messages with `get`.",
            )
        if self.is_open:
            raise InvalidArgument("A transaction of this member is open.", hint="One at a time: leave its block first.")
        try:
            await self._settled(deadline)
        except BaseException:
            with suppress(StaleGeneration):
                self._open()  # what is in work was meant to be a part of it
                self.give_up()
            raise
        if self._author.life is not self._owner.tie.life:
            self._author = _Author(self._owner.tie.life)
            self._copies.close()
        self._open()

    async def _introduce(self, author: _Author, deadline: Deadline) -> None:
        """Get the token that the outputs of this life are sent with: whoever finishes them gets the same one."""
        request = group_messages.FindTransaction(
            group=self._owner.name, topic_id=0, partition=0, member=author.life.member
        )
        asked = _Asked()
        try:
            async with deadline.bound():
                author.token = await self._own_token(request, asked)
        except TimeoutError as error:
            raise self._core.late("transaction", deadline.seconds, asked.refusal) from error
        author.producer_id = lasting_id(author.token) if author.token else secrets.randbits(62) + 1
        self._copies.close()
        self._copies = TransactionCopies(self._core, author.token)

    async def _own_token(self, request: group_messages.FindTransaction, asked: _Asked) -> bytes:
        """Until it is answered. Empty: the broker knows no tokens, or not yet."""
        while True:
            link = self._owner.tie.link()
            if link is not None:
                try:
                    found: group_messages.TransactionFound = await link.request(request)
                except StaleGeneration:
                    return b""  # a broker that knows no tokens has looked for a transaction; or the life is over
                except (NotHead, *_NOT_TAKEN, *_DOUBTFUL) as error:
                    asked.refusal = error
                else:
                    return b"" if found.author else found.token
            await self._core.changes(limits.LINK_WATCH_S)

    def _open(self) -> None:
        """What is in work is a part of it, if it still belongs to this member."""
        holding, readers = self._owner.tie.life.holding, [*self._owner.readers.values(), *self.leaving]
        keys = {reader: (reader.topic_id, reader.partition) for reader in readers}
        since = {reader: holding[key] for reader, key in keys.items() if key in holding}
        source = self._progress.source()
        if source is not None and source not in since:
            self._progress.forget(source)
            raise self._stale(source)
        self._readers, self._lost = since, False
        self._progress.hold(readers)

    def reads(self, reader: Reader) -> None:
        """From now on a partition is read that may become a part of the transaction."""
        since = self._owner.tie.life.holding.get((reader.topic_id, reader.partition))
        if not self.is_open or since is None:
            return
        if (reader.topic, reader.partition) in self._progress.handed:
            self._lost = True  # the partition came back, or its topic was made anew: what was taken came by another
        else:
            self._readers = {each: when for each, when in self._readers.items() if each.name != reader.name}
        self._readers[reader] = since

    def lose(self) -> None:
        """What the transaction took may be handed out again, by this member, too: its lease is over, or it let go."""
        self._lost = True

    async def commit(self, encode: Callable[[int, int], Outputs], deadline: Deadline) -> None:
        """Commit what was finished in it, with its outputs: `encode` makes them, by producer id and number."""
        author = self._author
        try:
            self._check_owned(author)
            if not author.producer_id:
                await self._introduce(author, deadline)
                self._check_owned(author)
            outputs = encode(author.producer_id, author.number + 1)
            positions = self._positions(fence=bool(outputs))
            if outputs:
                await self._decide(author, positions, outputs, deadline)
            elif positions:
                await self._owner.tie.send(positions, deadline)
        except BaseException:
            self.give_up()
            raise
        self._owner.tie.committed(positions)
        self._pass()
        if self._lost:  # what was given back meanwhile is read from before it
            self._owner.tie.begin_anew()
        if outputs:
            where = positions[0].topic_id, positions[0].partition
            self._finishing = partial(self._finish, author, author.number, outputs, where)
            self._copying = self._core.loop.create_task(self._finishing())
            await self._settled(deadline)

    def _pass(self) -> None:
        """It is committed: what it took is behind its readers, whatever the application does next."""
        for reader in self._readers:
            reader.taken = max(reader.taken, self._progress.taken_in(reader) or 0)
        self._progress.held, self._readers = None, {}

    def give_up(self) -> None:
        """Nothing of it counts: what was taken in it is handed out again."""
        progress = self._progress
        taken = {reader: progress.position(reader) for reader in self._readers if progress.taken_in(reader) is not None}
        progress.held, self._readers = None, {}
        for reader in taken:
            progress.forget(reader)
        for reader, start in taken.items():
            reader.taken = start  # also of a partition that goes to another member now
            if self._owner.reads(reader):
                self._owner.move(reader, start)

    def _check_owned(self, author: _Author) -> None:
        """Whether everything that was taken in it still belongs to this member."""
        if self._owner.closed:
            raise Closed(f"This member of group {self._owner.name} is closed.")
        life = self._owner.tie.life
        for reader, since in self._readers.items():
            if self._progress.taken_in(reader) is None:
                continue
            if self._lost or life is not author.life or life.holding.get((reader.topic_id, reader.partition)) != since:
                raise self._stale(reader)

    def _stale(self, reader: Reader) -> StaleGeneration:
        return StaleGeneration(
            f"{reader.name} does not belong to this member of group {self._owner.name} any more.",
            hint="Another member goes on with what this transaction took.",
            object=self._owner.name,
        )

    def _positions(self, *, fence: bool) -> list[group_messages.GroupPosition]:
        """How far it has come. One that took nothing but sends something is tied to what the member owns."""
        progress = self._progress
        found: list[group_messages.GroupPosition] = []
        still: list[group_messages.GroupPosition] = []
        for reader, since in self._readers.items():
            end = progress.taken_in(reader)
            position = group_messages.GroupPosition(
                topic_id=reader.topic_id,
                partition=reader.partition,
                offset=progress.position(reader) if end is None else end,
                since=since,
            )
            (still if end is None else found).append(position)
        if len(found) > group_limits.GROUP_COMMIT_PARTITIONS_MAX:
            raise InvalidArgument(
                f"A transaction took messages of {len(found)} partitions; the limit is"
                f" {group_limits.GROUP_COMMIT_PARTITIONS_MAX}.",
                hint="Take fewer messages in each transaction.",
            )
        if not found and fence:
            if not still:
                raise StaleGeneration(
                    f"No partition belongs to this member of group {self._owner.name} now.",
                    hint="A transaction belongs to what its member reads; try again when it owns something.",
                    object=self._owner.name,
                )
            return still[:1]
        return found

    async def _decide(
        self, author: _Author, positions: list[group_messages.GroupPosition], outputs: Outputs, deadline: Deadline
    ) -> None:
        """Until the head has answered. UnknownOutcome, and a new life, if that cannot be found out."""
        author.number += 1
        request = group_messages.CommitTransaction(
            group=self._owner.name,
            member=author.life.member,
            number=author.number,
            positions=positions,
            done=author.done,
            outputs=outputs,
        )
        asked = _Asked()
        try:
            async with deadline.bound():
                await self._ask(request, asked)
        except BaseException as error:
            if asked.doubtful:
                self._owner.tie.begin_anew()
            if not isinstance(error, TimeoutError | StentorError):
                raise
            if asked.doubtful:
                raise self._unknown(asked.refusal or error) from error
            if isinstance(error, StentorError):
                raise
            raise self._core.late("transaction", deadline.seconds, asked.refusal) from error
        author.told = author.done

    async def _ask(self, request: group_messages.CommitTransaction, asked: _Asked) -> None:
        """Until it is answered: committed, or refused for good."""
        while True:
            link = self._owner.tie.link()
            if link is not None:
                _check_features(link)
                before = asked.doubtful
                try:
                    async with link.transacting:
                        link.check()  # it may be gone by now
                        asked.doubtful = True
                        await link.request(request, frames.Kind.TRANSACTION)
                except _DOUBTFUL as error:
                    asked.refusal = error
                except StentorError as error:
                    asked.doubtful, asked.refusal = before or isinstance(error, _BROKEN), error
                    if not isinstance(error, _NOT_TAKEN):
                        raise
                else:
                    return
            await self._core.changes(limits.LINK_WATCH_S)

    def _unknown(self, why: BaseException) -> UnknownOutcome:
        return UnknownOutcome(
            f"Whether a transaction of group {self._owner.name} was committed is not known: {why}",
            hint="This member joins its group again, and goes on where that is.",
            operation="transaction",
            object=self._owner.name,
        )

    # --- what is decided ------------------------------------------------------------------------

    async def _finish(self, author: _Author, number: int, outputs: Outputs, where: Key) -> None:
        """Bring the outputs of an own transaction into their topics."""
        await self._publish(self._copies, author.life.member, number, outputs, where)
        author.done = number

    async def _publish(self, copies: TransactionCopies, author: str, number: int, outputs: Outputs, where: Key) -> None:
        while True:
            try:
                await copies.publish(outputs, partial(self._next_token, author, number, where))
            except (TopicNotFound, SequenceError, UnknownOutcome) as error:
                found = await self._find(where)
                if (found.author, found.number) != (author, number):
                    return  # somebody else has finished it
                if not isinstance(error, TopicNotFound):
                    raise
                outputs = found.outputs  # without those whose topics were deleted
                await self._core.changes(_PAUSE_S)
            else:
                return

    async def _settled(self, deadline: Deadline) -> None:
        """Until the outputs of the last transaction are in their topics. If that failed, it is tried again."""
        copying = self._copying
        if copying is None:
            return
        if copying.done() and (copying.cancelled() or copying.exception() is not None):
            assert self._finishing is not None
            copying = self._copying = self._core.loop.create_task(self._finishing())
        committed = f"A transaction of group {self._owner.name} is committed; its outputs are not all in their topics"
        try:
            async with deadline.bound():
                await asyncio.shield(copying)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{committed} yet.",
                hint="They are brought there as soon as that is possible. The next transaction waits for them.",
                operation="transaction",
                object=self._owner.name,
            ) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not copying.cancelled() or (task is not None and task.cancelling()):
                raise
            raise Closed(f"{committed} yet, and this member was closed.", object=self._owner.name) from None
        except StentorError as error:
            raise PublishError(
                f"{committed}: {error.message}",
                hint="The next transaction tries it again; so does whoever reads these partitions next.",
                operation="transaction",
                object=self._owner.name,
            ) from error
        if self._copying is copying:
            self._copying = self._finishing = None

    async def settle(self, seconds: float) -> None:
        """Finish the last one and tell the head, if that is possible in time; otherwise another member will."""
        with suppress(StentorError, TimeoutError):
            async with asyncio.timeout(seconds):
                if self._copying is not None:
                    await asyncio.shield(self._copying)
                await self.tell()

    async def tell(self) -> None:
        """Tell the head what is done, if it does not know; the caller sets the deadline."""
        author = self._author
        if author.told < author.done:
            done = author.done
            await self._end(author.life.member, done)
            author.told = max(author.told, done)

    async def complete(self, key: Key) -> None:
        """Before a partition is read: finish what named it and is not done."""
        while True:
            found = await self._find(key)
            if not found.author:
                return
            copies = TransactionCopies(self._core, found.token)
            try:
                await self._publish(copies, found.author, found.number, found.outputs, key)
            finally:
                copies.close()
            await self._end(found.author, found.number)

    async def _next_token(self, author: str, number: int, where: Key, again: int) -> bytes:
        """Return another token for the outputs of a transaction; empty if it is done, or the broker knows no others."""
        found = await self._find(where, again)
        return found.token if (found.author, found.number) == (author, number) else b""

    async def _find(self, key: Key, again: int = 0) -> group_messages.TransactionFound:
        request = group_messages.FindTransaction(group=self._owner.name, topic_id=key[0], partition=key[1], again=again)
        found: group_messages.TransactionFound = await self._owner.tie.ask(request)
        return found

    async def _end(self, author: str, number: int) -> None:
        request = group_messages.EndTransaction(group=self._owner.name, author=author, number=number)
        await self._owner.tie.ask(request)

    def close(self) -> None:
        """The member is gone; who comes after it finishes what it left."""
        if self._copying is not None:
            self._copying.cancel()
            self._copying = None
        self._copies.close()


def _check_features(link: BrokerLink) -> None:
    if frames.TRANSACTIONS not in link.features:
        raise NotReady(
            "The broker is older, and does not know transactions.", hint="Upgrade all brokers, then try again."
        )
