"""What ties a client to its group: heartbeats, partitions that come and go, commits. Lives in the client's loop.

`core.group_member` says what may be held and until when. A heartbeat is a long poll of the group's head, over the link
to that very broker: whether the link breaks tells it whether this process is gone. Partitions are taken and let go of
beside the heartbeats, so that none of these waits for the others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.client.certain import Certainty, clock_of
from stentor.client.convert import as_seconds
from stentor.client.message import Message
from stentor.client.reader import Event
from stentor.core import group_limits
from stentor.core.cursors import partition_of
from stentor.core.group_member import GroupMembership
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import (
    Closed,
    ConnectionFailed,
    CoordinationUnavailable,
    DiskFull,
    InvalidArgument,
    NotReady,
    StaleGeneration,
    StentorError,
    UnknownOutcome,
)
from stentor.wire import group_messages
from stentor.work_errors import HandlerTimeout

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from stentor.client.deadline import Deadline
    from stentor.client.group_core import GroupCore
    from stentor.client.group_hooks import GroupHooks
    from stentor.client.link import BrokerLink
    from stentor.client.reader import Reader
    from stentor.core.groups import Generation
    from stentor.core.records import Key

logger = logging.getLogger(__name__)

BUSY_POLL_S = 0.01  # how often it is looked whether the message in work is done: somebody waits for its partition
_NAMED_MAX = 10  # partitions that an error names: its detail has all of them
_AGAIN = (ConnectionFailed, CoordinationUnavailable, NotReady)
_SAID_AGAIN = (*_AGAIN, DiskFull, UnknownOutcome)  # said twice, commits and farewells do no harm


def check_limit_s(seconds: object) -> float:
    """A time limit; InvalidArgument if it is none."""
    found = as_seconds(seconds)
    if not found >= group_limits.GROUP_COMMIT_S:
        raise InvalidArgument(f"time_limit={seconds!r} is less than {group_limits.GROUP_COMMIT_S:g} second.")
    return found


class _HandlerLimit:
    """How long one message may be in work."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._seen: object = None
        self._since = 0.0

    def passed(self, in_work: object, now: float) -> HandlerTimeout | None:
        """What to tell if this is in work for too long."""
        if in_work is not self._seen:
            self._seen, self._since = in_work, now
        if in_work is None or self.limit_s is None or now - self._since <= self.limit_s:
            return None
        what = f"{in_work.topic}/{in_work.partition}@{in_work.offset}" if isinstance(in_work, Message) else "a batch"
        return HandlerTimeout(
            f"{what} was not finished within {self.limit_s:g} s; this member leaves its group.",
            hint="Make the handler faster, or allow more time with time_limit.",
            operation="group",
            object=what,
        )


class _Given:
    """A partition that the application was given, until it hears that this is over."""

    def __init__(self, reader: Reader, since: Generation) -> None:
        self.reader = reader
        self.since = since
        self.floor = reader.start  # what was handed out below it is committed, or was reported as lost
        self.handed = reader.start  # how far it was handed out, when it was taken away


