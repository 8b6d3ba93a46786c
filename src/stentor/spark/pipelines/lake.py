"""A lake: recorded topics as Parquet files, partitioned by topic and by the day of the message's own time.

    lake/topic=orders.eu/date=2026-11-15/…parquet

The files have the columns of COLUMNS. Two ways of keeping book of them:

    parquet   plain files and a small file of our own, `_stentor/state.json`
    delta     a Delta table, written down by delta-rs; any reader of Delta can read it

Both know, in one step with the files, up to which offset every partition is recorded. So a lake needs no checkpoint
beside it: whoever records goes on where the lake ends, and a round that was interrupted leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
import uuid
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from stentor.errors import CorruptData, InvalidArgument, MissingPackage, NotReady, StorageError
from stentor.spark.pipelines.folders import local_folder, to_read, to_write, write_parquet
from stentor.spark.pipelines.joining import SUFFIX, Join, Joined, left, round_of, sync

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from stentor.spark.pipelines.times import Times

COLUMNS: Final = (
    "topic string, topic_id bigint, partition int, offset bigint, timestamp timestamp, key binary, value binary,"
    " headers array<struct<key:string,value:binary>>, appended_at timestamp, date date"
)
"""`appended_at` is null in rows that older versions recorded."""
TARGET_BYTES: Final = 128 << 20
KEPT_AFTER_COMPACTION_S: Final = 3600.0
"""Queries that began before may still read the files that were joined."""
_LOCK: Final = "_lock"
_PARTITIONED_BY: Final = ["topic", "date"]

Ends = dict[str, dict[int, dict[int, int]]]
"""Topic, topic id, partition: the offset up to which it is recorded."""


def open_lake(path: str | Path, kind: str | None = None) -> Lake:
    """Return the lake of a directory, or a new one; a lake keeps its format.

    InvalidArgument for what is not a directory of this machine, or holds something else.
    """
    place = local_folder(path, "lake")
    found = "delta" if (place / "_delta_log").is_dir() else "parquet" if (place / "_stentor").is_dir() else None
    if kind not in (None, "delta", "parquet"):
        raise InvalidArgument(f"There is no lake format {kind!r}.", hint="Use parquet or delta.")
    if found is not None and kind is not None and found != kind:
        raise InvalidArgument(f"{place} is a lake in {found} format.", hint=f"Leave the format out, or use {found}.")
    begun = (place / _LOCK).is_file()  # a first round may have been interrupted before anything counted
    if found is None and not begun and place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidArgument(f"{place} is not a lake, and is not empty.", hint="Name another directory.")
    return DeltaLake(place) if (found or kind) == "delta" else ParquetLake(place)


class Added(NamedTuple):
    """What one round put into a lake."""

    rows: int
    file_bytes: int


class Lake:
    """What both formats share."""

    kind = ""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether anything was recorded."""
        raise NotImplementedError

    # --- reading --------------------------------------------------------------------------------

    def files(self, topics: Iterable[str] | None = None) -> list[Path]:
        """The files that count, of all topics or of some."""
        raise NotImplementedError

    def frame(
        self, spark: SparkSession, topics: Iterable[str] | None = None, *, times: Times | None = None
    ) -> DataFrame:
        """Everything recorded, as it is now: a later round does not change this frame.

        With `times` the days that can hold such messages; there may be others among them.
        """
        self.check()
        files = self.files(topics)
        if times is not None:
            files = [path for path in files if times.have(path.parent.name.removeprefix("date="))]
        return self._read(spark, files)

    def _read(self, spark: SparkSession, files: list[Path]) -> DataFrame:
        """Files as one frame, with the columns of their folders."""
        found = spark.createDataFrame([], COLUMNS)
        columns = found.columns  # Spark puts those of the folders last
        frames = []
        for root in sorted({path.parents[2] for path in files}):
            chosen = [to_read(path) for path in files if path.parents[2] == root]
            frame = spark.read.schema(COLUMNS).option("basePath", to_write(root)).parquet(*chosen)
            frames.append(frame.select(*columns))
        return reduce(lambda one, other: one.unionByName(other), frames) if frames else found

    def ends(self, topic: str, topic_id: int, partitions: Iterable[int]) -> dict[int, int]:
        """Up to which offset partitions are recorded; what never was is left out."""
        raise NotImplementedError

    def snapshot(
        self,
        spark: SparkSession,
        topic: str,
        topic_id: int,
        partitions: Iterable[int],
        times: Times | None = None,
    ) -> tuple[DataFrame, dict[int, int]]:
        """A topic's rows and ends that belong together, though somebody records meanwhile."""
        while True:
            before = self.ends(topic, topic_id, partitions)
            frame = self.frame(spark, [topic], times=times)
            if self.ends(topic, topic_id, partitions) == before:
                return frame, before

    def topics(self) -> set[str]:
        """The topics of which there is something."""
        return {path.parent.parent.name.removeprefix("topic=") for path in self.files()}

    def check(self) -> None:
        """InvalidArgument where there is no lake."""
        if not self.exists():
            raise InvalidArgument(f"There is no lake at {self.path}.", hint="Create one with `stentor record`.")

    # --- writing --------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time."""
        self.path.mkdir(parents=True, exist_ok=True)
        with alone(self.path / _LOCK, f"Another process writes to the lake {self.path}."):
            self.clean()
            yield

    def clean(self) -> None:
        """Take away what an interrupted round left behind."""
        shutil.rmtree(self.path / "_staging", ignore_errors=True)

    def add(self, frame: DataFrame, ends: Ends, *, planned: int | None = None) -> Added:
        """Record rows, and that these partitions are recorded up to here; return what was added.

        Raises StorageError, and records nothing, if rows are missing among those that Spark wrote.
        """
        staged, rows = self._stage(frame, planned)
        self._commit(staged, ends)
        return Added(rows, sum(size for _, size in staged))

    def _stage(self, frame: DataFrame, planned: int | None) -> tuple[list[tuple[Path, int]], int]:
        """Let Spark write the files where no reader looks; return them with their sizes, and the number of rows."""
        place = self.path / "_staging" / uuid.uuid4().hex
        try:
            found, rows = write_parquet(
                frame,
                place,
                lambda writer: writer.partitionBy(*_PARTITIONED_BY).option("compression", "zstd"),
                "lake",
                planned=planned,
            )
        except StorageError:
            self.clean()
            raise
        return [(path, path.stat().st_size) for path in found], rows

    def _placed(self, staged: Path, name: str, root: Path | None = None) -> Path:
        """Move a staged file to its day's folder; it is on disk there, whatever happens."""
        top = root or self.path
        folder = top / staged.parent.parent.name / staged.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        sync(staged)
        placed = staged.replace(folder / name)
        for changed in (folder, folder.parent, top):
            sync(changed)
        return placed

    def _commit(self, staged: list[tuple[Path, int]], ends: Ends) -> None:
        raise NotImplementedError

    def compact(self, spark: SparkSession, target_bytes: int = TARGET_BYTES) -> int:
        """Join small files; by how many files there are fewer."""
        raise NotImplementedError


