"""Folders of pipelines: our side and Spark mean one place, and what Spark wrote is there before anything counts.

Our side looks after a lake with the file system of this machine; Spark takes what it is given for a URI. So a place is
a folder here, `./lake`, `/data/lake` or `file:///data/lake`, and Spark gets its URI. An object store or HDFS is refused
in a sentence, instead of becoming a local folder called `s3:`.

Executors on other machines must share the folder. If they do not, they write to their own file systems, and Spark calls
that a success. So the rows that its tasks have written are counted, and the rows in the files that are here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from stentor.errors import InvalidArgument, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, DataFrameWriter

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/|$)")
"""As in `s3://bucket/lake`, and in `s3:/bucket/lake`, which is what pathlib makes of it."""
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
"""What Spark takes for a pattern in the paths that it reads."""


def local_folder(given: str | Path, what: str) -> Path:
    """Return the folder of this machine that is meant; InvalidArgument for any other place."""
    text = str(given)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(given)
    if scheme[1].lower() != "file":
        raise InvalidArgument(
            f"{text} is not a folder of this machine, and a {what} can only be in one.",
            hint=f"Name a folder such as ./{what} or file:///data/{what}. Mount what is in {scheme[1]}.",
            object=text,
        )
    uri = urlsplit(text)
    if uri.netloc not in ("", "localhost") or not uri.path.startswith("/") or uri.query or uri.fragment:
        raise InvalidArgument(
            f"{text} does not name a folder of this machine.",
            hint=f"For example file:///data/{what}, with three slashes.",
            object=text,
        )
    return Path(unquote(uri.path))


def to_write(path: Path) -> str:
    """Return a path as Spark writes to it; without a scheme it would be in whatever file system is its default."""
    return _uri(path)


def to_read(path: Path) -> str:
    """Return a path as Spark reads it; signs that mean a pattern stand for themselves."""
    return _GLOB.sub(r"\\\1", _uri(path))


def _uri(path: Path) -> str:
    return f"file://{path.absolute()}"  # Spark takes what follows as it is: `%20` is not a space


def write_parquet(
    frame: DataFrame,
    place: Path,
    chosen: Callable[[DataFrameWriter], DataFrameWriter],
    what: str,
    *,
    planned: int | None = None,
) -> tuple[list[Path], int]:
    """Let Spark write a frame; return the files that have rows, and how many rows they have.

    Raises StorageError unless those are all rows that its tasks wrote, and as many as were `planned`.
    """
    import pyarrow.parquet as pq
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observed = Observation()
    writer = frame.observe(observed, f.count(f.lit(1)).alias("rows")).write
    chosen(writer).parquet(to_write(place))
    counts = {path: pq.read_metadata(path).num_rows for path in sorted(place.rglob("*.parquet")) if path.stat().st_size}
    there = sum(counts.values())
    wanted = observed.get.get("rows", 0) if planned is None else planned
    if there != wanted:
        raise StorageError(
            f"The {what} should get {wanted} rows, and Spark has put {there} of them into {place}.",
            hint="Executors must write to the same file system as this machine: use a folder that they share, or run"
            " Spark here. Nothing was changed.",
            object=str(place),
        )
    return [path for path, rows in counts.items() if rows], there
