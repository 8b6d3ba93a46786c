"""Requests of clients: one method each, found by the request's type. Whether it may be asked is looked at first."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args

import msgspec

from stentor import limits
from stentor.broker.cluster.memory_topics import memory_defaults
from stentor.broker.long_requests import PIECE, Shared, encoded, in_pieces, sorting
from stentor.broker.sessions import group_requests
from stentor.core import decisions, queue_limits, refusals
from stentor.core.cursors import RECORDER
from stentor.core.names import check_cursor_name, check_pattern, matches, printable
from stentor.errors import (
    CoordinationUnavailable,
    InvalidArgument,
    ProtocolError,
    StentorError,
    TopicExists,
    TopicNotFound,
)
from stentor.security.permissions import Action, Permissions
from stentor.wire import batch, deltas, group_messages, messages, queue_messages, service_messages
from stentor.wire.header import HEADER_BYTES, extents, unpack
from stentor.wire.statistics import as_map

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping

    from stentor.broker.catalogue import Catalogue, HeldTopic
    from stentor.broker.cluster.cluster import Cluster
    from stentor.broker.cluster.operators import Operators
    from stentor.broker.cluster.routes import Routes
    from stentor.broker.cluster.topic_admin import TopicAdmin
    from stentor.broker.config import BrokerConfig
    from stentor.broker.cursors.desk import CursorDesk
    from stentor.broker.groups.desk import GroupDesk
    from stentor.broker.long_requests import LongRequests
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.partitions.serving import Serving
    from stentor.broker.queues.desk import QueueDesk
    from stentor.broker.services.desk import ServiceDesk
    from stentor.broker.sessions.client_session import ClientSession
    from stentor.core.cursors import NamedCursor
    from stentor.core.records import Key
    from stentor.core.standing import Standing
    from stentor.security.permissions import Principal
    from stentor.wire.statistics import BrokerStatistics


class Sights(Protocol):
    """What a broker shows of itself."""

    async def gather(self) -> BrokerStatistics: ...
    async def connected(self) -> list[messages.ClientInfo]: ...


class Requests:
    """Answers what clients ask."""

    def __init__(
        self,
        config: BrokerConfig,
        standing: Standing,
        *,
        permissions: Permissions,
        catalogue: Catalogue,
        cluster: Cluster,
        routes: Routes,
        topics: TopicAdmin,
        operators: Operators,
        serving: Serving,
        partitions: Mapping[Key, Partition],
        cursors: CursorDesk,
        groups: GroupDesk,
        services: ServiceDesk,
        queues: QueueDesk,
        sights: Sights,
        long_requests: LongRequests,
        after_delete: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._standing = standing
        self._permissions = permissions
        self._catalogue = catalogue
        self._cluster = cluster
        self._routes = routes
        self._topics = topics
        self._operators = operators
        self._serving = serving
        self._partitions = partitions
        self._cursors = cursors
        self.groups = groups
        self.services = services
        self.queues = queues
        self._sights = sights
        self._connected = Shared(sights.connected)
        self._long_requests = long_requests
        self._after_delete = after_delete
        # A batch that is searched may have a million rows: many threads that do so would share the interpreter with the
        # loop (C35). Those of one client wait for each other first, so that other clients have their turns.
        self._searching = asyncio.Lock()

    async def serve(self, client: ClientSession, request: Any) -> Any:
        """Answer one request."""
        found = _HANDLERS.get(type(request))
        if found is None:
            raise ProtocolError(f"This broker does not know the request {type(request).__name__}.")
        action, handler = found
        self._permissions.check(client.caller.principal, action, self._topic_of(request))
        if self._standing.storeless and not isinstance(request, _WITHOUT_STORE):
            raise refusals.without_store()
        try:
            return await handler(self, client, request)
        except TopicNotFound as error:
            if self._standing.storeless:
                raise refusals.without_store() from None  # the store may know it
            if not (self._cluster.reaches_store and await self._topics.appeared(error.object)):
                raise
        return await handler(self, client, request)

    def _topic_of(self, request: Any) -> str:
        """The topic that a request is about, if it is about one."""
        if (topic_id := getattr(request, "topic_id", None)) is not None:
            topic = self._catalogue.by_id.get(topic_id)
            return "" if topic is None else topic.record.name
        if isinstance(request, messages.GroupHeartbeat):
            return ""  # what it reads is looked at when it opens streams
        return getattr(request, "topic", "") or getattr(request, "name", "")

    # --- topics ---------------------------------------------------------------------------------

    async def _change(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Change topics, one change at a time; a change that began is finished, even if its client is gone."""
        changing = self._topics.changing
        try:
            self._cluster.rollback.check()
            self._check_store()
            await changing.acquire()
        except BaseException:
            work.close()
            raise
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: changing.release())
        # Whoever asked may have gone; then nobody needs to hear how it ended.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    def _check_store(self) -> None:
        """Nothing can be changed from here while the store does not answer; another broker may reach it (C29)."""
        if not self._cluster.reaches_store:
            raise CoordinationUnavailable(
                "This broker does not reach its coordination store.",
                hint="Look at the network between the two; another broker may reach it.",
            )

    async def _create(self, client: ClientSession, request: messages.CreateTopic) -> messages.TopicDescribed:
        return await self._described(client, await self._change(self._create_topic(request)))

    def _defaults(self, wanted: messages.TopicChanges) -> messages.TopicSettings:
        """What this broker gives to topics that do not say otherwise; a table never loses what it holds by itself, nor
        does a topic that is only compacted.
        """
        settings = self._config.topic_settings()
        if wanted.durability == "memory":
            return memory_defaults(settings)
        if wanted.kind == "table" or wanted.cleanup == "compact":
            return msgspec.structs.replace(settings, retention_age_s=None, retention_bytes=None)
        if wanted.kind == "queue" and settings.retention_age_s is None and settings.retention_bytes is None:
            return msgspec.structs.replace(
                settings, retention_age_s=queue_limits.QUEUE_RETENTION_S
            )  # of what is finished
        return settings

    async def _create_topic(self, request: messages.CreateTopic) -> HeldTopic:
        existing = self._catalogue.topics.get(request.name)
        if existing is not None and (request.exist_ok or request.automatic):
            return existing
        if request.automatic and not self._config.auto_create:
            raise TopicNotFound(
                f"There is no topic {request.name}, and this broker does not make topics by itself.",
                hint=f"Make it with `stentor topic create {request.name}`.",
                object=request.name,
            )
        self._check_wait(request.settings)
        settings = messages.merge_settings(self._defaults(request.settings), request.settings)
        if request.automatic and request.name in _MADE_AS:
            settings = messages.merge_settings(settings, _MADE_AS[request.name])
        try:
            return await self._topics.create(request.name, settings)
        except TopicExists:
            await self._cluster.follower.look_again()  # another broker was first
            if not (request.exist_ok or request.automatic) or request.name not in self._catalogue.topics:
                raise
            return self._catalogue.get(request.name)

    async def _alter(self, client: ClientSession, request: messages.AlterTopic) -> messages.TopicDescribed:
        self._check_wait(request.changes)
        return await self._described(client, await self._change(self._topics.alter(request.name, request.changes)))

    def _check_wait(self, changes: messages.TopicChanges) -> None:
        """Whether retention can wait for the cursor that is named, if one is."""
        if changes.retention_waits_for:
            check_cursor_name(changes.retention_waits_for)
            self._cursors.check_enabled()

    async def _register_schema(
        self, client: ClientSession, request: messages.RegisterSchema
    ) -> messages.TopicDescribed:
        changed = await self._change(self._topics.register_schema(request.name, request.columns))
        return await self._described(client, changed)

    async def _delete(self, _: ClientSession, request: messages.DeleteTopic) -> messages.Done:
        await self._change(self._delete_topic(request.name))
        return messages.Done()

    async def _delete_topic(self, name: str) -> None:
        await self._topics.delete(name)
        await self._after_delete()

    async def _describe(self, client: ClientSession, request: messages.DescribeTopic) -> messages.TopicDescribed:
        topic = self._catalogue.get(request.name)
        await self._cursors.learn_soon(topic.record.id)
        groups = await self._long_requests.walk(client, self.groups.reading(topic.record.id, topic.record.name))
        described = await self._described(client, topic)
        return messages.TopicDescribed(topic=msgspec.structs.replace(described.topic, groups=groups))

    async def _list(self, client: ClientSession, request: messages.ListTopics) -> messages.TopicList:
        check_pattern(request.pattern)
        return await self._long_requests.walk(client, self._listing(client.caller.principal, request))

    def _listing(self, principal: Principal, request: messages.ListTopics) -> Generator[None, None, messages.TopicList]:
        names = []
        for some in in_pieces(list(self._catalogue.topics)):
            names += [name for name in some if matches(request.pattern, name, internal=request.internal)]
            yield
        infos = []
        for number, name in enumerate((yield from sorting(names)), 1):
            topic = self._catalogue.topics.get(name)
            if topic is not None and self._permissions.allows(principal, Action.DESCRIBE, name):
                infos.append(encoded((yield from self._info(topic))))
            if number % PIECE == 0:
                yield
        return messages.TopicList(topics=infos)

    def _info(self, topic: HeldTopic) -> Generator[None, None, messages.TopicInfo]:
        partitions = []
        for key in topic.keys:
            partitions.append(encoded(self._partition_info(key)))
            if len(partitions) % PIECE == 0:
                yield
        return messages.TopicInfo(
            name=topic.record.name, id=topic.record.id, settings=topic.record.settings, partitions=partitions
        )

    def _partition_info(self, key: Key) -> messages.PartitionInfo:
        """What this broker knows of a partition: everything if it holds it, else where it is. A copy that is further
        than the store has no chain (C27).
        """
        partition = self._partitions.get(key)
        info = messages.PartitionInfo(partition=key[1]) if partition is None else partition.info()
        held = self._catalogue.chains.get(key)
        newer = held is not None and held.record.epoch > info.epoch
        if held is not None and (newer or (not info.chain and held.record.epoch == info.epoch)):
            # It is elsewhere, was made a moment ago, or this copy has not followed yet: its disk may hang.
            chain = [member.broker for member in held.record.chain]
            info = msgspec.structs.replace(info, epoch=held.record.epoch, chain=chain)
        return msgspec.structs.replace(info, recorded=self._cursors.shown(key))

    async def _described(self, client: ClientSession, topic: HeldTopic) -> messages.TopicDescribed:
        info = await self._long_requests.walk(client, self._info(topic))
        return messages.TopicDescribed(topic=msgspec.structs.replace(info, schemas=topic.record.schemas))

    async def _watch_routes(self, client: ClientSession, request: messages.WatchRoutes) -> messages.RouteTable:
        refusal = self._serving.refuse_all()
        if refusal is not None and not (self._standing.storeless and request.stale):
            raise refusal
        await self._long_requests.walk(client, self._routes.prepare())
        client.watches_routes = True  # in one step with the table, which no change may come between
        return self._routes.table(client.listener)

    # --- partitions -----------------------------------------------------------------------------

    async def _find_offset(self, client: ClientSession, request: messages.FindOffset) -> messages.OffsetFound:
        partition = self._serving.partition(request.topic_id, request.partition)
        committed, sure = self._serving.check_reader(partition), True
        decisions.check_seen(partition.replica, partition.name, seen=request.seen, epoch=request.seen_epoch)
        if request.at != "earliest":
            committed, sure = await self._serving.find_end(partition, stale=request.stale)
        start = partition.log.start
        if request.at is not None:
            offset = start if request.at == "earliest" else committed
        elif request.last is not None:
            offset = max(start, committed - request.last)
        elif request.timestamp_us is not None:
            search = partial(_offset_at, partition, request.timestamp_us, committed)
            async with client.searching, self._searching:
                offset = await _read(partition, search)
        else:
            raise InvalidArgument("A position is missing.", hint="Name 'earliest', 'latest', a time or a number.")
        epoch = partition.replica.epoch
        begins = partition.replica.begins
        return messages.OffsetFound(
            offset=offset, start=start, committed=committed, epoch=epoch, sure=sure, begins=begins
        )

    async def _report_damage(self, _: ClientSession, request: messages.ReportDamage) -> messages.Done:
        """A reader saw a bad checksum: reading the place ourselves finds out whether our disk did it."""
        partition = self._serving.partition(request.topic_id, request.partition)
        end = min(request.end, partition.committed)
        offset, reads = request.offset, 0
        while offset < end and reads < limits.DAMAGE_READS_MAX:
            read = partial(partition.log.read, offset, partition.committed, limits.DELIVERY_BYTES)
            found = await _read(partition, read)
            offset, reads = found.next_offset, reads + 1
        return messages.Done()

    async def _mark_recorded(self, client: ClientSession, request: messages.MarkRecorded) -> messages.Done:
        """In the words of older clients: a move of the recorder's cursor."""
        await self._cursors.move(request.topic, RECORDER, request.ends, by=client.caller.name)
        return messages.Done()

    async def _move_cursor(self, client: ClientSession, request: messages.MoveCursor) -> messages.Done:
        by = request.by or client.caller.name
        await self._cursors.move(request.topic, request.name, request.positions, by=printable(by), back=request.back)
        return messages.Done()

    async def _list_cursors(self, client: ClientSession, request: messages.ListCursors) -> messages.CursorList:
        found = await self._cursors.of_topic(request.topic)
        return await self._long_requests.walk(client, _cursors(found))

    async def _delete_cursor(self, _: ClientSession, request: messages.DeleteCursor) -> messages.Done:
        await self._cursors.delete(request.topic, request.name)
        return messages.Done()

    # --- the broker and its cluster -------------------------------------------------------------

    async def _clients(self, _: ClientSession, __: messages.ListClients) -> messages.ClientList:
        return messages.ClientList(clients=await self._connected.get())

    async def _statistics(self, _: ClientSession, __: messages.GetStatistics) -> messages.Statistics:
        return messages.Statistics(statistics=as_map(await self._sights.gather()))

    async def _list_brokers(self, _: ClientSession, __: messages.ListBrokers) -> messages.BrokerList:
        return messages.BrokerList(brokers=self._operators.brokers(self._routes.brokers()))

    async def _drain(self, _: ClientSession, request: messages.DrainBroker) -> messages.Done:
        await self._operators.drain(request.broker, draining=request.draining)
        return messages.Done()

    async def _forget(self, _: ClientSession, request: messages.ForgetBroker) -> messages.Done:
        await self._operators.forget(request.broker)
        return messages.Done()

    async def _recover(self, _: ClientSession, request: messages.RecoverPartition) -> messages.PartitionRecovered:
        return await self._operators.recover(request.topic, request.partition)