class _State(msgspec.Struct):
    """What counts in a lake of plain files: those of rounds up to `round`, or joined ones instead."""

    version: int = 1
    round: int = 0
    ends: Ends = {}
    joined: dict[str, list[Join]] = {}  # folder: its joins, the newest last
    compacted: dict[str, tuple[int, float]] = {}
    """Of older versions, which left small files beside joined ones: since which round older files do not count, and
    since when."""


class ParquetLake(Lake):
    """Plain Parquet; a file's name says which round wrote it, and state.json which rounds count."""

    kind = "parquet"

    @property
    def _state_path(self) -> Path:
        return self.path / "_stentor" / "state.json"

    def exists(self) -> bool:
        return self._state_path.parent.is_dir()

    def _state(self) -> _State:
        path = self._state_path
        try:
            return msgspec.json.decode(path.read_bytes(), type=_State)
        except FileNotFoundError:
            if not self._all(None):
                return _State()
            reason = "it is missing"
        except msgspec.DecodeError as error:
            reason = str(error)
        raise CorruptData(
            f"{path} cannot be read: {reason}.",
            hint="Restore it from a backup. Without it nobody knows which files of the lake count.",
        )

    def _save(self, state: _State) -> None:
        replace_whole(self._state_path, msgspec.json.format(msgspec.json.encode(state)))

    @property
    def _joined(self) -> Joined:
        return Joined(self.path)

    def files(self, topics: Iterable[str] | None = None) -> list[Path]:
        state = self._state()
        wanted = None if topics is None else {f"topic={name}" for name in topics}
        found = [path for path in self._all(topics) if self._counts(state, path)]
        for folder, joins in state.joined.items():
            chosen = wanted is None or folder.partition("/")[0] in wanted
            if chosen and not joins[-1].shown and (self.path / folder).is_dir():  # or somebody deleted the day
                found += self._joined.files(folder, joins[-1].round)
        return found

    def _all(self, topics: Iterable[str] | None) -> list[Path]:
        names = ["*"] if topics is None else sorted(set(topics))
        return [path for name in names for path in sorted(self.path.glob(f"topic={name}/date=*/*.parquet"))]

    @staticmethod
    def _counts(state: _State, path: Path) -> bool:
        number, oldest, _ = _ages(state, path)
        joins = state.joined.get(f"{path.parent.parent.name}/{path.parent.name}", [])
        if joins and not joins[-1].shown:
            oldest = joins[-1].round + 1
        return oldest <= number <= state.round

    def ends(self, topic: str, topic_id: int, partitions: Iterable[int]) -> dict[int, int]:
        known = self._state().ends.get(topic, {}).get(topic_id, {})
        return {partition: known[partition] for partition in partitions if partition in known}

    def clean(self) -> None:
        super().clean()
        self._joined.clean()
        state, now = self._state(), time.time()
        if not self._state_path.is_file():
            self._save(state)  # before the first files: without it they would be of nobody knows which round
        for path in self._all(None):
            number, oldest, since = _ages(state, path)
            if number > state.round or (number < oldest and now - since > KEPT_AFTER_COMPACTION_S):
                path.unlink()
        self._show_joined(state, now)

    def _show_joined(self, state: _State, now: float) -> None:
        """Let plain readers see joined files as soon as our own read the small ones no more."""
        changed = False
        for folder, joins in list(state.joined.items()):
            deleted = not (self.path / folder).is_dir()
            due = None if deleted else self._joined.due(joins, now, KEPT_AFTER_COMPACTION_S)
            if due is not None:
                self._joined.show(folder, due.round)
                due.shown = now
            remaining = [] if deleted else left(joins, due, now, KEPT_AFTER_COMPACTION_S)
            changed |= due is not None or remaining != joins
            state.joined[folder] = remaining
            if not remaining:
                del state.joined[folder]
        if changed:
            self._save(state)
        self._joined.drop(state.joined)

    def _commit(self, staged: list[tuple[Path, int]], ends: Ends) -> None:
        state = self._state()
        state.round += 1
        for index, (path, _) in enumerate(staged):
            self._placed(path, f"c{state.round:09d}-{index:05d}.parquet")
        for topic, ids in ends.items():
            for topic_id, partitions in ids.items():
                state.ends.setdefault(topic, {}).setdefault(topic_id, {}).update(partitions)
        self._save(state)
        self.clean()

    def compact(self, spark: SparkSession, target_bytes: int = TARGET_BYTES) -> int:
        before = 0
        folders: dict[str, list[Path]] = {}
        for path in self.files():
            folders.setdefault(f"{path.parent.parent.name}/{path.parent.name}", []).append(path)
        after = 0
        for folder, files in folders.items():
            size = sum(path.stat().st_size for path in files)
            wanted = max(1, -(-size // target_bytes))
            if len(files) <= 2 * wanted:
                continue
            before += len(files)
            after += self._rewrite(spark, folder, files, wanted)
        self.clean()
        return before - after

    def _rewrite(self, spark: SparkSession, folder: str, files: list[Path], wanted: int) -> int:
        """All of a day in few files, in the order of their offsets."""
        import pyarrow.parquet as pq

        order = ["topic_id", "partition", "offset"]
        frame = self._read(spark, files)
        rows = sum(pq.read_metadata(path).num_rows for path in files)
        ordered = frame.repartitionByRange(wanted, *order).sortWithinPartitions(*order)
        staged, _ = self._stage(ordered, planned=rows)
        state = self._state()
        state.round += 1
        for index, (path, _) in enumerate(staged):
            self._placed(path, f"c{state.round:09d}-{index:05d}{SUFFIX}", self._joined.root)
        state.joined.setdefault(folder, []).append(Join(state.round, time.time()))
        self._save(state)
        return len(staged)


def _ages(state: _State, path: Path) -> tuple[int, int, float]:
    """The round that wrote a file, the oldest round that counts in its folder, and since when."""
    oldest, since = state.compacted.get(f"{path.parent.parent.name}/{path.parent.name}", (0, 0.0))
    number = round_of(path)
    return state.round + 1 if number is None else number, oldest, since


class DeltaLake(Lake):
    """A Delta table: Spark writes the files, delta-rs the log. A partition's end is its application's version."""

    kind = "delta"

    def _table(self) -> Any:
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError
        except ImportError as error:
            raise MissingPackage("deltalake is not installed.", hint="pip install 'deltalake>=1.0'") from error
        try:
            return DeltaTable(str(self.path))
        except TableNotFoundError:
            return None

    def exists(self) -> bool:
        return (self.path / "_delta_log").is_dir()

    def files(self, topics: Iterable[str] | None = None) -> list[Path]:
        table = self._table()
        if table is None:
            return []
        found = [Path(unquote(uri.removeprefix("file://"))) for uri in table.file_uris()]
        folders = None if topics is None else {f"topic={name}" for name in topics}
        return [path for path in found if folders is None or path.parent.parent.name in folders]

    @staticmethod
    def _application(topic: str, topic_id: int, partition: int) -> str:
        return f"stentor/{topic}/{topic_id:x}/{partition}"

    def ends(self, topic: str, topic_id: int, partitions: Iterable[int]) -> dict[int, int]:
        table = self._table()
        if table is None:
            return {}
        known = {p: table.transaction_version(self._application(topic, topic_id, p)) for p in partitions}
        return {partition: end for partition, end in known.items() if end is not None}

    def _commit(self, staged: list[tuple[Path, int]], ends: Ends) -> None:
        from deltalake import CommitProperties, Transaction

        applications = [
            Transaction(self._application(topic, topic_id, partition), end)
            for topic, ids in ends.items()
            for topic_id, partitions in ids.items()
            for partition, end in partitions.items()
        ]
        table = self._with_all_columns(self._table() or self._made())
        actions = [self._action(path, size) for path, size in staged]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            _PARTITIONED_BY,
            commit_properties=CommitProperties(app_transactions=applications),
        )
        self.clean()

    @staticmethod
    def _with_all_columns(table: Any) -> Any:
        """A table that an older version made lacks a column: joining its files would lose that."""
        from deltalake import Field
        from deltalake.schema import PrimitiveType

        if not any(field.name == "appended_at" for field in table.schema().fields):
            table.alter.add_columns([Field("appended_at", PrimitiveType("timestamp"))])
        return table

    def _made(self) -> Any:
        import pyarrow as pa
        from deltalake import DeltaTable

        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        schema = pa.schema(
            [
                ("topic", pa.string()),
                ("topic_id", pa.int64()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", "UTC")),
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", pa.list_(pa.field("element", header))),
                ("appended_at", pa.timestamp("us", "UTC")),
                ("date", pa.date32()),
            ]
        )
        return DeltaTable.create(str(self.path), schema, partition_by=_PARTITIONED_BY, name="stentor")

    def _action(self, staged: Path, size: int) -> Any:
        import pyarrow.parquet as pq
        from deltalake.transaction import AddAction

        path = self._placed(staged, f"{uuid.uuid4().hex}.parquet")
        values = {part.split("=")[0]: part.split("=")[1] for part in (path.parent.parent.name, path.parent.name)}
        rows = pq.read_metadata(path).num_rows
        where = str(path.relative_to(self.path))
        return AddAction(where, size, values, int(time.time() * 1000), True, json.dumps({"numRecords": rows}))  # noqa: FBT003

    def compact(self, spark: SparkSession, target_bytes: int = TARGET_BYTES) -> int:  # noqa: ARG002
        table = self._table()
        if table is None:
            return 0
        metrics = table.optimize.compact(target_size=target_bytes)
        kept_h = int(KEPT_AFTER_COMPACTION_S // 3600)
        table.vacuum(kept_h, dry_run=False, enforce_retention_duration=False, full=True)
        return int(metrics["numFilesRemoved"]) - int(metrics["numFilesAdded"])


@contextmanager
def alone(path: Path, otherwise: str) -> Iterator[None]:
    """Hold a lock file; NotReady with this sentence while another process does."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise NotReady(otherwise, hint="Wait for it, or stop it.") from error
        yield


def replace_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file so that there is always the old one or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    if private:  # it holds a secret (S4)
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
    fresh.write_bytes(data)
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)
