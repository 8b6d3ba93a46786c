"""Transactions of groups, as the heads of the internal topic take them (`core.transactions`).

A request is judged, and its record appended, in one turn of the loop: by all that the log says then (C22). Whatever is
wrong with an output is told before anything is written: once a transaction is decided, its outputs must be possible.

Reading the outputs takes long. It comes before that turn, in slices (`long_requests`), and after everything that costs
nothing to look at: how many outputs there are, how large they are, and for which partitions. A topic that is changed
meanwhile may allow other outputs, so the client is asked to try again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from stentor import limits
from stentor.broker.cluster.trust import HOLDERS, TRANSACTIONS
from stentor.broker.cursors.heads import check_size, committed_soon, cursors_of, publish_record
from stentor.broker.groups.heads import groups_of
from stentor.core import group_limits, refusals
from stentor.core.dedupe import LASTING, lasting_id
from stentor.core.holders import NOBODY, may_use
from stentor.core.names import check_group_name, check_member_id, printable
from stentor.core.transactions import GroupTransaction, TransactionDone, Transactions
from stentor.errors import (
    InvalidArgument,
    LimitExceeded,
    NotReady,
    PartitionNotFound,
    StaleGeneration,
    TopicNotFound,
    UnknownOutcome,
)
from stentor.security.permissions import Action
from stentor.wire import batch, queue_rows, table_rows, transaction_records
from stentor.wire import group_messages as m
from stentor.wire.header import HEADER_BYTES, check_header

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from stentor.broker.catalogue import Catalogue, HeldTopic
    from stentor.broker.cluster.trust import Trust
    from stentor.broker.environment import BrokerIdentity
    from stentor.broker.groups.heads import GroupHeads
    from stentor.broker.long_requests import LongRequests
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.ports import Clock
    from stentor.security.permissions import Permissions, Principal
    from stentor.wire.header import BatchHeader


logger = logging.getLogger(__name__)


class TransactionAsker(Protocol):
    """The session of a client that asks."""

    on_left: list[Callable[[], None]]  # called when the client closes it

    @property
    def client(self) -> tuple[str, str]:
        """Name and address."""
        ...

    @property
    def principal(self) -> Principal:
        """Who asks."""
        ...

    @property
    def holder(self) -> bytes:
        """The hash of the secret that the client showed (C36)."""
        ...


class TransactionDesk:
    """Takes transactions, and tells which are not done."""

    def __init__(
        self,
        identity: BrokerIdentity,
        clock: Clock,
        *,
        trust: Trust,
        permissions: Permissions,
        catalogue: Catalogue,
        heads: GroupHeads,
        long_requests: LongRequests,
        check_owner: Callable[[Partition, TransactionAsker, m.CommitGroup | m.CommitTransaction], None],
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._trust = trust
        self._permissions = permissions
        self._catalogue = catalogue
        self._heads = heads
        self._long_requests = long_requests
        self._check_owner = check_owner

    def _check(self, group: str) -> None:
        check_group_name(group)
        if not self._identity.alone and self._trust.level < TRANSACTIONS:
            raise refusals.being_upgraded("transactions")

    # --- members --------------------------------------------------------------------------------

    async def commit(self, client: TransactionAsker, request: m.CommitTransaction) -> None:
        """Decide a transaction: positions and outputs, or nothing of it. To say it twice does no harm."""
        self._check(request.group)
        self._check_owner(self._heads.partition(request.group), client, request)
        headers = self._check_numbers(request)
        reading = self._read_outputs(client.principal, request.outputs, headers)
        topics = await self._long_requests.walk(client, reading)
        partition = self._heads.partition(request.group)
        self._check_owner(partition, client, request)
        self._check_unchanged(topics)
        positions: dict[int, dict[int, int]] = {}
        for each in request.positions:
            positions.setdefault(each.topic_id, {})[each.partition] = each.offset
        transaction = GroupTransaction(
            request.group,
            check_member_id(request.member),
            request.number,
            positions,
            by=printable(client.client[0]),
            at_us=self._clock.now_us(),
            outputs=tuple(request.outputs),
            holder=client.holder if self._identity.alone or self._trust.level >= HOLDERS else NOBODY,
        )
        self._check_number(partition, transaction, request.done)
        self._check_room(partition, transaction)
        await self._append(partition, transaction)

    def _check_number(self, partition: Partition, transaction: GroupTransaction, done: int) -> None:
        """Whether it is the member's next one, or its last one once more."""
        last = transactions_of(partition).last(transaction.group, transaction.member)
        if last is None or last.number < transaction.number:
            if last is not None and last.unfinished is not None and last.number > done:
                raise InvalidArgument(
                    f"Transaction {last.number} of this member is not finished.",
                    hint="A member has one transaction at a time.",
                    object=transaction.group,
                )
            return
        same = last.unfinished is not None and last.number == transaction.number
        if not same or last.unfinished.outputs != transaction.outputs:  # type: ignore[union-attr]
            raise StaleGeneration(
                f"Transaction {transaction.number} of this member of group {transaction.group} comes too late.",
                hint="A later one was committed.",
                object=transaction.group,
            )

    def _check_room(self, partition: Partition, transaction: GroupTransaction) -> None:
        if transaction.size > group_limits.TRANSACTION_BYTES_MAX:
            raise too_large(transaction.size)
        size = transactions_of(partition).size_with(transaction)
        if size > group_limits.TRANSACTIONS_BYTES_MAX:
            raise LimitExceeded(
                f"{partition.name} would hold {size} bytes of transactions that are not finished; the limit is"
                f" {group_limits.TRANSACTIONS_BYTES_MAX}.",
                hint="Start members of the groups whose transactions wait: `stentor group list --json` shows them.",
                object=partition.name,
            )
        for move in transaction_records.moves(transaction):
            check_size(partition, cursors_of(partition), move, reserved=limits.CURSOR_RESERVED)

    async def end(self, client: TransactionAsker, request: m.EndTransaction) -> None:
        """All outputs of a transaction are in their topics. To say it again does no harm. StaleGeneration if it is
        neither the caller's nor about a partition of the caller's.
        """
        self._check(request.group)
        partition = self._heads.partition(request.group)
        author = check_member_id(request.author)
        last = transactions_of(partition).last(request.group, author)
        if last is not None and last.unfinished is not None and last.number == request.number:
            self._check_concerned(partition, client, last.unfinished)
            await self._append(partition, TransactionDone(request.group, author, request.number))

    def _check_concerned(self, partition: Partition, client: TransactionAsker, transaction: GroupTransaction) -> None:
        """Whether a caller is the author of a transaction, or has to finish it. What an older client made names no
        author: whoever knows of it may finish it.
        """
        if may_use(transaction.holder, client.holder):
            return
        groups, group = groups_of(partition), transaction.group
        named = ((topic, index) for topic, positions in transaction.positions.items() for index in positions)
        if any(groups.owns(group, key, client.holder) for key in named):
            return
        if self._is_homeless(transaction) and groups.is_member(group, client.holder):
            return
        raise StaleGeneration(
            f"This transaction of group {group} is another client's.",
            hint="Its author finishes it, or whoever owns a partition that it took messages from.",
            object=group,
        )

    async def find(self, client: TransactionAsker, request: m.FindTransaction) -> m.TransactionFound:
        """The oldest transaction that named a partition and is not done; else one that nobody can own any more.
        StaleGeneration if a caller asks for what is another's.
        """
        self._check(request.group)
        lead = await self._heads.confirmed(request.group)
        if request.member:
            return m.TransactionFound(token=self._own_token(lead.partition, client, request))
        key = request.topic_id, request.partition
        unfinished = transactions_of(lead.partition).unfinished(request.group)
        for each in sorted(unfinished, key=lambda each: not each.names(key)):
            if self.concerns(each, key):
                self._check_concerned(lead.partition, client, each)
                outputs = [(topic, output) for topic, output in each.outputs if not self._is_deleted(topic, output)]
                proven = any(check_header(output).producer_id >= LASTING for _, output in outputs)
                token = self._token(request.group, each.member, request.again) if proven or request.again else b""
                return m.TransactionFound(author=each.member, number=each.number, outputs=outputs, token=token)
        return m.TransactionFound()

    def _own_token(self, partition: Partition, client: TransactionAsker, request: m.FindTransaction) -> bytes:
        """The token that a member sends its outputs with; empty until all brokers know such outputs (C27)."""
        member = printable(request.member)
        if not groups_of(partition).is_this_member(request.group, member, client.holder):
            raise StaleGeneration(
                f"This member of group {request.group} is another client's.",
                hint="Only the client that joined the group can speak for it.",
                object=request.group,
            )
        return self._token(request.group, member) if self._trust.holders else b""

    def _token(self, group: str, member: str, again: int = 0) -> bytes:
        """Return what whoever publishes the outputs of a member shows: the member, and who comes after it (C36).

        Any of them may send something else with it, now or later. So there are others, for what is then refused.
        """
        if again and not self._trust.holders:
            return b""
        return self._trust.token("transactions", group, member, *([str(again)] if again else []))

    def concerns(self, transaction: GroupTransaction, key: Key) -> bool:
        """Whether who owns a partition has to finish it: anybody, if all topics are gone that it was made from."""
        return transaction.names(key) or self._is_homeless(transaction)

    def _is_homeless(self, transaction: GroupTransaction) -> bool:
        """Whether all topics are gone that it was made from: nobody owns what it named."""
        return not any(topic in self._catalogue.by_id for topic in transaction.positions)

    def _is_deleted(self, topic: str, output: bytes) -> bool:
        """Whether an output has no place any more."""
        header = check_header(output)
        if header.topic_id in self._catalogue.by_id:
            return False
        gone = self._identity.alone or header.topic_id in self._catalogue.deleted
        if gone:
            logger.warning("topic %s was deleted; %d messages of a transaction are dropped", topic, header.count)
        return gone

    async def _append(self, partition: Partition, record: GroupTransaction | TransactionDone) -> None:
        topic_id, index = partition.key
        encoded = transaction_records.encode(record, self._clock.now_us(), topic_id=topic_id, partition=index)
        outcome = publish_record(partition, encoded)
        try:
            await committed_soon(partition, outcome)
        except NotReady as error:
            if outcome.done() and not outcome.cancelled():
                raise  # refused; who stops waiting for it cancels it
            raise UnknownOutcome(error.message, hint=error.hint, object=error.object) from error

    # --- outputs --------------------------------------------------------------------------------

    def _check_numbers(self, request: m.CommitTransaction) -> list[BatchHeader]:
        """Look at how many outputs there are, and at their headers, before any is read; return the headers."""
        if (size := sum(len(output) for _, output in request.outputs)) > group_limits.TRANSACTION_BYTES_MAX:
            raise too_large(size)
        token = self._token(request.group, printable(request.member)) if self._trust.holders else b""
        proven_id = lasting_id(token) if token else 0
        headers = [check_header(output) for _, output in request.outputs]
        for header in headers:
            named = 0 < header.producer_id < LASTING or header.producer_id == proven_id != 0
            if (header.generation, header.sequence) != (request.number, 0) or not named:
                raise InvalidArgument("The outputs of a transaction are not numbered as its outputs.")
        partitions = {(header.topic_id, header.partition) for header in headers}
        if len(partitions) != len(headers) or len({header.producer_id for header in headers}) > 1:
            raise InvalidArgument("A transaction sends one batch to each partition, all under one producer id.")
        if (count := sum(header.count for header in headers)) > limits.BATCH_MESSAGES_MAX:
            raise LimitExceeded(
                f"A transaction sends {count} messages; the limit is {limits.BATCH_MESSAGES_MAX}.",
                hint="Take fewer messages in each transaction.",
            )
        return headers

    def _read_outputs(
        self, principal: Principal, outputs: list[tuple[str, bytes]], headers: list[BatchHeader]
    ) -> Generator[None, None, list[HeldTopic]]:
        """Judge the outputs, one in each piece; return the topics that they are for."""
        topics, expanded = [], 0
        for (name, output), header in zip(outputs, headers, strict=True):
            expanded += batch.expanded_bytes(header, memoryview(output)[HEADER_BYTES:])
            if expanded > limits.BATCH_EXPANDED_BYTES_MAX:
                raise LimitExceeded(
                    f"What a transaction sends expands to {expanded} bytes or more; the limit is"
                    f" {limits.BATCH_EXPANDED_BYTES_MAX}.",
                    hint="Take fewer messages in each transaction.",
                )
            batch.validate(output, header)
            topics.append(self._check_target(principal, name, header, output))
            yield
        return topics

    def _check_unchanged(self, topics: list[HeldTopic]) -> None:
        """Whether what the outputs were judged by is still so."""
        for topic in topics:
            if self._catalogue.by_id.get(topic.record.id) is not topic:
                name = topic.record.name
                raise NotReady(f"Topic {name} was changed just now.", hint="Try again in a moment.", object=name)

    def _check_target(self, principal: Principal, name: str, header: BatchHeader, output: bytes) -> HeldTopic:
        topic = self._catalogue.by_id.get(header.topic_id)
        if topic is None and header.topic_id in self._catalogue.deleted:
            raise TopicNotFound(f"Topic {printable(name)} was deleted.", hint="Make it again.", object=printable(name))
        if topic is None:
            raise NotReady(f"This broker has not heard of topic {printable(name)} yet.", hint="Try again in a moment.")
        record = topic.record
        if record.name != name:
            raise InvalidArgument(f"A batch for {record.name} is named as one for {printable(name)}.")
        self._permissions.check(principal, Action.PUBLISH, record.name)
        if header.partition >= record.settings.partitions:
            raise PartitionNotFound(f"Topic {record.name} has no partition {header.partition}.", object=record.name)
        settings, rows = record.settings, memoryview(output)[HEADER_BYTES:]
        if record.schemas or settings.kind == "table" or header.conditional or header.timed or header.schema_id:
            raise InvalidArgument(
                f"Transactions send plain messages; {record.name} takes others.",
                hint="They cannot change tables, and topics with a schema take rows.",
                object=record.name,
            )
        if settings.kind == "queue":
            queue_rows.check(header, rows, record.name, ordered=settings.ordered_by == "key")
        elif settings.compacted:
            table_rows.check_keys(header, rows, record.name)
        return topic


def too_large(size: int) -> LimitExceeded:
    """A transaction sends too much."""
    return LimitExceeded(
        f"A transaction sends {size} bytes; the limit is {group_limits.TRANSACTION_BYTES_MAX}.",
        hint="Take fewer messages in each transaction.",
    )


def transactions_of(partition: Partition) -> Transactions:
    """The transactions that are derived from a partition's log."""
    return next(state for state in partition.replica.states if isinstance(state, Transactions))
