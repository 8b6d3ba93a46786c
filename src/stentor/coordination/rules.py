"""What every coordination store refuses in the same words, before anything is sent or saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.errors import InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_swap(expect: Mapping[str, int], put: Mapping[str, bytes], delete: tuple[str, ...]) -> None:
    """Refuse a swap that is too large or contradicts itself."""
    operations = max(len(expect), len(put) + len(delete))
    if operations > limits.COORDINATION_SWAP_OPERATIONS_MAX:
        raise LimitExceeded(
            f"A swap of {operations} operations is over the limit of {limits.COORDINATION_SWAP_OPERATIONS_MAX}.",
            hint="Split it into several swaps, each of which leaves a valid state.",
        )
    both = put.keys() & set(delete)
    if both:
        raise InvalidArgument(f"A swap cannot put and delete the same key: {min(both)}.")
    for key in (*expect, *put, *delete):
        check_key(key)
    size = sum(len(key.encode()) + len(value) for key, value in put.items())
    if size > limits.COORDINATION_SWAP_BYTES_MAX:
        raise LimitExceeded(f"A swap of {size} bytes is over the limit of {limits.COORDINATION_SWAP_BYTES_MAX}.")


def check_key(key: str) -> None:
    """Refuse a key that is empty, too long, or no text."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("A key must be text that can be encoded as UTF-8.", object=ascii(key)[:100]) from None
    if not 0 < size <= limits.COORDINATION_KEY_BYTES_MAX:
        raise InvalidArgument(
            f"A key has 1 to {limits.COORDINATION_KEY_BYTES_MAX} bytes; this one has {size}.", object=key[:100]
        )


def check_ttl(ttl_s: int) -> None:
    """Refuse a lease that is no whole number of seconds, or too long to say anything."""
    if not 1 <= ttl_s <= limits.COORDINATION_LEASE_S_MAX or ttl_s != int(ttl_s):
        raise InvalidArgument(f"A lease lasts 1 to {limits.COORDINATION_LEASE_S_MAX} whole seconds, not {ttl_s}.")
