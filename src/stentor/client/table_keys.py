"""What calls of a table are given: keys, subtrees and conditions, checked."""

from __future__ import annotations

from typing import Any

from stentor import limits
from stentor.client.convert import as_bytes
from stentor.core.table import ABSENT
from stentor.errors import InvalidArgument, LimitExceeded


def check_key(key: object) -> str:
    """A key is a path: words with slashes between them."""
    if not isinstance(key, str):
        raise InvalidArgument(f"A key of a table is text, not {type(key).__name__}.")
    if not key or key.startswith("/") or key.endswith("/") or "//" in key:
        raise InvalidArgument(
            f"{key!r} is no key of a table.", hint="Use a path such as 'app/limits/rate': words with slashes between."
        )
    encoded = as_bytes(key, "key") or b""
    if len(encoded) > limits.MESSAGE_KEY_BYTES_MAX:
        raise LimitExceeded(
            f"A key has {len(encoded)} bytes; the limit is {limits.MESSAGE_KEY_BYTES_MAX}.",
            hint="Use a shorter path.",
        )
    return key


def check_subtree(subtree: object) -> str:
    """A subtree is a path that ends with a slash; empty, it is the whole table."""
    if not isinstance(subtree, str):
        raise InvalidArgument(f"A subtree is text, not {type(subtree).__name__}.")
    if subtree and (not subtree.endswith("/") or subtree.startswith("/") or "//" in subtree):
        raise InvalidArgument(
            f"{subtree!r} is no subtree: it would end in the middle of a word.",
            hint=f"Use a path that ends with a slash, such as {subtree.strip('/') + '/'!r}.",
        )
    return subtree


def condition_of(if_version: Any, *, if_absent: bool) -> int | None:
    """What a change depends on, if on anything."""
    if if_absent and if_version is not None:
        raise InvalidArgument("A change depends on a version or on absence, not on both.")
    if if_absent:
        return ABSENT
    if if_version is not None and (isinstance(if_version, bool) or not isinstance(if_version, int) or if_version < 0):
        raise InvalidArgument(f"if_version={if_version!r} is no version.", hint="Use the version of an entry.")
    return if_version
