"""Control requests: one function per request, found by the request's type."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor.broker.cluster import schemas
from stentor.broker.cluster.storeless_start import without_store
from stentor.broker.partitions.read_end import find_end
from stentor.core.names import check_pattern, matches
from stentor.errors import (
    CoordinationUnavailable,
    InvalidArgument,
    ProtocolError,
    StentorError,
    TopicExists,
    TopicNotFound,
)
from stentor.wire import batch, messages
from stentor.wire.header import extents, unpack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from stentor.broker.broker import Broker
    from stentor.broker.catalogue import HeldTopic
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.sessions.session import Session
    from stentor.core.records import Key


_DAMAGE_READS_MAX = 64  # one delivery is a read or two; a liar gets no more than this


async def serve(broker: Broker, session: Session, request: Any) -> Any:
    """Answer one request."""
    handler = _HANDLERS.get(type(request))
    if handler is None:
        raise ProtocolError(f"This broker does not know the request {type(request).__name__}.")
    if broker.waiting.serves and not isinstance(request, _WITHOUT_STORE):
        raise without_store()
    try:
        return await handler(broker, session, request)
    except TopicNotFound:
        if broker.waiting.serves:
            raise without_store() from None  # the store may know it
        raise


async def _change(broker: Broker, work: Coroutine[Any, Any, Any]) -> Any:
    """Change topics, one change at a time; a change that began is finished, even if its client is gone."""
    try:
        broker.cluster.restored.check()
        _check_store(broker)
        await broker.admin.acquire()
    except BaseException:
        work.close()
        raise
    changing = broker.loop.create_task(work)
    changing.add_done_callback(lambda _: broker.admin.release())
    # Whoever asked may have gone; then nobody needs to hear how it ended.
    changing.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(changing)


def _check_store(broker: Broker) -> None:
    """Nothing can be changed from here while the store does not answer; another broker may reach it (C29)."""
    member = broker.cluster.member
    if member is not None and not member.membership.reaches_store:
        raise CoordinationUnavailable(
            "This broker does not reach its coordination store.",
            hint="Look at the network between the two; another broker may reach it.",
        )


async def _create(broker: Broker, _: Session, request: messages.CreateTopic) -> messages.TopicDescribed:
    return _described(broker, await _change(broker, _create_topic(broker, request)))


async def _create_topic(broker: Broker, request: messages.CreateTopic) -> HeldTopic:
    existing = broker.catalogue.topics.get(request.name)
    if existing is not None and (request.exist_ok or request.automatic):
        return existing
    if request.automatic and not broker.config.auto_create:
        raise TopicNotFound(
            f"There is no topic {request.name}, and this broker does not make topics by itself.",
            hint=f"Make it with `stentor topic create {request.name}`.",
            object=request.name,
        )
    settings = messages.merge_settings(broker.config.topic_settings(), request.settings)
    if request.automatic and request.name in _MADE_AS:
        settings = messages.merge_settings(settings, _MADE_AS[request.name])
    try:
        return await broker.create_topic(request.name, settings)
    except TopicExists:
        await broker.cluster.look_again()  # another broker was first
        if not (request.exist_ok or request.automatic) or request.name not in broker.catalogue.topics:
            raise
        return broker.catalogue.get(request.name)


async def _alter(broker: Broker, _: Session, request: messages.AlterTopic) -> messages.TopicDescribed:
    return _described(broker, await _change(broker, broker.alter_topic(request.name, request.changes)))


async def _register_schema(broker: Broker, _: Session, request: messages.RegisterSchema) -> messages.TopicDescribed:
    return _described(broker, await _change(broker, schemas.register(broker, request.name, request.columns)))


async def _delete(broker: Broker, _: Session, request: messages.DeleteTopic) -> messages.Done:
    await _change(broker, broker.delete_topic(request.name))
    return messages.Done()


async def _describe(broker: Broker, _: Session, request: messages.DescribeTopic) -> messages.TopicDescribed:
    return _described(broker, broker.catalogue.get(request.name))


async def _list(broker: Broker, _: Session, request: messages.ListTopics) -> messages.TopicList:
    pattern = check_pattern(request.pattern)
    found = [topic for name, topic in broker.catalogue.topics.items() if matches(pattern, name)]
    found.sort(key=lambda topic: topic.record.name)
    infos, partitions = [], 0
    for topic in found:
        infos.append(_info(broker, topic))
        partitions += topic.record.settings.partitions
        if partitions >= limits.STATISTICS_SLICE:
            partitions = 0
            await asyncio.sleep(0)
    return messages.TopicList(topics=infos)


async def _watch_routes(broker: Broker, session: Session, request: messages.WatchRoutes) -> messages.RouteTable:
    if not broker.cluster.confirmed and not (broker.waiting.serves and request.stale):
        raise broker.cut_off()
    session.watches_routes = True
    return broker.route_table(session.listener)


async def _clients(broker: Broker, _: Session, __: messages.ListClients) -> messages.ClientList:
    return messages.ClientList(clients=[s.info() for s in broker.sessions if s.greeted])


async def _statistics(broker: Broker, _: Session, __: messages.GetStatistics) -> messages.Statistics:
    return messages.Statistics(statistics=await broker.gather_statistics())


async def _find_offset(broker: Broker, _: Session, request: messages.FindOffset) -> messages.OffsetFound:
    partition = broker.partition(request.topic_id, request.partition)
    broker.check_serves(partition)
    partition.check_seen(request.seen, request.seen_epoch)
    committed, sure = partition.committed, True
    if request.at != "earliest":
        committed, sure = await find_end(broker, partition, stale=request.stale)
    start = partition.log.start
    if request.at is not None:
        offset = start if request.at == "earliest" else committed
    elif request.last is not None:
        offset = max(start, committed - request.last)
    elif request.timestamp_us is not None:
        offset = await _read(partition, partial(_offset_at, partition, request.timestamp_us, committed))
    else:
        raise InvalidArgument("A position is missing.", hint="Name 'earliest', 'latest', a time or a number.")
    epoch = partition.replica.epoch
    return messages.OffsetFound(offset=offset, start=start, committed=committed, epoch=epoch, sure=sure)


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
    for position, _, base_offset, _ in extents(found.data):
        times = batch.timestamps(found.data, position, unpack(found.data, position))
        for index, time_us in enumerate(times):
            if time_us >= timestamp_us:
                return base_offset + index
    return base


async def _report_damage(broker: Broker, _: Session, request: messages.ReportDamage) -> messages.Done:
    """A reader saw a bad checksum: reading the place ourselves finds out whether our disk did it."""
    partition = broker.partition(request.topic_id, request.partition)
    end = min(request.end, partition.committed)
    offset, reads = request.offset, 0
    while offset < end and reads < _DAMAGE_READS_MAX:
        read = partial(partition.log.read, offset, partition.committed, limits.DELIVERY_BYTES)
        found = await _read(partition, read)
        offset, reads = found.next_offset, reads + 1
    return messages.Done()


async def _list_brokers(broker: Broker, _: Session, __: messages.ListBrokers) -> messages.BrokerList:
    return messages.BrokerList(brokers=broker.operators.brokers())


async def _drain(broker: Broker, _: Session, request: messages.DrainBroker) -> messages.Done:
    await broker.operators.drain(request.broker, draining=request.draining)
    return messages.Done()


async def _forget(broker: Broker, _: Session, request: messages.ForgetBroker) -> messages.Done:
    await broker.operators.forget(request.broker)
    return messages.Done()


async def _recover(broker: Broker, _: Session, request: messages.RecoverPartition) -> messages.PartitionRecovered:
    return await broker.operators.recover(request.topic, request.partition)


async def _mark_recorded(broker: Broker, _: Session, request: messages.MarkRecorded) -> messages.Done:
    broker.recorded.mark(request.topic, request.ends)
    return messages.Done()


def _info(broker: Broker, topic: HeldTopic) -> messages.TopicInfo:
    return messages.TopicInfo(
        name=topic.record.name,
        id=topic.record.id,
        settings=topic.record.settings,
        partitions=[_partition_info(broker, key) for key in topic.keys],
    )


def _partition_info(broker: Broker, key: Key) -> messages.PartitionInfo:
    """What this broker knows of a partition: everything if it holds it, else where it is. A copy that is further than
    the store has no chain (C27).
    """
    partition = broker.replicas.partitions.get(key)
    info = messages.PartitionInfo(partition=key[1]) if partition is None else partition.info()
    held = broker.catalogue.chains.get(key)
    if held is not None and (held.record.epoch > info.epoch or (not info.chain and held.record.epoch == info.epoch)):
        # It is elsewhere, was made a moment ago, or this copy has not followed yet: its disk may hang.
        chain = [member.broker for member in held.record.chain]
        info = msgspec.structs.replace(info, epoch=held.record.epoch, chain=chain)
    return msgspec.structs.replace(info, recorded=broker.recorded.end(key))


def _described(broker: Broker, topic: HeldTopic) -> messages.TopicDescribed:
    info = _info(broker, topic)
    return messages.TopicDescribed(topic=msgspec.structs.replace(info, schemas=topic.record.schemas))


_HANDLERS: dict[type, Callable[[Broker, Session, Any], Awaitable[Any]]] = {
    messages.CreateTopic: _create,
    messages.AlterTopic: _alter,
    messages.RegisterSchema: _register_schema,
    messages.DeleteTopic: _delete,
    messages.DescribeTopic: _describe,
    messages.ListTopics: _list,
    messages.FindOffset: _find_offset,
    messages.WatchRoutes: _watch_routes,
    messages.ListClients: _clients,
    messages.GetStatistics: _statistics,
    messages.ReportDamage: _report_damage,
    messages.ListBrokers: _list_brokers,
    messages.DrainBroker: _drain,
    messages.ForgetBroker: _forget,
    messages.RecoverPartition: _recover,
    messages.MarkRecorded: _mark_recorded,
}

_MADE_AS = {
    "_metrics": messages.TopicChanges(flush="interval", retention_age_s=limits.METRICS_RETENTION_S),
}
"""Topics of the brokers' own: a reader that comes first makes them as the brokers would."""

_WITHOUT_STORE = (*messages.QUESTIONS, messages.ReportDamage)
"""What a broker answers that started while its store was away."""
