"""Exactly once into topics: what tasks staged is published by the driver, and a redo publishes nothing twice.

Theory of operation. A streaming write goes in three steps per epoch (Spark's batch id):

1. *Stage.* Every task attempt publishes its rows to `_spark.<application>.staged`, one batch per chunk, and reports
   where they are. What an attempt that lost leaves there is never looked at. Rows go when they were published.
2. *Decide.* The driver writes the list of the winning attempts' chunks, the manifest, as one message to
   `_spark.<application>.commits`. The first manifest of an epoch is the decision: from here on the epoch's rows and
   their order are fixed, whatever a repetition of its tasks may yield.
3. *Publish.* The chunks of the manifest are read back and published to their partitions, always in the same order and
   cut in the same way, by a producer whose identity is the application and whose generation is the manifest's place
   among the others. Brokers recognise every batch they have, so this step may be repeated as often as it is
   interrupted. The manifest names the producer's id, so that an epoch is never finished under another one: that would
   double its rows. A manifest of an older version names none, and is finished under the id that version used.

The application's name and its topics are public, so the producer's token is made with a secret (C36): that of the
environment, else one that the query keeps in its checkpoint (kept_secret.py), else none. An epoch that was begun with
another one of these is finished with that one.

A repeated epoch finds its manifest and does step 3 again, from the rows that were staged first. Spark begins no epoch
before the one before it is committed. So it repeats the newest epoch at most, with the same rows, unless its checkpoint
is older than what was written: files of it were lost, or it comes from a backup. Then the same numbers stand for other
rows, which must neither be dropped nor doubled in silence. The ledger notices an epoch that is older than its newest,
or has another number of rows than before, and refuses it; `dropRepeated` drops such rows.

What is promised: every row of an epoch is in its partition exactly once. The rows of an epoch appear in a partition at
once, up to GROUP_BYTES; more of them appear in pieces of that size. Different partitions do not appear at once.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

import stentor
from stentor.client.identity import SECRET_VARIABLE, FormerIdentity, producer_id_of
from stentor.client.tabular import of_version
from stentor.errors import InternalError, InvalidArgument, OffsetOutOfRange, StentorError, TopicNotFound
from stentor.spark import kept_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stentor.client.sync_client import Client

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1 << 20
GROUP_BYTES: Final = 8 << 20
STAGED_PARTITIONS: Final = 4
STAGED_KEPT_S: Final = 60
STAGED_SEGMENT_BYTES: Final = 16 << 20
"""Staged rows are kept until the next epoch is published, however long that takes: the stage is a topic that keeps what
is not recorded, and each epoch marks those before it. Then whole segments go, so they are small."""
MARK_EVERY_S: Final = 10.0
_MANIFESTS_KEPT_BYTES: Final = 64 << 20
_MANIFESTS_LOOKED_AT: Final = 64
_MESSAGE_COLUMNS: Final = ["timestamp", "key", "value", "headers"]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Staged rows of one task for one partition of one topic."""

    topic: str
    topic_id: int
    partition: int
    staged_id: int  # of the staging topic: one that was made again has other rows at the same offsets
    staged_partition: int
    staged_offset: int
    rows: int
    schema_id: int = 0  # the version of the topic's schema that the rows are of; 0: it has none


class Manifest(msgspec.Struct, frozen=True):
    """What an epoch consists of."""

    epoch: int
    chunks: list[Chunk]
    group_bytes: int  # how its rows are cut, whatever later versions prefer
    query: str = ""  # whose epochs these are: those of another checkpoint are counted from 0 again
    producer_id: int = 0  # under which it is published; 0: by an older version, which had no tokens


_warned: set[str] = set()  # applications, in this process
_marked_at: dict[str, float] = {}  # by application, in this process
_decoder = msgspec.msgpack.Decoder(Manifest)


def staged_topic(application: str) -> str:
    """Where tasks put their rows."""
    return f"_spark.{application}.staged"


def commits_topic(application: str) -> str:
    """Where the driver writes its decisions."""
    return f"_spark.{application}.commits"


