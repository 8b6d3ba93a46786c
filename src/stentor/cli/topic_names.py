"""Which topic a log on disk belongs to, for people: by the files that a broker keeps beside its logs."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.errors import StentorError
from stentor.storage.directory import CATALOGUE_FILE, CHANGES_FILE, COORDINATION_FILE, PARTITIONS_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from stentor.storage.model import Finding

_LOG: Final = re.compile(rf"{PARTITIONS_FOLDER}/([0-9a-f]{{16}})-(\d+)")


def named_by_topic(findings: list[Finding], directory: Path) -> list[Finding]:
    """The same, with the topic and partition before the path of a log, where they are known."""
    names = topic_names(directory)

    def named(finding: Finding) -> Finding:
        found = _LOG.match(finding.object)
        topic = names.get(int(found[1], 16)) if found else None
        if found is None or topic is None:
            return finding
        return msgspec.structs.replace(finding, object=f"{topic}/{found[2]} ({finding.object})")

    return [named(finding) for finding in findings]


def topic_names(directory: Path) -> dict[int, str]:
    """By id. What cannot be read names nothing: the findings say what is wrong with it."""
    with suppress(OSError, StentorError, msgspec.MsgspecError):
        return _of_single(directory)
    with suppress(OSError, StentorError, msgspec.MsgspecError):
        return _of_cluster(directory)
    return {}


def _of_single(directory: Path) -> dict[int, str]:
    from stentor.broker.catalogue import TopicRecord
    from stentor.coordination.embedded import read_saved
    from stentor.storage.changes import read_changes

    saved = (directory / COORDINATION_FILE).read_bytes()
    changes = read_changes(directory / CHANGES_FILE)
    entries = read_saved(saved, [] if changes is None else changes.payloads).items()
    records = [msgspec.msgpack.decode(value, type=TopicRecord) for key, value in entries if key.startswith("topics/")]
    return {record.id: record.name for record in records}


def _of_cluster(directory: Path) -> dict[int, str]:
    from stentor.broker.cluster.storeless_start import load_remembered

    return {record.id: record.name for record, _ in load_remembered(directory / CATALOGUE_FILE).topics}
