"""Joined files: how large files take the place of small ones, so that every reader sees each row once at any time.

Whoever reads the folders of a lake of plain files reads all that is in them. So joined files are kept where such
readers do not look, under names that are not those of Parquet files, until they can take the place of the small ones
at once:

    lake/topic=orders.eu/date=2026-11-15/c000000001-00000.parquet …      what plain readers see
    lake/_stentor/joined/topic=orders.eu/date=2026-11-15/c000000005-00000.joined

    1. The joined files are written, and are on disk.
    2. state.json says that they count: our own readers read them from now on, and the files of later rounds.
    3. An hour later nobody of ours reads the small files any more. A folder is made with links to the joined files and
       to those of later rounds, and is exchanged with the day's folder in one step of the file system.
    4. state.json says so: our own readers read the day's folder again. An hour later the hidden names go.

A crash between two steps leaves what the earlier one left; the next writer goes on with the later one. Step 3 can be
done again at any time, because its result is known beforehand. A version that does not know step 2 sees the small
files, which hold the same rows.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIX: Final = ".joined"
"""Not .parquet: some readers look into every folder for files of that name."""
_COMMITTED: Final = re.compile(r"c(\d+)-")
_AT_CWD: Final = {"linux": -100, "darwin": -2}
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


class Join(msgspec.Struct):
    """Files that hold everything of a folder up to a round."""

    round: int
    since: float  # when our own readers began to read them
    shown: float = 0.0  # when they took the place of the small files; 0: not yet


def round_of(path: Path) -> int | None:
    """The round that wrote a file; None if none of ours did."""
    match = _COMMITTED.match(path.name)
    return int(match[1]) if match else None


class Joined:
    """The hidden files of a lake."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self.root = lake / "_stentor" / "joined"
        self._spare = lake / "_stentor" / "exchanged"

    def files(self, folder: str, number: int) -> list[Path]:
        """Those of a folder that one round joined."""
        return [path for path in sorted((self.root / folder).glob(f"*{SUFFIX}")) if round_of(path) == number]

    def due(self, joins: list[Join], now: float, kept_s: float) -> Join | None:
        """The newest whose small files nobody of ours reads any more, if it is not shown yet."""
        old = [join for join in joins if now - join.since > kept_s]
        return old[-1] if old and not old[-1].shown else None

    def show(self, folder: str, number: int) -> None:
        """Let joined files take the place of all that are not newer."""
        place = self._lake / folder
        later = [path for path in place.glob("*.parquet") if (round_of(path) or 0) > number]
        links = {f"{path.stem}.parquet": path for path in (*self.files(folder, number), *later)}
        if {path.name for path in place.glob("*.parquet")} == set(links):
            return  # it was done, and not written down
        self.clean()
        self._spare.mkdir(parents=True)
        for name, path in links.items():
            _link(path, self._spare / name)
        sync(self._spare)
        if not exchange(self._spare, place):
            self._replace(place, set(links))
        sync(place)
        sync(place.parent)
        self.clean()

    def _replace(self, place: Path, names: set[str]) -> None:
        """Where folders cannot be exchanged, plain readers may see rows twice for a moment, but always all of them."""
        for path in self._spare.iterdir():
            path.replace(place / path.name)
        sync(place)
        for path in place.glob("*.parquet"):
            if path.name not in names:
                path.unlink()

    def clean(self) -> None:
        """Take away the folder that was exchanged, or was to be."""
        shutil.rmtree(self._spare, ignore_errors=True)

    def drop(self, kept: dict[str, list[Join]]) -> None:
        """Take away the files of which the state knows nothing."""
        for path in self.root.glob(f"topic=*/date=*/*{SUFFIX}"):
            folder = f"{path.parent.parent.name}/{path.parent.name}"
            if round_of(path) not in {join.round for join in kept.get(folder, ())}:
                path.unlink()


def left(joins: Iterable[Join], shown: Join | None, now: float, kept_s: float) -> list[Join]:
    """The joins whose hidden files somebody may still read, in their order."""
    found = [join for join in joins if shown is None or join.round >= shown.round]
    if len(found) == 1 and found[0].shown and now - found[0].shown > kept_s:
        return []
    return found


def _link(path: Path, other: Path) -> None:
    """Another name for a file; where the file system has only one for each, a copy."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
        sync(other)


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False where the system or the file system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    here = _AT_CWD.get(sys.platform)
    call = getattr(library, {"linux": "renameat2", "darwin": "renameatx_np"}.get(sys.platform, ""), None)
    if call is None or here is None:
        return False
    return bool(call(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0)


def sync(path: Path) -> None:
    """What a file or folder holds is on disk afterwards."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
