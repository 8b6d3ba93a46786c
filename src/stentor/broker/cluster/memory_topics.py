"""What a memory topic may be: a stream of messages whose newest part is kept, and nothing that must not be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.core.memory_limits import MEMORY_TOPIC_BYTES, MEMORY_TOPIC_BYTES_MAX
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor.wire.messages import TopicSettings


def memory_defaults(settings: TopicSettings) -> TopicSettings:
    """What a broker gives to memory topics that do not say otherwise: its own defaults are about disks."""
    return msgspec.structs.replace(settings, flush="always", retention_bytes=MEMORY_TOPIC_BYTES)


def check_memory(name: str, settings: TopicSettings) -> None:
    """Refuse what a topic in memory cannot be."""
    if settings.durability != "memory":
        return
    kept = settings.retention_bytes
    wrong = hint = ""
    if settings.kind != "stream":
        wrong = f"is a {settings.kind}: what it holds must outlive its brokers"
        hint = "Leave out the durability."
    elif settings.cleanup != "delete":
        wrong = f"has the cleanup {settings.cleanup}: compaction is for logs on disk"
        hint = "Leave out the cleanup or the durability."
    elif settings.waits_for or settings.retention_wait_bytes is not None:
        wrong = "lets its retention wait: memory is bounded, and nobody can be waited for"
        hint = "Leave out keep_unrecorded, retention_waits_for and retention_wait_bytes, or the durability."
    elif settings.flush != "always":
        wrong = f"has flush={settings.flush}: there is nothing to flush"
        hint = "Leave out the flush or the durability."
    elif kept is None or kept > MEMORY_TOPIC_BYTES_MAX:
        wrong = f"has a retention of {'any number of' if kept is None else kept} bytes per partition"
        hint = f"A memory topic keeps at most {MEMORY_TOPIC_BYTES_MAX}."
    if wrong:
        raise InvalidArgument(f"Topic {name} is kept in memory, and {wrong}.", hint=hint, object=name)
