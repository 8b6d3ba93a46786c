"""Schemas of topics at the broker: registered here, and compared with the id of every batch that a head takes.

The head looks at the id alone. Rows are encoded by producers and decoded by readers, who know the types; the head
keeps rows of an unknown schema, and messages that are no rows, out of a tabular topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.broker.catalogue import TopicRecord, encode
from stentor.errors import LimitExceeded, SchemaRefused
from stentor.wire import schemas

if TYPE_CHECKING:
    from stentor.wire.schemas import SchemaColumn


def refusal(topic: str, known: int, schema_id: int) -> SchemaRefused:
    """Why a head does not take a batch that names this version, of those it knows."""
    if not schema_id:
        return SchemaRefused(
            f"Topic {topic} has a schema; this batch names none.",
            hint=f"Send rows with client.tabular({topic!r}).producer().",
            object=topic,
        )
    error = SchemaRefused(
        f"Topic {topic} has {known} versions of a schema; this batch names version {schema_id}.",
        hint="Register a schema before rows of it are sent: client.tabular(name, schema).",
        object=topic,
    )
    error.retriable = True  # it may have been registered a moment ago, at another broker
    return error


def with_version(record: TopicRecord, columns: list[SchemaColumn]) -> TopicRecord:
    """A topic's record with one more version, if it may be one; a version that it has, or had, changes nothing."""
    name, known = record.name, record.schemas
    if columns in known:
        return record
    schemas.check(name, columns)
    found = schemas.difference(known[-1], columns) if known else ""
    if found:
        raise SchemaRefused(
            f"Version {len(known)} of the schema of topic {name} cannot become this one: {found}.",
            hint="A version may only add columns that are nullable. Use a new topic for anything else.",
            operation="register",
            object=name,
        )
    changed = msgspec.structs.replace(record, schemas=[*known, columns])
    size = len(encode(changed))
    if len(changed.schemas) > limits.SCHEMA_VERSIONS_MAX or size > limits.SCHEMA_BYTES_MAX:
        raise LimitExceeded(
            f"The schemas of topic {name} would have {len(changed.schemas)} versions and {size} bytes; the"
            f" limits are {limits.SCHEMA_VERSIONS_MAX} and {limits.SCHEMA_BYTES_MAX}.",
            hint="Use a new topic.",
            object=name,
        )
    return changed
