"""Letting old segments go: by age and by size, whole and sealed ones only, never what is not committed.

Age is that of the newest batch's `appended_at`, the clock of the head of the chain; message timestamps have no
say, because a replay keeps them. Size keeps at least `retention_bytes` of the newest data: a segment goes
only if what remains is still that much.

A segment is first taken out of the list, so that no new reader finds it, then its files are removed,
the log file last, oldest segment first, the directory synced after each: a crash anywhere leaves a log
without holes, perhaps with an old segment that the next run removes. A damaged segment is moved to
`quarantine/` instead: nobody deletes what might still be rescued (K2).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from stentor.storage.files import PRIVATE_FOLDER, TEMPORARY_SUFFIX, storage_error, sync_directory
from stentor.storage.model import LogSettings
from stentor.storage.segment import QUARANTINE, SUFFIXES, Segment, base_of, list_segments, segment_path
from stentor.storage.state import mark_path


def expired_segments(
    segments: Sequence[Segment], settings: LogSettings, now_us: int, committed: int
) -> Sequence[Segment]:
    """The oldest segments that may go."""
    left = sum(segment.file_bytes for segment in segments)
    for place, segment in enumerate(segments[:-1]):
        left -= segment.file_bytes
        if not segment.sealed or segment.end > committed:
            return segments[:place]
        if not (_too_old(segment, settings, now_us) or _too_much(left, settings)):
            return segments[:place]
    return segments[:-1]


def overdue_segments(expired: Sequence[Segment], passed: int, wait_bytes: int) -> Sequence[Segment]:
    """The oldest of these segments, without the newest that somebody may still need: so many bytes of those that hold
    something at or above `passed`.
    """
    left = sum(segment.file_bytes for segment in expired if segment.end > passed)
    for place, segment in enumerate(expired):
        if left <= wait_bytes and segment.end > passed:
            return expired[:place]
        left -= segment.file_bytes if segment.end > passed else 0
    return expired


def segments_below(segments: Sequence[Segment], start: int, committed: int) -> Sequence[Segment]:
    """The oldest segments that hold nothing at or above an offset."""
    for place, segment in enumerate(segments[:-1]):
        if not segment.sealed or segment.end > min(start, committed):
            return segments[:place]
    return segments[:-1]


def _too_old(segment: Segment, settings: LogSettings, now_us: int) -> bool:
    age_s = settings.retention_age_s
    return age_s is not None and segment.appended_at_us_max < now_us - int(age_s * 1_000_000)


def _too_much(left: int, settings: LogSettings) -> bool:
    return settings.retention_bytes is not None and left >= settings.retention_bytes


def retire_segment(segment: Segment) -> None:
    """Remove the files of a segment that is no longer in the list, or put damaged ones aside."""
    try:
        if segment.damaged:
            put_aside(segment.directory, segment.base)
        else:
            remove_files(segment.directory, segment.base)
    except OSError as error:
        raise storage_error(error, operation="remove", path=segment.path()) from error


def remove_files(directory: Path, base: int) -> None:
    """Remove all files of a segment, the log last, and make that durable."""
    for suffix in SUFFIXES:
        segment_path(directory, base, suffix).unlink(missing_ok=True)
    sync_directory(directory)


def put_aside(directory: Path, base: int) -> None:
    """Move all files of a segment to the quarantine, beside what is there already."""
    target = directory / QUARANTINE
    target.mkdir(PRIVATE_FOLDER, exist_ok=True)
    for suffix in SUFFIXES:
        path = segment_path(directory, base, suffix)
        place, copies = target / path.name, 0
        while place.exists():
            copies += 1
            place = target / f"{path.stem}-{copies}{suffix}"
        with contextlib.suppress(FileNotFoundError):
            path.rename(place)
    sync_directory(target)
    sync_directory(directory)


def remove_temporaries(directory: Path) -> None:
    """Remove unfinished files of our own."""
    for entry in list(directory.iterdir()):
        plain = entry.name.removesuffix(TEMPORARY_SUFFIX)
        if plain != entry.name and any(base_of(plain, suffix) is not None for suffix in SUFFIXES):
            entry.unlink(missing_ok=True)


def remove_log(directory: Path) -> None:
    """Remove a log for good, newest segment first, and its directory unless others left files in it."""
    try:
        shutil.rmtree(directory / QUARANTINE, ignore_errors=True)
        for base in reversed(list_segments(directory)[0]):
            remove_files(directory, base)
        remove_temporaries(directory)
        mark_path(directory).unlink(missing_ok=True)
        if not any(directory.iterdir()):
            directory.rmdir()
        sync_directory(directory.parent)
    except FileNotFoundError:
        return  # gone already
    except OSError as error:
        raise storage_error(error, operation="delete", path=directory) from error