class Stage:
    """A task's rows on their way to the staging topic."""

    def __init__(self, client: Client, application: str, task: int, schema_id: int = 0) -> None:
        name = staged_topic(application)
        made = client.create_topic(
            name,
            exist_ok=True,
            partitions=STAGED_PARTITIONS,
            retention_age_s=STAGED_KEPT_S,
            keep_unrecorded=True,
            segment_bytes=STAGED_SEGMENT_BYTES,
        )
        self._client = client
        self._id = made.id
        self._schema_id = schema_id
        self._partition = task % STAGED_PARTITIONS
        self._producer = client.producer(name, batch_bytes=CHUNK_BYTES)
        self._gathered: dict[tuple[str, int], list[Any]] = {}
        self._topic_ids: dict[str, int] = {}
        self._chunks: list[Chunk] = []

    def add(self, topic: str, partition: int, rows: Any) -> None:
        gathered = self._gathered.setdefault((topic, partition), [])
        gathered.append(rows)
        if sum(part.nbytes for part in gathered) >= CHUNK_BYTES:
            self._put(topic, partition)

    def _put(self, topic: str, partition: int) -> None:
        rows = pa.concat_batches(self._gathered.pop((topic, partition)))
        if topic not in self._topic_ids:
            self._topic_ids[topic] = self._client.find_topic(topic).id
        for piece in _pieces(rows):
            note = self._noter(topic, self._topic_ids[topic], partition, piece.num_rows)
            self._producer.send_batch(piece, partition=self._partition, on_delivery=note)

    def _noter(self, topic: str, topic_id: int, partition: int, rows: int) -> Any:
        def note(receipt: Any, error: StentorError | None) -> None:
            if error is None:
                place = (self._id, self._partition, receipt.offset)
                self._chunks.append(Chunk(topic, topic_id, partition, *place, rows, self._schema_id))

        return note

    def finish(self) -> list[Chunk]:
        """All rows are staged; where they are."""
        for topic, partition in list(self._gathered):
            self._put(topic, partition)
        self._producer.close()
        return self._chunks


def _pieces(rows: Any) -> Iterator[Any]:
    """Pieces that the producer makes one batch of each: it cuts what is larger than twice its batches."""
    if rows.nbytes <= 2 * CHUNK_BYTES or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _pieces(rows.slice(0, half))
    yield from _pieces(rows.slice(half))


