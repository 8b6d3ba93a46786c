"""Who may use what somebody holds: a membership, a lease, a session, a transaction (C36).

A client draws 16 random bytes once and shows them on every connection that it makes, also to a new head. Brokers keep
only their hash, in the log beside the thing that is held. Whoever acts on that thing later must have shown the same
bytes. Ids that others can read, in logs or answers, open nothing.

What was made without a secret, by an older client or in an older log, stays open to everybody who knows its id, until
its holder first shows a secret: from then on that counts.

Hashes are written into logs only from the cluster's feature level `HOLDERS` on (C27).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

SECRET_BYTES: Final = 16
"""How long a holder's secret is: nobody guesses 128 random bits."""

HASH_BYTES: Final = 16
"""How long its hash is, which logs keep."""

NOBODY: Final = b""
"""The hash of somebody who has shown no secret, or of something that was made without one."""


def holder_of(secret: bytes) -> bytes:
    """Return the hash that stands for a secret in logs; `NOBODY` for an empty one."""
    return blake2b(secret, digest_size=HASH_BYTES, person=b"stentor holder").digest() if secret else NOBODY


def may_use(kept: bytes, shown: bytes) -> bool:
    """Return whether a caller who showed `shown` may use what is kept for the holder `kept`; both are hashes."""
    return kept in (NOBODY, shown)
