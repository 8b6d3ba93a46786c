"""The data directory of a broker.

    data/
      FORMAT                              one line: what this is, and which format
      LOCK                                locked by the broker that uses it; holds its process id
      replicas, replicas.changes          the journal: incarnation, and a floor for each log
      coordination, coordination.changes  the coordination store of a single broker
      broker, broker.crc32c               the id of this broker in its cluster, and its checksum
      catalogue                           what the coordination store of a cluster was last known to hold
      secret                              the cluster's secret, as it was last known; for the broker's user alone
      .disk-probe                         written now and then to find out whether the disk takes writes
      partitions/
        {topic id:016x}-{partition}/      one log: segments, indexes, snapshots
        {topic id:016x}-{partition}.FAILED   that log had a failed sync

One broker at a time: the lock goes with the process, however that ends. A directory that holds
anything else and no FORMAT is somebody else's and is refused; so is a format newer than ours.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from stentor.errors import CorruptData, DirectoryInUse, DirectoryUnusable, FormatTooNew, StorageError
from stentor.storage.files import (
    PRIVATE_FOLDER,
    SPARE,
    TEMPORARY_SUFFIX,
    FileHandle,
    atomic_write,
    storage_error,
    sync_directory,
)
from stentor.storage.journal import ReplicaJournal
from stentor.storage.retention import remove_log
from stentor.storage.state import mark_path

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
FORMAT_FILE: Final = "FORMAT"
LOCK_FILE: Final = "LOCK"
JOURNAL_FILE: Final = "replicas"
JOURNAL_CHANGES_FILE: Final = "replicas.changes"
COORDINATION_FILE: Final = "coordination"
CHANGES_FILE: Final = "coordination.changes"
BROKER_FILE: Final = "broker"
CATALOGUE_FILE: Final = "catalogue"
SECRET_FILE: Final = "secret"  # noqa: S105 - a name
CHECKSUM_FILE: Final = "broker.crc32c"
PROBE_FILE: Final = ".disk-probe"
PARTITIONS_FOLDER: Final = "partitions"
ASIDE_FOLDER: Final = "aside"

_FORMAT_TEXT: Final = "stentor data directory, format {version}\n"
_FORMAT_PATTERN = re.compile(r"stentor data directory, format (\d{1,9})\s*")
_PARTITION_PATTERN = re.compile(r"([0-9a-f]{16})-(0|[1-9]\d{0,9})")
_UNFINISHED: Final = frozenset({LOCK_FILE, FORMAT_FILE + TEMPORARY_SUFFIX, "lost+found"})
"""What a directory may hold that has no FORMAT yet: a crash during creation, or a new file system."""


class PartitionDirectory(msgspec.Struct, frozen=True):
    """A directory that holds the log of one partition."""

    topic_id: int
    partition: int
    path: Path


class AsideCopy(msgspec.Struct, frozen=True):
    """A log that was replaced by another copy."""

    topic_id: int
    partition: int
    path: Path
    since_s: float  # since 1970: when it was put aside, or later


def partition_name(topic_id: int, partition: int) -> str:
    """The name of the directory of a partition."""
    return f"{topic_id:016x}-{partition}"


def list_partitions(path: Path) -> tuple[list[PartitionDirectory], list[Path]]:
    """The partition directories below a data directory, and whatever else lies among them."""
    found, foreign = [], []
    folder = path / PARTITIONS_FOLDER
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _PARTITION_PATTERN.fullmatch(entry.name.removesuffix(".FAILED"))
        if match is None:
            foreign.append(entry)
        elif entry.is_dir() and not entry.name.endswith(".FAILED"):
            found.append(PartitionDirectory(int(match[1], 16), int(match[2]), entry))
    return found, foreign


def read_format(path: Path) -> int | None:
    """The format of the data directory at `path`; None if nothing says that it is one."""
    try:
        text = (path / FORMAT_FILE).read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        text = ""
    match = _FORMAT_PATTERN.fullmatch(text)
    if match is None:
        raise DirectoryUnusable(
            f"{path / FORMAT_FILE} is not a valid format file.",
            hint=f"If this is a Stentor data directory, write into the file: {_FORMAT_TEXT.format(version=1).strip()}",
            object=str(path),
        )
    return int(match[1])


def check_format(path: Path) -> bool:
    """Is this a data directory we can use? False if it is empty or unfinished, an error if neither."""
    version = read_format(path)
    if version is None:
        strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in _UNFINISHED)
        if strangers:
            raise DirectoryUnusable(
                f"{path} is not a Stentor data directory: it holds {', '.join(strangers[:3])} and no {FORMAT_FILE}.",
                hint="Choose an empty or new directory.",
                object=str(path),
            )
        return False
    if version > FORMAT_VERSION:
        raise FormatTooNew(
            f"{path} has format {version}; this Stentor knows formats up to {FORMAT_VERSION}.",
            hint="Start the newer Stentor that wrote it.",
            object=str(path),
        )
    return True


class DataDirectory:
    """An open data directory: created if need be, checked, and locked until it is closed."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._lock: FileHandle | None = None
        SPARE.fill()
        try:
            self._make()
            ready = check_format(self.path)
            self._lock = self._take_lock()
            self._check_writable()
            if not ready:
                version = _FORMAT_TEXT.format(version=FORMAT_VERSION)
                atomic_write(self.path / FORMAT_FILE, version.encode())
            (self.path / PARTITIONS_FOLDER).mkdir(PRIVATE_FOLDER, exist_ok=True)
            self._keep_private()
            sync_directory(self.path)
        except OSError as error:
            self.close()
            raise storage_error(error, operation="use", path=self.path) from error
        except StorageError:
            self.close()
            raise

    def _make(self) -> None:
        try:
            self.path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DirectoryUnusable(
                f"{self.path} is not a directory.",
                hint="Choose another path, or move the file away.",
                object=str(self.path),
            ) from error
        if not stat.S_ISDIR(self.path.stat().st_mode):
            raise DirectoryUnusable(f"{self.path} is not a directory.", hint="Choose another path.")

    def _keep_private(self) -> None:
        """An older version let everyone in. Nobody gets at a file through a folder that is closed to them."""
        for folder in (self.path, self.path / PARTITIONS_FOLDER, self.path / ASIDE_FOLDER):
            try:
                if folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) & ~PRIVATE_FOLDER:
                    folder.chmod(PRIVATE_FOLDER)
                    logger.info("%s can now be read by its owner only", folder)
            except OSError as error:
                logger.warning(
                    "%s can be read by other users, and this broker cannot change that: %s", folder, error.strerror
                )

    def _take_lock(self) -> FileHandle:
        path = self.path / LOCK_FILE
        if path.exists():
            lock = FileHandle(path, write=True)
        else:
            try:
                lock = FileHandle(path, write=True, create=True)
            except FileExistsError:
                lock = FileHandle(path, write=True)
        try:
            fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise
            raise self._in_use(lock) from error
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _in_use(self, lock: FileHandle) -> DirectoryInUse:
        holder = os.pread(lock.fd, 32, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        return DirectoryInUse(
            f"{self.path} is in use by {who}.",
            hint="Stop that broker first, or choose another data directory.",
            object=str(self.path),
            pid=int(holder) if holder.isdigit() else None,
        )

    def _check_writable(self) -> None:
        """Find a read-only directory now, and not at the first write."""
        if os.statvfs(self.path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def partition_directory(self, topic_id: int, partition: int) -> Path:
        """Where the log of a partition lives; the log creates it."""
        return self.path / PARTITIONS_FOLDER / partition_name(topic_id, partition)

    def partitions(self) -> list[PartitionDirectory]:
        """The partition directories that exist."""
        return list_partitions(self.path)[0]

    def remove_partition(self, topic_id: int, partition: int) -> None:
        """The same by its name; nothing if there is none."""
        path = self.partition_directory(topic_id, partition)
        if path.exists():
            remove_log(path)

    def remove(self, found: PartitionDirectory) -> None:
        """Remove the log of a partition that nobody has open, an orphan for instance."""
        remove_log(found.path)

    def put_aside(self, topic_id: int, partition: int) -> Path | None:
        """Move a log that is replaced by a new copy out of the way: nobody deletes what might be rescued (K2)."""
        path = self.partition_directory(topic_id, partition)
        if not path.exists():
            return None
        folder = self.path / ASIDE_FOLDER
        try:
            folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
            target = next(
                candidate for number in range(1_000_000) if not (candidate := folder / f"{path.name}.{number}").exists()
            )
            path.rename(target)
            mark_path(path).unlink(missing_ok=True)
            sync_directory(path.parent)
            sync_directory(folder)
        except OSError as error:
            raise storage_error(error, operation="put aside", path=path) from error
        return target

    def aside(self) -> list[AsideCopy]:
        """The copies that were put aside."""
        folder = self.path / ASIDE_FOLDER
        found = []
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            match = _PARTITION_PATTERN.fullmatch(entry.name.rpartition(".")[0])
            if match is not None and entry.is_dir():
                # Renaming a directory sets its ctime, and nobody can set it to an earlier one.
                found.append(AsideCopy(int(match[1], 16), int(match[2]), entry, entry.stat().st_ctime))
        return found

    def remove_aside(self, copy: AsideCopy) -> None:
        """Nobody needs this copy any more."""
        try:
            shutil.rmtree(copy.path)
            sync_directory(copy.path.parent)
        except OSError as error:
            raise storage_error(error, operation="delete", path=copy.path) from error

    def journal(self, *, expected: bool = True, alone: bool = True) -> ReplicaJournal:
        """Open the journal of this broker: a new incarnation begins.

        Where there are logs a journal is expected, unless the operator says otherwise.
        """
        try:
            return ReplicaJournal.open(self.path / JOURNAL_FILE, expected=expected and bool(self.partitions()))
        except CorruptData as error:
            if not alone:
                error.hint = (
                    f"Move {self.path} away and start with an empty directory: this broker copies everything from the"
                    f" other brokers. Only if those have lost their copies too, restore the journal from a backup."
                )
            raise

    def close(self) -> None:
        """Let go of the lock."""
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
