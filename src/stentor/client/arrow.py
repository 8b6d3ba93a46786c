"""The door to what needs pyarrow: whoever handles messages alone never loads it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stentor.client.decode import offset_batches
from stentor.wire import bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def tables() -> Any:
    """The module `client.tables`; MissingPackage without pyarrow."""
    bodies.arrow("Arrow")
    return import_module("stentor.client.tables")


def row_decoder(*, appended_at: bool) -> Callable[..., Iterator[tuple[int, Any]]]:
    """How deliveries become Arrow; MissingPackage without pyarrow."""
    bodies.arrow("Arrow")
    if not appended_at:
        return offset_batches
    from stentor.client.stamped import stamped_batches

    return stamped_batches