class GroupTie:
    """One member of a group, from joining to leaving."""

    def __init__(
        self,
        owner: GroupCore,
        *,
        instance: str,
        zone: str,
        silence_s: float,
        auto_commit: bool,
        time_limit_s: float | None,
        hooks: GroupHooks,
    ) -> None:
        self._owner = owner
        self._hooks = hooks
        self._core = owner.core
        self._instance = instance
        self._zone = zone
        self._limit = _HandlerLimit(time_limit_s)
        self._silence_s = silence_s
        self.auto_commit = auto_commit
        self.time_limit_s = time_limit_s
        self.generation = (0, 0)
        self._clock = clock_of(self._core.loop)
        self.certainty = Certainty(self._clock)  # that what this member holds is not another's
        self.life = self._new_life()
        self._assigned: dict[Key, group_messages.AssignedPartition] = {}
        self._done: dict[tuple[Key, tuple[int, int]], int] = {}  # how far this member came in what it owns
        self._committed: dict[Key, int] = {}
        self._given: dict[Key, _Given] = {}
        self._leaving: dict[Key, Reader] = {}  # partitions that are let go of: what is finished can be committed yet
        self._doubtful: set[Key] = set()  # given, and the lease ended: the head says whether they are lost
        self._lost: set[str] = set()  # what was handed out of these and not committed is another member's
        self._moving: dict[Key, asyncio.Task[None]] = {}  # partitions that are being taken, or let go of
        self._news = asyncio.Event()  # the head should hear from this member now
        self._joined: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._parting: set[asyncio.Task[None]] = set()  # members that this one was before, as they leave
        self._ending = False
        self._refusal: StentorError | None = None  # why the head does not answer yet

    def _new_life(self) -> GroupMembership:
        return GroupMembership(secrets.token_bytes(8).hex(), self._silence_s)

    # --- joining and leaving --------------------------------------------------------------------

    async def join(self, deadline: Deadline) -> None:
        """Until the head has answered once."""
        loop = self._core.loop
        self._joined = loop.create_future()
        self._tasks = [loop.create_task(self._keep()), loop.create_task(self._commit_often())]
        try:
            async with deadline.bound():
                await asyncio.shield(self._joined)
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self._core.late("group", deadline.seconds, self._refusal) from error

    async def end(self) -> None:
        """Commit what is finished, let go of everything, and leave. A static member stays, to come back."""
        self._ending = True
        tasks = [*self._tasks, *self._moving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._joined is None or not self._joined.done() or self._joined.exception() is not None:
            return
        if self.auto_commit:
            with suppress(StentorError, TimeoutError):
                async with asyncio.timeout(group_limits.GROUP_GRACE_S):
                    await self.commit()
        await self._owner.transactions.settle(group_limits.GROUP_GRACE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(group_limits.GROUP_GRACE_S):
                for key, reader in list(self._owner.readers.items()):
                    await self._revoked(key, reader)
        self._drop_all()
        self._hooks.close()
        self.life.holding = {}
        await asyncio.gather(self._leave(), *self._parting)

    async def _leave(self) -> None:
        """A static member only says that it holds nothing: who comes back under its name can begin at once."""
        if self._instance:
            link = self.link()
            if link is not None:
                self.life.sent(self._clock())
                with suppress(StentorError, TimeoutError):
                    async with asyncio.timeout(limits.LINK_CLOSE_S):
                        await link.request(self._heartbeat())
            return
        await self._tell(group_messages.LeaveGroup(group=self._owner.name, member=self.life.member))

    async def _tell(self, leaving: group_messages.LeaveGroup) -> None:
        with suppress(StentorError, TimeoutError):
            async with asyncio.timeout(group_limits.GROUP_GRACE_S):
                await self.ask(leaving)

    def assigned(self) -> dict[Key, tuple[str, int]]:
        """What belongs to this member, as the head said last: topic and number of each."""
        return {key: (each.topic, each.partition) for key, each in self._assigned.items() if key in self.life.holding}

    # --- heartbeats -----------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Send heartbeats until the end."""
        while not self._ending:
            try:
                if not await self._beat():
                    await self._core.changes(limits.LINK_WATCH_S)
            except StaleGeneration:
                self._begin_anew()
            except Closed:
                return
            except StentorError as error:
                self._fail(error)
                return

    def give_up(self, error: StentorError) -> None:
        """A handler hangs: the others get this member's partitions, and whoever asks it for more hears why."""
        logger.error("%s", error.message)
        if not self._ending:
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            self._fail(error)

    def _fail(self, error: StentorError) -> None:
        """This member cannot go on: another process took its place, or the call was wrong."""
        self._drop_all()
        self._lose(self._doubtful)
        if self._joined is not None and not self._joined.done():
            self._joined.set_exception(error)
            self._joined.exception()  # whoever joins hears of it, if somebody still waits
        else:
            self._owner.put(error)
        leaving = group_messages.LeaveGroup(group=self._owner.name, member=self.life.member)
        self._tasks.append(self._core.loop.create_task(self._tell(leaving)))

    async def _beat(self) -> bool:
        """One heartbeat and its answer. False: try again when something has changed."""
        self._look_at_lease()
        link = self.link()
        if link is None:
            return False
        self._news.clear()
        loop, life, sent_at = self._core.loop, self.life, self._clock()
        life.sent(sent_at)
        asking = loop.create_task(link.request(self._heartbeat()))
        news = loop.create_task(self._news.wait())
        try:
            await asyncio.wait({asking, news}, timeout=self._patience_s(), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                self._look_at_lease()
                return True  # the next one takes the place of this one
            answer = asking.result()
        except _AGAIN as error:
            if isinstance(error, ConnectionFailed):
                life.link_lost(self._clock())
                if life.lease_ends is not None:
                    self.certainty.shorten(life.lease_ends)
            self._refusal = error
            return False
        finally:
            asking.cancel()
            news.cancel()
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        if life is self.life:
            self.certainty.renewed(sent_at, self._silence_s)
            self._answered(answer)
        return True

    def _patience_s(self) -> float:
        ends, now = self.life.lease_ends, self._clock()
        left = group_limits.GROUP_BEAT_S if ends is None else max(0.0, ends - now)
        return min(group_limits.GROUP_BEAT_S, left)

    def _heartbeat(self) -> group_messages.GroupHeartbeat:
        life = self.life
        holding: dict[int, list[int]] = {}
        for topic_id, partition in life.holding:
            holding.setdefault(topic_id, []).append(partition)
        return group_messages.GroupHeartbeat(
            group=self._owner.name,
            member=life.member,
            number=life.number,
            topics=self._owner.patterns,
            instance=self._instance,
            zone=self._zone,
            silence_ms=int(self._silence_s * 1000),
            seen=life.seen,
            holding=holding,
        )

    def link(self) -> BrokerLink | None:
        """The link to the head of the group; None while it is not known, or being made."""
        route = self._core.routes.get(CURSORS_TOPIC)
        if route is None:
            return self._core.link  # any broker makes the internal topic
        chain = route.partitions[partition_of(self._owner.name, len(route.partitions))].chain
        return self._core.links.to(chain[0]) if chain else None

    async def ask(self, request: Any) -> Any:
        """Ask the head, again if that changes meanwhile; the caller sets the deadline."""
        while True:
            link = self.link()
            if link is not None:
                try:
                    return await link.request(request)
                except _SAID_AGAIN:
                    pass
            await self._core.changes(limits.LINK_WATCH_S)

    # --- what the head says ---------------------------------------------------------------------

    def _answered(self, answer: group_messages.GroupAssigned) -> None:
        life, listed = self.life, None
        self.generation = answer.generation
        if answer.partitions is not None:
            self._assigned = {(each.topic_id, each.partition): each for each in answer.partitions}
            listed = {key: each.since for key, each in self._assigned.items()}
        life.answered(answer.number, listed)
        self._look_at_lease()
        if listed is not None:
            self._lose({key for key in self._doubtful if listed.get(key) != self._given[key].since})
        for key in life.asked_back:
            self._move(key, self._let_go(key))
        for key in life.gained:
            if key not in self._moving:
                life.take(key)
                self._move(key, self._take(key))
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)

    def _move(self, key: Key, work: Any) -> None:
        """Take a partition, or let go of it: one after the other."""
        before = self._moving.get(key)
        if before is not None:
            if before.get_name() == "let go":
                work.close()
                return  # it is under way
            before.cancel()
        task = self._core.loop.create_task(work)
        task.set_name("let go" if work.__name__ == "_let_go" else "take")
        self._moving[key] = task

        def done(finished: asyncio.Task[None]) -> None:
            if self._moving.get(key) is finished:
                del self._moving[key]
            if not finished.cancelled() and finished.exception() is not None:
                self._owner.put(finished.exception())

        task.add_done_callback(done)

    async def _take(self, key: Key) -> None:
        life, assigned = self.life, self._assigned[key]
        reader: Reader | None = None
        while reader is None:
            try:
                if assigned.unfinished:
                    await self._owner.transactions.complete(key)
                reader = await self._owner.begin(assigned, self._done.get((key, assigned.since), 0))
            except StentorError as error:
                if not (error.retriable or isinstance(error, LookupError | TimeoutError)):
                    raise
                await self._core.changes(limits.LINK_WATCH_S)  # a topic that is gone is asked back soon
        if life is not self.life or life.holding.get(key) != assigned.since:
            return
        self._committed[key] = -1 if assigned.position is None else assigned.position
        given = self._given.get(key)
        if given is None or given.since != assigned.since:  # else it was not lost, after all
            self._given[key] = _Given(reader, assigned.since)
            self._owner.progress.lose(reader)
            await self._tell_application("assigned", reader, reader.start, reader.start)
        self._doubtful.discard(key)
        self._owner.read(reader)

    async def _let_go(self, key: Key) -> None:
        """Finish what is in work, commit it, and tell the head."""
        life = self.life
        since = life.holding.get(key)
        reader = self._owner.drop(key)
        if reader is not None and since is not None:
            self._leaving[key] = reader
            try:
                await self._until_done(reader)
                self._done[key, since] = self._owner.progress.position(reader)
                if self.auto_commit:
                    await self._commit_last(key, reader, since)
                await self._revoked(key, reader)
                await self._owner.transactions.settle(group_limits.GROUP_LET_GO_S)
            finally:
                del self._leaving[key]
        elif key in self._given:  # its hook was still at work
            await self._revoked(key, self._given[key].reader)
        life.let_go(key)
        self._news.set()

    # --- what the application hears -------------------------------------------------------------

    async def _tell_application(self, kind: str, reader: Reader, first: int, behind: int) -> None:
        """Note an event, and call the hook for it."""
        event = Event(kind, reader.topic, reader.partition, first, behind)
        self._owner.note(event)
        await self._hooks.call(event)

    async def _revoked(self, key: Key, reader: Reader) -> None:
        """A partition goes in good order. What the application does not commit now is another member's to handle."""
        given = self._given.get(key)
        if given is None:
            return
        given.handed = self._owner.progress.handed_out(reader)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(group_limits.GROUP_LET_GO_S):
                    await self._tell_application("revoked", reader, self._floor(key, given), given.handed)
        finally:
            if key not in self._doubtful:  # else its lease ended meanwhile: the head says whether it is lost
                self._given.pop(key, None)
                if given.handed > self._floor(key, given):
                    self._lost.add(reader.name)

    def _floor(self, key: Key, given: _Given) -> int:
        """Everything handed out below it is committed, or was reported as lost."""
        return max(given.floor, self._committed.get(key, -1))

    def _lose(self, keys: set[Key]) -> None:
        """These partitions were this member's, and are not any more."""
        for key in list(keys):
            given = self._given.pop(key)
            self._doubtful.discard(key)
            if given.handed > given.floor:
                self._lost.add(given.reader.name)
            self.spawn(self._tell_application("lost", given.reader, given.floor, max(given.floor, given.handed)))

    def raise_lost(self) -> None:
        """Raise StaleGeneration if something that was handed out belongs to others by now; it is said once."""
        lost, self._lost = sorted(self._lost), set()
        if not lost:
            return
        some = ", ".join(lost[:_NAMED_MAX]) + (f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else "")
        raise StaleGeneration(
            f"{some} {'does' if len(lost) == 1 else 'do'} not belong to this member of group {self._owner.name} any"
            " more: what it handled of them was not committed.",
            hint="Another member goes on behind the last position that was committed in time.",
            operation="commit",
            object=self._owner.name,
            partitions=lost,
        )

    async def _until_done(self, reader: Reader) -> None:
        """What is in work of a partition may still become a part of a transaction; but for no longer than this."""
        owner, transactions = self._owner, self._owner.transactions
        until = self._core.loop.time() + group_limits.GROUP_LET_GO_S
        transactions.leaving.add(reader)
        try:
            while owner.progress.is_busy(reader) and self._core.loop.time() < until:
                await asyncio.sleep(BUSY_POLL_S)
                owner.progress.drop(reader)
            if owner.progress.is_busy(reader):
                transactions.lose()
        finally:
            transactions.leaving.discard(reader)

    async def _commit_last(self, key: Key, reader: Reader, since: tuple[int, int]) -> None:
        offset = self._owner.progress.position(reader)
        if offset <= self._committed.get(key, -1):
            return
        position = group_messages.GroupPosition(topic_id=key[0], partition=key[1], offset=offset, since=since)
        with suppress(StaleGeneration, TimeoutError):
            async with asyncio.timeout(group_limits.GROUP_LET_GO_S):
                await self._send([position])

    def _look_at_lease(self) -> None:
        if self.life.has_ended(self._clock()):
            self._drop_all()

    def holds(self, reader: Reader) -> bool:
        """Return whether a partition is this member's, as far as this process knows."""
        key = reader.topic_id, reader.partition
        return self._owner.readers.get(key) is reader or self._leaving.get(key) is reader

    async def sure(self, reader: Reader) -> bool:
        """Ask the head before a message of a partition begins; return False if it is not this member's any more.

        Called where the lease is not certain: the process stood still, or the head does not answer (C36).
        """
        while not self._ending and self.holds(reader):
            self._look_at_lease()
            if self.certainty.holds:
                break
            self._news.set()
            await asyncio.sleep(BUSY_POLL_S)
        return self.holds(reader)

    def begin_anew(self) -> None:
        """Leave the group, and join it again as another member: nobody knows how far this one has come."""
        if self._ending:
            return  # it leaves anyway
        leaving = group_messages.LeaveGroup(group=self._owner.name, member=self.life.member)
        self._begin_anew()
        task = self._core.loop.create_task(self._tell(leaving))
        self._parting.add(task)
        task.add_done_callback(self._parting.discard)
        self._news.set()

    def _begin_anew(self) -> None:
        """The group goes on without this member: it joins again, as another one."""
        self._drop_all()
        self._lose(self._doubtful)
        self.life = self._new_life()

    def _drop_all(self) -> None:
        """Hand out nothing more. What is done of it is remembered, in case that it still belongs to this member."""
        self.certainty.end()
        self._owner.transactions.lose()
        for task in self._moving.values():
            task.cancel()
        self._moving = {}
        self._done = {}
        for key, given in self._given.items():
            reader = given.reader = self._owner.readers.get(key) or self._leaving.get(key) or given.reader
            given.handed = max(given.handed, self._owner.progress.handed_out(reader))
            given.floor = self._floor(key, given)
        self._doubtful = set(self._given)
        for key, reader in list(self._owner.readers.items()):
            assigned = self._assigned.get(key)
            if assigned is not None:
                self._done[key, assigned.since] = self._owner.progress.position(reader)
            self._owner.drop(key)
        self._committed = {}

    # --- commits --------------------------------------------------------------------------------

    async def _commit_often(self) -> None:
        while not self._ending:
            await asyncio.sleep(group_limits.GROUP_COMMIT_S)
            late = self._limit.passed(self._owner.progress.in_work(), self._core.loop.time())
            if late is not None:
                self.give_up(late)
                return
            with suppress(StentorError, TimeoutError):  # the next one says it again
                async with asyncio.timeout(group_limits.GROUP_BEAT_S):
                    if self.auto_commit:
                        await self.commit()
                    await self._owner.transactions.tell()

    async def commit_all(self) -> None:
        """Commit what was handed out. StaleGeneration names every partition that was lost before that."""
        while self._doubtful and not self._ending:  # noqa: ASYNC110 - it ends in several ways
            await asyncio.sleep(BUSY_POLL_S)  # the head says soon whether they are lost
        with suppress(StaleGeneration):
            await self.commit()
        self.raise_lost()

    async def commit(self) -> None:
        """Commit what is finished of all partitions. StaleGeneration if some belong to others by now; what still
        belongs to this member is committed.
        """
        holding, progress = self.life.holding, self._owner.progress
        positions = []
        for key, reader in [*self._owner.readers.items(), *self._leaving.items()]:
            offset = progress.position(reader)
            if key in holding and offset > self._committed.get(key, -1):
                positions.append(
                    group_messages.GroupPosition(topic_id=key[0], partition=key[1], offset=offset, since=holding[key])
                )
        size, stale = group_limits.GROUP_COMMIT_PARTITIONS_MAX, False
        for start in range(0, len(positions), size):
            for each in await self._refused(positions[start : start + size]):
                stale = True
                given = self._given.get((each.topic_id, each.partition))
                if given is not None and each.offset > given.floor:
                    given.floor = each.offset
                    self._lost.add(given.reader.name)
        if stale:
            raise StaleGeneration(
                f"Partitions do not belong to this member of group {self._owner.name} any more.",
                object=self._owner.name,
            )

    async def _refused(self, positions: list[group_messages.GroupPosition]) -> list[group_messages.GroupPosition]:
        """Commit these positions. Return those of partitions that belong to others by now."""
        try:
            await self._send(positions)
        except StaleGeneration:
            if len(positions) == 1:
                return positions
            half = len(positions) // 2
            return [*await self._refused(positions[:half]), *await self._refused(positions[half:])]
        return []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside; it ends with this member."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self._core.loop.create_task(work))

    async def send(self, positions: list[group_messages.GroupPosition], deadline: Deadline) -> None:
        """Commit these positions, within the deadline of a call."""
        try:
            async with deadline.bound():
                await self._send(positions)
        except TimeoutError as error:
            raise self._core.late("commit", deadline.seconds) from error

    async def _send(self, positions: list[group_messages.GroupPosition]) -> None:
        request = group_messages.CommitGroup(group=self._owner.name, member=self.life.member, positions=positions)
        await self.ask(request)
        self.committed(positions)

    def committed(self, positions: list[group_messages.GroupPosition]) -> None:
        """These positions are: they need not be said again."""
        for each in positions:
            key = each.topic_id, each.partition
            if key in self._given:
                self._given[key].floor = max(self._given[key].floor, each.offset)
            if key in self._committed:
                self._committed[key] = max(self._committed[key], each.offset)
