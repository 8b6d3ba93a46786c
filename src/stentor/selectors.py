"""Selectors: which partition a message goes to, and which member of a chain a reader listens to."""

from stentor.client.selectors import (
    fixed,
    head_first,
    key_hash,
    least_loaded,
    nearest_zone,
    round_robin,
    spread,
    sticky,
    tail_first,
)

__all__ = [
    "fixed",
    "head_first",
    "key_hash",
    "least_loaded",
    "nearest_zone",
    "round_robin",
    "spread",
    "sticky",
    "tail_first",
]