def _cursors(found: Mapping[str, NamedCursor]) -> Generator[None, None, messages.CursorList]:
    shown = []
    for names in in_pieces(list(found)):
        for name in names:
            cursor = found[name]
            state = messages.CursorState(
                name=name, positions=cursor.positions, moved_by=cursor.moved_by, moved_at_us=cursor.moved_at_us
            )
            shown.append(encoded(state))
        yield
    return messages.CursorList(cursors=shown)


async def _touch(desk: Requests, session: ClientSession, request: messages.Touch) -> messages.Touched:
    serving = desk._serving  # noqa: SLF001 - a method, but for its place
    partition = serving.partition(request.topic_id, request.partition)
    holder = serving.holder(session.caller.holder)
    return messages.Touched(end=await serving.expiring.touch(partition, request.keys, request.session, holder))


async def _read(partition: Partition, work: Callable[[], Any]) -> Any:
    """Ask the log something, beside the loop."""
    try:
        return await asyncio.get_running_loop().run_in_executor(None, work)
    except StentorError as error:
        raise partition.read_failed(error) from error


def _offset_at(partition: Partition, timestamp_us: int, committed: int) -> int:
    """The first offset whose message is not older: the log finds the batch, its rows the offset."""
    base = partition.log.offset_for_time(timestamp_us, limit=committed)
    if base >= committed:
        return committed
    found = partition.log.read(base, committed, 1)
    for position, length, _, _ in extents(found.data):
        header = unpack(found.data, position)
        if header.passed_over:
            continue
        index = batch.first_at(found.data, position, header, timestamp_us)
        if index >= 0:
            return deltas.offsets(header, memoryview(found.data)[position + HEADER_BYTES : position + length])[index]
    return base