class Ledger:
    """The driver's side: decides what an epoch is, and publishes it."""

    def __init__(
        self, client: Client, application: str, query: str = "", *, drop_repeated: bool = False, checkpoint: str = ""
    ) -> None:
        self._client = client
        self._application = application
        self._query = query
        self._drop_repeated = drop_repeated
        self._commits = commits_topic(application)
        self._secrets = _secrets_for(application, query, checkpoint)
        self._id = client.create_topic(self._commits, exist_ok=True, retention_bytes=_MANIFESTS_KEPT_BYTES).id

    def commit(self, epoch: int, chunks: Iterable[Chunk]) -> None:
        """Publish an epoch, or go on with it; InvalidArgument for one that may have other rows than before."""
        mine = list(chunks)
        known, end = self._last_manifest()
        self._check_query(known)
        if known is None or known[0].epoch < epoch:
            decision = self._decide(epoch, mine, end)
            if decision is not None:
                self._finish(decision, None if known is None else known[0])
            return
        if known[0].epoch == epoch and not self._is_done(epoch, end):
            self._finish(known, None)  # what was decided is published, whatever comes now
        if mine and not self._drop_repeated:  # without rows nothing is lost
            self._check_repeated(epoch, _rows_of(mine), known[0])

    def _finish(self, decided: tuple[Manifest, int], before: Manifest | None) -> None:
        """Publish, and let go of staged rows that nobody will ask for again.

        After an epoch of a query those are the rows of the epochs before it: Spark repeats the last one if it ends
        before it has written down that it is done. A batch write has no next one that could do it, so it says itself
        that it is done.
        """
        self._publish(*decided)
        manifest = decided[0]
        if not self._query:
            done = msgspec.structs.replace(manifest, chunks=[])
            self._client.publish(self._commits, msgspec.msgpack.encode(done))
            self._mark({chunk.staged_partition: chunk.staged_offset + chunk.rows for chunk in manifest.chunks})
        elif time.monotonic() >= _marked_at.get(self._application, -MARK_EVERY_S) + MARK_EVERY_S:
            _marked_at[self._application] = time.monotonic()
            stage, earlier = manifest.chunks[0].staged_id, [] if before is None else before.chunks
            ends = {c.staged_partition: c.staged_offset + c.rows for c in earlier if c.staged_id == stage}
            self._mark(ends | {chunk.staged_partition: chunk.staged_offset for chunk in reversed(manifest.chunks)})

    def _is_done(self, epoch: int, end: int) -> bool:
        """Whether a batch write says so; its staged rows may be gone."""
        return any(not manifest.chunks for manifest, _ in self._manifests(end) if manifest.epoch == epoch)

    def _mark(self, ends: dict[int, int]) -> None:
        """By partition of the stage: what is below is of no use any more. Chunks of a manifest are in order."""
        try:
            self._client.mark_recorded(staged_topic(self._application), ends)
        except StentorError as error:  # the next epoch marks these, too
            logger.debug("Staged rows of %s stay for now: %s", self._application, error)

    # --- deciding -------------------------------------------------------------------------------

    def _check_query(self, known: tuple[Manifest, int] | None) -> None:
        if known is not None and known[0].query != self._query:
            raise InvalidArgument(
                f"The application {self._application} has written with another checkpoint.",
                hint="Choose another applicationId, or use the checkpoint that it had: that one knows what is written.",
            )

    def _check_repeated(self, epoch: int, rows: int, newest: Manifest) -> None:
        what = "epoch" if self._query else "txnVersion"
        before = _rows_of(newest.chunks)
        if epoch < newest.epoch:
            found = f"{what} {epoch} comes with {rows} rows after {what} {newest.epoch} was written"
        elif rows != before:
            found = f"{what} {epoch} comes with {rows} rows after it was written with {before}"
        else:
            return
        if self._query:
            raise InvalidArgument(
                f"The checkpoint of application {self._application} is older than what the application wrote: {found}.",
                hint="Restore the newest checkpoint. Or use dropRepeated=true, which leaves out the rows of"
                f" epochs up to {newest.epoch}, though some may be new; or with another applicationId, which publishes"
                " them all, though some may be there.",
            )
        raise InvalidArgument(
            f"Application {self._application} repeats an earlier write: {found}.",
            hint="Count txnVersion up for new rows, or set dropRepeated=true to leave these rows out.",
        )

    def _decide(self, epoch: int, chunks: list[Chunk], end: int) -> tuple[Manifest, int] | None:
        """The manifest that holds for a new epoch, and its place; None when there is nothing to publish."""
        if not chunks:
            return None
        order = sorted(chunks, key=lambda chunk: (chunk.staged_partition, chunk.staged_offset))
        mine = Manifest(epoch, order, GROUP_BYTES, self._query, producer_id_of(self._identity, self._secrets[0]))
        receipt = self._client.publish(self._commits, msgspec.msgpack.encode(mine))
        if receipt.offset == end:
            return mine, end
        return self._last_manifest()[0]  # another driver of the same query was here: the first one counts

    def _last_manifest(self) -> tuple[tuple[Manifest, int] | None, int]:
        """The first manifest of the newest epoch and its place; the offset after the last one."""
        end = self._client.offsets(self._commits)[0]
        found = self._manifests(end)
        newest = max((manifest.epoch for manifest, _ in found), default=None)
        return next((known for known in found if known[0].epoch == newest), None), end

    def _manifests(self, end: int) -> list[tuple[Manifest, int]]:
        return [
            (_decoder.decode(message.value), message.offset)
            for message in self._client.read(self._commits, start=stentor.Last(_MANIFESTS_LOOKED_AT), end=end)
            if message.value is not None
        ]

    # --- publishing -----------------------------------------------------------------------------

    def _publish(self, manifest: Manifest, place: int) -> None:
        producers: dict[str, Any] = {}
        try:
            for topic, topic_id, partition, rows in self._groups(manifest):
                if topic not in producers:
                    producers[topic] = self._producer(topic, topic_id, place, manifest)
                producers[topic].send_batch(rows, partition=partition)
            for producer in producers.values():
                producer.flush()
        finally:
            for producer in producers.values():
                producer.close()

    def _producer(self, topic: str, topic_id: int, place: int, manifest: Manifest) -> Any:
        if self._client.find_topic(topic).id != topic_id:
            raise TopicNotFound(
                f"Topic {topic} was deleted and created again while rows were on their way to it.",
                hint="Start the query with a new checkpoint.",
                object=topic,
            )
        identity = self._identity if manifest.producer_id else FormerIdentity(self._identity)
        secret = "" if not manifest.producer_id else self._secret_of(manifest)
        half = manifest.group_bytes // 2
        made = self._client.producer(topic, identity=identity, secret=secret, generation=place, batch_bytes=half)
        return of_version(made, manifest.chunks[0].schema_id)  # one for all: rows with a schema go to one topic

    def _secret_of(self, manifest: Manifest) -> str:
        """The secret that an epoch was begun with."""
        for secret in self._secrets:
            if producer_id_of(self._identity, secret) == manifest.producer_id:
                return secret
        raise InvalidArgument(
            f"Epoch {manifest.epoch} of application {self._application} was started with another producer secret.",
            hint=f"Until this epoch is published, set {SECRET_VARIABLE} as it was, or to what the file"
            f" {kept_secret.FILE} in the query's former checkpoint says.",
        )

    @property
    def _identity(self) -> str:
        return f"spark/{self._application}/{self._id:x}"

    def _groups(self, manifest: Manifest) -> Iterator[tuple[str, int, int, Any]]:
        """The rows of each partition, joined until they are large: always the same way."""
        waiting: dict[tuple[str, int, int], list[Any]] = {}
        sizes: dict[tuple[str, int, int], int] = {}
        for chunk, rows in self._staged(manifest.chunks):
            target = (chunk.topic, chunk.topic_id, chunk.partition)
            if sizes.get(target, 0) + rows.nbytes > manifest.group_bytes and target in waiting:
                yield *target, pa.concat_batches(waiting.pop(target))
                sizes[target] = 0
            waiting.setdefault(target, []).append(rows)
            sizes[target] = sizes.get(target, 0) + rows.nbytes
        for target in sorted(waiting):
            yield *target, pa.concat_batches(waiting[target])

    def _staged(self, chunks: list[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        """The staged rows in the order of the staging topic, each partition read once."""
        for partition in sorted({chunk.staged_partition for chunk in chunks}):
            mine = [chunk for chunk in chunks if chunk.staged_partition == partition]
            yield from self._read_back(partition, mine)

    def _read_back(self, partition: int, chunks: list[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        wanted = {chunk.staged_offset: chunk for chunk in chunks}
        first, last = chunks[0], chunks[-1]
        topic = staged_topic(self._application)
        if self._client.find_topic(topic).id != first.staged_id:
            raise _expired(topic)
        try:
            for batch in self._client.read(
                topic, partition=partition, start=first.staged_offset, end=last.staged_offset + last.rows
            ).batches():
                chunk = wanted.pop(batch.column(2)[0].as_py(), None)
                if chunk is not None:
                    yield chunk, batch.select(_MESSAGE_COLUMNS)
        except OffsetOutOfRange as error:
            raise _expired(topic) from error
        if wanted:
            raise InternalError(f"{len(wanted)} staged batches are not in {topic}/{partition}.")


def _secrets_for(application: str, query: str, checkpoint: str) -> list[str]:
    """Return the secret for new epochs, and behind it others that the last one may have been begun with.

    That of the environment comes first, then that of the checkpoint. A secret that this machine kept elsewhere would be
    gone with the driver, and what it has begun could not be finished. So without either there is none, and the
    application's name is all there is to know: then anybody can disturb its epochs, though not falsify them.
    """
    told = os.environ.get(SECRET_VARIABLE, "")
    kept = kept_secret.kept_secret(checkpoint, query, make=not told)
    if not (told or kept) and application not in _warned:
        _warned.add(application)
        logger.warning(
            "%s is not set, and application %s has no checkpoint that can keep a secret: whoever knows its name can"
            " stop its writes. Set it for all drivers.",
            SECRET_VARIABLE,
            application,
        )
    return [*filter(None, (told, kept)), ""]


def _rows_of(chunks: list[Chunk]) -> int:
    return sum(chunk.rows for chunk in chunks)


def _expired(topic: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"Rows staged in {topic} were deleted before they were published.",
        hint="Somebody deleted the topic or changed its retention. Delete the query's checkpoint and output, and"
        " start it again.",
        object=topic,
    )