# --- requests to responders -----------------------------------------------------------------------


async def _serve(desk: Requests, client: ClientSession, request: service_messages.Serve) -> messages.Done:
    desk.services.serve(client, request)
    return messages.Done()


async def _stop_serving(desk: Requests, client: ClientSession, request: service_messages.StopServing) -> messages.Done:
    desk.services.stop_serving(client, request)
    return messages.Done()


async def _find_responders(
    desk: Requests, _: ClientSession, request: service_messages.FindResponders
) -> service_messages.RespondersFound:
    return service_messages.RespondersFound(brokers=desk.services.find(request))


async def _queue(desk: Requests, client: ClientSession, request: queue_messages.QueueRequest) -> Any:
    return await desk.queues.serve(client, request, client.caller.holder)


_HANDLERS: Final[dict[type, tuple[Action, Callable[[Requests, ClientSession, Any], Awaitable[Any]]]]] = {
    messages.CreateTopic: (Action.CREATE, Requests._create),  # noqa: SLF001 - the table is part of the class
    messages.AlterTopic: (Action.ALTER, Requests._alter),  # noqa: SLF001
    messages.RegisterSchema: (Action.ALTER, Requests._register_schema),  # noqa: SLF001
    messages.DeleteTopic: (Action.DELETE, Requests._delete),  # noqa: SLF001
    messages.DescribeTopic: (Action.DESCRIBE, Requests._describe),  # noqa: SLF001
    messages.ListTopics: (Action.DESCRIBE, Requests._list),  # noqa: SLF001
    messages.FindOffset: (Action.READ, Requests._find_offset),  # noqa: SLF001
    messages.WatchRoutes: (Action.DESCRIBE, Requests._watch_routes),  # noqa: SLF001
    messages.ListClients: (Action.OBSERVE, Requests._clients),  # noqa: SLF001
    messages.GetStatistics: (Action.OBSERVE, Requests._statistics),  # noqa: SLF001
    messages.ReportDamage: (Action.READ, Requests._report_damage),  # noqa: SLF001
    messages.ListBrokers: (Action.OBSERVE, Requests._list_brokers),  # noqa: SLF001
    messages.DrainBroker: (Action.OPERATE, Requests._drain),  # noqa: SLF001
    messages.ForgetBroker: (Action.OPERATE, Requests._forget),  # noqa: SLF001
    messages.RecoverPartition: (Action.OPERATE, Requests._recover),  # noqa: SLF001
    messages.MarkRecorded: (Action.ALTER, Requests._mark_recorded),  # noqa: SLF001
    messages.MoveCursor: (Action.ALTER, Requests._move_cursor),  # noqa: SLF001
    messages.ListCursors: (Action.DESCRIBE, Requests._list_cursors),  # noqa: SLF001
    messages.DeleteCursor: (Action.ALTER, Requests._delete_cursor),  # noqa: SLF001
    messages.Touch: (Action.PUBLISH, _touch),
    messages.GroupHeartbeat: (Action.READ, group_requests.group_beat),
    messages.LeaveGroup: (Action.READ, group_requests.leave_group),
    messages.CommitGroup: (Action.READ, group_requests.commit_group),
    group_messages.CommitTransaction: (Action.READ, group_requests.commit_transaction),
    group_messages.EndTransaction: (Action.READ, group_requests.end_transaction),
    group_messages.FindTransaction: (Action.READ, group_requests.find_transaction),
    messages.DescribeGroup: (Action.DESCRIBE, group_requests.describe_group),
    messages.ListGroups: (Action.DESCRIBE, group_requests.list_groups),
    messages.DeleteGroup: (Action.ALTER, group_requests.delete_group),
    service_messages.Serve: (Action.READ, _serve),
    service_messages.StopServing: (Action.READ, _stop_serving),
    service_messages.FindResponders: (Action.DESCRIBE, _find_responders),
    queue_messages.RenewJobs: (Action.READ, _queue),
    queue_messages.TakeJobs: (Action.READ, _queue),
    queue_messages.AwaitRecall: (Action.READ, _queue),
    queue_messages.FetchJobs: (Action.READ, _queue),
    queue_messages.SettleJobs: (Action.READ, _queue),
    queue_messages.LeaveQueue: (Action.READ, _queue),
    queue_messages.ConfirmBurial: (Action.READ, _queue),
    queue_messages.PurgeQueue: (Action.ALTER, _queue),
    queue_messages.DescribeQueue: (Action.DESCRIBE, _queue),
}

_MADE_AS: Final = {
    "_metrics": messages.TopicChanges(
        flush="interval",
        retention_age_s=limits.METRICS_RETENTION_S,
        retention_bytes=limits.METRICS_RETENTION_BYTES,
        segment_bytes=limits.METRICS_SEGMENT_BYTES,
    ),
}
"""Topics of the brokers' own: a reader that comes first makes them as the brokers would."""

_WITHOUT_STORE: Final = (*messages.QUESTIONS, messages.ReportDamage, *get_args(service_messages.ServiceRequest))
"""What a broker answers that started while its store was away."""
